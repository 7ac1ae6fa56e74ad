"""transformers' fast tokenizers give the same results through ours, and keep their own objects as they were."""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
import json
import pickle
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from prelude.tokenizer import Tokenizer, fast_tokenizer, patch_transformers, patched_transformers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

transformers = pytest.importorskip("transformers")

TEXTS = ["Hello there, how are you?", "  Ünïcödé 你好  <mask> x", "", "12345 <special>"]
CALLS: list[dict[str, Any]] = [
    {},
    {"add_special_tokens": False},
    {"padding": True},
    {"padding": "max_length", "max_length": 12, "truncation": True},
    {"truncation": True, "max_length": 12, "stride": 2, "return_overflowing_tokens": True},
    {"return_offsets_mapping": True, "return_special_tokens_mask": True, "return_token_type_ids": True},
    {"padding": True, "pad_to_multiple_of": 8, "padding_side": "left", "return_tensors": "np"},
    {"split_special_tokens": True},
]


@pytest.fixture(params=["template", "byte-level", "sentence pieces"])
def folder(request: pytest.FixtureRequest, json_of: Any, tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_text(json_of(request.param), encoding="utf-8")
    pad = {"template": "[PAD]", "byte-level": "<pad>", "sentence pieces": "</s>"}[request.param]
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": pad, "model_max_length": 512}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    return tmp_path


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Tokenizer]]:
    """The tokenizers of ours that were loaded on the way."""
    made: list[Tokenizer] = []
    from_str = Tokenizer.from_str

    def counted(text: str) -> Tokenizer:
        made.append(from_str(text))
        return made[-1]

    monkeypatch.setattr(Tokenizer, "from_str", staticmethod(counted))
    yield made


def plain(batch: Any) -> dict[str, Any]:
    return {k: v.tolist() if hasattr(v, "tolist") else v for k, v in batch.items()}


def everything(tokenizer: Any) -> list[Any]:
    results: list[Any] = []
    for options in CALLS:
        results.append(plain(tokenizer(TEXTS, **options)))
        results.append(plain(tokenizer(TEXTS, TEXTS[::-1], **options)))
        if "return_tensors" not in options:
            results.append(plain(tokenizer(TEXTS[0], **options)))
    words = tokenizer(["two", "words"], is_split_into_words=True)
    results += [plain(words), words.word_ids(), words.tokens(), words.char_to_token(0), words.sequence_ids()]
    ids = tokenizer(TEXTS)["input_ids"]
    results += [tokenizer.decode(ids[0]), tokenizer.batch_decode(ids, skip_special_tokens=True)]
    results += [tokenizer.tokenize(TEXTS[1]), tokenizer.encode(TEXTS[1]), tokenizer.convert_ids_to_tokens(ids[0])]
    chat = [{"role": "user", "content": "Hello"}]
    template = "{% for m in messages %}{{ m.role + ': ' + m.content }}{% endfor %}"
    results.append(plain(tokenizer.apply_chat_template(chat, chat_template=template, return_dict=True)))
    return results


def test_results_are_the_same(folder: Path, loads: list[Tokenizer]) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    expected = everything(tokenizer)
    assert not loads
    with patched_transformers():
        assert everything(tokenizer) == expected
        assert everything(transformers.AutoTokenizer.from_pretrained(folder)) == expected
    assert len(loads) == 2, "each tokenizer is loaded once"
    assert everything(tokenizer) == expected
    assert len(loads) == 2


FORMS: list[tuple[list[Any], dict[str, Any]]] = [
    *(([text], {}) for text in ("Hello", "", ("a", "b"), ["a", ""], [], [("a", "b")], [["a", "b"]], 5, ["a", 5])),
    *(([TEXTS[0], pair], {}) for pair in ("", "there", ["there"], (), None, 5)),
    *(([["a", "b"], pair], {}) for pair in (["c", "d"], ("c", "d"), ["c"], [], "c", ["c", 5], None)),
    *(([words], {"is_split_into_words": True}) for words in (["a", "b"], [["a"], ["b", "c"]], ("a", "b"), "a", [])),
    ([["a", "b"], ["c"]], {"is_split_into_words": True}), ([["a"], "c"], {"is_split_into_words": True}),
    ([[["a"], ["b"]], [["c"], ["d", "e"]]], {"is_split_into_words": True}),
]  # fmt: skip
ASKED: list[dict[str, Any]] = [
    {}, {"return_length": True}, {"return_attention_mask": False}, {"return_token_type_ids": True, "padding": True},
    *({"truncation": how, "max_length": 4} for how in (True, "only_first", "only_second", "do_not_truncate", "nope")),
    {"padding": "max_length", "max_length": 9, "padding_side": "left"}, {"padding": "max_length"},
    {"padding": True, "pad_to_multiple_of": 4, "return_special_tokens_mask": True}, {"padding": "do_not_pad"},
    {"truncation": True, "max_length": 4, "return_overflowing_tokens": True, "return_length": True},
    {"truncation": True, "max_length": 0}, {"max_length": 4},
    {"return_tensors": "np"}, {"return_tensors": "nope"}, {"padding": True, "return_tensors": "np"},
    {"sanitize_control_tokens": True},
]  # fmt: skip


