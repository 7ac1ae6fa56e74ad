"""Code points of every kind, and runs of marks of any length, through every normalizer: text and offsets as HF's."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import tokenizers
from prelude.tokenizer._core import CoreTokenizer

BERT = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
NORMALIZERS: dict[str, dict[str, Any]] = {
    **{kind: {"type": kind} for kind in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt")},
    "Bert": {**BERT, "strip_accents": None, "lowercase": True},
    "Bert, cased": {**BERT, "strip_accents": False, "lowercase": False},
    "Bert, accents only": {
        "type": "BertNormalizer", "clean_text": False, "handle_chinese_chars": False, "strip_accents": True,
        "lowercase": False,
    },
    "NFD, StripAccents, Lowercase": {
        "type": "Sequence",
        "normalizers": [{"type": kind} for kind in ("NFD", "StripAccents", "Lowercase")],
    },
}  # fmt: skip
MARKS = "".join(map(chr, (0x300, 0x301, 0x307, 0x315, 0x323, 0x327, 0x345, 0x5B0, 0x64B, 0x94D, 0x3099, 0x1D165)))


@pytest.fixture(params=NORMALIZERS)
def sides(request: pytest.FixtureRequest) -> tuple[CoreTokenizer, Any]:
    """Ours and HF's for a file of this normalizer, whose tokens are the normalized characters, one by one."""
    file = json.dumps(
        {
            "version": "1.0",
            "added_tokens": [],
            "normalizer": NORMALIZERS[request.param],
            "pre_tokenizer": {"type": "FixedLength", "length": 1},
            "model": {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"},
        }
    )
    return CoreTokenizer.from_json(file), tokenizers.Tokenizer.from_str(file)


def assert_same(sides: tuple[CoreTokenizer, Any], text: str) -> None:
    core, hf = sides
    assert core.normalize(text) == hf.normalizer.normalize_str(text), ascii(text[:80])
    assert core.encode_full(text)[1].tolist() == [list(o) for o in hf.encode(text).offsets], ascii(text[:80])


@pytest.mark.long
@pytest.mark.feature("J1")
def test_every_code_point(sides: tuple[CoreTokenizer, Any]) -> None:
    alike = [(0x3400, 0x9FFF), (0xAC00, 0xD7A3), (0xE000, 0xF8FF), (0x17000, 0x18CFF), (0x20000, 0x2F7FF)]
    codes = [
        c
        for c in (*range(0x32000), *range(0xE0000, 0xE0200), *range(0x10FFF0, 0x110000))
        if not 0xD800 <= c < 0xE000 and (c % 29 == 0 or not any(low <= c <= high for low, high in alike))
    ]
    for begin in range(0, len(codes), 2048):
        block = codes[begin : begin + 2048]
        assert_same(sides, "".join(f"{chr(c)}e" for c in block))
        assert_same(sides, "".join(map(chr, block)))


@pytest.mark.fault(24)
def test_runs_of_marks_of_any_length(sides: tuple[CoreTokenizer, Any]) -> None:
    rng = random.Random(2)
    for length in (*range(1, 70), 255, 256, 257, 1000):
        run = "".join(rng.choices(MARKS, k=length))
        for before in ("", "e", "\u304b", "\uac00", "\u1100\u1161"):
            assert_same(sides, before + run + "\u11a8o\u0301")
