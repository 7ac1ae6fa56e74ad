from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.execution.helpers import Model, save_model

VARIANTS = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "sharded": {"shard": "60KB"},
    "bf16-files": {"dtype": torch.bfloat16},
    "no-groups": {"num_key_value_heads": 4},
    "groups-of-4": {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16},
    "one-kv-head": {"num_key_value_heads": 1},
}


@pytest.fixture(scope="session", params=list(VARIANTS))
def variant(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    path: Path = tmp_path_factory.mktemp(request.param)
    return Model(save_model(path, **VARIANTS[request.param]))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(save_model(tmp_path_factory.mktemp("model")))
