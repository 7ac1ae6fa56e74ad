"""The shared real tokenizer files through the whole API, HF's beside it."""

from __future__ import annotations

import gzip
import json
import random
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from prelude.tokenizer import DecodeStream, Tokenizer
from prelude.tokenizer._core import CoreTokenizer

from tests.fuzz_tokenizer import Pair, Strings
from tests.tokenizer.conftest import REAL as FAMILIES
from tests.tokenizer.conftest import needs_shared
from tests.tokenizer.shared import golden, tokenizer_json


@pytest.mark.feature("J1")
def test_everything_equals_hf(family: Any, golden_lines: list[str], assert_same: Any) -> None:
    name, ours, theirs = family
    lines = golden_lines[:: 97 if name == "t5" else 31]
    for i, text in enumerate(lines):
        pair = lines[-i]
        assert_same(ours.encode(text), theirs.encode(text), text)
        assert_same(ours.encode(text, pair), theirs.encode(text, pair), (text, pair))
        ids = ours.encode(text).ids
        for skip in (True, False):
            assert ours.decode(ids, skip) == theirs.decode(ids, skip)
        words = text.split()
        assert_same(ours.encode(words, is_pretokenized=True), theirs.encode(words, is_pretokenized=True), words)
    for tokenizer in (ours, theirs):
        tokenizer.enable_truncation(9, stride=2)
        tokenizer.enable_padding(pad_to_multiple_of=4)
    for a, b in zip(ours.encode_batch(lines), theirs.encode_batch(lines), strict=True):
        assert_same(a, b, "a batch, truncated and padded")


def test_streams_equal_hf(family: Any, golden_lines: list[str]) -> None:
    _, ours, theirs = family
    for text in golden_lines[5::211]:
        mine, other = DecodeStream(), tokenizers.decoders.DecodeStream()
        ids = theirs.encode(text).ids
        assert [mine.step(ours, i) for i in ids] == [other.step(theirs, i) for i in ids]


@pytest.mark.feature("J7")
def test_all_are_native(family: Any) -> None:
    _, ours, _ = family
    pytest.importorskip("prelude.tokenizer._core")
    assert ours.backend == "native"


@pytest.mark.feature("J10")
def test_undefined_ids_decode_to_nothing(shared: Path) -> None:
    ours = Tokenizer.from_file(shared / "tokenizers" / "qwen3" / "tokenizer.json")
    assert ours.get_vocab_size() == 151_669
    assert (ours.eos_token_id, ours.pad_token_id, ours.bos_token_id) == (151_645, 151_643, None)
    for id in (151_669, 151_935, 151_936, 2**31 - 1):
        assert ours.id_to_token(id) is None
        assert ours.decode([9707, id, 0]) == ours.decode([9707, 0])
        assert ours.token_bytes(id) == b""


@pytest.mark.parametrize("name", ["cl100k_base", "p50k_base", "r50k_base"])
def test_rank_files(shared: Path, golden_lines: list[str], name: str) -> None:
    old = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
    new = (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|"
        r"\s*[\r\n]|\s+(?!\S)|\s"
    )
    pattern = new if name == "cl100k_base" else old
    path = shared / "tiktoken" / f"{name}.tiktoken"
    ours = Tokenizer.from_tiktoken(path, pattern, {"<|endoftext|>": 100_257 if name == "cl100k_base" else 50_256})
    for text in golden_lines[::29]:
        ids = ours.encode_array(text, parse_special=False)
        assert b"".join(map(ours.token_bytes, ids.tolist())).decode() == text
    if name == "r50k_base":  # which is GPT-2's vocabulary
        lines = (shared / "tokenizers" / "gpt2" / "golden.jsonl.gz").read_bytes()
        for line in gzip.decompress(lines).splitlines()[:500]:
            golden = json.loads(line)
            text = golden.get("t") or golden_lines[golden["k"]]
            assert ours.encode_array(text).tolist() == golden["ids"], text


# ---- recorded results, and fixed strings, through the core alone
def test_golden(family: Any, golden_lines: list[str]) -> None:
    name, ours, _ = family
    core = ours._core
    assert isinstance(core, CoreTokenizer)
    wrong: dict[str, list] = {"ids": [], "offsets": [], "decode": [], "skip": []}
    lines = 0
    for line in golden(name):
        lines += 1
        text = line["t"] if "t" in line else golden_lines[line["k"]]
        ids, offsets, _ = core.encode_full(text)
        if ids.tolist() != line["ids"] or core.encode_array(text).tolist() != line["ids"]:
            wrong["ids"].append(text)
            continue
        if not np.array_equal(offsets.reshape(-1), np.array(line["off"], np.int32)):
            wrong["offsets"].append((text, offsets.reshape(-1).tolist(), line["off"]))
        decoded = core.decode(ids, False)
        expected = line.get("dec", text)
        if decoded != expected:
            wrong["decode"].append((text, decoded, expected))
        if core.decode(ids, True) != line.get("dec_skip", expected):
            wrong["skip"].append(text)
    assert lines > 2000
    assert {k: (len(v), v[:2]) for k, v in wrong.items() if v} == {}


LLAMA_CPP = {
    "bert-bge": "bert-base-uncased", "command-r": "command-r", "deepseek-r1-qwen": "qwen3", "gpt-2": "gpt2",
    "llama-bpe": "llama-3.2", "llama-spm": "llama2", "mpt": "gpt-neox", "phi-3": "phi-3", "qwen2": "qwen3",
    "roberta-bpe": "roberta",
}  # fmt: skip


@needs_shared
@pytest.mark.parametrize("name", LLAMA_CPP)
def test_llama_cpp_vectors(name: str, shared: Path) -> None:
    folder = shared / "conformance" / "llama.cpp"
    texts = (folder / "inputs.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    expected = [
        [int(i) for i in row.split()] for row in (folder / f"{name}.out").read_text(encoding="utf-8").split("\n")
    ]
    core = CoreTokenizer.from_json(tokenizer_json(LLAMA_CPP[name]))
    got = [core.encode_array(text).tolist() for text in texts]
    assert got == expected[: len(texts)]


CASES = 10_000


def cases(pair: Pair) -> list[str]:
    found: dict[str, None] = {}
    maker = iter(Strings(random.Random(f"cases of {pair.name}"), pair.tokens, pair.added, []))
    while len(found) < CASES:
        found[next(maker)] = None
    return list(found)


@pytest.mark.long
@pytest.mark.feature("J1")
@needs_shared
@pytest.mark.parametrize("name", FAMILIES)
def test_ten_thousand_cases(name: str) -> None:
    pair = Pair(name, tokenizer_json(name))
    texts = cases(pair)
    encodings = pair.hf.encode_batch(texts, add_special_tokens=False)
    rows = [e.ids for e in encodings]
    checked = 0
    for text, theirs, encoding in zip(texts, rows, encodings, strict=True):
        ids, offsets, words = pair.core.encode_full(text)
        assert pair.core.encode_array(text).tolist() == theirs and ids.tolist() == theirs, text
        spans = np.fromiter(chain.from_iterable(encoding.offsets), np.int32, 2 * len(theirs))
        assert np.array_equal(offsets.reshape(-1), spans), text
        assert words.tolist() == encoding.word_ids, text
        checked += 1
    assert checked >= 10_000
    for skip in (False, True):
        ours, theirs = pair.core.decode_batch(rows, skip), pair.hf.decode_batch(rows, skip_special_tokens=skip)
        wrong = [(t, a, b) for t, a, b in zip(texts, ours, theirs, strict=True) if a != b]
        assert wrong == []
