"""Random tokenizer files: valid ones of every component, and real or made ones with changes at random places."""

from __future__ import annotations

import base64
import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

NUMBERS = [0, 1, 2, 3, 255, 256, 257, 1000, 4096, 60_000, 1 << 20, (1 << 24) + 5, (1 << 31) - 1, 1 << 31, (1 << 32) - 1,  # noqa: E501
           1 << 32, (1 << 63) - 1, 1 << 64, 1 << 70, -1, 0.5, 1e300]  # fmt: skip
PATTERNS = [
    r"\p{L}+", r"\s+(?!\S)|\s+", r"(\w)\1", r"\X", "(", "[", r"\x{110000}", "(" * 50 + "a" + ")" * 50, r"(?i)café",
    r"a*", r"(a|aa)+$", r"(?=a*a*b)a", "((a{9}){9}){9}", r"\p{Nope}", "(?<n>a)", r"(?<=a|bc)d", r"^$", r"\b", r"\Z",
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", "[^\\r\\n\\p{L}]?", "",
    "(?:)", "(?>a+)b", "a{1000}", "a{1,1001}",
    r"(a)\1a{100000000}", r"(a)\1\w{999}", r"(a)\1(\b(b{999}){999}){9}", "[[a-z]&&[^b]]", "\\", "\ud7ff",
]  # fmt: skip
STRINGS = [
    "", "a", "ab", " ", "▁", "##", "</w>", "<unk>", "X", "é", "e\u0301", "\0", "a" * 300, "\U0001f600", "Ġ", "<0x41>",
]  # fmt: skip
TEXTS = [
    "", "a", "ab ba aab", " lead and trail  ", "Hello, world! 123 don't", "é e\u0301 ﬁ Ａ \u0130", "\0\x01\ufffd\uffff",  # noqa: E501
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", "你好 世界 \U0001f600\U0001f468\u200d\U0001f469", "X<unk>ab</w>##a▁", "\n\n \t\r\n",  # noqa: E501
    "a b " * 200,
]  # fmt: skip


# ------------------------------------------------------------------ files
def made_file(rng: random.Random) -> dict[str, Any]:
    """A file of small parts that HF takes, most of the time."""
    model = rng.choice([bpe, wordpiece, wordlevel, unigram])(rng)
    names = [t if isinstance(t, str) else t[0] for t in model["vocab"]]
    return {
        "version": "1.0",
        "truncation": rng.choice([None, None, truncation(rng)]),
        "padding": rng.choice([None, None, padding(rng)]),
        "added_tokens": [added(rng, names, len(names) + i) for i in range(rng.randrange(5))],
        "normalizer": nested(rng, normalizer, "normalizers"),
        "pre_tokenizer": nested(rng, pre_tokenizer, "pretokenizers"),
        "post_processor": nested(rng, post_processor, "processors"),
        "decoder": nested(rng, decoder, "decoders"),
        "model": model,
    }


def words(rng: random.Random) -> list[str]:
    letters = ["a", "b", "c", "Ġ", "é", "▁", " ", "1", "ab", "ba", "aa", "Ġa", "▁a"]
    return list(dict.fromkeys(letters + ["".join(rng.choices("abcĠ▁é", k=rng.randint(2, 5))) for _ in range(8)]))


def bpe(rng: random.Random) -> dict[str, Any]:
    vocab = ["<unk>", *words(rng)]
    if rng.random() < 0.5:
        vocab = list(dict.fromkeys([*BYTES, *vocab]))
    if rng.random() < 0.2:
        vocab += [f"<0x{b:02X}>" for b in range(256)]
    pairs = [(a, t[len(a) :]) for t in vocab for a in vocab if t != a and t.startswith(a) and t[len(a) :] in vocab]
    rng.shuffle(pairs)
    return {
        "type": "BPE", "dropout": rng.choice([None, None, 0.0]), "unk_token": rng.choice([None, "<unk>", "<unk>"]),
        "continuing_subword_prefix": rng.choice([None, None, "", "##"]),
        "end_of_word_suffix": rng.choice([None, None, "", "</w>"]), "fuse_unk": rng.random() < 0.5,
        "byte_fallback": rng.random() < 0.3, "ignore_merges": rng.random() < 0.3,
        "vocab": {t: i for i, t in enumerate(vocab)},
        "merges": [list(p) for p in pairs[:30] if " " not in p[0] + p[1]],
    }  # fmt: skip


