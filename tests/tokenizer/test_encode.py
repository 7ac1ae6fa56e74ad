"""encode, encode_batch and encode_batch_fast: every column equal to HF's, for every post-processor."""

from __future__ import annotations

import asyncio
import json
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from prelude.tokenizer import LoneSurrogateError, Tokenizer
from tokenizers import models, pre_tokenizers, processors

Pair = Callable[[str], tuple[Tokenizer, Any]]


@pytest.mark.parametrize("isa", ["scalar", "avx2", "avx512"])
def test_a_word_that_no_merge_makes_is_found_among_hundreds(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words are looked up together: each of them, however many there are."""
    monkeypatch.setenv("PRELUDE_TOKENIZER_ISA", isa)
    words = {" qu": "\u0120qu", " quaggas": "\u0120quaggas"}
    vocab = {token: id for id, token in enumerate([*sorted(pre_tokenizers.ByteLevel.alphabet()), *words.values()])}
    theirs = tokenizers.Tokenizer(models.BPE(vocab, [], ignore_merges=True))
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    ours = Tokenizer.from_str(theirs.to_str())
    for word in words:
        for count in range(1, 600):
            assert ours.encode_array(word * count).tolist() == [vocab[words[word]]] * count, count


@pytest.mark.feature("J1")
@pytest.mark.parametrize("special", [True, False])
def test_single(name: str, pair_of: Pair, assert_same: Any, texts: list[str], special: bool) -> None:
    ours, theirs = pair_of(name)
    for text in texts:
        assert_same(
            ours.encode(text, add_special_tokens=special), theirs.encode(text, add_special_tokens=special), text
        )


@pytest.mark.long
@pytest.mark.parametrize("length", [255, 256, 257, 271, 288, 300, 65_535, 65_536])
@pytest.mark.parametrize(
    "others", ["é", "ü\xff\x80", "привет\u07ff", "你好\u0800\ud7ff\ue000\uffff", "🙂\U00010000\U0010ffff"]
)
def test_a_str_is_read_as_its_utf8_however_its_characters_lie(pair_of: Pair, others: str, length: int) -> None:
    ours, _ = pair_of("byte-level")
    rng = random.Random(length)
    few = "".join(rng.choice("plain text \n" + others) for _ in range(length))
    many = "".join(rng.choice(others + "a") for _ in range(length))
    late = "a" * (length - len(others)) + others
    for text in (few, many, late, others + "a" * (length - len(others))):
        expected = ours.encode_array(text.encode()).tolist()
        assert ours.encode_array(text).tolist() == expected
        assert ours.encode(text).ids == expected  # and once more, as the str may have kept something


def test_async_methods(pair_of: Pair, assert_same: Any) -> None:
    ours, theirs = pair_of("template")

    async def work() -> tuple[Any, ...]:
        return (
            await ours.async_encode("Hello", "there"),
            await ours.async_encode_batch(["Hello", "you"]),
            await ours.async_encode_batch_fast(["Hello"]),
            await ours.async_decode_batch([[5, 6], [7]]),
        )

    one, batch, fast, decoded = asyncio.run(work())
    assert_same(one, theirs.encode("Hello", "there"))
    assert_same(batch[1], theirs.encode("you"))
    assert_same(fast[0], theirs.encode_batch_fast(["Hello"])[0])
    assert decoded == theirs.decode_batch([[5, 6], [7]])


def test_a_pickled_async_method_is_the_async_one(pair_of: Pair) -> None:
    ours, _ = pair_of("template")
    for method in (ours.async_encode, ours.async_encode_batch, ours.async_encode_batch_fast, ours.async_decode_batch):
        assert asyncio.iscoroutinefunction(pickle.loads(pickle.dumps(method))), method


BERT = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
AROUND = {
    "bert": BERT,
    "roberta": processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2), trim_offsets=False),
    "template": processors.TemplateProcessing("[CLS] $A", "$A $B", [("[CLS]", 2)]),
    "byte-level": processors.ByteLevel(trim_offsets=False),
}


@pytest.mark.parametrize("second", AROUND)
@pytest.mark.parametrize("first", AROUND)
def test_columns_around_one_text_of_two_post_processors(first: str, second: str, assert_same: Any) -> None:
    """The second of two may take the tokens of the first for the text's."""
    theirs = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1, "[CLS]": 2, "[SEP]": 3}, "a"))
    theirs.pre_tokenizer = pre_tokenizers.Whitespace()
    theirs.post_processor = processors.Sequence([AROUND[first], AROUND[second]])
    ours = Tokenizer.from_str(theirs.to_str())
    assert ours.backend == "native"
    for special in (True, False):
        found = ours.encode("a b", add_special_tokens=special)
        wanted = theirs.encode("a b", add_special_tokens=special)
        assert_same(found, wanted)
        places = range(len(wanted))
        assert [found.token_to_chars(i) for i in places] == [wanted.token_to_chars(i) for i in places]
        rows = (t.encode_batch_fast(["a b", ""], add_special_tokens=special) for t in (ours, theirs))
        for fast, slow in zip(*rows):
            assert fast.sequence_ids == slow.sequence_ids  # which makes all columns
            assert_same(fast, slow)


