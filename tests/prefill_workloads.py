"""PrefillOnly's two workloads on a real engine, for hours of their requests: resident memory does not grow.

    python -m tests.prefill_workloads [--hours 1] [--compress 10] [--posts 3600] [--credit 60] [--megabytes 256]
                                      [--users 20] [--shrink N] [--seed N] [--json FILE]

posts    is this post for this user? 20 users at a time with profiles of 11,000 to 17,000 tokens, 50 posts of 150
         tokens for each of them in random order; after 1,000 requests 20 others follow
credit   is this customer good for a loan? 40,000 to 60,000 tokens of each customer's own

The two come one after the other. Moments of arrival are those of ``prelude/simulation/workloads.py``, a Poisson
process of ``--posts`` and ``--credit`` requests an hour. ``--compress N``: an hour passes in the Nth part of it, so
gaps between arrivals become shorter, while their number, order and lengths stay. ``--shrink N`` divides the lengths
of texts. The model is a random Qwen3 of two layers, 32 values wide, with 65,536 positions, under ``max_memory``.

At most ``--users`` requests are on their way. One that arrives beyond them waits, and its tokens are drawn when it
starts: a machine that is too slow for the rate runs late (``late_most_s``), and holds no more prompts for it.

Before the first request, prompts of no workload fill the KV pool until it evicts: all pages of the pool and of the
trie's tables are taken then. Memory is read at the start of each twentieth of a workload and at its end, when every
request before has ended. ``parts_mb``:

    resident   as the kernel counts it. malloc keeps pages of freed memory, more of them or fewer by chance
    held       the same when malloc has given back what it can: not the free ends of other threads' arenas
    kv         of it, the pages of the KV pool
    allocated  of it, bytes that malloc has handed out beside the pool: weights, tables, arrays, Python's arenas
    rest       of it, all others: code, stacks, pages that malloc cannot give back

``requests`` counts the objects of requests that are alive, ``objects`` the containers that Python's collector knows,
``blocks`` the small objects of Python.

``growth`` is of ``held``: the least of the last five readings less the least of the first five behind the first
quarter. A reading is too high by what an arena keeps, never too low, so a leak raises the least ones. The status is 1
where ``growth`` or ``growth_allocated`` of a workload is more than ``--allow`` megabytes, where the process took more
than the budget, or where a request failed.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import json
import mmap
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from prelude import AsyncEngine, Engine, EngineConfig, ExpertConfig, YesNo
from prelude.cpu.profile import peak_bytes, resident_bytes
from prelude.models.memory import give_back_freed
from prelude.readouts.batch import I32
from prelude.scheduling.request import Request
from prelude.simulation.traces import Arrival
from prelude.simulation.workloads import credit_verification, post_recommendation
from tests.checkpoints import make_checkpoint
from tests.soak import allocated_bytes

MB = 1 << 20
LIBC = ctypes.CDLL(None, use_errno=True)
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


def _pages_there(start: int, length: int) -> int:
    """Bytes of the mapping around ``start`` whose pages are in memory."""
    page = mmap.PAGESIZE
    first = start - start % page
    pages = -(-(start + length - first) // page)
    there = (ctypes.c_ubyte * pages)()
    if LIBC.mincore(ctypes.c_void_p(first), ctypes.c_size_t(pages * page), there) != 0:
        raise OSError(ctypes.get_errno(), "mincore")
    return page * sum(one & 1 for one in bytes(there))


BYTES = ("resident", "held", "kv", "allocated", "rest")
COUNTS = ("cached_blocks", "requests", "objects", "blocks")


class Readings:
    """Memory at comparable moments: no request is on its way. Room for all readings is made at once."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.core = engine.engine._core
        self.taken = 0
        self._values = np.zeros((len(BYTES) + len(COUNTS), PARTS + 1), dtype=np.int64)

    def take(self) -> None:
        if self.core.live or self.core.pool.num_used:
            raise RuntimeError(f"{len(self.core.live)} requests are on their way")
        gc.collect()
        executor: Any = self.core.executor
        pool = executor.pool.tensor
        kv = _pages_there(pool.ctypes.data, pool.nbytes)
        resident, allocated = resident_bytes() or 0, allocated_bytes() - pool.nbytes
        give_back_freed()
        held = resident_bytes() or 0
        known = gc.get_objects()
        requests = sum(isinstance(one, Request) for one in known)
        counts = (self.core.pool.num_cached, requests, len(known), sys.getallocatedblocks())
        self._values[:, self.taken] = (resident, held, kv, allocated, held - kv - allocated, *counts)
        self.taken += 1

    def found(self) -> dict[str, Any]:
        rows = dict(zip(BYTES + COUNTS, self._values[:, : self.taken].tolist(), strict=True))
        return {
            "parts_mb": {name: [round(one / MB, 2) for one in rows[name]] for name in BYTES},
            "counts": {name: rows[name] for name in COUNTS},
            "growth": growth(rows["held"]),
            "growth_resident": growth(rows["resident"]),
            "growth_allocated": growth(rows["allocated"]),
        }


def growth(readings: list[int]) -> int:
    """The least of the last quarter less that of the second one."""
    quarter = len(readings) // 4
    return min(readings[-quarter:]) - min(readings[quarter : 2 * quarter])


