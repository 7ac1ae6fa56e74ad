"""The shared real tokenizer files through the whole API, HF's beside it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from prelude.tokenizer import DecodeStream, Tokenizer

from tests.tokenizer.shared import families

FAMILIES = families()


@pytest.fixture(scope="module", params=FAMILIES or [pytest.param("", marks=pytest.mark.skip("no shared files"))])
def family(request: pytest.FixtureRequest, json_of: Any) -> tuple[str, Tokenizer, Any]:
    text = json_of(request.param)
    ours, theirs = Tokenizer.from_str(text), tokenizers.Tokenizer.from_str(text)
    for tokenizer in (ours, theirs):
        tokenizer.no_truncation()
        tokenizer.no_padding()
    return str(request.param), ours, theirs


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
    for tokenizer in (ours, theirs):
        tokenizer.no_truncation()
        tokenizer.no_padding()


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
    for text in golden_lines[::7]:
        ids = ours.encode_array(text, parse_special=False)
        assert b"".join(map(ours.token_bytes, ids.tolist())).decode() == text
    if name == "r50k_base":  # which is GPT-2's vocabulary
        lines = (shared / "tokenizers" / "gpt2" / "golden.jsonl.gz").read_bytes()
        for line in gzip.decompress(lines).splitlines()[:1500]:
            golden = json.loads(line)
            text = golden.get("t") or golden_lines[golden["k"]]
            assert ours.encode_array(text).tolist() == golden["ids"], text
