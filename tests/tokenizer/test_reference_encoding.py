"""Encodings of the reference backend are HF's until something works on their columns."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prelude.tokenizer import Encoding, LoneSurrogateError, Tokenizer, TokenizerError
from prelude.tokenizer._reference import ReferenceCore
from prelude.tokenizer._reference_encoding import ReferenceEncoding
from prelude.tokenizer._whole_calls import WholeCalls


@pytest.fixture
def backend() -> str:
    return "reference"


@pytest.fixture(params=["no post-processor", "no trimming", "template", "bert", "sentence pieces"])
def pair(request: pytest.FixtureRequest, pair_of: Any) -> Any:
    return pair_of(request.param)


@pytest.mark.parametrize("special", [True, False])
def test_columns_are_those_of_hf(pair: Any, special: bool, texts: list[str], assert_same: Any) -> None:
    ours, theirs = pair
    expected = theirs.encode_batch(texts, add_special_tokens=special)
    for text, mine, other in zip(texts, ours.encode_batch(texts, add_special_tokens=special), expected):
        one = ours.encode(text, add_special_tokens=special)
        assert isinstance(mine, ReferenceEncoding) and isinstance(one, ReferenceEncoding)
        for made in (mine, one):
            assert len(made) == len(other) == len(made.ids)
            lists = made.ids, made.offsets, made.tokens, made.word_ids
            assert_same(made, other, text)  # asks for columns too, after which nothing is left of HF's
            assert lists == (made.ids, made.offsets, made.tokens, made.word_ids) and len(made) == len(other)
    for mine, other in zip(ours.encode_batch_fast(texts), theirs.encode_batch_fast(texts)):
        assert (mine.ids, mine.offsets, mine.attention_mask) == (other.ids, other.offsets, other.attention_mask)


CHANGES: list[Callable[[Any], object]] = [
    lambda e: e.pad(30, pad_id=1, pad_token="[PAD]"),
    lambda e: e.pad(30, direction="left"),
    lambda e: e.truncate(3, stride=1),
    lambda e: e.truncate(0),
    lambda e: e.set_sequence_id(1),
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("asked_before", [True, False])
def test_changes_in_place(pair: Any, change: Callable[[Any], object], asked_before: bool, assert_same: Any) -> None:
    ours, theirs = (t.encode("Hello there, how are you?") for t in pair)
    if asked_before:
        assert ours.offsets == theirs.offsets
    for encoding in (ours, theirs):
        change(encoding)
    assert_same(ours, theirs)


def test_copies_merges_and_look_ups(pair: Any, assert_same: Any) -> None:
    tokenizer, hf = pair
    text = "Hello there, how are you?"
    other = hf.encode(text)
    for made in (copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))):
        assert_same(made(tokenizer.encode(text)), other)
    merged = Encoding.merge([tokenizer.encode(text), tokenizer.encode("you")], True)
    assert_same(merged, type(other).merge([other, hf.encode("you")], True))
    assert [tokenizer.encode(text).char_to_token(i) for i in range(9)] == [other.char_to_token(i) for i in range(9)]
    assert repr(tokenizer.encode(text)) == repr(other)
    with pytest.raises(AttributeError):
        tokenizer.encode(text).nothing  # noqa: B018


@pytest.mark.parametrize("settings", ["none", "padding", "both"])
def test_a_call_is_one_call_of_hf(
    pair: Any, texts: list[str], assert_same: Any, monkeypatch: pytest.MonkeyPatch, settings: str
) -> None:
    """HF encodes a batch on all processors: text by text it is several times slower."""
    tokenizer, hf = pair
    calls: list[str] = []
    engine = WholeCalls._engine

    class Counting:
        def __init__(self, engine: Any) -> None:
            self._engine = engine

        def __getattr__(self, name: str) -> Any:
            calls.append(name)
            return getattr(self._engine, name)

    monkeypatch.setattr(WholeCalls, "_engine", lambda *args: Counting(engine(*args)))
    monkeypatch.setattr(Tokenizer, "_set_reference_entry", lambda *args: None)
    for one in (tokenizer, hf):
        if settings != "none":
            one.enable_padding(pad_to_multiple_of=4, direction="left")
        if settings == "both":
            one.enable_truncation(6, direction="left")
    words = [["Hello", "there"], ["you"]]
    asked: list[tuple[str, Callable[[Any], list[Any]]]] = [
        ("encode_batch", lambda t: t.encode_batch(texts)),
        ("encode_batch_fast", lambda t: t.encode_batch_fast(texts)),
        ("encode_batch", lambda t: t.encode_batch(list(itertools.pairwise(texts)))),
        ("encode_batch", lambda t: t.encode_batch(words, True, False)),
        ("encode_batch", lambda t: t.encode_batch([(words[0], words[1])] * 2, True)),
        ("encode", lambda t: [t.encode(texts[3], texts[4])]),
        ("encode", lambda t: [t.encode(words[0], is_pretokenized=True)]),
        ("encode", lambda t: t.encode_batch([texts[3]])),
    ]
    for name, call in asked:
        calls.clear()
        for mine, other in zip(call(tokenizer), call(hf), strict=True):
            if name != "encode_batch_fast":
                assert_same(mine, other)
            assert mine.ids == other.ids and mine.attention_mask == other.attention_mask
        assert calls[-1] == name and set(calls) <= {name, "encode"}, calls


def test_a_text_goes_to_hf_from_the_extension(pair: Any, assert_same: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way through Python takes 0.8 times as long as HF takes for a short text."""
    tokenizer, hf = pair
    tokenizer.encode("a")
    monkeypatch.setattr(type(tokenizer), "_encode_general", None)
    for special in (True, False):
        assert_same(tokenizer.encode("Hello", add_special_tokens=special), hf.encode("Hello", None, False, special))
    monkeypatch.undo()
    for text, error in (("\ud800", LoneSurrogateError), (5, TypeError), (None, TypeError)):
        with pytest.raises(error):
            tokenizer.encode(text)
    for change in (
        lambda t: t.enable_padding(length=9),
        lambda t: t.enable_truncation(4),
        lambda t: setattr(t, "encode_special_tokens", True),
        lambda t: t.no_padding(),
        lambda t: t.enable_truncation(4, stride=1),
        lambda t: t.enable_truncation(400, stride=300),
        lambda t: t.no_truncation(),
    ):
        for one in pair:
            change(one)
        for _ in range(2):
            text = "Hello <special> there, how are you?" * 3
            assert_same(tokenizer.encode(text), hf.encode(text))
            assert_same(copy.copy(tokenizer).encode(text), hf.encode(text))


