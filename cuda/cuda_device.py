"""The real device of ``device.py``, on cuda-python and torch."""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch
from prelude.cuda import compiler, cublaslt, matmul_search
from prelude.cuda.device import FIXED_ROWS
from prelude.cuda.driver import CudaError, Driver
from prelude.cuda.kernels import FILES, Argument, Kernel, check, skinny_gemm
from prelude.cuda.matmul_search import MatmulSearch
from torch import Tensor

if TYPE_CHECKING:
    from prelude.cuda.staging import Area

    from prelude.parallel.group import RankGroup

_WARM_UPS = 2
_USUAL_SHARED = 48 << 10
"""Bytes of dynamic shared memory that every launch may take."""


class CudaMark:
    __slots__ = ("_driver", "event")

    def __init__(self, driver: Driver, stream: int) -> None:
        self._driver = driver
        self.event = driver.event()
        driver.record(self.event, stream)

    def __del__(self) -> None:
        with suppress(Exception):  # the interpreter may be going down
            self._driver.give_back(self.event)

    def wait(self) -> None:
        self._driver.wait(self.event)

    def done(self) -> bool:
        return self._driver.done(self.event)

    def seconds_since(self, earlier: CudaMark) -> float:
        return self._driver.milliseconds(earlier.event, self.event) / 1e3


class CudaGraph:
    """torch captures, so that its allocator keeps the memory that libraries took meanwhile; cuda-python runs the
    result."""

    def __init__(self, driver: Driver, stream: int, recorded: torch.cuda.CUDAGraph) -> None:
        self._driver = driver
        self._stream = stream
        self._recorded: torch.cuda.CUDAGraph | None = recorded
        self.executable = driver.instantiate(int(recorded.raw_cuda_graph()))
        try:
            driver.upload(self.executable, stream)
        except BaseException:
            self.close()
            raise

    def launch(self) -> None:
        self._driver.launch_graph(self.executable, self._stream)

    def close(self) -> None:
        if self._recorded is not None:
            self._driver.destroy_graph(self.executable)
            self._recorded = None


