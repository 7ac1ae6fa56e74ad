"""Which rows of docs/FEATURES.md the last test run showed, by which tests, and which rows no test showed.

    python -m tests.coverage_map            a table
    python -m tests.coverage_map --json     {"features": {id: [tests]}, "faults": {number: [tests]}}

A test counts only when it passed in the last run. The JSON has the rows that a test showed.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / ".pytest_cache" / "prelude_shown.json"
LIST = ROOT / "docs" / "FEATURES.md"


def listed(page: Path = LIST) -> dict[str, list[str]]:
    """The ids of the page's rows: features begin with a letter, faults are numbers."""
    ids = re.findall(r"^\| ([A-Z]?\d+) \|", page.read_text(encoding="utf-8"), re.M)
    return {
        "features": [name for name in ids if not name.isdigit()],
        "faults": [name for name in ids if name.isdigit()],
    }


def coverage(record: Path = RECORD) -> dict[str, dict[str, list[str]]]:
    """The tests that showed each row; a row that no test showed is absent."""
    shown: dict[str, dict[str, list[str]]] = {"features": {}, "faults": {}}
    if not record.exists():
        return shown
    for test, entry in json.loads(record.read_text(encoding="utf-8")).items():
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
    for kind, names in listed().items():
        print(f"{kind}: {len(shown[kind])} of {len(names)} shown")
        for name in names:
            tests = shown[kind].get(name, [])
            print(f"  {name:>5}  {len(tests):>3}  {tests[0] if tests else '-'}")


if __name__ == "__main__":
    main()
