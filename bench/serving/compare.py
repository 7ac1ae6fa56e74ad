"""The comparisons of ``bench serving`` in one process: batching, streams, chunks, and an engine without all of them.

Both sides must give the same ids, or no time is reported; only where both are this engine on rows of other company,
which may differ in their last bits, is the number of equal texts told instead. ``cache="never"`` and fresh random ids
throughout, except in ``naive``, whose shared prefix is the point.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.common import Report, three
from bench.serving.load import Say, greedy
from prelude import AsyncEngine, EngineConfig, Generate, YesNo

Ids = list[int]
MAX_RUNNING = 4
BOOK = (1000, 100, 120, 100)  # tokens to generate, of four requests that run at once
TURNS = 40  # that each side of a comparison by steps has


@dataclass(slots=True)
class Bench:
    """The common part of the comparisons. ``quick`` shortens everything."""

    report: Report
    model: str | None
    device: str
    dtype: str
    repeats: int
    quick: bool
    say: Say

    def engine(self, dtype: str | None = None, **config: Any) -> AsyncEngine:
        return AsyncEngine.from_pretrained(
            self.model, device=self.device, dtype=dtype or self.dtype, config=EngineConfig().changed(**config)
        )


def random_prompts(engine: AsyncEngine, count: int, tokens: int, seed: int = 0) -> list[Ids]:
    vocabulary = engine.engine._preparer.tokenizer.get_vocab_size()
    draw = np.random.default_rng(seed)
    prompts: list[Ids] = draw.integers(vocabulary // 8, vocabulary - 8, (count, tokens)).tolist()
    return prompts


async def in_turn(
    variants: Mapping[str, Callable[[], Awaitable[Any]]], repeats: int, say: Say
) -> dict[str, list[float]]:
    """Seconds of each variant, A B A B ..., so that a drift of the machine meets all of them alike."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for repeat in range(repeats):
        for name, run in variants.items():
            say(f"{name}: run {repeat + 1} of {repeats}")
            began = time.perf_counter()
            await run()
            seconds[name].append(time.perf_counter() - began)
    return seconds


def times_faster(base: list[float], ours: list[float]) -> tuple[float, float, float]:
    return three([b / o for b, o in zip(base, ours)])


def must_equal(load: str, ours: Any, theirs: Any) -> None:
    if ours != theirs:
        raise SystemExit(f"{load}: the two sides give different ids; no time is reported")


def steps(engine: AsyncEngine) -> int:
    return sum(engine.stats()["steps"].values())


# ------------------------------------------------------------------ static batching


class Turns:
    """Engines that run in turns of a few steps each, on one machine at one time: other load meets all of them alike,
    where runs of seconds one after the other each meet another load. ``seconds`` counts the turns."""

    def __init__(self, steps: Mapping[str, int]) -> None:
        """``steps`` of each a turn, in this order."""
        self.steps = steps
        self.seconds = dict.fromkeys(steps, 0.0)
        self._waiting = list(steps)  # the first one has its turn
        self._left = steps[self._waiting[0]]
        self._changed = threading.Condition()
        self._began = time.perf_counter()

    def gate(self, name: str, engine: AsyncEngine) -> None:
        """From now on a step of ``engine`` begins when it has its turn."""
        executor: Any = engine.engine._core.executor
        submit = type(executor).submit.__get__(executor)

        def in_turn(batch: Any) -> Any:
            with self._changed:
                if self._waiting[0] == name and self._left == 0:
                    self._pass_on(name, back=True)
                self._changed.wait_for(lambda: self._waiting[0] == name)
                self._left -= 1
            return submit(batch)

        executor.submit = in_turn

    def done(self, name: str) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting[0] == name)
            self._pass_on(name, back=False)

    def _pass_on(self, name: str, back: bool) -> None:
        now = time.perf_counter()
        self.seconds[name] += now - self._began
        self._began = now
        del self._waiting[0]
        if back:
            self._waiting.append(name)
        if self._waiting:
            self._left = self.steps[self._waiting[0]]
        self._changed.notify_all()