class CudaDevice:
    """One GPU, one stream. ``element`` is bfloat16 or float32."""

    _closed = False

    def __init__(
        self,
        element: torch.dtype,
        *,
        head_dim: int,
        deterministic: bool = False,
        ordinal: int = 0,
        tune: bool = True,
        ranks: RankGroup | None = None,
    ) -> None:
        """``tune``: matmuls of recorded steps run by the algorithms that ``matmul_search.py`` finds fastest;
        ``ranks``: of a tensor-parallel model."""
        self.driver = Driver(ordinal)
        self.name = torch.cuda.get_device_name(ordinal)
        self.element = element
        self.deterministic = deterministic
        self.ordinal = ordinal
        self._ranks = ranks
        self.divided = ranks is not None
        self.leads = ranks is None or ranks.rank == 0
        self.handle = self.driver.stream()
        self.stream = torch.cuda.ExternalStream(self.handle)  # type: ignore[no-untyped-call]
        self.device = torch.device("cuda", ordinal)
        self.capability = major, minor = self.driver.capability()
        self.processors = self.driver.processors()
        self._dependent = self._clusters = major >= 9
        self._functions: dict[str, int] = {}
        self._shared: dict[str, int] = {}  # bytes that launches of a function may take, if they are more than usual
        self._flags = compiler.options(
            f"sm_{major}{minor}" + ("a" if major >= 9 else ""), float32=element == torch.float32, head_dim=head_dim
        )
        self._modules = {name: self._load_kernel(name) for name in FILES}
        self._pool: Any = None
        self._searching = False
        with self.scope():
            self.sums_in_float32 = self._adds_in_place()
            self.matmul_search = self._make_matmul_search() if tune and not deterministic else None
        self.skinny_gemm = element == torch.bfloat16 and not deterministic and major == 9 and head_dim % 16 == 0

    def _load_kernel(self, name: str) -> int:
        return self.driver.load(compiler.cubin(name, self._flags, version=compiler.nvrtc_version()))

    def _make_matmul_search(self) -> MatmulSearch | None:
        if self.element != torch.bfloat16:
            return None
        try:
            library = cublaslt.CublasLt(cublaslt.load())
        except (OSError, AttributeError, CudaError):
            return None  # torch's own way is always there
        room = [self.empty((size,), torch.uint8) for size in (matmul_search.WORKSPACE, matmul_search.SPOIL)]
        return MatmulSearch(
            library, self.handle, self.name, room[0], room[1], self.mark, free=lambda: self.memory()[0]
        )

    def _adds_in_place(self) -> bool:
        """Return whether this torch multiplies bfloat16 straight into a float32 sum. Asked, not assumed."""
        if self.element == torch.float32:
            return True
        x = torch.randn(16, 64, device=self.device).to(self.element)
        weight = torch.randn(32, 64, device=self.device).to(self.element)
        out = torch.ones(16, 32, device=self.device)
        try:
            torch.addmm(out, x, weight.t(), out_dtype=torch.float32, out=out)
        except (RuntimeError, TypeError):
            return False
        return bool(torch.allclose(out, x.float() @ weight.float().t() + 1, atol=1e-2, rtol=1e-2))

    @contextmanager
    def scope(self) -> Iterator[None]:
        self.driver.make_current()
        with torch.cuda.device(self.ordinal), torch.cuda.stream(self.stream), torch.inference_mode():
            yield

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.empty(tuple(shape), dtype=dtype, device=self.device)

    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.zeros(tuple(shape), dtype=dtype, device=self.device)

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.zeros(tuple(shape), dtype=dtype, pin_memory=True)

    def host_memory(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Take memory without torch, whose allocator rounds up to a power of two and keeps freed memory."""
        nbytes = math.prod(shape) * dtype.itemsize
        address = self.driver.pin(nbytes)
        memory = (ctypes.c_byte * nbytes).from_address(address)
        weakref.finalize(memory, _unpin, self.driver, address).atexit = False  # the process's end frees it too
        return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).view(*shape)  # it keeps `memory` alive

    def mapped(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        found = self.pinned(shape, dtype)
        if self.driver.mapped(found.data_ptr()) != found.data_ptr():
            raise CudaError("pinned memory has another address on the device than on the host")
        return found

    def copy(self, source: Tensor, target: Tensor) -> None:
        if source.nbytes:
            self.driver.copy(target.data_ptr(), source.data_ptr(), source.nbytes, self.handle)

    def launch(self, kernel: Kernel, grid: tuple[int, ...], args: Sequence[Argument], shared: int = 0) -> None:
        if 0 in grid:
            return
        check(kernel, grid, args, self.element)
        function = self._functions.get(kernel.name)
        if function is None:
            if kernel.file not in self._modules:
                self._modules[kernel.file] = self._load_kernel(kernel.file)
            function = self.driver.function(self._modules[kernel.file], kernel.name)
            self._functions[kernel.name] = function
        if shared > self._shared.get(kernel.name, _USUAL_SHARED):
            self.driver.allow_shared(function, shared)
            self._shared[kernel.name] = shared
        values: list[Any] = []
        types: list[Any] = []
        for kind, value in zip(kernel.kinds, args):
            if kind == "int":
                values.append(value)
                types.append(ctypes.c_int)
            elif kind == "float":
                values.append(value)
                types.append(ctypes.c_float)
            else:
                values.append(0 if value is None else value.data_ptr())  # type: ignore[union-attr]
                types.append(ctypes.c_void_p)
        x, y, z = (*grid, 1, 1)[:3]
        cluster = kernel.cluster if kernel.cluster > 1 and self._clusters else 1
        self.driver.launch(
            function,
            (x * cluster, y, z),
            kernel.block,
            shared,
            self.handle,
            values,
            types,
            dependent=self._dependent,
            cluster=cluster,
        )

    def matmul(self, x: Tensor, weight: Tensor, out: Tensor, bias: Tensor | None = None, add: bool = False) -> None:
        if not self.deterministic:
            self._matmul(x, weight, out, bias, add)
            return
        for at in range(0, x.shape[0], FIXED_ROWS):
            # Buffers have room for whole tiles; rows past the last are computed and never read.
            self._matmul(_tile(x, at), weight, _tile(out, at), bias, add)

    def _matmul(self, x: Tensor, weight: Tensor, out: Tensor, bias: Tensor | None, add: bool) -> None:
        if bias is None and self.skinny_gemm and skinny_gemm(self, x, weight, out, add=add):
            return
        if bias is None and self.matmul_search is not None:
            if self._searching:

                def otherwise(x: Tensor, out: Tensor) -> None:
                    self._by_torch(x, weight, out, None, add)

                self.matmul_search.search(x, weight, out, add, otherwise)
            if self.matmul_search.run(x, weight, out, add):
                return
        self._by_torch(x, weight, out, bias, add)

    def _by_torch(self, x: Tensor, weight: Tensor, out: Tensor, bias: Tensor | None, add: bool) -> None:
        across = weight.t()
        if add:
            if out.dtype == x.dtype:
                torch.addmm(out, x, across, out=out)
            elif self.sums_in_float32:
                torch.addmm(out, x, across, out_dtype=torch.float32, out=out)
            else:
                out.add_(torch.mm(x, across))
            if bias is not None:
                out.add_(bias)
        elif out.dtype == x.dtype:
            if bias is None:
                torch.mm(x, across, out=out)
            else:
                torch.addmm(bias, x, across, out=out)
        elif self.sums_in_float32:
            torch.mm(x, across, out_dtype=torch.float32, out=out)
        else:
            out.copy_(torch.mm(x, across))

    def all_reduce(self, x: Tensor) -> None:
        if self._ranks is not None:
            self._ranks.sum_on_device(x)

    def mark(self) -> CudaMark:
        return CudaMark(self.driver, self.handle)

    def replay(self, graph: CudaGraph, area: Area, nbytes: int, target: Tensor) -> None:
        self.driver.replay(target.data_ptr(), area.address, nbytes, graph.executable, self.handle)

    def await_word(self, word: int, number: int) -> None:
        self.driver.wait_for(word, number, self.handle)

    def warm(self, work: Callable[[], object], *, search: bool) -> None:
        self._searching = search
        try:
            for _ in range(_WARM_UPS):  # lazy loading and library workspaces
                work()
        finally:
            self._searching = False

    def capture(self, work: Callable[[], object]) -> CudaGraph:
        self.driver.synchronize(self.handle)
        recorded = torch.cuda.CUDAGraph(keep_graph=True)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        # One stream runs one graph at a time, so all of them may share a pool.
        with torch.cuda.graph(recorded, pool=self._pool, stream=self.stream, capture_error_mode="thread_local"):
            work()
        return CudaGraph(self.driver, self.handle, recorded)

    def memory(self) -> tuple[int, int]:
        return self.driver.memory()

    def close(self) -> None:
        """Waits for the stream, and gives it back for the next device. A stream that failed is not given back."""
        if self._closed:
            return
        self._closed = True
        self.driver.synchronize(self.handle)
        if self.matmul_search is not None:
            self.matmul_search.close()
        self.driver.destroy_events()
        self.driver.give_back_stream(self.handle)


def _unpin(driver: Driver, address: int) -> None:
    with suppress(Exception):  # the interpreter may be going down
        driver.unpin(address)


def _tile(rows: Tensor, at: int) -> Tensor:
    """``FIXED_ROWS`` rows of a buffer from ``at``, past the end of the view if need be."""
    tile = rows.as_strided((FIXED_ROWS, rows.shape[1]), rows.stride(), rows.storage_offset() + at * rows.stride(0))
    return tile
