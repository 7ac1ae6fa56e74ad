"""A device made of host memory that keeps the rules of a real one.

    asynchronous   nothing runs when it is enqueued; a mark's ``wait`` runs the stream up to it. A result that is read
                   too early has the bytes of before; a host area that is written too early changes what a copy reads
    addresses      operations keep pointers. A recorded graph reads the bytes of the time of its replay. A pointer
                   into memory that was given back is an error (device temporaries of eager steps live until they
                   are used, as a stream-ordered allocator keeps them; pinned memory does not)
    bounds         every kernel's arguments are checked as the real device checks them, and again by its twin
    kernels        run as their twins (twins.py); attention calls keep FlashInfer's rules about plans

``calls`` lists the enqueued operations, by name.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partialmethod
from typing import Any

import numpy as np
import torch
from prelude._native.gpu import reached
from prelude.cuda.cuda_device import _tile
from prelude.cuda.device import FIXED_ROWS
from prelude.cuda.kernels import Argument, Kernel, check, skinny_gemm
from prelude.cuda.staging import Area
from torch import Tensor

from prelude.parallel.group import RankGroup
from tests.cuda import twins


class Gone(RuntimeError):
    """A pointer into memory that was given back."""


ALIGNMENT = 256  # bytes, of cudaMalloc's memory


@dataclass(eq=False)
class Allocation:
    number: int
    nbytes: int
    pinned: bool
    mapped: bool  # pinned, and kernels may reach it too
    memory: weakref.ref[np.ndarray]


@dataclass(frozen=True)
class Pointer:
    """An address with the type behind it; ``at`` is the array that a kernel sees there."""

    allocation: Allocation
    offset: int
    dtype: torch.dtype
    width: int = 0  # of the tensor's rows; that of a head is a compile-time constant of the kernels
    keep: object = None

    def everything(self) -> Tensor:
        memory = self.allocation.memory()
        if memory is None:
            raise Gone(f"allocation {self.allocation.number} of {self.allocation.nbytes} bytes was given back")
        whole = torch.from_numpy(memory)
        usable = (len(memory) - self.offset) // self.dtype.itemsize * self.dtype.itemsize
        return whole[self.offset : self.offset + usable].view(self.dtype)

    def at(self, *shape: int) -> Tensor:
        count = int(np.prod(shape))
        everything = self.everything()
        if count > len(everything):
            raise IndexError(f"{count} values wanted, {len(everything)} are there")
        return everything[:count].view(*shape)

    def strided(self, shape: Sequence[int], stride: Sequence[int]) -> Tensor:
        return self.everything().as_strided(tuple(shape), tuple(stride))


@dataclass
class SimulatedMark:
    device: SimulatedDevice
    position: int

    def wait(self) -> None:
        self.device.run_to(self.position)

    def done(self) -> bool:
        return self.device.executed >= self.position

    def seconds_since(self, earlier: SimulatedMark) -> float:
        assert self.done() and earlier.done(), "times of marks that have not been reached"
        return float(self.position - earlier.position) * 1e-6


@dataclass
class SimulatedGraph:
    device: SimulatedDevice
    operations: list[tuple[str, Callable[[], None]]]
    closed: bool = False

    def launch(self) -> None:
        assert not self.closed, "a graph that was closed"
        self.device.calls.append("graph")
        self.device.queue += [operation for _, operation in self.operations]

    def close(self) -> None:
        self.closed = True
        self.operations = []


class SimulatedDevice:
    def __init__(
        self,
        element: torch.dtype = torch.float32,
        *,
        deterministic: bool = False,
        memory: int = 1 << 34,
        ranks: RankGroup | None = None,
    ) -> None:
        self.ranks = ranks
        self.divided = ranks is not None
        self.leads = ranks is None or ranks.rank == 0
        self.element = element
        self.skinny_gemm = False
        self.deterministic = deterministic
        self.total = memory
        self.name, self.capability = "simulated", (9, 0)
        self.processors = 132
        self.calls: list[str] = []
        self.queue: list[Callable[[], None]] = []
        self.executed = 0
        self.recording: list[tuple[str, Callable[[], None]]] | None = None
        self.pool: list[np.ndarray] = []  # memory of graphs
        self.live: dict[int, Allocation] = {}
        self._numbers = itertools.count()

    @contextmanager
    def scope(self) -> Iterator[None]:
        with torch.inference_mode():
            yield

    # ------------------------------------------------------------------ memory

    def _allocate(
        self, shape: Sequence[int], dtype: torch.dtype, fill: int = 0, pinned: bool = False, mapped: bool = False
    ) -> Tensor:
        count = int(np.prod(shape)) * dtype.itemsize
        if not pinned and count > self.memory()[0]:
            raise torch.cuda.OutOfMemoryError(f"{count:,} bytes, {self.memory()[0]:,} are free")
        # Aligned as a driver's memory is: the bits of a product depend on where its operands lie.
        room = np.full(max(count, 1) + ALIGNMENT, fill, np.uint8)
        start = -room.ctypes.data % ALIGNMENT
        memory = room[start : start + max(count, 1)]
        address = memory.ctypes.data
        allocation = Allocation(next(self._numbers), len(memory), pinned, mapped, weakref.ref(memory))
        self.live[address] = allocation
        weakref.finalize(memory, self._gone, address, allocation)
        if self.recording is not None:
            self.pool.append(memory)
        return torch.from_numpy(memory)[:count].view(dtype).view(*shape)

    def _gone(self, address: int, allocation: Allocation) -> None:
        if self.live.get(address) is allocation:
            del self.live[address]

    empty = partialmethod(_allocate, fill=0xA5)  # a read of memory that was not written gives nonsense
    zeros = partialmethod(_allocate)
    pinned = partialmethod(_allocate, pinned=True)
    host_memory = partialmethod(_allocate, fill=0xA5, pinned=True)
    mapped = partialmethod(_allocate, pinned=True, mapped=True)

    def put(self, values: Tensor) -> Tensor:
        """A copy in the device's memory, for tests."""
        placed: Tensor = self.empty(tuple(values.shape), values.dtype)
        return placed.copy_(values)

    def memory(self) -> tuple[int, int]:
        used = sum(a.nbytes for a in self.live.values() if not a.pinned)
        return self.total - used, self.total

    def pointer(self, tensor: Tensor, *, host: bool | None = False) -> Pointer:
        """``host`` says where the memory must be; None: anywhere."""
        base = tensor.untyped_storage().data_ptr()
        allocation = self.live.get(base)
        assert allocation is not None, "memory that is neither the device's nor pinned"
        assert host is None or allocation.pinned == host or allocation.mapped, (
            "host memory where the device's is needed, or the other way"
        )
        kept = allocation.memory() if self.recording is None and not allocation.pinned else None
        offset = tensor.data_ptr() - base if tensor.numel() else 0
        return Pointer(allocation, offset, tensor.dtype, tensor.shape[-1] if tensor.ndim else 0, kept)

    # ------------------------------------------------------------------ the stream

    def enqueue(self, name: str, operation: Callable[[], None]) -> None:
        if self.recording is not None:
            self.recording.append((name, operation))
            return
        self.calls.append(name)
        self.queue.append(operation)

    def enqueue_on(self, name: str, work: Callable[..., None], *tensors: Tensor | None) -> None:
        """``work(*tensors)``, whose bytes are those of the time when the stream is there."""
        places = [None if t is None else (self.pointer(t), t.shape, t.stride()) for t in tensors]
        self.enqueue(name, lambda: work(*(place and place[0].strided(*place[1:]) for place in places)))

    def run_to(self, position: int) -> None:
        while self.executed < position:
            operation = self.queue[self.executed]
            self.queue[self.executed] = _nothing
            self.executed += 1
            operation()

    def mark(self) -> SimulatedMark:
        assert self.recording is None, "an event in a recording"
        return SimulatedMark(self, len(self.queue))

    def replay(self, graph: SimulatedGraph, area: Area, nbytes: int, target: Tensor) -> None:
        self.copy(area.bytes[:nbytes], target[:nbytes])
        graph.launch()

    def await_word(self, word: int, number: int) -> None:
        with self.scope():
            while not reached(word, number):
                assert self.executed < len(self.queue), "the stream ended without the step's number"
                self.run_to(self.executed + 1)

    def close(self) -> None:
        self.run_to(len(self.queue))

    def warm(self, work: Callable[[], object], *, search: bool) -> None:
        self.calls += ["search"] * search
        for _ in range(2):
            work()

    def capture(self, work: Callable[[], object]) -> SimulatedGraph:
        self.run_to(len(self.queue))
        self.recording = []
        try:
            work()
            return SimulatedGraph(self, self.recording)
        finally:
            self.recording = None

    def copy(self, source: Tensor, target: Tensor) -> None:
        assert source.is_contiguous() and target.is_contiguous() and source.nbytes == target.nbytes
        source_bytes = source.nbytes
        if not source_bytes:
            return
        a, b = (self.pointer(tensor.view(-1).view(torch.uint8), host=None) for tensor in (source, target))
        self.enqueue("copy", lambda: b.at(source_bytes).copy_(a.at(source_bytes)))

    def launch(self, kernel: Kernel, grid: tuple[int, ...], args: Sequence[Argument], shared: int = 0) -> None:
        if 0 in grid:
            return
        check(kernel, grid, args, self.element)
        assert shared <= 227 << 10 and kernel.block % 32 == 0 and kernel.block <= 1024
        seen = [self.pointer(a) if isinstance(a, Tensor) else a for a in args]
        twin: Callable[..., None] = getattr(twins, kernel.name)
        self.enqueue(kernel.name, lambda: twin(grid[0], *seen))

    def matmul(self, x: Tensor, weight: Tensor, out: Tensor, bias: Tensor | None = None, add: bool = False) -> None:
        assert x.shape[1] == weight.shape[1] and out.shape == (x.shape[0], weight.shape[0])
        assert not add or out.dtype == torch.float32
        if not self.deterministic:
            self._product(x, weight, out, bias, add)
            return
        for at in range(0, x.shape[0], FIXED_ROWS):
            self._product(_tile(x, at), weight, _tile(out, at), bias, add)

    def all_reduce(self, x: Tensor) -> None:
        """Through the ranks' own connections: the memory is the host's."""
        if self.ranks is None:
            return
        ranks = self.ranks

        def run(value: Tensor) -> None:
            total = value.float().contiguous()
            ranks.sum(total.numpy())
            value.copy_(total)

        self.enqueue_on("all_reduce", run, x)

    def _product(self, x: Tensor, weight: Tensor, out: Tensor, bias: Tensor | None, add: bool) -> None:
        if bias is None and self.skinny_gemm and skinny_gemm(self, x, weight, out, add=add):
            return

        def run(x: Tensor, weight: Tensor, out: Tensor, bias: Tensor | None) -> None:
            product = x.to(torch.float32) @ weight.to(torch.float32).t()
            if bias is not None:
                product = product + bias.to(torch.float32)
            out.copy_(out + product if add else product)

        self.enqueue_on("matmul", run, x, weight, out, bias)


