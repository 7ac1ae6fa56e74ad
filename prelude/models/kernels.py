"""Tensors to the addresses and strides that the native CPU kernels take, and torch's threads to run them on.

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
from prelude.models.spec import Activation


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


def wide() -> bool:
    """Whether the kernels use this machine's vectors and as many threads as torch does."""
    return cpu.NAME != "portable" and (cpu.has_threads() or torch.get_num_threads() == 1)


def thread_ids(threads: int) -> list[int]:
    """Linux's ids of the threads that a kernel of ``threads`` runs in when this thread calls it; else empty."""
    return cpu.thread_ids(threads)


_HALF = {torch.float32: False, torch.bfloat16: True}


def is_half(x: Tensor) -> bool:
    """Whether ``x`` is bfloat16; else it is float32, or ``TypeError``."""
    half = _HALF.get(x.dtype)
    if half is None:
        raise TypeError(f"the CPU kernels take float32 and bfloat16, not {x.dtype}")
    return half


def address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()


def rms_norm(x: Tensor, eps: float, gain: Tensor | None, dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
    """RMSNorm over the rows of float32 ``x`` [T, width]. ``gain`` [width] is None where the next weight has it
    inside. ``out`` [T or more, width] of ``dtype`` takes the result; its first T rows are returned. The
    values of a row lie side by side."""
    size = x.shape
    rows, width = size
    if out is None:
        out = torch.empty(rows, width, dtype=dtype)
    elif out.shape != size:
        out = out[:rows]
    half = _HALF.get(dtype)
    if half is None or out.shape != size or x.dtype != torch.float32 or out.dtype != dtype:
        raise ValueError(f"RMSNorm of {x.dtype} {list(x.shape)} into {out.dtype} {list(out.shape)}")
    gains, threads = 0 if gain is None else gain.data_ptr(), torch.get_num_threads()
    cpu.norm_rows(x.data_ptr(), x.stride(0), gains, out.data_ptr(), out.stride(0), half, rows, width, eps, threads)
    return out


def layer_norm(
    x: Tensor,
    eps: float,
    gain: Tensor | None,
    bias: Tensor | None,
    dtype: torch.dtype,
    out: Tensor | None = None,
) -> Tensor:
    """LayerNorm; see ``rms_norm`` for the arguments. ``bias`` [width] or None; ``out`` may be ``x``."""
    rows, width = x.shape
    out = torch.empty(rows, width, dtype=dtype) if out is None else out[:rows]
    if out.shape != x.shape or x.dtype != torch.float32 or out.dtype != dtype:
        raise ValueError(f"LayerNorm of {x.dtype} {list(x.shape)} into {out.dtype} {list(out.shape)}")
    cpu.norm_rows(
        x.data_ptr(),
        x.stride(0),
        address(gain),
        out.data_ptr(),
        out.stride(0),
        is_half(out),
        rows,
        width,
        eps,
        torch.get_num_threads(),
        True,
        address(bias),
    )
    return out


def rotate(heads: Tensor, gain: Tensor | None, eps: float, table: Tensor, positions: Tensor) -> None:
    """Norm per head and rotary embedding, in place: ``heads`` [T, heads, D] with the two halves of each head
    interleaved and heads side by side, ``gain`` [heads, D] float32 or None for models without that norm,
    ``table`` [positions, D / 2] complex64, ``positions`` [T] int64, each below the table's length."""
    (rows, count, width), (stride, of_heads, step) = heads.shape, heads.stride()
    if of_heads != width or step != 1:
        raise ValueError(f"heads of a token are not side by side: strides {heads.stride()}")
    if positions.shape[0] != rows or not positions.is_contiguous() or table.shape[1] * 2 != width:
        raise ValueError(
            f"{len(positions)} positions, a rope table of {table.shape[1]} pairs, heads {list(heads.shape)}"
        )
    at, threads = heads.data_ptr(), torch.get_num_threads()
    cpu.rotate_rows(
        at,
        stride,
        at,
        stride,
        is_half(heads),
        address(gain),
        rows,
        count,
        width,
        eps,
        table.data_ptr(),
        positions.data_ptr(),
        threads,
    )


class Product:
    """Products of few rows with one weight [out, in] without gaps, of which address and sizes are asked once."""

    __slots__ = ("_address", "_dtype", "_half", "_inputs", "_outputs", "_weight")

    def __init__(self, weight: Tensor) -> None:
        self._outputs, self._inputs = weight.shape
        if not weight.is_contiguous():
            raise ValueError(f"a weight with gaps: strides {weight.stride()}")
        self._weight = weight  # its memory stays where it is while this object lives
        self._address, self._dtype, self._half = weight.data_ptr(), weight.dtype, is_half(weight)

    def __call__(self, x: Tensor, out: Tensor, adds: bool = False) -> None:
        """``out = x @ weight.T`` for the few rows of ``x`` [T, in], or ``out += ...``. ``out`` [T, out] is float32
        or, where nothing is added to it, bfloat16."""
        rows, width = x.shape
        (stride, step), (out_stride, out_step), half_out = x.stride(), out.stride(), _HALF.get(out.dtype)
        outputs = self._outputs
        if width != self._inputs or x.dtype != self._dtype or out.shape != (rows, outputs) or half_out is None:
            shape = [outputs, self._inputs]
            raise ValueError(f"{x.dtype} {list(x.shape)} by {self._dtype} {shape} into {out.dtype} {list(out.shape)}")
        if step != 1 or out_step != 1:
            raise ValueError(f"values of a row are not side by side: strides {x.stride()}, {out.stride()}")
        cpu.matmul_rows(
            x.data_ptr(),
            stride,
            self._address,
            out.data_ptr(),
            out_stride,
            rows,
            width,
            outputs,
            self._half,
            half_out,
            adds,
            torch.get_num_threads(),
        )


def activate(x: Tensor, inner: int, kind: Activation, gated: bool) -> Tensor:
    """The activation of the first ``inner`` columns of ``x`` [T, inner], in its memory; where ``gated``, times the
    other half of ``x`` [T, 2 * inner]. A view of those columns is returned."""
    rows, threads = x.shape[0], torch.get_num_threads()
    if x.shape[1] != (2 if gated else 1) * inner or x.stride(1) != 1:
        raise ValueError(f"an activation of {inner} values in {list(x.shape)}")
    cpu.activate_rows(x.data_ptr(), x.stride(0), is_half(x), rows, inner, cpu.ACTIVATIONS[kind], gated, threads)
    return x[:, :inner]


def write_pool(k: Tensor, v: Tensor, pool_k: Tensor, pool_v: Tensor, slots: Tensor, tokens: Tensor | None) -> None:
    """K and V [T, kv_heads, D] of ``tokens`` (all of them for None) into ``slots`` of the pool's [S, kv_heads, D].
    Indices are int64 and contiguous; slots are distinct."""
    (places, heads, width), dtype, count = pool_k.shape, pool_k.dtype, k.shape[0]
    values, shape, half, threads = heads * width, (count, heads, width), is_half(pool_k), torch.get_num_threads()
    for x in (k, v):
        if x.dtype != dtype or x.shape != shape or x.stride()[1:] != (width, 1):
            raise ValueError(
                f"{x.dtype} {list(x.shape)} of strides {x.stride()}, with {count} keys, into {dtype} {values} a slot"
            )
    if not (pool_k.is_contiguous() and pool_v.is_contiguous()) or pool_v.shape != pool_k.shape:
        raise ValueError("a pool with gaps, or two of different sizes")
    rows = slots.shape[0]
    if tokens is not None and tokens.shape[0] != rows:
        raise ValueError(f"{tokens.shape[0]} rows of {count} keys and values for {rows} slots")
    cpu.write_pool_rows(
        k.data_ptr(),
        k.stride(0),
        v.data_ptr(),
        v.stride(0),
        pool_k.data_ptr(),
        pool_v.data_ptr(),
        values,
        count,
        places,
        0 if tokens is None else tokens.data_ptr(),
        slots.data_ptr(),
        rows,
        half,
        threads,
    )
