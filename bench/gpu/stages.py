"""The stages of ``bench gpu_first``, each in a process of its own.

    python -m bench.gpu.stages NAME --results FILE [--smoke FILE] [--repeats 5]

A stage appends one JSON line to FILE for each result as soon as it has it, and flushes. A stage may fail at any
place: its written results stay.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import platform
import re
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
from typing import Any, NoReturn

from bench.command_line import options_parser
from bench.gpu.first import LIMITS, ROOT, read_results
from bench.gpu.table import OWN

GPU_TESTS = "tests/cuda/test_gpu.py"
TEST_MARK = "gpu"
QUIET = ("-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib")
"""Without the project's own ``-q``: its lines do not name the tests."""
TRIAL = ("prelude.cuda.own_trial",)
PACKAGES = ("torch", "flashinfer-python", "cuda-bindings", "cuda-python", "numpy", "transformers", "prelude-engine")
ATTENTION = "PRELUDE_ATTENTION"  # in the environment: figures by another backend say so
ROWS = (4, 128)  # of the single operations
IN_GRAPH = 20  # times an operation stands in the graph that is timed, each with another layer's weights
LONGEST = 5  # kernels of a profile


@dataclass(slots=True)
class Stage:
    """Where one stage writes, and its options."""

    name: str
    results: Path
    repeats: int = 5
    smoke: Path | None = None

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
    stage.tell("version.commit", value=_or_error(lambda: _output("git", "rev-parse", "HEAD")))
    stage.tell("device", value=_or_error(lambda: str(torch.cuda.get_device_properties(0))))
    stage.tell("driver", value=_or_error(lambda: _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv")))
    stage.tell("nvcc", value=_or_error(lambda: _output("nvcc", "--version").splitlines()[-1]))
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


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True, cwd=ROOT).stdout.strip()


# ------------------------------------------------------------------ checks that run as other programs


def smoke(stage: Stage) -> None:
    """Every check of the smoke script. Where a process is lost, the checks behind it run in another one."""
    if stage.smoke is None or not stage.smoke.is_file():
        stage.tell("smoke", ok=None, error=f"{stage.smoke}: no such script")
        return
    left = re.findall(r"^@check\ndef (\w+)", stage.smoke.read_text(encoding="utf-8"), re.M)
    while left:
        command = [sys.executable, str(stage.smoke), "--quick", "--only", ",".join(left)]
        seen = []
        for line in lines_of(command):
            said = re.match(r"(ok|FAIL)\s+(\w+)\s+(.*)", line)
            if said and said[2] in left:
                seen.append(said[2])
                stage.tell(f"smoke.{said[2]}", ok=said[1] == "ok", value=said[3])
        lost = [] if seen else left[:1]  # the process died in the first check
        for name in lost:
            stage.tell(f"smoke.{name}", ok=False, error="the process ended in it")
        left = [name for name in left if name not in seen and name not in lost]


def own_trial(stage: Stage) -> None:
    """The trial of this project's attention, in processes of its own. Widths that pass are offered to the stages
    behind. One without a verdict has failed."""
    from prelude.cuda.own_attention import HEAD_DIMS

    verdicts: dict[int, str] = {}
    for line in lines_of([sys.executable, "-m", *TRIAL]):
        said = re.match(r"attention, heads of (\d+): (.*)", line)
        if said:
            verdicts[int(said[1])] = said[2]
    for width in HEAD_DIMS:
        verdict = verdicts.get(width, "the process ended without a verdict")
        stage.tell(f"own.attention.{width}", ok=verdict == "passed", value=verdict)
    if "passed" not in verdicts.values():
        raise RuntimeError("no width of heads passed the trial")


def tests(stage: Stage) -> None:
    """The tests that need a GPU. Those behind a lost process run in another one, and those that failed in company run
    once more alone: an error that ends the device's context fails every test behind it."""
    base = [sys.executable, "-m", "pytest", *QUIET, "-m", TEST_MARK, "--no-header", "--tb=line"]
    listed = [line for line in lines_of([*base, "--collect-only", "-q", GPU_TESTS]) if "::" in line]
    left = [line.split("::", 1)[1].strip() for line in listed]
    stage.tell("tests.collected", value=len(left))
    failed: list[str] = []
    while left:
        alone, done = len(left) == 1, dict[str, str]()
        for line in lines_of([*base, "-v", *[f"{GPU_TESTS}::{name}" for name in left]]):
            said = re.match(r"\S+?::(.+?) (PASSED|FAILED|ERROR|SKIPPED)", line)
            if said and said[1] not in done:
                done[said[1]] = said[2]
                _tell_test(stage, said[1], said[2], alone)
        if not done:
            stage.tell(f"tests.{left[0]}", ok=False, error="the process ended in it", alone=alone)
            done[left[0]] = "ERROR"
        elif not alone:
            failed += [name for name, how in done.items() if how in ("FAILED", "ERROR")]
        left = [name for name in left if name not in done]
    for name in failed:
        for line in lines_of([*base, "-v", f"{GPU_TESTS}::{name}"]):
            said = re.match(r"\S+?::(.+?) (PASSED|FAILED|ERROR|SKIPPED)", line)
            if said:
                _tell_test(stage, name, said[2], True)


def _tell_test(stage: Stage, name: str, how: str, alone: bool) -> None:
    stage.tell(f"tests.{name}", ok={"PASSED": True, "SKIPPED": None}.get(how, False), alone=alone)


def lines_of(command: list[str]) -> Iterator[str]:
    """The output of a program, line by line, also written to this process's own output."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            yield line.rstrip("\n")


# ------------------------------------------------------------------ the loads


def part(stage: Stage, name: str) -> None:
    """One part of ``bench gpu``, by the kernels of the libraries; with ``OWN`` behind its name, by this project's own
    attention too, if it passed its trial."""
    from bench.gpu.loads import Bench

    own = name.endswith(OWN)
    if own and not any(x["stage"] == "own_trial" and x.get("ok") for x in read_results(stage.results)):
        raise LookupError("no kernel of this project's passed its trial: the stage was left out")
    bench = Bench(stage.repeats, own)
    try:
        for load in getattr(bench, name.removesuffix(OWN))():
            values = load.plain()
            key, dot, unit = values.pop("key").rpartition(".")
            stage.tell(
                f"{key}{OWN if own else ''}{dot}{unit}", device=bench.chip.name, attention=bench.attention, **values
            )
    finally:
        bench.release()
        for at, steps in enumerate(bench.steps):
            stage.tell(f"steps.{at}", **steps)


def operations(stage: Stage) -> None:
    """Each operation of a layer of the 0.6B model alone: microseconds in a graph of 20, and its floor."""
    from bench.gpu.loads import Bench
    from bench.gpu.operations import operations_of

    bench = Bench(stage.repeats, own=False)
    executor = bench.executor("06b", num_blocks=64, step_tokens=2048)
    for rows in ROWS:
        for name, work, floor in operations_of(executor, rows, bench.chip):
            try:
                values = timed_in_graph(executor.device, work, stage.repeats)
                value = statistics.median(values)
                stage.tell(f"operations.{name}.{rows}", unit="us", value=value, values=values, floor=floor)
            except Exception as error:
                stage.tell(f"operations.{name}.{rows}", ok=False, error=f"{type(error).__name__}: {error}")
    bench.release()


def timed_in_graph(device: Any, work: Callable[[int], None], repeats: int) -> list[float]:
    """Microseconds of one ``work(i)``, from a recorded graph of ``IN_GRAPH`` of them. The graph runs once in front of
    the one that is timed: meanwhile the host enqueues that, so that its own time is not in the figure."""
    with device.scope():

        def enqueue() -> None:
            for i in range(IN_GRAPH):
                work(i)

        device.warm(enqueue, search=True)
        graph = device.capture(enqueue)
        found = []
        for _ in range(repeats):
            graph.launch()
            first = device.mark()
            graph.launch()
            last = device.mark()
            last.wait()
            found.append(last.seconds_since(first) * 1e6 / IN_GRAPH)
        graph.close()
    return found


def profile(stage: Stage) -> None:
    """The kernels that take most of a step of one prompt of 128 tokens, by the kernels of the libraries."""
    import torch
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    from bench.gpu.batches import draw, forest, greedy
    from bench.gpu.loads import Bench
    from prelude.batch import OneShotBatch

    bench = Bench(stage.repeats, own=False)
    executor = bench.executor("06b")
    batch = OneShotBatch(forest([(draw(0, 128), -1)]), greedy([127]))
    for _ in range(4):
        executor.wait(executor.submit(batch))
    activity = ProfilerActivity.CUDA if torch.cuda.is_available() else ProfilerActivity.CPU
    with profiled(activities=[activity]) as seen:
        for _ in range(10):
            executor.wait(executor.submit(batch))
    rows = seen.key_averages()
    time_of = "self_device_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
    longest = sorted(rows, key=lambda row: -getattr(row, time_of))[:LONGEST]
    for at, row in enumerate(longest):
        stage.tell(f"profile.oneshot.{at}", kernel=row.key, us=getattr(row, time_of) / 10, calls=row.count / 10)
    bench.release()


_APART = {stage.__name__: stage for stage in (versions, smoke, own_trial, tests, operations, profile)}
STAGES: dict[str, Callable[[Stage], None]] = {
    name: _APART.get(name) or (lambda stage, name=name: part(stage, name))  # type: ignore[misc]
    for name in LIMITS
}
"""The functions of the stages that ``first.py`` names; a stage without one of its own is a part of ``bench gpu``."""


def main() -> int:
    parser = options_parser(__doc__)
    parser.add_argument("name", choices=STAGES)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--smoke", type=Path, default=None)
    parser.add_argument("--repeats", type=int, default=5)
    chosen = parser.parse_args()
    # A stage that passes its limit, or loses its process, leaves the place where it was in the log.
    faulthandler.enable()
    faulthandler.register(signal.SIGTERM, all_threads=True, chain=True)
    end_with_the_parent()
    stage = Stage(chosen.name, chosen.results, chosen.repeats, chosen.smoke)
    try:
        if forced := os.environ.get(ATTENTION):
            stage.tell("attention", value=f"{ATTENTION}={forced}")
        STAGES[chosen.name](stage)
    except Exception as error:
        traceback.print_exc()
        stage.tell("error", ok=False, error=f"{type(error).__name__}: {error}")
        return 1
    return 0


def end_with_the_parent() -> None:
    """A stage whose caller was killed is killed too (Linux): it would keep the GPU busy."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def leave(code: int) -> NoReturn:
    """Ends the process without taking anything down: all results are written, and a library that fails or waits while
    it is unloaded would make a good stage a lost one."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main())
