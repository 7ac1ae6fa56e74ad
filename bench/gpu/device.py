"""The table of an H200: correctness first, then each load beside its floor, variants side by side.

    python -m bench gpu [--only PART,PART] [--seconds 540] [--repeats 5]

Parts: correctness; the table's rows (oneshot, throughput, decode, questions, deterministic, ready); decode_sampled,
throughput_flights, oneshot_transformers, oneshot_varied, startup, chat.

Random bfloat16 weights of the exact shapes, made on the device. Nothing is timed unless every check of correctness in
the same run has passed. Parts that no time is left for are named as left out. JSON goes to ``bench/results/`` under
date and device, behind every part, so that a call that is cut off loses only the part it was in; parts of several
calls of a day gather in one file. A short table is printed last. This script needs a GPU, and says so.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from prelude.cuda import driver

from bench.command_line import command_line, options_parser
from bench.gpu.loads import Bench, Load, NotRight

PARTS: dict[str, Callable[[Bench], Iterable[Load]]] = {
    "correctness": Bench.correctness,
    "oneshot": Bench.oneshot,
    "throughput": Bench.throughput,
    "decode": Bench.decode,
    "questions": Bench.questions,
    "deterministic": Bench.deterministic,
    "ready": Bench.ready,
    "decode_sampled": Bench.decode_sampled,
    "throughput_flights": Bench.throughput_flights,
    "oneshot_transformers": Bench.oneshot_transformers,
    "oneshot_varied": Bench.oneshot_varied,
    "startup": Bench.startup,
    "chat": Bench.chat,
}


def arguments() -> argparse.Namespace:
    parser = options_parser(__doc__)
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


class Report:
    """The file of a day and a device. A part that runs again replaces its earlier rows; others stay."""

    def __init__(self, path: Path, known: dict[str, Any], command: str) -> None:
        self.path = path
        self.known = known
        self.command = command
        self.parts: dict[str, dict[str, Any]] = {}
        with contextlib.suppress(OSError, ValueError):
            before = json.loads(path.read_text(encoding="utf-8"))
            if all(before.get(name) == value for name, value in known.items()):
                self.parts = before.get("parts", {})

    def note(self, part: str, loads: list[Load], *, failed: str | None = None, left_out: bool = False) -> None:
        if left_out and part in self.parts:
            return  # the figures of an earlier call stand
        self.parts[part] = {
            "command": self.command,
            "at": datetime.datetime.now().isoformat(timespec="seconds"),
            "failed": failed,
            "left_out": left_out,
            "loads": {load.key: load.plain() for load in loads},
        }
        every = {key: load for told in self.parts.values() for key, load in told["loads"].items()}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_name(self.path.name + ".new")
        beside.write_text(
            json.dumps({**self.known, "loads": every, "parts": self.parts}, indent=1) + "\n", encoding="utf-8"
        )
        beside.replace(self.path)


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
        print("bench gpu needs a GPU: " + "; ".join(driver.missing()), file=sys.stderr)
        return 2
    began, bench = time.monotonic(), Bench(chosen.repeats)
    loads: list[Load] = []
    failed: dict[str, str] = {}
    left_out: list[str] = []
    known = facts()
    report = Report(chosen.json or Path("bench/results") / _file_name(known), known, command_line())
    order = ["correctness", *(name for name in PARTS if name in chosen.only and name != "correctness")]
    for name in order:
        if time.monotonic() - began > chosen.seconds:
            left_out.append(name)
            report.note(name, [], left_out=True)
            continue
        print(f"{name} ...", flush=True)
        try:
            found = list(PARTS[name](bench))
        except Exception as error:  # one part's failure must not cost the others their minutes
            failed[name] = f"{type(error).__name__}: {error}"
            traceback.print_exc()
            report.note(name, [], failed=failed[name])
            if name == "correctness" or isinstance(error, NotRight):
                break
            continue
        finally:
            bench.release()
        loads += found
        report.note(name, found)
        show(found, {}, [])
    show(loads, failed, left_out)
    print(f"  {time.monotonic() - began:.0f} s; numbers in {report.path}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
