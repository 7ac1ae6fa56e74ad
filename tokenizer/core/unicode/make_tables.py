"""Write unicode_tables.cpp: the Unicode data that Hugging Face tokenizers 0.23.3 behaves by.

Nothing is taken from the Unicode database of the day: every property is read off the behaviour of the
installed ``tokenizers`` over all code points (its regex engine, its normalization crate, Rust's ``char`` and
the category crate each follow another version of Unicode). Python's ``unicodedata`` only proposes where to look.

    python tokenizer/core/unicode/make_tables.py            # rewrites the file beside this script
"""

from __future__ import annotations

import itertools
import struct
import unicodedata
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

VERSION = "0.23.3"
CODES = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
ALL = "".join(map(chr, CODES))

CATEGORIES = """Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp
Cc Cf Cs Co Cn""".split()  # noqa: SIM905
SCRIPTS = """Adlam Ahom Anatolian_Hieroglyphs Arabic Armenian Avestan Balinese Bamum Bassa_Vah Batak Bengali
Bhaiksuki Bopomofo Brahmi Braille Buginese Buhid Canadian_Aboriginal Carian Caucasian_Albanian Chakma Cham
Cherokee Chorasmian Common Coptic Cuneiform Cypriot Cypro_Minoan Cyrillic Deseret Devanagari Dives_Akuru Dogra
Duployan Egyptian_Hieroglyphs Elbasan Elymaic Ethiopic Garay Georgian Glagolitic Gothic Grantha Greek Gujarati
Gunjala_Gondi Gurmukhi Gurung_Khema Han Hangul Hanifi_Rohingya Hanunoo Hatran Hebrew Hiragana Imperial_Aramaic
Inherited Inscriptional_Pahlavi Inscriptional_Parthian Javanese Kaithi Kannada Katakana Kawi Kayah_Li
Kharoshthi Khitan_Small_Script Khmer Khojki Khudawadi Kirat_Rai Lao Latin Lepcha Limbu Linear_A Linear_B Lisu
Lycian Lydian Mahajani Makasar Malayalam Mandaic Manichaean Marchen Masaram_Gondi Medefaidrin Meetei_Mayek
Mende_Kikakui Meroitic_Cursive Meroitic_Hieroglyphs Miao Modi Mongolian Mro Multani Myanmar Nabataean
Nag_Mundari Nandinagari New_Tai_Lue Newa Nko Nushu Nyiakeng_Puachue_Hmong Ogham Ol_Chiki Ol_Onal Old_Hungarian
Old_Italic Old_North_Arabian Old_Permic Old_Persian Old_Sogdian Old_South_Arabian Old_Turkic Old_Uyghur Oriya
Osage Osmanya Pahawh_Hmong Palmyrene Pau_Cin_Hau Phags_Pa Phoenician Psalter_Pahlavi Rejang Runic Samaritan
Saurashtra Sharada Shavian Siddham SignWriting Sinhala Sogdian Sora_Sompeng Soyombo Sundanese Sunuwar
Syloti_Nagri Syriac Tagalog Tagbanwa Tai_Le Tai_Tham Tai_Viet Takri Tamil Tangsa Tangut Telugu Thaana Thai
Tibetan Tifinagh Tirhuta Todhri Toto Tulu_Tigalari Ugaritic Unknown Vai Vithkuqi Wancho Warang_Citi Yezidi Yi
Zanabazar_Square""".split()  # noqa: SIM905

# bits of a record's flags; unicode.hpp has the same names
FLAGS = """onig_space onig_word rust_space rust_numeric rust_word re_space punctuation bert_removed bert_space
bert_cjk mark_nonspacing combining_mark nmt_removed nmt_space nfc_dirty composes_back""".split()  # noqa: SIM905


def matches(pattern: str, text: str = ALL) -> list[tuple[int, int]]:
    split = pre_tokenizers.Split(Regex(pattern), "removed", True)
    return [span for _, span in split.pre_tokenize_str(text)]


def members(pattern: str) -> set[int]:
    return {CODES[i] for start, end in matches(pattern) for i in range(start, end)}


def pieces(pre: pre_tokenizers.PreTokenizer) -> set[int]:
    """The code points that a splitter which drops its delimiters keeps."""
    return {CODES[i] for _, (start, end) in pre.pre_tokenize_str(ALL) for i in range(start, end)}


def each(normalizer: normalizers.Normalizer, around: str = "") -> dict[int, str]:
    """The normalizer's result for each code point between two texts."""
    n = len(around)
    return {c: normalizer.normalize_str(around + chr(c) + around)[n : -n or None] for c in CODES}


