"""Tensors of torch, which the oracles are made of, and our arrays, in one memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from prelude.cuda.weights import torch_of

from prelude.models.arrays import BF16, Array


def array_of(tensor: torch.Tensor) -> Array:
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(BF16)
    return tensor.numpy()


class on_tensors:
    """``of``, a function or an object of arrays, as one of tensors, whose memory it reads and writes."""

    def __init__(self, of: Any) -> None:
        self._of = of

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        found = self._of(*map(_given, arguments), **{name: _given(value) for name, value in named.items()})
        return torch_of(found) if isinstance(found, np.ndarray) else on_tensors(found) if callable(found) else found

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._of, name)
        return on_tensors(found) if callable(found) else found


def _given(value: Any) -> Any:
    return array_of(value) if isinstance(value, torch.Tensor) else value