def test_forms_of_inputs_and_options(folder: Path) -> None:
    """The batch with its encodings, or an error of the types or of the values."""
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizers = fast_tokenizer(theirs), theirs
    for inputs, form in FORMS:
        for asked in ASKED:
            found: list[Any] = []
            for tokenizer in tokenizers:
                try:
                    batch = tokenizer(*inputs, **form, **asked)
                    rows = [(row.ids, row.offsets, row.sequence_ids, row.word_ids) for row in batch.encodings]
                    found.append((str(plain(batch)), batch.n_sequences, rows))
                except Exception as error:
                    found.append(TypeError if isinstance(error, TypeError) else ValueError)  # HF's is an Exception
            assert found[0] == found[1], (inputs, form, asked)


def test_rows_beyond_the_length_of_the_model_are_warned_of(folder: Path) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    whole, options = len(theirs(TEXTS[0])["input_ids"]), ({}, {"verbose": False}, {"truncation": True})
    for length, asked in itertools.product((whole, whole - 1), (*options, {"max_length": whole - 1})):
        theirs.model_max_length, theirs.deprecation_warnings = length, {}
        ours = fast_tokenizer(theirs)
        assert theirs(["a", TEXTS[0]], **asked).data == ours(["a", TEXTS[0]], **asked).data
        assert theirs.deprecation_warnings == ours.deprecation_warnings


def test_ids_are_decoded_or_refused_as_by_transformers(folder: Path) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours, ids = fast_tokenizer(theirs), theirs("Hello there , I 'm <special> n't")["input_ids"]
    for given in (ids, tuple(ids), np.array(ids), ids[4], [], [ids, ids[:3]], [1.0], ["a"], None, [-1], [1 << 40]):
        for clean, skip, asked in itertools.product((False, True), (False, True), (None, False, True)):
            found: list[Any] = []
            for tokenizer in (ours, theirs):
                tokenizer.clean_up_tokenization_spaces = clean
                try:
                    found.append(tokenizer.decode(given, skip, clean_up_tokenization_spaces=asked))
                except Exception as error:
                    found.append(type(error).__mro__[-3])  # of Python's own kinds
            assert found[0] == found[1], (given, clean, skip, asked)


def replace_model(tokenizer: Any) -> None:
    tokenizer.backend_tokenizer.model = models.WordLevel({"two": 0, "[UNK]": 1, "Hello": 2}, unk_token="[UNK]")


def put_first_normalizer(tokenizer: Any) -> None:
    whole = normalizers.Sequence([normalizers.Lowercase(), normalizers.NFC()])
    tokenizer.backend_tokenizer.normalizer = whole
    tokenizer.backend_tokenizer.normalizer[0] = normalizers.Replace("e", "a")


def put(component: Any, name: str, value: object) -> None:
    if not hasattr(component, name):
        pytest.skip(f"{type(component).__name__} has no {name}")
    setattr(component, name, value)


def with_two_ids_swapped(model: bytes) -> bytes:
    state = json.loads(model)
    (one, a), (two, b) = list(state["vocab"].items())[20:22]
    state["vocab"] |= {one: b, two: a}
    return json.dumps(state).encode()


CHANGES: list[Callable[[Any], object]] = [
    # tokens that are in the vocabulary: its size does not change
    lambda t: t.add_tokens(["he"]),
    lambda t: t.add_special_tokens({"additional_special_tokens": ["he"]}),
    lambda t: t.add_tokens([AddedToken("you", rstrip=True, lstrip=True)]),
    # one that was added already, with other flags
    lambda t: t.add_tokens([AddedToken("<special>", rstrip=True, special=True)]),
    replace_model,
    lambda t: put(t.backend_tokenizer.model, "dropout", 1.0),
    lambda t: put(t.backend_tokenizer.model, "unk_token", "he"),
    lambda t: put(t.backend_tokenizer.pre_tokenizer, "add_prefix_space", True),
    put_first_normalizer,
    lambda t: setattr(t.backend_tokenizer, "encode_special_tokens", True),
    lambda t: t.backend_tokenizer.model.__setstate__(with_two_ids_swapped(t.backend_tokenizer.model.__getstate__())),
    lambda t: t.backend_tokenizer.__setstate__(t.backend_tokenizer.to_str().replace("<special>", "there").encode()),
]


