"""Which features and faults the last test run showed, by which tests.

    python -m tests.coverage_map            a table
    python -m tests.coverage_map --json     {"features": {id: [tests]}, "faults": {number: [tests]}}

A test counts only when it passed in the last run.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

RECORD = Path(__file__).resolve().parent.parent / ".pytest_cache" / "prelude_shown.json"


def coverage(record: Path = RECORD) -> dict[str, dict[str, list[str]]]:
    shown: dict[str, dict[str, list[str]]] = {"features": {}, "faults": {}}
    if not record.exists():
        return shown
    for test, entry in json.loads(record.read_text()).items():
        if not entry["passed"] or entry["failed"]:
            continue
        for kind, name in entry["marks"]:
            shown[kind + "s"].setdefault(name, []).append(test)
    for kind in shown:
        shown[kind] = {name: sorted(shown[kind][name]) for name in sorted(shown[kind], key=_natural)}
    return shown


def _natural(name: str) -> tuple[str, int]:
    letters = re.match(r"[A-Z]*", name)
    prefix = letters.group() if letters else ""
    number = name[len(prefix) :]
    return prefix, int(number) if number.isdigit() else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    shown = coverage()
    if arguments.json:
        print(json.dumps(shown))
        return
    for kind, names in shown.items():
        print(f"{kind}: {len(names)} shown")
        for name, tests in names.items():
            print(f"  {name:>5}  {len(tests):>3}  {tests[0]}")


if __name__ == "__main__":
    main()
