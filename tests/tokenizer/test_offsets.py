"""Offsets made from the ids alone, beside those of HF and of the whole way through the core."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prelude.tokenizer import Tokenizer

from tests.tokenizer.small_files import file as small_file

Pair = Callable[[str], tuple[Tokenizer, Any]]

PIECES = [
    "Hello", " the", "  ", "\n", "é", "e\u0301", "你好", "🙂", "\U0001f469\u200d\U0001f4bb", "ö", "\u0323\u0301",
]  # fmt: skip
PIECES += ["##", "a##b", "\u2581", " \u2581a", "<0x41>", "\t", "\r\n", "it's", "HELLO", "#", "\x7f", "{}"]
PIECES += ["<special>", " <mask>", "<r> ", "<tool>", "Ünïcödé", "\u00a0", "12345", "\x00", "\u212b"]
PIECES += ["，。", "的 の", "Привет", "豈", "\u3000"]
FILES = ["byte-level", "no trimming", "byte-level, prefix space", "roberta", "nfc", "bert", "sentence pieces"]
MARKED = [
    "unigram", "unigram, marked blanks", "unigram, marked blanks, stripped", "unigram, bytes", "bert, few added",
    "sentence pieces, few added",
]  # fmt: skip


def changed(pair_of: Pair, name: str, change: Callable[[dict[str, Any]], None]) -> tuple[Tokenizer, Any]:
    import tokenizers

    file = json.loads(pair_of(name)[1].to_str())
    change(file)
    text = json.dumps(file)
    return Tokenizer.from_str(text), tokenizers.Tokenizer.from_str(text)


def with_nfc(pair_of: Pair) -> tuple[Tokenizer, Any]:
    return changed(pair_of, "byte-level", lambda file: file.update(normalizer={"type": "NFC"}))


def keep_special(file: dict[str, Any]) -> None:
    file["added_tokens"] = [token for token in file["added_tokens"] if token["special"]]


@cache
def unigram(name: str) -> tuple[Tokenizer, Any]:
    """A file that marks the blank before a word, as T5's or as ALBERT's does."""
    import tokenizers
    from tokenizers import pre_tokenizers

    words = ["Hello", "the", "it", "a", "HEL", "LO", "\u2581", "\u2581the", "\u2581it", "\u2581a", "\u2581Hel"]
    vocab = [("<unk>", 0.0), *((word, -float(at)) for at, word in enumerate(words, 2))]
    vocab += [(character, -20.0) for character in "Helothits'HEL123#b"]
    vocab += [(f"<0x{byte:02X}>", -30.0) for byte in range(256 * ("bytes" in name))]
    theirs = tokenizers.Tokenizer(tokenizers.models.Unigram(list(dict(vocab).items()), 0, "bytes" in name))
    marks = pre_tokenizers.Metaspace()
    apart = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), marks])
    theirs.pre_tokenizer = marks if "blanks" in name else apart
    if "stripped" in name:
        theirs.normalizer = tokenizers.normalizers.Strip()
    return Tokenizer.from_str(theirs.to_str()), theirs


def both(name: str, pair_of: Pair) -> tuple[Tokenizer, Any]:
    if name.startswith("unigram"):
        return unigram(name)
    if name.endswith(", few added"):
        return changed(pair_of, name.removesuffix(", few added"), keep_special)
    return with_nfc(pair_of) if name == "nfc" else pair_of(name)


@pytest.mark.parametrize("backend", ["first backend"])  # HF makes the offsets of the other
@pytest.mark.parametrize("name", FILES + MARKED)
@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(parts=st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=12))
def test_offsets_are_those_of_hf_whichever_way_they_come(pair_of: Pair, name: str, parts: list[str]) -> None:
    ours, theirs = both(name, pair_of)
    text = "".join(parts)
    expected = theirs.encode(text)
    assert ours.encode(text).offsets == expected.offsets
    encoding = ours.encode(text)
    assert encoding.word_ids == expected.word_ids and encoding.offsets == expected.offsets
    for given_text in (text, text.encode()):
        ids, offsets = ours.encode_with_offsets(given_text)
        assert ids.tolist() == expected.ids and [tuple(o) for o in offsets.tolist()] == expected.offsets


@pytest.mark.parametrize("backend", ["first backend"])
@pytest.mark.parametrize("name", MARKED)
def test_ids_say_where_they_lie_in_marked_text_and_between_blanks(pair_of: Pair, name: str) -> None:
    ours, theirs = both(name, pair_of)
    text = "Hello the it a the" * 40
    expected = theirs.encode(text, add_special_tokens=False)
    assert ours.encode(text, add_special_tokens=False).offsets == expected.offsets
    assert [tuple(o) for o in ours.encode_with_offsets(text, False)[1].tolist()] == expected.offsets


def test_offsets_of_hf_that_lie_behind_the_text_are_its_end_in_bytes() -> None:
    """HF counts the characters of an end-of-word suffix that falls back to bytes."""
    from prelude.tokenizer.backends.reference import ReferenceCore

    vocab = {f"<0x{b:02X}>": b for b in range(256)}
    model = {"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": True, "end_of_word_suffix": "</w>"}
    core = ReferenceCore(small_file(model=model).encode(), "a test")
    _, offsets, _ = core.encode_full("é", True, "byte")
    _, characters, _ = core.encode_full("é", True, "char")
    assert characters.max() > 1 and offsets.max() == 2