async def fill(engine: AsyncEngine, seed: int) -> int:
    """Prompts of no workload, until the pool evicts. The number of them."""
    draw = np.random.default_rng([seed, 0])
    for number in count():
        if engine.stats()["evictions"]:
            return number
        prompt = draw.integers(8, engine.model_info.vocab_size, 2048, dtype=np.int32)
        await engine.decide(prompt, QUESTION)
    raise AssertionError


async def drive(engine: AsyncEngine, arrivals: list[Arrival], given: argparse.Namespace) -> dict[str, Any]:
    """All arrivals at their moments, or when a user's place is free, and what memory did meanwhile."""
    vocab = engine.model_info.vocab_size
    readings, failed, late, yes, cached = Readings(engine), 0, 0.0, 0, 0
    waits = np.zeros(len(arrivals))  # made at once, so that nothing of this script grows
    places = asyncio.Semaphore(given.users)
    running: set[asyncio.Future[None]] = set()
    most = 0

    async def one(number: int, arrival: Arrival) -> None:
        nonlocal cached, failed, yes
        try:
            prompt, asked = tokens_of(arrival, vocab, given.shrink, given.seed), time.perf_counter()
            answers = await engine.decide(prompt, QUESTION)
            yes += answers[0].index == 0
            cached += answers.stats.cached_tokens
            waits[number] = time.perf_counter() - asked
        except Exception as error:
            failed += 1
            print(f"{arrival.id}: {error!r}", file=sys.stderr)

    def left(task: asyncio.Future[None]) -> None:
        running.discard(task)
        places.release()

    async def read() -> None:
        while running:
            await asyncio.wait(set(running))
        readings.take()

    began, paused = time.perf_counter(), 0.0
    for number, arrival in enumerate(arrivals):
        if number * PARTS // len(arrivals) >= readings.taken:
            now = time.perf_counter()
            await read()
            paused += time.perf_counter() - now
        wait = arrival.at / given.compress - (time.perf_counter() - began - paused)
        await asyncio.sleep(max(0.0, wait))
        await places.acquire()
        late = max(late, time.perf_counter() - began - paused - arrival.at / given.compress)
        task = asyncio.ensure_future(one(number, arrival))
        running.add(task)
        most = max(most, len(running))
        task.add_done_callback(left)
    await read()
    return {
        "requests": len(arrivals),
        "failed": failed,
        "yes": yes,
        "seconds": time.perf_counter() - began,
        "seconds_of_the_trace": arrivals[-1].at,
        "in_flight_most": most,
        "late_most_s": late,
        "tokens": sum(tokens // given.shrink for arrival in arrivals for _, tokens in arrival.parts),
        "cached_tokens": cached,
        "latency_median_ms": float(np.median(waits)) * 1000,
        "latency_most_ms": float(waits.max()) * 1000,
        **readings.found(),
    }


async def both(folder: str, given: argparse.Namespace, found: dict[str, Any]) -> None:
    config = EngineConfig(
        max_memory=given.megabytes * MB, max_running=8, expert=ExpertConfig(max_top=1, question_plan_bytes=0)
    )
    async with AsyncEngine.from_pretrained(folder, config=config) as engine:
        await engine.warmup(freeze_gc=True)
        found["max_length"], found["memory"] = engine.max_length, engine.stats()["memory"]
        found["filled_with_prompts"] = await fill(engine, given.seed)
        for name, made in (("posts", posts), ("credit", credit)):
            arrivals = list(made(getattr(given, name), given.hours, given.seed))
            found[name] = await drive(engine, arrivals, given)
            print(json.dumps({name: found[name]}), file=sys.stderr, flush=True)
        stats = engine.stats()
        found["evictions"], found["prefixes_not_kept"] = stats["evictions"], stats["prefixes_not_kept"]
        found["blocks_used_after"] = engine.engine._core.pool.num_used


def written(found: dict[str, Any]) -> str:
    """JSON with a list of numbers on one line."""
    text = json.dumps(found, indent=1)
    return re.sub(r"\[[^][{}]*\]", lambda numbers: " ".join(numbers[0].split()), text) + "\n"


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
    parser.add_argument("--compress", type=float, default=10.0)
    parser.add_argument("--posts", type=float, default=3600.0, help="requests an hour")
    parser.add_argument("--credit", type=float, default=60.0, help="requests an hour")
    parser.add_argument("--megabytes", type=int, default=256, help="max_memory")
    parser.add_argument("--allow", type=float, default=4.0, help="megabytes of growth")
    parser.add_argument("--users", type=int, default=20, help="requests that are on their way at a time")
    parser.add_argument("--shrink", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="write the result there as well")
    return parser


def main() -> int:
    given = arguments().parse_args()
    command = "python -m tests.prefill_workloads " + " ".join(sys.argv[1:])
    load = os.getloadavg()
    found = {"command": command, **run(given), "load_before": load, "load_after": os.getloadavg()}
    if given.json:
        Path(given.json).write_text(written(found), encoding="utf-8")
    print(written(found), end="")
    parts = (found["posts"], found["credit"])
    grew = any(max(part["growth"], part["growth_allocated"]) > given.allow * MB for part in parts)
    failed = any(part["failed"] for part in parts)
    return int(grew or failed or (found["most"] is not None and found["most"] > found["budget"]))


if __name__ == "__main__":
    sys.exit(main())