@pytest.mark.parametrize("change", CHANGES)
def test_changes_after_a_first_call_are_noticed(folder: Path, change: Callable[[Any], object]) -> None:
    """Also those that leave the size of the vocabulary and every component's description as they were."""
    theirs, ours = (transformers.AutoTokenizer.from_pretrained(folder) for _ in range(2))
    change(theirs)
    expected = theirs(TEXTS)["input_ids"], theirs.decode(theirs(TEXTS[0])["input_ids"])
    with patched_transformers():
        ours(TEXTS)
        change(ours)
        assert (ours(TEXTS)["input_ids"], ours.decode(ours(TEXTS[0])["input_ids"])) == expected


class Upper:
    def normalize(self, normalized: Any) -> None:
        normalized.uppercase()


SETTINGS: list[Callable[[Any], object]] = [
    lambda t: setattr(t, "padding_side", "left"),
    lambda t: setattr(t, "truncation_side", "left"),
    lambda t: setattr(t, "pad_token", "he"),
    lambda t: setattr(t, "model_max_length", 5),
    lambda t: t.add_special_tokens({"pad_token": "<another pad>"}),
    lambda t: t.backend_tokenizer.enable_truncation(3),
    lambda t: t.backend_tokenizer.enable_padding(length=9),
    lambda t: setattr(t.backend_tokenizer, "decoder", decoders.Fuse()),
    lambda t: setattr(t.backend_tokenizer, "normalizer", normalizers.Lowercase()),
    lambda t: setattr(t.backend_tokenizer, "normalizer", None),
    lambda t: setattr(t.backend_tokenizer, "normalizer", normalizers.Normalizer.custom(Upper())),
    lambda t: setattr(t.backend_tokenizer, "pre_tokenizer", pre_tokenizers.Whitespace()),
    lambda t: setattr(t.backend_tokenizer, "post_processor", processors.ByteLevel(trim_offsets=False)),
]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("alone", [True, False])
def test_chains_of_changes_are_noticed_one_by_one(folder: Path, seed: int, alone: bool) -> None:
    chain = random.Random(seed).sample([c for c in CHANGES + SETTINGS if c is not replace_model], 4)
    theirs, ours = (transformers.AutoTokenizer.from_pretrained(folder) for _ in range(2))
    if alone:
        ours = fast_tokenizer(ours)
    found: list[list[Any]] = []
    for tokenizer in (theirs, ours):
        undo = patch_transformers() if tokenizer is ours and not alone else None
        found.append([thorough(tokenizer)])
        for change in chain:
            with contextlib.suppress(pytest.skip.Exception):
                change(tokenizer)
            found[-1].append(thorough(tokenizer))
        if undo is not None:
            undo()
    for step, (mine, other) in enumerate(zip(found[1], found[0])):
        assert mine == other, (step, inspect.getsource(chain[step - 1]))


def thorough(tokenizer: Any) -> list[Any]:
    calls: list[Callable[[], Any]] = [
        lambda: plain(tokenizer(TEXTS)),
        lambda: plain(tokenizer(TEXTS, padding="max_length", truncation=True, max_length=7)),
        lambda: plain(tokenizer(TEXTS[0], TEXTS[1], return_offsets_mapping=True, return_special_tokens_mask=True)),
        lambda: plain(tokenizer(["he", "you"], is_split_into_words=True, add_special_tokens=False)),
        lambda: plain(tokenizer(TEXTS[0], truncation=True, max_length=4, stride=1, return_overflowing_tokens=True)),
        lambda: [
            tokenizer.decode(tokenizer(t)["input_ids"], skip_special_tokens=s) for t in TEXTS for s in (False, True)
        ],
        lambda: (tokenizer.tokenize(TEXTS[0]), len(tokenizer), tokenizer.convert_ids_to_tokens([5, 6, 7])),
    ]
    found = []
    for call in calls:
        try:
            found.append(call())
        except Exception as error:
            found.append(type(error).__name__)
    return found


