"""Requests one by one, each after a pause, with and without keeping a step's threads off the processor of its own.

    python -m bench pauses [--model DIR] [--quantization int8] [--tokens 16 81] [--pauses 10 30 100] [--rounds 5]
                           [--json FILE]

After a pause Linux may wake the threads of a step on one processor (``prelude/cpu/threads.py``). A round is
``--requests`` embeddings of one side and as many of the other, each after a pause of about so many milliseconds, on
two threads. The answers are compared first. A round begins with a thread count that has not learnt anything yet.
Times are those of the caller, in milliseconds: the median of the rounds' percentiles and their range.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.command_line import options_parser
from bench.common import Report, add_outputs, machine_facts, rounds, three
from prelude import Engine, EngineConfig

SIDES = ("kept apart", "left alone")
PERCENTILES = (50, 90, 99)


class SwitchedPlaces:
    """The places of a step's threads, of which only one side makes use."""

    used = True

    def __init__(self, ids: Sequence[int]) -> None:
        from prelude._native.cpu import ThreadPlaces

        self._places = ThreadPlaces(ids)

    def keep_off(self) -> None:
        if self.used:
            self._places.keep_off()

    def give_back(self) -> None:
        self._places.give_back()


def request(engine: Engine, prompt: list[int]) -> Any:
    return engine.embed(prompt, pooling="mean", cache="never")


def timed(engine: Engine, prompt: list[int], pause: float, count: int, rng: random.Random) -> list[float]:
    """Milliseconds of each of ``count`` requests."""
    from prelude.cpu.threads import GOVERNOR

    GOVERNOR.__init__()  # type: ignore[misc]
    taken = []
    for _ in range(count):
        time.sleep(pause * rng.uniform(0.8, 1.2))
        began = time.perf_counter()
        request(engine, prompt)
        taken.append(1e3 * (time.perf_counter() - began))
    return taken


def measure(report: Report, engine: Engine, tokens: int, pause: float, chosen: argparse.Namespace) -> None:
    rng = random.Random(1)
    prompt = [rng.randrange(1000, min(20_000, engine.model_info.vocab_size)) for _ in range(tokens)]
    answers = []
    for SwitchedPlaces.used in (True, False):
        time.sleep(pause)
        answers.append(request(engine, prompt))
    if not np.array_equal(*answers):
        raise SystemExit(f"{tokens} tokens: the answers of both sides differ")
    taken: dict[str, list[list[float]]] = {side: [] for side in SIDES}
    for _ in rounds(chosen.rounds):
        for side in SIDES:
            SwitchedPlaces.used = side == SIDES[0]
            taken[side].append(timed(engine, prompt, pause, chosen.requests, rng))
    load = f"{tokens} tokens after {1e3 * pause:g} ms"
    for percent in PERCENTILES:
        apart, alone = ([float(np.percentile(times, percent)) for times in taken[side]] for side in SIDES)
        report.add(load, f"p{percent}, {SIDES[0]}", three(apart), "ms")
        report.add(load, f"p{percent}, {SIDES[1]}", three(alone), "ms")
        report.add(load, f"p{percent}, times as quick", three([b / a for a, b in zip(apart, alone)]), "x")


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--model", help="a model directory; the packaged model without it")
    parser.add_argument("--quantization", choices=["int8"])
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 81])
    parser.add_argument("--pauses", type=float, nargs="+", default=[10, 30, 100], metavar="MS")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=50, help="of each side in a round")
    add_outputs(parser)
    chosen = parser.parse_args()
    from prelude.cpu import threads

    threads.ThreadPlaces = SwitchedPlaces  # type: ignore[misc, assignment]
    report = Report(
        "Requests after pauses",
        facts=machine_facts([("requests", chosen.requests), ("rounds", chosen.rounds), ("threads", 2)]),
    )
    config = EngineConfig(quantization=chosen.quantization, threads=2)
    with Engine.from_pretrained(chosen.model, config=config) as engine:
        for tokens in chosen.tokens:
            for pause in chosen.pauses:
                measure(report, engine, tokens, pause / 1e3, chosen)
    report.finish(chosen)


if __name__ == "__main__":
    main()
