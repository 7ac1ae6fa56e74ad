"""The four questions that a paper on decisions has to answer, asked of this engine: two sizes of one family, each
against transformers in its own form (``generate``, as many prompts to a batch as there are callers).

    Q1  alone         128 tokens in, 1 out, one request at a time: the cost of a request beside its forward pass
    Q2  in flight     512 in, 1 out, by 1 and by 16 callers: does the gain outlive size and company?
    Q3  decode        128 in, 32 out, by 4: the control; where every token is a forward pass the gain should shrink
    Q4  tokenizer     a text for the ids of Q1: how much of a request is tokenising, and how much HF's would be

The same ids have to come out of both before a time counts; in bfloat16, where ties may fall otherwise, the report has
their number. Weights of sizes other than the packaged one are random: the cost of a forward does not depend on them.
No quantisation, no speculation, no kernels that are not the default's.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.gpu.models import MODELS, qwen3, save_checkpoint
from bench.serving.compare import Bench, Ids, in_turn, must_equal, random_prompts, three, times_faster
from bench.serving.load import greedy
from prelude import AsyncEngine, Generate

SIZES = {
    "packaged": None,
    "small": qwen3(512, 8, 8, 1536, vocab=4096),
    "tiny": qwen3(128, 2, 8, 256, vocab=4096),
    "qwen3-0.6b": MODELS["06b"],
    "qwen3-4b": MODELS["4b"],
}
ON_CPU, ON_GPU, QUICK = ("packaged", "small"), ("qwen3-0.6b", "qwen3-4b"), ("packaged", "tiny")


def chosen_sizes(bench: Bench) -> tuple[str, ...]:
    import torch

    if bench.quick:
        return QUICK
    gpu = bench.device.startswith("cuda") or (bench.device == "auto" and torch.cuda.is_available())
    return ON_GPU if gpu else ON_CPU


async def questions(bench: Bench) -> None:
    alone = {}
    sizes = bench.sizes or chosen_sizes(bench)
    for size in sizes:
        with ExitStack() as stack:
            folder = None
            if SIZES[size] is not None:
                folder = stack.enter_context(tempfile.TemporaryDirectory())
                save_checkpoint(SIZES[size], Path(folder))
            alone[size] = await _one_size(replace(bench, model=folder), size)
    for name in ("alone", "decode"):
        values = [alone[size][name] for size in sizes]
        ratio = three([a / b for a, b in zip(values[0], values[-1])])
        note = f"{sizes[0]} against {sizes[-1]}"
        bench.report.add("scaling", f"gain of {name}, smaller / larger model", ratio, "x", note=note)


class Sides:
    """The engine and transformers over the same checkpoint."""

    def __init__(self, bench: Bench, engine: AsyncEngine) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        limits = engine.engine._core.limits
        self.engine = engine
        self.exact = limits.dtype == "float32"
        self.device = limits.device
        dtype = getattr(torch, limits.dtype)
        self.model: Any = AutoModelForCausalLM.from_pretrained(engine.engine.model_path, dtype=dtype)
        self.model = self.model.to(self.device).eval()
        self.bench = bench

    async def ours(self, prompts: list[Ids], tokens: int, callers: int) -> list[Ids]:
        done: dict[int, Ids] = {}
        left = iter(range(len(prompts)))

        async def caller() -> None:
            for number in left:
                task = Generate(prompts[number], greedy(tokens), cache="never")
                done[number] = list((await self.engine.run(task)).token_ids)

        await asyncio.gather(*(caller() for _ in range(callers)))
        return [done[number] for number in range(len(prompts))]

    async def theirs(self, prompts: list[Ids], tokens: int, callers: int) -> list[Ids]:
        import torch

        done: list[Ids] = []
        options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}
        for at in range(0, len(prompts), callers):
            given = torch.tensor(prompts[at : at + callers], device=self.device)
            with torch.inference_mode():
                out = self.model.generate(
                    given, attention_mask=torch.ones_like(given), eos_token_id=None, pad_token_id=0, **options
                )
            done += out[:, given.shape[1] :].tolist()
        return done

    async def compare(self, load: str, shape: tuple[int, int, int, int]) -> list[float]:
        """How many times faster, run by run. ``shape``: tokens in and out, callers, requests."""
        length, tokens, callers, count = shape
        prompts = random_prompts(self.engine, count, length)
        ids = {"prelude": await self.ours(prompts, tokens, callers)}
        ids["transformers"] = await self.theirs(prompts, tokens, callers)
        equal = sum(a == b for a, b in zip(ids["prelude"], ids["transformers"]))
        if self.exact:
            must_equal(load, ids["prelude"], ids["transformers"])
        variants: dict[str, Callable[[], Any]] = {
            "transformers": lambda: self.theirs(prompts, tokens, callers),
            "prelude": lambda: self.ours(prompts, tokens, callers),
        }
        seconds = await in_turn(variants, self.bench.repeats, self.bench.say)
        gains = [t / o for t, o in zip(seconds["transformers"], seconds["prelude"])]
        note = f"{equal} of {count} answers equal"
        ratio = times_faster(seconds["transformers"], seconds["prelude"])
        self.bench.report.add(load, "transformers / prelude, time", ratio, "x", note=note)
        for name, them in seconds.items():
            self.bench.report.add(load, name, three(them, 1e3 / count), "ms", note="a request")
        return gains


async def _one_size(bench: Bench, size: str) -> dict[str, list[float]]:
    few = bench.quick
    async with bench.engine() as engine:
        sides = Sides(bench, engine)
        gains = {"alone": await sides.compare(f"Q1 {size}", (128, 1, 1, 4 if few else 40))}
        for callers in (1, 4) if few else (1, 16):
            shape = (64 if few else 512, 1, callers, 8 if few else 32)
            await sides.compare(f"Q2 {size}, {callers} in flight", shape)
        gains["decode"] = await sides.compare(f"Q3 {size}", (128, 4 if few else 32, 4, 4 if few else 8))
        await _tokenizer(bench, engine, f"Q4 {size}")
    return gains


async def _tokenizer(bench: Bench, engine: AsyncEngine, load: str) -> None:
    """Of a request of one token over a text of 128: the share of its own tokenizer, and the time that HF's would
    add."""
    from tokenizers import Tokenizer

    ours = engine.engine._preparer.tokenizer
    theirs = Tokenizer.from_file(str(Path(engine.engine.model_path) / "tokenizer.json"))
    texts = [ours.decode(ids) for ids in random_prompts(engine, 8 if bench.quick else 64, 128, 5)]
    if any(list(ours.encode(text).ids) != theirs.encode(text).ids for text in texts):
        raise SystemExit(f"{load}: the tokenizers differ; no time is reported")

    async def whole() -> None:
        for text in texts:
            await engine.run(Generate(text, greedy(1), cache="never"))

    def by(encode: Callable[[str], Any]) -> Callable[[], Any]:
        async def run() -> None:
            for text in texts:
                encode(text)

        return run

    variants: dict[str, Callable[[], Any]] = {
        "request": whole,
        "fasttoken": by(lambda text: ours.encode(text).ids),
        "HF": by(lambda text: theirs.encode(text).ids),
    }
    seconds = await in_turn(variants, bench.repeats, bench.say)
    for name in ("fasttoken", "HF"):
        share = three([100 * s / w for s, w in zip(seconds[name], seconds["request"])])
        bench.report.add(load, f"tokenising by {name}, of a request's time", share, "%")
