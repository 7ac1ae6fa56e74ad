"""A null device: the CUDA executor over a libcuda whose calls do nothing (``stub_libcuda.c``).

The executor, its driver layer and cuda-python run as they are. Not there, and so not counted: the driver's own time,
FlashInfer's plans, torch's context managers of a GPU, and the device. "Device" memory is host memory. A launched
graph ends at once: its step's word of completion is written by the stub.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from prelude.cuda import kernels, weights
from prelude.cuda.cuda_device import CudaDevice, CudaGraph
from prelude.cuda.driver import Driver
from prelude.cuda.executor import CudaExecutor
from prelude.cuda.graphs import GraphPolicy
from prelude.cuda.staging import HEADER
from torch import Tensor

from bench.gpu.models import RandomSource, qwen3

SOURCE = Path(__file__).with_name("stub_libcuda.c")
SMALL = qwen3(64, 2, 16, 128, head_dim=16, vocab=4096, positions=4096)
"""Heads and vocabulary of a small model: the host's work does not depend on them."""


def load() -> Any:
    """The stub, compiled, as this process's libcuda, for good. Before cuda-python has looked for another one.
    ``FileNotFoundError`` if there is no C compiler."""
    compiler = shutil.which(os.environ.get("CC", "cc").split()[-1]) or shutil.which("gcc")
    if compiler is None:
        raise FileNotFoundError("no C compiler")
    flags = ["-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-soname,libcuda.so.1"]
    with tempfile.TemporaryDirectory() as folder:
        made = f"{folder}/libcuda.so.1"
        subprocess.run([compiler, *flags, "-o", made, str(SOURCE), "-ldl"], check=True, capture_output=True)
        stub = ctypes.CDLL(made, mode=ctypes.RTLD_GLOBAL)
    for name, result, *arguments in (
        ("stub_calls", ctypes.c_uint64, ctypes.c_char_p),
        ("stub_fail", None, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_int),
        ("stub_complaint", ctypes.c_char_p),
        ("stub_forget", None),
        ("stub_reply", None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p),
        ("stub_launched_ns", ctypes.c_int64),
        ("stub_context", ctypes.c_uint64),
        ("stub_pinned", ctypes.c_uint64),
        ("stub_last_launch", None, ctypes.c_void_p),
        ("stub_live", ctypes.c_int, ctypes.c_int),
        ("stub_busy", None, ctypes.c_int),
    ):
        function = getattr(stub, name)
        function.restype, function.argtypes = result, arguments
    stub.stub_context()
    return stub


class NullDriver(Driver):
    """The driver layer without torch's part of it."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        self._driver = driver
        self._connect()

    def capability(self) -> tuple[int, int]:
        return 9, 0


class Recorded:
    """In the place of torch's graph."""

    def raw_cuda_graph(self) -> int:
        return 77


class NullDevice(CudaDevice):
    """The real device, with host memory and without torch's streams."""

    def __init__(self) -> None:
        self.driver = NullDriver()
        self.element = torch.bfloat16
        self.deterministic = False
        self.handle = self.driver.stream()
        self.capability, self.processors = (9, 0), 132
        self._dependent = self._clusters = True
        self.skinny_gemm = False
        self._ranks, self.divided, self.leads = None, False, True
        self._functions, self._shared = {}, {}
        self._modules = {name: self.driver.load(b"cubin") for name in kernels.FILES}
        self.matmul_search = None

    @contextmanager
    def scope(self) -> Iterator[None]:
        self.driver.make_current()
        with torch.inference_mode():
            yield

    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.zeros(tuple(shape), dtype=dtype)

    empty = mapped = pinned = zeros

    def matmul(self, x: Tensor, weight: Tensor, out: Tensor, bias: Tensor | None = None, add: bool = False) -> None:
        pass

    def warm(self, work: Callable[[], object], *, search: bool) -> None:
        work()

    def capture(self, work: Callable[[], object]) -> CudaGraph:
        return CudaGraph(self.driver, self.handle, Recorded())  # type: ignore[arg-type]


class NullCalls:
    """FlashInfer's calls, without it. ``plans`` counts those that are made."""

    fa3 = True

    def __init__(self) -> None:
        self.plans = 0

    def ragged(self, *_: Any, **options: Any) -> Any:
        return NullCall(self)

    paged = decode = ragged

    def merge(self, *tensors: Any) -> None:
        pass


class NullCall:
    """Its plan has about as many bytes as one of FlashInfer's."""

    def __init__(self, calls: NullCalls) -> None:
        self.calls = calls
        self.made = np.zeros(4096, np.uint8)

    def bind(self, workspace: Tensor) -> None:
        pass

    def plan(self, arrays: Any) -> np.ndarray:
        self.calls.plans += 1
        return self.made

    def run(self, *tensors: Any) -> None:
        pass


def executor(policy: GraphPolicy | None = None) -> CudaExecutor:
    device = NullDevice()
    with device.scope():
        loaded = weights.load(device, RandomSource(SMALL, "cpu", torch.bfloat16), SMALL.spec, 4096)
    policy = policy or GraphPolicy(at_once=True)
    return CudaExecutor(
        SMALL, loaded, device, num_blocks=4096, step_tokens=4096, step_rows=64, calls=NullCalls(), policy=policy
    )


def answer(executor: CudaExecutor, stub: Any) -> None:
    """Makes every launched graph end its step at once. Its results are those of the area's last step: zeros."""
    staging = executor.staging
    stub.stub_reply(staging.results.data_ptr(), staging.stride, staging.input_area.data_ptr())
    for area in staging.outputs.areas:
        area.array[HEADER:].view(np.int32)[:] = 1  # finite rows, and token 1
