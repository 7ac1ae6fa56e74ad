from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoints import save_model
from tests.execution.helpers import Model

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "sharded": {"shard": "60KB"},
    "bf16-files": {"dtype": "bfloat16"},
    "no-groups": {"num_key_value_heads": 4},
    "groups-of-4": {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16},
    "biases": {"attention_bias": True},
    "yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 256,
        }
    },
    "one-kv-head": {"num_key_value_heads": 1},
    "llama": {"family": "llama", "head_dim": None},
    "llama-tied-sharded": {"family": "llama", "tie_word_embeddings": True, "shard": "60KB"},
    "llama-groups-of-4": {"family": "llama", "num_attention_heads": 8, "head_dim": 8},
    "llama-one-kv-head": {"family": "llama", "num_key_value_heads": 1, "head_dim": 16},
    "llama-biases": {"family": "llama", "attention_bias": True, "mlp_bias": True},
    "llama-3-rope": {
        "family": "llama",
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "qwen2": {"family": "qwen2", "head_dim": 16},
    "mistral": {"family": "mistral"},
}


@pytest.fixture(scope="session", params=list(VARIANTS))
def variant(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    path: Path = tmp_path_factory.mktemp(request.param)
    return Model(save_model(path, **VARIANTS[request.param]))


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Steps this small gain nothing from threads, and on a busy machine they wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(save_model(tmp_path_factory.mktemp("model")))