def test_a_text_that_hf_fails_on_goes_the_long_way(pair_of: Any) -> None:
    """Overlapping parts that do not fit into memory end the process in HF, and a limit below the number of special
    tokens is a panic of it."""
    tokenizer, _ = pair_of("template")
    tokenizer.enable_truncation(4096, stride=4000)
    with pytest.raises(TokenizerError, match="a smaller stride makes fewer"):
        tokenizer.encode("a b " * 1_000_000)
    tokenizer.enable_truncation(1 << 40)
    assert len(tokenizer.encode("a b")) == 4
    tokenizer.enable_truncation(1)
    assert tokenizer.encode("Hello there", add_special_tokens=False).overflowing


@pytest.mark.parametrize("special", [True, False])
def test_many_threads_with_settings_of_their_own(pair: Any, special: bool) -> None:
    """One HF tokenizer whose settings change meanwhile raises "Already borrowed"."""
    tokenizer, hf = pair
    wanted = {}
    for length in range(3, 11):
        hf.enable_padding(length=length)
        wanted[length] = [e.ids for e in hf.encode_batch(["Hello", "you"], add_special_tokens=special)]

    def run(length: int) -> bool:
        own = copy.copy(tokenizer)
        own.enable_padding(length=length)
        return all(
            [e.ids for e in own.encode_batch(["Hello", "you"], add_special_tokens=special)] == wanted[length]
            for _ in range(50)
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(run, list(wanted) * 2))


def test_offsets_in_bytes_where_those_of_hf_lie_past_the_text() -> None:
    """Bytes that stand for the suffix of a word: HF counts on past the end of the text."""
    vocab = {"Ġ": 0, **{f"<0x{byte:02X}>": byte + 1 for byte in range(256)}}
    model = {"type": "BPE", "byte_fallback": True, "end_of_word_suffix": "</w>", "vocab": vocab, "merges": []}
    split = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    whole = {"version": "1.0", "added_tokens": [], "pre_tokenizer": split, "model": model}
    core = ReferenceCore(json.dumps(whole).encode(), "a test")
    assert core.encode_full("a")[1].max() > 1
    for text in ("ab", "a", "a b", "éa", ""):
        ids, spans, _ = core.encode_full(text, True, "byte")
        assert len(spans) == len(ids) and (not len(spans) or spans.max() == len(text.encode()))
