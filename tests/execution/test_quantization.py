"""Weights of int8 in the executor: every family beside transformers in float32, and the packaged model's answers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from prelude import Choice, Decide, Engine, EngineConfig, SamplingParams
from prelude.default_model import path as packaged
from prelude.errors import ConfigError
from prelude.models.checkpoint import Checkpoint
from prelude.models.config import ModelConfig
from prelude.models.read_weights import weight_bytes
from prelude.readouts.batch import OneShotBatch
from tests.checkpoints import save_model
from tests.encoders import CLASSES, Encoder, write_encoder
from tests.execution.conftest import VARIANTS
from tests.execution.helpers import Model, all_logprobs, hidden, i32, prompts, random_ids, run

HELD_OUT = Path(__file__).parents[2] / "bench" / "train" / "heldout.jsonl"
INT8 = EngineConfig(quantization="int8")


def least_cosine(found: np.ndarray, wanted: np.ndarray) -> float:
    sizes = np.linalg.norm(found, axis=1) * np.linalg.norm(wanted, axis=1)
    return float(((found * wanted).sum(axis=1) / sizes).min())


@pytest.mark.parametrize("family", sorted(CLASSES))
def test_encoders_stay_close_to_float32(family: str, tmp_path: Path) -> None:
    encoder = Encoder(write_encoder(tmp_path, family=family))
    executor = encoder.executor(quantization="int8")
    batch = [i32(5 + random_ids(n, n, 200)) for n in (1, 17, 90)]
    found = hidden(executor, prompts(*batch), np.arange(108))
    assert least_cosine(found, np.concatenate([encoder.states(ids) for ids in batch])) > 0.995
    assert executor.weights.nbytes < encoder.executor().weights.nbytes
    assert executor.limits().quantization == "int8"


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_decoders_stay_close_to_float32(variant: str, tmp_path: Path) -> None:
    model = Model(save_model(tmp_path, **VARIANTS[variant]))
    executor = model.executor(quantization="int8")
    ids = random_ids(3, 60)
    readout = all_logprobs(np.arange(60))
    found = run(executor, OneShotBatch(prompts(ids), readout)).outputs[0].logprobs.reshape(60, -1)
    wanted = model.logprobs(ids)
    assert least_cosine(np.exp(found), np.exp(wanted)) > 0.97


@pytest.mark.parametrize("tied", [True, False])
def test_tied_embeddings_are_rows_of_the_packed_head(tied: bool, tmp_path: Path) -> None:
    path = save_model(tmp_path, tie_word_embeddings=tied)
    weights, config = Model(path).executor(quantization="int8").weights, ModelConfig.from_dir(path)
    with Checkpoint.open(path, config) as checkpoint:
        said = weight_bytes(checkpoint, config.spec, np.dtype("float32"), "int8")
    assert 0.9 * weights.nbytes < said < weights.nbytes
    assert weights.lm_head is not None and weights.lm_head.packing == "int8"
    assert (weights.embeddings.tokens is weights.lm_head) == tied
    assert tied or isinstance(weights.embeddings.tokens, np.ndarray)


def test_answers_of_the_packaged_model() -> None:
    """At most one answer in two hundred differs from float32, at 55 % of its memory."""
    demo = json.loads((packaged() / "demo.json").read_text(encoding="utf-8"))
    texts = [json.loads(line)["text"] for line in HELD_OUT.read_text(encoding="utf-8").splitlines()[::3]]
    questions = [Choice(question["question"], question["labels"]) for question in demo["questions"]]
    asked = [Decide(demo["state"].format(rubric=demo["rubric"], text=text), questions) for text in texts]
    answers = []
    for config in (EngineConfig(), INT8):
        with Engine.from_pretrained(None, config=config) as engine:
            answers.append([answer.label for found in engine.run_many(asked) for answer in found])
            kept = engine.model_info
    assert kept.quantization == "int8" and kept.weight_bytes < 2_200_000
    assert sum(a != b for a, b in zip(*answers)) <= len(answers[0]) // 200


def test_verbs_agree_with_each_other() -> None:
    """The prefix cache, a generated text and its loglikelihood, each with weights of int8. Without ``deterministic``
    a difference in the last bit of an input may turn one of its integers, and a logprob moves by 0.005 here."""
    with Engine.from_pretrained(None, config=EngineConfig(quantization="int8", deterministic=True)) as engine:
        greedy = SamplingParams(max_tokens=8, temperature=0.0, logprobs=1)
        prompt = "The committee shall publish its findings before the close of the year and answer every objection."
        first = engine.complete(prompt, params=greedy)
        again = engine.complete(prompt, params=greedy)
        assert first.token_ids == again.token_ids and again.stats.cached_tokens > 0
        assert first.logprobs is not None
        whole = engine.loglikelihood(prompt, list(first.token_ids))
        assert whole.token_logprobs == pytest.approx([sampled.logprob for sampled in first.logprobs], abs=1e-5)
        assert "int8 weights" in repr(engine)


def test_models_that_cannot_be_quantized_are_refused() -> None:
    with pytest.raises(ConfigError, match="quantization='int4'"):
        EngineConfig(quantization="int4")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="CPU"):
        Engine.from_pretrained(None, device="cuda", config=INT8)
