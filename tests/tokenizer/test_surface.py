"""Loading, saving, vocabulary, components, copies, and the parts that are left out on purpose."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from prelude.tokenizer import Tokenizer, TokenizerFileError, TokenizersMutationError, trainers

Pair = Callable[[str], tuple[Tokenizer, Any]]


@pytest.mark.feature("J2")
def test_the_ways_to_load_are_one(json_of: Any, tmp_path: Path) -> None:
    text = json_of("template")
    path = tmp_path / "tokenizer.json"
    path.write_text(text, encoding="utf-8")
    loaded = [
        Tokenizer.from_file(str(path)), Tokenizer.from_file(path), Tokenizer.from_str(text),
        Tokenizer.from_buffer(text.encode()), Tokenizer.from_pretrained(str(tmp_path)),
    ]  # fmt: skip
    assert len({tuple(t.encode("Hello there").ids) for t in loaded}) == 1


def test_from_pretrained_goes_through_the_hub(json_of: Any, tmp_path: Path, monkeypatch: Any) -> None:
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError

    asked = []

    def download(repo: str, name: str, **options: Any) -> str:
        asked.append((repo, name, options["revision"], options["token"]))
        if name == "chat_template.jinja":
            raise EntryNotFoundError("no such file")
        text = json_of("template") if name == "tokenizer.json" else json.dumps({"eos_token": "[SEP]"})
        (tmp_path / name).write_text(text, encoding="utf-8")
        return str(tmp_path / name)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    loaded = Tokenizer.from_pretrained("some/model", revision="v1", token="secret")
    assert loaded.eos_token_id == loaded.token_to_id("[SEP]")
    assert asked[0] == ("some/model", "tokenizer.json", "v1", "secret")


@pytest.mark.feature("J2")
def test_vocabulary(name: str, pair_of: Pair) -> None:
    ours, theirs = pair_of(name)
    for added in (True, False):
        assert ours.get_vocab(added) == theirs.get_vocab(added)
        assert ours.get_vocab_size(added) == theirs.get_vocab_size(added)
    assert ours.get_vocab() == theirs.get_vocab()
    for token in (*list(theirs.get_vocab())[:50], "<special>", "no such token", ""):
        assert ours.token_to_id(token) == theirs.token_to_id(token)
    for id in (*range(80), theirs.get_vocab_size() - 1, theirs.get_vocab_size(), 10**6):
        assert ours.id_to_token(id) == theirs.id_to_token(id)
    with pytest.raises(TypeError):
        ours.token_to_id(5)  # type: ignore[arg-type]
    mine, other = ours.get_added_tokens_decoder(), theirs.get_added_tokens_decoder()
    assert list(mine) == sorted(other)
    for id, token in mine.items():
        assert repr(token) == repr(other[id]) and str(token) == str(other[id])
        flags = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
        assert [getattr(token, f) for f in flags] == [getattr(other[id], f) for f in flags]


def test_to_str_loads_in_hf_and_here(name: str, pair_of: Pair, assert_same: Any, texts: list[str]) -> None:
    ours, theirs = pair_of(name)
    for pretty in (True, False):
        text = ours.to_str(pretty=pretty)
        assert json.loads(text) == json.loads(theirs.to_str())
        again, elsewhere = Tokenizer.from_str(text), tokenizers.Tokenizer.from_str(text)
        for sample in texts:
            assert_same(again.encode(sample, "pair"), elsewhere.encode(sample, "pair"), sample)
            assert_same(again.encode(sample, "pair"), theirs.encode(sample, "pair"), sample)


def test_save(pair_of: Pair, tmp_path: Path) -> None:
    ours, theirs = pair_of("template")
    ours.save(str(tmp_path / "ours.json"))
    ours.save(tmp_path / "short.json", pretty=False)
    loaded = tokenizers.Tokenizer.from_file(str(tmp_path / "ours.json"))
    assert loaded.encode("Hello").ids == theirs.encode("Hello").ids
    assert (tmp_path / "short.json").stat().st_size < (tmp_path / "ours.json").stat().st_size


def test_pickle_and_copies_keep_the_settings(name: str, pair_of: Pair, assert_same: Any) -> None:
    ours, theirs = pair_of(name)
    for tokenizer in (ours, theirs):
        tokenizer.enable_truncation(7, stride=1)
        tokenizer.enable_padding(length=9)
        tokenizer.encode_special_tokens = True
    text = "Hello there <special> you 12345"
    for made in (pickle.loads(pickle.dumps(ours)), copy.copy(ours), copy.deepcopy(ours)):
        assert_same(made.encode(text), theirs.encode(text))
        made.no_truncation()
        made.enable_padding(length=30)
        assert_same(ours.encode(text), theirs.encode(text))
    theirs.encode_special_tokens = False


@pytest.mark.feature("J3")
def test_a_name_that_is_left_out_says_so(pair_of: Pair) -> None:
    ours, _ = pair_of("template")
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: ours.train(["a.txt"]), "train with `tokenizers`"),  # type: ignore[attr-defined]
        (lambda: methodcaller("train_from_iterator", [])(ours), "train with `tokenizers`"),
        (lambda: methodcaller("train_from_iterator", ["a"])(ours), "train with `tokenizers`"),
        (lambda: ours.add_tokens(["x"]), "does not change"),  # type: ignore[attr-defined]
        (lambda: ours.add_special_tokens(["x"]), "does not change"),  # type: ignore[attr-defined]
        (lambda: Tokenizer("model"), "from_file"),
        (lambda: trainers.BpeTrainer(), "training is left out"),
        (lambda: setattr(ours.model, "unk_token", "a"), "unk_token cannot be set"),
        (lambda: setattr(ours.normalizer, "lowercase", False), "lowercase cannot be set"),
    ]
    for component in ("normalizer", "pre_tokenizer", "post_processor", "decoder", "model"):
        calls.append((lambda c=component: setattr(ours, c, None), f"{component} cannot be set"))
    for call, says in calls:
        with pytest.raises(TokenizersMutationError, match=says):
            call()
    assert issubclass(TokenizersMutationError, AttributeError)


def test_components_can_be_looked_at(pair_of: Pair) -> None:
    ours, theirs = pair_of("template")
    for component in ("normalizer", "pre_tokenizer", "post_processor", "decoder", "model"):
        mine, other = getattr(ours, component), getattr(theirs, component)
        assert type(mine).__name__ == type(other).__name__
    assert ours.normalizer.normalize_str("Hé Llo") == theirs.normalizer.normalize_str("Hé Llo")
    text = "Hello, there  you"
    assert ours.pre_tokenizer.pre_tokenize_str(text) == theirs.pre_tokenizer.pre_tokenize_str(text)
    assert ours.decoder.decode(["he", "##llo", "you"]) == theirs.decoder.decode(["he", "##llo", "you"])
    assert ours.decoder.prefix == "##" and ours.model.unk_token == "[UNK]"
    assert ours.post_processor.num_special_tokens_to_add(True) == 3
    plain = [t.encode("a", add_special_tokens=False) for t in (ours, theirs)]
    assert ours.post_processor.process(plain[0]).ids == theirs.post_processor.process(plain[1]).ids
    with pytest.raises(AttributeError):
        getattr(ours.normalizer, "nothing")  # noqa: B009
    assert pair_of("no post-processor")[0].post_processor is None
    assert "Normalizer" in repr(ours.normalizer)


@pytest.mark.feature("J4")
@pytest.mark.fault(34)
def test_many_threads_share_one_tokenizer(pair_of: Pair, texts: list[str]) -> None:
    ours, _ = pair_of("template")
    expected = [(ours.encode(t).ids, ours.encode_array(t, parse_special=False).tolist()) for t in texts]
    start = threading.Barrier(64)

    def work(seed: int) -> bool:
        start.wait()
        for i in range(25):
            k = (seed + i) % len(texts)
            encoding, raw = ours.encode(texts[k]), ours.encode_array(texts[k], parse_special=False)
            if (encoding.ids, raw.tolist()) != expected[k]:
                return False
            ours.encode_batch([texts[k]] * 3, add_special_tokens=False)
            ours.decode(encoding.ids)
        return True

    with ThreadPoolExecutor(64) as pool:
        assert all(pool.map(work, range(64)))


@pytest.mark.feature("J4")
@pytest.mark.fault(34)
@pytest.mark.parametrize("flavour", ["byte-level", "template", "sentence pieces"])
def test_threads_encode_long_texts_at_once(pair_of: Pair, flavour: str) -> None:
    """Each thread has a text of its own, of more bytes than are encoded under the interpreter's lock, and special
    tokens are text in it: no thread finds its ids in the memory of whole texts."""
    ours, theirs = pair_of(flavour)
    theirs.encode_special_tokens = True
    texts = [f"{k} two Words {k}, Straße 你好 e\u0301 {k * 7919} <mask>\n" * 300 for k in range(8)]
    expected = [theirs.encode(text, add_special_tokens=False).ids for text in texts]
    start = threading.Barrier(len(texts))

    def work(k: int) -> bool:
        start.wait()
        rounds = (ours.encode_array(texts[k], add_special_tokens=False, parse_special=False) for _ in range(6))
        return all(ids.tolist() == expected[k] for ids in rounds)

    with ThreadPoolExecutor(len(texts)) as pool:
        assert all(pool.map(work, range(len(texts))))


@pytest.mark.fault(34)
def test_setters_race_with_encoders(pair_of: Pair) -> None:
    """Every encoding is one that some setting explains: never an error, never a mixture."""
    ours, _ = pair_of("template")
    text = "Hello there, how are you today my friend"
    allowed = []
    for length in (None, 5, 8):
        ours.no_truncation() if length is None else ours.enable_truncation(length)
        allowed.append(ours.encode(text).ids)
    stop = threading.Event()

    def set_all() -> None:
        while not stop.is_set():
            for length in (5, 8):
                ours.enable_truncation(length)
            ours.no_truncation()

    setter = threading.Thread(target=set_all)
    setter.start()
    try:
        with ThreadPoolExecutor(8) as pool:
            seen = list(pool.map(lambda _: ours.encode(text).ids, range(800)))
    finally:
        stop.set()
        setter.join()
    assert all(ids in allowed for ids in seen)


@pytest.mark.fault(34)
def test_fork_after_loading(json_of: Any, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json_of("template"), encoding="utf-8")
    code = (
        "import os, sys\n"
        "from prelude.tokenizer import Tokenizer\n"
        "t = Tokenizer.from_file(sys.argv[1]); ids = t.encode('Hello there').ids\n"
        "pid = os.fork()\n"
        "if pid == 0: os._exit(0 if t.encode('Hello there').ids == ids else 1)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "tokenizer.json")], check=True)


def test_importing_is_light() -> None:
    code = (
        "import sys, prelude.tokenizer\n"
        "heavy = {'tokenizers', 'transformers', 'jinja2', 'torch', 'regex', 'huggingface_hub'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "mine = [m for m in sys.modules if m.startswith('prelude.') and not m.startswith('prelude.tokenizer')]\n"
        "assert {*mine} == {'prelude.errors', 'prelude.errors.root'}, mine\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- malformed files
@pytest.mark.fault(30)
@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (["post_processor", "single"], 5, "post_processor.single"),
        (["post_processor", "single", 0], {}, r"post_processor.single\[0\]"),
        (["post_processor", "single", 0, "SpecialToken", "id"], 7, r"post_processor.single\[0\]"),
        (["post_processor", "single", 0, "SpecialToken", "type_id"], -1, r"post_processor.single\[0\].type_id"),
        (["post_processor", "special_tokens", "[CLS]", "ids"], 5, r"special_tokens\['\[CLS\]'\].ids"),
        (["truncation"], {"max_length": "x"}, "truncation"),
        (["truncation"], [], "truncation"),
        (["padding"], {"strategy": "Sideways"}, "padding"),
    ],
)
def test_malformed_members_are_named(json_of: Any, path: list[Any], value: Any, says: str) -> None:
    at = state = json.loads(json_of("template"))
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    with pytest.raises(TokenizerFileError, match=says):
        Tokenizer.from_str(json.dumps(state))


@pytest.mark.fault(30)
@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"3", b"\xff\xfe", b"nonsense", b"{}", b'{"model": {}}', b'{"model": null}', b"[" * 100_000],
)
def test_a_value_that_is_no_tokenizer_file_is_refused(data: bytes) -> None:
    with pytest.raises(TokenizerFileError) as caught:
        Tokenizer.from_buffer(data)
    place, _, message = str(caught.value).partition(": ")
    assert caught.value.path is not None and place.strip() and message.strip()
    with pytest.raises(FileNotFoundError):
        Tokenizer.from_file("no such file")


@pytest.mark.long
def test_a_batch_of_many_texts_lets_other_threads_run(pair_of: Pair) -> None:
    """Each text is short, all of them are not: the interpreter lock is handed over on the way.

    A call that keeps the lock shows no turn of the other thread however often it is tried; one that hands it over
    may still show none while the machine is busy elsewhere, so calls are made until one shows some.
    """
    ours, _ = pair_of("template")
    texts = ["some words that are said over and again, and then once more"] * 40_000
    turns: list[float] = []
    most, tries, over = 0, 0, threading.Event()

    def other() -> None:
        while not over.wait(1e-4):
            turns.append(time.perf_counter())

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # how long a waiting thread lets the one that runs have the lock before it asks
    thread = threading.Thread(target=other)
    thread.start()
    try:
        while most < 3 and tries < 100:
            tries += 1
            began = time.perf_counter()
            ours.encode_batch(texts)
            ended = time.perf_counter()
            most = max(most, sum(began < turn < ended for turn in turns[-10_000:]))
    finally:
        over.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert most >= 3
