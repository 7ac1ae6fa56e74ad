"""The driver layer and the real device's host side, through cuda-python, over a libcuda made for these tests
(``bench/gpu/stub_libcuda.c``): it checks handles, contexts, bounds and launches, and fails on demand."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import pytest
import torch
from prelude.cuda import kernels
from prelude.cuda.cuda_device import CudaGraph, CudaMark
from prelude.cuda.driver import CudaError
from prelude.cuda.executor import CudaExecutor
from prelude.cuda.graphs import GraphPolicy

from bench.gpu import null
from prelude import DeviceLost, EngineConfig
from prelude.readouts.batch import OneShotBatch
from prelude.runtime.assembly import make_core
from prelude.runtime.core import EngineCore
from tests.cuda.plans import random_batch
from tests.cuda.test_matmul_search import HostLibrary, make
from tests.execution.helpers import i32, prompts, sampling
from tests.scheduling.cores import Collect, chat, last_logprob
from tests.service import run_steps

bindings = pytest.importorskip("cuda.bindings.driver")

ILLEGAL_ADDRESS, LAUNCH_FAILED, OUT_OF_MEMORY, INVALID_VALUE = 700, 719, 2, 1
EVENT, EXEC = 3, 6


@pytest.fixture(scope="module")
def stub_library() -> Any:
    if torch.version.cuda is not None and torch.cuda.is_available():
        pytest.skip("a real libcuda is loaded")
    try:
        return null.load()
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture
def stub(stub_library: Any) -> Iterator[Any]:
    stub_library.stub_forget()
    yield stub_library
    assert stub_library.stub_complaint() == b""


@pytest.fixture
def device(stub: Any) -> null.NullDevice:
    return null.NullDevice()


def complaint(stub: Any) -> str:
    said = stub.stub_complaint().decode()
    stub.stub_forget()
    return str(said)


def test_a_graph_is_instantiated_uploaded_once_launched_and_given_back(stub: Any, device: null.NullDevice) -> None:
    recorded: Any = null.Recorded()
    before = {name: stub.stub_calls(name) for name in (b"cuGraphInstantiate", b"cuGraphUpload", b"cuGraphLaunch")}
    alive = stub.stub_live(EXEC)
    graph = CudaGraph(device.driver, device.handle, recorded)
    graph.launch()
    graph.launch()
    assert graph._recorded is recorded and stub.stub_live(EXEC) == alive + 1
    graph.close()
    graph.close()
    assert graph._recorded is None and stub.stub_live(EXEC) == alive
    counts = [stub.stub_calls(name) - count for name, count in before.items()]
    assert counts == [1, 1, 2]
    with pytest.raises(CudaError, match="cuGraphLaunch"):
        graph.launch()
    assert complaint(stub) == "cuGraphLaunch: no such graph or stream"
    stub.stub_fail(b"cuGraphUpload", 1, OUT_OF_MEMORY)
    with pytest.raises(torch.cuda.OutOfMemoryError, match="cuGraphUpload"):
        CudaGraph(device.driver, device.handle, recorded)
    assert stub.stub_live(EXEC) == alive


def test_codes_become_errors_that_name_the_call(stub: Any, device: null.NullDevice) -> None:
    driver = device.driver
    stub.stub_fail(b"cuGraphUpload", 1, INVALID_VALUE)
    with pytest.raises(CudaError, match="cuGraphUpload: CUDA_ERROR_INVALID_VALUE"):
        driver.upload(1, 2)
    stub.stub_fail(b"cuModuleLoadData", 1, OUT_OF_MEMORY)
    with pytest.raises(torch.cuda.OutOfMemoryError, match="loading a kernel"):
        driver.load(b"cubin")
    mark = device.mark()
    stub.stub_fail(b"cuEventQuery", 1, 600)
    assert not mark.done() and mark.done()
    stub.stub_fail(b"cuEventQuery", 1, LAUNCH_FAILED)
    with pytest.raises(CudaError, match="the step on the device: CUDA_ERROR_LAUNCH_FAILED"):
        mark.done()


def test_marks_use_events_again_and_they_are_destroyed_at_the_end(stub: Any, device: null.NullDevice) -> None:
    alive, made = stub.stub_live(EVENT), stub.stub_calls(b"cuEventCreate")
    for _ in range(5):
        first, last = device.mark(), device.mark()
        last.wait()
        assert last.done() and last.seconds_since(first) == pytest.approx(1e-3)
        del first, last
        gc.collect()
    assert stub.stub_calls(b"cuEventCreate") == made + 2
    assert isinstance(device.mark(), CudaMark)
    device.close()
    assert stub.stub_live(EVENT) <= alive


def test_the_stream_of_a_closed_device_is_the_next_ones(stub: Any, tmp_path: Path) -> None:
    """And its library of matmuls has let go of everything."""
    first, library = null.NullDevice(), HostLibrary()
    first.matmul_search = make(library, tmp_path)
    made = stub.stub_calls(b"cuStreamCreate")
    first.close()
    first.close()
    second, third = null.NullDevice(), null.NullDevice()
    assert second.handle == first.handle != third.handle and not library.objects
    assert stub.stub_calls(b"cuStreamCreate") == made + 1
    stub.stub_fail(b"cuStreamSynchronize", 1, LAUNCH_FAILED)
    with pytest.raises(CudaError):
        third.close()
    assert null.NullDevice().handle != third.handle, "a stream that failed is not used again"


@pytest.mark.parametrize("hopper", [True, False])
def test_a_kernel_is_launched_with_its_grid_cluster_and_dependence(
    stub: Any, device: null.NullDevice, hopper: bool
) -> None:
    device._dependent = device._clusters = hopper
    numbers, settings = torch.zeros(3, dtype=torch.float64), [torch.ones(3) for _ in range(4)]
    settings[1], (finite, tokens) = settings[1].int(), torch.ones(2, 3, dtype=torch.int32)
    names = (b"cuModuleGetFunction", b"cuLaunchKernelEx", b"cuFuncSetAttribute")
    for vocab, expected in (
        (101, (1, 1, 0)),
        (101, (0, 1, 0)),
        (200_064, (0, 1, 0)),  # a row that shared memory does not hold
        (150_000, (0, 1, 1)),  # more than 48 KiB are asked for
        (100_000, (0, 1, 0)),  # less is asked for: what may be taken stays
        (150_000, (0, 1, 0)),
    ):
        before = [stub.stub_calls(name) for name in names]
        kernels.sample(device, torch.zeros(3, vocab), [*settings, numbers], finite, tokens)
        assert tuple(stub.stub_calls(name) - count for name, count in zip(names, before)) == expected
    seen = np.zeros(11, np.uint64)
    stub.stub_last_launch(seen.ctypes.data)
    assert seen[:6].tolist() == [3 * (8 if hopper else 1), 1, 1, kernels.SAMPLE.block, 1, 1]
    assert seen[6] >= 4 * 150_000 // 8 and seen[7] == device.handle
    assert (bool(seen[8]), seen[9]) == (hopper, 8 if hopper else 0)


# ------------------------------------------------------------------ the executor over the stub
@pytest.fixture
def executor(stub: Any) -> Iterator[CudaExecutor]:
    made = null.executor()
    null.answer(made, stub)
    yield made
    made.close()


def greedy(length: int) -> OneShotBatch:
    return OneShotBatch(prompts(i32(range(length))), sampling([length - 1]))


def test_a_known_step_is_one_copy_and_one_launch(stub: Any, executor: CudaExecutor) -> None:
    for length in (100, 128):
        executor.wait(executor.submit(greedy(length)))
    names = (b"cuMemcpyAsync", b"cuGraphLaunch", b"cuLaunchKernelEx", b"cuEventRecord", b"cuEventCreate")
    before = [stub.stub_calls(name) for name in names]
    result = executor.wait(executor.submit(greedy(128)))
    assert not result.eager
    assert [stub.stub_calls(name) - count for name, count in zip(names, before)] == [1, 1, 0, 0, 0]
    staging = executor.staging
    copied = staging.input_area[: 4 * 130].view(torch.int32)
    assert copied[0] == staging.number, "the packed copy arrived"


def test_launches_of_random_steps_are_inside_a_devices_limits(stub: Any) -> None:
    """Every kernel of eager and of recorded steps: grids, blocks, shared memory, handles, copies inside the areas."""
    for recorded in (False, True):
        made = null.executor(GraphPolicy(enabled=recorded, at_once=True))
        null.answer(made, stub)
        rng = np.random.default_rng(7)
        launches = stub.stub_calls(b"cuLaunchKernelEx")
        for _ in range(25):
            handle: Any = made.submit(random_batch(rng, 4096))
            assert not hasattr(handle, "error"), getattr(handle, "error", None)
            if not handle.replayed or handle.ended.area.array[:4].view(np.uint32)[0] != handle.ended.number:
                handle.ended.area.array[:4].view(np.uint32)[0] = handle.ended.number  # the kernel that the stub lacks
            made.wait(handle)
        made.close()
        assert stub.stub_calls(b"cuLaunchKernelEx") > launches + 300
        assert stub.stub_complaint() == b""


def test_a_launch_that_finds_no_memory_fails_its_step_and_no_other(stub: Any, executor: CudaExecutor) -> None:
    executor.wait(executor.submit(greedy(50)))
    stub.stub_fail(b"cuMemcpyAsync", 1, OUT_OF_MEMORY)
    with pytest.raises(torch.cuda.OutOfMemoryError, match="a step's copy and its graph"):
        executor.wait(executor.submit(greedy(50)))
    tickets = [executor.submit(greedy(50)) for _ in range(3)]
    assert [executor.wait(ticket).eager for ticket in tickets] == [False] * 3


@pytest.mark.parametrize(
    "name, code, said",
    [
        (b"cuGraphLaunch", ILLEGAL_ADDRESS, "a step's copy and its graph: CUDA_ERROR_ILLEGAL_ADDRESS"),
        (b"cuStreamQuery", LAUNCH_FAILED, "the step on the device: CUDA_ERROR_LAUNCH_FAILED"),
        (None, 0, "its stream ended and its results did not come"),
    ],
)
def test_an_error_of_the_driver_is_the_end_of_the_executor(
    stub: Any, executor: CudaExecutor, name: bytes | None, code: int, said: str
) -> None:
    """The steps that were submitted before end in it too, though their results came."""
    executor.wait(executor.submit(greedy(50)))
    before = executor.submit(greedy(50))
    stub.stub_reply(None, 0, None)  # the kernel that writes the number never runs
    if name is not None:
        stub.stub_fail(name, 1, code)
    with pytest.raises(DeviceLost, match=said):
        executor.wait(executor.submit(greedy(50)))
    null.answer(executor, stub)
    for handle in (before, executor.submit(greedy(50))):
        with pytest.raises(DeviceLost, match=said):
            executor.wait(handle)


@pytest.mark.parametrize("overlap", [False, True])
def test_an_engine_whose_device_failed_ends_every_request_and_runs_none_again(
    stub: Any, executor: CudaExecutor, overlap: bool
) -> None:
    limits = {"max_length": 256, "max_step_tokens": 512, "max_running": 4, "max_step_requests": 8}
    core = make_core(EngineCore, executor, EngineConfig().changed(**limits, overlap=overlap))
    sink = Collect()
    chats = [core.request(chat(i32(range(20)), 9), sink) for _ in range(6)]  # two of them wait
    core.lifecycle.post([*chats, core.request(last_logprob(i32(range(9))), sink)])
    for _ in range(3):
        core.step()
    assert core.healthy and not sink.ends.keys() & {request.id for request in chats}
    stub.stub_reply(None, 0, None)
    stub.stub_fail(b"cuStreamQuery", 1, ILLEGAL_ADDRESS)
    run_steps(core)
    ends = [sink.ends[request.id][1] for request in chats]
    assert all(isinstance(error, DeviceLost) for error in ends)
    assert all("ILLEGAL_ADDRESS" in str(error) and "no request's fault" in str(error) for error in ends)
    assert core.stats.replays == 0 and not core.healthy
    late = core.request(last_logprob(i32(range(9))), sink)
    core.run_inline([late])
    assert isinstance(sink.ends[late.id][1], DeviceLost) and not core.healthy
    core.close()


def test_a_wait_goes_on_while_the_device_is_at_work(stub: Any, executor: CudaExecutor) -> None:
    executor.wait(executor.submit(greedy(50)))
    stub.stub_reply(None, 0, None)
    handle: Any = executor.submit(greedy(50))
    stub.stub_busy(1)
    word = handle.ended.area.array[:4].view(np.uint32)
    timer = Timer(0.01, lambda: word.__setitem__(0, handle.ended.number))
    timer.start()
    assert not executor.wait(handle).eager
    timer.join()


@pytest.mark.feature("G10")
def test_host_memory_has_the_bytes_that_are_asked_for_and_goes_back_to_the_system(
    stub: Any, device: null.NullDevice
) -> None:
    """3,000 bytes, of which torch's allocator would take 4,096 and keep them. A view is enough to hold them."""
    before = stub.stub_pinned()
    memory = device.host_memory((5, 300), torch.bfloat16)
    assert memory.shape == (5, 300) and stub.stub_pinned() == before + 3000
    memory.fill_(1)
    row = memory[4]
    del memory
    gc.collect()
    assert stub.stub_pinned() == before + 3000 and (row == 1).all()
    pushed = stub.stub_calls(b"cuCtxPushCurrent")
    del row
    gc.collect()
    assert stub.stub_pinned() == before
    assert stub.stub_calls(b"cuCtxPushCurrent") == pushed + 1, "the context of the thread stays its own"
    stub.stub_fail(b"cuMemHostAlloc", 1, OUT_OF_MEMORY)
    with pytest.raises(torch.cuda.OutOfMemoryError, match="cuMemHostAlloc"):
        device.host_memory((8,), torch.uint8)
