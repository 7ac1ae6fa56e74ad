"""``host_kv_bytes``: an engine whose evicted blocks come back from host memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prelude import Embed, Engine, EngineConfig, ExpertConfig, Generate, Loglikelihood, SamplingParams
from prelude.errors import ConfigError, InsufficientMemory
from prelude.execution.memory_plan import MemoryPlan, StepMemory
from prelude.integrations.metrics import PrometheusMetrics
from prelude.models import read_weights
from prelude.runtime.assembly import make_core
from prelude.runtime.core import EngineCore
from tests import toy
from tests.checkpoints import make_checkpoint
from tests.encoders import write_encoder
from tests.execution.conftest import RECURRENT

BLOCKS = 24
HOST: dict[str, Any] = {"host_kv_bytes": 1 << 22, "host_kv_tokens": 16}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("host"))


def engine_of(path: Path, **limits: Any) -> Engine:
    return Engine.from_pretrained(
        path, dtype="float32", config=EngineConfig().changed(**{"deterministic": True, **limits})
    )


def tasks(turn: int) -> list[Any]:
    """Of six users with profiles of 96 tokens: a continuation's logprobs, a vector, a text."""
    made: list[Any] = []
    for user in range(6):
        profile = [(7 * user + 3 * i) % 90 + 5 for i in range(96)]
        more = [(turn + 11 * user + i) % 90 + 5 for i in range(9)]
        made.append(Loglikelihood(profile + more[:4], more[4:]))
        made.append(Embed(profile + more, pooling="last"))
        made.append(Generate(profile + more[:5], SamplingParams(max_tokens=5, ignore_eos=True, temperature=0.0)))
    return made


def answers(engine: Engine) -> list[Any]:
    """Of two turns, one request at a time, so that each user's blocks are gone when it is its turn again."""
    found = []
    for turn in range(2):
        for task in tasks(turn):
            result = engine.run(task)
            if isinstance(task, Embed):
                found.append(result.tolist() if hasattr(result, "tolist") else list(result))
            elif isinstance(task, Generate):
                found.append(list(result.token_ids))
            else:
                found.append(result.token_logprobs.tolist())
    return found


@pytest.mark.feature("G10")
@pytest.mark.feature("E12")
@pytest.mark.parametrize("overlap", [False, True])
def test_a_hit_in_host_memory_has_the_bits_of_a_prompt_that_is_computed(path: Path, overlap: bool) -> None:
    with engine_of(path, kv_blocks=BLOCKS, prefix_cache=False) as cold:
        expected = answers(cold)
    with engine_of(path, kv_blocks=BLOCKS, overlap=overlap, **HOST) as engine:
        assert answers(engine) == expected
        stats = engine.stats()
        assert stats["host_kv_hits"] >= 6 and stats["host_kv_copied_in"] >= 36
        block = engine._core.executor.limits().kv_bytes_per_token * 16
        assert stats["memory"]["host_kv_bytes"] == stats["host_kv_blocks"] * block > 0
        engine._core.audit()
    with engine_of(path, kv_blocks=BLOCKS) as without:
        assert answers(without) == expected
        assert without.stats()["host_kv_hits"] == 0 == without.stats()["memory"]["host_kv_bytes"]
        assert without.stats()["prefix_hit_tokens"] < stats["prefix_hit_tokens"]


def test_the_counters_are_metrics(path: Path) -> None:
    pytest.importorskip("prometheus_client")
    with engine_of(path, kv_blocks=BLOCKS, **HOST) as engine:
        metrics = PrometheusMetrics(engine)
        answers(engine)
        for name, sample in (("hits", "hits_total"), ("copied_out", "copied_out_total"), ("blocks", "blocks")):
            value = metrics.registry.get_sample_value(f"prelude_host_kv_{sample}")
            assert value == engine.stats()[f"host_kv_{name}"] > 0


def test_closing_lets_go_of_the_copies(path: Path) -> None:
    engine = engine_of(path, kv_blocks=BLOCKS, **HOST)
    answers(engine)
    host: Any = engine._core.executor._host
    held = host.nbytes
    engine.close()
    assert 1 << 21 < held <= 1 << 22 and host.nbytes == 0 and host._pool.nbytes == 0


def test_a_model_whose_prefixes_are_more_than_keys_and_values_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="recurrent layers needs its state"):
        engine_of(make_checkpoint(tmp_path / "recurrent", **RECURRENT["lfm2"]), **HOST)
    with pytest.raises(ConfigError, match="an encoder keeps no keys and values"):
        engine_of(write_encoder(tmp_path / "encoder", family="bert"), **HOST)


def test_values_that_contradict_each_other_are_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match="prefix_cache=False"):
        EngineConfig(host_kv_bytes=1, prefix_cache=False)
    with pytest.raises(ConfigError, match="tensor_parallel=2"):
        EngineConfig(host_kv_bytes=1, tensor_parallel=2)
    for wrong in (-1, 1.5, "1"):
        with pytest.raises(ConfigError, match="host_kv_bytes"):
            EngineConfig(host_kv_bytes=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="host_kv_tokens"):
        EngineConfig(expert=ExpertConfig(host_kv_tokens=0))


def test_less_than_a_block_is_refused_before_the_weights_are_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*args: Any) -> Any:
        raise AssertionError("the weights were read")

    monkeypatch.setattr(read_weights, "load_weights", read)
    with pytest.raises(ConfigError, match="host_kv_bytes=100 does not hold a KV block of"):
        engine_of(path, host_kv_bytes=100)


def test_an_executor_that_gets_no_core_is_closed() -> None:
    executor = toy.ToyExecutor()
    with pytest.raises(ConfigError, match="keeps no KV blocks in host memory"):
        make_core(EngineCore, executor, EngineConfig(host_kv_bytes=1 << 20))
    assert executor.closed


def test_on_a_cpu_host_memory_counts_in_the_budget_and_a_refusal_names_it(path: Path) -> None:
    with pytest.raises(InsufficientMemory, match=r"host_kv_bytes \(2,147,483,648\).*; lower host_kv_bytes"):
        engine_of(path, max_memory=1 << 30, host_kv_bytes=1 << 31)


def test_refusals_of_a_length_name_the_host_memory_beside_it(path: Path) -> None:
    with engine_of(path, kv_blocks=8) as engine:
        spec = engine._core.executor.config.spec
    step = StepMemory(fixed=2 << 20, per_token=400_000, readout=0, row_bytes=0, measured=True)

    def refusal(host_kv: int) -> str:
        config = EngineConfig(max_running=8, max_memory=100 << 20, max_length=512)
        plan = MemoryPlan(config, spec, 1 << 40, held=4 << 20, host=8 << 20, block_bytes=32_768, host_kv=host_kv)
        with pytest.raises(InsufficientMemory) as refused:
            plan.fitted(step)
        return str(refused.value)

    assert "weights, states and tokenizer (12,582,912 bytes), a step of" in refusal(0)
    assert "host_kv" not in refusal(0)
    some = refusal(10 << 20)
    assert "tokenizer (12,582,912 bytes), host_kv_bytes (10,485,760), a step" in some
    assert "beside host_kv_bytes=10485760" in some
    assert ": lower host_kv_bytes, max_running" in refusal(87 << 20)
