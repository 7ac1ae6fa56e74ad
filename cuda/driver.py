"""The calls that reach the CUDA driver, through cuda-python, behind one narrow class.

Nothing here runs at import: a machine without a driver imports all of ``prelude.cuda``. ``missing`` probes once and
names the missing parts; ``Driver`` is made only if none is missing.

cuda.bindings returns ``(error, *results)`` and never raises for an error code; ``_checked`` turns codes into
``CudaError``. Handles are plain integers.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from typing import Any

from prelude._native.gpu import DriverCalls

from prelude.errors import DeviceUnavailable

MIN_CAPABILITY = (8, 0)
"""bfloat16 tensor cores."""

_SPIN_NS = 3_000_000
"""How long a thread that waits for a step looks again at once. A longer step is not held up by the sleeps between."""

_IDLE_STREAMS: dict[int, list[int]] = {}
"""Streams by context, of devices that were closed. They are never destroyed: when a pinned tensor is freed, torch's
allocator records events on the streams that it was copied on, and that may be later."""


class CudaError(RuntimeError):
    """A driver call that failed, named."""


def is_final(error: BaseException) -> bool:
    """Whether ``error`` is a driver's, through cuda-python or torch, other than lack of memory: the driver answers
    every later call of the process with it."""
    return isinstance(error, CudaError) or type(error).__name__ == "AcceleratorError"


@functools.cache
def missing() -> tuple[str, ...]:
    """Return the parts that this process lacks for a GPU, each with the way out; empty if none is missing. Probed
    once."""
    lacks: list[str] = []
    if importlib.util.find_spec("torch") is None:
        return ("torch is not installed (pip install 'prelude-engine[cuda]')",)
    import torch

    if torch.version.cuda is None:
        lacks.append(f"torch {torch.__version__} was built without CUDA (install a CUDA build of torch)")
    try:
        from cuda.bindings import driver  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        lacks.append("cuda-python is not installed (pip install 'prelude-engine[cuda]')")
        return tuple(lacks)
    try:
        # cuda-bindings raises if libcuda cannot be loaded: RuntimeError in 13.0, an error of its own in 13.5.
        code, *_ = driver.cuInit(0)
        found = driver.cuDeviceGetCount() if code == driver.CUresult.CUDA_SUCCESS else (code, 0)
        if found[0] != driver.CUresult.CUDA_SUCCESS:
            lacks.append(f"the NVIDIA driver answers {found[0].name}")
        elif found[1] == 0:
            lacks.append("the NVIDIA driver sees no GPU (CUDA_VISIBLE_DEVICES?)")
    except Exception as error:
        lacks.append(f"the NVIDIA driver (libcuda) is not there: {type(error).__name__}")
    if not lacks:
        capability = torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)
        if capability < MIN_CAPABILITY:
            lacks.append(
                f"the GPU has compute capability {capability}; {MIN_CAPABILITY} is the least that is supported"
            )
    return tuple(lacks)


def require() -> None:
    """Raise ``DeviceUnavailable`` unless a GPU can be used."""
    lacks = missing()
    if lacks:
        raise DeviceUnavailable(
            f"device='cuda' cannot be used: {'; '.join(lacks)}; device='cpu' needs none of this", missing=lacks
        )


def _checked(result: tuple[Any, ...], call: str) -> Any:
    code, *values = result
    if int(code) != 0:
        if getattr(code, "name", "") == "CUDA_ERROR_OUT_OF_MEMORY":
            import torch

            raise torch.cuda.OutOfMemoryError(f"{call}: {code.name}")
        raise CudaError(f"{call}: {getattr(code, 'name', code)}")
    return values[0] if len(values) == 1 else tuple(values)


class Driver:
    """The primary context of one GPU, which torch shares."""

    def __init__(self, ordinal: int) -> None:
        require()
        import torch

        from cuda.bindings import driver

        self._driver = driver
        torch.cuda.set_device(ordinal)
        torch.cuda.init()  # type: ignore[no-untyped-call]  # makes the primary context current in this thread
        torch.empty(1, device="cuda")
        self._connect()

    def _connect(self) -> None:
        """Takes the context that is current, and the raw entries that cuda-python has no quick way to."""
        driver = self._driver
        self._context = _checked(driver.cuCtxGetCurrent(), "cuCtxGetCurrent")
        names = ("cuCtxSetCurrent", "cuMemcpyAsync", "cuGraphLaunch", "cuStreamQuery")
        found = [_checked(driver.cuGetProcAddress(name.encode(), 12000, 0), name)[0] for name in names]
        self.calls = DriverCalls(int(self._context), *(int(address) for address in found))
        self._events: list[int] = []

    def make_current(self) -> None:
        """Set the calling thread's context. torch does it lazily, in calls of its own; the driver's calls need it."""
        _checked(self._driver.cuCtxSetCurrent(self._context), "cuCtxSetCurrent")

    # ------------------------------------------------------------------ streams and events

    def stream(self) -> int:
        """Return a stream that was given back, or a new one."""
        idle = _IDLE_STREAMS.get(int(self._context))
        if idle:
            return idle.pop()
        flags = self._driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        return int(_checked(self._driver.cuStreamCreate(int(flags)), "cuStreamCreate"))

    def give_back_stream(self, stream: int) -> None:
        """Keep it for another ``stream()``. All that was enqueued on it has run."""
        _IDLE_STREAMS.setdefault(int(self._context), []).append(stream)

    def synchronize(self, stream: int) -> None:
        _checked(self._driver.cuStreamSynchronize(stream), "cuStreamSynchronize")

    def event(self) -> int:
        """Return an event that was given back, or a new one."""
        return self._events.pop() if self._events else int(_checked(self._driver.cuEventCreate(0), "cuEventCreate"))

    def record(self, event: int, stream: int) -> None:
        _checked(self._driver.cuEventRecord(event, stream), "cuEventRecord")

    def wait(self, event: int) -> None:
        _checked(self._driver.cuEventSynchronize(event), "the step on the device")

    def done(self, event: int) -> bool:
        (code, *_) = self._driver.cuEventQuery(event)
        if code == self._driver.CUresult.CUDA_ERROR_NOT_READY:
            return False
        _checked((code,), "the step on the device")
        return True

    def milliseconds(self, first: int, last: int) -> float:
        return float(_checked(self._driver.cuEventElapsedTime(first, last), "cuEventElapsedTime"))

    def give_back(self, event: int) -> None:
        """Keep it for another ``event()``; making one costs microseconds."""
        self._events.append(event)

    def destroy_events(self) -> None:
        while self._events:
            self._driver.cuEventDestroy(self._events.pop())

    # ------------------------------------------------------------------ memory

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy between host and device; the driver tells the way by the address. Asynchronous for pinned memory."""
        _checked(self._driver.cuMemcpyAsync(target, source, nbytes, stream), "cuMemcpyAsync")

    def pin(self, nbytes: int) -> int:
        """Return the address of new pinned memory, which the caller frees by ``unpin``."""
        flags = self._driver.CU_MEMHOSTALLOC_PORTABLE
        return int(_checked(self._driver.cuMemHostAlloc(nbytes, flags), "cuMemHostAlloc"))

    def unpin(self, address: int) -> None:
        """Free it from any thread, whose own context stays current."""
        _checked(self._driver.cuCtxPushCurrent(self._context), "cuCtxPushCurrent")
        try:
            _checked(self._driver.cuMemFreeHost(address), "cuMemFreeHost")
        finally:
            _checked(self._driver.cuCtxPopCurrent(), "cuCtxPopCurrent")

    def memory(self) -> tuple[int, int]:
        """``(free, total)`` bytes."""
        free, total = _checked(self._driver.cuMemGetInfo(), "cuMemGetInfo")
        return int(free), int(total)

    # ------------------------------------------------------------------ kernels

    def load(self, cubin: bytes) -> int:
        return int(_checked(self._driver.cuModuleLoadData(cubin), "loading a kernel"))

    def function(self, module: int, name: str) -> int:
        return int(_checked(self._driver.cuModuleGetFunction(module, name.encode()), f"kernel {name}"))

    def allow_shared(self, function: int, nbytes: int) -> None:
        """Let launches of ``function`` take so many bytes of dynamic shared memory, which takes the place of the
        limit before."""
        attribute = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _checked(self._driver.cuFuncSetAttribute(function, attribute, nbytes), "shared memory of a kernel")

    def launch(
        self,
        function: int,
        grid: tuple[int, int, int],
        block: int,
        shared: int,
        stream: int,
        values: Sequence[Any],
        types: Sequence[Any],
        *,
        dependent: bool,
        cluster: int = 1,
    ) -> None:
        """``dependent`` lets the kernel start while the one before it ends (programmatic dependent launch); every
        kernel of ours waits by ``griddepcontrol.wait`` before it touches memory. ``cluster``: blocks, side by side in
        x, that share memory."""
        driver = self._driver
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
        config.sharedMemBytes = shared
        config.hStream = stream
        attributes = []
        if dependent:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            attributes.append(attribute)
        if cluster > 1:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            size = attribute.value.clusterDim
            size.x, size.y, size.z = cluster, 1, 1
            attributes.append(attribute)
        if attributes:
            config.attrs, config.numAttrs = attributes, len(attributes)
        _checked(driver.cuLaunchKernelEx(config, function, (tuple(values), tuple(types)), 0), "cuLaunchKernelEx")

    # ------------------------------------------------------------------ graphs

    def instantiate(self, graph: int) -> int:
        """Return an executable of a captured graph, which must outlive it."""
        return int(_checked(self._driver.cuGraphInstantiate(graph, 0), "cuGraphInstantiate"))

    def upload(self, executable: int, stream: int) -> None:
        _checked(self._driver.cuGraphUpload(executable, stream), "cuGraphUpload")

    def launch_graph(self, executable: int, stream: int) -> None:
        _checked(self._driver.cuGraphLaunch(executable, stream), "cuGraphLaunch")

    def replay(self, target: int, source: int, nbytes: int, executable: int, stream: int) -> None:
        """Enqueue a copy in, then a graph, from any thread."""
        code = self.calls.replay(target, source, nbytes, executable, stream)
        if code:
            _checked((self._driver.CUresult(code),), "a step's copy and its graph")

    def wait_for(self, word: int, number: int, stream: int) -> None:
        """Wait until the word at an address has come to ``number``; from any thread, without the GIL."""
        code = self.calls.wait(word, number, stream, _SPIN_NS)
        if code < 0:
            raise CudaError("the step on the device: its stream ended and its results did not come")
        if code:
            _checked((self._driver.CUresult(code),), "the step on the device")

    def mapped(self, host: int) -> int:
        """Return the device's address of pinned memory."""
        return int(_checked(self._driver.cuMemHostGetDevicePointer(host, 0), "cuMemHostGetDevicePointer"))

    def destroy_graph(self, executable: int) -> None:
        self._driver.cuGraphExecDestroy(executable)

    def capability(self) -> tuple[int, int]:
        import torch

        return torch.cuda.get_device_capability()

    def processors(self) -> int:
        """Multiprocessors."""
        import torch

        return int(torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count)
