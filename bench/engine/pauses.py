"""Embeddings one by one, each after a pause, beside ONNX Runtime: python -m bench pauses --model DIR

    python -m bench pauses --model DIR [--quantization int8] [--tokens 16 81] [--pauses 10 30 100] [--rounds 5]
                           [--json FILE]

After a pause Linux may wake the threads of a step on one processor (``prelude/cpu/threads.py``), and ONNX Runtime's
threads spin for a while after a run. A round is ``--requests`` embeddings of one side and as many of the other, each
after a pause of about so many milliseconds, on two threads. The vectors are compared first. ONNX Runtime's graph is
the fastest of ``bench/engine/peers.py``. Times are those of the caller, in milliseconds: the median of the rounds'
percentiles and their range.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.command_line import options_parser
from bench.common import Report, add_outputs, machine_facts, rounds, three
from bench.engine.cpu_models import fastest
from bench.engine.peers import onnx_graphs, onnx_int8, onnx_way, our_encoder
from bench.engine.shapes import random_ids
from prelude import Engine, EngineConfig

PERCENTILES = (50, 90, 99)
LEAST_COSINE = 0.8
"""Of ours to ONNX Runtime's: its dynamic int8 rounds a whole activation by one scale."""


def timed(request: Callable[[], Any], pause: float, count: int, rng: random.Random) -> list[float]:
    """Milliseconds of each of ``count`` requests."""
    taken = []
    for _ in range(count):
        time.sleep(pause * rng.uniform(0.8, 1.2))
        began = time.perf_counter()
        request()
        taken.append(1e3 * (time.perf_counter() - began))
    return taken


def measure(
    report: Report, load: str, sides: dict[str, Callable[[], Any]], pause: float, chosen: argparse.Namespace
) -> None:
    rng = random.Random(1)
    ours, theirs = (request()[0] for request in sides.values())
    if not float(ours @ theirs) >= LEAST_COSINE:
        raise SystemExit(f"{load}: the vectors' cosine is {ours @ theirs}; no time is reported")
    report.add(load, "cosine of both sides", (float(ours @ theirs),) * 3, "of 1")
    taken: dict[str, list[list[float]]] = {side: [] for side in sides}
    for _ in rounds(chosen.rounds):
        for side, request in sides.items():
            taken[side].append(timed(request, pause, chosen.requests, rng))
    for percent in PERCENTILES:
        found = {side: [float(np.percentile(times, percent)) for times in taken[side]] for side in sides}
        for side, values in found.items():
            report.add(load, f"p{percent}, {side}", three(values), "ms")
        ratios = three([b / a for a, b in zip(*found.values())])
        report.add(load, f"p{percent}, ONNX Runtime / prelude", ratios, "x", ">= 1.5" if percent == 90 else "")


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="an encoder's directory")
    parser.add_argument("--quantization", choices=["int8"])
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 81])
    parser.add_argument("--pauses", type=float, nargs="+", default=[10, 30, 100], metavar="MS")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=50, help="of each side in a round")
    add_outputs(parser)
    chosen = parser.parse_args()
    facts = machine_facts([("requests", chosen.requests), ("rounds", chosen.rounds), ("threads", 2)])
    report = Report("Requests after pauses", facts=facts)
    config = EngineConfig(quantization=chosen.quantization, threads=2, default_cache="never")
    with tempfile.TemporaryDirectory() as folder, Engine.from_pretrained(chosen.model, config=config) as engine:
        graphs = onnx_graphs(Path(shutil.copytree(chosen.model, Path(folder) / "model")))
        files = onnx_int8(graphs) if chosen.quantization else graphs
        ways = {name: onnx_way(file, 2) for name, file in files.items()}
        for tokens in chosen.tokens:
            texts = random_ids([tokens])
            best = fastest({name: partial(way, texts) for name, way in ways.items()})
            report.facts[f"ONNX Runtime, {tokens} tokens"] = best
            sides = {"prelude": our_encoder(engine), "ONNX Runtime": ways[best]}
            calls = {side: partial(way, texts) for side, way in sides.items()}
            for pause in chosen.pauses:
                measure(report, f"{tokens} tokens after {pause:g} ms", calls, pause / 1e3, chosen)
    report.finish(chosen)


if __name__ == "__main__":
    main()
