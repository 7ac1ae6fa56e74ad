"""Batches that are cut and padded, as encodings and as arrays, against HF's encodings."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prelude.tokenizer import Tokenizer, TokenizerError

from tests.tokenizer.conftest import MAKERS, TEXTS, needs_shared

Pair = Callable[[str], tuple[Tokenizer, Any]]

PIECES = (
    "Hello ", "the", " naïve café ", "你好世界", "  \n", "def f(x):\n", "12345", "🙂", "<mask>", "</s>", " ", "é",
    "ﬁx",
)  # fmt: skip
long_or_short = st.one_of(st.sampled_from(TEXTS), st.lists(st.sampled_from(PIECES), max_size=60).map("".join))
words = st.lists(st.sampled_from(["Hello", "wörld", "你好", "", " x", "12"]), max_size=12)
truncations = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {
            "max_length": st.integers(0, 40),
            "stride": st.integers(0, 6),
            "strategy": st.sampled_from(["longest_first", "only_first", "only_second"]),
            "direction": st.sampled_from(["left", "right"]),
        }
    ),
)
paddings = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {
            "direction": st.sampled_from(["left", "right"]), "length": st.one_of(st.none(), st.integers(0, 50)),
            "pad_to_multiple_of": st.sampled_from([None, 0, 1, 8]), "pad_id": st.sampled_from([0, 7]),
            "pad_type_id": st.sampled_from([0, 3]), "pad_token": st.sampled_from(["[PAD]", "<p>"]),
        }
    ),
)  # fmt: skip


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[Any], bool]:
    """(inputs, whether they are words)."""
    split = draw(st.booleans())
    one = words if split else long_or_short
    return draw(st.lists(st.one_of(one, st.tuples(one, one)), min_size=1, max_size=5)), split


def outcome(call: Callable[[], Any]) -> Any:
    """The result; None for an error, a panic of HF's among them."""
    try:
        return call()
    except BaseException as error:
        if not isinstance(error, Exception) and "PanicException" not in type(error).__name__:
            raise
        return None


def rows_of(encodings: list[Any], overflow: bool) -> list[tuple[int, Any]]:
    return [(i, row) for i, one in enumerate(encodings) for row in (one, *(one.overflowing if overflow else ()))]


def check(ours: Tokenizer, theirs: Any, assert_same: Any, given: tuple[Any, ...]) -> None:
    (inputs, split), truncation, padding, special = given
    for tokenizer in (ours, theirs):
        tokenizer.no_truncation()
        tokenizer.no_padding()
        if padding is not None:
            tokenizer.enable_padding(**padding)
    if truncation is not None:
        if outcome(lambda: theirs.enable_truncation(**truncation) or True) is None:
            return
        ours.enable_truncation(**truncation)
    expected = outcome(lambda: theirs.encode_batch(inputs, is_pretokenized=split, add_special_tokens=special))
    if expected is None:
        with pytest.raises(ValueError):
            ours.encode_batch(inputs, split, special)
        with pytest.raises(ValueError):
            ours.encode_padded(inputs, split, special)
        return
    first = ours.encode_batch(inputs, split, special)
    assert [one.ids for one in first] == [one.ids for one in expected]
    assert [one.attention_mask for one in first] == [one.attention_mask for one in expected]
    for mine, other in zip(first, expected, strict=True):
        assert_same(mine, other, given)
    alone = inputs[0] if isinstance(inputs[0], tuple) else (inputs[0], None)
    assert_same(
        *(one.encode(*alone, is_pretokenized=split, add_special_tokens=special) for one in (ours, theirs)), given
    )
    fast = theirs.encode_batch_fast(inputs, is_pretokenized=split, add_special_tokens=special)
    for mine, other in zip(ours.encode_batch_fast(inputs, split, special), fast, strict=True):
        assert_same(mine, other, given)
    for overflow in (False, True):
        rows = rows_of(expected, overflow)
        if len({len(row) for _, row in rows}) > 1:
            with pytest.raises(TokenizerError, match="are no array; enable_padding"):
                ours.encode_padded(inputs, split, special, overflow=overflow)
            continue
        found = ours.encode_padded(inputs, split, special, overflow=overflow, offsets=True, dtype=np.int64)
        assert found.offsets is not None
        assert found.samples.tolist() == [i for i, _ in rows]
        for at, (_, row) in enumerate(rows):
            assert found.ids[at].tolist() == row.ids
            assert found.type_ids[at].tolist() == row.type_ids
            assert found.attention_mask[at].tolist() == row.attention_mask
            assert found.special_tokens_mask[at].tolist() == row.special_tokens_mask
            assert list(map(tuple, found.offsets[at].tolist())) == row.offsets
        small = ours.encode_padded(inputs, split, special, overflow=overflow)
        assert small.offsets is None and small.ids.dtype == np.int32
        assert small.ids.tolist() == found.ids.tolist()


