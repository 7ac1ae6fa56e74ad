"""The table of an H200: correctness first, then each load beside its floor, variants side by side.

    python -m bench.gpu [--only PART,PART] [--seconds 540] [--repeats 5]

Parts: correctness, oneshot, questions, throughput, decode, startup, chat.

Random bfloat16 weights of the exact shapes, made on the device. Nothing is timed unless every check of correctness in
the same run has passed. Parts that no time is left for are named as left out. JSON goes to ``bench/results/`` under
date and device; a short table is printed last. This script needs a GPU, and says so.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prelude.cuda import driver

from bench.gpu_loads import Bench, Load, NotRight

PARTS: dict[str, Callable[[Bench], list[Load]]] = {
    "correctness": Bench.correctness,
    "oneshot": Bench.oneshot,
    "questions": Bench.questions,
    "throughput": Bench.throughput,
    "decode": Bench.decode,
    "startup": Bench.startup,
    "chat": Bench.chat,
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the CUDA executor.")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, in any order; correctness always runs first")
    parser.add_argument("--seconds", type=float, default=540, help="stop beginning parts after so many seconds")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="where the numbers go; by default bench/results/")
    chosen = parser.parse_args()
    chosen.only = [name for name in chosen.only.split(",") if name]
    unknown = [name for name in chosen.only if name not in PARTS]
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    return chosen


def facts() -> dict[str, Any]:
    import torch

    return {
        "date": datetime.date.today().isoformat(),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
    }


def _file_name(known: dict[str, Any]) -> str:
    return f"gpu-{known['date']}-{known['device'].replace(' ', '-').lower()}.json"


def show(loads: list[Load], failed: dict[str, str], left_out: list[str]) -> None:
    print()
    for load in loads:
        low, high = load.spread
        line = f"  {load.key:<44} {load.value:10.3f} [{low:.3f} .. {high:.3f}] {load.unit:<6}"
        line += f" floor {load.floor:.3f}" if load.floor is not None else ""
        print(line + (f"  reach {load.reach:g}" if load.reach is not None else ""))
    for name, error in failed.items():
        print(f"  FAILED {name}: {error}")
    if left_out:
        print(f"  left out, no time: {', '.join(left_out)}")


def main() -> int:
    chosen = arguments()
    if driver.missing():
        print("bench.gpu needs a GPU: " + "; ".join(driver.missing()), file=sys.stderr)
        return 2
    began, bench = time.monotonic(), Bench(chosen.repeats)
    loads: list[Load] = []
    failed: dict[str, str] = {}
    left_out: list[str] = []
    order = ["correctness", *(name for name in PARTS if name in chosen.only and name != "correctness")]
    for name in order:
        if time.monotonic() - began > chosen.seconds:
            left_out.append(name)
            continue
        print(f"{name} ...", flush=True)
        try:
            found = PARTS[name](bench)
        except Exception as error:  # one part's failure must not cost the others their minutes
            failed[name] = f"{type(error).__name__}: {error}"
            traceback.print_exc()
            if name == "correctness" or isinstance(error, NotRight):
                break
            continue
        finally:
            bench.release()
        loads += found
        show(found, {}, [])
    known = facts()
    path = chosen.json or Path("bench/results") / _file_name(known)
    path.parent.mkdir(parents=True, exist_ok=True)
    report = {**known, "command": " ".join(sys.argv), "loads": {load.key: load.plain() for load in loads}}
    path.write_text(json.dumps({**report, "failed": failed, "left_out": left_out}, indent=1) + "\n")
    show(loads, failed, left_out)
    print(f"  {time.monotonic() - began:.0f} s; numbers in {path}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
