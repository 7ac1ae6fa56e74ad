"""The methods of Encoding against HF's, on single sequences, pairs, padded and truncated ones."""

from __future__ import annotations

import copy
import gc
import operator
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tokenizers
from prelude.tokenizer import Encoding, Tokenizer

Pair = Callable[[str], tuple[Tokenizer, Any]]

ONE, TWO = "Hello there, Ünïcödé  <mask> you", "the lazy 你好 fox"


def cases(ours: Tokenizer, theirs: Any) -> Iterator[tuple[Encoding, Any]]:
    for inputs in ((ONE,), (ONE, TWO), ("", TWO)):
        yield ours.encode(*inputs), theirs.encode(*inputs)
        yield ours.encode(*inputs, add_special_tokens=False), theirs.encode(*inputs, add_special_tokens=False)
    words = ONE.split(" ")
    yield ours.encode(words, TWO.split(), True), theirs.encode(words, TWO.split(), True)
    for tokenizer in (ours, theirs):
        tokenizer.enable_padding(length=40, direction="left")
        tokenizer.enable_truncation(9, stride=1)
    yield ours.encode(ONE, TWO), theirs.encode(ONE, TWO)
    yield ours.encode(ONE * 3).overflowing[0], theirs.encode(ONE * 3).overflowing[0]


@pytest.mark.parametrize("backend", ["first backend"])
@pytest.mark.parametrize("method", ["char_to_token", "char_to_word", "word_to_tokens", "word_to_chars"])
def test_lookups_within_a_sequence(name: str, pair_of: Pair, method: str) -> None:
    for mine, other in cases(*pair_of(name)):
        for sequence in (0, 1, 2):
            for position in range(len(ONE) + 3):
                got, expected = (getattr(e, method)(position, sequence) for e in (mine, other))
                assert got == expected, (method, position, sequence)
        for position in range(5):
            assert getattr(mine, method)(position) == getattr(other, method)(position)


@pytest.mark.parametrize("backend", ["first backend"])
@pytest.mark.parametrize("method", ["token_to_sequence", "token_to_chars", "token_to_word"])
def test_lookups_of_a_token(name: str, pair_of: Pair, method: str) -> None:
    for mine, other in cases(*pair_of(name)):
        for token in range(len(mine) + 3):
            assert getattr(mine, method)(token) == getattr(other, method)(token), (method, token)


def test_negative_positions_raise_as_in_hf(pair_of: Pair) -> None:
    for tokenizer in pair_of("template"):
        encoding = tokenizer.encode(ONE)
        for method in ("char_to_token", "word_to_chars", "token_to_word", "token_to_sequence"):
            with pytest.raises(OverflowError):
                getattr(encoding, method)(-1)
            with pytest.raises(TypeError):
                getattr(encoding, method)("1")


@pytest.mark.parametrize("backend", ["first backend"])
@pytest.mark.parametrize("direction", ["left", "right"])
def test_truncate(name: str, pair_of: Pair, assert_same: Any, direction: str) -> None:
    for limit, stride in ((0, 0), (1, 0), (4, 0), (4, 3), (7, 2), (100, 0)):
        for mine, other in cases(*pair_of(name)):
            mine.truncate(limit, stride, direction)
            other.truncate(limit, stride, direction)
            assert_same(mine, other, (limit, stride))


@pytest.mark.parametrize("backend", ["first backend"])
@pytest.mark.parametrize("direction", ["left", "right"])
def test_pad(name: str, pair_of: Pair, assert_same: Any, direction: str) -> None:
    for mine, other in cases(*pair_of(name)):
        for encoding in (mine, other):
            encoding.pad(45, direction=direction, pad_id=9, pad_type_id=3, pad_token="#")
        assert_same(mine, other)
        for position in range(12):
            assert mine.char_to_token(position, 1) == other.char_to_token(position, 1)


def test_set_sequence_id(pair_of: Pair, assert_same: Any) -> None:
    for mine, other in cases(*pair_of("template")):
        for encoding in (mine, other):
            encoding.set_sequence_id(1)
        assert_same(mine, other)


