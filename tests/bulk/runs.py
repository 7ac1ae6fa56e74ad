"""Runs of ``prelude score`` in this process, and the rows that they read."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from prelude.tools import cli

ROWS = [
    {"id": 1, "text": "This is a text about birds."},
    {"id": 2, "text": "Dies ist ein Text über Vögel."},
    {"id": 3, "text": "Write to bob@example.com"},
]
FLAGS = ["--text-column", "text", "--choice", "language=English,German", "--noul", "personal=Is there personal data?"]


def write_rows(path: Path, rows: list[dict[str, Any]] | None = None) -> Path:
    rows = ROWS if rows is None else rows
    name = path.name.removesuffix(".gz")
    if name.endswith(".parquet"):
        pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        import pyarrow.parquet as parquet

        parquet.write_table(pa.Table.from_pylist(rows), path)
        return path
    opener: Any = gzip.open if path.name.endswith(".gz") else open
    with opener(path, "wt", encoding="utf-8", newline="") as file:
        if name.endswith(".csv"):
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        else:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    return path


def score(source: Path, target: Path, *more: str, flags: list[str] | None = None) -> int:
    return cli.main(["score", str(source), str(target), *(FLAGS if flags is None else flags), "--no-progress", *more])


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
