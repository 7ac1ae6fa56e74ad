"""A batch as bytes for the other ranks: one JSON text that has types and scalars, then the arrays. Nothing in it is
ever executed.

    4 bytes   N, little endian
    N bytes   {"batch": as ``dump.flatten`` makes it, "arrays": [[name, dtype, shape], ...]}
    the rest  the arrays one behind the other, each at a multiple of 8 bytes
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from prelude.execution.dump import build, flatten
from prelude.readouts.batch import DecodeBatch, ForwardBatch, MixedBatch, OneShotBatch

PULSE = b""
"""Says that rank 0 lives."""
CLOSE = b"close"
_TYPES = ("int32", "int64", "uint64", "float32", "float64", "bool")


def encoded(batch: ForwardBatch) -> bytes:
    arrays: dict[str, npt.NDArray[Any]] = {}
    tree = flatten(batch, "", arrays)
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
        if dtype not in _TYPES:
            raise ValueError(f"array {name} of a batch has the type {dtype}")
        count = math.prod(shape)
        arrays[name] = np.frombuffer(message, dtype, count, at).reshape(shape)
        at += arrays[name].nbytes + (-arrays[name].nbytes % 8)
    batch = build(said["batch"], arrays)
    if not isinstance(batch, (OneShotBatch, DecodeBatch, MixedBatch)):
        raise ValueError(f"the message holds a {type(batch).__name__}, not a batch")
    return batch
