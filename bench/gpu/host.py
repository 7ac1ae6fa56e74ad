"""The CUDA executor's host time, over a null device: submit to launch, and completion to result.

    python -m bench gpu_host [--repeats 2000] [--json FILE]

One OneShot root of 128 tokens (greedy; its tokens' probabilities; in turn with other lengths of its bucket), roots of
a batch, decode steps of 1, 4, 16 and 64 rows; steps with cached prefixes, with folds (questions on one state), and of
prompts beside decode rows with several readouts. ``submit`` is timed until the graph's launch and until it returns,
and ``wait`` of a step that is done. Medians over ``--repeats`` calls. ``null.py`` names the parts that are not
counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from bench.command_line import options_parser
from bench.common import Report, add_outputs, machine_facts, three
from bench.gpu.batches import draw, forest, greedy, i32, labels
from prelude.readouts.batch import DecodeBatch, DecodeRows, ForwardBatch, MixedBatch, OneShotBatch, SampleRows

AIMS = {"submit to launch": 30.0, "completion to result": 10.0, "decode": 40.0}
"""Microseconds of one OneShot root of a known shape, and of every other step."""


def root(count: int, seed: int = 0, read: Callable[[list[int]], Any] = greedy) -> OneShotBatch:
    return OneShotBatch(forest([(draw(seed, count), -1)]), read([count - 1]))


def roots(count: int, tokens: int) -> OneShotBatch:
    slices = forest([(draw(i, tokens), -1) for i in range(count)])
    return OneShotBatch(slices, greedy([tokens * (i + 1) - 1 for i in range(count)]))


def decoding(rows: int, context: int, sampled: bool = False) -> DecodeBatch:
    blocks = -(-(context + 1) // 16)
    tables = np.arange(rows * blocks, dtype=np.int32)
    slots = tables[blocks - 1 :: blocks] * 16 + context % 16
    read = greedy(range(rows))
    if sampled:
        same, seeds = np.ones(rows, np.float32), np.arange(rows, dtype=np.uint64)
        read = SampleRows(read.rows, 0.7 * same, i32([20] * rows), 0.95 * same, 0 * same, seeds, read.steps)
    held, indptr = i32([context] * rows), i32(np.arange(rows + 1) * blocks)
    return DecodeBatch(DecodeRows(draw(1, rows), held, i32(slots), held, indptr, tables), read)


def hits(count: int, tokens: int, context: int, seed: int = 0) -> OneShotBatch:
    """Roots behind one cached prefix."""
    fresh = forest([(draw(seed + i, tokens), -1) for i in range(count)])
    blocks = -(-context // 16)
    slices = replace(
        fresh,
        positions=fresh.positions + np.int32(context),
        context_lens=i32([context] * count),
        context_indptr=i32(np.arange(count + 1) * blocks),
        context_blocks=i32(np.tile(np.arange(blocks), count)),
    )
    return OneShotBatch(slices, labels([tokens * (i + 1) - 1 for i in range(count)], [5, 6]))


def questions(count: int, state: int, tokens: int, seed: int = 0) -> OneShotBatch:
    """Folds: questions on one state, which is computed once."""
    slices = forest([(draw(seed, state), -1), *((draw(seed + 1 + i, tokens), 0) for i in range(count))])
    return OneShotBatch(slices, labels([state + tokens * (i + 1) - 1 for i in range(count)], [5, 6]))


def mixed(tokens: int, rows: int, context: int, seed: int = 0) -> MixedBatch:
    """A decision and the end of a chat's prompt, beside chats that run: three readouts."""
    slices = forest([(draw(seed, tokens), -1), (draw(seed + 1, tokens), -1)])
    running = decoding(rows, context)
    return MixedBatch(slices, (labels([tokens - 1], [5, 6]), greedy([2 * tokens - 1])), running.rows, running.readout)


def loads() -> dict[str, list[ForwardBatch]]:
    """Steps by name; a load's steps are run in turn."""
    return {
        "one root of 128": [root(128, i) for i in range(8)],
        "one root of 97 to 128": [root(97 + i) for i in range(32)],
        "one root of 128, labels": [root(128, i, lambda rows: labels(rows, [5, 6, 7])) for i in range(8)],
        "16 roots of 32": [roots(16, 32)],
        "decode, 1 row": [decoding(1, 200 + i) for i in range(24)],
        "decode, 4 rows": [decoding(4, 200 + i) for i in range(24)],
        "decode, 16 rows": [decoding(16, 200 + i) for i in range(24)],
        "decode, 64 rows": [decoding(64, 200 + i) for i in range(24)],
        "decode, 64 rows, sampled": [decoding(64, 200 + i, True) for i in range(24)],
        "one root of 32 behind 512 cached tokens": [hits(1, 32, 512, i) for i in range(8)],
        "16 roots of 16 behind 1,000 cached tokens": [hits(16, 16, 1000, i) for i in range(8)],
        "16 questions of 12 tokens on a state of 256": [questions(16, 256, 12, i) for i in range(8)],
        "64 questions of 12 tokens on a state of 1,000": [questions(64, 1000, 12, i) for i in range(8)],
        "2 roots of 64 beside 16 decode rows, 3 readouts": [mixed(64, 16, 200, i) for i in range(8)],
    }


def measured(executor: Any, stub: Any, steps: list[ForwardBatch], repeats: int) -> dict[str, list[float]]:
    """Microseconds of each call by measure."""
    found: dict[str, list[float]] = {"launch": [], "submit": [], "result": []}
    for _ in range(2):
        for step in steps:
            executor.wait(executor.submit(step))
    clock = time.perf_counter_ns  # CLOCK_MONOTONIC, as the stub's
    for at in range(repeats):
        batch = steps[at % len(steps)]
        began = clock()
        handle = executor.submit(batch)
        ended = clock()
        found["launch"].append((stub.stub_launched_ns() - began) / 1e3)
        found["submit"].append((ended - began) / 1e3)
        began = clock()
        executor.wait(handle)
        found["result"].append((clock() - began) / 1e3)
    return found


def processor_time(executor: Any, steps: list[ForwardBatch], repeats: int) -> float:
    """Microseconds of processor time a step, submitted and waited for."""
    began = time.thread_time_ns()
    for at in range(repeats):
        executor.wait(executor.submit(steps[at % len(steps)]))
    return (time.thread_time_ns() - began) / 1e3 / repeats


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=2000)
    add_outputs(parser, plot=False)
    options = parser.parse_args()
    from bench.gpu import null

    stub = null.load()
    executor = null.executor()
    null.answer(executor, stub)
    report = Report("Host time of the CUDA executor over a null device", facts=machine_facts())
    for name, steps in loads().items():
        plans = executor.calls.plans  # type: ignore[union-attr]
        found = measured(executor, stub, steps, options.repeats)
        planned = executor.calls.plans - plans  # type: ignore[union-attr]
        aim = AIMS["submit to launch" if name.startswith("one root") else "decode"]
        for measure, key, reach in (
            ("submit to launch", "launch", aim),
            ("submit", "submit", None),
            ("completion to result", "result", AIMS["completion to result"]),
        ):
            low, middle, high = np.percentile(found[key], [5, 50, 95]).tolist()
            report.add(name, measure, (middle, low, high), "us", "" if reach is None else f"<= {reach:g}")
        costs = [processor_time(executor, steps, options.repeats // 4) for _ in range(5)]
        report.add(name, "processor time", three(costs), "us")
        report.add(name, "plans a step", three([planned / (options.repeats + 2 * len(steps))]), "")
    report.finish(options)


if __name__ == "__main__":
    main()
