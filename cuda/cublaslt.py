"""The part of cuBLASLt's C interface that a searched matmul needs, through ctypes.

torch brings the library. Matrices are column-major there, so ``out[rows, outputs] = x[rows, inner] @ weight.T`` is

    D [outputs, rows] = op_T(A [inner, outputs]) @ B [inner, rows]        A = weight, B = x, C = D = out

with leading dimensions that are our rows' strides. Numbers below are the header's (read in 12.4 and 13.1).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prelude.cuda.driver import CudaError

_LIBRARIES = ("libcublasLt.so.13", "libcublasLt.so.12")
_COMPUTE_32F, _R_32F, _R_16BF, _OP_T = 68, 0, 14, 1
_DESC_TRANSA, _PREF_MAX_WORKSPACE = 3, 1
_PREF_ALIGNMENTS = (5, 6, 7, 8)  # of A, B, C, D
_NOT_SUPPORTED = 15
ALIGNMENT = 16
"""Bytes that every matrix is aligned to, and so the most that an algorithm may count on."""


class _Algorithm(ctypes.Structure):
    _fields_ = (("data", ctypes.c_uint64 * 8),)


class _Heuristic(ctypes.Structure):
    _fields_ = (
        ("algorithm", _Algorithm),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


@dataclass(frozen=True, slots=True)
class Matmul:
    """The values that a choice of algorithm depends on. ``x`` and ``weight`` are bfloat16; ``add``: into ``out``."""

    rows: int
    outputs: int
    inner: int
    x_stride: int
    out_stride: int
    out_float32: bool
    add: bool

    @property
    def key(self) -> str:
        kind = ("f32" if self.out_float32 else "bf16") + ("+" if self.add else "")
        return f"{self.rows}x{self.outputs}x{self.inner}:{self.x_stride},{self.out_stride}:{kind}"


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One of the library's ways of doing one matmul: opaque, good for one version of it on one kind of GPU."""

    data: bytes  # 64
    workspace: int  # bytes


def load() -> Any:
    """Return the library of this process. ``OSError`` if there is none."""
    for name in _LIBRARIES[:-1]:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return ctypes.CDLL(_LIBRARIES[-1])


class CublasLt:
    """``library``: a loaded cuBLASLt. Handle and descriptors live as long as this; one thread at a time."""

    def __init__(self, library: Any) -> None:
        self._library = library
        library.cublasLtGetVersion.restype = ctypes.c_size_t
        self._handle = ctypes.c_void_p()
        self._checked(library.cublasLtCreate(ctypes.byref(self._handle)), "cublasLtCreate")
        self._plans: dict[Matmul, tuple[ctypes.c_void_p, ...]] = {}

    @property
    def version(self) -> int:
        return int(self._library.cublasLtGetVersion())

    def candidates(self, matmul: Matmul, workspace: int, most: int = 64) -> list[Algorithm]:
        """Return the library's own suggestions, its first choice first; empty if it has none."""
        library = self._library
        preference = ctypes.c_void_p()
        self._checked(library.cublasLtMatmulPreferenceCreate(ctypes.byref(preference)), "a preference")
        try:
            limit, aligned = ctypes.c_uint64(workspace), ctypes.c_uint32(ALIGNMENT)
            settings: list[tuple[int, Any]] = [
                (_PREF_MAX_WORKSPACE, limit),
                *((a, aligned) for a in _PREF_ALIGNMENTS),
            ]
            for attribute, value in settings:
                code = library.cublasLtMatmulPreferenceSetAttribute(
                    preference, attribute, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value))
                )
                self._checked(code, f"preference {attribute}")
            found = (_Heuristic * most)()
            count = ctypes.c_int(0)
            description, a, b, c = self._plan(matmul)
            code = library.cublasLtMatmulAlgoGetHeuristic(
                self._handle, description, a, b, c, c, preference, most, found, ctypes.byref(count)
            )
            if code == _NOT_SUPPORTED:
                return []
            self._checked(code, "cublasLtMatmulAlgoGetHeuristic")
            return [
                Algorithm(bytes(one.algorithm), int(one.workspace)) for one in found[: count.value] if one.state == 0
            ]
        finally:
            library.cublasLtMatmulPreferenceDestroy(preference)

    def accepts(self, matmul: Matmul, algorithm: Algorithm) -> bool:
        """Return whether this library on this GPU knows an algorithm that was kept."""
        description, a, b, c = self._plan(matmul)
        chosen, result = _Algorithm.from_buffer_copy(algorithm.data), _Heuristic()
        code = self._library.cublasLtMatmulAlgoCheck(
            self._handle, description, a, b, c, c, ctypes.byref(chosen), ctypes.byref(result)
        )
        return bool(code == 0 and result.state == 0 and result.workspace <= algorithm.workspace)

    def run(
        self, matmul: Matmul, algorithm: Algorithm, x: int, weight: int, out: int, workspace: int, stream: int
    ) -> None:
        """Enqueue it. The four are device addresses; ``workspace`` has ``algorithm.workspace`` bytes."""
        description, a, b, c = self._plan(matmul)
        one, add = ctypes.c_float(1), ctypes.c_float(1 if matmul.add else 0)
        chosen = _Algorithm.from_buffer_copy(algorithm.data)
        pointer = ctypes.c_void_p
        code = self._library.cublasLtMatmul(
            self._handle,
            description,
            ctypes.byref(one),
            pointer(weight),
            a,
            pointer(x),
            b,
            ctypes.byref(add),
            pointer(out),
            c,
            pointer(out),
            c,
            ctypes.byref(chosen),
            pointer(workspace),
            ctypes.c_size_t(algorithm.workspace),
            pointer(stream),
        )
        self._checked(code, "cublasLtMatmul")

    def close(self) -> None:
        for description, *layouts in self._plans.values():
            self._library.cublasLtMatmulDescDestroy(description)
            for layout in layouts:
                self._library.cublasLtMatrixLayoutDestroy(layout)
        self._plans.clear()
        self._library.cublasLtDestroy(self._handle)

    def _plan(self, p: Matmul) -> Sequence[ctypes.c_void_p]:
        """Description, and layouts of A, B and C = D."""
        plan = self._plans.get(p)
        if plan is None:
            description, transposed = ctypes.c_void_p(), ctypes.c_int32(_OP_T)
            create = self._library.cublasLtMatmulDescCreate
            self._checked(create(ctypes.byref(description), _COMPUTE_32F, _R_32F), "a description")
            self._checked(
                self._library.cublasLtMatmulDescSetAttribute(
                    description, _DESC_TRANSA, ctypes.byref(transposed), ctypes.c_size_t(4)
                ),
                "a description's transposition",
            )
            out_type = _R_32F if p.out_float32 else _R_16BF
            plan = (
                description,
                self._layout(_R_16BF, p.inner, p.outputs, p.inner),
                self._layout(_R_16BF, p.inner, p.rows, p.x_stride),
                self._layout(out_type, p.outputs, p.rows, p.out_stride),
            )
            self._plans[p] = plan
        return plan

    def _layout(self, element: int, rows: int, columns: int, stride: int) -> ctypes.c_void_p:
        layout = ctypes.c_void_p()
        code = self._library.cublasLtMatrixLayoutCreate(
            ctypes.byref(layout), element, ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(stride)
        )
        self._checked(code, "a layout")
        return layout

    @staticmethod
    def _checked(code: int, call: str) -> None:
        if code:
            raise CudaError(f"cuBLASLt: {call}: status {code}")