@pytest.mark.parametrize("growing", [True, False])
def test_merge(name: str, pair_of: Pair, assert_same: Any, growing: bool) -> None:
    pairs = list(cases(*pair_of(name)))
    mine = Encoding.merge([m for m, _ in pairs], growing_offsets=growing)
    other = tokenizers.Encoding.merge([o for _, o in pairs], growing_offsets=growing)
    assert_same(mine, other)
    assert_same(Encoding.merge([]), tokenizers.Encoding.merge([]))


def test_an_empty_one(assert_same: Any) -> None:
    mine, other = Encoding(), tokenizers.Encoding()
    assert_same(mine, other)
    assert repr(mine) == repr(other)
    mine.pad(3)
    other.pad(3)
    assert_same(mine, other)


def test_repr_len_and_words(pair_of: Pair) -> None:
    ours, theirs = pair_of("template")
    mine, other = ours.encode(ONE), theirs.encode(ONE)
    assert repr(mine) == repr(other) == str(mine)
    assert len(mine) == len(other)
    with pytest.warns(DeprecationWarning):
        assert mine.words == other.word_ids


def test_errors(pair_of: Pair) -> None:
    for tokenizer in pair_of("template"):
        encoding = tokenizer.encode(ONE)
        with pytest.raises(ValueError):
            encoding.truncate(3, direction="up")
        with pytest.raises(ValueError):
            encoding.pad(99, direction="up")
    with pytest.raises(ValueError, match="stride"):
        pair_of("template")[0].encode(ONE).truncate(3, stride=3)


def test_lists_handed_out_are_copies(pair_of: Pair) -> None:
    ours, _ = pair_of("template")
    encoding = ours.encode(ONE)
    for column in ("ids", "tokens", "offsets", "word_ids", "type_ids", "special_tokens_mask", "attention_mask"):
        before = getattr(encoding, column)
        getattr(encoding, column).clear()
        assert getattr(encoding, column) == before
    ours.enable_truncation(6)
    encoding = ours.encode(ONE)
    encoding.overflowing[0].pad(50)
    assert len(encoding.overflowing[0]) <= 6


def test_columns_by_any_name_and_of_a_subclass(pair_of: Pair) -> None:
    class Own(Encoding):
        @property
        def ids(self) -> list[int]:
            return [7]

    encoding = pair_of("template")[0].encode(ONE)
    for column in ("ids", "offsets", "attention_mask", "type_ids"):
        assert getattr(encoding, "".join(list(column))) == getattr(type(encoding), column).__get__(encoding)
    assert Own().ids == [7] and Own().offsets == Own().type_ids == Own().attention_mask == []
    with pytest.raises(AttributeError, match="has no attribute 'id'"):
        operator.attrgetter("id")(encoding)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
def test_copies_are_equal_and_apart(pair_of: Pair, assert_same: Any, duplicate: Any) -> None:
    ours, theirs = pair_of("template")
    for tokenizer in (ours, theirs):
        tokenizer.enable_truncation(9, stride=1)
    encoding = ours.encode(ONE, TWO)
    made = duplicate(encoding)
    made.pad(50)
    made.set_sequence_id(1)
    assert_same(encoding, theirs.encode(ONE, TWO))
    assert_same(duplicate(encoding), theirs.encode(ONE, TWO))


def test_offsets_past_the_numbers_that_tokenizers_share(pair_of: Pair) -> None:
    """Offsets are int objects shared with ids, up to the size of the vocabulary; here the text is longer than that,
    and the collector is as it was before, whether it was on or off."""
    ours, theirs = pair_of("byte-level")
    long = "ab " * 4_000
    expected = theirs.encode(long).offsets
    assert len(long) > ours.get_vocab_size()
    assert expected[-1][1] > 256  # past the numbers that Python itself shares
    assert ours.encode(long).offsets == expected
    assert gc.isenabled()
    gc.disable()
    try:
        assert ours.encode(long).offsets == expected
        assert not gc.isenabled()
    finally:
        gc.enable()
    if ours.backend != "reference":  # whose offsets are HF's
        assert not any(gc.is_tracked(pair) for pair in ours.encode(long).offsets)