def _nothing() -> None:
    pass


# ------------------------------------------------------------------ attention calls under FlashInfer's rules
class SimulatedCalls:
    fa3 = True  # there is a kernel for long queries

    def __init__(self, device: SimulatedDevice, heads: int, kv_heads: int, head_dim: int) -> None:
        self.device = device
        self.queries = (heads, head_dim)
        self.plans = 0
        self.made: list[tuple[str, bool]] = []  # kinds of calls, and whether they are long or split

    def call(self, kind: str, long_or_split: bool, *given: Any) -> SimulatedCall:
        self.made.append((kind, long_or_split))
        return SimulatedCall(self, kind, *given)

    def ragged(self, buffers: Any, long: bool = False) -> SimulatedCall:
        return self.call("ragged", long, buffers, 1, ("qo", "kv") if long else ("qo",))

    def paged(self, buffers: Any, page_size: int, split: bool = False) -> SimulatedCall:
        return self.call("paged", split, buffers, page_size, ("qo", "indptr", "last") if split else ("qo",))

    def decode(self, buffers: Any, page_size: int, split: bool = True) -> SimulatedCall:
        return self.call("decode", split, buffers, page_size, ("indptr",) if split else ())

    def merge(self, out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> None:
        assert lse.dtype == other_lse.dtype == torch.float32
        assert out.is_contiguous() and other.is_contiguous() and lse.is_contiguous() and other_lse.is_contiguous()

        def run(a: Tensor, la: Tensor, b: Tensor, lb: Tensor) -> None:
            joined = torch.logaddexp2(la, lb)
            weights = [torch.exp2(x - joined).unsqueeze(-1) for x in (la, lb)]
            a.copy_(a.float() * weights[0] + b.float() * weights[1])
            la.copy_(joined)

        self.device.enqueue_on("merge", run, out, lse, other, other_lse)


class SimulatedCall:
    """In graph mode the arrays are read where the call was made to read them, when it runs; and the plan that lies in
    its workspace then must be theirs: it holds the arrays that it ``depends`` on."""

    def __init__(
        self, calls: SimulatedCalls, kind: str, buffers: Any, page_size: int, depends: tuple[str, ...]
    ) -> None:
        self.calls, self.kind, self.page_size, self.depends = calls, kind, page_size, depends
        self.graph = buffers is not None
        self.rows = 0
        self.most_rows: int | None = None
        self.state: dict[str, np.ndarray] = {}  # planned arrays, once the stream is there
        self.workspace: Pointer | None = None
        self.buffers = {} if buffers is None else {n: (calls.device.pointer(t), len(t)) for n, t in buffers.items()}

    def bind(self, workspace: Tensor) -> None:
        assert self.graph and workspace.data_ptr() % 16 == 0
        self.workspace = self.calls.device.pointer(workspace)
        self.room = len(workspace)

    def plan(self, arrays: dict[str, Tensor]) -> np.ndarray:
        device = self.calls.device
        assert device.recording is None, "a plan in a recording"
        self.calls.plans += 1
        first = arrays["indptr"] if self.kind == "decode" else arrays["qo"]
        self.rows = len(first) - 1 if self.kind == "decode" else int(first[-1])
        assert self.kind != "decode" or (first.diff() > 0).all(), "a decode row without keys"
        if self.graph:
            if self.most_rows is None:
                self.most_rows = self.rows
                assert self.rows >= len(first) - 1, "more requests than rows"
            assert self.rows <= self.most_rows, "more rows than the first plan had"
            for name, (_, count) in self.buffers.items():
                assert name == "pages" or len(arrays[name]) == count, f"{name} is not of the fixed size"
            return self._planned(arrays)
        places = {n: (device.pointer(t, host=n != "pages"), len(t)) for n, t in arrays.items()}

        def run() -> None:
            self.state = {n: p.at(count).numpy().copy() for n, (p, count) in places.items()}

        device.enqueue("plan", run)
        return np.zeros(0, np.uint8)

    def _planned(self, arrays: dict[str, Tensor]) -> np.ndarray:
        parts = [np.int32([self.kind == "decode"])] + [arrays[name].numpy() for name in self.depends]
        plan = np.concatenate(parts).view(np.uint8).copy()
        if self.workspace is not None:
            assert len(plan) == self.room
            workspace = self.workspace

            def run() -> None:
                workspace.at(len(plan)).copy_(torch.from_numpy(plan))

            self.calls.device.enqueue("plan", run)
        return plan

    def run(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None) -> None:
        assert q.shape[0] == out.shape[0] == self.rows, f"{q.shape[0]} query rows, {self.rows} were planned"
        assert q.shape[1:] == out.shape[1:] == self.calls.queries and out.is_contiguous()
        assert q.stride(-1) == 1 and k.stride() == v.stride() and k.stride(-1) == 1
        assert lse is None or lse.shape == q.shape[:2]
        self.calls.device.enqueue_on(self.kind, self._compute, q, k, v, out, lse)

    def _arrays(self) -> dict[str, np.ndarray]:
        if not self.graph:
            return self.state
        assert self.workspace is not None
        found = {n: p.at(count).numpy() for n, (p, count) in self.buffers.items()}
        planned = self.workspace.at(self.room).numpy().view(np.int32)[1:]
        wanted = np.concatenate([np.zeros(0, np.int32), *(found[name] for name in self.depends)])
        assert np.array_equal(planned, wanted), f"{self.depends} are not those of the plan"
        return found

    def _compute(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None) -> None:
        arrays = self._arrays()
        requests = len(arrays["indptr"] if self.kind != "ragged" else arrays["qo"]) - 1
        for r in range(requests):
            rows = slice(r, r + 1) if self.kind == "decode" else slice(*arrays["qo"][r : r + 2].tolist())
            if rows.start == rows.stop:
                continue
            if self.kind == "ragged":
                keys = slice(*arrays["kv"][r : r + 2].tolist())
                ks, vs = k[keys], v[keys]
            else:
                pages = arrays["pages"][slice(*arrays["indptr"][r : r + 2].tolist())].astype(np.int64)
                count = (len(pages) - 1) * self.page_size + int(arrays["last"][r]) if len(pages) else 0
                where = torch.from_numpy(pages)
                ks, vs = (x[where].reshape(-1, *x.shape[2:])[:count] for x in (k, v))
            o, s = twins.attention(q[rows], ks, vs, self.kind == "ragged")
            out[rows] = o.to(out.dtype)
            if lse is not None:
                lse[rows] = s
