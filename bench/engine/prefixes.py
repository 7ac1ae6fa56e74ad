"""The gain of sharing prefixes and of planning for them, on the default CPU model.

    python -m bench prefixes [--repeats 5] [--json FILE] [--quick]

    arrival     64 requests with one cold rubric of 1,000 tokens and tails of 20, arriving together
    reuse       requests a second, and the time of one alone, against the share of a prompt that was seen before, 0 to
                95 %
    overhead    the same load without any reuse: planning for prefixes on and off, interleaved, process time
    cost        the fitted cost model against steps that it has not seen
    waiting     one step's planning with 10,000 waiting, and when nothing has changed (no model)

Variants run in turn, one after the other within each repeat; numbers are equal first, or nothing is timed. All of
it takes some five minutes of two quiet cores, half of them for sharing switched off.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.command_line import options_parser
from bench.common import Report, add_outputs, machine_facts, paired, ratio, three
from prelude import Engine, EngineConfig, Loglikelihood
from prelude.execution.executor import Executor, ExecutorLimits
from prelude.readouts.batch import ForwardBatch, StepResult

RUBRIC, TAIL, COUNT = 1000, 20, 64
OFF = {"prefix_cache": False, "fold": False}


class Prompts:
    """Random ids; never the same prompt twice, unless asked for."""

    def __init__(self, engine: Engine) -> None:
        self._most = engine._preparer.tokenizer.get_vocab_size() - 8
        self._draw = np.random.default_rng(0)

    def ids(self, count: int) -> list[int]:
        drawn: list[int] = self._draw.integers(8, self._most, count).tolist()
        return drawn

    def together(self, count: int = COUNT) -> list[Loglikelihood]:
        rubric = self.ids(RUBRIC)
        return [Loglikelihood(rubric + self.ids(TAIL), [9]) for _ in range(count)]


def engine_with(**limits: Any) -> Engine:
    return Engine.from_pretrained(None, config=EngineConfig(max_step_tokens=1 << 17).changed(**limits))


def totals(results: list[Any]) -> np.ndarray:
    return np.array([result.total for result in results])


def arrival(report: Report, repeats: int) -> None:
    engines = {
        "folded": engine_with(),
        "same step, through the pool": engine_with(),
        "behind a leader": engine_with(fold=False),
        "sharing off": engine_with(**OFF),
    }
    caches = {
        "folded": "auto",
        "same step, through the pool": "always",
        "behind a leader": "auto",
        "sharing off": "never",
    }
    prompts = Prompts(engines["folded"])
    given: list[list[Loglikelihood]] = [prompts.together() for _ in range(repeats + 2)]
    at = dict.fromkeys(engines, 0)
    last: dict[str, Any] = {}

    def run(name: str) -> None:
        tasks = given[at[name]]
        at[name] += 1
        tasks = [Loglikelihood(t.context, t.continuation, cache=caches[name]) for t in tasks]  # type: ignore[arg-type]
        last[name] = engines[name].run_many(tasks)

    for name in engines:
        run(name)
    reference = totals(last["sharing off"])
    for name, results in last.items():
        error = float(np.abs(totals(results) - reference).max())
        computed = sum(result.stats.computed_tokens for result in results)
        once = RUBRIC + COUNT * TAIL + (0 if name == "folded" else (COUNT - 1) * (RUBRIC % 16))  # by whole blocks
        print(f"{name}: largest difference {error:.1e}, {computed} tokens computed")
        if error > 1e-3:
            raise SystemExit(f"{name} gives other numbers")
        if name != "sharing off" and computed > once:
            raise SystemExit(f"{name} computed {computed} tokens, {once} are enough")
    steps = engines["behind a leader"].stats()["steps"]["oneshot"]
    if steps != 2:
        raise SystemExit(f"without folding a leader and its peers take 2 steps, not {steps}")
    measured = paired({name: lambda name=name: run(name) for name in engines}, repeats, warmup=1)  # type: ignore[misc]
    for name in list(engines)[:-1]:
        gain = ratio(measured["sharing off"], measured[name])
        report.add(
            f"{COUNT} requests, one cold rubric of {RUBRIC}", f"{name}, against sharing off", gain, "x", reach=">= 10"
        )
    for engine in engines.values():
        engine.close()


def reuse(report: Report, repeats: int, count: int = 48, length: int = 400) -> None:
    """Each prompt begins with one of four known prefixes that make up ``share`` of it."""
    engine, without = engine_with(), engine_with(**OFF)
    prompts = Prompts(engine)
    for share in (0, 25, 50, 75, 90, 95):
        head = length * share // 100
        heads = [prompts.ids(head) for _ in range(4)]

        def fresh(heads: list[list[int]] = heads, head: int = head) -> list[Loglikelihood]:
            return [Loglikelihood(heads[i % 4] + prompts.ids(length - head), [9]) for i in range(count)]

        engine.run_many(fresh())
        loads = [fresh() for _ in range(repeats + 1)]
        for one in (engine, without):
            one.run_many(fresh())
        turn = {"on": iter(loads), "off": iter(loads), "alone": iter(fresh() * repeats)}
        measured = paired(
            {
                "on": lambda turn=turn: engine.run_many(next(turn["on"])),  # type: ignore[misc]
                "off": lambda turn=turn: without.run_many(next(turn["off"])),  # type: ignore[misc]
                "alone": lambda turn=turn: engine.run(next(turn["alone"])),  # type: ignore[misc]
            },
            repeats,
        )
        rate = sorted(count / s for s in measured["on"].seconds)
        report.add(f"{share} % reuse", "requests", (rate[len(rate) // 2], rate[0], rate[-1]), "1/s")
        report.add(f"{share} % reuse", "against sharing off", ratio(measured["off"], measured["on"]), "x")
        report.add(f"{share} % reuse", "one request alone", three(measured["alone"].seconds, 1e3), "ms")
    engine.close()
    without.close()


class Clocked:
    """An executor, and the CPU time that the process spent inside it."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.seconds = 0.0

    def submit(self, batch: ForwardBatch) -> Any:
        return self._timed(self._executor.submit, batch)

    def wait(self, handle: Any) -> StepResult:
        result: StepResult = self._timed(self._executor.wait, handle)
        return result

    def _timed(self, function: Callable[[Any], Any], given: Any) -> Any:
        began = time.process_time()
        try:
            return function(given)
        finally:
            self.seconds += time.process_time() - began

    def limits(self) -> ExecutorLimits:
        return self._executor.limits()

    def close(self) -> None:
        self._executor.close()


