"""Attention by name: each backend gives the same numbers, the forced one runs, and one that cannot serve says why."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prelude import Engine, EngineConfig, Loglikelihood
from prelude.cpu.executor import CpuExecutor
from prelude.errors import ConfigError, DeviceUnavailable
from prelude.execution.backends import NAMES, VARIABLE, Wanted, choose
from prelude.loading.cuda import attention_for
from prelude.models.config import ModelConfig
from tests.checkpoints import save_model
from tests.cuda.plans import BLOCKS, random_batch
from tests.execution.conftest import VARIANTS
from tests.execution.helpers import BLOCK, VOCAB, Model, cpu_executor, greedy, random_ids, run


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def numbers(path: Path, **options: Any) -> list[np.ndarray]:
    """Of random batches: prompts of any lengths, forests, chunks behind a context, decode rows over scattered pages;
    and greedy texts, whose prefill and decode steps read K and V in different ways."""
    config = ModelConfig.from_dir(path)

    def executor() -> CpuExecutor:
        return cpu_executor(path, config, num_blocks=BLOCKS, block_size=BLOCK, **options)

    ours, rng = executor(), np.random.default_rng(11)
    found: list[np.ndarray] = []
    for _ in range(8):
        for output in run(ours, random_batch(rng, VOCAB)).outputs:
            for name in ("logprobs", "vectors", "token_ids"):
                if (value := getattr(output, name, None)) is not None:
                    found.append(value)
    ids = [random_ids(n + 50, n) for n in (1, 16, 37)]
    order = np.random.default_rng(0).permutation(60)
    texts = greedy(executor(), ids, [order[i * 8 : i * 8 + 8] for i in range(3)], 40)
    return [*found, ours.pool.tensor, texts]


def written(path: str, target: str) -> None:
    np.savez(target, *numbers(Path(path), attention="runs"))


@pytest.mark.long
@pytest.mark.feature("H8")
@pytest.mark.feature("H9")
@pytest.mark.parametrize("name", ["plain", "groups-of-4", "qwen3-windows", "phi3-part-of-heads", "gemma2"])
def test_every_set_of_kernels_and_every_mode_give_the_same_numbers(name: str, tmp_path: Path) -> None:
    """The portable kernels are the reference of those for vectors; deterministic mode reads pages in another way."""
    path = save_model(tmp_path / "model", **VARIANTS[name])
    code = "import sys; from tests.execution.test_backends import written; written(*sys.argv[1:])"
    target = tmp_path / "portable.npz"
    environment = {**os.environ, "PRELUDE_CPU_KERNELS": "portable"}
    subprocess.run([sys.executable, "-c", code, str(path), str(target)], env=environment, check=True)
    with np.load(target) as file:
        portable = [file[name] for name in file.files]
    ours = numbers(path)
    for others in (portable, numbers(path, deterministic=True)):
        assert len(ours) == len(others) > 8
        for one, other in zip(ours, others):
            assert one.shape == other.shape and np.abs(one - other).max(initial=0) < 2e-4


@pytest.mark.feature("H8")
@pytest.mark.parametrize("how", ["config", "environment"])
def test_an_engine_takes_the_name(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    if how == "environment":
        monkeypatch.setenv(VARIABLE, "runs")
    config = EngineConfig(kv_bytes=1 << 22, attention="runs" if how == "config" else "auto")
    with Engine.from_pretrained(None, config=config) as engine:
        assert len(engine.run(Loglikelihood([11, 12, 13, 14], [15])).token_ids) == 1
    if how == "environment":
        monkeypatch.setenv(VARIABLE, "keys")
        with pytest.raises(ConfigError, match="attention='keys' is a backend of device='cuda'"):
            Engine.from_pretrained(None, config=config)


@pytest.mark.feature("H8")
def test_the_backend_of_the_config_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = Wanted(128, "bfloat16", False)
    monkeypatch.delenv(VARIABLE, raising=False)
    assert (choose("auto", "cpu", wanted), choose("auto", "cuda", wanted)) == ("runs", "flashinfer")
    monkeypatch.setenv(VARIABLE, "keys")
    assert choose("auto", "cuda", wanted) == "keys"
    monkeypatch.setenv(VARIABLE, "runs")
    assert choose("keys", "cuda", wanted) == "keys"
    monkeypatch.setenv(VARIABLE, "fastest")
    with pytest.raises(ConfigError, match=r"PRELUDE_ATTENTION='fastest' is not one of auto, runs, flashinfer"):
        choose("auto", "cpu", wanted)


@pytest.mark.feature("H8")
def test_a_backend_that_cannot_serve_is_refused_with_the_reason(model: Model) -> None:
    with pytest.raises(ConfigError, match="attention='fastest' is not one of auto, runs, flashinfer, keys"):
        Engine.from_pretrained(config=EngineConfig(attention="fastest"))
    with pytest.raises(ConfigError, match=r"^device='tpu' is not one of auto, cpu, cuda$"):
        Engine.from_pretrained(device="tpu")
    with pytest.raises(ConfigError, match=r"^dtype='float16' is not one of auto, float32, bfloat16$"):
        Engine.from_pretrained(dtype="float16")
    with pytest.raises(ConfigError, match=r"a backend of device='cuda'; on 'cpu' it is auto, runs$"):
        model.executor(attention="flashinfer")
    with pytest.raises(ConfigError, match=r"a backend of device='cpu'; on 'cuda' it is auto, flashinfer, keys$"):
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
    assert NAMES[0] == "auto" and len(set(NAMES)) == 4
