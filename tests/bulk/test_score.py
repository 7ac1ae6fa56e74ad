"""``prelude score``: the formats, the journal, and the bad inputs."""

from __future__ import annotations

import csv
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from prelude import Choice, Decide, Engine, EngineConfig, Noul
from prelude.bulk.files import Table
from prelude.bulk.form import Form
from prelude.bulk.journal import Journal
from prelude.tools import cli
from tests.bulk.kills import write_input
from tests.bulk.runs import FLAGS, ROWS, read_rows, score, write_rows


@pytest.fixture(scope="module")
def want() -> list[Any]:
    with Engine.from_pretrained(config=EngineConfig(deterministic=True)) as engine:
        questions = {
            "language": Choice("language?", ["English", "German"]),
            "personal": Noul("Is there personal data?"),
        }
        return [engine.run(Decide(str(row["text"]), questions)) for row in ROWS]


def test_a_journal_that_was_moved_away_during_the_run_costs_no_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = write_rows(tmp_path / "in.jsonl"), tmp_path / "out.jsonl"
    replace = os.replace

    def moved(*names: Any) -> None:
        replace(*names)
        Path(f"{target}.journal").rename(tmp_path / "elsewhere")

    monkeypatch.setattr(os, "replace", moved)
    assert score(source, target) == 0 and len(read_rows(target)) == 3


def test_a_journal_with_rows_of_another_output_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = write_rows(tmp_path / "in.jsonl"), tmp_path / "out.jsonl"
    journal = tmp_path / "out.jsonl.journal"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "remove", lambda self: None)
        assert score(source, target) == 0
    few = tmp_path / "few.jsonl"
    few.write_bytes(source.read_bytes().splitlines(keepends=True)[0])
    capsys.readouterr()
    assert score(few, tmp_path / "other.jsonl", "--journal", str(journal)) == 0
    said = capsys.readouterr()
    assert journal.exists() and "is kept, since it has rows of other inputs" in said.err
    target.unlink()
    assert score(source, target, "--journal", str(journal)) == 0
    assert "0 computed" in capsys.readouterr().out and not journal.exists()


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "csv", "csv.gz", "parquet"])
def test_each_format_to_each(tmp_path: Path, want: list[Any], kind: str) -> None:
    source = write_rows(tmp_path / f"in.{kind}")
    for other in ("jsonl", "csv", "parquet"):
        if other == "parquet":
            pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        target = tmp_path / f"out.{other}"
        assert score(source, target) == 0
        assert not Path(f"{target}.journal").exists()
        for row, found, answers in zip(ROWS, Table.of(str(target)).rows(), want):
            assert str(found["id"]) == str(row["id"]) and found["text"] == row["text"]
            assert found["language"] == answers["language"].label
            chances = found["language_probabilities"]
            assert (json.loads(chances) if isinstance(chances, str) else chances) == answers["language"].probabilities
            assert float(found["personal_probability"]) == answers["personal"].probability
            assert float(found["language_mass"]) == answers["language"].mass
            assert int(found["prompt_tokens"]) == answers.stats.prompt_tokens
            assert not found["error"]


@pytest.mark.fault(73)
def test_a_poisonous_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [*ROWS, {"id": 4, "text": "x" * 10**6}, {"id": 5, "text": None}, {"id": 6}, *ROWS]
    source, target = write_rows(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    assert score(source, target) == 0
    found = [json.loads(line) for line in target.read_text("utf-8").splitlines()]
    assert [bool(row["error"]) for row in found] == [False] * 3 + [True] * 3 + [False] * 3
    assert "column 'text' is null" in found[4]["error"] and "is missing" in found[5]["error"]
    assert "9 rows, 3 with an error" in capsys.readouterr().out
    assert score(source, target, "--overwrite", "--fail-on-errors") == 3


@pytest.mark.fault(72)
def test_rows_that_are_no_rows(tmp_path: Path) -> None:
    lines = [b'{"text": "a"}', b"\xff\xfe", b"[1]", b"{", b"", b'{"text": "\\ud800"}', b'{"text": "b"}']
    (tmp_path / "in.jsonl").write_bytes(b"\n".join(lines))
    assert score(tmp_path / "in.jsonl", tmp_path / "out.jsonl") == 0
    errors = [json.loads(line)["error"] for line in (tmp_path / "out.jsonl").read_bytes().splitlines()]
    assert [error is None for error in errors] == [True, False, False, False, False, True]
    for part, error in zip(("line 2: not UTF-8", "line 3: [1] is not an object", "line 4: not JSON"), errors[1:]):
        assert part in error
    (tmp_path / "in.csv").write_bytes(b"id,text\n1,a\n2,\xff\n3\n4,b\n")
    assert score(tmp_path / "in.csv", tmp_path / "out.csv") == 0
    with open(tmp_path / "out.csv", encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    assert [bool(row["error"]) for row in found] == [False, True, True, False]
    assert [(row["id"], row["text"]) for row in found] == [("1", "a"), ("2", "\ufffd"), ("3", ""), ("4", "b")]


@pytest.mark.fault(72)
@pytest.mark.parametrize(
    ("target", "more", "says"),
    [
        (".", (), "name has to end in"), ("folder.csv", (), "is a directory"),
        ("none/out.csv", (), "there is no folder"), ("out.xlsx", (), "name has to end in"),
        ("out.parquet.gz", (), "name has to end in"), ("there.csv", (), "--overwrite"),
        ("out.csv", ("--choice", "id=a,b"), "has a column 'id' already"),
        ("out.csv", ("--choice", "topic=a,a"), "no row could be served"), ("memory://out.csv", (), "--journal"),
        ("nowhere://out.csv", (), "nowhere://out.csv: "),
    ],
)  # fmt: skip
def test_targets_and_flags(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str, more: tuple[str, ...], says: str
) -> None:
    source = write_rows(tmp_path / "in.csv")
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "there.csv").write_text("", encoding="utf-8")
    name = target if "://" in target else str(tmp_path / target)
    assert cli.main(["score", str(source), name, *FLAGS, "--no-progress", *more]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.fault(72)
def test_inputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, content, says in (
        ("none.csv", None, "no such file"),
        ("other.csv", b"id,body\n1,a\n", "there is no column 'text'"),
        ("twice.csv", b"text,text\na,b\n", "one name"),
        ("broken.jsonl.gz", b"no gzip", "Not a gzipped file"),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        assert score(tmp_path / name, tmp_path / "out.jsonl") == 2
        assert says in capsys.readouterr().err


@pytest.mark.fault(72)
def test_a_full_disk_keeps_the_journal(tmp_path: Path) -> None:
    """A limit of the size of files stands for the disk."""
    source, target = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    write_input(source, 60)
    command = [sys.executable, "-m", "prelude", "score", str(source), str(target), *FLAGS, "--no-progress"]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))

    full = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit)
    assert full.returncode == 2 and "a new run goes on" in full.stderr
    assert not target.exists()
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert "goes on after" in again.stderr and len(target.read_text("utf-8").splitlines()) == 60


