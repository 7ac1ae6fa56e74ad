"""Encodings of the reference rung are HF's until something works on their columns."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from prelude.tokenizer import Encoding
from prelude.tokenizer._reference import ReferenceCore
from prelude.tokenizer._reference_encoding import ReferenceEncoding


@pytest.fixture
def rung() -> str:
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


def test_a_batch_is_handed_over_as_one(
    pair: Any, texts: list[str], assert_same: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HF encodes a batch on all processors: text by text it is several times slower."""
    tokenizer, hf = pair
    calls: list[int] = []
    whole = ReferenceCore.encode_batch

    def counted(core: ReferenceCore, texts: Any, *rest: Any) -> Any:
        calls.append(len(texts))
        return whole(core, texts, *rest)

    monkeypatch.setattr(ReferenceCore, "encode_batch", counted)
    tokenizer.encode_batch(texts)
    tokenizer.encode_batch_fast(texts)
    tokenizer.encode_batch_array(texts)
    for one in (tokenizer, hf):
        one.enable_padding()
    for mine, other in zip(tokenizer.encode_batch(texts), hf.encode_batch(texts)):
        assert_same(mine, other)
    words = [["Hello", "there"], ["you"]]
    for mine, other in zip(tokenizer.encode_batch(words, True), hf.encode_batch(words, True)):
        assert_same(mine, other)
    assert calls == [len(texts)] * 4 + [2, 1]
