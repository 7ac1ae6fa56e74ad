"""The stages of ``bench gpu_first``, each in a process of its own.

    python -m bench.gpu.stages NAME --results FILE [--repeats 5]

A stage appends one JSON line to FILE for each result as soon as it has it, and flushes. A stage may fail at any
place: its written results stay.
"""

from __future__ import annotations

import faulthandler
import json
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from bench.command_line import options_parser
from bench.gpu.first import LIMITS, ROOT, output

if TYPE_CHECKING:
    from prelude.cuda.executor import CudaExecutor

    from prelude.readouts.batch import ForwardBatch

GPU_TESTS = "tests/cuda/test_gpu.py"
TEST_MARK = "gpu"
QUIET = ("-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib")
"""Without the project's own ``-q``: its lines do not name the tests."""
SANITIZED = "skinny_gemm or bits_in_any_company or trained_weights"
"""GPU tests that the sanitizers run: short ones of this project's kernels."""
PACKAGES = ("torch", "flashinfer-python", "cuda-bindings", "cuda-python", "numpy", "transformers", "prelude-engine")
ATTENTION = "PRELUDE_ATTENTION"  # in the environment: figures by another backend say so
LONGEST = 16  # kernels of a profile
PROFILED = 10  # steps


@dataclass(slots=True)
class Stage:
    """Where one stage writes, and its options."""

    name: str
    results: Path
    repeats: int = 5

    def tell(self, key: str, **values: Any) -> None:
        line = {"stage": self.name, "key": key, "at": round(time.time(), 3), **values}
        with open(self.results, "a", encoding="utf-8") as file:  # one write a line: lines of two writers do not mix
            file.write(json.dumps(line, default=str) + "\n")


# ------------------------------------------------------------------ the environment


def versions(stage: Stage) -> None:
    """The device and its software: each fact apart, so that one that cannot be had costs no other."""
    import torch

    stage.tell("device.name", value=_or_error(torch.cuda.get_device_name))
    for name in PACKAGES:
        stage.tell(f"version.{name}", value=_or_error(lambda name=name: metadata.version(name)))
    stage.tell("version.python", value=platform.python_version())
    stage.tell("driver", value=output("nvidia-smi", "--query-gpu=driver_version", "--format=csv"))
    from prelude.cuda import compiler, driver

    from bench.gpu import chips

    stage.tell("missing", value=_or_error(driver.missing))
    stage.tell("version.cuda", value=_or_error(lambda: {"torch": torch.version.cuda, "driver": _driver_version()}))
    stage.tell("version.nvrtc", value=_or_error(compiler.nvrtc_version))
    stage.tell("flashinfer", value=_or_error(_flashinfer))
    stage.tell("ceilings", value=_or_error(lambda: asdict(chips.measured(torch.cuda.get_device_name()))))
    stage.tell("chip", value=_or_error(lambda: asdict(chips.here())))


def _driver_version() -> int:
    """The newest CUDA that the driver serves: cubins of this major version load, whatever compiled them."""
    from cuda.bindings import driver  # type: ignore[import-untyped,unused-ignore]

    return int(driver.cuDriverGetVersion()[1])


def _flashinfer() -> dict[str, Any]:
    """Its import, and the modules that were compiled ahead; others are compiled when they are first called."""
    began = time.perf_counter()
    import flashinfer  # type: ignore[import-not-found,import-untyped,unused-ignore]

    seconds = time.perf_counter() - began
    ahead = Path(flashinfer.__file__).parent / "data" / "aot"
    names = sorted(path.name for path in ahead.iterdir()) if ahead.is_dir() else []
    return {"version": flashinfer.__version__, "seconds": round(seconds, 1), "compiled": names}


