"""Added tokens with every combination of flags, overlapping and nested, against HF."""

from __future__ import annotations

import itertools

import pytest
import tokenizers
from prelude.tokenizer import Tokenizer
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

TEXTS = [
    "a<x>b",
    " <x> ",
    "  <x>  <x>",
    "<x><x>",
    "word<x>word",
    "<x>,",
    "a <xx> b",
    "<xxx>",
    "<x",
    "x>",
    "A<X>B",
    "<X>",
    "né<x>ö",
    "\n<x>\t",
    "<x>  \n tail",
    "ab<long token>cd",
    "<long <x> token>",
    "",
    "  ",
    "a" * 50 + "<x>",
    "e\u0301<x>",
    "<é>",
    "<e\u0301>",
    "mid<é>dle",
]


def build(flags: dict[str, bool], normalizer: object | None) -> str:
    """A byte-level BPE without merges, with overlapping added tokens that all carry ``flags``."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    special = flags["special"]
    rest = {name: value for name, value in flags.items() if name != "special"}
    added = [AddedToken(text, **rest) for text in ("<x>", "<xx>", "<xxx>", "<long token>", "<é>")]
    (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(added)
    return tokenizer.to_str()


@pytest.mark.fault(28)
@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize(
    "values", list(itertools.product([False, True], repeat=5)), ids=lambda v: "".join("01"[x] for x in v)
)
def test_every_combination_of_flags_equals_hf(values: tuple[bool, ...], lowercase: bool) -> None:
    flags = dict(zip(("lstrip", "rstrip", "single_word", "normalized", "special"), values))
    normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()]) if lowercase else None
    serialized = build(flags, normalizer)
    ours, theirs = Tokenizer.from_str(serialized), tokenizers.Tokenizer.from_str(serialized)
    assert ours.backend == "native"
    for text in TEXTS:
        a, b = ours.encode(text), theirs.encode(text)
        assert (a.ids, a.offsets, a.tokens) == (b.ids, b.offsets, b.tokens), text
        for skip in (False, True):
            assert ours.decode(a.ids, skip_special_tokens=skip) == theirs.decode(b.ids, skip_special_tokens=skip)
