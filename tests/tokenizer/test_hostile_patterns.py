"""Patterns of tokenizer files: matches are HF's; one that a backend refuses goes to the next."""

from __future__ import annotations

import random

import pytest
from prelude.tokenizer import Tokenizer, TokenizerFileError

from prelude.errors import PreludeError
from tests.tokenizer.small_files import WORD, file
from tests.tokenizer.test_backends import PATTERNS

tokenizers = pytest.importorskip("tokenizers")

REFUSED = [
    r"(\w)\1", r"\X", r"\p{Emoji}", r"(?i)café", r"\x{110000}", r"(?<=a)\x{110000}", r"(?i)straße(?<=x)|\w",
    r"(?<name>a)\k<name>|.", r"\G(?<=a)b|.", r"a\Kb(?<=b)|.", r"(?<=a)b{1,2}+|.", r"(?<=a)b{2}?|.", r"(?<=a)\R|.",
    r"(?x: a )(?<=a)|.", r"(?<=a)b**|.", *PATTERNS[:2],
]  # fmt: skip
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
@pytest.mark.parametrize("pattern", REFUSED)
def test_a_pattern_that_one_backend_refuses_goes_to_the_next(kind: str, pattern: str) -> None:
    ours, theirs = (
        Tokenizer.from_str(by_pattern(kind, pattern)),
        tokenizers.Tokenizer.from_str(by_pattern(kind, pattern)),
    )
    for text in ("abab aab", "CAFÉ abab", "1\u0301a", "aab bbb straße STRASSE", "a\r\nb", "> a\n>>b", ""):
        assert ours.encode(text).ids == theirs.encode(text).ids


FEATURES = [
    "a+", r"\p{N}{1,3}", r"\p{N}{1,3}+", r"\s+(?!\S)|\s+", "(?i:'s|'ll)", "a*?b", "a+?", "(?>a|ab)c", "a?+ab",
    "(?<=a)b|(?<!a)c", "(ab|a)(bc)?", r"[^\W\d]+", r"[\w]", r"\w", "[a-z&&[^b]]+", "a{,2}b", "x{", "^.", r"\b",
    r"\d{1,3}(?=(?:\d{3})*\b)", "(?:a+b?)+c|b", "(?:a|ab)(?:c|bcd)*?d", "a*?b|a+(?=c)", r"(?:aa|a)+?b|c+(?!d)",
    "a{2,3}?b|a{1,2}+c", "(?:a|ab){2,3}c", "a+b|ac",
]  # fmt: skip


@pytest.mark.parametrize("pattern", [*FEATURES, *PATTERNS[2:]])
def test_a_pattern_cuts_a_text_where_hf_cuts_it(pattern: str) -> None:
    """The native backend takes each; long runs leave its table for the search."""
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    made = file(pre_tokenizer=split, model={"type": "BPE", "unk_token": "a", "vocab": {"a": 0}, "merges": []})
    ours, theirs = Tokenizer.from_str(made), tokenizers.Tokenizer.from_str(made)
    assert ours.backend == "native"
    rng, shards = random.Random(5), [*"abcdx{1_²ſ' \n", "'S", "'ll", "  ", "123", "abc", "é", "你", "\u00a0"]
    run = "a" * (20 if pattern.startswith("(?:") else 500)  # HF panics after many steps back
    texts = ["".join(rng.choices(shards, k=rng.randrange(30))) for _ in range(100)]
    for text in [*texts, run + "cab" + run + "ac", "aabaacabcdabaaab cccd aac " * 50]:
        assert ours.encode(text).word_ids == theirs.encode(text).word_ids, text[:60]


@pytest.mark.fault(29)
@pytest.mark.parametrize("kind", ["normalizer", "pre_tokenizer"])
@pytest.mark.parametrize("pattern", ["(", "(" * 3000 + "a" + ")" * 3000, "[a" * 400])
def test_a_pattern_that_no_backend_takes_is_a_malformed_file(kind: str, pattern: str) -> None:
    with pytest.raises(TokenizerFileError) as caught:
        Tokenizer.from_str(by_pattern(kind, pattern))
    assert isinstance(caught.value, PreludeError) and len(str(caught.value)) < 1500