def overhead(report: Report, repeats: int, count: int = 32, length: int = 128) -> None:
    """Unique prompts, CPU time of the whole process, each pair of runs over the same prompts. The pool is small and
    full, so that keeping a block takes another one's place; the first use of its memory is not measured. The time
    outside the executor is that of planning and of the calls around it; inside, K and V are written as well. The
    difference of two runs with sharing off is the error of the figures."""
    engines = {"on": engine_with(kv_bytes=32 << 20), "off": engine_with(**OFF), "off again": engine_with(**OFF)}
    clocks = {name: Clocked(engine._core.executor) for name, engine in engines.items()}
    for name, engine in engines.items():
        engine._core.stepper.executor = clocks[name]
    prompts = Prompts(engines["on"])
    times: dict[str, list[float]] = {name: [] for name in engines}
    hosts: dict[str, list[float]] = {name: [] for name in engines}
    order, warm = list(engines), 8
    for repeat in range(warm + 40 * repeats):
        tasks = [Loglikelihood(prompts.ids(length), [9]) for _ in range(count)]
        order = order[1:] + order[:1]
        gc.collect()
        for name in order:
            clocks[name].seconds = 0.0
            began = time.process_time()
            engines[name].run_many(tasks)
            taken = time.process_time() - began
            if repeat >= warm:
                times[name].append(taken)
                hosts[name].append(taken - clocks[name].seconds)
    if not engines["on"].stats()["evictions"]:
        raise SystemExit("the pool is not full")
    whole = float(np.median(times["off"]))
    note = f"CPU time, median and quartiles of {len(times['on'])} pairs"
    for name, suffix in (("on", ""), ("off again", ", two engines with sharing off")):
        planning = [(a - b) / whole for a, b in zip(hosts[name], hosts["off"])]
        everything = [a / b - 1 for a, b in zip(times[name], times["off"])]
        for measure, values in (
            ("planning for prefixes costs", planning),
            ("with the writes to the pool", everything),
        ):
            low, middle, high = (np.percentile(values, [25, 50, 75]) * 100).tolist()
            reach = "<= 2" if name == "on" else ""
            report.add("0 % reuse", measure + suffix, (middle, low, high), "%", reach=reach, note=note)
    for engine in engines.values():
        engine.close()


