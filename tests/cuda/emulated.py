"""Our kernels' own source, compiled for the host by emulator.hpp and run on a simulated device."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from prelude.cuda import compiler, kernels
from prelude.cuda.kernels import Argument, Kernel, check
from torch import Tensor

from tests.cuda.simulated import Pointer, SimulatedDevice

COMPILER = shutil.which("g++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no g++ to run kernels on the host")
F32 = torch.float32
_TYPES = {"int": "int", "float": "float"}
BLOCK = 64
"""Threads of an emulated block: enough for two warps."""
CLUSTER = 2
"""Blocks of an emulated cluster, at most."""


def _wrapper(kernel: Kernel) -> str:
    kinds = kernel.kinds
    parameters = [_TYPES.get(kind, "void*") for kind in kinds]
    named = ", ".join(f"{kind} a{i}" for i, kind in enumerate(parameters))
    pointers = {"i32": "(int*)", "f32": "(float*)", "f64": "(double*)", "element": "(element*)"}
    passed = ", ".join(
        f"a{i}" if kind in _TYPES else f"{pointers[kind.removesuffix('?')]}a{i}" for i, kind in enumerate(kinds)
    )
    return (
        f'extern "C" void run_{kernel.name}(int columns, int rows, int cluster, int block, int shared, {named}) {{\n'
        f"    run_grid(columns, rows, cluster, block, shared, [=] {{ {kernel.name}({passed}); }});\n}}\n"
    )


@functools.cache
def library(file: str, float32: bool, head_dim: int) -> ctypes.CDLL:
    text = compiler.source(file).replace(
        "extern __shared__ float shared[];", "float* shared = (float*)the_room->shared;"
    )
    text += "".join(_wrapper(kernel) for kernel in kernels.ALL if kernel.file == file)
    folder = Path(tempfile.mkdtemp(prefix="emulated"))
    source, built = folder / f"{file}.cpp", folder / f"{file}.so"
    source.write_text(f'#include "{Path(__file__).parent / "emulator.hpp"}"\n' + text, encoding="utf-8")
    options = ["-std=c++20", "-O1", "-shared", "-fPIC", f"-DHEAD_DIM={head_dim}"]
    if float32:
        options.append("-DPRELUDE_FLOAT32")
    if COMPILER is None:
        raise RuntimeError("no C++ compiler")
    subprocess.run([COMPILER, *options, str(source), "-o", str(built)], check=True, capture_output=True)
    loaded = ctypes.CDLL(str(built))
    shutil.rmtree(folder)
    return loaded


class EmulatedDevice(SimulatedDevice):
    """Runs kernels themselves where the simulated device runs their twins."""

    def __init__(self, element: torch.dtype, head_dim: int, *, deterministic: bool = False) -> None:
        super().__init__(element, deterministic=deterministic)
        self.head_dim = head_dim

    def launch(self, kernel: Kernel, grid: tuple[int, ...], args: Sequence[Argument], shared: int = 0) -> None:
        if 0 in grid:
            return
        check(kernel, grid, args, self.element)
        seen = [self.pointer(a) if isinstance(a, Tensor) else a for a in args]
        built = library(kernel.file, self.element == torch.float32, self.head_dim)
        run = getattr(built, f"run_{kernel.name}")
        columns, rows = (*grid, 1)[:2]
        cluster = min(kernel.cluster, CLUSTER) if kernel.file in ("sample", "logits") else kernel.cluster
        # Where a block's work depends on its size, the grid counts on it.
        block = kernel.block if kernel.name == "silu_gate" or kernel.file in ("attend", "skinny_gemm") else BLOCK

        def execute() -> None:
            raw: list[Any] = [a.everything().data_ptr() if isinstance(a, Pointer) else a for a in seen]
            typed = [
                ctypes.c_float(a) if kind == "float" else ctypes.c_int(a) if kind == "int" else ctypes.c_void_p(a)
                for kind, a in zip(kernel.kinds, raw)
            ]
            run(columns * cluster, rows, cluster, block, shared, *typed)

        self.enqueue(kernel.name, execute)


def both(launch: Callable[..., None], *given: Any, element: torch.dtype = F32, width: int = 32) -> list[Any]:
    """Of each thing that is ``given`` its values after ``launch(device, *given)`` by the kernel and by its twin.
    ``width``: of a head."""
    after = []
    for device in (EmulatedDevice(element, width), SimulatedDevice(element)):
        placed = [_placed(device, value) for value in given]
        launch(device, *placed)
        device.close()
        after.append(placed)
    return list(zip(*after))


def _placed(device: SimulatedDevice, value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(_placed(device, one) for one in value)
    return device.put(value) if isinstance(value, Tensor) else value
