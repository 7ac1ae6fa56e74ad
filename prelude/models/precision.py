"""In which types a CPU keeps weights and computes: the choice that ``dtype`` leaves open, and its reason."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from prelude._native import cpu
from prelude.errors import DeviceUnavailable, ModelError
from prelude.models.arrays import BF16, FLOAT32, ROW_TYPES, Packing, name_of
from prelude.models.packed_file import PRODUCED, Converted
from prelude.models.read_weights import WeightSource
from prelude.models.spec import ModelSpec
from prelude.records import dataclass
from prelude.values.config import Quantization


@dataclass(frozen=True, slots=True)
class Precision:
    dtype: np.dtype[Any]
    """Type of rows, keys and values."""
    packing: Packing
    """Type of the weights of the layers and of the LM head."""
    reason: str

    @property
    def rows(self) -> str:
        """The name of ``dtype``."""
        return name_of(self.dtype)

    @property
    def weights(self) -> str:
        """The type that those weights are kept in."""
        return "bfloat16" if self.packing == "widened" else self.packing


def choose(dtype: str, source: WeightSource, spec: ModelSpec, quantization: Quantization | None = None) -> Precision:
    """``auto`` keeps weights of bfloat16 and float16 as they are and computes in float32, which loses nothing; other
    weights become float32. ``ValueError`` for a ``dtype`` that a CPU does not have, ``ModelError`` if ``source``
    was converted for another choice, ``DeviceUnavailable`` for a processor without vectors."""
    require_vectors()
    if source.converted is not None:
        return _of_converted(source.converted, dtype, quantization)
    if quantization is not None:
        chosen = resolved("float32" if dtype == "auto" else dtype)
        return Precision(chosen, quantization, f"quantization={quantization!r}")
    if dtype != "auto":
        chosen = resolved(dtype)
        half: Packing = "bfloat16" if cpu.QUICK_PAIRS else "widened"
        return Precision(chosen, half if chosen == BF16 else "float32", f"dtype={name_of(chosen)!r}")
    numbers = [name for name in _matrices(source, spec) if not source.in_blocks(name)]
    stored = sorted({name_of(source.tensor(name).dtype) for name in numbers}) or ["blocks of a few bits"]
    files = f"the files have {' and '.join(stored)}"
    kept: Packing | None = "widened" if "bfloat16" in stored else "float16" if "float16" in stored else None
    if kept is None:
        return Precision(FLOAT32, "float32", f"dtype='auto': {files}, rows are computed in float32")
    reason = f"dtype='auto': {files}; weights of two bytes are kept and rows computed in float32, which loses nothing"
    return Precision(FLOAT32, kept, reason)


def _of_converted(made: Converted, dtype: str, quantization: Quantization | None) -> Precision:
    chosen = resolved(made.dtype)
    if (dtype != "auto" and resolved(dtype) != chosen) or quantization not in (None, made.quantization):
        raise ModelError(
            f"this directory was converted for dtype={made.dtype!r} and quantization={made.quantization!r}, not for "
            f"dtype={dtype!r} and quantization={quantization!r}; load the one that it was converted from"
        )
    if any(packing not in cpu.PACKED_KERNELS for packing in PRODUCED[made.packing]):
        raise ModelError(
            f"this directory was converted for {made.packing} products, for which this processor has no "
            "instruction; load the one that it was converted from"
        )
    return Precision(chosen, made.packing, f"converted for dtype={made.dtype!r}, quantization={made.quantization!r}")


def require_vectors() -> None:
    """Raise ``DeviceUnavailable`` if products have no vectors, which ``PRELUDE_CPU_KERNELS=portable`` may ask for."""
    if cpu.PACKED_KERNELS["float32"] == "portable" and os.environ.get("PRELUDE_CPU_KERNELS") != "portable":
        raise DeviceUnavailable(
            "models on a CPU need AVX2, FMA and F16C, or NEON, which this processor has not: take an x86 processor "
            "of 2013 or newer, 64-bit ARM, or device='cuda'",
            missing=("AVX2 or NEON",),
        )


def resolved(dtype: str) -> np.dtype[Any]:
    found = ROW_TYPES.get(dtype)
    if found is None:
        raise ValueError(f"dtype is {dtype!r}; on a CPU it may be auto, float32 or bfloat16")
    return found


def _matrices(source: WeightSource, spec: ModelSpec) -> Iterator[str]:
    """Yield the names of the layers' matrices."""
    there = frozenset(source.names())
    for layer in spec.layers:
        yield from (name for name, shape in layer.tensors() if len(shape) == 2 and name in there)
