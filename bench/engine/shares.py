"""Decisions beside chats on the packaged model, by the share of a step that decisions take.

    python -m bench shares [--seconds 6] [--json FILE] [--quick]

25 chats of 64 tokens and 25 deciders, each in a loop, under each ``oneshot_share`` and two orders: decisions a
second, the time of a decision, tokens of chats a second. First the chats alone, then the deciders alone.
"""

from __future__ import annotations

import asyncio
import time

import numpy as np

from bench.command_line import options_parser
from bench.common import Report, add_outputs, machine_facts
from prelude import AsyncEngine, Choice, EngineConfig, SamplingParams, YesNo

WORDS = ["harbour", "quiet", "two", "boats", "lay", "at", "the", "quay", "while", "rain", "fell", "on", "roofs"]
QUESTIONS = [YesNo("Is it calm?"), Choice("Where?", ["harbour", "city"])]
CLIENTS = 25
SHARES = (0.2, 0.5, 0.7, 0.9)
ORDERS = ("shortest_prefill_first", "first_come_first_served")


async def beside(share: float, policy: str, seconds: float, chats: int, deciders: int) -> tuple[list[float], int]:
    """The seconds of each decision, and the tokens of all chats."""
    draw = np.random.default_rng(0)
    waits: list[float] = []
    tokens = 0

    def text(words: int) -> str:
        return " ".join(draw.choice(WORDS, words))

    config = EngineConfig(oneshot_share=share, policy=policy, kv_bytes=1 << 26)
    async with AsyncEngine.from_pretrained(config=config) as engine:
        await engine.warmup()
        end = time.perf_counter() + seconds

        async def chat() -> None:
            nonlocal tokens
            while time.perf_counter() < end:
                async for part in engine.generate(text(40), SamplingParams(max_tokens=64, ignore_eos=True)):
                    tokens += len(part.token_ids)
                    if time.perf_counter() > end:
                        break

        async def decide() -> None:
            while time.perf_counter() < end:
                began = time.perf_counter()
                await engine.decide(text(int(draw.integers(40, 160))), QUESTIONS)
                waits.append(time.perf_counter() - began)

        await asyncio.gather(*(chat() for _ in range(chats)), *(decide() for _ in range(deciders)))
    return waits, tokens


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each row")
    parser.add_argument("--quick", action="store_true", help="a tenth of the seconds")
    add_outputs(parser)
    chosen = parser.parse_args()
    seconds = chosen.seconds / 10 if chosen.quick else chosen.seconds
    report = Report("Decisions beside chats", facts=machine_facts())
    alone = [("chats alone", 0.7, ORDERS[0], CLIENTS, 0), ("deciders alone", 0.7, ORDERS[0], 0, CLIENTS)]
    both = [(f"share {share}, {order}", share, order, CLIENTS, CLIENTS) for order in ORDERS for share in SHARES]
    for load, share, order, chats, deciders in (*alone, *both):
        waits, tokens = asyncio.run(beside(share, order, seconds, chats, deciders))
        if deciders:
            rate, times = len(waits) / seconds, np.percentile(waits or [float("nan")], (50, 0, 99)) * 1e3
            report.add(load, "decisions", (rate, rate, rate), "1/s")
            report.add(load, "a decision: median, least, 99th percentile", tuple(times.tolist()), "ms")
        if chats:
            report.add(load, "tokens of chats", (tokens / seconds,) * 3, "1/s")
    report.finish(chosen)


if __name__ == "__main__":
    main()
