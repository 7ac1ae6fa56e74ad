"""Which weight files a model directory has, and which tensor lies in which of them.

An index is untrusted: a name in it never leads out of the directory. Symbolic links out of it are
refused too (see ``files.ModelDirectory``).
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from prelude.errors import CheckpointError, ModelError, shown
from prelude.models.files import ModelDirectory
from prelude.models.safetensors_file import MAX_TENSORS
from prelude.records import dataclass

log = logging.getLogger(__name__)

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_INDEX_BYTES = 64 << 20
MAX_SHARDS = 10_000
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


@dataclass(frozen=True)
class WeightFiles:
    """Paths by file name; ``assigned`` says for each tensor which file an index put it in, if any."""

    paths: dict[str, Path]
    assigned: dict[str, str] | None


def find_weight_files(directory: ModelDirectory) -> WeightFiles:
    """Return the one file, or the shards of the index, of ``directory``."""
    if directory.has(SINGLE):
        if directory.has(INDEX):
            log.warning("%s: both %s and an index are there; the index is not used", directory, SINGLE)
        return WeightFiles({SINGLE: directory.file(SINGLE, CheckpointError)}, None)
    if directory.has(INDEX):
        assigned = _weight_map(directory)
        names = sorted(set(assigned.values()))
        if len(names) > MAX_SHARDS:
            raise CheckpointError(
                f"{directory.path / INDEX}: names {len(names):,} files, the limit is {MAX_SHARDS:,}"
            )
        return WeightFiles({name: directory.file(name, CheckpointError) for name in names}, assigned)
    raise _nothing_usable(directory.path)


def _weight_map(directory: ModelDirectory) -> dict[str, str]:
    index = directory.path / INDEX
    raw = directory.object(INDEX, MAX_INDEX_BYTES, CheckpointError)
    weight_map = raw.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: weight_map is {shown(weight_map)}, an object of file names is needed")
    if len(weight_map) > MAX_TENSORS:
        raise CheckpointError(f"{index}: weight_map has {len(weight_map):,} entries, the limit is {MAX_TENSORS:,}")
    for tensor, name in weight_map.items():
        if not _plain_file_name(name):
            raise CheckpointError(
                f"{index}: tensor {shown(tensor)} is said to lie in {shown(name)}; "
                "only the plain name of a .safetensors file beside the index is accepted"
            )
    return weight_map


def _plain_file_name(name: Any) -> bool:
    return (
        isinstance(name, str)
        and name.endswith(".safetensors")
        and len(name) <= 255
        and name.isprintable()
        and not any(character in name for character in "/\\:")
        and not name.startswith(".")
    )


def _nothing_usable(directory: Path) -> ModelError:
    try:
        names = sorted(os.listdir(directory))
    except OSError as failure:
        return ModelError(f"{directory}: cannot be read: {failure.strerror}")
    pickles = [name for name in names if name.endswith(_PICKLES)]
    others = [name for name in names if name.endswith(".safetensors")]
    if others:
        return CheckpointError(
            f"{directory}: has {shown(others)} but neither {SINGLE} nor {INDEX}, which names the file of each tensor"
        )
    if pickles:
        return ModelError(
            f"{directory}: only pickled weights ({pickles[0]}), which can run code when read; convert them where you "
            "trust them: AutoModelForCausalLM.from_pretrained(dir).save_pretrained(new_dir) with transformers"
        )
    return ModelError(f"{directory}: no weights: {SINGLE} or {INDEX} is needed")
