"""Ten thousand fixed strings a family, no two alike, through our core and HF's: ids, offsets, words, decoded text."""

from __future__ import annotations

import random
from itertools import chain

import numpy as np
import pytest

tokenizers = pytest.importorskip("tokenizers", minversion="0.23.3")

from tests.fuzz_tokenizer import Pair, Strings  # noqa: E402
from tests.tokenizer.shared import families, tokenizer_json  # noqa: E402

CASES = 10_000


def cases(pair: Pair) -> list[str]:
    found: dict[str, None] = {}
    maker = iter(Strings(random.Random(f"cases of {pair.name}"), pair.tokens, pair.added, []))
    while len(found) < CASES:
        found[next(maker)] = None
    return list(found)


@pytest.mark.long
@pytest.mark.feature("J1")
@pytest.mark.parametrize(
    "family", sorted(families()) or [pytest.param("", marks=pytest.mark.skip("no shared files"))]
)
def test_ten_thousand_cases(family: str) -> None:
    pair = Pair(family, tokenizer_json(family))
    texts = cases(pair)
    ids, offsets, words, starts = pair.core.encode_batch_full(texts)
    encodings = pair.hf.encode_batch(texts, add_special_tokens=False)
    rows = [e.ids for e in encodings]
    checked = 0
    flat, begins = pair.core.encode_batch_array(texts)
    plain = [row.tolist() for row in np.split(flat, begins[1:-1])]
    for i, (text, theirs, encoding) in enumerate(zip(texts, rows, encodings, strict=True)):
        begin, end = starts[i], starts[i + 1]
        assert plain[i] == theirs and ids[begin:end].tolist() == theirs, text
        spans = np.fromiter(chain.from_iterable(encoding.offsets), np.int32, 2 * len(theirs))
        assert np.array_equal(offsets[begin:end].reshape(-1), spans), text
        assert words[begin:end].tolist() == encoding.word_ids, text
        checked += 1
    assert checked >= 10_000
    for skip in (False, True):
        ours, theirs = pair.core.decode_batch(rows, skip), pair.hf.decode_batch(rows, skip_special_tokens=skip)
        wrong = [(t, a, b) for t, a, b in zip(texts, ours, theirs, strict=True) if a != b]
        assert wrong == []