def test_encode_special_tokens(name: str, pair_of: Pair, assert_same: Any) -> None:
    """As in HF: the text of special tokens is ordinary text, other added tokens still match."""
    ours, theirs = pair_of(name)
    ours.encode_special_tokens = theirs.encode_special_tokens = True
    assert ours.encode_special_tokens is True
    for text in ("a<special>b", "<s>x</s>", "[CLS] [MASK]", "  <mask> <tool> Ünïcödé"):
        assert_same(ours.encode(text), theirs.encode(text), text)


@pytest.mark.fault(21)
@pytest.mark.parametrize(
    "text",
    [
        "a\ud800", "\udc00b", "\udc00\ud800", "a\ud83d\ude42b", "x" * 400 + "\ud83d", "é" * 300 + "\udfff",
        "🙂" * 300 + "\ud800",
    ],
)  # fmt: skip
def test_lone_surrogates_have_one_policy_on_all_paths(pair_of: Pair, text: str) -> None:
    ours, theirs = pair_of("byte-level")
    of_hf: list[Callable[[Any], Any]] = [
        lambda t: t.encode(text), lambda t: t.encode("a", text), lambda t: t.encode([text], is_pretokenized=True),
        lambda t: t.encode_batch([text]), lambda t: t.encode_batch_fast([text]),
    ]  # fmt: skip
    our_own: list[Callable[[Any], Any]] = [
        lambda t: t.encode_padded([text]), lambda t: t.encode_array(text),
        lambda t: t.encode_array(text, parse_special=False), lambda t: t.encode_with_offsets(text),
    ]  # fmt: skip
    for call in of_hf:
        with pytest.raises(TypeError):
            call(theirs)
    for call in (*of_hf, *our_own):
        with pytest.raises(LoneSurrogateError, match="surrogates not allowed") as caught:
            call(ours)
        assert isinstance(caught.value, TypeError) and "\ud800" <= text[caught.value.start] <= "\udfff"


@pytest.mark.fault(22)
@pytest.mark.parametrize("data", [b"\xff", b"\xc0\xaf", b"a\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\xe4\xbd"])
def test_invalid_utf8_is_refused(pair_of: Pair, data: bytes) -> None:
    ours, _ = pair_of("byte-level")
    for call in (ours.encode_array, ours.encode_with_offsets):
        with pytest.raises(UnicodeDecodeError):
            call(data)


@pytest.mark.fault(22)
def test_odd_code_points(name: str, pair_of: Pair, assert_same: Any) -> None:
    ours, theirs = pair_of(name)
    for text in ("\x00a\x00", "\ufffe\uffff", "\ufeffBOM", "\U0010ffff\U000e0001", "\u0378 unassigned \U0001fae9"):
        assert_same(ours.encode(text), theirs.encode(text), text)


IDS_AT_EXIT = """
import gc, pickle, sys
from prelude.tokenizer import Tokenizer
kept = []
for path in sys.argv[1:]:  # the second is the larger one: more ids are made beside those there are
    kept.append(Tokenizer.from_file(path, cache=False).encode("Hello there, how are you? 12345").ids)
gc.collect()
for ids in kept:
    copies = [int(str(i)) for i in ids]
    assert all(type(i) is int for i in ids) and ids == copies and pickle.loads(pickle.dumps(ids)) == copies
    assert {i: None for i in ids} == dict.fromkeys(copies) and [hash(i) for i in ids] == [hash(i) for i in copies]
    assert [i + 1 for i in ids] == [i + 1 for i in copies] and [-i << 40 for i in ids] == [-i << 40 for i in copies]
    assert sys.getsizeof(ids[-1]) == sys.getsizeof(copies[-1])
encode, text = Tokenizer.from_file(sys.argv[1], cache=False).encode, "Hello there, how are you? 12345"
held = list(map(sys.getrefcount, kept[0]))
for _ in range(100_000):  # more references may be dropped than were counted when they were taken
    encode(text).ids
    encode(text).offsets
assert kept[0] == encode(text).ids == [int(str(i)) for i in kept[0]]
assert all(now == was or min(now, was) > 1 << 31 for now, was in zip(map(sys.getrefcount, kept[0]), held))
print("left", sum(map(len, kept)))
"""


def test_ids_are_ints_like_any_other_until_the_process_ends(tmp_path: Path, json_of: Callable[[str], str]) -> None:
    small = json.loads(json_of("byte-level"))
    large = json.loads(json_of("byte-level"))
    large["added_tokens"] = [token | {"id": token["id"] + 100_000} for token in large["added_tokens"]]
    large["model"]["vocab"] = {token: id + 100_000 for token, id in large["model"]["vocab"].items()}
    paths = [tmp_path / "small.json", tmp_path / "large.json"]
    for path, whole in zip(paths, (small, large)):
        path.write_text(json.dumps(whole), encoding="utf-8")
    done = subprocess.run([sys.executable, "-c", IDS_AT_EXIT, *map(str, paths)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("left ")
