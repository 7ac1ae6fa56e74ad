"""Models, executors on the simulated device beside the CPU one, and the one probe for a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from prelude.cuda import driver, weights
from prelude.cuda.executor import CudaExecutor
from prelude.cuda.graphs import GraphPolicy

from prelude.models.checkpoint import Checkpoint
from tests.checkpoints import save_model
from tests.cuda import twins
from tests.cuda.plans import BLOCKS
from tests.cuda.simulated import SimulatedCalls, SimulatedDevice
from tests.execution.helpers import BLOCK, Model
from tests.threads import use_threads

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "llama-biases": {"family": "llama", "attention_bias": True, "mlp_bias": True},
    "groups-of-4": {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16},
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test near CUDA has a time limit; those marked ``gpu`` run where the probe finds one."""
    lacks = driver.missing()
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600))
        if item.get_closest_marker("gpu") is not None and lacks:
            item.add_marker(pytest.mark.skip(reason="no GPU: " + "; ".join(lacks)))


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    before = use_threads(1)
    yield
    use_threads(before)


@pytest.fixture(scope="session", params=list(VARIANTS))
def variant(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(save_model(tmp_path_factory.mktemp(request.param), **VARIANTS[request.param]))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(save_model(tmp_path_factory.mktemp("model")))


def simulated(model: Model, *, levels: bool = True, **options: Any) -> CudaExecutor:
    """The CUDA executor on a simulated device; ``levels``: attention as FlashInfer does it, else by key lists."""
    config = model.config
    twins.HEAD_DIM = config.spec.attention.head_dim
    device = options.pop("device", None) or SimulatedDevice(
        options.pop("element", torch.float32),
        deterministic=options.pop("deterministic", False),
        memory=options.pop("memory", 1 << 34),
    )
    with device.scope(), Checkpoint.open(model.path, config) as checkpoint:
        loaded = weights.load(device, checkpoint, config.spec, config.max_positions)
    heads = config.spec.attention
    calls = SimulatedCalls(device, heads.heads, heads.kv_heads, heads.head_dim) if levels else None
    settings: dict[str, Any] = {
        "num_blocks": BLOCKS,
        "block_size": BLOCK,
        "step_tokens": 1024,
        "step_rows": 64,
        "policy": GraphPolicy(enabled=False),
    }
    return CudaExecutor(config, loaded, device, calls=calls, **settings | options)


@pytest.fixture
def on_device() -> Callable[..., CudaExecutor]:
    return simulated
