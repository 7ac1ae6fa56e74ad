"""A batch as a file, so that a step can be looked at and run again on any executor.

    save("step.npz", batch)                        executor.wait(executor.submit(load("step.npz")))

The file is a plain ``.npz``: one array per array of the batch under its dotted name, and one JSON text that says
which types and scalars lie around them. Nothing in it is ever executed.
"""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from prelude.readouts import BATCH_TYPES
from prelude.readouts.batch import (
    DecodeBatch,
    DecodeRows,
    ForwardBatch,
    MixedBatch,
    OneShotBatch,
    PromptSlices,
)

_SHAPE = "batch.json"
_TYPES: dict[str, type] = {
    kind.__name__: kind for kind in (OneShotBatch, DecodeBatch, MixedBatch, PromptSlices, DecodeRows, *BATCH_TYPES)
}


def save(path: str | Path, batch: ForwardBatch) -> None:
    arrays: dict[str, npt.NDArray[Any]] = {}
    shape = json.dumps(flatten(batch, "", arrays))
    arrays[_SHAPE] = np.frombuffer(shape.encode(), np.uint8)
    with open(path, "wb") as file:  # a file of our own: savez would add a suffix to a name without one
        np.savez(file, **arrays)  # type: ignore[arg-type]


def load(path: str | Path) -> ForwardBatch:
    """Raises ``ValueError`` for a file that does not hold a batch."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    if _SHAPE not in arrays:
        raise ValueError(f"{path}: not a dumped batch, it has no {_SHAPE}")
    batch = build(json.loads(arrays[_SHAPE].tobytes()), arrays)
    if not isinstance(batch, (OneShotBatch, DecodeBatch, MixedBatch)):
        raise ValueError(f"{path}: holds a {type(batch).__name__}, not a batch")
    return batch


def flatten(value: Any, name: str, arrays: dict[str, npt.NDArray[Any]]) -> Any:
    if isinstance(value, np.ndarray):
        arrays[name] = value
        return {"array": name}
    if isinstance(value, tuple):
        return [flatten(item, f"{name}.{i}", arrays) for i, item in enumerate(value)]
    if is_dataclass(value):
        parts = {
            f.name: flatten(getattr(value, f.name), f"{name}.{f.name}".strip("."), arrays) for f in fields(value)
        }
        return {"type": type(value).__name__, "fields": parts}
    return value


def build(shape: Any, arrays: dict[str, npt.NDArray[Any]]) -> Any:
    if isinstance(shape, list):
        return tuple(build(item, arrays) for item in shape)
    if not isinstance(shape, dict):
        return shape
    if "array" in shape:
        return arrays[shape["array"]]
    kind = _TYPES.get(shape.get("type", ""))
    if kind is None:
        raise ValueError(f"unknown type {shape.get('type')!r} in a dumped batch")
    return kind(**{name: build(part, arrays) for name, part in shape["fields"].items()})
