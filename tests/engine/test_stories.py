"""A trained model of another family, end to end: ids and logprobs recorded from transformers in float32."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prelude.tokenizer import Tokenizer

from prelude import Engine, EngineConfig, Generate, SamplingParams

GREEDY = SamplingParams(max_tokens=64, temperature=0, ignore_eos=True, logprobs=5)


def stories_of(shared: Path) -> Path:
    path = shared / "models" / "stories260k"
    if not (path / "model.safetensors").is_file():
        pytest.skip("stories260k is not among the reference files")
    return path


def recorded_cases(stories: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((stories / "expected.json").read_text(encoding="utf-8"))["cases"]
    assert len(found) >= 6 and all(len(case["greedy_ids"]) == 64 for case in found)
    return found


stories = pytest.fixture(scope="module", name="stories")(stories_of)
expected = pytest.fixture(scope="module", name="expected")(recorded_cases)


@pytest.fixture(scope="module", params=[False, True], ids=["fastest", "deterministic"])
def engine(stories: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    with Engine.from_pretrained(
        stories, dtype="float32", config=EngineConfig(kv_bytes=1 << 22, deterministic=request.param)
    ) as engine:
        yield engine
        engine._core.audit()


@pytest.mark.feature("H1")
def test_greedy_tokens_are_the_recorded_ones_to_the_id(engine: Engine, expected: list[dict[str, Any]]) -> None:
    """Alone and together; the prompt as text becomes the recorded prompt, BOS included."""
    for case in expected:
        prompt = case["prompt"] or case["prompt_ids"]  # empty text is no prompt, BOS alone is
        assert engine.explain(Generate(prompt)).token_ids.tolist() == case["prompt_ids"]
        assert list(engine.complete(prompt, GREEDY).token_ids) == case["greedy_ids"]
    together = engine.run_many([Generate(case["prompt_ids"], GREEDY) for case in expected])
    assert [list(r.token_ids) for r in together] == [case["greedy_ids"] for case in expected]


def test_logprobs_are_the_recorded_ones(engine: Engine, expected: list[dict[str, Any]]) -> None:
    for case in expected:
        got = engine.complete(case["prompt_ids"], GREEDY)
        assert got.logprobs is not None and case["logprobs"]
        for recorded in case["logprobs"]:
            ours = dict(got.logprobs[recorded["step"]].top)
            for token, logprob in recorded["top5"]:
                assert ours[token] == pytest.approx(logprob, abs=1e-4)


def test_its_tokenizer_agrees_with_the_recorded_encodings(stories: Path, shared: Path) -> None:
    tokenizer = Tokenizer.from_file(stories / "tokenizer.json")
    lines: list[str] = json.loads(gzip.decompress((shared / "texts" / "golden_lines.json.gz").read_bytes()))
    count = 0
    for row in map(json.loads, gzip.decompress((stories / "golden.jsonl.gz").read_bytes()).splitlines()):
        text = row["t"] if "t" in row else lines[row["k"]]
        plain = tokenizer.encode(text, add_special_tokens=False)
        assert plain.ids == row["ids"], text
        assert np.array_equal(np.array(plain.offsets).reshape(-1), row["off"]), text
        if "sp" in row:
            assert tokenizer.encode(text).ids == row["sp"], text
        assert tokenizer.decode(row["ids"], skip_special_tokens=False) == row.get("dec", text), text
        count += 1
    assert count > 2000
