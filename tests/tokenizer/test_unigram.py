"""Unigram files and sentencepiece's maps of characters in the native core, against HF."""

from __future__ import annotations

import base64
import json
import random
import struct
from collections.abc import Mapping
from typing import Any

import pytest

tokenizers = pytest.importorskip("tokenizers", minversion="0.23.3")

from prelude.tokenizer import Tokenizer  # noqa: E402
from prelude.tokenizer._core import CoreTokenizer  # noqa: E402

from tests.fuzz_tokenizer import RANGES, SHARDS, Pair, Strings  # noqa: E402

MARK = "\u2581"
MAP = {
    "\n": " ", "\r": " ", "\t": " ", "\x01": "", "\u00a0": " ", "\u3000": " ", "\u200b": "", "\u2026": "...",
    "\ufb01": "fi", "e\u0301": "\u00e9", "a\u0323": "\u1ea1", "\u0130": "i\u0307", "\uff21": "A", "\u00bd": "1/2",
    "\u0340": "\u0300", "\u1100\u1161": "\uac00", "\u00a9": "(c)", "\u0600": "n", "\ufdfa": "long " * 9, "A": "a",
    "\u0915": "k", "\U0001f600": ":)", "\u2581": "_",
}  # fmt: skip
PARTS = {
    "map": {"type": "Precompiled"}, "strip": {"type": "Strip", "strip_left": False, "strip_right": True},
    "spaces": {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": MARK},
    "quotes": {"type": "Replace", "pattern": {"String": "``"}, "content": '"'}, "nfkd": {"type": "NFKD"},
    "accents": {"type": "StripAccents"}, "lower": {"type": "Lowercase"}, "nfkc": {"type": "NFKC"},
    "nmt": {"type": "Nmt"},
}  # fmt: skip
NORMALIZERS = [
    "", "map", "map strip spaces", "map spaces strip", "quotes nfkd accents lower map", "nmt nfkc spaces",
    "lower map", "map map", "quotes map",
]  # fmt: skip
SPLITS = ["", "spaces", "marks", "spaces marks"]


def map_of(entries: Mapping[str, str]) -> str:
    """A map as sentencepiece lays it out; each node of the trie has a block of its own."""
    keys = {key.encode(): text.encode() for key, text in entries.items()}
    nodes: dict[bytes, int] = {b"": 1}
    for key in sorted(keys):
        for n in range(1, len(key) + 1):
            nodes.setdefault(key[:n], len(nodes) + 1)
    units, texts = [0] * (256 * (len(nodes) + 1)), b""
    units[0] = 256 << 10
    for start, block in nodes.items():
        if not start:
            continue
        at, to = nodes[start[:-1]] * 256 ^ start[-1], block * 256
        offset = at ^ to
        units[at] = start[-1] | (offset << 10 if offset < 1 << 21 else (offset >> 8) << 10 | 1 << 9)
        if start in keys:
            units[at] |= 1 << 8
            units[to] = 1 << 31 | len(texts)
            texts += keys[start] + b"\0"
    return base64.b64encode(struct.pack(f"<I{len(units)}I", 4 * len(units), *units) + texts).decode()


def normalizer(names: str, charsmap: str) -> dict[str, Any] | None:
    parts = [
        {**PARTS[name], **({"precompiled_charsmap": charsmap} if name == "map" else {})} for name in names.split()
    ]
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else {"type": "Sequence", "normalizers": parts}


def splits(names: str, scheme: str, split: bool) -> dict[str, Any] | None:
    parts: dict[str, dict[str, Any]] = {
        "spaces": {"type": "WhitespaceSplit"},
        "marks": {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": split},
    }
    found = [parts[name] for name in names.split()]
    if not found:
        return None
    return found[0] if len(found) == 1 else {"type": "Sequence", "pretokenizers": found}


def made(seed: int) -> dict[str, Any]:
    """A file of random pieces, whose scores are often equal, often in sum, and sometimes above 0."""
    rng = random.Random(seed)
    letters = "abcde ._e\u0301\u00e9\u1ea1\u0436\u4f60\u597d\u3002\U0001f600fi1(k" + MARK
    names = ["<unk>", "<s>"]
    if rng.random() < 0.5:
        names += [f"<0x{b:02X}>" for b in range(256) if rng.random() < rng.choice([1.0, 0.9])]
    names += [c for c in letters if rng.random() < 0.85]
    names += [
        ("" if rng.random() < 0.5 else MARK) + "".join(rng.choices(letters, k=rng.randint(1, 5))) for _ in range(150)
    ]
    names = list(dict.fromkeys(names))
    values = rng.choice([[-1.0, -2.0, -3.0], [-0.1, -0.2, -0.3, -0.7], [rng.uniform(-15, 0) for _ in range(400)]])
    if rng.random() < 0.2:
        values = [value + 20 for value in values]
    rng.shuffle(names)
    scheme = rng.choice(["always", "first", "never"])
    return {
        "version": "1.0",
        "added_tokens": [
            {
                "id": len(names) + i,
                "content": content,
                "special": special,
                **{name: rng.random() < 0.3 for name in ("single_word", "lstrip", "rstrip", "normalized")},
            }
            for i, (content, special) in enumerate([("<s>", True), ("<b>", False), ("x\u00e9", False)])
        ],
        "normalizer": normalizer(rng.choice(NORMALIZERS), map_of(MAP)),
        "pre_tokenizer": splits(rng.choice(SPLITS), scheme, rng.random() < 0.7),
        "decoder": {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": True},
        "post_processor": rng.choice(
            [None, {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}]
        ),
        "model": {
            "type": "Unigram",
            "unk_id": names.index("<unk>"),
            "vocab": [[name, rng.choice(values)] for name in names],
            "byte_fallback": rng.random() < 0.4,
        },
    }


def texts(rng: random.Random, pair: Pair) -> list[str]:
    maker = iter(Strings(rng, pair.tokens, pair.added, []))
    keys = [*MAP, *"abcde .", MARK, "\u0301", "\u0323", "\u200d", "\u093e", "\r\n"]
    mapped = ["".join(rng.choices(keys, k=rng.randint(1, 30))) for _ in range(40)]
    return [*mapped, *(next(maker) for _ in range(40))]


@pytest.mark.feature("J1")
@pytest.mark.feature("J7")
@pytest.mark.parametrize("part", range(8))
def test_random_files_equal_hf(part: int) -> None:
    for seed in range(part * 20, part * 20 + 20):
        rng = random.Random(seed)
        pair = Pair(f"file {seed}", json.dumps(made(seed)).encode())
        for text in texts(rng, pair):
            assert pair.differences(text, rng) == [], (seed, text)


STRETCHES = [
    "ab", "c", "d.e", "\u4f60\u597d\u3002", "e\u0301d", "\u0301a", "a\u0600", "\u00a0", "\u00a0b", "a\u200b",
    "\u200b", MARK, f"a{MARK}b", f"c{MARK}", "\r", "abcde" * 7, "\U0001f600", "``d", "\u3000c\u3000", "\ufdfa",
    "\u2026", "A", "\u0436",
]  # fmt: skip
BLANKS = [" ", " ", "\n", "  ", " \n", "\r\n", "\t", "\x0b", ""]


@pytest.mark.feature("J1")
@pytest.mark.parametrize("names", NORMALIZERS)
@pytest.mark.parametrize("cuts", ["marks", "spaces marks"])
def test_stretches_between_blanks_equal_hf(names: str, cuts: str) -> None:
    """Blanks first, last and together, and stretches whose ends become blanks or nothing, or are in a cluster with a
    blank. Each text twice: its stretches are then known."""
    rng = random.Random(f"{names}, {cuts}")
    file = {**made(3), "added_tokens": [], "normalizer": normalizer(names, map_of(MAP))}
    pair = Pair(names, json.dumps({**file, "pre_tokenizer": splits(cuts, "always", True)}).encode())
    for _ in range(60):
        parts = [rng.choice(kind) for _ in range(rng.randint(1, 9)) for kind in (BLANKS, STRETCHES)]
        text = "".join(parts) + rng.choice(BLANKS)
        for _ in range(2):
            assert pair.differences(text, rng) == [], text


@pytest.mark.parametrize("fallback", [True, False])
def test_long_pieces_equal_hf(fallback: bool) -> None:
    """Pieces longer than the part that is settled at once, with tokens that overlap at every place."""
    rng = random.Random(5)
    vocab = [["<unk>", 0.0], ["a", -9.0], ["aaa", -3.0], ["aaaaa", -5.0], ["b", -1.0], ["ab", -1.5], ["<0xC3>", -2.0]]
    file = {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": fallback},
    }
    pair = Pair("long", json.dumps(file).encode())
    for text in (
        "a" * 3000,
        "b" * 700 + "a" * 1200 + "x" * 900 + "ab" * 300,
        "x" * 2000,
        "\u00c3" * 600 + "a",
        *("".join(rng.choices(["a", "b", "ab", "x", "\u00e9"], k=2500)) for _ in range(20)),
    ):
        assert pair.differences(text, rng) == []


def trained(fallback: bool) -> Any:
    """Pieces and scores as a training gives them."""
    hf = tokenizers.Tokenizer(tokenizers.models.Unigram())
    hf.normalizer = tokenizers.normalizers.NFKC()
    hf.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    hf.decoder = tokenizers.decoders.Metaspace()
    rng = random.Random(2)
    words = [
        "harbour", "quay", "boats", "lay", "quiet", "the", "Straße", "naïve", "你好", "世界", "Привет", "12", "...",
    ]  # fmt: skip
    corpus = [" ".join(rng.choices(words, k=12)) for _ in range(400)]
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=120, special_tokens=["<unk>", "<s>"], unk_token="<unk>", show_progress=False
    )
    hf.train_from_iterator(corpus, trainer)
    state = json.loads(hf.to_str())
    if fallback:
        state["model"]["byte_fallback"] = True
        state["model"]["vocab"] += [[f"<0x{b:02X}>", 0.0] for b in range(256)]
    return state


@pytest.mark.parametrize("fallback", [True, False])
def test_a_trained_file_equals_hf(fallback: bool, assert_same: Any) -> None:
    text = json.dumps(trained(fallback))
    pair, rng = Pair("trained", text.encode()), random.Random(8)
    for _ in range(4):
        for one in texts(rng, pair):
            assert pair.differences(one, rng) == [], one
    ours, theirs = Tokenizer.from_str(text), tokenizers.Tokenizer.from_str(text)
    assert ours.backend == "native"
    for one in ("the quay lay quiet", "x你好y Straße", ""):
        assert_same(ours.encode(one), theirs.encode(one), one)
        assert_same(ours.encode(one, "q z"), theirs.encode(one, "q z"), one)
    assert json.loads(ours.to_str())["model"] == json.loads(theirs.to_str())["model"]
    assert ours.get_vocab() == theirs.get_vocab()


def test_unknown_tokens_have_their_own_texts() -> None:
    text = json.dumps(trained(False))
    ours, theirs = Tokenizer.from_str(text), tokenizers.Tokenizer.from_str(text)
    for given in ("the ωω quay", ["ω", "the"], "ω"):
        words = not isinstance(given, str)
        a, b = ours.encode(given, is_pretokenized=words), theirs.encode(given, is_pretokenized=words)
        assert a.tokens == b.tokens and "<unk>" not in a.tokens and any("ω" in token for token in a.tokens)
        assert a.ids == b.ids and a.offsets == b.offsets
    many = ["the quay", "ω", "<unk>", "quiet ω."]
    assert [e.tokens for e in ours.encode_batch(many)] == [e.tokens for e in theirs.encode_batch(many)]


@pytest.mark.parametrize("name", ["", "<unk>"])
def test_the_unknown_token_may_have_no_text(name: str) -> None:
    vocab = [[name, 0.0], ["a", -1.0], ["b", -1.5]]
    given = {"model": {"type": "Unigram", "unk_id": 0, "vocab": vocab}, "version": "1.0", "added_tokens": []}
    text = json.dumps(given)
    ours, theirs = Tokenizer.from_str(text), tokenizers.Tokenizer.from_str(text)
    assert ours.backend == "native"
    for one in ("xay", "ωω", "ab", "é a"):
        a, b = ours.encode(one), theirs.encode(one)
        assert (a.ids, a.tokens, a.offsets) == (b.ids, b.tokens, b.offsets)


@pytest.mark.fault(25)
def test_untrusted_text_gives_no_control_token() -> None:
    """The vocabulary has the control token's text with the best score, and the model alone would take it."""
    ours = Tokenizer.from_str(json.dumps(trained(False)))
    control = ours.token_to_id("<s>")
    assert control in ours.encode("a<s>b").ids and control in ours.encode_array("a<s>b").tolist()
    for text in ("<s>", "a<s>b", "the <s><s> quay"):
        assert control not in ours.encode_array(text, parse_special=False).tolist()


def test_scores_are_read_as_hf_reads_them() -> None:
    """serde_json's doubles are not always the nearest ones, and sums of them decide."""
    rng = random.Random(1)
    numbers = ["-2.0122928619384766", "-13.999999046325684", "1e2", "-0", "0.1", "1.7976931348623157e308", "5e-324"]
    numbers += [f"-{rng.uniform(0, 20)!r}" for _ in range(2000)]
    numbers += [f"-{rng.randrange(10**18)}.{rng.randrange(10**18)}e{rng.randrange(-340, 280)}" for _ in range(300)]
    pieces = ",".join(f'["{chr(0x4E00 + i)}",{number}]' for i, number in enumerate(numbers))
    file = '{"version":"1.0","added_tokens":[],"model":{"type":"Unigram","unk_id":0,"vocab":[' + pieces + "]}}"
    ours = CoreTokenizer.from_json(file.encode()).model()
    theirs = json.loads(tokenizers.Tokenizer.from_str(file).to_str())["model"]
    assert json.dumps(ours) == json.dumps(theirs)


def test_maps_normalize_as_hf_does() -> None:
    """Each code point alone, after and before a letter and a mark: where clusters end decides."""
    charsmap = map_of({**MAP, "a": "x", "\u0301": "y"})
    file = json.dumps(
        {
            "version": "1.0",
            "added_tokens": [],
            "normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap},
            "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0]]},
        }
    )
    ours, theirs = CoreTokenizer.from_json(file.encode()), tokenizers.Tokenizer.from_str(file).normalizer
    codes = [c for low, high in RANGES for c in range(low, min(high, low + 400) + 1)]
    for before, after in (("", ""), ("a", "\u0301"), ("\u0301", "a"), ("a\u200d", "\u200d\u00a9\u0301")):
        for c in codes:
            text = before + chr(c) + after
            assert ours.normalize(text) == theirs.normalize_str(text), text.encode()
    rng = random.Random(3)
    keys = [*MAP, *SHARDS, "\u0301", "\u0323", "\u200d", "\u00a9", "\u094d", "\u0915", "\u1161", "\u11a8", "\u0903"]
    for _ in range(4000):
        text = "".join(rng.choices(keys, k=rng.randint(1, 12)))
        assert ours.normalize(text) == theirs.normalize_str(text), text.encode()


def test_tables_are_kept_and_read(tmp_path: Any) -> None:
    state = trained(True)
    state["model"]["vocab"] += [[f"filling {i} of the file" * 4, -20.0] for i in range(9000)]
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(state), encoding="utf-8")
    first = Tokenizer.from_file(file, cache=tmp_path / "kept")
    again = Tokenizer.from_file(file, cache=tmp_path / "kept")
    assert list((tmp_path / "kept").iterdir())
    for text in ("the quay lay quiet ω", "filling 12 of the file" * 4, "你好x世界"):
        assert first.encode(text).ids == again.encode(text).ids
        assert first.encode(text).tokens == again.encode(text).tokens
    assert first.to_str() == again.to_str()
