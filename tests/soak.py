"""Long runs.

python -m tests.soak --requests 200000          mixed requests on the default model, with slopes printed
python -m tests.soak --storm 10000 --seed 1     cancellations at random states on the toy, audited every step
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import threading
import time
from typing import Any

import numpy as np

from tests import toy
from tests.scheduling.test_engine_core import chat, last_logprob, prompt, tree_request
from tests.service import is_empty, service_core

# ------------------------------------------------------------------ a storm of cancellations


class _Ends:
    streams = False

    def __init__(self) -> None:
        self.ends: dict[int, Any] = {}

    def token(self, request: Any, token_id: int, output: Any, row: int) -> bool:
        return False

    def deliver(self, request: Any, outcome: Any, error: Any) -> None:
        if request.id in self.ends:
            raise AssertionError("a request ended twice")
        self.ends[request.id] = (outcome, error)


class QuickToy(toy.ToyExecutor):
    """The toy keeps every batch; a long run must not."""

    def submit(self, batch: Any) -> Any:
        self.batches.clear()
        return super().submit(batch)


def storm(count: int, seed: int) -> dict[str, int]:
    """Requests of all kinds, cancelled at random states, every account audited after every step; what survives is
    compared with its own sequence, computed alone."""
    rng = np.random.default_rng(seed)
    core = service_core(QuickToy(num_blocks=48), running=6, step_tokens=160, step_requests=24, chunk=16)
    sink = _Ends()
    heads = [prompt(24, 900 + i) for i in range(3)]
    wanted: dict[int, tuple[str, Any]] = {}
    waiting: list[Any] = []
    made = steps = 0
    while made < count or core.live:
        for _ in range(int(rng.integers(0, 9))):
            if made < count and len(core.live) < 60:
                kind, prepared = _item(rng, heads)
                request = core.request(prepared, sink)
                wanted[request.id] = (kind, prepared)
                if rng.random() < 0.02:
                    core.cancel(request)
                core._post([request])
                waiting.append(request)
                made += 1
        for request in waiting:
            if rng.random() < 0.1:
                core.cancel(request)
                if rng.random() < 0.3:
                    core.cancel(request)
        core.step()
        core.audit()
        waiting = [request for request in waiting if request.id in core.live]
        steps += 1
        if steps > 60 * count:
            raise AssertionError("no progress")
    if not is_empty(core) or sink.ends.keys() != wanted.keys():
        raise AssertionError("something is left, or somebody was not told")
    wrong = sum(not _right(*wanted[key], end) for key, end in sink.ends.items())
    return {
        "steps": steps,
        "wrong": wrong,
        "finished": core.stats.finished,
        "cancelled": core.stats.cancelled,
        "preemptions": core.stats.preemptions,
    }


def _item(rng: np.random.Generator, heads: list[Any]) -> tuple[str, Any]:
    head = heads[int(rng.integers(0, 3))][: int(rng.integers(0, 25))]
    tokens = np.concatenate([head, prompt(int(rng.integers(1, 9)), int(rng.integers(0, 200)))])
    kind = str(rng.choice(["chat", "shot", "tree"]))
    if kind == "chat":
        return kind, chat(tokens, int(rng.integers(2, 10)))
    if kind == "tree":
        return kind, tree_request(tokens, [prompt(2, 1), prompt(3, 2)])
    return kind, last_logprob(tokens)


def _right(kind: str, prepared: Any, end: Any) -> bool:
    outcome, error = end
    if error is not None:
        return type(error).__name__ == "RequestCancelled"
    tokens = prepared.tree.token_ids.tolist()
    if kind == "chat":
        return list(outcome.token_ids) == toy.generate(tokens, prepared.max_new_tokens)
    trunk = tokens[: prepared.tree.trunk_tokens]
    branches = [[]] if kind == "shot" else [prompt(2, 1).tolist(), prompt(3, 2).tolist()]
    return all(
        float(got) == float(toy.logprobs_of(trunk + branch)[5])
        for got, branch in zip(outcome.output.logprobs, branches)
    )


# ------------------------------------------------------------------ a soak on the default model


def _memory() -> dict[str, int]:
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return {
        "rss": pages * os.sysconf("SC_PAGE_SIZE"),
        "threads": threading.active_count(),
        "fds": len(os.listdir("/proc/self/fd")),
    }


async def soak(requests: int, in_flight: int, seed: int) -> dict[str, Any]:
    from prelude import (
        AsyncEngine,
        Choice,
        Decide,
        Embed,
        EngineConfig,
        Generate,
        Loglikelihood,
        SamplingParams,
        YesNo,
    )

    rng = np.random.default_rng(seed)
    words = ["harbour", "quiet", "two", "boats", "lay", "at", "the", "quay", "while", "rain", "fell", "on", "roofs"]
    config = EngineConfig(kv_bytes=1 << 24, max_running=16)

    def task() -> Any:
        text = " ".join(rng.choice(words, int(rng.integers(4, 60))))
        match int(rng.integers(0, 10)):
            case 0:
                params = SamplingParams(max_tokens=int(rng.integers(2, 12)), seed=int(rng.integers(0, 99)))
                return Generate(text, params)
            case 1 | 2 | 3:
                return Decide(text, [YesNo("Is it polite?"), Choice("Where?", ["harbour", "city", "home"])])
            case 4:
                return Loglikelihood(text, " and then")
            case _:
                return Embed(text, pooling="mean")

    samples: list[dict[str, float]] = []
    done = failed = cancelled = 0
    async with AsyncEngine.from_pretrained(config=config) as engine:
        await engine.warmup(freeze_gc=True)
        began = time.perf_counter()

        async def worker() -> None:
            nonlocal done, failed, cancelled
            while done < requests:
                done += 1
                job = asyncio.create_task(engine.run(task(), deadline=600))
                if rng.random() < 0.02:
                    await asyncio.sleep(float(rng.random()) * 0.02)
                    job.cancel()
                try:
                    await job
                except asyncio.CancelledError:
                    cancelled += 1
                except Exception:
                    failed += 1
                if done % max(1, requests // 40) == 0:
                    gc.collect()
                    samples.append({"requests": done, **_memory()})

        await asyncio.gather(*(worker() for _ in range(in_flight)))
        seconds = time.perf_counter() - began
        stats = engine.stats()
        core = engine.engine._core
        core.audit()
        empty = is_empty(core)
    later = samples[len(samples) // 4 :]
    at = np.array([sample["requests"] for sample in later], dtype=float)
    return {
        "requests": done,
        "failed": failed,
        "cancelled": cancelled,
        "seconds": seconds,
        "requests_per_second": done / seconds,
        "rss_first": samples[0]["rss"],
        "rss_last": samples[-1]["rss"],
        "rss_bytes_per_1000_requests": float(np.polyfit(at, [s["rss"] for s in later], 1)[0] * 1000),
        "threads": sorted({int(s["threads"]) for s in later}),
        "fds": sorted({int(s["fds"]) for s in later}),
        "gc_pauses": stats["gc_pauses"],
        "preemptions": stats["preemptions"],
        "empty_after": empty,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--in-flight", type=int, default=32)
    parser.add_argument("--storm", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.storm:
        print(json.dumps(storm(arguments.storm, arguments.seed)))
        return
    print(json.dumps(asyncio.run(soak(arguments.requests, arguments.in_flight, arguments.seed)), indent=1))


if __name__ == "__main__":
    main()
