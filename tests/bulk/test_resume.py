"""Runs that were killed: a row that was computed is not computed again, whatever else has changed since."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from prelude import Engine, EngineConfig
from prelude.bulk.files import Table
from prelude.bulk.form import Form
from prelude.bulk.journal import Journal
from prelude.bulk.run import BulkRun
from prelude.tools import cli
from tests.bulk.kills import FLAGS, run_with_kills, start, wait_for_growth, write_input
from tests.bulk.runs import ROWS, read_rows, write_rows


def cut_run(source: Path, folder: Path, kills: int, sign: int = signal.SIGKILL) -> Path:
    """The output of a run that was killed ``kills`` times at most, and once at least: on a busy machine a run may end
    before the test that watches it gets its turn."""
    for attempt in range(6):
        target = folder / f"cut-{attempt}.jsonl"
        if run_with_kills(source, target, kills, seed=3 + attempt, sign=sign):
            return target
    raise AssertionError("six runs ended before they were killed")


@pytest.mark.long
@pytest.mark.fault(71)
def test_killed_runs_end_in_the_bytes_of_a_whole_one(tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    write_input(source, 300)
    run_with_kills(source, tmp_path / "whole.jsonl", 0, seed=3)
    cut = cut_run(source, tmp_path, 3)
    assert cut.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    lines = read_rows(tmp_path / "whole.jsonl")
    assert [line["id"] for line in lines if "id" in line] == [at for at in range(300) if at % 97 != 96]


@pytest.mark.fault(71)
def test_ctrl_c_keeps_the_rows_that_are_written(tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    write_input(source, 200)
    cut = cut_run(source, tmp_path, 1, signal.SIGINT)
    run_with_kills(source, tmp_path / "whole.jsonl", 0, seed=5)
    assert cut.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


# ------------------------------------------------------------------ what a killed run leaves
ROWS_OF_RUN = 600


def texts(count: int) -> list[dict[str, Any]]:
    return [{"id": at, "text": f"Note {at * 7919 % 100_003} of group {at % 7}", "more": [at]} for at in range(count)]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with in.jsonl, the journal out.jsonl.journal of a run that was killed before its end, and the output
    whole.jsonl of a whole run."""
    folder = tmp_path_factory.mktemp("killed")
    source, target = write_rows(folder / "in.jsonl", texts(ROWS_OF_RUN)), folder / "out.jsonl"
    journal = Path(f"{target}.journal")
    for _ in range(6):
        process = start(source, target)
        wait_for_growth(process, journal, 80_000)  # about half of the rows
        process.kill()
        process.communicate()
        if journal.exists():
            assert cli.main(["score", str(source), str(folder / "whole.jsonl"), *FLAGS]) == 0
            return folder
        target.unlink()
    raise AssertionError("six runs ended before they were killed")


def computed(said: str) -> int:
    found = re.search(r"([\d,]+) computed in", said)
    assert found, said
    return int(found[1].replace(",", ""))


Change = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
CHANGES: dict[str, Change] = {
    "nothing": lambda rows: rows,
    "rows added": lambda rows: [*rows, {"id": -1, "text": "one more"}, {"id": -2, "text": "and another"}],
    "the last row cut off": lambda rows: rows[:-1],
    "the first row removed": lambda rows: rows[1:],
    "a row changed": lambda rows: [rows[0], {**rows[1], "text": "changed"}, *rows[2:]],
    "a row put between": lambda rows: [*rows[:9], {"id": -1, "text": "a new one"}, *rows[9:]],
    "the order turned round": lambda rows: rows[::-1],
    "another column": lambda rows: [{**row, "more": "x", "new": row["id"]} for row in rows],
    "to csv": lambda rows: [{"text": row["text"], "id": row["id"]} for row in rows],
}


