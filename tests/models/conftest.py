"""Small real checkpoints, written by transformers and safetensors, and ways to spoil a copy of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prelude.errors import CheckpointError, ModelError
from prelude.models.checkpoint import Checkpoint
from prelude.models.config import ModelConfig
from tests.checkpoints import TINY, write_checkpoint

KINDS: dict[str, dict[str, Any]] = {
    "untied": {}, "tied": {"tie_word_embeddings": True}, "bf16": {"dtype": "bfloat16"},
    "sharded": {"shard": "20KB", "dtype": "bfloat16"}, "sharded_tied": {"shard": "20KB", "tie_word_embeddings": True},
    "biased": {"attention_bias": True}, "multi_query": {"num_key_value_heads": 1, "head_dim": 16},
    "llama": {"family": "llama"},
    "llama_biased": {"family": "llama", "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "qwen2": {"family": "qwen2"}, "mistral": {"family": "mistral"},
}  # fmt: skip


FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
Copy = Callable[[str], Path]


def open_checkpoint(directory: Path, **options: Any) -> Checkpoint:
    return Checkpoint.open(directory, ModelConfig.from_dir(directory), **options)


def refused(directory: Path, match: str, error: type[ModelError] = CheckpointError, **options: Any) -> None:
    """Opening raises ``error``, matching, with a message of bounded length."""
    with pytest.raises(error, match=match) as failure:
        open_checkpoint(directory, **options)
    assert len(str(failure.value)) < 1000


def loaded(checkpoint: Checkpoint) -> dict[str, Any]:
    """Copies of all weights as they are stored, as tensors, of files that did not change."""
    from tests.tensors import torch_of

    weights = {name: torch_of(checkpoint.tensor(name)).clone() for name in checkpoint}
    checkpoint.check_unchanged()
    return weights


def edit_json(path: Path, *remove: str, **changes: Any) -> None:
    value = json.loads(path.read_text(encoding="utf-8"))
    value.update(changes)
    for key in remove:
        del value[key]
    path.write_text(json.dumps(value), encoding="utf-8")


def edit_weights(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Rewrite the file ``path`` after ``change`` did something to its tensors by name."""
    from safetensors.torch import load, save_file

    tensors = load(path.read_bytes())
    tensors = change(tensors) or tensors
    save_file(tensors, path)


def reference_weights(directory: Path) -> dict[str, Any]:
    """The tensors that the reference library reads."""
    from safetensors.torch import load

    found: dict[str, Any] = {}
    for path in sorted(directory.glob("*.safetensors")):
        found.update(load(path.read_bytes()))
    return found


@pytest.fixture(scope="session")
def checkpoint_dir(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """``checkpoint_dir("tied")`` is a directory written by transformers; not to be changed."""
    made: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in made:
            made[kind] = write_checkpoint(tmp_path_factory.mktemp(kind), TINY, **KINDS[kind])
        return made[kind]

    return make


@pytest.fixture
def copy_of(checkpoint_dir: Copy, tmp_path: Path) -> Copy:
    """``copy_of("tied")`` is a directory of one's own."""

    def copy(kind: str) -> Path:
        return Path(shutil.copytree(checkpoint_dir(kind), tmp_path / kind))

    return copy
