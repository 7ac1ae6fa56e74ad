"""The methods of a checkpoint that readers of weights use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from prelude.models.arrays import KEPT, Array, Packing
from prelude.models.gguf.blocks import Blocks
from prelude.models.mapped_file import UsedFile
from prelude.models.packed_file import Converted, Kept
from prelude.models.spec import ModelSpec


class WeightSource(Protocol):
    """The used methods of a checkpoint."""

    def names(self) -> Sequence[str]: ...

    def tensor(self, name: str) -> Array: ...

    def finite(self, name: str) -> Array: ...

    def in_blocks(self, name: str) -> bool:
        """Return whether a weight is stored in blocks of a few bits."""

    def blocks(self, name: str) -> Blocks:
        """Return a weight that is ``in_blocks``."""

    @property
    def converted(self) -> Converted | None:
        """The choice that packed weights were made for; None if there are none."""

    def packed(self, names: Sequence[str]) -> tuple[Array, Kept] | None:
        """The words of the weight that was packed of ``names``, and their description; None if they are stored as
        weights."""

    @property
    def used(self) -> UsedFile | None:
        """The file whose words stay in use where they lie, once one was read."""


class SizedSource(Protocol):
    """The used methods of a checkpoint for the number of bytes of its weights."""

    def nbytes(self, itemsize: int, keep: bool = False) -> int: ...


def weight_bytes(source: SizedSource, spec: ModelSpec, dtype: np.dtype[Any], packing: Packing) -> int:
    """About the bytes that ``load_weights`` will hold: a byte for each weight of the layers and of the LM head if
    they are of int8, beside the others in ``dtype``."""
    if packing != "int8":
        return source.nbytes(dtype.itemsize, keep=packing in KEPT)
    matrices = [shape for layer in spec.layers for _, shape in layer.tensors() if len(shape) == 2]
    if spec.lm_head is not None:
        matrices.append((spec.embeddings.vocab, spec.hidden))
    quantized = sum(math.prod(shape) for shape in matrices)
    return quantized + max(0, spec.num_parameters() - quantized) * dtype.itemsize
