"""The host's work for a decision, with no model: prepare, submit, match, allocate, plan, pack, finish, free.

    python -m bench host_path [--json FILE] [--quick]
    python -m bench host_path --files

Every step is answered with a constant. CPU time of this thread, microseconds a request, 10th percentile over repeats.
The pool holds two batches and is full before the clock starts, so blocks are evicted all the time. ``tasks`` await
``run`` in an event loop, 64 at the same time or one alone; the engine thread's own time is counted.

The aims, 36 us in a batch and 70 alone, were set for one processor; another one has others.

``--files`` prints the Python files that a warm ``AsyncEngine.decide`` of the packaged model enters in all threads,
their functions, and the lines that call native code. Such a line has a call whose name, resolved in the running
frame, is a function or a class of an extension module; a call of a call's result is not resolved. Layers are
``prelude/models`` and ``prelude/cpu``.
"""

from __future__ import annotations

import ast
import asyncio
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from prelude._native.core import KvPool

import prelude
from bench.common import Report, machine_facts, run_alone
from prelude import AsyncEngine, Choice, Decide, Engine, EngineConfig, YesNo
from prelude.execution.executor import ExecutorLimits
from prelude.loading.open import load
from prelude.readouts.batch import ForwardBatch, LogprobRows, OneShotBatch, Readout, StepResult
from prelude.runtime.core import EngineCore

BLOCK = 16
LONGEST = 2048  # tokens of the longest prompt
QUESTIONS = (Choice("Which is it?", ("good", "bad", "new", "old")),)
TEXT = """the of and to in is that for it as was with be by on not he his but at are this have from or had an they
which one you were all her she there would their we him been has when who will no more if out so up said its about
than into them can only other time new some could these two may first then do any like my now over such our man me"""


ROOT = Path(prelude.__file__).resolve().parent.parent
FOLDERS = tuple(f"{ROOT}/{name}/" for name in ("prelude", "tokenizer"))
LAYERS = ("prelude/models/", "prelude/cpu/")
ASKED = (Choice("Which language is it?", ["English", "French", "German"]), YesNo("Is it about the sea?"))


class Answering:
    """An executor that answers every OneShot step at once, with numbers that mean nothing."""

    def __init__(self, limits: ExecutorLimits) -> None:
        self._limits = limits
        self._none = np.zeros(0, np.int32)
        self._answers: dict[tuple[type, int], StepResult] = {}

    def limits(self) -> ExecutorLimits:
        return self._limits

    def submit(self, batch: ForwardBatch) -> Readout:
        if not isinstance(batch, OneShotBatch):
            raise TypeError("this bench sends OneShot steps")
        return batch.readout

    def wait(self, handle: Readout) -> StepResult:
        size = len(handle.targets) if isinstance(handle, LogprobRows) else len(handle.rows)
        found = self._answers.get((type(handle), size))
        if found is None:
            found = StepResult((handle.blank(),), (self._none,), 1e-6)
            self._answers[type(handle), size] = found
        return found

    def close(self) -> None:
        pass


