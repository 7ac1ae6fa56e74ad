"""Overlap on the CPU executor, on and off: does planning beside the computation pay for the way between two threads?

    python -m bench.overlap [--repeats 9] [--threads N] [--json FILE]

The same tasks through two engines of the packaged model, in turn; results are equal first. A figure above 1 says that
overlap is faster. Chats are greedy and streamed to nobody; decisions are prompts of 128 tokens with one label, in
steps of 8. ``--threads`` is what torch computes with; overlap needs a core beside them.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.common import Report, machine_facts, paired, ratio
from prelude import Engine, EngineConfig, Generate, Loglikelihood, SamplingParams

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
    config = EngineConfig(
        overlap=overlap, prefix_cache=False, fold=False, max_length=512, max_step_tokens=1024,
        group_tokens=1024,
    )  # fmt: skip
    return Engine.from_pretrained(None, config=config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--json")
    args = parser.parse_args()
    import torch

    torch.set_num_threads(args.threads)
    facts = machine_facts([("torch threads", args.threads)])
    report = Report("Overlap on the CPU executor", "python -m bench.overlap", facts=facts)
    engines = {"off": engine(False), "on": engine(True)}
    for load in ("chats 1", "chats 8", "chats 32", "decisions 64"):
        tasks = tasks_of(load)
        found = {name: numbers(engine.run_many(tasks)) for name, engine in engines.items()}
        if not all(np.allclose(a, b, rtol=0, atol=1e-5) for a, b in zip(found["off"], found["on"])):
            raise SystemExit(f"{load}: on and off differ")
        runs: dict[str, Callable[[], Any]] = {
            name: lambda engine=engine, tasks=tasks: engine.run_many(tasks)  # type: ignore[misc]
            for name, engine in engines.items()
        }
        measured = paired(runs, args.repeats)
        report.add(load, "off / on", ratio(measured["off"], measured["on"]), "x")
        steps = TOKENS if load.startswith("chats") else len(tasks) // 8
        report.add(
            load,
            "a step, off",
            (measured["off"].median / steps * 1e6, *(s / steps * 1e6 for s in measured["off"].spread)),
            "us",
        )
    print("equal first: on and off gave the same numbers in every load")
    report.show()
    if args.json:
        report.write(args.json)
    for one in engines.values():
        one.close()


if __name__ == "__main__":
    main()
