"""Write unicode_tables.cpp: the Unicode data that Hugging Face tokenizers 0.23.3 behaves by.

Nothing is taken from the Unicode database of the day: every property is read off the behaviour of the
installed ``tokenizers`` over all code points (its regex engine, its normalization crate, Rust's ``char`` and
the category crate each follow another version of Unicode). Python's ``unicodedata`` only proposes where to look.

    python tokenizer/core/unicode/make_tables.py            # rewrites the file beside this script
"""

from __future__ import annotations

import struct
import sys
import unicodedata
from pathlib import Path

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


def each(normalizer: normalizers.Normalizer, codes: list[int] = CODES, left: str = "") -> dict[int, str]:
    """The normalizer's result for each code point alone (after ``left``), by batches between separators."""
    out: dict[int, str] = {}
    separator = "\x01"
    for at in range(0, len(codes), 4096):
        batch = [c for c in codes[at : at + 4096] if c != 1]
        text = separator.join(left + chr(c) for c in batch)
        parts = normalizer.normalize_str(text).split(separator)
        assert len(parts) == len(batch), (hex(batch[0]), len(parts), len(batch))
        out.update((c, part.removeprefix(left)) for c, part in zip(batch, parts))
    if 1 in codes:
        out[1] = normalizer.normalize_str("\x01")
    return out


def each_one_by_one(normalizer: normalizers.Normalizer) -> dict[int, str]:
    """The result for each code point between two letters."""
    out = {ord("|"): normalizer.normalize_str("a|b")[1:-1]}
    for at in range(0, len(CODES), 4096):
        batch = [c for c in CODES[at : at + 4096] if c != ord("|")]
        parts = normalizer.normalize_str("|".join(f"a{chr(c)}b" for c in batch)).split("|")
        assert len(parts) == len(batch)
        out.update((c, part[1:-1]) for c, part in zip(batch, parts))
    return out


def combining_classes() -> dict[int, int]:
    """Canonical combining classes as NFD orders by them, told apart by swapping with known marks."""
    nfd = normalizers.NFD()

    def swapped(texts: list[str]) -> list[bool]:
        parts = nfd.normalize_str("|".join(texts)).split("|")
        assert len(parts) == len(texts)
        return [part == text[::-1] != text for part, text in zip(parts, texts)]

    low, high = "\u0334", "\u0345"  # classes 1 and 240
    decomposed = each(nfd)
    codes = [c for c in CODES if c not in (1, ord("|")) and decomposed[c] == chr(c)]
    marks = set()
    for at in range(0, len(codes), 4096):
        batch = codes[at : at + 4096]
        first = swapped([high + chr(c) for c in batch])
        second = swapped([chr(c) + low for c in batch])
        marks |= {c for c, x, y in zip(batch, first, second) if x or y}
    known: dict[int, str] = {}
    for c in sorted(marks):
        known.setdefault(unicodedata.combining(chr(c)), chr(c))
    assert 0 not in known
    order = sorted(known)
    classes: dict[int, int] = {}
    for c in sorted(marks):
        below = swapped([chr(c) + known[v] for v in order])
        above = swapped([known[v] + chr(c) for v in order])
        between = [v for v, x, y in zip(order, below, above) if not x and not y]
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


def folds() -> tuple[list[tuple[int, list[int]]], list[str]]:
    """For each code point with case, the matches of a one-character literal of it under (?i:); and the characters
    that fold to more than one."""
    groups: dict[str, set[int]] = {}
    for c in CODES:
        ch = chr(c)
        for key in {ch.casefold(), ch.lower(), ch.upper().lower()}:
            if len(key) == 1:
                groups.setdefault(key, set()).add(c)
    out = []
    multi = sorted({chr(c).casefold() for c in CODES if len(chr(c).casefold()) > 1})
    for key, group in sorted(groups.items()):
        if len(group) < 2 and key.upper() == key:
            continue
        for c in sorted(group | {ord(key)}):
            if len(chr(c).casefold()) > 1:
                continue
            found = sorted({CODES[s] for s, e in matches(f"(?i:\\x{{{c:X}}})", FOLDING) for s in [FOLD_AT[s]]} - {c})
            if found:
                out.append((c, found))
    return out, multi


FOLDING = ""
FOLD_AT: list[int] = []


