"""In which types a CPU keeps weights and computes: the choice that ``dtype`` leaves open, and its reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from prelude._native import cpu
from prelude.config import Quantization
from prelude.models.kernels import wide
from prelude.models.packed import Packing
from prelude.models.spec import ModelSpec
from prelude.models.weights import WeightSource

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Precision:
    dtype: torch.dtype
    """Of rows, keys and values, and of weights without a packing."""
    packing: Packing | None
    """Of the weights of the layers and of the LM head: "int8", "bfloat16", "widened", or ``None``."""
    reason: str

    @property
    def weights(self) -> str:
        """The type that those weights are kept in."""
        if self.packing == "widened":
            return "bfloat16"
        return _name(self.dtype) if self.packing is None else self.packing


def choose(
    dtype: str | torch.dtype, source: WeightSource, spec: ModelSpec, quantization: Quantization | None = None
) -> Precision:
    """``auto`` keeps weights of bfloat16 as they are and computes in float32, which loses nothing; other weights
    become float32. ``ValueError`` for a ``dtype`` that a CPU does not have."""
    if quantization is not None:
        chosen = resolved("float32" if dtype == "auto" else dtype)
        return Precision(chosen, quantization, f"quantization={quantization!r}")
    if dtype != "auto":
        chosen = resolved(dtype)
        pairs = chosen == torch.bfloat16 and wide() and "bfloat16" in cpu.PACKED_KERNELS
        return Precision(chosen, "bfloat16" if pairs else None, f"dtype={_name(chosen)!r}")
    numbers = [name for name in _matrices(source, spec) if not source.in_blocks(name)]
    stored = sorted({_name(source.tensor(name).dtype) for name in numbers}) or ["blocks of a few bits"]
    files = f"the files have {' and '.join(stored)}"
    if "bfloat16" not in stored:
        return Precision(torch.float32, None, f"dtype='auto': {files}, rows are computed in float32")
    if not wide() or cpu.PACKED_KERNELS["widened"] == "portable":
        reason = f"dtype='auto': {files}, but this machine has no vector kernels for weights of bfloat16"
        return Precision(torch.float32, None, reason)
    reason = f"dtype='auto': {files}; weights of bfloat16 are kept and rows computed in float32, which loses nothing"
    return Precision(torch.float32, "widened", reason)


def resolved(dtype: str | torch.dtype) -> torch.dtype:
    found = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if found is None or found not in DTYPES.values():
        raise ValueError(f"dtype is {dtype!r}; on a CPU it may be auto, float32 or bfloat16")
    return found


def _matrices(source: WeightSource, spec: ModelSpec) -> Iterator[str]:
    """The names of the layers' matrices."""
    there = frozenset(source.names())
    for layer in spec.layers:
        yield from (name for name, shape in layer.tensors() if len(shape) == 2 and name in there)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
