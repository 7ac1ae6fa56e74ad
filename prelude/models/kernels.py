"""The native CPU kernels on tensors, and torch's threads to run them on. ``_native/tensors.pxi`` has the kernels that
are named here; ``mixer_sides.py`` calls several of them at once. Other kernels take addresses and strides, which
their callers read.

Every call gives a row the same bits with any other rows and with any number of threads.

torch's own pool does the work: its OpenMP threads spin for a while after each operation, and threads of our own
would fight them for the cores. ``GOMP_parallel``, the entry that libgomp and LLVM's library share, is looked up
in the library that torch itself is linked to. Where it is not found, as on macOS and Windows, kernels run in the
calling thread.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prelude._native import cpu
from prelude._native.cpu import Product as Product
from prelude._native.cpu import ThreadPlaces as ThreadPlaces
from prelude._native.cpu import activate_tensor as activate
from prelude._native.cpu import is_half as is_half
from prelude._native.cpu import layer_norm_tensor as layer_norm
from prelude._native.cpu import norm_tensor as rms_norm
from prelude._native.cpu import rotate_tensor as rotate
from prelude._native.cpu import write_pool_tensors as write_pool


def torch_symbol(name: str) -> Any:
    """A C function of torch's own libraries or of those that they are linked to; None where there is none."""
    for library in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        path = Path(torch.__file__).parent / "lib" / library
        try:
            # Symbols of a library's own dependencies are found through its handle.
            return getattr(ctypes.CDLL(str(path)), name)
        except (OSError, AttributeError):
            continue
    return None


VECTOR_MATH = ("cos", "sin", "exp", "log", "tanh")
"""The functions of torch that the product calls and that torch's builds for x86 leave to MKL's vector library."""


def choose_vector_math() -> None:
    """Call each of ``VECTOR_MATH`` once on one value.

    MKL chooses the code of a function at its first call. When two of torch's threads make that call at once, one of
    them may run code of lower accuracy (pytorch issue 188792): in some processes the cosines of the first rope table
    were wrong by 1.5e-4, and so was every answer of the process. One value is computed by one thread.
    """
    for name in VECTOR_MATH:
        for dtype in (torch.float32, torch.float64):
            getattr(torch, name)(torch.ones(1, dtype=dtype))


choose_vector_math()
_fork = torch_symbol("GOMP_parallel")
cpu.borrow_threads(0 if _fork is None else ctypes.cast(_fork, ctypes.c_void_p).value or 0)
cpu.know_tensors(torch.float32, torch.bfloat16, torch.int64, torch.complex64, torch.get_num_threads, torch.empty)


def wide() -> bool:
    """Whether the kernels use this machine's vectors and as many threads as torch does."""
    return cpu.NAME != "portable" and (cpu.has_threads() or torch.get_num_threads() == 1)


def thread_ids(threads: int) -> list[int]:
    """Linux's ids of the threads that a kernel of ``threads`` runs in when this thread calls it; else empty."""
    return cpu.thread_ids(threads)


def address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()


__all__ = [
    "Product",
    "ThreadPlaces",
    "activate",
    "address",
    "is_half",
    "layer_norm",
    "rms_norm",
    "rotate",
    "thread_ids",
    "torch_symbol",
    "wide",
    "write_pool",
]
