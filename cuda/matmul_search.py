"""Which algorithm does which matmul: asked of the device once, kept on disk.

cuBLAS chooses by a model of its own, which for the few rows of a captured step is often far from the best. ``search``
times every algorithm that cuBLASLt suggests for a shape, on the weight itself and with a cold cache, against torch's
own way, and keeps the fastest whose numbers are right. It runs before a shape is recorded. What was found lies in
``$PRELUDE_CACHE/cuda/matmuls-*.json``, named by GPU and library, and is checked before it is used.

    {"128x4096x1024:1024,4096:bf16": {"algorithm": "<128 hex digits>", "workspace": 0, "us": ..., "torch_us": ...}}

``"algorithm": null``: nothing was faster than torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from prelude.cuda.compiler import cache_dir
from prelude.cuda.cublaslt import ALIGNMENT, Algorithm, Matmul
from prelude.cuda.driver import CudaError

if TYPE_CHECKING:
    from prelude.cuda.device import Mark
    from torch import Tensor

WORKSPACE = 32 << 20
"""Bytes an algorithm may ask for."""
SPOIL = 128 << 20
"""Bytes written between two timed runs, so that the weight comes from memory, as it does in a step."""
_RUNS = 5
_TOLERANCE = 2e-2
"""Of the largest value: bfloat16 rounds at 4e-3, and split sums round more than once."""


class Library(Protocol):
    """``CublasLt``, or a test's substitute for it."""

    @property
    def version(self) -> int: ...

    def candidates(self, matmul: Matmul, workspace: int) -> list[Algorithm]: ...

    def accepts(self, matmul: Matmul, algorithm: Algorithm) -> bool: ...

    def run(
        self, matmul: Matmul, algorithm: Algorithm, x: int, weight: int, out: int, workspace: int, stream: int
    ) -> None: ...


class MatmulSearch:
    """The chosen algorithms of one device. ``workspace`` and ``spoil`` are device memory, taken once."""

    def __init__(
        self,
        library: Library,
        stream: int,
        name: str,
        workspace: Tensor,
        spoil: Tensor,
        mark: Callable[[], Mark],
        folder: Path | None = None,
    ) -> None:
        self._library = library
        self._stream = stream
        self._workspace = workspace
        self._spoil = spoil
        self._mark = mark
        safe = re.sub(r"[^A-Za-z0-9]+", "-", name)
        self.path = (folder or cache_dir()) / f"matmuls-{safe}-{library.version}.json"
        self._kept: dict[str, dict[str, Any]] = _read(self.path)
        self._chosen: dict[Matmul, Algorithm | None] = {}

    def run(self, x: Tensor, weight: Tensor, out: Tensor, add: bool) -> bool:
        """Enqueues ``out (+)= x @ weight.T`` by the chosen algorithm; False where there is none."""
        matmul = matmul_of(x, weight, out, add)
        if matmul is None:
            return False
        algorithm = self._choice(matmul)
        if algorithm is None:
            return False
        self._run(matmul, algorithm, x, weight, out)
        return True

    def search(
        self, x: Tensor, weight: Tensor, out: Tensor, add: bool, otherwise: Callable[[Tensor, Tensor], None]
    ) -> None:
        """Choose for this shape, unless that is done. ``otherwise(x, out)``: torch's way."""
        matmul = matmul_of(x, weight, out, add)
        if matmul is None or matmul.key in self._kept:
            return
        # Numbers of our own: while a shape is recorded, its buffers hold anything. Strides as in the step.
        some = _like(x).normal_()
        scratch = _like(out)
        right = some.float() @ weight.float().t()
        best: Algorithm | None = None
        seconds = baseline = self.seconds(lambda: otherwise(some, scratch))
        for algorithm in self._library.candidates(matmul, self._workspace.nbytes):
            if algorithm.workspace > self._workspace.nbytes:
                continue

            def work(algorithm: Algorithm = algorithm) -> None:
                self._run(matmul, algorithm, some, weight, scratch)

            if not _right(work, scratch, right, add):
                continue
            taken = self.seconds(work)
            if taken < seconds:
                best, seconds = algorithm, taken
        entry: dict[str, Any] = {"algorithm": None, "workspace": 0}
        if best is not None:
            entry = {"algorithm": best.data.hex(), "workspace": best.workspace}
        self._kept[matmul.key] = entry | {"us": seconds * 1e6, "torch_us": baseline * 1e6}
        self._chosen.pop(matmul, None)
        self._write()

    # ------------------------------------------------------------------ one matmul

    def _run(self, matmul: Matmul, algorithm: Algorithm, x: Tensor, weight: Tensor, out: Tensor) -> None:
        self._library.run(
            matmul,
            algorithm,
            x.data_ptr(),
            weight.data_ptr(),
            out.data_ptr(),
            self._workspace.data_ptr(),
            self._stream,
        )

    def seconds(self, work: Callable[[], None]) -> float:
        """Median seconds on the device, from a cold cache."""
        taken = []
        work()
        for _ in range(_RUNS):
            self._spoil.zero_()
            begin = self._mark()
            work()
            end = self._mark()
            end.wait()
            taken.append(end.seconds_since(begin))
        return statistics.median(taken)

    # ------------------------------------------------------------------ kept choices

    def _choice(self, matmul: Matmul) -> Algorithm | None:
        if matmul in self._chosen:
            return self._chosen[matmul]
        entry = self._kept.get(matmul.key)
        found = None
        if entry is not None and entry["algorithm"] is not None:
            found = Algorithm(bytes.fromhex(entry["algorithm"]), entry["workspace"])
            if found.workspace > self._workspace.nbytes or not self._library.accepts(matmul, found):
                found = None
                del self._kept[matmul.key]  # to be searched again
        self._chosen[matmul] = found
        return found

    def _write(self) -> None:
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self.path.parent)
            with os.fdopen(handle, "w") as file:
                json.dump({**_read(self.path), **self._kept}, file, indent=1)
            os.replace(temporary, self.path)