def test_a_call_serialises_nothing(folder: Path, loads: list[Tokenizer], monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with patched_transformers():
        tokenizer(TEXTS)
        serialised: list[Any] = []
        to_str = tokenizers.Tokenizer.to_str
        monkeypatch.setattr(tokenizers.Tokenizer, "to_str", lambda t, *a: serialised.append(t) or to_str(t, *a))
        for _ in range(5):
            tokenizer(TEXTS), tokenizer.decode([1, 2, 3])
        assert not serialised
        models.BPE().dropout = 0.5  # a component that no tokenizer holds: compared, not loaded anew
        tokenizer(TEXTS)
        assert serialised == [tokenizer.backend_tokenizer] and len(loads) == 1


def test_the_classes_of_hf_are_as_before_once_undone(folder: Path) -> None:
    before = [(c, n, m) for c in watched_classes() for n, m in vars(c).items()]
    undo = patch_transformers()
    assert [(c, n, m) for c in watched_classes() for n, m in vars(c).items()] != before
    undo()
    assert [(c, n, m) for c in watched_classes() for n, m in vars(c).items()] == before
    both = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    both[0] = normalizers.Prepend("x")
    assert both.normalize_str("A") == "xa"


def watched_classes() -> list[type]:
    modules = (models, normalizers, pre_tokenizers)
    return [tokenizers.Tokenizer, *(c for m in modules for c in vars(m).values() if isinstance(c, type))]


def test_one_tokenizer_alone(folder: Path, loads: list[Tokenizer]) -> None:
    other = transformers.AutoTokenizer.from_pretrained(folder)
    expected = everything(other)
    before = [(c, n, m) for c in watched_classes() for n, m in vars(c).items()]
    one = fast_tokenizer(other)
    assert fast_tokenizer(one) is one
    assert everything(one) == expected == everything(other)
    assert len(loads) == 1, "the other tokenizer stays on HF's"
    assert everything(copy.deepcopy(one)) == expected and len(loads) == 1
    assert [(c, n, m) for c in watched_classes() for n, m in vars(c).items()] == before
    one.add_tokens([AddedToken("ello", normalized=False)])
    changed = everything(one)
    assert changed != expected and len(loads) == 2
    assert everything(other) == expected
    assert everything(pickle.loads(pickle.dumps(one))) == changed
    with patched_transformers():
        assert everything(one) == changed
        assert everything(other) == expected
    with pytest.raises(TypeError, match="fast tokenizer of transformers, not str"):
        fast_tokenizer("bert")


def test_hf_makes_no_tokenizer_until_one_is_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = fast_tokenizer(transformers.AutoTokenizer.from_pretrained(folder))
    made: list[str] = []
    from_str = tokenizers.Tokenizer.from_str
    monkeypatch.setattr(tokenizers.Tokenizer, "from_str", lambda text: made.append(text) or from_str(text))
    for tokenizer in (one, pickle.loads(pickle.dumps(one)), copy.copy(one)):
        tokenizer(TEXTS, padding=True), len(tokenizer), tokenizer.get_vocab(), repr(tokenizer)
        tokenizer.convert_tokens_to_ids(["Hello"]), tokenizer.all_special_ids, tokenizer.added_tokens_decoder
        tokenizer.batch_decode([[5, 6], [7]], skip_special_tokens=True)
    assert not made
    assert one.backend_tokenizer.model is not None and len(made) == 1


def test_a_saved_tokenizer_is_the_same(folder: Path, tmp_path: Path) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    for name, tokenizer in (("theirs", theirs), ("ours", fast_tokenizer(theirs))):
        tokenizer.save_pretrained(tmp_path / name)
    files = sorted(path.name for path in (tmp_path / "theirs").iterdir())
    assert sorted(path.name for path in (tmp_path / "ours").iterdir()) == files
    for name in files:
        mine, other = (json.loads((tmp_path / who / name).read_text(encoding="utf-8")) for who in ("ours", "theirs"))
        assert mine == other, name


def test_encodings_of_a_batch_are_made_when_they_are_asked_for(folder: Path) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = fast_tokenizer(theirs)
    options = {"truncation": True, "max_length": 9, "stride": 2, "return_overflowing_tokens": True, "padding": True}
    for given in ({}, options):
        mine, other = (tokenizer(TEXTS, TEXTS[::-1], **given) for tokenizer in (ours, theirs))
        assert mine.is_fast and mine.n_sequences == other.n_sequences
        assert len(mine.encodings) == len(other.encodings)
        for i in range(len(other.encodings)):
            assert mine.word_ids(i) == other.word_ids(i) and mine.sequence_ids(i) == other.sequence_ids(i)
            assert mine.tokens(i) == other.tokens(i) and mine[i].offsets == other[i].offsets
        again = pickle.loads(pickle.dumps(mine))
        assert again.data == mine.data and again.tokens(1) == mine.tokens(1)


@pytest.mark.parametrize("kind", ["np", "pt"])
def test_tensors_have_the_types_and_shapes_of_transformers(folder: Path, kind: str) -> None:
    pytest.importorskip("torch")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = fast_tokenizer(theirs)
    more = ("offsets_mapping", "special_tokens_mask", "token_type_ids", "length", "overflowing_tokens")
    asked = {f"return_{name}": True for name in more}
    options = {"padding": True, "truncation": True, "max_length": 12, "return_tensors": kind}
    for inputs in ([TEXTS], [TEXTS[0]], [TEXTS, TEXTS[::-1]], [[""]]):
        for given in ({}, asked):
            mine, other = (tokenizer(*inputs, **options, **given) for tokenizer in (ours, theirs))
            assert list(mine) == list(other)
            for name in other:
                assert type(mine[name]) is type(other[name]) and mine[name].dtype == other[name].dtype
                assert mine[name].shape == other[name].shape and mine[name].tolist() == other[name].tolist()
    with pytest.raises(ValueError, match="Unable to create tensor"):
        ours(["one", "and more words"], return_tensors="pt")


def test_a_tokenizer_that_cannot_be_serialised_stays_with_hf(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Custom:
        def pre_tokenize(self, text: Any) -> None:
            text.split(lambda i, s: [s])

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer._tokenizer.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(Custom())
    expected = tokenizer("Hello there")["input_ids"]
    with patched_transformers(), caplog.at_level("INFO", logger="prelude.tokenizer"):
        assert tokenizer("Hello there")["input_ids"] == expected
        assert tokenizer("Hello there")["input_ids"] == expected
    assert sum("keeps its own" in r.message for r in caplog.records) == 1


def test_another_object_of_the_same_text_is_read_anew(folder: Path) -> None:
    """A token is found as the normalizer wrote it when it was added, or when the file was loaded."""
    owner = transformers.AutoTokenizer.from_pretrained(folder)
    added = owner._tokenizer
    added.normalizer = normalizers.Sequence([normalizers.NFC()])
    added.add_tokens([AddedToken("Wörd", normalized=True)])
    added.normalizer[0] = normalizers.Lowercase()
    loaded = type(added).from_str(added.to_str())
    assert loaded.to_str() == added.to_str()
    wanted = {one: one.encode("a Wörd", add_special_tokens=False).ids for one in (added, loaded)}
    assert wanted[added] != wanted[loaded]
    with patched_transformers():
        for one in (loaded, added, loaded):
            owner._tokenizer = one
            assert owner("a Wörd", add_special_tokens=False)["input_ids"] == wanted[one]


def test_a_method_that_is_set_on_the_object_is_kept(folder: Path) -> None:
    """As CLIP's tokenizer sets ``decode``."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids, decode = tokenizer("Hello there")["input_ids"], tokenizer._tokenizer.decode
    tokenizer._tokenizer.decode = lambda *args, **kwargs: decode(*args, **kwargs) + "!"
    wanted = tokenizer.decode(ids)
    for one in (tokenizer, fast_tokenizer(tokenizer)):
        with patched_transformers():
            assert one("Hello there")["input_ids"] == ids
            assert one.decode(ids) == wanted and wanted.endswith("!")


def test_patches_nest_and_undo(folder: Path) -> None:
    fast = transformers.PreTrainedTokenizerFast
    original = vars(fast)["_encode_plus"]
    undo_one, undo_two = patch_transformers(), patch_transformers()
    undo_one()
    undo_one()
    assert vars(fast)["_encode_plus"] is not original
    undo_two()
    assert vars(fast)["_encode_plus"] is original
    with pytest.raises(KeyError), patched_transformers():
        raise KeyError
    assert vars(fast)["_encode_plus"] is original


@pytest.mark.fault(34)
def test_threads_with_different_settings_do_not_disturb_each_other(folder: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    options = [{}, {"truncation": True, "max_length": 5}, {"padding": "max_length", "max_length": 40}]
    expected = [tokenizer(TEXTS[0], **o)["input_ids"] for o in options]
    start = threading.Barrier(16)

    def work(seed: int) -> bool:
        start.wait()
        return all(
            tokenizer(TEXTS[0], **options[(seed + i) % 3])["input_ids"] == expected[(seed + i) % 3] for i in range(40)
        )

    with patched_transformers(), ThreadPoolExecutor(16) as pool:
        assert all(pool.map(work, range(16)))