def changed(results: dict[int, str], to: str = "") -> set[int]:
    return {c for c, text in results.items() if text == to != chr(c)}


def combining_classes(nfd: dict[int, str]) -> dict[int, int]:
    """Canonical combining classes as NFD orders by them, told apart by swapping with known marks."""
    normalize = normalizers.NFD().normalize_str

    def swapped(text: str) -> bool:
        return bool(normalize(text) == text[::-1] != text)

    low, high = "\u0334", "\u0345"  # classes 1 and 240
    marks = [c for c in CODES if nfd[c] == chr(c) and (swapped(high + chr(c)) or swapped(chr(c) + low))]
    known: dict[int, str] = {}
    for c in marks:
        known.setdefault(unicodedata.combining(chr(c)), chr(c))
    assert 0 not in known
    classes: dict[int, int] = {}
    for c in marks:
        between = [v for v, mark in known.items() if not swapped(chr(c) + mark) and not swapped(mark + chr(c))]
        assert len(between) == 1, (hex(c), between)
        classes[c] = between[0]
    return classes


def compositions(nfd: dict[int, str]) -> dict[tuple[int, int], int]:
    nfc = normalizers.NFC()
    pairs: dict[tuple[int, int], int] = {}
    for c in CODES:
        if 0xAC00 <= c < 0xD7A4 or nfd[c] == chr(c):
            continue
        parts = unicodedata.decomposition(chr(c)).split()
        assert parts and not parts[0].startswith("<"), f"a decomposition Python does not know: {c:x}"
        if len(parts) == 2:
            a, b = (int(p, 16) for p in parts)
            if nfc.normalize_str(chr(a) + chr(b)) == chr(c):
                pairs[a, b] = c
    return pairs


def folds() -> tuple[dict[int, list[int]], list[str]]:
    """For each code point with case, the matches of a one-character literal of it under (?i:); and the characters
    that fold to more than one."""
    cases = (str.lower, str.upper, str.casefold, str.title)
    # Only code points that change can match any letter case-insensitively.
    codes = [c for c in CODES if any(case(chr(c)) != chr(c) for case in cases)]
    text = "".join(map(chr, codes))
    multi = sorted({chr(c).casefold() for c in codes if len(chr(c).casefold()) > 1})
    groups: dict[str, set[int]] = {}
    for c in CODES:
        for key in {chr(c).casefold(), chr(c).lower(), chr(c).upper().lower()}:
            if len(key) == 1:
                groups.setdefault(key, {ord(key)}).add(c)
    out = {}
    for key, group in groups.items():
        if len(group) > 1 or key.upper() != key:
            for c in group:
                found = sorted({codes[start] for start, _ in matches(f"(?i:\\x{{{c:X}}})", text)} - {c})
                if found and len(chr(c).casefold()) == 1:
                    out[c] = found
    return out, multi


def cutting_scripts() -> list[int]:
    """For each code point the number of the script by which UnicodeScripts cuts; 0 cuts nothing.

    Scripts are not named: two code points have the same one where no cut falls between them.
    """
    pre = pre_tokenizers.UnicodeScripts()

    def cuts(text: str) -> set[int]:
        return {start for _, (start, _) in pre.pre_tokenize_str(text)}

    latin_han = cuts("".join(f"a{chr(c)}\u3042" for c in CODES))
    han_latin = cuts("".join(f"\u3042{chr(c)}a" for c in CODES))
    codes = [c for i, c in enumerate(CODES) if 3 * i + 1 in latin_han or 3 * i + 1 in han_latin]
    values = [0] * 0x110000
    firsts: list[str] = []
    starts = cuts("".join(map(chr, codes)))
    number = 0
    for i, c in enumerate(codes):
        if i in starts:
            at = cuts("".join(chr(c) + first for first in firsts))
            same = [k for k in range(len(firsts)) if 2 * k + 1 not in at]
            assert len(same) < 2, hex(c)
            if not same:
                firsts.append(chr(c))
            number = same[0] + 1 if same else len(firsts)
        values[c] = number
    return values


GRAPHEME_FLAGS = """joins_back joins_ahead stands_apart pictographic pictographic_extend zero_width_joiner
conjunct_consonant conjunct_linker conjunct_extend hangul_l hangul_v hangul_t""".split()  # noqa: SIM905
HANGUL = range(0xAC00, 0xD7A4)


