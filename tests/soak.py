"""Long runs.

python -m tests.soak --requests 200000          mixed requests on the default model, with slopes printed
python -m tests.soak --hours 24                 the same for so long
python -m tests.soak --hours 0.34 --new         every decision with a new salt, question, label or template as well
python -m tests.soak --storm 10000 --seed 1     cancellations at random states on the default model, deterministic,
                                                audited after every step, the survivors compared bit by bit
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from bench import record
from bench.common import Row, three
from prelude import AsyncEngine, Choice, DecisionTemplate, EngineConfig, SamplingParams, YesNo
from prelude.errors import PreludeError
from tests.service import is_empty
from tests.storm import ModelLoad, storm

# ------------------------------------------------------------------ a soak on the default model
WORDS = ["harbour", "quiet", "two", "boats", "lay", "at", "the", "quay", "while", "rain", "fell", "on", "roofs"]
KINDS = (
    "embed", "decide", "loglikelihood", "prompt_logprobs", "complete", "stream", "left stream", "refused", "late",
)  # fmt: skip
SHARES = (0.38, 0.25, 0.08, 0.08, 0.08, 0.04, 0.04, 0.03, 0.02)


_LIBC = ctypes.CDLL(None)  # once: each object of it makes classes


class _Mallinfo(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]


def allocated_bytes() -> int:
    """Bytes that malloc has handed out, without those that it keeps for later. 0 without glibc 2.33."""
    try:
        mallinfo2 = _LIBC.mallinfo2
    except AttributeError:
        return 0
    mallinfo2.restype = _Mallinfo
    info = mallinfo2()
    return int(info.uordblks + info.hblkhd)


def _memory() -> dict[str, int]:
    with open("/proc/self/statm", encoding="utf-8") as file:
        pages = int(file.read().split()[1])
    return {
        "rss": pages * os.sysconf("SC_PAGE_SIZE"), "allocated": allocated_bytes(), "objects": len(gc.get_objects()),
        "threads": len(os.listdir("/proc/self/task")), "fds": len(os.listdir("/proc/self/fd")),
    }  # fmt: skip


class _Load:
    """Mixed requests on one engine, and how each of them ended."""

    def __init__(self, engine: Any, seed: int, new: bool) -> None:
        self.engine, self.new = engine, new
        self.count = 0
        self.rng = np.random.default_rng(seed)
        self.ends: Counter[str] = Counter()

    async def one(self) -> None:
        """A request of a random kind; one in fifty is cancelled from outside on top of that."""
        kind = str(self.rng.choice(KINDS, p=SHARES))
        job = asyncio.ensure_future(self._request(kind))
        if self.rng.random() < 0.02:
            await asyncio.sleep(float(self.rng.random()) * 0.02)
            job.cancel()
        try:
            await job
            self.ends[kind] += 1
        except asyncio.CancelledError:
            self.ends["cancelled"] += 1
        except PreludeError as error:
            self.ends[type(error).__name__] += 1

    async def _request(self, kind: str) -> None:
        rng, engine = self.rng, self.engine
        text = " ".join(rng.choice(WORDS, int(rng.integers(2, 25))))
        params = SamplingParams(max_tokens=int(rng.integers(2, 8)), seed=int(rng.integers(0, 99)))
        options: dict[str, Any] = {
            "deadline": 600.0,
            "tenant": f"t{int(rng.integers(0, 1 << 30))}",
            "salt": f"s{int(rng.integers(0, 3))}",
        }
        if kind == "embed":
            await engine.embed(text, pooling="mean", **options)
        elif kind == "decide" and self.new:
            self.count += 1
            await self._new_decision(text, self.count, options)
        elif kind == "decide":
            questions = [
                YesNo("Is it polite?"),
                Choice("Where?", ["harbour", "city", f"home {rng.integers(0, 500)}"]),
            ]
            await engine.decide(text, questions, **options)
        elif kind == "loglikelihood":
            await engine.loglikelihood(text, " and then", **options)
        elif kind == "prompt_logprobs":
            await engine.prompt_logprobs(text, last=8, **options)
        elif kind == "complete":
            await engine.complete(text, params, **options)
        elif kind == "refused":
            await engine.complete(text * 4000, params)
        elif kind == "late":
            await engine.complete(text, params, deadline=1e-6)
        else:
            async with engine.generate(text, params, **options) as chunks:
                async for _ in chunks:
                    if kind == "left stream":
                        break

    async def _new_decision(self, text: str, count: int, options: dict[str, Any]) -> None:
        """In turn: a new salt for a known question, new labels, a new question, a new template, a bad question."""
        turn = count % 5
        known, more = [YesNo("Is it polite?"), Choice("Where?", ["harbour", "city"])], {}
        if turn == 0:
            options["salt"] = f"tenant {count}"
        elif turn == 1:
            known = [Choice("Where?", [f"place {count} {number}" for number in range(count % 40 + 2)])]
        elif turn == 2:
            known = [YesNo(f"Is it {count}? " + "Say so. " * (count % 50))]
        elif turn == 3:
            more = {"template": DecisionTemplate(judge=f"Answer {count}.")}
        else:
            known = [Choice(f"Where {count}?", ["same", "same"])]
        await self.engine.decide(text, known, **options, **more)


async def soak(
    requests: int, in_flight: int, seed: int, hours: float | None = None, new: bool = False
) -> dict[str, Any]:
    """``requests`` of them, or as many as ``hours`` give; 40 samples of memory, threads and descriptors."""
    config = EngineConfig(kv_bytes=1 << 24, max_running=16)
    samples: list[dict[str, float]] = []
    done = 0
    async with AsyncEngine.from_pretrained(config=config) as engine:
        await engine.warmup(freeze_gc=True)
        load = _Load(engine, seed, new)
        began = time.perf_counter()

        def part() -> float:
            """How much of the run is over."""
            return done / requests if hours is None else (time.perf_counter() - began) / (hours * 3600)

        async def worker() -> None:
            nonlocal done
            while part() < 1:
                done += 1
                await load.one()
                if part() * 40 >= len(samples) + 1:
                    gc.collect()
                    samples.append({"requests": done, "seconds": time.perf_counter() - began, **_memory()})
                    samples[-1]["question_bytes"] = engine.stats()["memory"]["question_bytes"]
                    print(json.dumps(samples[-1]), file=sys.stderr, flush=True)

        await asyncio.gather(*(worker() for _ in range(in_flight)))
        seconds = time.perf_counter() - began
        while (core := engine.engine._core).live:  # those that were left end in the next step
            await asyncio.sleep(0.01)
        stats = engine.stats()
        core.audit()
        empty = is_empty(core)
    later = samples[len(samples) // 4 :]
    half = samples[len(samples) // 2 :]
    at = np.array([sample["requests"] for sample in later], dtype=float)
    slopes = {
        f"{name}_per_1000_requests": float(np.polyfit(at, [s[name] for s in later], 1)[0] * 1000)
        for name in ("rss", "allocated", "objects")
    }
    return {
        "requests": done,
        "ends": dict(sorted(load.ends.items())),
        "seconds": seconds,
        "requests_per_second": done / seconds,
        **slopes,
        "rows": second_half(f"{done:,} mixed requests in {seconds / 60:.0f} minutes", half),
        "gc_pauses": stats["gc_pauses"],
        "preemptions": stats["preemptions"],
        "stats": {
            name: stats[name] for name in ("requests", "finished", "cancelled", "expired", "failed", "rejected")
        },
        "empty_after": empty,
        "samples": samples,
    }


def second_half(load: str, samples: Sequence[dict[str, float]]) -> list[dict[str, Any]]:
    """Median, least and most of each sampled amount, and where resident memory began and ended."""
    measures = {
        "resident memory": ("rss", 1e6, "MB"), "bytes that malloc has handed out": ("allocated", 1e6, "MB"),
        "prepared questions": ("question_bytes", 1e6, "MB"), "objects of the collector": ("objects", 1, ""),
        "threads": ("threads", 1, ""), "file descriptors": ("fds", 1, ""),
    }  # fmt: skip
    rows = []
    for measure, (name, scale, unit) in measures.items():
        of = [sample[name] / scale for sample in samples]
        rows.append(asdict(Row(load, f"{measure}, second half", *three(of), unit)))
    for measure, sample in (("halfway", samples[0]), ("at the end", samples[-1])):
        amount = sample["rss"] / 1e6
        rows.append(asdict(Row(load, f"resident memory {measure}", amount, amount, amount, "MB")))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--hours", type=float, help="run for so long, instead of a number of requests")
    parser.add_argument("--new", action="store_true", help="decisions that were never asked before")
    parser.add_argument("--in-flight", type=int, default=32)
    parser.add_argument("--storm", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", help="write the result there as well")
    arguments = parser.parse_args()
    commit = record.commit()  # before the run: the tree may change meanwhile
    if arguments.storm:
        found: dict[str, Any] = storm(arguments.storm, arguments.seed, ModelLoad())
    else:
        found = asyncio.run(
            soak(arguments.requests, arguments.in_flight, arguments.seed, arguments.hours, arguments.new)
        )
    report = {"command": "python -m tests.soak " + " ".join(sys.argv[1:]), **found, "facts": {"commit": commit}}
    if arguments.json:
        record.write(arguments.json, {key: value for key, value in report.items() if key != "samples"})
    print(json.dumps({key: value for key, value in report.items() if key != "samples"}, indent=1))


if __name__ == "__main__":
    main()
