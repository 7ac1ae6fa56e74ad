"""Text that normalizers and splitters trip over: marks, joiners, directions, syllables, scripts without spaces."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
import tokenizers
from prelude.tokenizer import Tokenizer

from prelude import default_model

FAMILIES = ["packaged", "qwen3", "llama-3.2", "bert-base-uncased", "clip", "mistral-v1"]
MIXED = "Crème brûlée e\u0301\u0323 한국어 각 ﬁ ½ Å ǆ ς Ǆ ά"
TEXTS = {
    "marks on one base": "a" + "\u0301" * 100_000,
    "marks out of order": ("e\u0301\u0323\u0327\u0300" * 50 + " ") * 20,
    "joined emoji": "👩\u200d👩\u200d👧\u200d👦" * 200 + "🏳️\u200d🌈" * 50,
    "right to left marks": "\u202eabc\u202c \u200fשלום\u200e مرحبا \u2067x\u2069" * 50,
    "jamo": "\u1100\u1161\u11a8" * 300 + "\u1100" * 50 + "\u1161" * 50 + "\u11a8" * 50,
    "thai": "ร้านอาหารเล็กๆข้างตลาดทำแกงอร่อยมากแต่ต้องไปก่อนเที่ยง" * 30,
    "khmer": "មនុស្សទាំងអស់កើតមកមានសេរីភាពនិងសមភាព" * 30,
    **{form: unicodedata.normalize(form, MIXED) * 40 for form in ("NFC", "NFD", "NFKC", "NFKD")},
}


def file_of(family: str, shared: Path | None) -> Path:
    if family == "packaged":
        return default_model.path() / "tokenizer.json"
    if shared is None:
        pytest.skip("the folder of real reference files is not beside the checkout (set PRELUDE_SHARED)")
    return shared / "tokenizers" / family / "tokenizer.json"


@pytest.mark.fault(24)
@pytest.mark.parametrize("family", FAMILIES)
def test_scripts_equal_hf(family: str, shared_or_none: Path | None) -> None:
    path = str(file_of(family, shared_or_none))
    ours, theirs = Tokenizer.from_file(path), tokenizers.Tokenizer.from_file(path)
    for tokenizer in (ours, theirs):
        tokenizer.no_truncation()
        tokenizer.no_padding()
    for name, text in TEXTS.items():
        a, b = ours.encode(text, add_special_tokens=False), theirs.encode(text, add_special_tokens=False)
        assert a.ids == b.ids, name
        assert a.offsets == b.offsets, name
        assert ours.decode(a.ids) == theirs.decode(b.ids), name
