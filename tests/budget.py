"""Lines and files of each folder: python -m tests.budget [--write]

``budget.json`` beside this file names them for each folder, its subfolders included where they have no entry of their
own. A folder above its budget fails. ``--write`` lowers the budgets to today's sizes and never raises one: run it in
the commit that shrinks a folder. Python, Cython, C++ and CUDA count; generated tables and stubs do not.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUDGET = Path(__file__).with_suffix(".json")
KINDS = {".py", ".pyx", ".pxi", ".pxd", ".hpp", ".cpp", ".h", ".cu", ".cuh"}
GENERATED = {"tokenizer/core/unicode/unicode_tables.cpp"}


def counted(folders: set[str]) -> tuple[Counter[str], Counter[str]]:
    """Lines and files of each folder. A file belongs to the nearest folder that has a budget."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for name in listed.splitlines():
        path = Path(name)
        if path.suffix not in KINDS or name in GENERATED or not (ROOT / path).exists():
            continue
        folder = next((str(one) for one in path.parents if str(one) in folders), ".")
        lines[folder] += (ROOT / path).read_bytes().count(b"\n")
        files[folder] += 1
    return lines, files


def main(arguments: list[str]) -> int:
    budget: dict[str, list[int]] = json.loads(BUDGET.read_text(encoding="utf-8"))
    lines, files = counted(set(budget))
    above = [
        f"{folder}: {lines[folder]} lines in {files[folder]} files, {most_lines} in {most_files} are its budget"
        for folder, (most_lines, most_files) in budget.items()
        if lines[folder] > most_lines or files[folder] > most_files
    ]
    if "--write" in arguments:
        lower = {
            folder: [min(lines[folder], most_lines), min(files[folder], most_files)]
            for folder, (most_lines, most_files) in budget.items()
        }
        rows = (f' "{folder}": {json.dumps(sizes)}' for folder, sizes in lower.items())
        BUDGET.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
    print("\n".join(above) or f"{lines.total()} lines in {files.total()} files, each folder within its budget")
    return bool(above)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
