"""The tables of README and docs, made of the files under ``bench/results``.

python -m bench tables              writes each table anew
python -m bench tables --check      fails if a table differs from its file, whatever it says of stale figures
python -m bench tables --release    fails on a stale figure too

Each command fails on a result file that no table reads.

A table stands behind a comment that names its file, and may choose loads and measures by a regular expression:

    <!-- figures engine-cpu.json -->
    <!-- figures fidelity.json; loads int8$; measures flipped|right -->

or lists rows of several files, each as its text, the other side, the file, the load and the measures in it, as
regular expressions of the whole name:

    <!-- figures
    64 decisions | transformers, one by one | engine-cpu.json | 64 single decisions | transformers / prelude; prelude
    -->

It ends at ``<!-- end of figures -->``. A figure stands beside its aim, with "not met" if it misses it, and its note.
Figures are stale if they are of a tree with changes, of a commit that is not in the history, or of code that has
changed since in many commits.
"""

from __future__ import annotations

import json
import operator
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from bench.command_line import options_parser
from bench.record import ROOT, stale

RESULTS = ROOT / "bench" / "results"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
BLOCK = re.compile(r"(<!-- figures\b(.*?)-->\n)(.*?)(<!-- end of figures -->)", re.S)
STALE = re.compile(r" ?\*\*Stale\*\*: [a-z ]*\.")
MOST_COLUMNS = 5  # more measures than these stand below each other
AIM = re.compile(r"(>=|<=|<) ([\d.]+)")
ORDERS = {">=": operator.ge, "<=": operator.le, "<": operator.lt}
VERSION = re.compile(r"\d+\.\d[\w.+-]*")
READ_BY_CODE = {"instructions.json"}  # ``bench instructions`` compares with it

Row = dict[str, Any]