GIVEN = st.tuples(batches(), truncations, paddings, st.booleans())
SETTINGS = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.mark.parametrize("file", list(MAKERS))
@SETTINGS
@given(given=GIVEN)
def test_small_files_equal_hf(pair_of: Pair, assert_same: Any, file: str, given: tuple[Any, ...]) -> None:
    check(*pair_of(file), assert_same, given)


@needs_shared
@pytest.mark.parametrize("backend", ["first backend"])
@pytest.mark.parametrize("file", ["bert-base-uncased", "llama2", "phi-3", "roberta", "t5"])
@SETTINGS
@given(given=GIVEN)
def test_real_files_equal_hf(pair_of: Pair, assert_same: Any, file: str, given: tuple[Any, ...]) -> None:
    check(*pair_of(file), assert_same, given)


@needs_shared
@pytest.mark.parametrize("backend", ["first backend"])
@pytest.mark.parametrize("file", ["bert-base-uncased", "t5", "gpt2"])
def test_any_ascii_equals_hf(pair_of: Pair, file: str) -> None:
    """All characters beside each other: where a file allows, words are cut by one pass over the bytes."""
    ours, theirs = pair_of(file)
    rng = random.Random(3)
    pools = [
        "".join(map(chr, range(128))),
        "abcDEF'-. ",
        "aA \t\n\r\x0b\x0c\x1c\x1f\x7f",
        "the quick Brown fox, isn't",
    ]
    texts = ["".join(rng.choices(rng.choice(pools), k=rng.randrange(60))) for _ in range(2000)]
    expected = [one.ids for one in theirs.encode_batch(texts)]
    assert [ours.encode_array(text).tolist() for text in texts] == expected
    assert [one.ids for one in ours.encode_batch(texts)] == expected


@pytest.mark.long
def test_texts_of_many_bytes_are_shared_out_among_threads(pair_of: Pair, golden_lines: list[str]) -> None:
    """With the rows in their order, also where several calls run at a time."""
    ours, theirs = pair_of("template")
    texts: list[Any] = [" ".join(golden_lines[i : i + 40]) for i in range(0, 2000, 8)]
    assert sum(map(len, texts)) > 1 << 19
    texts[::3] = zip(texts[::3], golden_lines)
    for tokenizer in (ours, theirs):
        tokenizer.enable_truncation(64, stride=8)
        tokenizer.enable_padding()
    expected = [one.ids for one in theirs.encode_batch(texts)]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: ours.encode_padded(texts, offsets=True, overflow=True), range(3)))
    for one in found:
        first = np.flatnonzero(np.diff(one.samples, prepend=-1))
        assert one.ids[first].tolist() == expected
        assert np.array_equal(one.offsets, found[0].offsets)


def test_a_dtype_that_holds_no_ids_is_refused(pair_of: Pair) -> None:
    ours, _ = pair_of("template")
    with pytest.raises(TypeError, match="neither int32 nor int64"):
        ours.encode_padded(["x"], dtype=np.int16)


def test_no_input_is_no_row(pair_of: Pair) -> None:
    ours, _ = pair_of("template")
    assert ours.encode_padded([]).ids.shape == (0, 0)
    ours.enable_padding()
    assert ours.encode_batch([]) == [] and ours.encode_padded([], offsets=True).ids.shape == (0, 0)