async def static_batching(bench: Bench) -> None:
    """The book's four requests, four times over, with four running at once. Static batching starts four waiting
    requests, runs until all of them have ended, and starts four more. Continuous batching starts a request as soon as
    one has ended.

    The two static engines differ in the cost of a row that has ended. In ``static`` it costs nothing: the row is no
    longer computed, and a step of one row is cheaper than one of four. In ``padded`` it is computed until the longest
    row ends, as in ``generate`` of transformers over a batch. The book counts steps: its machine takes as long for
    one row as for four."""
    lengths = [n // 20 if bench.quick else n for n in BOOK] * 4
    load = f"static_{MAX_RUNNING}slots_" + "_".join(map(str, lengths[:4]))  # the name in bench/results
    names = ("static", "continuous", "padded")
    engines = {name: bench.engine(max_running=MAX_RUNNING) for name in names}
    counts: dict[str, int] = {}
    ids: dict[str, list[Any]] = {}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    try:
        for engine in engines.values():
            await engine.start()
        prompts = random_prompts(engines["static"], len(lengths), 16)

        async def batches(name: str, at_once: int, padded: bool = False) -> None:
            done: list[Any] = []
            for at in range(0, len(lengths), at_once):
                some = lengths[at : at + at_once]
                tasks = [
                    Generate(p, greedy(max(some) if padded else n), cache="never")
                    for p, n in zip(prompts[at : at + at_once], some)
                ]
                done += await engines[name].run_many(tasks)
            ids[name] = [one.token_ids for one in done]

        runs: dict[str, Callable[[], Awaitable[None]]] = {
            "static": lambda: batches("static", MAX_RUNNING),
            "continuous": lambda: batches("continuous", len(lengths)),
            "padded": lambda: batches("padded", MAX_RUNNING, padded=True),
        }
        share = dict.fromkeys(names, 1)  # steps of a turn: the first run counts how many of them each needs
        for repeat in range(bench.repeats + 1):
            bench.say(f"{load}: run {repeat} of {bench.repeats}")
            turns = Turns(share)

            async def one(name: str, turns: Turns = turns) -> None:
                turns.gate(name, engines[name])
                before = steps(engines[name])
                await runs[name]()
                await asyncio.to_thread(turns.done, name)
                counts[name] = steps(engines[name]) - before

            await asyncio.gather(*map(one, names))
            share = {name: max(1, counts[name] // TURNS) for name in names}
            for name in names if repeat else ():
                seconds[name].append(turns.seconds[name])
    finally:
        for engine in engines.values():
            await engine.aclose()
    equal = sum(a == b for a, b in zip(ids["continuous"], ids["static"]))
    must_equal(load, [len(one) for one in ids["continuous"]], lengths)
    add = bench.report.add
    for name in ("static", "padded"):
        note = f"{equal} of {len(lengths)} texts equal" if name == "static" else ""
        ratio = times_faster(seconds[name], seconds["continuous"])
        add(load, f"{name} / continuous, time", ratio, "x", reach=">= 2", note=note)
    same = counts["static"] / counts["continuous"]
    note = f"{counts['static']} and {counts['continuous']} steps"
    add(load, "static / continuous, steps", (same, same, same), "x", note=note)
    for name, times in seconds.items():
        add(load, name, three(times), "s", note=f"{three(times, 1e6 / counts[name])[0]:.0f} us a step")


# ------------------------------------------------------------------ transformers, in one batch


async def against_transformers(bench: Bench) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    streams, tokens = (4, 8) if bench.quick else (8, 64)
    load = f"streams_{streams}x{tokens}_float32"
    async with bench.engine("float32") as engine:
        model: Any = AutoModelForCausalLM.from_pretrained(engine.engine.model_path, dtype=torch.float32)
        model.eval()
        prompts = random_prompts(engine, streams, 32)
        ids: dict[str, list[Ids]] = {}

        async def one(prompt: Ids) -> Ids:
            return [i async for c in engine.generate(prompt, greedy(tokens), cache="never") for i in c.token_ids]

        async def ours() -> None:
            ids["prelude"] = list(await asyncio.gather(*map(one, prompts)))

        async def theirs() -> None:
            given = torch.tensor(prompts)
            options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}
            with torch.inference_mode():
                out = model.generate(
                    given, attention_mask=torch.ones_like(given), eos_token_id=None, pad_token_id=0, **options
                )
            ids["transformers"] = out[:, given.shape[1] :].tolist()

        await ours()
        await theirs()
        must_equal(load, ids["prelude"], ids["transformers"])
        variants = {"transformers": theirs, "prelude": ours}
        seconds = await in_turn(variants, bench.repeats, bench.say)
    ratio = times_faster(seconds["transformers"], seconds["prelude"])
    bench.report.add(load, "generate of one batch / streams together", ratio, "x", reach=">= 3", note="same ids")
    for name, times in seconds.items():
        bench.report.add(load, name, three(times, 1e3), "ms")


# ------------------------------------------------------------------ the longest gap of a chat


async def longest_gap(engine: AsyncEngine, prompt: Ids, arriving: Ids | None, tokens: int) -> tuple[float, float]:
    """Seconds of the longest wait between two chunks of a chat into which a long prompt arrives, and of that
    prompt's first token."""
    arrival: asyncio.Task[Any] | None = None
    first = longest = 0.0
    sent = last = time.perf_counter()

    async def long() -> float:
        async for _ in engine.generate(arriving or [], greedy(2), cache="never"):
            return time.perf_counter() - sent
        return 0.0

    seen = 0
    async for chunk in engine.generate(prompt, greedy(tokens), cache="never"):
        now = time.perf_counter()
        longest = max(longest, now - last) if seen > tokens // 4 else 0.0
        last, seen = now, seen + len(chunk.token_ids)
        if seen > tokens // 4 and arriving is not None and arrival is None:
            sent = now
            arrival = asyncio.ensure_future(long())
    if arrival is not None:
        first = await arrival
    return longest, first


async def gap_of_a_chat(bench: Bench) -> None:
    """A chat is under way when a prompt of 2,000 tokens comes: chunked, at once, and without it."""
    long, tokens = (400, 24) if bench.quick else (2000, 160)
    load = f"chat_while_{long}_tokens_arrive"
    variants = {"chunks of 64": 64, "chunks of 256": 256, "at once": 1 << 20}
    gaps: dict[str, list[float]] = {name: [] for name in ("nothing arrives", *variants)}
    firsts: dict[str, list[float]] = {name: [] for name in variants}
    engines = {name: bench.engine(chunk_tokens=chunk, kv_bytes=64 << 20) for name, chunk in variants.items()}
    try:
        for engine in engines.values():
            await engine.start()
        [chat] = random_prompts(next(iter(engines.values())), 1, 24)
        for repeat in range(bench.repeats + 1):  # the first one warms
            bench.say(f"{load}: run {repeat} of {bench.repeats}")
            for name, engine in engines.items():
                [arriving] = random_prompts(engine, 1, long, 100 + repeat)
                gap, first = await longest_gap(engine, chat, arriving, tokens)
                if repeat:
                    gaps[name].append(gap)
                    firsts[name].append(first)
            gap, _ = await longest_gap(engines["at once"], chat, None, tokens)
            if repeat:
                gaps["nothing arrives"].append(gap)
    finally:
        for engine in engines.values():
            await engine.aclose()
    for name, times in gaps.items():
        bench.report.add(load, f"longest gap of the chat, {name}", three(times, 1e3), "ms")
    for name, times in firsts.items():
        bench.report.add(load, f"first token of the long prompt, {name}", three(times, 1e3), "ms")
    ratio = times_faster(gaps["at once"], gaps["chunks of 64"])
    bench.report.add(load, "longest gap, at once / chunks of 64", ratio, "x")


# ------------------------------------------------------------------ chats beside decisions


async def beside_decisions(bench: Bench) -> None:
    """Four chats alone, and beside callers that always have 32 decisions waiting: time per output token in pairs of
    runs, and the rate of the decisions meanwhile."""
    chats, tokens, callers, length = (2, 16, 8, 32) if bench.quick else (4, 96, 32, 128)
    load = f"chats_{chats}_beside_{callers}x{length}in"
    tpots: dict[str, list[list[float]]] = {"alone": [], "beside": []}
    waits: list[float] = []
    rates: list[float] = []
    async with bench.engine() as engine:
        prompts = random_prompts(engine, chats, 32)
        texts = random_prompts(engine, 256, length, 7)

        async def chat(prompt: Ids) -> float:
            first = 0.0
            async for _ in engine.generate(prompt, greedy(tokens), cache="never"):
                first = first or time.perf_counter()
            return (time.perf_counter() - first) / (tokens - 1)

        async def caller(number: int, stop: asyncio.Event) -> int:
            done = 0
            while not stop.is_set():
                began = time.perf_counter()
                await engine.run(Generate(texts[(number + 31 * done) % len(texts)], greedy(1), cache="never"))
                waits.append(time.perf_counter() - began)
                done += 1
            return done

        for repeat in range(bench.repeats + 1):  # the first one warms
            bench.say(f"{load}: run {repeat} of {bench.repeats}")
            alone = list(await asyncio.gather(*map(chat, prompts)))
            stop = asyncio.Event()
            others = [asyncio.ensure_future(caller(number, stop)) for number in range(callers)]
            await asyncio.sleep(0)
            began = time.perf_counter()
            beside = list(await asyncio.gather(*map(chat, prompts)))
            stop.set()
            answered = sum(await asyncio.gather(*others))
            if repeat == 0:
                waits.clear()
                continue
            rates.append(answered / (time.perf_counter() - began))
            tpots["alone"].append(alone)
            tpots["beside"].append(beside)
    for name, pick in (("median", statistics.median), ("worst", max)):
        ratios = times_faster([pick(run) for run in tpots["beside"]], [pick(run) for run in tpots["alone"]])
        bench.report.add(load, f"time per token beside / alone, {name} chat", ratios, "x", reach="<= 1.5")
    for name, runs in tpots.items():
        bench.report.add(load, f"time per token, {name}", three([statistics.median(run) for run in runs], 1e3), "ms")
    bench.report.add(load, "decisions a second beside the chats", three(rates), "/s")
    p99 = float(np.percentile(waits, 99)) * 1e3
    bench.report.add(load, "P99 of a decision beside the chats", (p99, p99, p99), "ms")


# ------------------------------------------------------------------ pauses of the garbage collector


async def collector_pauses(bench: Bench) -> None:
    """The collector's pauses under load, and the time of a full collection then, after ``warmup(freeze_gc=True)`` and
    with everything thawed. Processor time of the collecting thread: the pause on a machine without other load."""
    count = 64 if bench.quick else 2000
    load = f"collector_{count}_decisions_64_in_flight"
    kept: dict[str, list[list[float]]] = {name: [[], []] for name in ("frozen", "thawed")}
    pauses: list[float] = []
    began = 0.0

    def heard(phase: str, info: dict[str, int]) -> None:
        nonlocal began
        if phase == "start":
            began = time.thread_time()
        else:
            pauses.append(time.thread_time() - began)

    async with bench.engine() as engine:
        texts = random_prompts(engine, count, 24, 3)
        await engine.warmup(freeze_gc=True)
        gc.callbacks.append(heard)
        try:
            for repeat in range(bench.repeats + 1):  # the first one warms
                for name in kept:
                    bench.say(f"{load}: {name}, run {repeat} of {bench.repeats}")
                    (gc.freeze if name == "frozen" else gc.unfreeze)()
                    pauses.clear()
                    for at in range(0, count, 64):
                        await asyncio.gather(
                            *(
                                engine.decide(text, [YesNo("Is it polite?")], cache="never")
                                for text in texts[at : at + 64]
                            )
                        )
                    kept[name][0].append(max(pauses, default=0.0))
                    gc.collect()
                    kept[name][1].append(pauses[-1])
        finally:
            gc.callbacks.remove(heard)
            gc.unfreeze()
    for name, (longest, full) in kept.items():
        longest, full = longest[1:], full[1:]
        reach = "<= 5" if name == "frozen" else ""
        bench.report.add(load, f"longest pause, {name}", three(longest, 1e3), "ms", reach=reach)
        bench.report.add(load, f"a full collection, {name}", three(full, 1e3), "ms", reach=reach)


# ------------------------------------------------------------------ doing without


async def naive(bench: Bench) -> None:
    """Requests that share 60 % of their prompts: all together, against one after the other with every token's whole
    sequence computed again (no KV cache, no batching, no prefix cache)."""
    count, length, shared, tokens = (4, 100, 60, 5) if bench.quick else (32, 100, 60, 20)
    load = f"naive_{count}x{length}in_{tokens}out"
    async with bench.engine("float32") as engine:
        ids: dict[str, list[Ids]] = {}
        used: dict[str, tuple[int, int]] = {}

        def prompts(run: int) -> list[Ids]:
            [head] = random_prompts(engine, 1, shared, 500 + run)
            return [head + tail for tail in random_prompts(engine, count, length - shared, 900 + run)]

        def counters() -> tuple[int, int]:
            stats = engine.stats()
            return sum(stats["steps"].values()), stats["prefill_tokens"] + stats["decode_tokens"]

        runs = {"together": 0, "naive": 0}

        async def record(name: str, run: Callable[[list[Ids]], Awaitable[list[Ids]]]) -> None:
            before = counters()
            ids[name] = await run(prompts(runs[name]))
            runs[name] += 1
            after = counters()
            used[name] = after[0] - before[0], after[1] - before[1]

        async def together(prompts: list[Ids]) -> list[Ids]:
            return [
                list(done.token_ids) for done in await engine.run_many([Generate(p, greedy(tokens)) for p in prompts])
            ]

        async def one_by_one(prompts: list[Ids]) -> list[Ids]:
            return [await _recomputed(engine, prompt, tokens) for prompt in prompts]

        variants = {"naive": lambda: record("naive", one_by_one), "together": lambda: record("together", together)}
        seconds = await in_turn(variants, bench.repeats, bench.say)
        must_equal(load, ids["together"], ids["naive"])
    ratio = times_faster(seconds["naive"], seconds["together"])
    told = {name: f"{numbers[0]} steps, {numbers[1]} tokens computed" for name, numbers in used.items()}
    bench.report.add(load, "naive / together", ratio, "x", note="same ids")
    for name, times in seconds.items():
        bench.report.add(load, name, three(times, 1e3), "ms", note=told[name])


async def _recomputed(engine: AsyncEngine, prompt: Ids, tokens: int) -> Ids:
    known = list(prompt)
    for _ in range(tokens):
        known += (await engine.run(Generate(known, greedy(1), cache="never"))).token_ids
    return known[len(prompt) :]


COMPARISONS: dict[str, Callable[[Bench], Awaitable[None]]] = {
    "static": static_batching,
    "transformers": against_transformers,
    "gap": gap_of_a_chat,
    "beside": beside_decisions,
    "collector": collector_pauses,
    "naive": naive,
}