def grapheme_flags() -> list[int]:
    """The flags of graphemes.hpp. A map that makes one letter of each cluster of at most five bytes, and one of each
    character of a longer cluster, shows where the clusters of a text end. Zero ends a look-up in such a map, and is
    a control character."""
    block = 256
    units = [block << 10, *[0] * (3 * block - 1)]
    for byte in range(1, 256):  # the child for each byte has a value, and no children
        units[block ^ byte] = byte | 1 << 8 | (block ^ byte ^ (2 * block)) << 10
    raw = struct.pack(f"<I{3 * block}I", 12 * block, *units) + b"y\0"
    letters = normalizers.Precompiled(raw)
    assert letters.normalize_str("ab") == "yy"

    def where(texts: list[str], counted: int, codes: list[int]) -> set[int]:
        return {c for c, t in zip(codes, texts) if letters.normalize_str(t).count("y") == counted}

    codes = [c for c in CODES if c != 0]
    joiner, copyright, acute, ka, virama = "\u200d", "\u00a9", "\u0301", "\u0915", "\u094d"
    sets: dict[str, set[int]] = {}
    sets["joins_back"] = back = where(["a" + chr(c) for c in codes], 1, codes)
    sets["joins_ahead"] = ahead = where([chr(c) + "a" for c in codes], 1, codes)
    sets["stands_apart"] = where([chr(c) + acute + acute for c in codes], 2, codes) | {0}
    assert {0x0D, 0x0A} < sets["stands_apart"] and not sets["stands_apart"] & (back | ahead)
    sets["pictographic"] = where([chr(c) + joiner + copyright + acute for c in codes], 4, codes)
    joining = sorted(back)
    sets["pictographic_extend"] = where(
        [copyright + chr(c) + joiner + copyright + acute for c in joining], 5, joining
    )
    sets["zero_width_joiner"] = where([copyright + chr(c) + copyright + acute for c in joining], 4, joining)
    sets["conjunct_consonant"] = where([chr(c) + virama + ka + acute for c in codes], 4, codes)
    sets["conjunct_linker"] = where([ka + chr(c) + ka + acute for c in joining], 4, joining)
    sets["conjunct_extend"] = where([ka + chr(c) + virama + ka + acute for c in joining], 5, joining)
    # The neighbours that a jamo joins give its kind.
    three = [where([chr(c) + jamo + acute for c in codes], 3, codes) - ahead for jamo in "\u1100\u1161\u11a8"]
    syllables = set(HANGUL)
    assert not three[0] & syllables
    assert three[1] & syllables == {c for c in HANGUL if (c - HANGUL.start) % 28 == 0}
    assert three[2] >= syllables
    sets["hangul_l"] = three[0]
    sets["hangul_v"] = three[1] - three[0] - syllables
    sets["hangul_t"] = three[2] - three[1] - three[0] - syllables
    return [sum(1 << i for i, name in enumerate(GRAPHEME_FLAGS) if c in sets[name]) for c in range(0x110000)]


