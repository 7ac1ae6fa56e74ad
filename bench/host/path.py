"""The host's work for a request of one step, with no model: submit, match, allocate, plan, pack, finish, free.

    python -m bench host_path [--json FILE] [--quick]

Every step is answered with a constant. CPU time of this thread, microseconds a request, 10th percentile over repeats.
The pool holds two batches and is full before the clock starts, so blocks are evicted all the time. ``core`` begins
with token ids (a list, or an int32 array) and ends when the request's numbers are with its sink; ``engine`` is the
public ``run_many``, from ``Generate(ids, max_tokens=1)`` to a ``Completion``; ``asyncio`` is 64 tasks awaiting
``run`` at the same time, one ``await run_many``, and one ``await run`` alone, with the engine thread's own time
counted: an event loop never runs a step itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from prelude._native.core import KvPool

from bench.common import Report, machine_facts, run_alone
from prelude import AsyncEngine, Choice, Decide, Engine, EngineConfig, Generate, SamplingParams
from prelude.api.text_streams import watching
from prelude.execution.executor import ExecutorLimits
from prelude.loading.open import load
from prelude.readouts.batch import ForwardBatch, LogprobRows, OneShotBatch, Readout, StepResult
from prelude.runtime.core import EngineCore
from prelude.runtime.delivery import BlockingSink
from prelude.runtime.entry import PLAIN

BLOCK = 16
LONGEST = 2048  # tokens of the longest prompt
PARAMS = SamplingParams(max_tokens=1, temperature=0)
QUESTIONS = (Choice("Which is it?", ("good", "bad", "new", "old")),)
TEXT = """the of and to in is that for it as was with be by on not he his but at are this have from or had an they
which one you were all her she there would their we him been has when who will no more if out so up said its about
than into them can only other time new some could these two may first then do any like my now over such our man me"""


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
        self.report = Report("The host's path of a one-token request", facts=machine_facts())
        self.us: dict[str, float] = {}
        self.decide_us: dict[str, float] = {}
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

    # --- measurements -----------------------------------------------------------------------------------------

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
                requests: Any = core.requests(admitted, [PLAIN] * len(admitted), sink, places, watching)
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
        self.decide_us[key] = self.us[f"decide_{key}"]
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
        self.add(f"decide_tasks{rows}", f"one question, {rows} tasks, text", "decide", costs[5:], 20)
        self.decide_us[f"tasks{rows}"] = self.us[f"decide_tasks{rows}"]
        await outer.aclose()

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
    bench.core(64, 2000, "b64_l2000", reach=17)
    bench.core(64, 2000, "b64_l2000_int32", array=True, reach=6)
    bench.front(1, 128, "engine_b1_l128")
    bench.front(64, 128, "engine_b64_l128")
    asyncio.run(bench.loops(64, 128))
    bench.decide(64, "text", "b64", 15)
    bench.decide(1, "text", "b1", 35)
    bench.decide(64, "messages", "messages_b64", 20)
    bench.decide(1, "messages", "messages_b1", 45)
    bench.decide(64, "text", "listener_b64", None, listener=True)
    asyncio.run(bench.deciding_tasks(64))
    return bench


def main() -> None:
    run_alone(__doc__, measured, "host_path_us")


if __name__ == "__main__":
    main()
