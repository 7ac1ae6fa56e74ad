"""Callers of an engine as the GPU bench has them: alone, saturating, chatting, and both at once."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np

from bench.gpu.batches import draw, one_token
from prelude import AsyncEngine, Generate, SamplingParams


def texts_of(tokenizer: Any, tokens: int, count: int) -> list[str]:
    """``count`` different texts that the tokenizer encodes to exactly ``tokens`` ids each. Ids that are decoded and
    encoded again are seldom as many as before, so words are added until the length is right."""
    words = [" a", " of", " the", " river", " town", " birds", " seven", " letter", " morning", " water"]
    texts: list[str] = []
    for number in range(count):
        rng = np.random.default_rng(number)
        text = f"Text {number}:"
        for _ in range(200 * tokens):
            longer = text + words[rng.integers(len(words))]
            size = len(tokenizer.encode(longer).ids)
            if size <= tokens:
                text = longer
            if size == tokens:
                break
        found = len(tokenizer.encode(text).ids)
        if found != tokens:
            raise ValueError(f"text {number} has {found} tokens, not {tokens}")
        texts.append(text)
    return texts


_SETTLING = 5
"""Rounds that are not measured, at most."""


async def settle(engine: AsyncEngine, round_: Callable[[int], Awaitable[object]]) -> None:
    """Runs ``round_``, numbered from 0, until a round has recorded no shape. A shape that a measured
    round meets first is recorded, and its products are searched, in the middle of it."""
    for number in range(_SETTLING):
        before = shapes_recorded(engine)
        await round_(number)
        if shapes_recorded(engine) == before:
            return


def shapes_recorded(engine: AsyncEngine) -> int:
    graphs = getattr(engine.engine.core.executor, "graphs", None)
    return 0 if graphs is None else int(graphs.captures)


async def lone_requests(engine: AsyncEngine, tokens: int | Sequence[int], repeats: int, count: int) -> list[float]:
    """p50 of each repeat, text to answer, one at a time. ``tokens``: of every prompt, exactly; or several lengths in
    turn."""
    await engine.start()
    tokenizer = engine.engine.tokenizer
    lengths = [tokens] if isinstance(tokens, int) else list(tokens)
    each = [texts_of(tokenizer, length, -(-count // len(lengths))) for length in lengths]
    texts = [text for group in zip(*each) for text in group][:count]

    async def in_turn(number: int) -> list[float]:
        times = []
        for text in texts:
            began = time.perf_counter()
            await engine.run(Generate(text, SamplingParams(max_tokens=1, temperature=0.0), cache="never"))
            times.append(time.perf_counter() - began)
        return times

    await settle(engine, in_turn)
    return [statistics.median(await in_turn(repeat)) for repeat in range(repeats)]


async def saturated(
    engine: AsyncEngine, tokens: int, flights: int, shared: float, repeats: int, seconds: float
) -> list[float]:
    """Requests a second with ``flights`` in flight."""
    common = draw(7, int(tokens * shared))
    seeds = iter(range(10_000, 10_000_000))
    await engine.start()

    async def worker(until: float) -> int:
        done = 0
        while time.perf_counter() < until:
            ids = np.concatenate([common, draw(next(seeds), tokens - len(common))])
            await engine.run(one_token(ids))
            done += 1
        return done

    async def together(repeat: int) -> float:
        began = time.perf_counter()
        counts = await asyncio.gather(*(worker(began + seconds) for _ in range(flights)))
        return sum(counts) / (time.perf_counter() - began)

    await settle(engine, together)
    return [await together(repeat) for repeat in range(repeats)]


SAMPLED: dict[str, Any] = {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
"""The sampling settings of Qwen3's generation_config.json."""


async def stream_times(
    engine: AsyncEngine, seed: int, tokens: int, output: int, sampled: bool = False
) -> list[float]:
    times = []
    how = {**SAMPLED, "seed": seed} if sampled else {"temperature": 0.0}
    params = SamplingParams(max_tokens=output, ignore_eos=True, **how)
    async for _ in engine.generate(draw(seed, tokens).tolist(), params):
        times.append(time.perf_counter())
    return times


async def chats(
    engine: AsyncEngine, tokens: int, output: int, flights: int, repeats: int, sampled: bool = False
) -> tuple[list[float], list[float]]:
    """Seconds per output token behind the first, and output tokens a second, of each repeat."""
    await engine.start()
    runs, seeds = 4, itertools.count()  # a prompt that came before would be cached

    async def together(repeat: int) -> tuple[float, float]:
        began = time.perf_counter()
        found: list[list[float]] = []
        for _ in range(runs):
            streams = (stream_times(engine, next(seeds), tokens, output, sampled) for _ in range(flights))
            found += await asyncio.gather(*streams)
        seconds = time.perf_counter() - began
        return statistics.median((t[-1] - t[0]) / (output - 1) for t in found), runs * flights * output / seconds

    await settle(engine, together)
    measured = [await together(repeat) for repeat in range(repeats)]
    return [tpot for tpot, _ in measured], [rate for _, rate in measured]


async def chat_beside_decisions(engine: AsyncEngine, repeats: int) -> list[float]:
    await engine.start()
    found = []
    for repeat in range(repeats + 1):
        alone = await stream_times(engine, repeat, 128, 64)
        stop = asyncio.Event()

        async def decisions(worker: int, stop: asyncio.Event = stop) -> None:
            seed = worker * 100_000
            while not stop.is_set():
                seed += 1
                await engine.run(one_token(draw(seed, 512)))

        tasks = [asyncio.create_task(decisions(i)) for i in range(32)]
        await asyncio.sleep(0.3)
        beside = await stream_times(engine, repeat, 128, 64)
        stop.set()
        await asyncio.gather(*tasks)
        if repeat:
            found.append((beside[-1] - beside[0]) / (alone[-1] - alone[0]))
    return found
