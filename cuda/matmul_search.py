"""Which algorithm does which matmul: asked of the device once, kept on disk.

cuBLAS chooses by a model of its own, which for the few rows of a captured step is often far from the best. ``search``
times every algorithm that cuBLASLt suggests for a shape, on the weight itself and with a cold cache, against torch's
own way, and keeps the fastest whose numbers are right; the best are timed a second time, more often. It runs when the
engine is warmed up, never for a request. Its choices are stored in ``$PRELUDE_CACHE/cuda/matmuls-*.json``, named by
GPU and library, and are checked before they are used. Rows that were not searched take the algorithm of the next
searched number of rows, if the library accepts it for them.

A search takes at most ``ROOM`` bytes, and half of the memory that is free: numbers are compared a slice of columns
at a time. A search that fails leaves its matmul to torch, and says so once.

    {"128x4096x1024:1024,4096:bf16": {"algorithm": "<128 hex digits>", "workspace": 0, "us": ..., "torch_us": ...}}

``"algorithm": null``: nothing was faster than torch.
"""

from __future__ import annotations

import logging
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prelude._native.gpu import power_bucket, token_bucket
from prelude.cuda import kept_choices
from prelude.cuda.cublaslt import ALIGNMENT, Algorithm, CublasLt, Matmul
from prelude.cuda.driver import CudaError

log = logging.getLogger("prelude.cuda")

if TYPE_CHECKING:
    from prelude.cuda.device import Mark
    from torch import Tensor

WORKSPACE = 32 << 20
"""Bytes an algorithm may ask for."""
SPOIL = 128 << 20
"""Bytes written between two timed runs, so that the weight comes from memory, as it does in a step."""
_SPOILING = SPOIL / 1e13
"""Seconds that writing them takes at the least: no GPU that is served has such a memory."""
_MOST_SPOILS = 64
ROOM = 512 << 20
"""Bytes that a search may take for its operands and for the reference results."""
LARGE_ROWS = (4096, 8192)
"""Rows of steps that run eagerly, which stand for all above 2,048."""
_SLICE = 32 << 20
"""Bytes of a slice of columns that is compared, in float32."""
_MOST_CHOSEN = 8192
_RUNS, _MORE_RUNS, _BEST = 5, 20, 5
_TOLERANCE = 2e-2
"""Tolerance as a part of the largest value: bfloat16 rounds at 4e-3, and split sums round more than once."""