def wordpiece(rng: random.Random) -> dict[str, Any]:
    vocab = ["[UNK]", *words(rng), *("##" + w for w in words(rng))]
    return {
        "type": "WordPiece",
        "unk_token": rng.choice(["[UNK]", "[UNK]", "missing"]),
        "continuing_subword_prefix": rng.choice(["##", "##", ""]),
        "max_input_chars_per_word": rng.choice([100, 3, 1]),
        "vocab": {t: i for i, t in enumerate(vocab)},
    }


def wordlevel(rng: random.Random) -> dict[str, Any]:
    vocab = ["<unk>", *words(rng), "Hello", "and"]
    return {
        "type": "WordLevel",
        "vocab": {t: i for i, t in enumerate(vocab)},
        "unk_token": rng.choice(["<unk>", "no"]),
    }


def unigram(rng: random.Random) -> dict[str, Any]:
    vocab = [[t, -float(i % 7)] for i, t in enumerate(["<unk>", *words(rng)])]
    return {
        "type": "Unigram",
        "unk_id": rng.choice([0, 0, None]),
        "vocab": vocab,
        "byte_fallback": rng.random() < 0.3,
    }


def pattern(rng: random.Random) -> dict[str, str]:
    return {"Regex": rng.choice(PATTERNS)} if rng.random() < 0.6 else {"String": rng.choice(STRINGS)}


def flag(rng: random.Random) -> bool:
    return rng.random() < 0.5


def charsmap(rng: random.Random) -> str:
    trie = rng.randbytes(4 * rng.randrange(1, 8))
    size = rng.choice([len(trie), len(trie), 0, 1 << 31, (1 << 32) - 4, 3])
    return base64.b64encode(
        size.to_bytes(4, "little") + trie + rng.choice([b"", b"ab\0", b"\xff\0", b"a" * 99])
    ).decode()


def normalizer(rng: random.Random, pattern: Any = pattern, charsmaps: bool = True) -> dict[str, Any]:
    return rng.choice(
        [
            lambda: {
                "type": rng.choice(["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel"])
            },
            lambda: {"type": "Strip", "strip_left": flag(rng), "strip_right": flag(rng)},
            lambda: {"type": "Replace", "pattern": pattern(rng), "content": rng.choice(STRINGS)},
            lambda: {"type": "Prepend", "prepend": rng.choice(STRINGS)},
            *([lambda: {"type": "Precompiled", "precompiled_charsmap": charsmap(rng)}] if charsmaps else []),
            lambda: {
                "type": "BertNormalizer", "clean_text": flag(rng), "handle_chinese_chars": flag(rng),
                "strip_accents": rng.choice([None, True, False]), "lowercase": flag(rng),
            },
        ]
    )()  # fmt: skip


BEHAVIORS = ["Removed", "Isolated", "Contiguous", "MergedWithPrevious", "MergedWithNext"]


def metaspace(rng: random.Random) -> dict[str, Any]:
    scheme = rng.choice(["always", "first", "never"])
    return {
        "type": "Metaspace",
        "replacement": rng.choice(["▁", "a", "_"]),
        "prepend_scheme": scheme,
        "split": flag(rng),
    }


def byte_level(rng: random.Random) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": flag(rng), "trim_offsets": flag(rng), "use_regex": flag(rng)}


