"""PrefillOnly's two workloads on a real engine, for hours of their requests: resident memory does not grow.

    python -m tests.prefill_workloads [--hours 1] [--compress 12] [--posts 3600] [--credit 60] [--megabytes 192]
                                      [--shrink N] [--seed N] [--json FILE]

posts    is this post for this user? 20 users at a time with profiles of 11,000 to 17,000 tokens, 50 posts of 150
         tokens for each of them in random order; after 1,000 requests 20 others follow
credit   is this customer good for a loan? 40,000 to 60,000 tokens of each customer's own

The two come one after the other. Moments of arrival are those of ``prelude/simulation/workloads.py``, a Poisson
process of ``--posts`` and ``--credit`` requests an hour. ``--compress N``: an hour passes in the Nth part of it, so
gaps between arrivals become shorter, while their number, order and lengths stay. ``--shrink N`` divides the lengths
of texts. The model is a random Qwen3 of two layers, 32 values wide, with 65,536 positions, under ``max_memory``.

Resident memory is read ten times a second. Each twentieth of a workload keeps the least value that it met, which is
free of the steps in flight. ``growth``: the median of the last five of them less the median of the first five behind
the first quarter. The status is 1 where a workload grew by more than ``--allow`` megabytes, where the process took
more than the budget, or where a request failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from prelude import AsyncEngine, Engine, EngineConfig, YesNo
from prelude.batch import I32
from prelude.execution.peak import peak_bytes, resident_bytes
from prelude.simulation.traces import Arrival
from prelude.simulation.workloads import credit_verification, post_recommendation
from tests.checkpoints import make_checkpoint

MB = 1 << 20
PARTS = 20
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 65_536,
    "initializer_range": 0.3,
}
QUESTION = [YesNo("Is it right?")]


def posts(an_hour: float, hours: float, seed: int) -> Iterator[Arrival]:
    """The trace of 20 users again and again, each time with other users."""
    began = 0.0
    for rounds in count():
        last = 0.0
        for arrival in post_recommendation(an_hour / 3600, seed + rounds):
            last = began + arrival.at
            if last > hours * 3600:
                return
            yield Arrival(last, arrival.parts, id=arrival.id)
        began = last


def credit(an_hour: float, hours: float, seed: int) -> Iterator[Arrival]:
    return credit_verification(an_hour / 3600, seed, users=round(an_hour * hours))


def tokens_of(arrival: Arrival, vocab: int, shrink: int, seed: int) -> I32:
    """A named part has the same tokens each time; they are drawn anew, so that nothing of them is kept here."""
    drawn = []
    for name, tokens in arrival.parts:
        key = f"{seed} {arrival.id}" if name is None else name
        draw = np.random.default_rng(list(key.encode()))
        drawn.append(draw.integers(8, vocab, max(1, tokens // shrink), dtype=np.int32))
    return np.concatenate(drawn)


class _Floors:
    """The least resident memory of each part of a run."""

    def __init__(self, parts: int) -> None:
        self.least: list[int | None] = [None] * parts
        self.part = 0

    def look(self) -> None:
        now, before = resident_bytes() or 0, self.least[self.part]
        self.least[self.part] = now if before is None else min(now, before)

    async def run(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(0.1)

    def found(self) -> list[int]:
        return [one for one in self.least if one is not None]


async def drive(engine: AsyncEngine, arrivals: list[Arrival], given: argparse.Namespace) -> dict[str, Any]:
    """All arrivals at their moments, and what memory did meanwhile."""
    vocab = engine.model_info.vocab_size
    floors, failed, waits, yes, cached = _Floors(PARTS), 0, [], 0, 0
    sampler = asyncio.ensure_future(floors.run())
    began = time.perf_counter()

    async def one(number: int, arrival: Arrival) -> None:
        nonlocal cached, failed, yes
        try:
            prompt, asked = tokens_of(arrival, vocab, given.shrink, given.seed), time.perf_counter()
            answers = await engine.decide(prompt, QUESTION)
            yes += answers[0].index == 0
            cached += answers.stats.cached_tokens
            waits.append(time.perf_counter() - asked)
        except Exception as error:
            failed += 1
            print(f"{arrival.id}: {error!r}", file=sys.stderr)
        floors.part = max(floors.part, min(PARTS - 1, number * PARTS // len(arrivals)))

    running = set()
    for number, arrival in enumerate(arrivals):
        late = arrival.at / given.compress - (time.perf_counter() - began)
        if late > 0:
            await asyncio.sleep(late)
        task = asyncio.ensure_future(one(number, arrival))
        running.add(task)
        task.add_done_callback(running.discard)
    while running:
        await asyncio.wait(set(running))
    floors.look()
    sampler.cancel()
    seconds, least = time.perf_counter() - began, floors.found()
    quarter = len(least) // 4
    return {
        "requests": len(arrivals),
        "failed": failed,
        "yes": yes,
        "seconds": seconds,
        "seconds_of_the_trace": arrivals[-1].at,
        "tokens": sum(tokens // given.shrink for arrival in arrivals for _, tokens in arrival.parts),
        "cached_tokens": cached,
        "latency_median_ms": statistics.median(waits) * 1000,
        "latency_most_ms": max(waits) * 1000,
        "floors_mb": [round(one / MB, 2) for one in least],
        "growth": int(statistics.median(least[-quarter:]) - statistics.median(least[quarter : 2 * quarter])),
    }


async def both(folder: str, given: argparse.Namespace, found: dict[str, Any]) -> None:
    config = EngineConfig(max_memory=given.megabytes * MB, max_running=8, max_top=1, question_plan_bytes=0)
    async with AsyncEngine.from_pretrained(folder, config=config) as engine:
        await engine.warmup(freeze_gc=True)
        found["max_length"], found["memory"] = engine.max_length, engine.stats()["memory"]
        for name, made in (("posts", posts), ("credit", credit)):
            arrivals = list(made(getattr(given, name), given.hours, given.seed))
            found[name] = await drive(engine, arrivals, given)
            print(json.dumps({name: found[name]}), file=sys.stderr, flush=True)
        found["evictions"] = engine.stats()["evictions"]
        found["blocks_used_after"] = engine.engine._core.pool.allocator.num_used


def run(given: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {"budget": given.megabytes * MB}
    with tempfile.TemporaryDirectory() as folder:
        make_checkpoint(Path(folder), **SIZES)
        Engine.from_pretrained(folder, config=EngineConfig(kv_bytes=MB)).close()  # modules are there
        found["most"] = peak_bytes(lambda: asyncio.run(both(folder, given, found)))
    return found


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--compress", type=float, default=12.0)
    parser.add_argument("--posts", type=float, default=3600.0, help="requests an hour")
    parser.add_argument("--credit", type=float, default=60.0, help="requests an hour")
    parser.add_argument("--megabytes", type=int, default=256, help="max_memory")
    parser.add_argument("--allow", type=float, default=4.0, help="megabytes of growth")
    parser.add_argument("--shrink", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="write the result there as well")
    return parser


def main() -> int:
    given = arguments().parse_args()
    found = {"command": "python -m tests.prefill_workloads " + " ".join(sys.argv[1:]), **run(given)}
    if given.json:
        Path(given.json).write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    grew = any(found[name]["growth"] > given.allow * MB or found[name]["failed"] for name in ("posts", "credit"))
    return int(grew or (found["most"] is not None and found["most"] > found["budget"]))


if __name__ == "__main__":
    sys.exit(main())
