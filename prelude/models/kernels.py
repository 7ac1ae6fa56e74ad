"""The native CPU kernels on tensors, and how many threads they run in. ``_native/tensors.pxi`` has the kernels that
are named here; ``mixer_sides.py`` calls several of them at once. Other kernels take addresses and strides, which
their callers read.

Every call gives a row the same bits with any other rows and with any number of threads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from prelude._native import cpu
from prelude._native.cpu import activate_tensor as activate
from prelude._native.cpu import is_half as is_half
from prelude._native.cpu import layer_norm_tensor as layer_norm
from prelude._native.cpu import norm_tensor as rms_norm
from prelude._native.cpu import rotate_tensor as rotate
from prelude._native.cpu import write_pool_tensors as write_pool
from prelude.models.processors import default_threads

VECTOR_MATH = ("exp", "log", "tanh")
"""The functions of torch that the product calls and that torch's builds for x86 leave to MKL's vector library."""


def choose_vector_math() -> None:
    """Call each of ``VECTOR_MATH`` once on one value.

    MKL chooses the code of a function at its first call. When two of torch's threads make that call at once, one of
    them may run code of lower accuracy (pytorch issue 188792): cosines were wrong by 1.5e-4 in some processes. One
    value is computed by one thread.
    """
    for name in VECTOR_MATH:
        for dtype in (torch.float32, torch.float64):
            getattr(torch, name)(torch.ones(1, dtype=dtype))


choose_vector_math()
cpu.set_threads(default_threads())
cpu.know_tensors(torch.float32, torch.bfloat16, torch.int64, torch.complex64, torch.empty)


def address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()


__all__ = [
    "activate",
    "address",
    "is_half",
    "layer_norm",
    "rms_norm",
    "rotate",
    "write_pool",
]
