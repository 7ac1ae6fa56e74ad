"""What the host does for a one-token request, with no model: submit, match, allocate, plan, pack, finish, free.

    python -m bench.host_path [--json FILE] [--quick]

Every step is answered with a constant. CPU time of this thread, microseconds a request, 10th percentile over repeats.
The pool holds two batches and is full before the clock starts, so blocks are evicted all the time. ``core`` begins
with token ids (a list, or an int32 array) and ends when the request's numbers are with its sink; ``engine`` is the
public ``run_many``, from ``Generate(ids, max_tokens=1)`` to a ``Completion``; ``asyncio`` is 64 tasks awaiting
``run`` at the same time, one ``await run_many``, and one ``await run`` alone, with the engine thread's own time
counted: an event loop never runs a step itself.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from bench.common import Report, machine_facts, part_of_planning
from prelude import AsyncEngine, Engine, EngineConfig, Generate, SamplingParams
from prelude.batch import ForwardBatch, OneShotBatch, SampleOutput, SampleRows, StepResult
from prelude.execution.executor import ExecutorLimits
from prelude.loading import load
from prelude.options import NO_OPTIONS
from prelude.runtime.core import EngineCore
from prelude.runtime.delivery import BlockingSink
from prelude.scheduling.lease import KvPool

BLOCK = 16
PARAMS = SamplingParams(max_tokens=1, temperature=0)


class Answering:
    """An executor that samples token 5 for everybody, at once."""

    def __init__(self, limits: ExecutorLimits) -> None:
        self._limits = limits
        self._none = np.zeros(0, np.int32)
        self._answers: dict[int, StepResult] = {}

    def limits(self) -> ExecutorLimits:
        return self._limits

    def submit(self, batch: ForwardBatch) -> int:
        if not isinstance(batch, OneShotBatch) or not isinstance(batch.readout, SampleRows):
            raise TypeError("this bench sends OneShot steps that sample")
        return len(batch.readout.rows)

    def wait(self, handle: int) -> StepResult:
        if handle not in self._answers:
            ids = np.full(handle, 5, np.int32)
            self._answers[handle] = StepResult((SampleOutput(ids),), (self._none,), 1e-6)
        return self._answers[handle]

    def close(self) -> None:
        pass


class Bench:
    def __init__(self, quick: bool) -> None:
        self.seconds = 0.4 if quick else 3.0
        self.rng = np.random.default_rng(0)
        self.report = Report("The host's path of a one-token request", facts=machine_facts())
        self.us: dict[str, float] = {}
        # The preparer and the budgets of a real engine; its core is replaced by one without a model.
        parts = load(None, device="cpu", dtype="auto", config=EngineConfig(max_length=2048, max_step_tokens=4096))
        self.parts, self.limits, self.budgets = parts, parts.core.limits, parts.core.budgets
        parts.core.close()

    def add(self, key: str, load: str, measure: str, costs: list[float], reach: float | None) -> None:
        p10, median, p90 = np.percentile(costs, [10, 50, 90]).tolist()
        self.us[key] = p10
        note = f"median {median:.2f}"
        self.report.add(load, measure, (p10, p10, p90), "us", reach="" if reach is None else f"{reach:g}", note=note)

    def prompts(self, rows: int, tokens: int, shared: float = 0.0) -> list[np.ndarray]:
        out = self.rng.integers(10, 1000, (rows, tokens)).astype(np.int32)
        out[:, : int(tokens * shared)] = 7
        return list(out)

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

    # --- what is measured -------------------------------------------------------------------------------------

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

    def core(
        self,
        rows: int,
        tokens: int,
        key: str,
        *,
        shared: float = 0.0,
        array: bool = False,
        reach: float | None = None,
    ) -> None:
        engine = self.engine(rows, tokens)
        core = engine._core
        preparer = engine._preparer

        def make() -> list[Any]:
            prompts = self.prompts(rows, tokens, shared)
            return prompts if array else [p.tolist() for p in prompts]

        def run(prompts: list[Any]) -> None:
            sink = BlockingSink()
            with core.reserve(len(prompts)) as places:
                admitted: Any = preparer.prepare_all([Generate(prompt, PARAMS) for prompt in prompts])
                prepared = [item.prepared for item in admitted]
                requests: Any = core.requests(prepared, sink, NO_OPTIONS, places, math.inf)
                sink.expected = len(requests)
                core.run_inline(requests, places)
            if len(sink.ends) != rows:
                raise RuntimeError("not every request has ended")

        name = f"{tokens} tokens, batch {rows}" + (", 75 % shared" if shared else "") + (", int32" if array else "")
        self.add(key, name, "core", self.repeat(rows, make, run), reach)
        engine.close()

    def front(self, rows: int, tokens: int, key: str) -> None:
        engine = self.engine(rows, tokens)

        def make() -> list[Generate]:
            return [Generate(p.tolist(), PARAMS) for p in self.prompts(rows, tokens)]

        self.add(key, f"{tokens} tokens, batch {rows}", "engine", self.repeat(rows, make, engine.run_many), None)
        engine.close()

    async def loops(self, rows: int, tokens: int) -> None:
        """All threads' CPU time, since the step runs beside the loop."""
        engine = self.engine(rows, tokens)
        outer = AsyncEngine(engine)
        for key, measure, count, reach in (
            ("tasks64", "asyncio, 64 tasks", rows, 9),
            ("run_many64", "asyncio, run_many(64)", rows, 2),
            ("run1", "asyncio, one run", 1, None),
        ):
            costs: list[float] = []
            until = time.perf_counter() + self.seconds
            while time.perf_counter() < until or len(costs) < 20:
                tasks = [Generate(p.tolist(), PARAMS) for p in self.prompts(count, tokens)]
                began = time.process_time_ns()
                if key == "tasks64":
                    await asyncio.gather(*(outer.run(task) for task in tasks))
                elif key == "run1":
                    await outer.run(tasks[0])
                else:
                    await outer.run_many(tasks)
                costs.append((time.process_time_ns() - began) / count / 1000)
            self.add(f"asyncio_{key}", f"{tokens} tokens", measure, costs[5:], reach)
        await outer.aclose()


def measured(quick: bool) -> Bench:
    """Every row."""
    bench = Bench(quick)
    bench.core(64, 128, "b64_l128", reach=3)
    bench.core(64, 128, "b64_l128_shared75", shared=0.75, reach=3)
    bench.core(256, 128, "b256_l128", reach=3.3)
    bench.core(1, 128, "b1_l128", reach=10)
    bench.core(64, 512, "b64_l512", reach=6)
    bench.core(64, 512, "b64_l512_int32", array=True, reach=2.5)
    bench.core(64, 4096, "b64_l4096", reach=35)
    bench.core(64, 4096, "b64_l4096_int32", array=True, reach=12)
    bench.front(1, 128, "engine_b1_l128")
    bench.front(64, 128, "engine_b64_l128")
    asyncio.run(bench.loops(64, 128))
    return bench


def main() -> None:
    part_of_planning(__doc__, measured, "host_path_us")


if __name__ == "__main__":
    main()
