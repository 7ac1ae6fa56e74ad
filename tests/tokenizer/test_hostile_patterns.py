"""Patterns of tokenizer files: one that a backend refuses goes to the next."""

from __future__ import annotations

import pytest
from prelude.tokenizer import Tokenizer, TokenizerFileError

from prelude.errors import PreludeError
from tests.tokenizer.small_files import WORD, file

tokenizers = pytest.importorskip("tokenizers")

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