@cache
def result(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return found


def number(value: float, digits: int = 3) -> str:
    """So many digits, all digits of a larger number."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.{digits}g}"


def figure(row: Row) -> str:
    """The median with its unit, and the lowest and the highest value if they differ from it."""
    share = row["unit"] == "of 1"
    unit = "" if share else row["unit"] if row["unit"] in ("x", "%") else f" {row['unit']}"
    value, low, high = (number(row[key], 4 if share else 3) for key in ("value", "low", "high"))
    amount = f"{value}{unit}".rstrip()
    return amount if low == high else f"{amount} [{low} .. {high}]"


def with_aim(row: Row) -> str:
    """The figure, its aim with "not met" if it misses it, and its note."""
    told, note = figure(row), f" ({row['note']})" if row.get("note") else ""
    if row["reach"]:
        aim = AIM.match(row["reach"])
        if aim is None:
            raise SystemExit(f"bench tables: the aim {row['reach']!r} is not '>= NUMBER' or '<= NUMBER'")
        told += f", aim {aim[0]}" + ("" if ORDERS[aim[1]](row["value"], float(aim[2])) else ", not met")
    return told + note


def lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    head, *cells = (f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in (header, *rows))
    return [head, "|" + "---|" * len(header), *cells]


def several(told: str | list[str]) -> str:
    return told if isinstance(told, str) else " and ".join(told)


def stale_word(name: str) -> str:
    why = stale(result(name).get("facts", {}))
    return f"**Stale**: {why}." if why else ""


def machine(facts: dict[str, Any]) -> str:
    """The processor with its widest instructions, its cores, and those and the threads of the run."""
    cores, used = facts.get("cores"), len(facts.get("processors", []))
    told = f"{used} of {cores} cores" if 0 < used != cores else f"{cores} cores"
    parts = [facts.get("cpu", "").replace("(R)", ""), *facts.get("vectors", [])[-1:], told]
    return ", ".join([*parts, *([f"{facts['threads']} threads"] if "threads" in facts else [])])


def kernels(found: dict[str, str]) -> str:
    """Of our products: one word if it is the same for all types of weights."""
    words = dict.fromkeys(found.values())
    return "".join(words) if len(words) == 1 else ", ".join(f"{kind} {word}" for kind, word in found.items())


def source(name: str) -> str:
    """The command, commits, day, machine and versions of a file."""
    found = result(name)
    facts = found.get("facts", {})
    load, builds = (facts.get(key, {}) for key in ("load", "builds"))
    versions = {key: told for key, told in facts.items() if isinstance(told, str) and VERSION.fullmatch(told)}
    commits = facts.get("commits") or facts.get("commit")
    parts = [
        f"`{found['command']}`",
        f"`{name}`",
        f"commit {several(commits)}" if commits else "",
        *(f"{key} {facts[key]}" for key in ("date", "dtype") if facts.get(key)),
        machine(facts) if facts.get("cpu") else "",
        f"kernels {kernels(facts['kernels'])}" if facts.get("kernels") else "",
        f"load {load[0]} to {load[1]}" if load else "",
        ", ".join(f"{package} {version}" for package, version in (versions | facts.get("versions", {})).items()),
        *(f"{package} built for {sets}" for package, sets in builds.items()),
        *(f"text {text}: {what}" for text, what in facts.get("texts", {}).items()),
        *(f"{name} set" for name in facts.get("environment", [])),
        "correctness not shown" if facts.get("correctness") == [] else "",
    ]
    return " ".join(filter(None, (f"{'; '.join(filter(None, parts))}.", stale_word(name))))


def of_one_file(name: str, choice: dict[str, str]) -> list[str]:
    """All rows of the file, or those whose load and measure hold the chosen expressions."""
    rows = [
        row
        for row in result(name)["rows"]
        if all(re.search(choice.get(f"{key}s", ""), row[key]) for key in ("load", "measure"))
    ]
    if not rows:
        raise SystemExit(f"bench tables: {name} has no row of {choice}")
    loads, measures = (list(dict.fromkeys(row[key] for row in rows)) for key in ("load", "measure"))
    at = {(row["load"], row["measure"]): with_aim(row) for row in rows}
    if min(len(loads), len(measures)) > MOST_COLUMNS or 2 * len(rows) < len(loads) * len(measures):
        table = lines(["load", "measure", "figure"], [[*of, told] for of, told in at.items()])
    elif len(loads) > len(measures):
        cells = [[load, *(at.get((load, measure), "") for measure in measures)] for load in loads]
        table = lines(["load", *measures], cells)
    else:
        cells = [[measure, *(at.get((load, measure), "") for load in loads)] for measure in measures]
        table = lines(["", *loads], cells)
    return [*table, "", source(name)]


def of_several(listed: str) -> list[str]:
    rows = []
    for line in filter(None, map(str.strip, listed.splitlines())):
        text, peer, name, load, measures = (cell.strip() for cell in line.split("|"))
        of_load = [row for row in result(name)["rows"] if re.fullmatch(load, row["load"])]
        found = []
        for measure in map(str.strip, measures.split(";")):
            chosen = [row for row in of_load if re.fullmatch(measure, row["measure"])]
            if not chosen:
                raise SystemExit(f"bench tables: {name} has no row {load!r}, {measure!r}")
            found += chosen
        told = ", ".join(map(figure, found))
        facts = result(name).get("facts", {})
        rows.append([text, peer, told, machine(facts), f"`{name}` {stale_word(name)}".strip()])
    return lines(["load", "compared with", "figure", "processor", "file"], rows)


def table(told: str) -> str:
    """The text of a table by its comment."""
    if told.startswith("\n"):
        made = of_several(told)
    else:
        name, *choices = (part.strip() for part in told.split(";"))
        made = of_one_file(name, dict(choice.split(" ", 1) for choice in choices))
    return "\n".join(["", *made, "", ""])


def files_of(told: str) -> Iterator[str]:
    return (match[0] for match in re.finditer(r"[\w.-]+\.json", told))


def main() -> int:
    parser = options_parser(__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--release", action="store_true", help="write nothing, and refuse stale figures")
    chosen = parser.parse_args()
    faults, read = [], set(READ_BY_CODE)
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for _, told, _, _ in BLOCK.findall(text):
            read |= set(files_of(told))
        made = BLOCK.sub(lambda block: block[1] + table(block[2]) + block[4], text)
        if chosen.check or chosen.release:
            if STALE.sub("", made) != STALE.sub("", text):
                faults.append(f"{page.name}: a table differs from its file: python -m bench tables")
            faults += [f"{page.name}:{word}" for word in STALE.findall(made) if chosen.release]
        elif made != text:
            page.write_text(made, encoding="utf-8")
    unread = sorted({path.name for path in RESULTS.glob("*.json")} - read)
    faults += [f"bench/results/{name}: no table reads it" for name in unread]
    print("\n".join(faults) or "every table is that of its file", file=sys.stderr if faults else sys.stdout)
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