def _or_error(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


# ------------------------------------------------------------------ checks that run as other programs


def sanitize(stage: Stage) -> None:
    """Some tests under each tool of compute-sanitizer, where that is installed. Races and barriers are looked for in
    this project's kernels alone: in cuBLAS's, the first test takes minutes."""
    from prelude.cuda import kernels

    ours = [word for kernel in kernels.ALL for word in ("--kernel-name", f"kne={kernel.name}")]
    program, bad = shutil.which("compute-sanitizer"), list[str]()
    if program is None:
        stage.tell("sanitize", ok=None, value="compute-sanitizer is not installed")
        return
    for tool in ("memcheck", "racecheck", "synccheck"):
        checked = [program, "--tool", tool, "--error-exitcode", "7", *(ours if tool != "memcheck" else ())]
        said = list(lines_of([*checked, sys.executable, "-m", "pytest", *QUIET, "-k", SANITIZED, GPU_TESTS]))
        summary = [line for line in said if "SUMMARY" in line][-1:]
        right = bool(summary) and all(re.search(r"\b0 (errors|hazards)\b", line) for line in summary)
        stage.tell(f"sanitize.{tool}", ok=right, value=" ".join(summary) or "it ended without a verdict")
        bad += [] if right else [tool]
    if bad:
        raise RuntimeError(f"compute-sanitizer: {', '.join(bad)}")


def tests(stage: Stage) -> None:
    """The tests that need a GPU. Each one that was collected has to have its verdict."""
    base = [sys.executable, "-m", "pytest", *QUIET, "-m", TEST_MARK, "--no-header", "--tb=short"]
    listed = [line for line in lines_of([*base, "--collect-only", "-q", GPU_TESTS]) if "::" in line]
    left = [line.split("::", 1)[1].strip() for line in listed]
    stage.tell("tests.collected", value=len(left))
    bad = []
    for line in lines_of([*base, "-v", GPU_TESTS]):
        said = re.match(r"\S+?::(.+?) (PASSED|FAILED|ERROR|SKIPPED)", line)
        if said and said[1] in left:
            left.remove(said[1])
            stage.tell(f"tests.{said[1]}", ok={"PASSED": True, "SKIPPED": None}.get(said[2], False))
            bad += [said[1]] if said[2] in ("FAILED", "ERROR") else []
    for name in left:
        stage.tell(f"tests.{name}", ok=False, error="the process ended without a verdict")
    if bad or left or not listed:
        raise RuntimeError(f"{len(bad)} tests failed, {len(left)} of {len(listed)} have no verdict")


def lines_of(command: list[str]) -> Iterator[str]:
    """The output of a program, line by line, also written to this process's own output."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            yield line.rstrip("\n")


# ------------------------------------------------------------------ the loads


def part(stage: Stage, name: str) -> None:
    """One load of ``loads.Bench``."""
    from bench.gpu.loads import Bench

    bench = Bench(stage.repeats)
    try:
        for load in getattr(bench, name)():
            stage.tell(device=bench.chip.name, attention=bench.attention, **load.plain())
    finally:
        bench.release()
        for at, steps in enumerate(bench.steps):
            stage.tell(f"steps.{at}", **steps)


def profile(stage: Stage) -> None:
    """A step's time, the sum of its kernels' and the longest of them: of one prompt of 128 tokens, of four texts that
    run, and of 8 prompts of 512 tokens."""
    import torch
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    from bench.gpu.host import decoding, root, roots
    from bench.gpu.loads import Bench

    on_gpu = torch.cuda.is_available()
    activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    time_of = f"self_{'device' if on_gpu else 'cpu'}_time_total"
    bench = Bench(stage.repeats)
    for name, model, batch in (
        ("oneshot", "06b", root(128)),
        ("decode", "06b", decoding(4, 144)),
        ("throughput", "4b", roots(8, 512)),
    ):
        executor = bench.executor(model, num_blocks=256)
        bench.search_large_steps(executor)

        def step(executor: CudaExecutor = executor, batch: ForwardBatch = batch) -> None:
            executor.wait(executor.submit(batch))

        seconds = bench.timed(step, PROFILED)
        with profiled(activities=[activity]) as seen:
            for _ in range(PROFILED):
                step()
        rows = sorted(seen.key_averages(), key=lambda row: -getattr(row, time_of))
        busy = sum(getattr(row, time_of) for row in rows) / PROFILED
        stage.tell(f"profile.{name}", step_us=statistics.median(seconds) * 1e6, kernels_us=busy)
        for at, row in enumerate(rows[:LONGEST]):
            us = getattr(row, time_of) / PROFILED
            stage.tell(f"profile.{name}.{at}", kernel=row.key, us=us, calls=row.count / PROFILED)
        bench.release()


_APART = {stage.__name__: stage for stage in (versions, sanitize, tests, profile)}
STAGES: dict[str, Callable[[Stage], None]] = {
    name: _APART.get(name) or (lambda stage, name=name: part(stage, name))  # type: ignore[misc]
    for name in LIMITS
}
"""The functions of the stages that ``first.py`` names; a stage without one of its own is a load of ``loads.py``."""


def main() -> int:
    parser = options_parser(__doc__)
    parser.add_argument("name", choices=STAGES)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=5)
    chosen = parser.parse_args()
    # A stage that passes its limit, or loses its process, leaves the place where it was in the log.
    faulthandler.enable()
    faulthandler.register(signal.SIGTERM, all_threads=True, chain=True)
    stage = Stage(chosen.name, chosen.results, chosen.repeats)
    try:
        if forced := os.environ.get(ATTENTION):
            stage.tell("attention", value=f"{ATTENTION}={forced}")
        STAGES[chosen.name](stage)
    except Exception as error:
        traceback.print_exc()
        stage.tell("error", ok=False, error=f"{type(error).__name__}: {error}")
        return 1
    return 0


def leave(code: int) -> NoReturn:
    """Ends the process without taking anything down: all results are written, and a library that fails or waits while
    it is unloaded would make a good stage a lost one."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main())