def pre_tokenizer(rng: random.Random, pattern: Any = pattern) -> dict[str, Any]:
    return rng.choice(
        [
            lambda: {"type": rng.choice(["Whitespace", "WhitespaceSplit", "BertPreTokenizer", "UnicodeScripts"])},
            lambda: byte_level(rng),
            lambda: metaspace(rng),
            lambda: {"type": "Digits", "individual_digits": flag(rng)},
            lambda: {"type": "Punctuation", "behavior": rng.choice(BEHAVIORS)},
            lambda: {"type": "CharDelimiterSplit", "delimiter": rng.choice("a é")},
            lambda: {"type": "FixedLength", "length": rng.choice([1, 3, 100])},
            lambda: {
                "type": "Split",
                "pattern": pattern(rng),
                "behavior": rng.choice(BEHAVIORS),
                "invert": flag(rng),
            },
        ]
    )()


def post_processor(rng: random.Random) -> dict[str, Any]:
    def token() -> list[Any]:
        return [rng.choice(["X", "[SEP]"]), rng.choice([0, 1, 2, 5])]

    def piece() -> dict[str, Any]:
        if flag(rng):
            return {"Sequence": {"id": rng.choice("AAB"), "type_id": rng.choice([0, 1])}}
        return {"SpecialToken": {"id": rng.choice(["X", "X", "Y"]), "type_id": rng.choice([0, 1])}}

    return rng.choice(
        [
            lambda: byte_level(rng),
            lambda: {"type": "BertProcessing", "sep": token(), "cls": token()},
            lambda: {
                "type": "RobertaProcessing", "sep": token(), "cls": token(), "trim_offsets": flag(rng),
                "add_prefix_space": flag(rng),
            },
            lambda: {
                "type": "TemplateProcessing",
                "single": [piece() for _ in range(rng.randint(1, 4))],
                "pair": [piece() for _ in range(rng.randint(1, 5))],
                "special_tokens": {n: {"id": n, "ids": [1, 2][: rng.randint(0, 2)], "tokens": [n]} for n in "XY"},
            },
        ]
    )()  # fmt: skip


def decoder(rng: random.Random, pattern: Any = pattern) -> dict[str, Any]:
    return rng.choice(
        [
            lambda: byte_level(rng),
            lambda: {"type": rng.choice(["ByteFallback", "Fuse"])},
            lambda: metaspace(rng),
            lambda: {
                "type": "Strip",
                "content": rng.choice("a▁ "),
                "start": rng.choice([0, 1]),
                "stop": rng.choice([0, 1]),
            },
            lambda: {"type": "Replace", "pattern": pattern(rng), "content": rng.choice(STRINGS)},
            lambda: {"type": "WordPiece", "prefix": rng.choice(["##", ""]), "cleanup": flag(rng)},
            lambda: {"type": "BPEDecoder", "suffix": rng.choice(["</w>", "a"])},
            lambda: {"type": "CTC", "pad_token": "a", "word_delimiter_token": "b", "cleanup": flag(rng)},
        ]
    )()


def nested(rng: random.Random, make: Callable[[random.Random], Any], inner: str) -> Any:
    kind = rng.random()
    if kind < 0.3:
        return None
    if kind < 0.7:
        return make(rng)
    return {"type": "Sequence", inner: [make(rng) for _ in range(rng.randint(0, 4))]}


def added(rng: random.Random, names: list[str], id: int) -> dict[str, Any]:
    flags = {name: rng.random() < 0.3 for name in ("single_word", "lstrip", "rstrip", "normalized", "special")}
    return {"id": id, "content": rng.choice([*STRINGS, *names[:5]]), **flags}


def truncation(rng: random.Random) -> dict[str, Any]:
    strategy = rng.choice(["LongestFirst", "OnlyFirst", "OnlySecond"])
    length = rng.choice([1, 5, 100])
    return {"direction": rng.choice(["Left", "Right"]), "max_length": length, "strategy": strategy, "stride": 0}


def padding(rng: random.Random) -> dict[str, Any]:
    return {
        "strategy": rng.choice(["BatchLongest", {"Fixed": 8}]), "direction": rng.choice(["Left", "Right"]),
        "pad_to_multiple_of": rng.choice([None, 0, 8]), "pad_id": 1, "pad_type_id": 0, "pad_token": "[PAD]",
    }  # fmt: skip