def fold_universe() -> None:
    """Only code points that match any letter case-insensitively can be in a group: those that change."""
    global FOLDING, FOLD_AT
    index = {c: i for i, c in enumerate(CODES)}
    codes = [
        c
        for c in CODES
        if any(f(chr(c)) != chr(c) for f in (str.lower, str.upper, str.casefold, str.title))
        or len(chr(c).casefold()) > 1
    ]
    FOLDING = "".join(map(chr, codes))
    FOLD_AT = [index[c] for c in codes]


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
    print({name: len(sets[name]) for name in GRAPHEME_FLAGS}, file=sys.stderr)
    return [sum(1 << i for i, name in enumerate(GRAPHEME_FLAGS) if c in sets[name]) for c in range(0x110000)]


def runs(values: list[int]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for code, value in enumerate(values):
        if not out or out[-1][1] != value:
            out.append((code, value))
    return out


def array(kind: str, name: str, values: list[int], width: int = 24) -> str:
    lines = [", ".join(map(str, values[i : i + width])) for i in range(0, len(values), width)]
    body = ",\n    ".join(lines)
    return f"const {kind} {name}[] = {{\n    {body}}};\nconst unsigned {name}_size = {len(values)};\n\n"


def flag_sets() -> dict[str, set[int]]:
    sets: dict[str, set[int]] = {}
    every = set(CODES)
    sets["onig_space"] = members(r"\s+")
    sets["onig_word"] = members(r"\w+")
    sets["rust_space"] = every - pieces(pre_tokenizers.WhitespaceSplit())
    digits = pre_tokenizers.Digits(True).pre_tokenize_str("".join("a" + chr(c) for c in CODES))
    sets["rust_numeric"] = {CODES[s // 2] for _, (s, e) in digits if e - s == 1 and s % 2 == 1}
    triples = "".join("a" + chr(c) + " " for c in CODES)
    word, other = set(), set()
    for _, (s, e) in pre_tokenizers.Whitespace().pre_tokenize_str(triples):
        if s % 3 == 0 and e - s >= 2:
            word.add(CODES[s // 3])
        elif s % 3 == 1:
            other.add(CODES[s // 3])
    sets["rust_word"], sets["re_space"] = word, every - word - other
    sets["punctuation"] = every - {
        CODES[i] for _, (s, e) in pre_tokenizers.Punctuation("removed").pre_tokenize_str(ALL) for i in range(s, e)
    }
    bert = normalizers.BertNormalizer(True, False, False, False)
    cleaned = each_one_by_one(bert)
    sets["bert_removed"] = {c for c, s in cleaned.items() if s == ""}
    sets["bert_space"] = {c for c, s in cleaned.items() if s == " " and c != 32}
    cjk = each_one_by_one(normalizers.BertNormalizer(False, True, False, False))
    sets["bert_cjk"] = {c for c, s in cjk.items() if s == f" {chr(c)} "}
    stripped = each_one_by_one(normalizers.BertNormalizer(False, False, True, False))
    sets["mark_nonspacing"] = {c for c, s in stripped.items() if s == ""}
    marks = each_one_by_one(normalizers.StripAccents())
    sets["combining_mark"] = {c for c, s in marks.items() if s == ""}
    nmt = each_one_by_one(normalizers.Nmt())
    sets["nmt_removed"] = {c for c, s in nmt.items() if s == ""}
    sets["nmt_space"] = {c for c, s in nmt.items() if s == " " and c != 32}
    for name, table in (("bert", cleaned), ("nmt", nmt), ("marks", marks), ("cjk", cjk)):
        odd = [c for c, s in table.items() if s not in ("", " ", chr(c), f" {chr(c)} ")]
        assert not odd, (name, [hex(c) for c in odd[:9]])
    # An accent that is the last part of a decomposition is also removed: keep the mark itself only.
    return sets


def main() -> None:
    assert tokenizers.__version__ == VERSION, tokenizers.__version__
    fold_universe()
    category = [CATEGORIES.index("Cn")] * 0x110000
    for i, name in enumerate(CATEGORIES):
        if name == "Cs":
            for c in range(0xD800, 0xE000):
                category[c] = i
            continue
        for c in members(rf"\p{{{name}}}+"):
            category[c] = i
    digit = members(r"\d+")
    assert digit == {c for c in CODES if CATEGORIES[category[c]] == "Nd"}, "\\d is not Nd"
    # Inside brackets \w is a little less than outside (the fractions and superscripts of Latin-1).
    word, word_in_brackets = members(r"\w+"), members(r"[\w]+")
    assert word_in_brackets < word
    script = [0] * 0x110000
    names = ["?"]
    for name in SCRIPTS:
        try:
            found = members(rf"\p{{{name}}}+")
        except Exception as error:
            print("no script", name, str(error)[:60], file=sys.stderr)
            continue
        names.append(name)
        for c in found:
            script[c] = len(names) - 1
    sets = flag_sets()
    ccc = combining_classes()
    nfd, nfkd = each(normalizers.NFD()), each(normalizers.NFKD())
    nfc = each(normalizers.NFC())
    lower = each(normalizers.Lowercase())
    pairs = compositions(nfd)
    seconds = {b for _, b in pairs} | set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
    sets["composes_back"] = seconds
    sets["nfc_dirty"] = seconds | {c for c in CODES if nfc[c] != chr(c) or ccc.get(c)}

    records: dict[tuple[int, int, int], int] = {}
    values = []
    for c in range(0x110000):
        flags = sum(1 << i for i, name in enumerate(FLAGS) if c in sets[name])
        record = (category[c], ccc.get(c, 0), flags)
        values.append(records.setdefault(record, len(records)))
    hangul = range(0xAC00, 0xD7A4)
    canonical = {c: s for c, s in nfd.items() if s != chr(c) and c not in hangul}
    compatible = {c: s for c, s in nfkd.items() if s != chr(c) and c not in hangul and s != nfd[c]}
    lowered = {c: s for c, s in lower.items() if s != chr(c)}
    fold, multi = folds()

    def mapping(name: str, table: dict[int, str]) -> str:
        keys: list[int] = []
        index: list[int] = []
        flat: list[int] = []
        for c in sorted(table):
            keys.append(c)
            index.append(len(flat))
            flat += [ord(x) for x in table[c]]
        index.append(len(flat))
        return (
            array("unsigned", f"{name}_keys", keys)
            + array("unsigned short", f"{name}_index", index)
            + array("unsigned", f"{name}_flat", flat)
        )

    record_runs, script_runs, cut_runs = runs(values), runs(script), runs(cutting_scripts())
    grapheme_runs = runs(grapheme_flags())
    out = [
        "// Generated by make_tables.py from the behaviour of tokenizers " + VERSION + ". Do not edit.\n",
        '#include "unicode/unicode_tables.hpp"\n\nnamespace fasttoken::tables {\n\n// clang-format off\n',
        array("unsigned", "run_start", [s for s, _ in record_runs]),
        array("unsigned short", "run_record", [r for _, r in record_runs]),
        array("unsigned char", "record_category", [r[0] for r in records]),
        array("unsigned char", "record_class", [r[1] for r in records]),
        array("unsigned short", "record_flags", [r[2] for r in records]),
        array("unsigned", "script_start", [s for s, _ in script_runs]),
        array("unsigned char", "script_value", [v for _, v in script_runs]),
        "const char* const script_names[] = {"
        + ", ".join(f'"{n}"' for n in names)
        + f"}};\nconst unsigned script_names_size = {len(names)};\n\n",
        array("unsigned", "cut_start", [s for s, _ in cut_runs]),
        array("unsigned char", "cut_value", [v for _, v in cut_runs]),
        array("unsigned", "grapheme_start", [s for s, _ in grapheme_runs]),
        array("unsigned short", "grapheme_flags", [v for _, v in grapheme_runs]),
        array("unsigned", "bare_word", sorted(word - word_in_brackets)),
        mapping("canonical", canonical),
        mapping("compatible", compatible),
        mapping("lower", lowered),
        array("unsigned", "pair_first", [a for a, _ in sorted(pairs)]),
        array("unsigned", "pair_second", [b for _, b in sorted(pairs)]),
        array("unsigned", "pair_result", [pairs[k] for k in sorted(pairs)]),
        mapping("fold", {c: "".join(map(chr, s)) for c, s in fold}),
        mapping("multifold", dict(enumerate(multi))),
        "// clang-format on\n\n}  // namespace fasttoken::tables\n",
    ]
    path = Path(__file__).with_name("unicode_tables.cpp")
    path.write_text("".join(out), encoding="utf-8")
    print(path.name, path.stat().st_size, "bytes;", len(records), "records;", len(record_runs), "runs")


if __name__ == "__main__":
    main()
