"""Text that normalizers and splitters trip over: marks, joiners, directions, syllables, scripts without spaces."""

from __future__ import annotations

import json
import random
import unicodedata
from pathlib import Path

import pytest
import tokenizers
from prelude.tokenizer import Tokenizer
from prelude.tokenizer._core import CoreTokenizer
from tokenizers import pre_tokenizers

from prelude import default_model

FAMILIES = ["packaged", "qwen3", "bert-base-uncased", "clip", "mistral-v1"]
MIXED = "Crème brûlée e\u0301\u0323 한국어 각 ﬁ ½ Å ǆ ς Ǆ ά"
TEXTS = {
    "odd code points": "\x00a\x00\ufffe\uffff\ufeffBOM\U0010ffff\U000e0041\u0378\u07f3\u07fd\r",
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


@pytest.mark.long
@pytest.mark.feature("J1")
def test_unicode_scripts_cut_where_hf_cuts() -> None:
    pre = pre_tokenizers.UnicodeScripts()
    file = json.dumps(
        {
            "version": "1.0",
            "added_tokens": [],
            "pre_tokenizer": {"type": "UnicodeScripts"},
            "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"},
        }
    )
    core = CoreTokenizer.from_json(file)
    codes = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    rng = random.Random(4)
    assigned = [c for c in codes if unicodedata.category(chr(c)) not in ("Cn", "Co")]
    texts = [
        "", " ", "  a", " a b ", "aあ", "あア漢ー", "a\u0378b", "\u2000a", ". a", " あ a", "á\u0301あ\u0301",
        "".join(map(chr, codes)),
        "".join(f"a{chr(c)}あ" for c in codes[::7]),
        *("".join(map(chr, rng.choices(assigned, k=rng.randrange(1, 40)))) for _ in range(4000)),
        *("".join(rng.choices("aéжあア漢ー、 .1\u0301\u0378🙂", k=rng.randrange(1, 12))) for _ in range(2000)),
    ]  # fmt: skip
    for text in texts:
        assert core.pre_tokenize(text) == pre.pre_tokenize_str(text), text[:60]
    whole = tokenizers.Tokenizer.from_str(file)
    ours = Tokenizer.from_str(file)
    assert ours.backend == "native"
    for text in texts[:300]:
        a, b = ours.encode(text), whole.encode(text)
        assert (a.ids, a.offsets, a.word_ids) == (b.ids, b.offsets, b.word_ids), text[:60]