def _like(rows: Tensor) -> Tensor:
    """Other memory, laid out alike."""
    return rows.new_empty((rows.shape[0], rows.stride(0)))[:, : rows.shape[1]]


def _right(work: Callable[[], None], out: Tensor, right: Tensor, add: bool) -> bool:
    """Whether ``work`` puts ``right`` into ``out``, or adds it to ``out``."""
    before = 1.0 if add else float("nan")
    out.fill_(before)
    try:
        work()
    except CudaError:
        return False
    wanted = right + before if add else right
    error = (out.float() - wanted).abs().max()
    return bool(error <= _TOLERANCE * wanted.abs().max())  # a NaN is not


def matmul_of(x: Tensor, weight: Tensor, out: Tensor, add: bool) -> Matmul | None:
    """None for matmuls that are not searched: other types, rows that do not lie in one piece, odd addresses."""
    import torch

    if x.dtype != torch.bfloat16 or weight.dtype != torch.bfloat16 or not weight.is_contiguous():
        return None
    if out.dtype not in (torch.float32, torch.bfloat16) or x.stride(1) != 1 or out.stride(1) != 1 or not x.shape[0]:
        return None
    if any(pointer.data_ptr() % ALIGNMENT for pointer in (x, weight, out)):
        return None
    rows, inner = x.shape
    return Matmul(rows, out.shape[1], inner, x.stride(0), out.stride(0), out.dtype == torch.float32, add)


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """The entries of a file that have the form of this module; all others are searched again."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {key: entry for key, entry in found.items() if _sound(entry)}


def _sound(entry: Any) -> bool:
    if not isinstance(entry, dict):
        return False
    algorithm, workspace = entry.get("algorithm"), entry.get("workspace")
    if algorithm is not None and not (isinstance(algorithm, str) and re.fullmatch("[0-9a-f]{128}", algorithm)):
        return False
    return isinstance(workspace, int) and workspace >= 0