def cost(report: Report, steps: int) -> None:
    """Fitted on the first half of steps of random shapes, asked about the second."""
    engine = engine_with()
    prompts = Prompts(engine)
    draw = np.random.default_rng(5)
    expected, taken = [], []
    known = [prompts.ids(1500) for _ in range(3)]
    for step in range(steps):
        length = int(np.exp(draw.uniform(np.log(8), np.log(1500))))
        hit = int(draw.integers(0, length)) if step % 2 else 0
        tasks = [
            Loglikelihood(known[step % 3][:hit] + prompts.ids(length - hit), [9])
            for _ in range(int(draw.integers(1, 4)))
        ]
        for task in tasks:
            [result] = engine.run_many([task])
            if step > steps // 2:
                expected.append(result.stats.estimated_jct * 1e3)
                taken.append(result.stats.forward_ms)
    r = float(np.corrcoef(expected, taken)[0, 1])
    report.add(
        f"{len(taken)} requests not seen before", "r of estimated and measured time", (r,) * 3, "", reach=">= 0.95"
    )
    engine.close()


def waiting(report: Report, repeats: int, count: int = 10_000) -> None:
    """No model: the planning itself, over a line of ``count`` with 50 shared prefixes. CPU time of this thread."""
    from prelude._native.core import KvPool

    from prelude.admission.prepared import Prepared, TokenTree
    from prelude.readouts.batch import LogprobRows
    from prelude.scheduling.planner import Budgets, plan_step
    from prelude.scheduling.postprocess import finish
    from prelude.scheduling.queues import Queues
    from prelude.scheduling.request import Request

    class NoReader:
        streams = False

        def token(self, *_: Any) -> bool:
            return False

        def deliver(self, *_: Any) -> None: ...

    draw = np.random.default_rng(1)
    pool = KvPool(1 << 14, 16)
    queues = Queues(None, pool)
    families = [draw.integers(0, 150_000, 256).astype(np.int32) for _ in range(50)]
    for tokens in families:
        lease = pool.attach(tokens, 0, 0, growable=True)
        pool.grow(lease, 16)
        pool.publish(lease, tokens, 0)
        pool.release(lease)
    sink, zero = NoReader(), np.zeros(1, dtype=np.int32)

    def join(number: int) -> None:
        for _ in range(number):
            own = draw.integers(0, 150_000, int(draw.integers(4, 60))).astype(np.int32)
            tokens = np.concatenate([families[int(draw.integers(50))][: int(draw.integers(256))], own])
            read = LogprobRows(np.array([len(tokens) - 1], dtype=np.int32), zero, zero)
            queues.add(Request(Prepared(TokenTree.single(tokens), read), sink))

    budgets = Budgets(step_tokens=2048, step_requests=32, running=8, chunk_tokens=512, logits_bytes=1 << 30,
                      vocab_size=151_936, logits_chunk_rows=64)  # fmt: skip
    join(count)
    plans, quiet = [], []
    for _ in range(20 * repeats):
        join(32)
        began = time.thread_time()
        plan = plan_step(queues, pool, budgets)
        plans.append((time.thread_time() - began) * 1e3)
        for row in plan.oneshot:
            if row.publish:
                tree = row.request.prepared.tree
                pool.publish(row.request.held, tree.token_ids[: row.skip + 16 * row.publish], 0)
            finish(row.request, queues, pool, None, RuntimeError("not run"))
        next(queues.oneshot.in_order(queues.served, one_group=True))
        began = time.thread_time()
        next(queues.oneshot.in_order(queues.served, one_group=True))
        quiet.append((time.thread_time() - began) * 1e6)
    load = f"{len(queues.oneshot):,} waiting"
    for measure, times, unit, reach in (
        ("a step's plan, 32 arrive and up to 32 are admitted", plans, "ms", "<= 2"),
        ("finding the first when nothing changed", quiet, "us", "<= 200"),
    ):
        p10, median, p90 = np.percentile(times, [10, 50, 90]).tolist()
        report.add(load, measure, (median, p10, p90), unit, reach=reach)


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--only", choices=("arrival", "reuse", "overhead", "cost", "waiting"))
    add_outputs(parser, plot=False)
    options = parser.parse_args()
    repeats = 2 if options.quick else options.repeats
    parts = {
        "arrival": lambda: arrival(report, repeats),
        "reuse": lambda: reuse(report, repeats),
        "overhead": lambda: overhead(report, repeats),
        "cost": lambda: cost(report, 40 * repeats),
        "waiting": lambda: waiting(report, repeats),
    }
    report = Report("Shared prefixes and their planning", facts=machine_facts())
    for name, part in parts.items():
        if options.only in (None, name):
            part()
    report.finish(options)


if __name__ == "__main__":
    main()
