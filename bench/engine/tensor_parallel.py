"""One model on two processes with a thread each, against one process with two threads: prompts and texts.

    python -m bench tensor_parallel [--model DIR] [--ranks 2] [--tokens 512] [--rounds 7] [--json FILE]

Without --model the model has the shape of Qwen3-0.6B and random weights of bfloat16. Answers come first: both sides
must say the same tokens, and logprobs that differ by less than 1e-5 of one. Rounds alternate. About four minutes with
the defaults, of which one is the making and loading of the model.

The profile is of rank 0: its time in sums over the ranks, which is waiting for the slower rank and moving bytes, and
the same sums when nothing is computed between them, which is the floor of gloo's time for them here.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from bench.command_line import options_parser
from bench.common import Report, add_outputs, machine_facts, rounds, three, use_threads
from bench.engine.shapes import DECODER, random_model
from prelude import Engine, EngineConfig, Generate, SamplingParams, serve_rank

WITHIN = 1e-5
REACH = ">= 0.8"
LIMITS: dict[str, Any] = {"kv_bytes": 256 << 20, "max_length": 4096, "prefix_cache": False}
_WAIT = 900.0


class Side:
    """The processes of one engine. ``ask(verb, ...)`` is answered by the one that has the engine."""

    def __init__(self, model: Path, ranks: int, threads: int, meeting: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipes: list[Connection] = []
        for rank in range(ranks):
            here, there = context.Pipe()
            given = (str(model), rank, ranks, threads, str(meeting), there)
            context.Process(target=serve_side, args=given, daemon=True).start()
            self.pipes.append(here)
        self.ask("ready")

    def ask(self, *asked: Any) -> Any:
        self.pipes[0].send(asked)
        if not self.pipes[0].poll(_WAIT):
            raise SystemExit(f"a process did not answer to {asked[0]!r}")
        return self.pipes[0].recv()

    def close(self) -> list[float]:
        """Ends it; the processor seconds of its processes, with loading."""
        self.pipes[0].send(("close",))
        return [pipe.recv() for pipe in self.pipes]


def serve_side(model: str, rank: int, ranks: int, threads: int, meeting: str, asked: Connection) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import torch.distributed as dist

    use_threads(threads)
    config = EngineConfig().changed(tensor_parallel=ranks, **LIMITS)
    if ranks > 1:
        where = f"file://{meeting}"
        dist.init_process_group(
            "gloo", init_method=where, rank=rank, world_size=ranks, timeout=timedelta(seconds=_WAIT)
        )
    if rank:
        serve_rank(model, config=config)
        asked.send(time.process_time())
        return
    spent = watch_sums() if ranks > 1 else None
    with Engine.from_pretrained(model, config=config) as engine:
        while (question := asked.recv())[0] != "close":
            asked.send(answer(engine, spent, *question))
    asked.send(time.process_time())


def watch_sums() -> list[tuple[float, int]]:
    """The seconds and bytes of each sum over the ranks from here on."""
    from prelude.parallel.group import RankGroup

    spent: list[tuple[float, int]] = []
    plain = RankGroup.sum

    def timed(self: RankGroup, tensor: Any) -> None:
        began = time.perf_counter()
        plain(self, tensor)
        spent.append((time.perf_counter() - began, tensor.nbytes))

    RankGroup.sum = timed  # type: ignore[method-assign]
    return spent


def answer(engine: Engine, spent: list[tuple[float, int]] | None, command: str, *given: Any) -> Any:
    if command == "ready":
        return engine.model_info.weight_bytes
    prompt, tokens = given
    params = SamplingParams(max_tokens=tokens, temperature=0.0, logprobs=1, ignore_eos=True)
    if spent is not None:
        spent.clear()
    began, used = time.perf_counter(), time.process_time()
    made = engine.run(Generate(prompt, params, cache="never"))
    taken = time.perf_counter() - began, time.process_time() - used
    logprobs = [one.logprob for one in made.logprobs or ()]
    return made.token_ids, logprobs, taken, list(spent or ())


def bare_sums(rank: int, ranks: int, meeting: str, sizes: list[int], asked: Connection) -> None:
    """Seconds of sums of ``sizes`` bytes with nothing between them, of five runs the shortest."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import torch
    import torch.distributed as dist

    where = f"file://{meeting}"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=ranks, timeout=timedelta(seconds=_WAIT))
    tensors = {size: torch.zeros(size // 4) for size in sizes}
    best = float("inf")
    for _ in range(5):
        dist.barrier()
        began = time.perf_counter()
        for size in sizes:
            dist.all_reduce(tensors[size])
        best = min(best, time.perf_counter() - began)
    asked.send(best)


def floor(ranks: int, sizes: list[int], meeting: Path) -> float:
    context = multiprocessing.get_context("spawn")
    pipes = []
    for rank in range(ranks):
        here, there = context.Pipe()
        context.Process(target=bare_sums, args=(rank, ranks, str(meeting), sizes, there), daemon=True).start()
        pipes.append(here)
    return max(float(pipe.recv()) for pipe in pipes)


def prompt_of(tokens: int, seed: int) -> list[int]:
    found: list[int] = np.random.default_rng(seed).integers(10, 4000, tokens).tolist()
    return found


def same_answers(report: Report, sides: dict[str, Side], tokens: int) -> None:
    """``SystemExit`` where they differ: there is nothing to time then."""
    most = 0.0
    for seed in range(3):
        one, other = (side.ask("text", prompt_of(tokens // (seed + 1), seed), 4) for side in sides.values())
        if one[0] != other[0]:
            raise SystemExit(f"prompt {seed}: the sides say different tokens, {one[0]} and {other[0]}")
        most = max(most, max(abs(a - b) for a, b in zip(one[1], other[1])))
    if most > WITHIN:
        raise SystemExit(f"logprobs differ by {most:.1e}, more than {WITHIN:.0e}")
    report.add("3 texts", "largest difference of a logprob, in 1e-6", (most * 1e6,) * 3, "")


def timed(report: Report, sides: dict[str, Side], options: argparse.Namespace) -> None:
    loads = {f"prompt of {options.tokens}": (options.tokens, 1), "text of 32 after 16": (16, 32)}
    for load, (tokens, said) in loads.items():
        taken: dict[str, list[float]] = {name: [] for name in sides}
        used: dict[str, list[float]] = {name: [] for name in sides}
        sums: list[list[tuple[float, int]]] = []
        for at in rounds(options.rounds + 1):
            for name, side in sides.items():
                _, _, (seconds, processor), spent = side.ask("text", prompt_of(tokens, at), said)
                if at:  # the first round touches the memory
                    taken[name].append(seconds)
                    used[name].append(processor)
                    if spent:
                        sums.append(spent)
        for name, seconds in taken.items():
            report.add(load, name, three(seconds, 1e3), "ms")
        for name, seconds in used.items():
            measure = "processor time of rank 0" if name == "ranks" else "processor time of one process"
            report.add(load, measure, three(seconds, 1e3), "ms")
        pairs = [one / other for one, other in zip(*taken.values())]
        reach = REACH if said == 1 else ""
        report.add(load, "one process over the ranks", three(pairs), "x", reach)
        report.add(load, "rank 0 in sums", three([sum(s for s, _ in one) for one in sums], 1e3), "ms")
        report.add(load, "sums", (float(len(sums[0])),) * 3, "")
        report.add(load, "bytes summed", (sum(size for _, size in sums[0]) / 1e6,) * 3, "MB")
        sizes = [size for _, size in sums[0]]
        with tempfile.TemporaryDirectory() as folder:
            bare = floor(options.ranks, sizes, Path(folder) / "floor")
        report.add(load, "the same sums with nothing between", (bare * 1e3,) * 3, "ms")


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    add_outputs(parser, plot=False)
    options = parser.parse_args()
    facts = {**machine_facts(), "ranks": options.ranks, "tokens": options.tokens, "rounds": options.rounds}
    report = Report("One model on several processes against one process with as many threads", facts=facts)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = options.model or random_model(folder, DECODER)
        sides = {
            "one process": Side(model, 1, options.ranks, folder / "one"),
            "ranks": Side(model, options.ranks, 1, folder / "ranks"),
        }
        report.add("weights", "of a rank over the whole", (share_of(sides),) * 3, "x")
        same_answers(report, sides, options.tokens)
        timed(report, sides, options)
        for name, side in sides.items():
            report.add("all of it", f"processor time, {name}", (sum(side.close()),) * 3, "s")
    report.finish(options)


def share_of(sides: dict[str, Side]) -> float:
    whole, part = (float(side.ask("ready")) for side in sides.values())
    return part / whole


if __name__ == "__main__":
    main()
