"""A batch as bytes: for the other ranks, and for a file, so that a step can be run again on any executor.
Nothing in them is ever executed.

    4 bytes   N, little endian
    N bytes   {"batch": as ``_flatten`` makes it, "arrays": [[name, dtype, shape], ...]}
    the rest  the arrays one behind the other, each at a multiple of 8 bytes

    save("step", batch)                            executor.wait(executor.submit(load("step")))
"""

from __future__ import annotations

import json
import math
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

_DTYPES = ("int32", "int64", "uint64", "float32", "float64", "bool")
_TYPES: dict[str, type] = {
    kind.__name__: kind for kind in (OneShotBatch, DecodeBatch, MixedBatch, PromptSlices, DecodeRows, *BATCH_TYPES)
}


def save(path: str | Path, batch: ForwardBatch) -> None:
    Path(path).write_bytes(encoded(batch))


def load(path: str | Path) -> ForwardBatch:
    """Raise ``ValueError`` for a file that does not hold a batch."""
    try:
        return decoded(bytearray(Path(path).read_bytes()))
    except (ValueError, TypeError, LookupError) as error:
        raise ValueError(f"{path}: not a dumped batch: {error}") from error


def encoded(batch: ForwardBatch) -> bytes:
    arrays: dict[str, npt.NDArray[Any]] = {}
    tree = _flatten(batch, "", arrays)
    said = [[name, array.dtype.name, list(array.shape)] for name, array in arrays.items()]
    text = json.dumps({"batch": tree, "arrays": said}).encode()
    parts = [len(text).to_bytes(4, "little"), text, b" " * (-(4 + len(text)) % 8)]
    for array in arrays.values():
        parts += [array.tobytes(), b"\0" * (-array.nbytes % 8)]
    return b"".join(parts)


def decoded(message: bytearray) -> ForwardBatch:
    """Raise ``ValueError`` for bytes that hold no batch. Arrays are views of ``message``."""
    length = int.from_bytes(message[:4], "little")
    said = json.loads(bytes(message[4 : 4 + length]))
    at = 4 + length + (-(4 + length) % 8)
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, dtype, shape in said["arrays"]:
        if dtype not in _DTYPES:
            raise ValueError(f"array {name} of a batch has the type {dtype}")
        count = math.prod(shape)
        arrays[name] = np.frombuffer(message, dtype, count, at).reshape(shape)
        at += arrays[name].nbytes + (-arrays[name].nbytes % 8)
    batch = _build(said["batch"], arrays)
    if not isinstance(batch, (OneShotBatch, DecodeBatch, MixedBatch)):
        raise ValueError(f"the message holds a {type(batch).__name__}, not a batch")
    return batch


def _flatten(value: Any, name: str, arrays: dict[str, npt.NDArray[Any]]) -> Any:
    if isinstance(value, np.ndarray):
        arrays[name] = value
        return {"array": name}
    if isinstance(value, tuple):
        return [_flatten(item, f"{name}.{i}", arrays) for i, item in enumerate(value)]
    if is_dataclass(value):
        parts = {
            f.name: _flatten(getattr(value, f.name), f"{name}.{f.name}".strip("."), arrays) for f in fields(value)
        }
        return {"type": type(value).__name__, "fields": parts}
    return value


def _build(shape: Any, arrays: dict[str, npt.NDArray[Any]]) -> Any:
    if isinstance(shape, list):
        return tuple(_build(item, arrays) for item in shape)
    if not isinstance(shape, dict):
        return shape
    if "array" in shape:
        return arrays[shape["array"]]
    kind = _TYPES.get(shape.get("type", ""))
    if kind is None:
        raise ValueError(f"unknown type {shape.get('type')!r} in a dumped batch")
    return kind(**{name: _build(part, arrays) for name, part in shape["fields"].items()})