class Bench:
    def __init__(self, quick: bool) -> None:
        self.seconds = 0.4 if quick else 3.0
        self.rng = np.random.default_rng(0)
        self.report = Report("The host's path of a decision", facts=machine_facts())
        self.us: dict[str, float] = {}
        # The preparer and the budgets of a real engine; its core is replaced by one without a model.
        parts = load(
            None, device="cpu", dtype="auto", config=EngineConfig(max_length=LONGEST, max_step_tokens=2 * LONGEST)
        )
        self.parts, self.limits, self.budgets = parts, parts.core.limits, parts.core.budgets
        parts.core.close()

    def add(self, key: str, load: str, measure: str, costs: list[float], reach: float | None) -> None:
        p10, median, p90 = np.percentile(costs, [10, 50, 90]).tolist()
        self.us[key] = p10
        note = f"median {median:.2f}"
        self.report.add(
            load, measure, (p10, p10, p90), "us", reach="" if reach is None else f"<= {reach:g}", note=note
        )

    def repeat(self, rows: int, make: Callable[[], Any], run: Callable[[Any], object]) -> list[float]:
        """Microseconds a request, of runs made off the clock, for as long as this bench takes per row."""
        for _ in range(5):
            run(make())
        costs: list[float] = []
        until = time.perf_counter() + self.seconds
        while time.perf_counter() < until or len(costs) < 20:
            given = make()
            began = time.thread_time_ns()
            run(given)
            costs.append((time.thread_time_ns() - began) / rows / 1000)
        return costs

    def engine(self, rows: int, tokens: int) -> Engine:
        room = max(rows * tokens, 4096) + 64
        pool = KvPool(2 * rows * -(-tokens // BLOCK), BLOCK)
        quiet = EngineCore(
            Answering(self.limits),
            pool,
            replace(self.budgets, step_tokens=room, group_tokens=room, step_requests=max(rows, 64)),
            max_queued_requests=1 << 20,
            max_queued_tokens=1 << 40,
            unhealthy_after=3,
        )
        return Engine(quiet, self.parts.preparer, self.parts.path)

    def decisions(self, rows: int, kind: str) -> list[Decide]:
        """``rows`` new states of about 128 tokens with one question of four labels; ``kind``: text or messages."""
        found = []
        for _ in range(rows):
            words = self.rng.choice(TEXT.split(), 96).tolist()
            half = [{"role": role, "content": " ".join(part)} for role, part in
                    (("user", words[:48]), ("assistant", words[48:]))]  # fmt: skip
            found.append(Decide(" ".join(words) if kind == "text" else half, QUESTIONS))
        return found

    def decide(self, rows: int, kind: str, key: str, reach: float | None, *, listener: bool = False) -> None:
        engine = self.engine(rows, 256)
        if listener:
            engine.on_event(lambda event: None)
        name = f"one question, batch {rows}, {kind}" + (", a listener" if listener else "")
        costs = self.repeat(rows, lambda: self.decisions(rows, kind), engine.run_many)
        self.add(f"decide_{key}", name, "decide", costs, reach)
        engine.close()

    async def deciding_tasks(self, rows: int) -> None:
        """All threads' CPU time of ``rows`` tasks that await ``run`` at the same time."""
        engine = self.engine(rows, 256)
        outer = AsyncEngine(engine)
        costs: list[float] = []
        until = time.perf_counter() + self.seconds
        while time.perf_counter() < until or len(costs) < 20:
            tasks = self.decisions(rows, "text")
            began = time.process_time_ns()
            await asyncio.gather(*(outer.run(task) for task in tasks))
            costs.append((time.process_time_ns() - began) / rows / 1000)
        self.add(f"decide_tasks{rows}", f"one question, {rows} tasks, text", "decide", costs[5:], None)
        await outer.aclose()


def measured(quick: bool) -> Bench:
    """Every row."""
    bench = Bench(quick)
    bench.decide(64, "text", "b64", 36)
    bench.decide(1, "text", "b1", 70)
    bench.decide(64, "messages", "messages_b64", None)
    bench.decide(1, "messages", "messages_b1", None)
    bench.decide(64, "text", "listener_b64", None, listener=True)
    asyncio.run(bench.deciding_tasks(64))
    asyncio.run(bench.deciding_tasks(1))
    return bench


@cache
def calls_of(file: str) -> dict[int, list[ast.expr]]:
    """Return the called expressions of a file by line."""
    found: dict[int, list[ast.expr]] = defaultdict(list)
    for node in ast.walk(ast.parse(Path(file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            found[node.func.end_lineno or node.lineno].append(node.func)
    return found


def resolve(called: ast.expr, frame: FrameType) -> Any:
    """Return the object that a chain of names stands for in ``frame``; None for another expression."""
    if isinstance(called, ast.Attribute):
        return getattr(resolve(called.value, frame), called.attr, None)
    name = called.id if isinstance(called, ast.Name) else ""
    return frame.f_locals.get(name, frame.f_globals.get(name))


def is_native(called: Any) -> bool:
    module = getattr(called, "__module__", None) or ""
    return module.startswith("prelude.") and not str(sys.modules[module].__file__).endswith(".py")


class Trace:
    def __init__(self) -> None:
        self.on = False
        self.functions: dict[str, set[str]] = defaultdict(set)  # by file
        self.sites: dict[str, set[int]] = defaultdict(set)  # lines that call native code, by file

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(FOLDERS):
            return None
        if self.on and event == "line":
            file = str(Path(code.co_filename).relative_to(ROOT))
            self.functions[file].add(getattr(code, "co_qualname", code.co_name))
            if any(is_native(resolve(one, frame)) for one in calls_of(code.co_filename)[frame.f_lineno]):
                self.sites[file].add(frame.f_lineno)
        return self


async def traced(trace: Trace) -> None:
    """Answer five states, then trace the sixth."""
    async with AsyncEngine.from_pretrained() as engine:
        for at in range(6):
            await asyncio.sleep(0.1)  # the engine's thread falls asleep
            trace.on = at == 5
            await engine.decide(f"The harbour was quiet on morning {at} of that week.", ASKED)
        await asyncio.sleep(0.1)
        trace.on = False


def files() -> None:
    """Print the files and the lines."""
    trace = Trace()
    threading.settrace(trace)
    sys.settrace(trace)
    asyncio.run(traced(trace))
    for file, functions in sorted(trace.functions.items()):
        lines = ", ".join(map(str, sorted(trace.sites[file])))
        print(f"{file}: {', '.join(sorted(functions))}{f'; native: lines {lines}' if lines else ''}")
    for layers in (False, True):
        some = [file for file in trace.functions if file.startswith(LAYERS) is layers]
        sites = sum(len(trace.sites[file]) for file in some)
        print(f"{'layers' if layers else 'outside layers'}: {len(some)} files, {sites} call sites of native code")


def main() -> None:
    if "--files" in sys.argv:
        files()
    else:
        run_alone(__doc__, measured, "host_path_us")


if __name__ == "__main__":
    main()
