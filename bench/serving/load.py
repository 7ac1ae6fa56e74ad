"""Load for ``bench serving``: shapes by name, closed and open loops, and statistics of their times.

TTFT is from the call (in an open loop: from when the request was due) to the first tokens in the caller's hands. TPOT
is the time from there to the end over the tokens that came after, so it excludes TTFT. End to end is the whole.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from prelude import AsyncEngine, Generate, SamplingParams

PERCENTILES = (50, 95, 99)
FLEET = {"requests_per_minute": 5000 / 60, "tokens_per_second": 10e6 / 86400}


@dataclass(frozen=True, slots=True)
class Shape:
    """``in_flight`` requests at a time, or with ``rate`` so many arrivals a second, which do not wait for answers."""

    name: str
    input_tokens: int
    output_tokens: int
    in_flight: int = 0
    rate: float = 0.0
    requests: int = 100


SWEEP = (1, 4, 16, 64, 96, 128)
SHAPES: dict[str, tuple[Shape, ...]] = {
    "oneshot_128in_1out_c1": (Shape("oneshot_128in_1out_c1", 128, 1, 1),),
    "oneshot_512in_1out_sweep": tuple(Shape(f"oneshot_512in_1out_c{n}", 512, 1, n, requests=200) for n in SWEEP),
    "decode_128in_32out_c4": (Shape("decode_128in_32out_c4", 128, 32, 4, requests=400),),
    "open_128in_32out": (Shape("open_128in_32out", 128, 32, rate=10.0),),
}


@dataclass(frozen=True, slots=True)
class Job:
    prompt: list[int]
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Sample:
    """Seconds of one answered request."""

    ttft: float
    tpot: float | None  # None where nothing came after the first tokens
    total: float
    input_tokens: int
    output_tokens: int


def make_jobs(shape: Shape, count: int, vocabulary: int, seed: int) -> list[Job]:
    """Fresh random ids for every request: no two share a prefix, so nothing is read from a cache or folded."""
    draw = np.random.default_rng(seed)
    ids = draw.integers(vocabulary // 8, vocabulary - 8, (count, shape.input_tokens))
    return [Job(row, shape.output_tokens) for row in ids.tolist()]


# ------------------------------------------------------------------ clients


class Client(Protocol):
    async def send(self, job: Job, due: float) -> Sample: ...


def greedy(tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)


def sample_of(job: Job, due: float, first: float, early: int, end: float, tokens: int) -> Sample:
    """``early`` of the ``tokens`` came with the first ones."""
    if tokens != job.output_tokens:
        raise SystemExit(f"{tokens} tokens came back, {job.output_tokens} were asked for; no time is reported")
    tpot = (end - first) / (tokens - early) if tokens > early else None
    return Sample(first - due, tpot, end - due, len(job.prompt), tokens)


@dataclass(frozen=True, slots=True)
class InProcess:
    """The engine's own asyncio interface, in this process. ``cache="never"``."""

    engine: AsyncEngine

    async def send(self, job: Job, due: float) -> Sample:
        params = greedy(job.output_tokens)
        if job.output_tokens == 1:
            done = await self.engine.run(Generate(job.prompt, params, cache="never"))
            end = time.perf_counter()
            return sample_of(job, due, end, 1, end, len(done.token_ids))
        first, early, tokens = 0.0, 0, 0
        async for chunk in self.engine.generate(job.prompt, params, cache="never"):
            tokens += len(chunk.token_ids)
            if not first:
                first, early = time.perf_counter(), tokens
        return sample_of(job, due, first, early, time.perf_counter(), tokens)


# ------------------------------------------------------------------ loops


async def closed_loop(client: Client, jobs: Iterable[Job], in_flight: int) -> list[Sample]:
    """``in_flight`` callers. Each sends its next request when it has its answer."""
    left: Iterator[Job] = iter(jobs)
    samples: list[Sample] = []

    async def caller() -> None:
        for job in left:
            samples.append(await client.send(job, time.perf_counter()))

    await asyncio.gather(*(caller() for _ in range(in_flight)))
    return samples


async def open_loop(client: Client, jobs: Iterable[Job], rate: float, seed: int) -> list[Sample]:
    """Arrivals at random (Poisson), ``rate`` a second. Times count from when a request was due, so that a load
    generator that falls behind does not hide the waiting time of its requests."""
    draw = np.random.default_rng(seed)
    due = time.perf_counter()
    tasks = []
    for job in jobs:
        due += float(draw.exponential(1 / rate))
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.ensure_future(client.send(job, due)))
    return list(await asyncio.gather(*tasks))


