"""Models, the CUDA executor on the simulated device, and the one probe for a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prelude.cuda import driver, weights
from prelude.cuda.executor import CudaExecutor
from prelude.cuda.graphs import GraphPolicy

from prelude.models.checkpoint import Checkpoint
from tests.checkpoints import save_model
from tests.cuda.plans import BLOCKS
from tests.cuda.simulated import SimulatedCalls, SimulatedDevice
from tests.execution.helpers import BLOCK, Model
from tests.threads import use_threads

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "llama-biases": {"family": "llama", "attention_bias": True, "mlp_bias": True},
    "groups-of-4": {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16},
    "windows": {"family": "mistral", "sliding_window": 24, "tie_word_embeddings": False},
    "windows-in-some-layers": {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1},
    "every-second-layer-rotates": {"family": "smollm3", "head_dim": 16, "no_rope_layer_interval": 2},
    "every-third-layer-does-not": {"family": "smollm3", "head_dim": 16, "no_rope_layer_interval": 3},
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


def on_device(model: Model, *, levels: bool = True, **options: Any) -> CudaExecutor:
    """The CUDA executor on a simulated device; ``levels``: attention as FlashInfer does it, else by key lists."""
    config, heads = model.config, model.config.spec.attention
    of_device = {name: options.pop(name) for name in ("deterministic", "memory") if name in options}
    device = options.pop("device", None) or SimulatedDevice(**of_device)
    with device.scope(), Checkpoint.open(model.path, config) as checkpoint:
        loaded = weights.load(device, checkpoint, config.spec, config.max_positions)
    if levels and "calls" not in options:
        options["calls"] = SimulatedCalls(device, heads.heads, heads.kv_heads, heads.head_dim)
    sizes = {"num_blocks": BLOCKS, "block_size": BLOCK, "step_tokens": 1024, "step_rows": 64}
    settings: dict[str, Any] = {"policy": GraphPolicy(enabled=False), **sizes} | options
    return CudaExecutor(config, loaded, device, **settings)
