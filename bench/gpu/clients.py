"""Callers of an engine as the GPU bench has them: alone, saturating, and chatting."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from bench.gpu.batches import draw
from prelude import AsyncEngine, Generate, SamplingParams


def texts_of(tokenizer: Any, tokens: int, count: int) -> list[str]:
    """``count`` different texts that the tokenizer encodes to exactly ``tokens`` ids each: words of one id are added
    until the length is right."""
    words = [" a", " of", " the", " in", " is", " it", " on", " and", " for", " with", " not", " one", " that"]
    texts: list[str] = []
    for number in range(count):
        rng = np.random.default_rng(number)
        text = f"Text {number}:"
        while (found := len(tokenizer.encode(text).ids)) < tokens:
            text += words[rng.integers(len(words))]
        if found != tokens:
            raise ValueError(f"text {number} has {found} tokens, not {tokens}")
        texts.append(text)
    return texts


ONE = SamplingParams(max_tokens=1, temperature=0.0)
_SETTLING = 5
"""Rounds that are not measured, at most."""


async def settle(engine: AsyncEngine, round_: Callable[[int], Awaitable[object]]) -> None:
    """Runs ``round_``, numbered from 0, until a round has recorded no shape. A shape that a measured
    round meets first is recorded, and its products are searched, in the middle of it."""
    executor: Any = engine.engine.core.executor
    for number in range(_SETTLING):
        before = executor.graphs.captures
        await round_(number)
        if executor.graphs.captures == before:
            return


async def lone_requests(engine: AsyncEngine, tokens: int, repeats: int, count: int) -> list[float]:
    """p50 of each repeat, text to answer, one at a time; every prompt has exactly so many ``tokens``."""
    await engine.start()
    texts = texts_of(engine.engine.tokenizer, tokens, count)

    async def in_turn(number: int) -> list[float]:
        times = []
        for text in texts:
            began = time.perf_counter()
            await engine.run(Generate(text, ONE, cache="never"))
            times.append(time.perf_counter() - began)
        return times

    await settle(engine, in_turn)
    return [statistics.median(await in_turn(repeat)) for repeat in range(repeats)]


async def saturated(engine: AsyncEngine, tokens: int, flights: int, repeats: int, seconds: float) -> list[float]:
    """Requests a second with ``flights`` in flight."""
    seeds = itertools.count(time.time_ns() % (1 << 40))  # a prompt that came before would be cached
    await engine.start()

    async def worker(until: float) -> int:
        done = 0
        while time.perf_counter() < until:
            await engine.run(Generate(draw(next(seeds), tokens).tolist(), ONE))
            done += 1
        return done

    async def together(repeat: int) -> float:
        began = time.perf_counter()
        counts = await asyncio.gather(*(worker(began + seconds) for _ in range(flights)))
        return sum(counts) / (time.perf_counter() - began)

    await settle(engine, together)
    return [await together(repeat) for repeat in range(repeats)]


async def seconds_per_token(engine: AsyncEngine, seed: int, tokens: int, output: int) -> float:
    """Of the tokens behind the first. Random weights draw ids without a text, for which no chunk comes: the engine's
    own times are taken."""
    params = SamplingParams(max_tokens=output, ignore_eos=True, temperature=0.0)
    async for chunk in engine.generate(draw(seed, tokens).tolist(), params):
        if chunk.stats is not None:
            return (chunk.stats.total_ms - chunk.stats.ttft_ms) / 1e3 / (output - 1)
    raise RuntimeError("a stream ended without its statistics")


async def chats(
    engine: AsyncEngine, tokens: int, output: int, flights: int, repeats: int
) -> tuple[list[float], list[float]]:
    """Seconds per output token behind the first, and output tokens a second, of each repeat."""
    await engine.start()
    runs, seeds = 4, itertools.count()  # a prompt that came before would be cached

    async def together(repeat: int) -> tuple[float, float]:
        began = time.perf_counter()
        found: list[float] = []
        for _ in range(runs):
            streams = (seconds_per_token(engine, next(seeds), tokens, output) for _ in range(flights))
            found += await asyncio.gather(*streams)
        seconds = time.perf_counter() - began
        return statistics.median(found), runs * flights * output / seconds

    await settle(engine, together)
    measured = [await together(repeat) for repeat in range(repeats)]
    return [tpot for tpot, _ in measured], [rate for _, rate in measured]
