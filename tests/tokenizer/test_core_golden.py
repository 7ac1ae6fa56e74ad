"""Every family's recorded results of HF tokenizers 0.23.3: ids, offsets, decoded text, no difference."""

from __future__ import annotations

import numpy as np
import pytest
from prelude.tokenizer._core import CoreTokenizer

from tests.tokenizer.shared import families, golden, golden_lines, shared, tokenizer_json

needs_shared = pytest.mark.skipif(shared() is None, reason="the shared reference material is not here")


@needs_shared
@pytest.mark.parametrize("family", families())
def test_golden(family: str) -> None:
    core = CoreTokenizer.from_json(tokenizer_json(family))
    assert core.external_patterns == []
    wrong: dict[str, list] = {"ids": [], "offsets": [], "decode": [], "skip": []}
    lines = 0
    for line in golden(family):
        lines += 1
        text = line["t"] if "t" in line else golden_lines()[line["k"]]
        ids, offsets, _ = core.encode_full(text)
        if ids.tolist() != line["ids"] or core.encode_ids(text) != line["ids"]:
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
    "bert-bge": "bert-base-uncased",
    "command-r": "command-r",
    "deepseek-r1-qwen": "qwen3",
    "gpt-2": "gpt2",
    "llama-bpe": "llama-3.2",
    "llama-spm": "llama2",
    "mpt": "gpt-neox",
    "phi-3": "phi-3",
    "qwen2": "qwen3",
    "roberta-bpe": "roberta",
}


@needs_shared
@pytest.mark.parametrize("name", LLAMA_CPP)
def test_llama_cpp_vectors(name: str) -> None:
    folder = shared() / "conformance" / "llama.cpp"
    texts = (folder / "inputs.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    expected = [
        [int(i) for i in row.split()] for row in (folder / f"{name}.out").read_text(encoding="utf-8").split("\n")
    ]
    core = CoreTokenizer.from_json(tokenizer_json(LLAMA_CPP[name]))
    got = [core.encode_ids(text) for text in texts]
    assert got == expected[: len(texts)]
