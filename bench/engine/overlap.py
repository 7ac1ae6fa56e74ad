"""Overlap, on and off: the gain of planning beside the computation, and the cost of a hand-over between two threads.

    python -m bench overlap [--repeats 9] [--threads N] [--only cpu|device] [--json FILE]

The same tasks through two engines of the packaged model, in turn; results are equal first. A figure above 1 says that
overlap is faster. Chats are greedy and their streams have no reader; decisions are prompts of 128 tokens with one
label, in steps of 8. ``--threads`` is the number of a step's threads; overlap needs a core beside them.

``device of N ms``: the same chats on an executor that takes so long for a step and no CPU, as a GPU does, and answers
with a constant. A step should take N ms, or the host's time where that is more; making the requests and handing
over their texts is in the figure.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.command_line import options_parser
from bench.common import Report, add_outputs, machine_facts, paired, ratio, three, use_threads
from prelude import Engine, EngineConfig, ExpertConfig, Generate, Loglikelihood, SamplingParams
from prelude.execution.executor import ExecutorLimits, num_sampled
from prelude.loading.open import load
from prelude.readouts.batch import ForwardBatch, SampleOutput, StepResult
from prelude.runtime.assembly import make_core
from prelude.runtime.core import EngineCore

TOKENS = 48


def tasks_of(load: str) -> list[Any]:
    draw = np.random.default_rng(3)
    kind, count = load.split()
    greedy = SamplingParams(max_tokens=TOKENS, temperature=0, ignore_eos=True)
    if kind == "chats":
        return [Generate(draw.integers(10, 400, 24).tolist(), greedy) for _ in range(int(count))]
    return [Loglikelihood(draw.integers(10, 400, 128).tolist(), [7]) for _ in range(int(count))]


def numbers(results: list[Any]) -> list[Any]:
    return [getattr(r, "token_ids", None) or r.token_logprobs for r in results]


def engine(overlap: bool) -> Engine:
    expert = ExpertConfig(fold=False, group_tokens=1024)
    config = EngineConfig(overlap=overlap, prefix_cache=False, max_length=512, max_step_tokens=1024, expert=expert)
    return Engine.from_pretrained(None, config=config)


class Elsewhere:
    """Takes ``seconds`` a step, one behind the other, and draws token 5 for everybody."""

    def __init__(self, limits: ExecutorLimits, seconds: float) -> None:
        self._limits = limits
        self.seconds = seconds
        self.steps = 0
        self._free = 0.0

    def limits(self) -> ExecutorLimits:
        return self._limits

    def submit(self, batch: ForwardBatch) -> tuple[float, int]:
        self.steps += 1
        self._free = max(self._free, time.perf_counter()) + self.seconds
        return self._free, num_sampled(batch)

    def wait(self, handle: tuple[float, int]) -> StepResult:
        done, rows = handle
        time.sleep(max(0.0, done - time.perf_counter()))
        output = SampleOutput(np.full(rows, 5, np.int32))
        return StepResult((output,), (np.zeros(0, np.int32),), self.seconds)

    def close(self) -> None:
        pass


def elsewhere(report: Report, seconds: float, repeats: int, count: int = 64) -> None:
    parts = load(None, device="cpu", dtype="auto", config=EngineConfig(max_length=512))
    tasks = tasks_of(f"chats {count}")
    runs: dict[str, Callable[[], Any]] = {}
    found: dict[str, Elsewhere] = {}
    for name, overlap in (("off", False), ("on", True)):
        found[name] = Elsewhere(parts.core.limits, seconds)
        config = EngineConfig(overlap=overlap, max_length=512, chunk_tokens=4096)
        core = make_core(EngineCore, found[name], config)
        one = Engine(core, parts.preparer, parts.path)
        runs[name] = lambda one=one: one.run_many(tasks)  # type: ignore[misc]
    parts.core.close()
    measured = paired(runs, repeats)
    for name, times in measured.items():
        steps = found[name].steps / (repeats + 1)
        load_name = f"{count} chats, device of {seconds * 1e3:g} ms"
        report.add(load_name, f"a step, {name}", three(times.seconds, 1e6 / steps), "us")


def cpu_seconds(run: Callable[[], Any]) -> float:
    """Of all threads of this process: a busy machine does not change it."""
    began = time.process_time()
    run()
    return time.process_time() - began


def on_a_cpu(report: Report, repeats: int) -> None:
    engines = {"off": engine(False), "on": engine(True)}
    for one_load in ("chats 1", "chats 8", "chats 32", "decisions 64"):
        tasks = tasks_of(one_load)
        found = {name: numbers(engine.run_many(tasks)) for name, engine in engines.items()}
        if not all(np.allclose(a, b, rtol=0, atol=1e-5) for a, b in zip(found["off"], found["on"])):
            raise SystemExit(f"{one_load}: on and off differ")
        runs: dict[str, Callable[[], Any]] = {
            name: lambda engine=engine, tasks=tasks: engine.run_many(tasks)  # type: ignore[misc]
            for name, engine in engines.items()
        }
        measured = paired(runs, repeats)
        report.add(one_load, "off / on", ratio(measured["off"], measured["on"]), "x")
        spent = {name: [cpu_seconds(run) for _ in range(repeats)] for name, run in runs.items()}
        report.add(one_load, "CPU time, on / off", three([b / a for a, b in zip(spent["off"], spent["on"])]), "x")
        steps = TOKENS if one_load.startswith("chats") else len(tasks) // 8
        report.add(one_load, "a step, off", three(measured["off"].seconds, 1e6 / steps), "us")
    print("equal first: on and off gave the same numbers in every load")
    for one in engines.values():
        one.close()


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--only", choices=("cpu", "device"), help="one half of it")
    add_outputs(parser, plot=False)
    args = parser.parse_args()
    use_threads(args.threads)
    facts = machine_facts([("threads", args.threads)])
    report = Report("Overlap, on and off", facts=facts)
    if args.only != "device":
        on_a_cpu(report, args.repeats)
    for seconds in (1e-3, 3e-3) if args.only != "cpu" else ():
        elsewhere(report, seconds, args.repeats)
    report.finish(args)


if __name__ == "__main__":
    main()
