"""Added tokens with every combination of flags, overlapping and nested, against HF."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
import tokenizers
from prelude.tokenizer import Tokenizer
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

TEXTS = [
    "a<x>b", " <x> ", "  <x>  <x>", "<x><x>", "word<x>word", " <x>word", "word<x> ", "<x>,", "a <xx> b", "<xxx>",
    "<x", "x>", "A<X>B", "<X>", "né<x>ö", "\n<x>\t", "<x>  \n tail", "ab<long token>cd", "<long <x> token>", "", "  ",
    "a" * 50 + "<x>", "e\u0301<x>", "<é>", "<e\u0301>", "mid<é>dle",
]  # fmt: skip


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


def added(content: str, **flags: bool) -> dict[str, Any]:
    names = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return {"id": 0, "content": content, **dict.fromkeys(names, False), **flags}


def assert_like_hf(tokens: list[dict[str, Any]], vocab: dict[str, int], normalizer: dict[str, Any] | None) -> None:
    whole = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": tokens,
        "normalizer": normalizer,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordPiece", "vocab": vocab, "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
        },
    }  # fmt: skip
    theirs, ours = tokenizers.Tokenizer.from_str(json.dumps(whole)), Tokenizer.from_str(json.dumps(whole))
    assert ours.backend == "native"
    assert str(ours.get_added_tokens_decoder()) == str(dict(sorted(theirs.get_added_tokens_decoder().items())))
    assert ours.get_vocab() == theirs.get_vocab()
    for control in (False, True):
        ours.encode_special_tokens = theirs.encode_special_tokens = control
        for text in ("a", "ba", "b a b", " a ", "aab", "xaby A", "Ġa"):
            one, two = ours.encode(text), theirs.encode(text)
            assert (one.ids, one.tokens, one.offsets) == (two.ids, two.tokens, two.offsets), text
            for skip in (False, True):
                assert ours.decode(one.ids, skip) == theirs.decode(one.ids, skip), text


FLAGS = [dict(zip(("normalized", "special", "lstrip"), v)) for v in itertools.product([False, True], repeat=3)]


@pytest.mark.fault(28)
@pytest.mark.parametrize("second", FLAGS, ids=lambda f: "".join("01"[x] for x in f.values()))
@pytest.mark.parametrize("first", FLAGS, ids=lambda f: "".join("01"[x] for x in f.values()))
def test_of_a_token_that_is_declared_twice_the_last_counts(first: dict[str, bool], second: dict[str, bool]) -> None:
    vocab = {"[UNK]": 0, "a": 1, "b": 2, "Ġa": 3}
    assert_like_hf([added("a", **first), added("a", **second)], vocab, {"type": "Prepend", "prepend": "Ġ"})


@pytest.mark.fault(28)
@pytest.mark.parametrize("names", ["axy", "xay", "xy", "axxy", "yabx"])
@pytest.mark.parametrize("hole", [3, 4, 50])
def test_ids_of_added_tokens_beside_a_vocabulary_with_holes(names: str, hole: int) -> None:
    """HF counts on from the number of tokens, past ids that the vocabulary has."""
    assert_like_hf([added(name) for name in names], {"[UNK]": 0, "b": 1, "a": hole}, None)