def test_a_rows_bits_do_not_depend_on_where_a_run_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load, configs = Engine.from_pretrained, []

    def recorded(*args: Any, config: EngineConfig, **given: Any) -> Engine:
        configs.append(config)
        return load(*args, config=config, **given)

    monkeypatch.setattr(Engine, "from_pretrained", recorded)
    assert score(write_rows(tmp_path / "in.jsonl"), tmp_path / "out.jsonl") == 0
    assert [config.deterministic for config in configs] == [True]


class TestForm:
    def test_a_task_file(self, tmp_path: Path) -> None:
        spec = {
            "state": "{rubric} {{{text}}}",
            "constants": {"rubric": "Read:"},
            "questions": {"level": {"question": "How good?", "levels": ["bad", "good"]}},
            "length_norm": "token",
        }
        (tmp_path / "task.json").write_text(json.dumps(spec), encoding="utf-8")
        task = Form(spec).task({"text": "a"})
        assert task.state == "Read: {a}" and task.length_norm == "token"
        source, target = write_rows(tmp_path / "in.jsonl"), tmp_path / "out.jsonl"
        assert score(source, target, "--task", str(tmp_path / "task.json"), flags=[]) == 0
        row = json.loads(target.read_text("utf-8").splitlines()[0])
        assert set(row["level_probabilities"]) == {"0", "1"} and 0 <= row["level_expected"] <= 1

    def test_a_task_file_is_read_strictly(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        source, task = write_rows(tmp_path / "in.jsonl"), tmp_path / "task.json"
        spec = b'{"state": "{text}", "questions": {"ok": {"question": "Is it polite?"}}'
        task.write_bytes(b"\xef\xbb\xbf" + spec + b"}")
        assert score(source, tmp_path / "out.jsonl", "--task", str(task), flags=[]) == 0
        for more, says in ((b', "state": "x"}', "'state' appears twice"), (b', "mass": NaN}', "not a finite number")):
            task.write_bytes(spec + more)
            assert score(source, tmp_path / "other.jsonl", "--task", str(task), flags=[]) == 2
            said = capsys.readouterr().err
            assert f"{task}: cannot be read as JSON: " in said and says in said

    @pytest.mark.parametrize(
        ("text", "written"),
        [("Text: {c}", "Text: [1]"), ("{c}.", "[1]."), ("{c}{c}", "[1][1]"), ("{{}}{c}", "{}[1]"), ("none", "none")],
    )
    def test_text_around_a_placeholder_stays(self, text: str, written: str) -> None:
        assert Form({"state": text, "questions": {"ok": {}}}).task({"c": [1]}).state == written

    @pytest.mark.parametrize("spec", [{"state": "{c}", "questions": {"ok": {}}}, {"verb": "embed", "prompt": "{c}"}])
    def test_numbers_of_a_column_are_no_ids_of_tokens(self, spec: dict[str, Any]) -> None:
        form = Form(spec)
        assert form.task({"c": [1, 2, 3]}) == form.task({"c": "[1, 2, 3]"})


def test_vectors(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    source, target = write_rows(tmp_path / "in.csv"), tmp_path / "out.parquet"
    spec = {"verb": "embed", "prompt": "{text}", "pooling": "mean"}
    (tmp_path / "task.json").write_text(json.dumps(spec), encoding="utf-8")
    assert score(source, target, "--task", str(tmp_path / "task.json"), flags=[]) == 0
    with Engine.from_pretrained(config=EngineConfig(deterministic=True)) as engine:
        for row in Table.of(str(target)).rows():
            assert row["embedding"] == engine.embed(row["text"], pooling="mean").tolist()


def test_an_url_of_fsspec(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    with fsspec.open("memory://score/in.jsonl", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in ROWS)
    arguments = ["memory://score/in.jsonl", "memory://score/out.csv", "--journal", str(tmp_path / "j")]
    assert cli.main(["score", *arguments, *FLAGS, "--no-progress"]) == 0
    assert len(list(Table.of("memory://score/out.csv").rows())) == 3
