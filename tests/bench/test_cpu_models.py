"""A run over real shapes that is cut and gone on with: the rows of the file, and what they are made into."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from bench.common import Report, Row
from bench.engine.cpu_models import MODELS, Session, loads_of, table

LOADS = ["MiniLM-L6, one text of 16 tokens", "MiniLM-L6, one text of 81 tokens"]


def session(rows: Path, average: str = "0.1") -> Session:
    options = argparse.Namespace(rows=rows, loads=None, seconds=None, tokens=None, only=["MiniLM-L6"])
    return Session(options, Report("title", "command", facts={"threads": 2, "load average": average}))


def test_a_cut_run_goes_on_where_it_was_cut(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    first = session(file)
    for load in LOADS:
        with first.rows_of(load) as report:
            report.add(load, "prelude float32", (1.0, 1.0, 1.0), "ms")
    file.write_text(
        file.read_text(encoding="utf-8")[:-20], encoding="utf-8"
    )  # killed while the second load was written
    again = session(file)
    again.read()
    assert list(again.made) == LOADS[:1] and again.made[LOADS[0]] == first.made[LOADS[0]]
    assert [load for load in LOADS if again.wanted(load)] == LOADS[1:]


def test_facts_of_several_runs_are_named_once_where_they_agree(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    for load, threads in zip(LOADS, (1, 2)):
        one = session(file)
        one.report.facts["threads"] = threads
        with one.rows_of(load):
            pass
    averages = [json.loads(line)["facts"]["load average"] for line in file.read_text(encoding="utf-8").splitlines()]
    both = session(file)
    both.read()
    facts = both.common_facts()
    assert facts["threads"] == [1, 2] and "date" in facts and not isinstance(facts["date"], list)
    assert facts["load average"] == f"{min(map(float, averages))} to {max(map(float, averages))}"


def test_the_table_has_the_rows_with_an_aim() -> None:
    rows = [Row("load", "a / b", 1.5, 1.0, 2.0, "x", ">= 1.2"), Row("load", "a", 1.0, 1.0, 1.0, "ms")]
    assert table(rows).splitlines()[2:] == ["| load | a / b | 1.50 (1.00 to 2.00) | >= 1.2 |"]


def test_every_model_has_loads() -> None:
    options = argparse.Namespace(tokens=None)
    loads = [load for model in MODELS for load in loads_of(model, options)]
    assert len(loads) == len(set(loads)) > 20
