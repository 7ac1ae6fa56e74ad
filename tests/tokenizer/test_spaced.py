"""Small files that write U+2581 for spaces and have no pattern, as those of Gemma, Yi and Llama 2, against HF."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

tokenizers = pytest.importorskip("tokenizers", minversion="0.23.3")

from prelude.tokenizer._core import CoreTokenizer  # noqa: E402

from tests.fuzz_tokenizer import Pair  # noqa: E402

MARK = "\u2581"
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
WAYS: dict[str, dict[str, Any]] = {
    "gemma": {
        "normalizer": REPLACE,
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        },
    },
    "yi": {"normalizer": {"type": "Sequence", "normalizers": [REPLACE]}},
    "llama": {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": MARK}, REPLACE]}},
    **{
        f"metaspace {scheme} {split}": {
            "pre_tokenizer": {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": split}
        }
        for scheme in ("always", "first", "never")
        for split in (True, False)
    },
}
CHARACTERS = "abcde.<>/(1" + MARK + "\u00e9\u0436\u4f60\u597d\u3002\U0001f600\n\t"
ADDED = [("\n", {}), ("\n\n", {}), ("<b>", {}), (MARK * 2, {}), ("<s>", {"special": True}), ("\t", {})]
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def made(seed: int, way: str) -> dict[str, Any]:
    rng = random.Random(seed)
    fallback = rng.choice(["all", "all", "some", "none"])
    vocab = ["<unk>", "<s>"]
    if fallback != "none":
        vocab += [f"<0x{b:02X}>" for b in range(256) if fallback == "all" or b % 5]
    parts = [c for c in CHARACTERS if rng.random() < 0.85]
    merges: list[list[str]] = []
    known = set(vocab) | set(parts)
    crossing = rng.random() < 0.3  # merges that join a mark to the symbol before it
    for _ in range(2000):
        if len(merges) == 120:
            break
        a, b = rng.choice(parts), rng.choice(parts)
        if MARK in b and set(a + b) != {MARK} and not (crossing and rng.random() < 0.1):
            continue
        if a[-1] in ".(" and b[0] in "ab\u4f60":
            continue  # some pairs join nowhere
        if a + b not in known and len(a + b) < 12:
            known.add(a + b)
            parts.append(a + b)
            merges.append([a, b])
    if fallback == "all" and rng.random() < 0.15:  # merges of tokens for unknown characters
        merges.append(rng.choice([["<0xF0>", "<0x9F>"], ["<unk>", "a"], ["a", "<0x0A>"]]))
        parts.append("".join(merges[-1]))
    vocab += parts
    added = []
    for content, flags in rng.sample(ADDED, rng.randint(0, len(ADDED))):
        if rng.random() < 0.2:
            flags = {**flags, rng.choice(FLAGS[:3]): True}
        if content not in vocab:
            vocab.append(content)
        added.append({"id": vocab.index(content), "content": content} | {f: bool(flags.get(f)) for f in FLAGS})
    return {
        "version": "1.0",
        "added_tokens": sorted(added, key=lambda token: int(token["id"])),
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        **WAYS[way],
        "model": {
            "type": "BPE", "unk_token": rng.choice(["<unk>", "<unk>", None]), "fuse_unk": rng.random() < 0.7,
            "byte_fallback": fallback != "none", "vocab": {token: i for i, token in enumerate(vocab)},
            "merges": merges,
        },
    }  # fmt: skip


def text_of(rng: random.Random) -> str:
    shards = [*CHARACTERS.replace(MARK, " "), " ", "  ", "> </", "<b>", "<s>", "\n\n\n", "abc", " de", "\u0628\u0623"]
    if rng.random() < 0.1:
        shards.append(MARK)
    return "".join(rng.choice(shards) * rng.choice([1, 1, 1, 1, 2, 70]) for _ in range(rng.randint(0, 60)))


@pytest.mark.long
@pytest.mark.parametrize("isa", ["scalar", "avx2", "avx512"])
@pytest.mark.parametrize("way", WAYS)
def test_made_up_files_equal_hf(way: str, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRELUDE_TOKENIZER_ISA", isa)
    for seed in range(8):
        pair = Pair(way, json.dumps(made(seed, way)).encode())
        rng = random.Random(seed)
        for _ in range(30):
            text = text_of(rng)
            wrong = pair.differences(text, rng)
            assert not wrong, (way, seed, wrong, text)


def test_a_merge_of_bytes_leaves_nothing_to_cut() -> None:
    file = made(1, "gemma")
    file["model"]["byte_fallback"] = True
    vocab = file["model"]["vocab"]
    for token in [*(f"<0x{b:02X}>" for b in range(256)), "<0xF0><0x9F>"]:
        vocab.setdefault(token, len(vocab))
    file["model"]["merges"] = [["<0xF0>", "<0x9F>"]]
    core = CoreTokenizer.from_json(json.dumps(file).encode())
    hf = tokenizers.Tokenizer.from_str(json.dumps(file))
    text = "a\U0001f680\U0001f681 b"
    assert core.encode_array(text).tolist() == hf.encode(text).ids
    assert vocab["<0xF0><0x9F>"] in core.encode_array(text).tolist()


def test_unknown_characters_that_become_nothing_leave_nothing_to_cut() -> None:
    """Marks on both sides of such a character are merged."""
    file = {**made(1, "metaspace never False"), "added_tokens": []}
    vocab = {MARK: 0, "a": 1, MARK * 2: 2}
    model = {"type": "BPE", "unk_token": None, "vocab": vocab, "merges": [[MARK, MARK]]}
    data = json.dumps({**file, "model": model})
    pair = Pair("vanishing", data.encode())
    for text in ("o \n }", "a o a", "x  y z", "a\na"):
        assert not pair.differences(text, random.Random(0)), text
    assert tokenizers.Tokenizer.from_str(data).encode("o \n }").ids == [2]