def flag_sets() -> dict[str, set[int]]:
    every = set(CODES)
    digits = pre_tokenizers.Digits(True).pre_tokenize_str("".join("a" + chr(c) for c in CODES))
    words = [span for _, span in pre_tokenizers.Whitespace().pre_tokenize_str("".join(f"a{chr(c)} " for c in CODES))]
    word = {CODES[s // 3] for s, e in words if s % 3 == 0 and e - s >= 2}
    cleaned = each(normalizers.BertNormalizer(True, False, False, False), "a")
    cjk = each(normalizers.BertNormalizer(False, True, False, False), "a")
    nmt, marks = each(normalizers.Nmt(), "a"), each(normalizers.StripAccents(), "a")
    for table in (cleaned, nmt, marks, cjk):
        assert all(s in ("", " ", chr(c), f" {chr(c)} ") for c, s in table.items())
    return {
        "onig_space": members(r"\s+"),
        "onig_word": members(r"\w+"),
        "rust_space": every - pieces(pre_tokenizers.WhitespaceSplit()),
        "rust_numeric": {CODES[s // 2] for _, (s, e) in digits if e - s == 1 and s % 2 == 1},
        "rust_word": word,
        "re_space": every - word - {CODES[s // 3] for s, _ in words if s % 3 == 1},
        "punctuation": every - pieces(pre_tokenizers.Punctuation("removed")),
        "bert_removed": changed(cleaned),
        "bert_space": changed(cleaned, " "),
        "bert_cjk": {c for c, s in cjk.items() if s == f" {chr(c)} "},
        "mark_nonspacing": changed(each(normalizers.BertNormalizer(False, False, True, False), "a")),
        "combining_mark": changed(marks),
        "nmt_removed": changed(nmt),
        "nmt_space": changed(nmt, " "),
    }


def main() -> None:
    assert tokenizers.__version__ == VERSION, tokenizers.__version__
    category = [CATEGORIES.index("Cs") if 0xD800 <= c < 0xE000 else CATEGORIES.index("Cn") for c in range(0x110000)]
    for i, name in enumerate(CATEGORIES):
        if name != "Cs":
            for c in members(rf"\p{{{name}}}+"):
                category[c] = i
    assert members(r"\d+") == {c for c in CODES if CATEGORIES[category[c]] == "Nd"}, "\\d is not Nd"
    # Inside brackets \w is a little less than outside (the fractions and superscripts of Latin-1).
    word, word_in_brackets = members(r"\w+"), members(r"[\w]+")
    assert word_in_brackets < word
    script = [0] * 0x110000
    for i, name in enumerate(SCRIPTS):
        for c in members(rf"\p{{{name}}}+"):
            script[c] = i + 1
    sets = flag_sets()
    nfd, nfkd, nfc = each(normalizers.NFD()), each(normalizers.NFKD()), each(normalizers.NFC())
    ccc = combining_classes(nfd)
    pairs = compositions(nfd)
    seconds = {b for _, b in pairs} | set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
    sets["composes_back"] = seconds
    sets["nfc_dirty"] = seconds | {c for c in CODES if nfc[c] != chr(c) or ccc.get(c)}
    records: dict[tuple[int, int, int], int] = {}
    values = []
    for c in range(0x110000):
        flags = sum(1 << i for i, name in enumerate(FLAGS) if c in sets[name])
        values.append(records.setdefault((category[c], ccc.get(c, 0), flags), len(records)))
    fold, multi = folds()

    out = [
        f"// Generated by make_tables.py from the behaviour of tokenizers {VERSION}. Do not edit.\n",
        '#include "unicode/unicode_tables.hpp"\n\nnamespace fasttoken::tables {\n\n// clang-format off\n',
    ]

    def array(kind: str, name: str, values: list[Any], width: int = 24) -> None:
        body = ",\n    ".join(", ".join(map(str, values[i : i + width])) for i in range(0, len(values), width))
        out.append(f"const {kind} {name}[] = {{\n    {body}}};\nconst unsigned {name}_size = {len(values)};\n\n")

    def runs(name: str, kind: str, value: str, values: list[int]) -> None:
        starts = [c for c in range(0x110000) if c == 0 or values[c] != values[c - 1]]
        array("unsigned", f"{name}_start", starts)
        array(kind, f"{name}_{value}", [values[c] for c in starts])

    def mapping(name: str, table: dict[int, str]) -> None:
        keys = sorted(table)
        array("unsigned", f"{name}_keys", keys)
        array("unsigned short", f"{name}_index", [0, *itertools.accumulate(len(table[c]) for c in keys)])
        array("unsigned", f"{name}_flat", [ord(x) for c in keys for x in table[c]])

    runs("run", "unsigned short", "record", values)
    for i, (kind, name) in enumerate((("char", "category"), ("char", "class"), ("short", "flags"))):
        array(f"unsigned {kind}", f"record_{name}", [record[i] for record in records])
    runs("script", "unsigned char", "value", script)
    array("char* const", "script_names", [f'"{name}"' for name in ("?", *SCRIPTS)])
    runs("cut", "unsigned char", "value", cutting_scripts())
    runs("grapheme", "unsigned short", "flags", grapheme_flags())
    array("unsigned", "bare_word", sorted(word - word_in_brackets))
    mapping("canonical", {c: s for c, s in nfd.items() if s != chr(c) and c not in HANGUL})
    mapping("compatible", {c: s for c, s in nfkd.items() if s != chr(c) and c not in HANGUL and s != nfd[c]})
    mapping("lower", {c: s for c, s in each(normalizers.Lowercase()).items() if s != chr(c)})
    array("unsigned", "pair_first", [a for a, _ in sorted(pairs)])
    array("unsigned", "pair_second", [b for _, b in sorted(pairs)])
    array("unsigned", "pair_result", [pairs[k] for k in sorted(pairs)])
    mapping("fold", {c: "".join(map(chr, s)) for c, s in fold.items()})
    mapping("multifold", dict(enumerate(multi)))
    out.append("// clang-format on\n\n}  // namespace fasttoken::tables\n")
    Path(__file__).with_name("unicode_tables.cpp").write_text("".join(out), encoding="utf-8")


if __name__ == "__main__":
    main()
