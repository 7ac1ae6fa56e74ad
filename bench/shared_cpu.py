"""Decisions on processors that other processes use as well: python -m bench shared_cpu

Each round runs the same decisions in fresh processes, in turns: with the engine's default threads, and with
``EngineConfig(threads=1)``; beside ``--burners`` processes that compute without pause, and without them. The burners
are this script's own and end with it. Prints seconds per run and the ratio of each pair.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

from bench.command_line import options_parser
from bench.common import Report, add_outputs, three
from prelude.terminal.progress import watched

BURN = """
import os, time
parent, end = os.getppid(), time.monotonic() + 900
while time.monotonic() < end and os.getppid() == parent:
    sum(range(10000))
"""


def decide(count: int, threads: int | None, together: bool) -> dict[str, float]:
    """``count`` decisions on the packaged model, after as many as a warm-up takes."""
    from prelude import Choice, Decide, Engine, EngineConfig

    question = Choice("Which language is it?", ["English", "French", "German"])
    texts = [f"Letter {i}: the harbour was quiet that morning and two boats lay at the quay." for i in range(count)]
    with Engine.from_pretrained(config=EngineConfig(threads=threads)) as engine:
        tasks = [Decide(text, [question]) for text in texts]
        engine.run(Decide("A warm-up.", [question]))
        began, used = time.perf_counter(), time.process_time()
        if together:
            engine.run_many(tasks)
        else:
            for task in tasks:
                engine.run(task)
        return {"seconds": time.perf_counter() - began, "cpu": time.process_time() - used}


def child(count: int, threads: int | None, together: bool) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.shared_cpu", "--child", "--decisions", str(count)]
    command += [] if threads is None else ["--threads", str(threads)]
    command += ["--together"] if together else []
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def compare(report: Report, burners: int, rounds: int, count: int, together: bool) -> None:
    running = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(burners)]
    default, single = [], []
    try:
        for turn in watched(range(rounds), "measuring", "rounds", rounds):
            for threads in (None, 1) if turn % 2 == 0 else (1, None):
                (default if threads is None else single).append(child(count, threads, together))
    finally:
        for process in running:
            process.kill()
            process.wait()
    load = f"{count} {'together' if together else 'one by one'}, {burners} burners"
    report.add(load, "the engine's choice of threads", three([one["seconds"] for one in default]), "s")
    report.add(load, "one thread", three([one["seconds"] for one in single]), "s")
    ratios = [a["seconds"] / b["seconds"] for a, b in zip(default, single)]
    report.add(load, "the engine's choice over one thread", three(ratios), "x")


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--burners", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--decisions", type=int, default=300)
    add_outputs(parser, plot=False)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--together", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        print(json.dumps(decide(chosen.decisions, chosen.threads, chosen.together)))
        return
    report = Report("Decisions beside processes that compute without pause")
    for burners in dict.fromkeys((chosen.burners, 0)):
        for together in (False, True):
            compare(report, burners, chosen.rounds, chosen.decisions, together)
    report.finish(chosen)


if __name__ == "__main__":
    main()
