"""The ledger of exactness: how much text of each family the native core and HF tokenizers have tokenized alike.

    python -m tests.ledger [--minutes 60] [--families qwen3,gpt2] [--corpus DIR ...] [--file ledger.json]
                           [--json bench/results/ledger.json]

A family is compared for a minute a round, as ``tests.fuzz_tokenizer`` compares: random, mutated and (``--corpus``)
natural text, each round with the next seed; and once all strings of up to three characters, one for each of its
ranges of characters. The file is written after each round, and the next run goes on where it ends.
``--json`` writes what stands in it at the end for the tables of the pages.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers

from bench import record
from bench.common import Report
from tests.fuzz_tokenizer import RANGES, Pair, Strings, corpus_texts
from tests.tokenizer.shared import families, tokenizer_json

LEDGER = Path("ledger.json")
KINDS = sorted({chr((low + high) // 2) for low, high in RANGES})
SHORT = sum(len(KINDS) ** n for n in (1, 2, 3))
PART, SHOWN = 50, 20


def short_text(number: int) -> str:
    """One of the ``SHORT`` strings of one to three kinds of characters."""
    length = 1
    while number >= len(KINDS) ** length:
        number -= len(KINDS) ** length
        length += 1
    return "".join(KINDS[number // len(KINDS) ** i % len(KINDS)] for i in range(length))


def empty_row() -> dict[str, Any]:
    return {
        "rounds": 0,
        "short": 0,
        "strings": 0,
        "characters": 0,
        "differences": 0,
        "shown": [],
        "hf": [],
        "commits": [],
    }


def compare(pair: Pair, row: dict[str, Any], seconds: float, corpus: Sequence[str]) -> None:
    """A round: the seed is its number."""
    rng = random.Random(f"{pair.name}, {row['rounds']}")
    maker, end = iter(Strings(rng, pair.tokens, pair.added, list(corpus))), time.monotonic() + seconds
    row["rounds"] += 1
    row["hf"] = sorted({*row["hf"], tokenizers.__version__})
    row["commits"] = sorted({*row["commits"], record.commit()})
    while True:
        until = min(row["short"] + PART, SHORT)
        for text in [*map(short_text, range(row["short"], until)), *(next(maker) for _ in range(PART))]:
            row["strings"] += 1
            row["characters"] += len(text)
            if wrong := pair.differences(text, rng):
                row["differences"] += 1
                row["shown"] = [*row["shown"], [text[:400], wrong]][:SHOWN]
        row["short"] = until
        if time.monotonic() >= end:
            return


def report(rows: dict[str, dict[str, Any]]) -> Report:
    """Of each family and of all: characters, strings, differences, and the share of the short strings compared."""
    command = " ".join(["python -m tests.ledger", *sys.argv[1:]])
    found = Report("Ids, offsets and texts beside HF tokenizers", command)
    found.facts |= {one: sorted({of for row in rows.values() for of in row[one]}) for one in ("hf", "commits")}
    for load, of in [*((name, [row]) for name, row in sorted(rows.items())), ("all families", [*rows.values()])]:
        for name in ("characters", "strings", "differences"):
            found.add(load, name, (total := sum(row[name] for row in of), total, total), "of 1")
        share = 100 * sum(row["short"] for row in of) / SHORT / len(of)
        found.add(load, "strings of up to three kinds", (share, share, share), "%")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--round", type=float, default=60.0, help="seconds of one family in a row")
    parser.add_argument("--families", default="", help="names, separated by commas; all if empty")
    parser.add_argument("--corpus", type=Path, action="append", default=[])
    parser.add_argument("--file", type=Path, default=LEDGER)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(arguments)
    rows: dict[str, Any] = json.loads(args.file.read_text(encoding="utf-8")) if args.file.exists() else {}
    corpus, end = corpus_texts(args.corpus), time.monotonic() + 60 * args.minutes
    names = [name for name in args.families.split(",") if name] or families()
    while True:
        for name in sorted(names, key=lambda name: rows.get(name, {}).get("characters", 0)):
            row = rows.setdefault(name, empty_row())
            compare(Pair(name, tokenizer_json(name)), row, args.round, corpus)
            print(f"{name}: {row['characters']:,} characters, {row['differences']} differences", flush=True)
            written = args.file.with_suffix(".new")
            written.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n", encoding="utf-8")
            os.replace(written, args.file)
            if time.monotonic() >= end:
                if args.json:
                    report(rows).write(args.json)
                return int(any(one["differences"] for one in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
