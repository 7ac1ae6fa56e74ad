"""The whole dry run of ``bench gpu_first`` with every kind of fault in every stage: is every other result kept?

    python -m tests.cuda.dry_faults --out FOLDER

One run without a fault says which results each stage has. Fourteen runs follow: in each, every other stage breaks,
the kinds turn by one every two runs, and so each stage breaks once in each way. The lines of a stage without a fault
in ``results.jsonl`` have to be those of the first run; a broken one has to have its first result and its end.
A hanging stage is given little more time than it took in the first run. It takes about as long as ten dry runs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from bench.gpu import first
from tests.cuda.dry_run import KINDS

ENDS = {"raise": "failed", "wrong": "failed", "exit": "failed", "segv": "lost", "torn": "failed"}
ENDS |= {"hang": "out of time", "child": "out of time"}


def one_run(out: Path, faults: dict[str, str]) -> dict[str, list[str]]:
    """The keys of each stage's results, in order; the last one is its end."""
    os.environ["PRELUDE_DRY_FAULT"] = ",".join(f"{stage}:{kind}" for stage, kind in faults.items())
    runner = [sys.executable, "-m", "tests.cuda.dry_run"]
    first.FirstRun(out, 1e6, runner, ["--smoke", str(out / "no.py"), "--repeats", "1"]).run(list(first.LIMITS))
    found: dict[str, list[str]] = {stage: [] for stage in first.LIMITS}
    for line in first.read_results(out / "results.jsonl"):
        found[line["stage"]].append(f"end: {line['how']}" if line["key"] == "end" else line["key"])
    return found


def wrongs(found: dict[str, list[str]], known: dict[str, list[str]], faults: dict[str, str]) -> Iterable[str]:
    for stage, keys in found.items():
        kind = faults.get(stage)
        if kind is None:
            if keys != known[stage]:
                yield f"{stage}, without a fault, left {keys} in place of {known[stage]}"
        elif not keys or keys[0] != known[stage][0] or keys[-1] != f"end: {ENDS[kind]}":
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
    seconds = {
        line["stage"]: line["seconds"]
        for line in first.read_results(out / "whole" / "results.jsonl")
        if line["key"] == "end"
    }
    bad = 0
    for turn in range(2 * len(KINDS)):
        faults = {
            stage: KINDS[(i + turn // 2) % len(KINDS)] for i, stage in enumerate(first.LIMITS) if i % 2 == turn % 2
        }
        for stage in first.LIMITS:
            hangs = faults.get(stage) in ("hang", "child")
            first.LIMITS[stage] = 10.0 + 2 * seconds[stage] if hangs else 600.0
        said = list(wrongs(one_run(out / str(turn), faults), known, faults))
        print(
            f"run {turn}: {len(faults)} stages broken, {len(said)} results lost or other", *said, sep="\n", flush=True
        )
        bad += len(said)
    return 1 if bad or ended_badly else 0


if __name__ == "__main__":
    sys.exit(main())
