"""GGUF files of the packaged model, which is trained: our logprobs beside those of llama.cpp, on the same files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from prelude import Engine, EngineConfig, ExpertConfig, Generate, SamplingParams
from prelude.default_model import path as packaged

pytest.importorskip("xllamacpp", reason="the package xllamacpp, a build of llama.cpp, is not installed")
pytest.importorskip("gguf", reason="the package gguf, of the extra test, is not installed")

from bench.engine.llama_cpp import LlamaCpp, write_gguf

TOP = 20
TOLERANCE = {"F32": 1e-4, "F16": 0.02, "BF16": 0.1, "Q8_0": 0.3}
"""Of a logprob. llama.cpp rounds the rows of a product to the type of its weights, where our rows stay float32; with
F32 nothing is rounded. The others are five times the seen differences (0.003, 0.02, 0.055)."""
PROMPTS = [[int(one) for one in np.random.default_rng(length).integers(5, 4000, length)] for length in (3, 64, 200)]


@pytest.mark.parametrize("kind", TOLERANCE)
def test_logprobs_of_llama_cpp(kind: str, tmp_path: Path) -> None:
    path = write_gguf(packaged(), tmp_path / "model.gguf", kind)
    theirs = LlamaCpp(path, threads=1, exact=True).top(PROMPTS, TOP)
    params = SamplingParams(max_tokens=1, temperature=0.0, logprobs=TOP)
    with Engine.from_pretrained(
        str(path), dtype="auto", config=EngineConfig(expert=ExpertConfig(kv_blocks=64))
    ) as engine:
        ours = [dict((engine.run(Generate(ids, params)).logprobs or [])[0].top) for ids in PROMPTS]
    error = max(abs(ours[row][token] - logprob) for row, best in enumerate(theirs) for token, logprob in best[:10])
    assert error < TOLERANCE[kind]