class MatmulSearch:
    """The chosen algorithms of one device. ``workspace`` and ``spoil`` are device memory, taken once."""

    def __init__(
        self,
        library: CublasLt,
        stream: int,
        name: str,
        workspace: Tensor,
        spoil: Tensor,
        mark: Callable[[], Mark],
        folder: Path | None = None,
        free: Callable[[], int] = lambda: 1 << 40,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``free``: bytes of device memory that are free; ``clock``: the host's, in seconds."""
        self._library = library
        self._stream = stream
        self._workspace = workspace
        self._spoil = spoil
        self._mark = mark
        path = kept_choices.path_of("matmuls", name, str(library.version))
        self.path = path if folder is None else folder / path.name
        self._kept: dict[str, dict[str, Any]] = kept_choices.read(self.path, _sound)
        self._chosen: dict[Matmul, Algorithm | None] = {}
        self._free = free
        self._clock = clock
        self.failed: dict[str, str] = {}  # why a matmul was not searched, in this process

    def close(self) -> None:
        """Gives the library's handle back; its products have run."""
        self._library.close()

    def run(self, x: Tensor, weight: Tensor, out: Tensor, add: bool) -> bool:
        """Enqueues ``out (+)= x @ weight.T`` by the chosen algorithm; False if there is none."""
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
        if matmul is None or matmul.key in self._kept or matmul.key in self.failed:
            return
        try:
            room = min(ROOM, self._free() // 2)
            needed = _bytes_of(x) + _bytes_of(out) + 3 * min(_SLICE, out.shape[0] * out.shape[1] * 4)
            if needed > room:
                raise MemoryError(f"it needs {needed:,} bytes, {room:,} may be taken")
            self._kept[matmul.key] = self._search(matmul, x, weight, out, otherwise)
        except (RuntimeError, MemoryError) as error:  # torch's own way is always there
            self.failed[matmul.key] = f"{type(error).__name__}: {error}"
            log.warning("no algorithm was searched for matmul %s: %s", matmul.key, self.failed[matmul.key])
            return
        self._chosen.clear()
        kept_choices.add(self.path, _sound, self._kept)

    def _search(
        self,
        matmul: Matmul,
        x: Tensor,
        weight: Tensor,
        out: Tensor,
        otherwise: Callable[[Tensor, Tensor], None],
    ) -> dict[str, Any]:
        # Numbers of our own: while a shape is recorded, its buffers hold anything. Strides as in the step.
        some = _like(x).normal_()
        scratch = _like(out)

        def work(algorithm: Algorithm) -> Callable[[], None]:
            return lambda: self._run(matmul, algorithm, some, weight, scratch)

        def torchs() -> None:
            otherwise(some, scratch)

        right = [
            algorithm
            for algorithm in self._library.candidates(matmul, self._workspace.nbytes)
            if algorithm.workspace <= self._workspace.nbytes
            and _right(work(algorithm), scratch, some, weight, matmul.add)
        ]
        first = sorted(right, key=lambda algorithm: self.seconds(work(algorithm), _RUNS))
        baseline = seconds = self.seconds(torchs, _MORE_RUNS)
        best: Algorithm | None = None
        for algorithm in first[:_BEST]:
            taken = self.seconds(work(algorithm), _MORE_RUNS)
            if taken < seconds:
                best, seconds = algorithm, taken
        entry: dict[str, Any] = {"algorithm": None, "workspace": 0}
        if best is not None:
            entry = {"algorithm": best.data.hex(), "workspace": best.workspace}
        return entry | {"us": seconds * 1e6, "torch_us": baseline * 1e6}

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

    def seconds(self, work: Callable[[], object], runs: int = _RUNS) -> float:
        """Median seconds on the device, from a cold cache. While the host enqueues ``work`` the device writes
        ``_spoil``, as often as that takes: a device that waits for the host shows the host's time."""
        taken: list[float] = []
        spoils = 1
        work()
        while len(taken) < runs:
            for _ in range(spoils):
                self._spoil.zero_()
            began = self._clock()
            begin = self._mark()
            work()
            end = self._mark()
            enqueued = self._clock() - began
            end.wait()
            if enqueued > spoils * _SPOILING and spoils < _MOST_SPOILS:
                spoils *= 2
            else:
                taken.append(end.seconds_since(begin))
        return statistics.median(taken)

    # ------------------------------------------------------------------ kept choices

    def _choice(self, matmul: Matmul) -> Algorithm | None:
        if matmul in self._chosen:
            return self._chosen[matmul]
        found = None
        for key in _keys(matmul):
            entry = self._kept.get(key)
            if entry is None:
                continue
            if entry["algorithm"] is not None:
                found = Algorithm(bytes.fromhex(entry["algorithm"]), entry["workspace"])
                if found.workspace > self._workspace.nbytes or not self._library.accepts(matmul, found):
                    found = None
                    if key == matmul.key:
                        del self._kept[key]  # to be searched again
            break
        if len(self._chosen) >= _MOST_CHOSEN:
            self._chosen.clear()
        self._chosen[matmul] = found
        return found


def _like(rows: Tensor) -> Tensor:
    """Other memory, laid out alike."""
    return rows.new_empty((rows.shape[0], rows.stride(0)))[:, : rows.shape[1]]


def _bytes_of(rows: Tensor) -> int:
    return rows.shape[0] * rows.stride(0) * rows.itemsize


def _right(work: Callable[[], None], out: Tensor, x: Tensor, weight: Tensor, add: bool) -> bool:
    """Return whether ``work`` puts ``x @ weight.T`` into ``out``, or adds it to ``out``."""
    before = 1.0 if add else float("nan")
    out.fill_(before)
    try:
        work()
    except CudaError:
        return False
    columns = max(1, _SLICE // (4 * out.shape[0]))
    for start in range(0, out.shape[1], columns):
        part = out[:, start : start + columns].float()
        wanted = (x @ weight[start : start + columns].t()).float()
        if add:
            wanted += before
        limit = _TOLERANCE * wanted.abs().max()
        if not bool((part - wanted).abs().max() <= limit):  # a NaN is not
            return False
    return True


def _keys(matmul: Matmul) -> list[str]:
    """Return keys of the choices that may serve: its own, then those of the rows that are searched in its place."""
    rows = matmul.rows
    near = [token_bucket(rows), power_bucket(rows)]
    if rows > token_bucket(LARGE_ROWS[0] // 2):
        near = [min(LARGE_ROWS, key=lambda searched: abs(searched - rows))]
    return [matmul.key, *(replace(matmul, rows=other).key for other in near)]


def matmul_of(x: Tensor, weight: Tensor, out: Tensor, add: bool) -> Matmul | None:
    """Return None for matmuls without a search: other types, rows that do not lie in one piece, odd addresses."""
    import torch

    if x.dtype != torch.bfloat16 or weight.dtype != torch.bfloat16 or not weight.is_contiguous():
        return None
    if out.dtype not in (torch.float32, torch.bfloat16) or x.stride(1) != 1 or out.stride(1) != 1 or not x.shape[0]:
        return None
    if any(pointer.data_ptr() % ALIGNMENT for pointer in (x, weight, out)):
        return None
    rows, inner = x.shape
    return Matmul(rows, out.shape[1], inner, x.stride(0), out.stride(0), out.dtype == torch.float32, add)


def _sound(entry: Any) -> bool:
    if not isinstance(entry, dict):
        return False
    algorithm, workspace = entry.get("algorithm"), entry.get("workspace")
    if algorithm is not None and not (isinstance(algorithm, str) and re.fullmatch("[0-9a-f]{128}", algorithm)):
        return False
    return isinstance(workspace, int) and workspace >= 0