BYTES = [chr(b) for b in (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x144))]


# ------------------------------------------------------------------ changes
def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a value of the file stands; of a long list or object some of it."""
    items = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    for key, inner in items if len(items) < 40 else [*items[:15], *items[-15:]]:
        yield (*path, key)
        yield from places(inner, (*path, key))


def changed(rng: random.Random, whole: dict[str, Any]) -> None:
    """One change, in place."""
    where = rng.choice(list(places(whole)))
    owner: Any = whole
    for key in where[:-1]:
        owner = owner[key]
    key, value = where[-1], owner[where[-1]]
    kind = rng.random()
    if isinstance(value, (int, float)) and not isinstance(value, bool) and kind < 0.8:
        owner[key] = rng.choice(NUMBERS)
    elif isinstance(value, str) and kind < 0.6:
        owner[key] = rng.choice([*STRINGS, *PATTERNS])
    elif isinstance(value, bool) and kind < 0.7:
        owner[key] = not value
    elif isinstance(value, list) and value and kind < 0.6:
        rng.choice(
            [
                lambda: value.append(copy.deepcopy(rng.choice(value))),
                lambda: value.pop(rng.randrange(len(value))),
                lambda: rng.shuffle(value),
                lambda: value.extend(copy.deepcopy(value) * rng.choice([1, 30])) if len(value) < 9 else None,
            ]
        )()
    elif isinstance(value, dict) and value and kind < 0.6:
        one = rng.choice(list(value))
        if flag(rng):
            del value[one]
        else:
            value[rng.choice(STRINGS)] = copy.deepcopy(value[one])
    elif kind < 0.8:
        owner[key] = rng.choice(
            [None, True, [], {}, "", 0, [value], {"type": "Sequence"}, copy.deepcopy(whole.get(str(key)))]
        )
    else:
        for _ in range(rng.choice([3, 140])):
            owner[key] = {"type": "Sequence", rng.choice(INNER): [owner[key]]}


INNER = ["normalizers", "pretokenizers", "processors", "decoders"]


def targeted(rng: random.Random, whole: dict[str, Any]) -> None:
    """A change of a number that becomes an index or a size, in place."""
    vocab = whole["model"].get("vocab")
    if isinstance(vocab, dict) and vocab and flag(rng):
        some = rng.sample(list(vocab), min(len(vocab), 2))
        vocab[some[0]] = rng.choice([*NUMBERS, vocab[some[-1]], len(vocab) + rng.choice([0, 1, 5000])])
    elif whole.get("added_tokens") and flag(rng):
        whole["added_tokens"][0]["id"] = rng.choice(NUMBERS)
    else:
        id = rng.choice(NUMBERS)
        whole["post_processor"] = {"type": "BertProcessing", "sep": ["X", id], "cls": ["X", rng.choice([0, id])]}


def real_files() -> list[dict[str, Any]]:
    """The reference files that are not too long to be changed and loaded many times."""
    from tests.tokenizer.shared import shared

    root = shared()
    found = sorted((root / "tokenizers").glob("*/tokenizer.json")) if root else []
    return [json.loads(p.read_bytes()) for p in found if p.stat().st_size < 2_600_000][:4]


def files(seed: int, real: list[dict[str, Any]], count: int) -> Iterator[bytes]:
    rng = random.Random(seed)
    for n in range(count):
        whole = copy.deepcopy(rng.choice(real)) if real and n % 25 == 0 else made_file(rng)
        for _ in range(rng.choice([0, 1, 1, 2, 4])):
            change = targeted if rng.random() < 0.3 else changed
            try:
                change(rng, whole)
            except (TypeError, AttributeError, KeyError, IndexError, RecursionError):
                continue  # an earlier change removed, or nested too deeply, the value of this one
        try:
            data = json.dumps(whole).encode("utf-8", "surrogatepass")
        except RecursionError:
            continue
        yield data[: rng.randrange(len(data))] if rng.random() < 0.01 else data
