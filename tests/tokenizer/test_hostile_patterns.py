"""Patterns of tokenizer files: one that a backend refuses goes to the next, and the time of matching is bounded."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from typing import Any

import pytest
from prelude.tokenizer import Tokenizer, TokenizerError, TokenizerFileError

from prelude.errors import PreludeError
from tests.tokenizer.small_files import WORD, file

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("regex")

NORMALIZED = [{**WORD, "id": 3, "normalized": True}]


def by_pattern(kind: str, pattern: str) -> str:
    if kind == "normalizer":
        return file(
            normalizer={"type": "Replace", "pattern": {"Regex": pattern}, "content": "x"}, added_tokens=NORMALIZED
        )
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return file(pre_tokenizer=split, added_tokens=NORMALIZED)


@pytest.mark.fault(29)
@pytest.mark.feature("J7")
@pytest.mark.parametrize("kind", ["normalizer", "pre_tokenizer"])
@pytest.mark.parametrize("pattern", [r"(\w)\1", r"\X", r"\p{Emoji}", r"(?i)café", r"\x{110000}", r"(?<=a)\x{110000}"])
def test_a_pattern_that_one_backend_refuses_goes_to_the_next(kind: str, pattern: str) -> None:
    ours, theirs = (
        Tokenizer.from_str(by_pattern(kind, pattern)),
        tokenizers.Tokenizer.from_str(by_pattern(kind, pattern)),
    )
    for text in ("abab aab", "CAFÉ abab", "1\u0301a", ""):
        assert ours.encode(text).ids == theirs.encode(text).ids


@pytest.mark.fault(29)
@pytest.mark.parametrize("kind", ["normalizer", "pre_tokenizer"])
@pytest.mark.parametrize("pattern", ["(", "(" * 3000 + "a" + ")" * 3000, "[a" * 400])
def test_a_pattern_that_no_backend_takes_is_a_malformed_file(kind: str, pattern: str) -> None:
    with pytest.raises(TokenizerFileError) as caught:
        Tokenizer.from_str(by_pattern(kind, pattern))
    assert isinstance(caught.value, PreludeError) and len(str(caught.value)) < 1500


@pytest.mark.fault(29)
@pytest.mark.parametrize("pattern", [r"(a)\1?(?=a*a*b)|a"])
def test_the_time_of_a_pattern_is_the_texts_not_a_matchs(pattern: str) -> None:
    ours = Tokenizer.from_str(by_pattern("pre_tokenizer", pattern))
    assert ours.backend == "native+regex"
    began = time.thread_time()
    with pytest.raises(TokenizerError, match="takes too long on this text"):
        ours.encode("a" * 4000)
    assert time.thread_time() - began < 8


def encoded_one_by_one(t: Tokenizer, texts: list[str]) -> dict[str, Any]:
    """Calls of the API, each over many texts, by name."""
    ids = t.encode("ab").ids
    return {
        "encode_batch": lambda: t.encode_batch(texts),
        "encode_batch, pairs": lambda: t.encode_batch([(text, text) for text in texts]),
        "encode_batch, words": lambda: t.encode_batch([[text] for text in texts], is_pretokenized=True),
        "encode_batch_fast": lambda: t.encode_batch_fast(texts),
        "encode_batch_array": lambda: t.encode_batch_array(texts),
        "encode_batch_array, text alone": lambda: t.encode_batch_array(texts, parse_special=False),
        "encode_batch_array, offsets": lambda: t.encode_batch_array(texts, offsets="char"),
        "encode_segments": lambda: t.encode_segments([s for x in texts for s in ((x, False), ("<x>", True))] * 2),
        "decode_batch": lambda: t.decode_batch([ids] * len(texts)),
    }


@pytest.mark.fault(29)
@pytest.mark.parametrize("call", list(encoded_one_by_one(Tokenizer.from_str(file()), [])))
def test_the_time_of_a_pattern_is_the_batchs_not_a_texts(call: str) -> None:
    from prelude.tokenizer import _core
    from prelude.tokenizer.backends import splitter as _splitter
    from prelude.tokenizer.config import FileConfig

    compiled, left, burnt = _splitter.matcher(_core), [], 0.004

    def slow(pattern: str) -> Any:
        matches = compiled(pattern)

        def matched(text: str, seconds: float) -> Any:
            left.append(seconds)
            until = time.thread_time() + burnt
            while time.thread_time() < until:
                pass
            return matches(text, seconds)

        return matched

    pattern = {"Regex": r"(a)\1?|."}
    made = (
        by_pattern("pre_tokenizer", pattern["Regex"])
        if call != "decode_batch"
        else file(decoder={"type": "Replace", "pattern": pattern, "content": "b"})
    )
    word = {"content": "<x>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    whole = {**json.loads(made), "added_tokens": [{**word, "id": 3, "special": True}]}
    ours = Tokenizer.__new__(Tokenizer)
    ours._assemble(_core.CoreTokenizer.from_json(json.dumps(whole).encode(), slow), "native+regex", FileConfig())
    encode = encoded_one_by_one(ours, ["ab", "a<x>b", "aab"] * 4)[call]
    left.clear()
    encode()
    assert len(left) >= 12
    assert all(b <= a - burnt + 1e-3 for a, b in pairwise(left)), left