async def one_run(client: Client, shape: Shape, jobs: list[Job], seed: int) -> dict[str, Any]:
    began = time.perf_counter()
    if shape.rate:
        samples = await open_loop(client, jobs, shape.rate, seed)
    else:
        samples = await closed_loop(client, jobs, shape.in_flight)
    return summary(samples, time.perf_counter() - began)


async def measure(
    client: Client, shape: Shape, vocabulary: int, repeats: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Every run of a shape, and the median, lowest and highest of each number over the runs."""
    warm = make_jobs(shape, min(4, shape.requests), vocabulary, 999)
    await closed_loop(client, warm, max(1, min(4, shape.in_flight)))
    runs = []
    for repeat in range(repeats):
        say(f"{shape.name}: run {repeat + 1} of {repeats}")
        jobs = make_jobs(shape, shape.requests, vocabulary, 1000 + repeat)
        runs.append(await one_run(client, shape, jobs, repeat))
    return {"over_runs": over_runs(runs), "runs": runs}


# ------------------------------------------------------------------ numbers


def percentiles(name: str, seconds: list[float]) -> dict[str, float]:
    if not seconds:
        return {}
    values = {f"{name}_p{p}_ms": float(np.percentile(seconds, p)) * 1e3 for p in PERCENTILES}
    return {**values, f"{name}_mean_ms": statistics.fmean(seconds) * 1e3, f"{name}_max_ms": max(seconds) * 1e3}


def summary(samples: list[Sample], wall: float) -> dict[str, Any]:
    """One run: its numbers, and the milliseconds of every request."""
    read, written = sum(s.input_tokens for s in samples), sum(s.output_tokens for s in samples)
    return {
        "requests": len(samples),
        "wall_s": wall,
        "requests_per_minute": len(samples) / wall * 60,
        "input_tokens_per_second": read / wall,
        "output_tokens_per_second": written / wall,
        **percentiles("ttft", [s.ttft for s in samples]),
        **percentiles("tpot", [s.tpot for s in samples if s.tpot is not None]),
        **percentiles("e2e", [s.total for s in samples]),
        "samples_ms": [
            [round(s.ttft * 1e3, 3), None if s.tpot is None else round(s.tpot * 1e3, 3), round(s.total * 1e3, 3)]
            for s in samples
        ],
    }


def over_runs(runs: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    names = [name for name, value in runs[0].items() if isinstance(value, float | int)]
    values = {name: [run[name] for run in runs if name in run] for name in names}
    return {
        name: {"median": statistics.median(them), "low": min(them), "high": max(them)}
        for name, them in values.items()
    }


def judged(preset: str, numbers: dict[str, dict[str, float]]) -> tuple[bool, str] | None:
    """Whether a load keeps a preset, by the worst of its runs, and in words. None: the preset does not apply."""
    if preset == "bulk":
        rpm = numbers["requests_per_minute"]["low"]
        rate = numbers["input_tokens_per_second"]["low"] + numbers["output_tokens_per_second"]["low"]
        least = FLEET["requests_per_minute"], FLEET["tokens_per_second"]
        text = f"{rpm:.0f} requests a minute (>= {least[0]:.0f}), {rate:.0f} tokens a second (>= {least[1]:.0f})"
        return rpm >= least[0] and rate >= least[1], text
    limits = {"ttft_p95_ms": 3000.0, "ttft_max_ms": 5000.0}
    limits["tpot_p95_ms"] = 300.0 if preset == "interactive" else 100.0
    seen = {name: numbers[name]["high"] for name in limits if name in numbers}
    if "tpot_p95_ms" not in seen and preset == "interactive_fast":
        return None
    words = ", ".join(
        f"{name[:-3].replace('_', ' ')} {value:.1f} ms (<= {limits[name]:.0f})" for name, value in seen.items()
    )
    return all(value <= limits[name] for name, value in seen.items()), words


PRESETS = {
    "interactive": "first token within 3 s (P95) and never later than 5 s, then 300 ms a token or less",
    "interactive_fast": "the same at 100 ms a token or less",
    "bulk": "only throughput counts: 5,000 requests an hour and ten million tokens a day",
}
Say = Callable[[str], None]
