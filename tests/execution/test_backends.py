"""Attention by name: each backend gives the same numbers, the forced one runs, and one that cannot serve says why."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from prelude import Engine, EngineConfig, Loglikelihood
from prelude.errors import ConfigError, DeviceUnavailable
from prelude.execution import cpu
from prelude.execution.backends import NAMES, VARIABLE, Wanted, choose
from prelude.execution.cuda import attention_for
from tests.cuda.plans import BLOCKS, random_batch
from tests.cuda.test_parity import same
from tests.execution.helpers import VOCAB, Model, greedy, random_ids, run


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Which plans were made."""
    seen: set[str] = set()
    for name in ("RunsPlan", "CascadePlan"):
        made = getattr(cpu, name)

        def note(*args: Any, name: str = name, made: Any = made, **more: Any) -> Any:
            seen.add(name)
            return made(*args, **more)

        monkeypatch.setattr(cpu, name, note)
    yield seen


PLANS = {"runs": {"RunsPlan"}, "cascade": {"CascadePlan"}}


@pytest.mark.feature("H8")
@pytest.mark.feature("H9")
@pytest.mark.parametrize("name", list(PLANS))
def test_every_backend_on_a_cpu_gives_the_same_numbers(variant: Model, planned: set[str], name: str) -> None:
    """Prompts of any lengths, forests, chunks behind a context, decode rows over scattered pages: random batches."""
    mixers = [layer.mixer for layer in variant.config.spec.layers]
    if name == "cascade" and any(mixer.window is not None or mixer.cap or mixer.scale for mixer in mixers):
        with pytest.raises(ConfigError, match="'cascade' cannot serve here: it has no windows, soft caps or scales"):
            variant.executor(num_blocks=BLOCKS, attention=name)
        return
    ours = variant.executor(num_blocks=BLOCKS, attention=name)
    reference = variant.executor(num_blocks=BLOCKS, deterministic=True)
    rng = np.random.default_rng(11)
    for _ in range(12):
        batch = random_batch(rng, VOCAB)
        planned.clear()
        result = run(ours, batch)
        assert planned == PLANS[name]
        same(result, run(reference, batch), 2e-4)
    assert (ours.pool.tensor - reference.pool.tensor).abs().max() < 1e-4


@pytest.mark.feature("H8")
def test_greedy_texts_are_the_same_whatever_reads_the_pages(model: Model) -> None:
    ids = [random_ids(n + 50, n) for n in (1, 16, 37)]
    order = np.random.default_rng(0).permutation(60)
    tables = [order[i * 8 : i * 8 + 8] for i in range(3)]
    texts = [greedy(model.executor(attention=name), ids, tables, 40) for name in ("auto", *PLANS)]
    assert all(np.array_equal(one, texts[0]) for one in texts[1:])


@pytest.mark.feature("H8")
@pytest.mark.parametrize("name", list(PLANS))
@pytest.mark.parametrize("how", ["config", "environment"])
def test_an_engine_runs_the_named_backend(
    planned: set[str], monkeypatch: pytest.MonkeyPatch, name: str, how: str
) -> None:
    if how == "environment":
        monkeypatch.setenv(VARIABLE, name)
    config = EngineConfig(kv_bytes=1 << 22, attention=name if how == "config" else "auto")
    with Engine.from_pretrained(None, config=config) as engine:
        engine.run(Loglikelihood([11, 12, 13, 14], [15]))
    assert planned == PLANS[name]


@pytest.mark.feature("H8")
def test_the_backend_of_the_config_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "cascade")
    wanted = Wanted(128, "float32", False)
    assert choose("runs", "cpu", wanted) == "runs" and choose("auto", "cpu", wanted) == "cascade"
    monkeypatch.setenv(VARIABLE, "fastest")
    with pytest.raises(ConfigError, match=r"PRELUDE_ATTENTION='fastest' is not one of auto, runs, cascade, flashinf"):
        choose("auto", "cpu", wanted)


@pytest.mark.feature("H8")
def test_a_backend_that_cannot_serve_is_refused_with_the_reason(model: Model) -> None:
    with pytest.raises(ConfigError, match="attention='fastest' is not one of auto, runs, cascade, flashinfer, keys"):
        EngineConfig(attention="fastest")
    with pytest.raises(ConfigError, match="a backend of device='cuda'; on 'cpu' it is auto, runs, cascade"):
        model.executor(attention="flashinfer")
    with pytest.raises(ConfigError, match=r"attention='cascade' cannot serve here: .* deterministic=True; use"):
        model.executor(attention="cascade", deterministic=True)
    with pytest.raises(ConfigError, match="a backend of device='cpu'; on 'cuda' it is auto, flashinfer, keys"):
        choose("runs", "cuda", Wanted(128, "bfloat16", False))
    for wanted, why in (
        (Wanted(128, "float32", False), "built for bfloat16, not float32"),
        (Wanted(96, "bfloat16", False), "head_dim is 96; it is built for 64, 128, 256"),
        (Wanted(128, "bfloat16", True), "deterministic=True"),
    ):
        with pytest.raises(ConfigError, match=why):
            choose("flashinfer", "cuda", wanted)
        assert choose("auto", "cuda", wanted) == choose("keys", "cuda", wanted) == "keys"


@pytest.mark.feature("H8")
def test_one_that_is_asked_for_and_not_installed_is_missed(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "flashinfer" else find(name, *a)
    )
    with pytest.raises(DeviceUnavailable, match="flashinfer is not installed") as caught:
        choose("flashinfer", "cuda", Wanted(128, "bfloat16", False))
    assert caught.value.missing
    assert attention_for("keys", model.config, torch.bfloat16, False) == "keys"


def test_every_name_is_somebodys() -> None:
    assert NAMES[0] == "auto" and len(set(NAMES)) == 5
