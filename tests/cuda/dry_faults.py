"""The dry run of ``bench gpu_first`` with every kind of fault in every stage: is every other result kept?

    python -m tests.cuda.dry_faults --out FOLDER

One run without a fault says which results each stage has. Two runs follow, in each of which every other stage
breaks, by one of the ways in turn. The lines of a whole stage in ``results.jsonl`` have to be those of the first run;
a broken one has to have its first result and its end. A hanging stage is given little more time than its first result
took in the first run. A run whose folder is complete is not repeated.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from bench.gpu import first
from tests.cuda.dry_run import KINDS

ENDS = {"raise": "failed", "wrong": "failed", "exit": "failed", "segv": "lost", "torn": "failed"}
ENDS |= {"hang": "out of time", "child": "out of time"}


RUNS = 2


MOST = 120.0
"""Seconds of a hanging stage."""


def faults_of(turn: int) -> dict[str, str]:
    """The broken stages of a run."""
    return {stage: KINDS[i % len(KINDS)] for i, stage in enumerate(first.LIMITS) if i % RUNS == turn}


def one_run(out: Path, faults: dict[str, str]) -> dict[str, list[str]]:
    """The keys of each stage's results, in order; the last one is its end."""
    complete = out / "complete"
    if not complete.exists():
        shutil.rmtree(out, ignore_errors=True)
        os.environ["PRELUDE_DRY_FAULT"] = ",".join(f"{stage}:{kind}" for stage, kind in faults.items())
        runner = [sys.executable, "-m", "tests.cuda.dry_run"]
        first.FirstRun(out, 1e6, runner, ["--smoke", str(out / "no.py"), "--repeats", "1"]).run(list(first.LIMITS))
        complete.touch()
    found: dict[str, list[str]] = {stage: [] for stage in first.LIMITS}
    for line in first.read_results(out / "results.jsonl"):
        found[line["stage"]].append(f"end: {line['how']}" if line["key"] == "end" else line["key"])
    return found


def first_results(path: Path) -> dict[str, float]:
    """Seconds from the end of the stage before to each stage's first result."""
    found, before = dict[str, float](), 0.0
    for line in first.read_results(path):
        if line["key"] == "end":
            before = line["at"]
        else:
            found.setdefault(line["stage"], line["at"] - before if before else 60.0)
    return found


def limits_of(faults: dict[str, str], seconds: dict[str, float]) -> dict[str, float]:
    """Seconds of each stage. ``seconds``: see ``first_results``; a stage without a result is not in it."""
    hanging = {stage for stage, kind in faults.items() if kind in ("hang", "child")}
    return {
        stage: min(MOST, 10.0 + 2 * seconds.get(stage, 60.0)) if stage in hanging else 600.0 for stage in first.LIMITS
    }


def wrongs(found: dict[str, list[str]], known: dict[str, list[str]], faults: dict[str, str]) -> Iterable[str]:
    for stage, keys in found.items():
        kind = faults.get(stage)
        if kind is None:
            if keys != known[stage]:
                yield f"{stage}, without a fault, left {keys} in place of {known[stage]}"
        elif not keys or keys[:1] != known[stage][:1] or keys[-1] != f"end: {ENDS[kind]}":
            yield f"{stage}, with {kind}, left {keys}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    out: Path = parser.parse_args().out.absolute()
    for stage in first.LIMITS:
        first.LIMITS[stage] = 600.0
    known = one_run(out / "whole", {})
    ended_badly = [stage for stage, keys in known.items() if not keys or keys[-1] != "end: done"]
    print(f"without a fault: {sum(len(keys) for keys in known.values())} lines; not done: {ended_badly}", flush=True)
    seconds = first_results(out / "whole" / "results.jsonl")
    bad = 0
    for turn in range(RUNS):
        faults = faults_of(turn)
        first.LIMITS.update(limits_of(faults, seconds))
        said = list(wrongs(one_run(out / str(turn), faults), known, faults))
        print(f"run {turn}: {len(faults)} stages broken, {len(said)} lost or other", *said, sep="\n", flush=True)
        bad += len(said)
    return 1 if bad or ended_badly else 0


if __name__ == "__main__":
    sys.exit(main())
