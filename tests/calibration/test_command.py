"""``prelude calibrate``: labelled files, the split, the figures, and errors that name the line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prelude import Calibrator, PriorCorrection
from prelude.calibration.report import calibrate
from prelude.calibration.rows import answers_of, read_rows
from prelude.errors import CalibrationError
from prelude.tools.cli import main
from tests.calibration.test_calibrator import LABELS, drawn


def write_answered(path: Path, count: int = 600, name: str = "probabilities") -> Path:
    rows, truth = drawn(count)
    change = np.log if name == "logprobs" else np.asarray
    lines = [
        json.dumps({name: dict(zip(LABELS, change(row).tolist())), "label": LABELS[at]})
        for row, at in zip(rows, truth)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("method", ["temperature", "platt", "isotonic"])
def test_the_command_fits_on_some_rows_and_measures_on_the_others(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    path = write_answered(tmp_path / "rows.jsonl")
    given = ["calibrate", str(path), "--method", method, "--labels", "200", "--save", str(tmp_path / "c.json")]
    given += ["--report", str(tmp_path / "r.json"), "--plot", str(tmp_path / "p.png")]
    assert main([*given, "--risk-plot", str(tmp_path / "risk.svg")]) == 0
    report = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert (report["fitted"], report["held_out"]) == (200, 400)
    assert report["after"]["ece"] < report["before"]["ece"] / 2
    assert report["after_ece_95"][0] <= report["after_ece_95"][1]
    assert Calibrator.load(tmp_path / "c.json").method == method
    assert (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG"
    assert b"<svg" in (tmp_path / "risk.svg").read_bytes()[:600]
    said, title = capsys.readouterr().out, "400 held-out answers; fitted on 200"
    names = (title, "accuracy", "confidence", "ece ", "ece, 95 %", "brier", "nll", "aurc")
    assert [said.find(name) for name in names] == sorted(said.index(name) for name in names)


def test_rows_for_a_model_become_its_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [("The library is open.", "English"), ("Der Zug hat Verspätung.", "German"), ("Il fait beau.", "French")]
    question, labels = "Which language is it?", ["English", "French", "German"]
    rows = [{"state": text, "question": question, "labels": labels, "label": label} for text, label in texts * 20]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    prior = tmp_path / "prior.json"
    words = ["--labels", "30", "--prior", "content-free", "--save-prior", str(prior)]
    assert main(["calibrate", str(path), *words]) == 0
    assert PriorCorrection.load(prior).labels == tuple(labels)
    assert "30 held-out answers" in capsys.readouterr().out
    asked = {"state": "a", "question": "?"}
    mixed = [*rows[:2], {**asked, "label": True}, {**asked, "label": False}, {**asked, "levels": 3, "label": 2}]
    path.write_text("\n".join(map(json.dumps, mixed)), encoding="utf-8")
    assert [row.label for row in read_rows(path)] == ["English", "German", "yes", "no", "2"]
    assert main(["calibrate", str(path), "--prior", "content-free"]) == 2
    assert "the rows of the file ask several" in capsys.readouterr().err


def test_the_prior_of_the_labels_corrects_a_leaning(tmp_path: Path) -> None:
    path = write_answered(tmp_path / "rows.jsonl", 900)
    rows = read_rows(path)
    answers, truth = answers_of(rows, None), [row.label for row in rows]
    leaning = PriorCorrection(LABELS, (0.1, 0.3, 0.6))
    told = [leaning.apply(answer) for answer in answers]
    plain, corrected = (calibrate(told, truth, prior=prior) for prior in ("none", "labels"))  # type: ignore[arg-type]
    assert corrected.after.accuracy > plain.after.accuracy and corrected.after.ece < corrected.before.ece / 2
    assert calibrate(told, truth, prior=leaning).prior is leaning
    with pytest.raises(CalibrationError, match="'none', 'labels'"):
        calibrate(told, truth, prior="some")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not usable JSON"),
        ("[]", "an object with a label"),
        ('{"label": "a"}', "neither probabilities nor logprobs"),
        ('{"label": null, "state": "a"}', "label None"),
        ('{"label": "c", "probabilities": {"a": 1, "b": 0}}', "is none of"),
        ('{"label": "a", "probabilities": {"a": 1}}', "finite numbers by label"),
        ('{"label": "a", "probabilities": {"a": NaN, "b": 1}}', "finite numbers by label"),
        ('{"label": "a", "probabilities": {"a": 1%s, "b": 1}}' % ("0" * 400), "finite numbers by label"),
        ('{"label": "a", "logprobs": {"a": -1%s, "b": 1}}' % ("0" * 400), "finite numbers by label"),
        ('{"label": "a", "probabilities": {"a": 1%s, "b": 1}}' % ("0" * 5000), "not usable JSON"),
        ('{"label": "a", "probabilities": {"a": -1, "b": 1}}', "not negative"),
        ('{"label": "a", "logprobs": {"a": true, "b": 1}}', "finite numbers by label"),
        ('{"label": "a", "logprobs": {"a": 0, "b": 1}, "probabilities": {}}', "it has probabilities and logprobs"),
        ('{"label": "a", "state": "s", "question": "q", "labels": ["a"], "levels": 3}', "it has labels and levels"),
    ],
)
def test_a_wrong_line_is_named(line: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"label": "a", "probabilities": {"a": 1, "b": 0}}\n\n' + line + "\n", encoding="utf-8")
    assert main(["calibrate", str(path)]) == 2
    said = capsys.readouterr().err
    assert message in said and "rows.jsonl:3" in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--labels", "0"], "rows to fit on"), (["--labels", "29"], "at least 30"),
        (["--labels", "571"], "leaves 30"), (["--prior", "content-free"], "answered already"),
        (["--save", "rows.jsonl"], "the rows and --save are one file"),
        (["--save", "a.json", "--prior", "labels"], "--save without --save-prior"),
        (["--report", "a.json", "--save", "./a.json"], "--save and --report are one file"),
    ],
)  # fmt: skip
def test_options_are_checked(options: list[str], message: str, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_answered(tmp_path / "rows.jsonl")
    assert main(["calibrate", str(path), *options]) == 2
    assert message in capsys.readouterr().err


def test_files_without_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", str(tmp_path / "none.jsonl")]) == 2
    (tmp_path / "empty.jsonl").write_text("\n\n", encoding="utf-8")
    assert main(["calibrate", str(tmp_path / "empty.jsonl")]) == 2
    assert "no rows" in capsys.readouterr().err


def test_a_text_may_hold_other_ends_of_lines(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    state = "a\u2028b\x85c\u2029d"
    row = {"state": state, "question": "Is it?", "label": True}
    file.write_bytes(json.dumps(row, ensure_ascii=False).encode() + b"\r\n\n")
    [read] = read_rows(file)
    assert read.task is not None and read.task.state == state


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("option", ["--save", "--save-prior", "--report"])
def test_a_file_that_cannot_be_written_is_named(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_answered(tmp_path / "rows.jsonl")
    kept = ["--save-prior", str(tmp_path / "prior.json")]
    assert main(["calibrate", str(file), "--prior", "labels", *kept, option, "/dev/full"]) != 0
    assert "/dev/full: cannot be written: No space left on device" in capsys.readouterr().err
