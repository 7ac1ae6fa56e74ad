"""``prelude fit`` from a file of labelled rows, and its head in ``prelude score`` and ``prelude calibrate``."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest

from prelude import Engine, FittedQuestion
from prelude.bulk.form import Form
from prelude.fitting.fit import FitKeywords
from prelude.tools.cli import main
from tests.engine.test_encoders import write, write_pooling
from tests.fitting.test_fit import labelled

Rows = list[tuple[str, str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = write(tmp_path_factory.mktemp("fit") / "bert", "Model")
    write_pooling(path)
    return str(path)


def table(path: Path, rows: Rows) -> str:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return str(path)


@pytest.fixture(scope="module")
def head(model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("head")
    rows = table(folder / "rows.csv", [*zip(*labelled(90))])
    words = ["-o", str(folder / "team.head"), "--model", model]
    assert main(["fit", rows, *words, "--question", "Which team?", "--no-progress", "--dtype", "float32"]) == 0
    return folder / "team.head"


def test_the_report_is_printed_with_the_next_command(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts, labels = labelled(60)
    urgent = [label == "cards" for label in labels]
    lines = [json.dumps({"body": text, "urgent": label}) for text, label in zip(texts, urgent)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines), encoding="utf-8")
    words = ["--text", "body", "--label", "urgent", "--kind", "noul", "-o", str(tmp_path / "urgent.head")]
    words += ["--name", "hurry", "--question", "Now?", "--pooling", "cls", "--keep", "0.7", "--seed", "3"]
    assert main(["fit", str(tmp_path / "rows.jsonl"), *words, "--balanced", "--model", model, "--no-progress"]) == 0
    said = capsys.readouterr().out
    assert "60 rows, 2 labels" in said and "accuracy" in said and f"--head {tmp_path / 'urgent.head'}" in said
    keywords: FitKeywords = {"kind": "noul", "question": "Now?", "pooling": "cls", "keep": 0.7, "seed": 3}
    with Engine.from_pretrained(model) as engine:
        found = engine.fit(texts, urgent, name="hurry", class_weights="balanced", **keywords)
    assert FittedQuestion.load(tmp_path / "urgent.head") == found and found.labels == ("yes", "no")


@pytest.mark.parametrize(
    ("rows", "words", "said"),
    [
        ([("w1", "a")] * 2, ["--label", "team"], "row 0: the column 'team' is missing; the row has ['text'"),
        ([("w1", "a"), ("w2", "a")], [], "all rows have the label 'a'; add rows of others"),
        ([("w1", "É"), ("w2", "e\u0301"), ("w3", "b"), ("w4", "b")], [], "(row 1 and row 0) differ in case"),
        ([("w1", "a"), ("w2", "b")] * 2, ["-o", "/nowhere/team.head"], "there is no folder '/nowhere'"),
        ([("w1", "a"), ("w2", "b"), ("w3", "a"), ("w4", "b")], ["--prompt-name", "nowhere"], "prompt_name"),
    ],
)
def test_rows_that_cannot_be_fitted_are_named(
    model: str, rows: Rows, words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = table(tmp_path / "rows.csv", rows)
    usual = ["--text", "text", "--label", "label", "-o", str(tmp_path / "x.head"), "--model", model]
    assert main(["fit", file, *usual, *words, "--no-progress"]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "x.head").exists()


def test_score_labels_the_rows_of_a_file_with_a_head(model: str, head: Path, tmp_path: Path) -> None:
    texts = labelled(12, seed=3)[0]
    file = table(tmp_path / "new.csv", [(text, "") for text in texts])
    out = tmp_path / "out.jsonl"
    words = ["--text-column", "text", "--head", str(head), "--model", model, "--dtype", "float32", "--no-progress"]
    assert main(["score", file, str(out), *words]) == 0
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    question = FittedQuestion.load(head)
    with Engine.from_pretrained(model, dtype="float32") as engine:
        for text, row in zip(texts, rows):
            [answer] = engine.decide(text, [question])
            assert row["team"] == answer.label and row["team_mass"] is None and row["error"] is None
            assert row["team_probabilities"] == pytest.approx(answer.probabilities, abs=1e-5)
            assert row["team_scope"] == pytest.approx(answer.scope, abs=1e-3)


def test_another_head_in_a_file_of_the_same_name_is_another_task(model: str, head: Path, tmp_path: Path) -> None:
    """So the journal of an earlier run is refused."""
    own = tmp_path / "team.head"
    own.write_bytes(head.read_bytes())
    spec = {"state": "{text}", "questions": {"team": {"head": str(own)}}}
    before, again = Form(spec).given, Form(spec).given
    with Engine.from_pretrained(model) as engine:
        engine.fit(*labelled(60, seed=9), name="team").save(own)
    assert before == again != Form(spec).given


def test_calibrate_takes_rows_with_a_head(
    model: str, head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        json.dumps({"state": text, "head": str(head), "label": label}) for text, label in zip(*labelled(80, seed=4))
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows), encoding="utf-8")
    saved = tmp_path / "calibrator.json"
    assert main(["calibrate", str(tmp_path / "rows.jsonl"), "--model", model, "--save", str(saved)]) == 0
    assert "40 held-out answers" in capsys.readouterr().out
    assert json.loads(saved.read_text(encoding="utf-8"))["asked"]["question"] == "Which team?"


def test_without_tqdm_a_file_is_fitted_without_a_bar(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.chdir(tmp_path)
    rows = table(tmp_path / "rows.csv", [*zip(*labelled(30))])
    assert main(["fit", rows, "--model", model]) == 0
    with Engine.from_pretrained(model) as engine:
        assert FittedQuestion.load(tmp_path / "rows.head") == engine.fit(*labelled(30), name="rows")
