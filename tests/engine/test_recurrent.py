"""Models whose layers keep a state (Qwen3.5, LFM2), through every verb: transformers' numbers, and the same bits in
any company."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from prelude import Choice, Decide, Engine, EngineConfig, ExpertConfig, Generate, Loglikelihood, SamplingParams, YesNo
from prelude.errors import CheckpointError, InsufficientMemory, UnsupportedModel
from prelude.loading.cuda import check_supported
from prelude.models.config import ModelConfig
from prelude.models.memory import default_prefixes, default_running_states
from tests.checkpoints import make_checkpoint
from tests.engine.conftest import Oracle
from tests.execution.conftest import RECURRENT

KINDS = ("qwen3_5", "lfm2")
Make = Callable[..., Engine]
RUBRIC = "Judge the text by these rules. " + " ".join(f"Rule {i}: mind the {i}th word." for i in range(9))


@pytest.fixture(scope="module", params=KINDS)
def hybrid(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    return Oracle(make_checkpoint(tmp_path_factory.mktemp(request.param), **RECURRENT[request.param]))


@pytest.fixture
def make(hybrid: Oracle) -> Iterator[Make]:
    """Engines in float32, audited and closed at the end of the test."""
    made: list[Engine] = []

    def one(**config: Any) -> Engine:
        config = {"kv_bytes": 1 << 22, "max_running": 6, **config}
        made.append(Engine.from_pretrained(hybrid.path, dtype="float32", config=EngineConfig().changed(**config)))
        return made[-1]

    yield one
    for engine in made:
        engine._core.audit()
        assert engine._core.pool.free_running_states == engine._core.pool.num_running_states
        engine.close()


def ids_of(engine: Engine, text: str) -> list[int]:
    return engine.tokenizer.encode(text).ids


@pytest.mark.feature("A8")
def test_texts_are_those_of_transformers_generate(hybrid: Oracle, make: Make) -> None:
    """More requests than entries, chunks of 16 tokens, and decisions in the same steps."""
    engine = make(max_running=3, chunk_tokens=16)
    prompts = [" ".join(["boats lay at the quay"] * (1 + i % 4)) + f" on day {i}" for i in range(7)]
    params = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
    tasks: list[Any] = [Generate(prompt, params) for prompt in prompts]
    mixed = engine.run_many([*tasks, *[Decide(prompt, [YesNo("Polite?")]) for prompt in prompts]])
    for prompt, result in zip(prompts, mixed):
        assert list(result.token_ids) == hybrid.greedy(ids_of(engine, prompt), 20)
    assert engine.stats()["states_used"] == 0 and engine.stats()["states_free"] == 3


def test_loglikelihoods_and_vectors_are_those_of_transformers(hybrid: Oracle, make: Make) -> None:
    engine = make()
    context, continuations = ids_of(engine, "The quay was"), ["empty", "full of boats and nets", "grey"]
    asked = [Loglikelihood(context, ids_of(engine, one)) for one in continuations]
    for one, result in zip(asked, engine.run_many(asked)):
        assert abs(result.total - hybrid.joint(context, one.continuation)) < 1e-4
    texts = ["a boat", "the nets dry in the wind while the boats wait"]
    for pooling in ("last", "mean"):
        for text in texts:
            states = hybrid.hidden(ids_of(engine, text))
            expected = states[-1] if pooling == "last" else states.mean(axis=0)
            vector = engine.embed(text, pooling=pooling, normalize=False)
            assert np.abs(np.asarray(vector) - expected).max() < 1e-4


def task(i: int) -> Decide:
    labels = ["harbour", "harbour master", "city"]
    text = " ".join(["boats lay at the quay"] * (i % 4 + 1)) + f" on day {i}"
    return Decide(f"{RUBRIC}\n\n{text}", [Choice("Where?", labels), YesNo("Polite?")])


def bits(answers: Any) -> list[tuple[float, ...]]:
    return [tuple(answer.logprobs.values()) for answer in answers]


@pytest.mark.fault(74)
def test_same_bits_alone_in_company_and_forked(make: Make) -> None:
    """The rubric is shared, each text has two questions below it and labels below these."""
    apart = make(deterministic=True, fold=False)
    alone = {i: bits(apart.run(task(i))) for i in range(12)}
    folded = make(deterministic=True)
    chat = Generate(f"{RUBRIC} Once", SamplingParams(max_tokens=12, temperature=0, ignore_eos=True))
    text = apart.run(chat).token_ids
    for engine in (apart, folded):
        for chosen in ([3], [1, 2], list(range(11, -1, -1))):
            results = engine.run_many([chat, *[task(i) for i in chosen], chat])
            assert results[0].token_ids == results[-1].token_ids == text
            for i, answers in zip(chosen, results[1:-1]):
                assert bits(answers) == alone[i]
    assert folded.stats()["folded_tokens"] > 0 and apart.stats()["folded_tokens"] == 0


@pytest.mark.fault(74)
def test_same_bits_cached_or_not(make: Make) -> None:
    """A decision asked again goes on from the state at the end of its text, another text from the one at the end of
    the rubric, once two have come that way, and a chat from its turn before."""
    apart, engine = make(deterministic=True, prefix_cache=False), make(deterministic=True)
    for i in (1, 1, 2, 3):
        assert bits(engine.run(task(i))) == bits(apart.run(task(i)))
        assert engine.would_hit(task(i)) > 0 and apart.would_hit(task(i)) == 0
    rubric = ids_of(engine, RUBRIC)
    stats = engine.stats()
    assert stats["prefix_hit_tokens"] > len(rubric) * 3 // 2 and stats["prefix_states"] >= 3
    assert apart.stats()["prefix_hit_tokens"] == apart.stats()["prefix_states"] == 0
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    turns = list(rubric)
    for turn in range(3):
        first, second = (one.run(Generate(list(turns), params)) for one in (apart, engine))
        assert first.token_ids == second.token_ids
        assert (second.stats.cached_tokens > len(turns) // 2) == (turn > 0)
        turns += [*first.token_ids, *ids_of(engine, " and then")]


def test_an_engine_without_room_for_states_of_prefixes_reuses_none(make: Make) -> None:
    engine = make(prefix_states=0)
    first = engine.run(task(1))
    assert engine.would_hit(task(1)) == 0 and bits(engine.run(task(1))) == bits(first)
    stats = engine.stats()
    assert stats["prefix_hit_tokens"] == stats["blocks_cached"] == stats["prefix_states"] == 0


# ------------------------------------------------------------------ files
def wrapped(source: Path, path: Path) -> Path:
    """The checkpoint as the language model of a larger one, beside a vision tower and prediction heads."""
    path.mkdir()
    tensors = load_file(source / "model.safetensors")
    named = {f"model.language_model.{key.removeprefix('model.')}": tensor for key, tensor in tensors.items()}
    named |= {"model.visual.blocks.0.attn.qkv.weight": torch.ones(6, 2), "mtp.fc.weight": torch.ones(4, 8)}
    save_file(named, path / "model.safetensors")
    text = json.loads((source / "config.json").read_text(encoding="utf-8"))
    text.pop("architectures")
    config = {
        "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
        "tie_word_embeddings": text.pop("tie_word_embeddings"), "text_config": text,
        "vision_config": {"model_type": "qwen3_5_vision", "depth": 1}, "image_token_id": 7,
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (path / "tokenizer.json").write_bytes((source / "tokenizer.json").read_bytes())
    return path


def test_the_text_model_of_a_larger_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = make_checkpoint(tmp_path / "text", **RECURRENT["qwen3_5"])
    path = wrapped(source, tmp_path / "whole")
    params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    texts = []
    for directory in (source, path):
        with Engine.from_pretrained(directory, config=EngineConfig(kv_bytes=1 << 22)) as engine:
            texts.append((engine.run(Generate(RUBRIC, params)).token_ids, bits(engine.run(task(2)))))
    assert texts[0] == texts[1]
    assert "model.visual.blocks.0.attn.qkv.weight" in caplog.text and "ignored" in caplog.text
    tensors = load_file(path / "model.safetensors")
    tensors.pop("model.language_model.layers.1.linear_attn.dt_bias")
    save_file(tensors, path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"layers\.1\.linear_attn\.dt_bias' is missing"):
        Engine.from_pretrained(path)


def test_cuda_refuses_such_a_model_by_name(hybrid: Oracle) -> None:
    with pytest.raises(
        UnsupportedModel, match=r"device='cuda' does not implement layers with a recurrent state \([GS]"
    ):
        check_supported(ModelConfig.from_dir(hybrid.path).spec)


def test_memory_of_states_is_part_of_the_need(hybrid: Oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    import prelude.models.memory as memory

    assert default_running_states(1 << 20, 1 << 10, running=64) == 64
    assert default_running_states(1 << 20, 1 << 14, running=64) == 16
    assert default_running_states(1 << 10, 1 << 14, running=64) == 1
    assert default_prefixes(1 << 20, 1 << 14) == 8 and default_prefixes(1 << 30, 1 << 10) == 256
    assert default_prefixes(1 << 10, 1 << 14) == 0 and default_prefixes(None, 1 << 14) == 16
    weights = sum(2 * tensor.numel() * 2 for tensor in load_file(hybrid.path / "model.safetensors").values())
    monkeypatch.setattr(memory, "available_memory", lambda: weights + 1000)
    with pytest.raises(InsufficientMemory, match=r"weights and states \([\d,]+ bytes\) and 4 KV blocks need"):
        Engine.from_pretrained(hybrid.path, config=EngineConfig(expert=ExpertConfig(kv_blocks=4)))
