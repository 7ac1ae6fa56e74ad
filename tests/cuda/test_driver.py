"""The driver's own calls: cuda-python's types, with its functions replaced by ones that note what they are given."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch
from prelude.cuda.device import CudaDevice, CudaGraph, CudaMark
from prelude.cuda.driver import CudaError, Driver
from prelude.cuda.kernels import SILU_GATE, sample

bindings = pytest.importorskip("cuda.bindings.driver")

_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class Recording:
    """``answers`` by name; what is not there answers success and one handle."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.answers: dict[str, tuple[Any, ...]] = {}

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            return getattr(bindings, name)  # types and enumerations are the real ones
        assert hasattr(bindings, name), f"cuda-python has no {name}"

        def call(*args: Any) -> tuple[Any, ...]:
            self.calls.append((name, args))
            return self.answers.get(name, (bindings.CUresult.CUDA_SUCCESS, len(self.calls)))

        return call

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


@pytest.fixture
def recorded() -> tuple[Driver, Recording]:
    driver, recording = Driver.__new__(Driver), Recording()
    driver._driver = recording

    def launch(executable: int, stream: int) -> int:
        recording.calls.append(("cuGraphLaunch", (executable, stream)))
        return int(recording.answers.get("cuGraphLaunch", (0,))[0])

    driver._graph_launch = _LAUNCH(launch)
    return driver, recording


class Captured:
    """Stands for torch's graph, which must live as long as what was made of it."""

    def raw_cuda_graph(self) -> int:
        return 77


def test_a_graph_is_instantiated_uploaded_once_launched_and_given_back(recorded: tuple[Driver, Recording]) -> None:
    driver, recording = recorded
    captured: Any = Captured()
    recording.answers["cuGraphInstantiate"] = (bindings.CUresult.CUDA_SUCCESS, 5)
    graph = CudaGraph(driver, 9, captured)
    graph.launch()
    graph.launch()
    assert graph._recorded is captured
    graph.close()
    graph.close()
    assert graph._recorded is None
    assert recording.calls == [
        ("cuGraphInstantiate", (77, 0)),
        ("cuGraphUpload", (5, 9)),
        ("cuGraphLaunch", (5, 9)),
        ("cuGraphLaunch", (5, 9)),
        ("cuGraphExecDestroy", (5,)),
    ]


def test_codes_become_errors_that_name_the_call(recorded: tuple[Driver, Recording]) -> None:
    driver, recording = recorded
    codes = bindings.CUresult
    recording.answers |= {
        "cuGraphUpload": (codes.CUDA_ERROR_INVALID_VALUE,),
        "cuGraphLaunch": (int(codes.CUDA_ERROR_ILLEGAL_ADDRESS),),
        "cuModuleLoadData": (codes.CUDA_ERROR_OUT_OF_MEMORY, None),
        "cuEventQuery": (codes.CUDA_ERROR_NOT_READY,),
    }
    with pytest.raises(CudaError, match="cuGraphUpload: CUDA_ERROR_INVALID_VALUE"):
        driver.upload(1, 2)
    with pytest.raises(CudaError, match="cuGraphLaunch: CUDA_ERROR_ILLEGAL_ADDRESS"):
        driver.replay(1, 2)
    with pytest.raises(torch.cuda.OutOfMemoryError, match="loading a kernel"):
        driver.load(b"")
    assert not driver.done(3)
    recording.answers["cuEventQuery"] = (codes.CUDA_ERROR_LAUNCH_FAILED,)
    with pytest.raises(CudaError, match="the step on the device: CUDA_ERROR_LAUNCH_FAILED"):
        driver.done(3)


def test_a_mark_is_recorded_waited_for_and_destroyed(recorded: tuple[Driver, Recording]) -> None:
    driver, recording = recorded
    mark = CudaMark(driver, 9)
    event = mark.event
    mark.wait()
    del mark
    assert recording.calls == [
        ("cuEventCreate", (0,)),
        ("cuEventRecord", (event, 9)),
        ("cuEventSynchronize", (event,)),
        ("cuEventDestroy", (event,)),
    ]


@pytest.mark.parametrize("dependent", [True, False])
def test_a_kernel_is_launched_with_its_grid_arguments_and_dependence(
    recorded: tuple[Driver, Recording], dependent: bool
) -> None:
    driver, recording = recorded
    device = CudaDevice.__new__(CudaDevice)
    device.driver, device.element, device.handle = driver, torch.bfloat16, 9
    device._dependent, device._functions, device._modules = dependent, {}, {"heads": 3}
    gate_up, out = (torch.zeros(2, width, dtype=torch.bfloat16) for width in (16, 8))
    for _ in range(2):
        device.launch(SILU_GATE, (2, 1), (gate_up, 8, out))
    device.launch(SILU_GATE, (0, 1), (gate_up, 8, out))  # nothing to do
    assert recording.names == ["cuModuleGetFunction", "cuLaunchKernelEx", "cuLaunchKernelEx"]
    config, function, (values, types), extra = recording.calls[-1][1]
    assert (function, extra) == (1, 0)
    assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (2, 1, 1)
    assert (config.blockDimX, config.sharedMemBytes, int(config.hStream)) == (SILU_GATE.block, 0, 9)
    assert values == (gate_up.data_ptr(), 8, out.data_ptr())
    assert types == (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    assert config.numAttrs == int(dependent)
    if dependent:
        serial = bindings.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        assert config.attrs[0].id == serial and config.attrs[0].value.programmaticStreamSerializationAllowed == 1


@pytest.mark.parametrize("clusters", [True, False])
def test_clusters_are_asked_for_where_there_are_some(recorded: tuple[Driver, Recording], clusters: bool) -> None:
    driver, recording = recorded
    device = CudaDevice.__new__(CudaDevice)
    device.driver, device.element, device.handle = driver, torch.bfloat16, 9
    device._dependent, device._clusters, device._functions, device._modules = True, clusters, {}, {"sample": 3}
    logits, numbers = torch.zeros(3, 101), torch.zeros(3, dtype=torch.float64)
    settings = [torch.ones(3), torch.ones(3, dtype=torch.int32), torch.ones(3), torch.ones(3), numbers]
    finite, tokens = (torch.ones(3, dtype=torch.int32) for _ in range(2))
    sample(device, logits, settings, finite, tokens)
    config = recording.calls[-1][1][0]
    assert config.gridDimX == 3 * (8 if clusters else 1) and config.sharedMemBytes >= 4 * 101 // 8
    sizes = [a.value.clusterDim for a in config.attrs if a.id.name.endswith("CLUSTER_DIMENSION")]
    assert [(s.x, s.y, s.z) for s in sizes] == ([(8, 1, 1)] if clusters else [])


def test_more_than_48_kib_of_shared_memory_is_asked_for(recorded: tuple[Driver, Recording]) -> None:
    driver, recording = recorded
    driver.function(3, "attend", 48 << 10)
    assert recording.names == ["cuModuleGetFunction"]
    driver.function(3, "attend", 64 << 10)
    assert recording.names[1:] == ["cuModuleGetFunction", "cuFuncSetAttribute"]
    assert recording.calls[-1][1][2] == 64 << 10