@pytest.mark.fault(71)
@pytest.mark.parametrize("change", CHANGES)
def test_an_input_that_was_edited_computes_its_new_rows_alone(
    change: str, killed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = CHANGES[change](texts(ROWS_OF_RUN))
    source = write_rows(tmp_path / ("in.csv" if change == "to csv" else "in.jsonl"), rows)
    target = tmp_path / "out.jsonl"
    done = len((killed / "out.jsonl.journal").read_bytes().splitlines()) - 1
    shutil.copy(killed / "out.jsonl.journal", f"{target}.journal")
    known = {row["text"] for row in texts(ROWS_OF_RUN)[:done]}
    assert cli.main(["score", str(source), str(target), *FLAGS]) == 0
    assert computed(capsys.readouterr().out) == sum(row["text"] not in known for row in rows)
    new = set(read_rows(killed / "whole.jsonl")[0]) - {"id", "text", "more"}
    want = {row["text"]: {name: row[name] for name in new} for row in read_rows(killed / "whole.jsonl")}
    for row, found in zip(rows, read_rows(target), strict=True):
        assert found["text"] == row["text"] and str(found["id"]) == str(row["id"])
        assert row["text"] not in want or {name: found[name] for name in new} == want[row["text"]]


@pytest.mark.fault(71)
def test_another_output_and_prefix_take_the_computed_rows(
    killed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = shutil.copy(killed / "out.jsonl.journal", tmp_path / "kept")
    done = len(journal.read_bytes().splitlines()) - 1
    more = ["--journal", str(journal), "--prefix", "new_"]
    assert cli.main(["score", str(killed / "in.jsonl"), str(tmp_path / "other.csv"), *FLAGS, *more]) == 0
    assert computed(capsys.readouterr().out) == ROWS_OF_RUN - done
    rows = list(Table.of(str(tmp_path / "other.csv")).rows())
    assert len(rows) == ROWS_OF_RUN and rows[0]["new_language"] and "language" not in rows[0]


@pytest.mark.fault(72)
def test_a_late_key_with_the_name_of_a_new_column_costs_no_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [*texts(60), {"text": "the last one", "language": "the writer's"}]
    source, target = write_rows(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    assert cli.main(["score", str(source), str(target), *FLAGS]) == 2  # a window of 16 rows
    said = capsys.readouterr().err
    assert "row 61 of" in said and "'language'" in said and "--prefix" in said and not target.exists()
    assert cli.main(["score", str(source), str(target), *FLAGS, "--prefix", "our_"]) == 0
    assert computed(capsys.readouterr().out) == 0
    found = read_rows(target)
    assert found[-1]["language"] == "the writer's" and all(row["our_language"] for row in found)


@pytest.mark.fault(72)
@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_a_name_that_is_seen_to_be_taken_is_refused_at_once(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    source = write_rows(tmp_path / f"in.{kind}", [*[{"text": "b"}] * (kind == "jsonl"), {"text": "a", "personal": 1}])
    assert cli.main(["score", str(source), str(tmp_path / "out.jsonl"), *FLAGS]) == 2
    assert "has a column 'personal' already: --prefix" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [source.name]


@pytest.mark.fault(72)
def test_a_quote_that_stays_open_names_its_line_and_keeps_the_rows_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "in.csv", tmp_path / "out.csv"
    lines = ["text,id", *[f"text {at},{at}" for at in range(20)]]
    source.write_text("\n".join([*lines[:11], '"open,10', *lines[12:]]), "utf-8")
    assert cli.main(["score", str(source), str(target), *FLAGS]) == 2
    said = capsys.readouterr().err
    assert f"{source}: line 12: " in said and "10 rows are in" in said and not target.exists()
    source.write_text("\n".join(lines), "utf-8")
    assert cli.main(["score", str(source), str(target), *FLAGS]) == 0
    assert computed(capsys.readouterr().out) == 10


@pytest.mark.fault(71)
def test_a_bad_line_that_was_mended_is_computed_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"text": "a"}\n{"torn\n' + json.dumps({"text": "b", "error": 1}), "utf-8")
    assert cli.main(["score", str(source), str(target), *FLAGS, "--window", "1"]) == 2  # by the key of the last row
    source.write_text('{"text": "a"}\n{}\n{"text": "b"}\n', "utf-8")
    capsys.readouterr()
    assert cli.main(["score", str(source), str(target), *FLAGS]) == 0
    assert computed(capsys.readouterr().out) == 1
    assert "column 'text' is missing" in read_rows(target)[1]["error"]


def test_a_run_that_goes_on_reads_its_input_once_to_compute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    rows_of = Table.rows

    def counted(table: Table, *given: Any) -> Iterator[dict[str, Any]]:
        for row in rows_of(table, *given):
            read.append(row["id"])
            yield row

    source, target = Table.of(str(write_rows(tmp_path / "in.jsonl"))), Table.of(str(tmp_path / "out.jsonl"))
    form = Form({"verb": "decide", "state": "{text}", "questions": {"language": {"labels": ["English", "German"]}}})
    path, tqdm, bars = tmp_path / "journal", pytest.importorskip("tqdm.auto").tqdm, list[Any]()
    monkeypatch.setattr("tqdm.auto.tqdm", lambda **shape: bars.append(tqdm(**shape)) or bars[0])
    with Engine.from_pretrained(config=EngineConfig(deterministic=True)) as engine:
        bulk = BulkRun(engine, form, source, target, window=2)
        monkeypatch.setattr(Table, "rows", counted)
        with Journal(path, "c", {}) as journal:
            assert bulk.compute(journal).computed == 3
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
        read.clear()
        with Journal(path, "c", {}) as journal:
            assert bulk.compute(journal, True).computed == 1
    assert read == [row["id"] for row in ROWS]
    size = len(b"".join((tmp_path / "in.jsonl").read_bytes().splitlines(keepends=True)[:2]))
    assert bars[0].initial == size, "rows of an earlier run do not count to the rate"


@pytest.mark.fault(71)
def test_the_first_rows_are_kept_before_a_window_of_the_given_size_has_ended(tmp_path: Path) -> None:
    source, target = (
        Table.of(str(write_rows(tmp_path / "in.jsonl", texts(100)))),
        Table.of(str(tmp_path / "out.jsonl")),
    )
    form = Form({"verb": "decide", "state": "{text}", "questions": {"language": {"labels": ["English", "German"]}}})
    path = tmp_path / "journal"
    with Engine.from_pretrained(config=EngineConfig(deterministic=True)) as engine:
        for most in (1024, 20, 7):
            kept = [0]
            with Journal(path, "c", {}, restart=True) as journal:
                bulk = BulkRun(engine, form, source, target, window=most)
                bulk.compute(journal, lambda done, total: kept.append(len(path.read_bytes().splitlines()) - 1))  # noqa: B023
            assert kept[1] == min(16, most) and kept[-1] == 100
            assert max(after - before for before, after in pairwise(kept)) <= most
