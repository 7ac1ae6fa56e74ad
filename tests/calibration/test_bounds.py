"""Both sides of each bound of calibrators, priors, figures and labelled rows, and the place that an error names."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prelude import Calibrator, Decide, Engine, PriorCorrection
from prelude.calibration import metrics
from prelude.calibration.calibrator import pair
from prelude.calibration.report import calibrate
from prelude.calibration.rows import answers_of, read_rows
from prelude.errors import CalibrationError, InvalidRequest
from prelude.tools.cli import main
from tests.calibration.test_calibrator import LABELS, answer, drawn
from tests.calibration.test_command import write_answered

LINE = {"x": [0.0, 1.0], "y": [0.0, 1.0]}


# ------------------------------------------------------------------ figures
def test_a_summary_by_hand() -> None:
    rows = [np.array([0.7, 0.3]), np.array([0.2, 0.8]), np.array([0.5, 0.5])]
    found = metrics.summary(rows, [0, 0, 0])
    assert (found.count, found.accuracy) == (3, pytest.approx(2 / 3)), "of equal probabilities the first is taken"
    assert found.confidence == pytest.approx((0.7 + 0.8 + 0.5) / 3)
    assert found.ece == pytest.approx((0.3 + 0.8 + 0.5) / 3)  # one answer a bin
    assert found.aurc == pytest.approx((1 + 1 / 2 + 1 / 3) / 3), "the most confident one is wrong"
    sure = metrics.summary([np.array([1.0, 0.0])], [1])
    assert sure.nll == pytest.approx(-math.log(1e-12)) and sure.brier == 2.0
    bins = metrics.reliability(np.array([0.9]), np.array([1.0]))
    assert len(bins) == 15 and (bins[0].count, bins[0].accuracy, bins[0].confidence) == (0, 0.0, 0.0)
    assert metrics.worsened(found, found) == "" and "NLL" in metrics.worsened(found, sure)


@pytest.mark.parametrize(
    ("rows", "truth", "says"),
    [
        ([], [], "0 rows of probabilities and 0 labels"),
        ([[0.5, 0.5]], [0, 1], "1 rows of probabilities and 2 labels"),
        ([[0.5, 0.5], [0.5, 0.5]], [0, 2], r"rows\[1\]: label 2 of 2 labels"),
        ([[0.5, 0.5]], [-1], r"rows\[0\]: label -1 of 2"),
        ([[-1e-9, 1.0]], [1], r"rows\[0\]: probabilities are finite, not negative, and not all zero"),
        ([[0.5, 0.5]], [0.9], r"rows\[0\]: label 0.9 of 2 labels"),
    ],
)
def test_rows_without_figures(rows: Any, truth: list[Any], says: str) -> None:
    with pytest.raises(CalibrationError, match=says):
        metrics.summary([np.array(row) for row in rows], truth)


WRONG: list[Any] = [
    [0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0], [-1.0, 2.0], [[0.5, 0.5]], [], ["a", "b"], "ab", None, 0.5,
    [10**400, 1],
]  # fmt: skip


@pytest.mark.parametrize("row", WRONG, ids=repr)
def test_what_is_no_row_of_probabilities_is_refused(row: Any) -> None:
    with pytest.raises(CalibrationError, match=r"^probabilities: probabilities are finite"):
        Calibrator("temperature", {"temperature": 1.0}).probabilities(row)
    with pytest.raises(CalibrationError, match=r"^rows\[29\]: probabilities are finite"):
        Calibrator.fit([*[[0.5, 0.5]] * 29, row], [0] * 30)


@pytest.mark.parametrize("other", [3, None, {"a": 0.5}, [answer([0.9, 0.1], ("a", "b"))]], ids=repr)
def test_what_is_no_answer_is_refused(other: Any) -> None:
    one = Calibrator("temperature", {"temperature": 1.0})
    calls: list[Callable[[], Any]] = [
        lambda: one.apply(other),
        lambda: PriorCorrection(("a", "b"), (0.5, 0.5)).apply(other),
        lambda: PriorCorrection.of_answers([other]),
        lambda: Calibrator.fit_answers([other] * 30, ["a"] * 30),
    ]
    for call in calls:
        with pytest.raises(CalibrationError, match=r"^answers\[0\]: .* is not the Answer to one question"):
            call()


# ------------------------------------------------------------------ calibrators
def platt(slope: float, offsets: list[float], labels: Any = ("a", "b")) -> Any:
    return "platt", {"slope": slope, "offsets": offsets}, labels


@pytest.mark.parametrize(
    ("good", "wrong", "says"),
    [
        (("temperature", {"temperature": 1e-6}), ("temperature", {"temperature": 9e-7}), "not at least 1e-06"),
        (("temperature", {"temperature": 1e6}), ("temperature", {"temperature": 1.1e6}), "from -1e"),
        (platt(1e-9, [0, 1]), platt(0, [0, 1]), "slope above 0"),
        (platt(1e6, [-1e6, 1e6]), platt(1, [-2e6, 0]), "offsets: "),
        (platt(1, [0], ("a",)), platt(1, [0]), "an offset for each"),
        (platt(1, [], ()), platt(1, [0, 1], None), "its labels"),
        (("isotonic", LINE), ("isotonic", {**LINE, "y": [0.0, 1.1]}), "y between 0 and 1"),
        (("isotonic", LINE), ("isotonic", {**LINE, "y": [-0.1, 1.0]}), "y between 0 and 1"),
        (("isotonic", LINE), ("isotonic", {**LINE, "x": [1.0, 0.0]}), "ascending"),
        (("isotonic", LINE), ("isotonic", {**LINE, "x": [0.0]}), "equal length"),
        (("isotonic", {"x": [0.5], "y": [0.5]}), ("isotonic", {"x": [], "y": []}), "equal length"),
        (("isotonic", {"x": [0.5] * 2, "y": [0.2] * 2}), ("isotonic", {"x": [0.5, 0.6], "y": [0.2, 0]}), "ascending"),
        (("isotonic", LINE), ("isotonic", {"x": 0.5, "y": [0.5]}), "x: 0.5 is not a list of numbers"),
    ],
)  # fmt: skip
def test_both_sides_of_a_bound_of_parameters(good: Any, wrong: Any, says: str) -> None:
    Calibrator(*good)
    with pytest.raises(CalibrationError, match=says):
        Calibrator(*wrong)


def test_small_probabilities_have_a_floor() -> None:
    plain = Calibrator("temperature", {"temperature": 1.0})
    assert plain.probabilities([1.0, 0.0]).tolist() == pytest.approx([1.0, 1e-30], rel=1e-6)
    assert plain.probabilities([14.0, 6.0]).tolist() == pytest.approx([0.7, 0.3]), "a row need not sum to 1"
    told = Calibrator("isotonic", LINE).probabilities([1.0, 0.0])
    assert told.tolist() == pytest.approx([1.0, 1e-9], rel=1e-6)
    assert pair(0.0) == (0.5, 0.5) and pair(800.0) == (0.0, 1.0) and pair(-800.0) == (1.0, 0.0)
    assert plain.score(-2.0) == pytest.approx(1 / (1 + math.exp(2)))


def test_what_a_fit_keeps(caplog: pytest.LogCaptureFixture) -> None:
    rows, truth = drawn(300)
    fitted = Calibrator.fit(rows, truth, labels=list(LABELS))
    assert fitted.labels == LABELS and fitted.asked == {} and fitted.facts["rows"] == 300
    before = metrics.summary(rows, truth)
    assert [fitted.facts["held_out"][name][0] for name in ("ece", "brier", "nll")] == pytest.approx(
        [before.ece, before.brier, before.nll]
    )
    # Of five folds each row is measured by a fit without it: close to the fit on all, and not equal.
    inside = metrics.summary([fitted.probabilities(row) for row in rows], truth)
    held_out = fitted.facts["held_out"]["nll"][1]
    assert held_out == pytest.approx(inside.nll, rel=0.02) and held_out != inside.nll
    assert not caplog.text
    scaled = [row * 7 for row in rows]
    again = Calibrator.fit(scaled, truth)
    assert again.parameters == pytest.approx(fitted.parameters)
    assert again.facts["held_out"]["nll"] == pytest.approx(fitted.facts["held_out"]["nll"])
    uneven = [answer([0.7, 0.3], ("a", "b")), answer([0.2, 0.3, 0.5])] * 20
    assert Calibrator.fit_answers(uneven, ["a", "c"] * 20).labels is None
    for answers, labels in (([], []), (uneven[:2], ["a"])):
        with pytest.raises(CalibrationError, match="one label an answer, at least one"):
            Calibrator.fit_answers(answers, labels)
    with pytest.raises(CalibrationError, match=r"answers\[1\]: 'z' is none of its labels"):
        Calibrator.fit_answers(uneven[:2], ["a", "z"])


@pytest.mark.parametrize("kind", [Calibrator, PriorCorrection])
def test_a_file_is_read_up_to_its_bound(kind: Any, tmp_path: Path) -> None:
    made: Any = (
        Calibrator("temperature", {"temperature": 2.0}) if kind is Calibrator else PriorCorrection(("a",), (1.0,))
    )
    path = tmp_path / "kept.json"
    made.save(path)
    text = path.read_text(encoding="utf-8")
    assert text.endswith("}\n") and json.loads(text)["version"] == 1
    path.write_text(text.ljust(1 << 24), encoding="utf-8")
    assert kind.load(path) == made
    path.write_text(text.ljust((1 << 24) + 1), encoding="utf-8")
    with pytest.raises(CalibrationError, match=r"kept\.json: cannot be read"):
        kind.load(path)
    needed = ("method", "parameters") if kind is Calibrator else ("labels", "prior")
    for name in ("kind", "version", *needed):
        rest = {key: value for key, value in json.loads(text).items() if key != name}
        path.write_text(json.dumps(rest), encoding="utf-8")
        with pytest.raises(CalibrationError, match=rf"kept\.json: ({name} is missing|not a)"):
            kind.load(path)


# ------------------------------------------------------------------ priors
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((("a", "b"), (1.0,)), "prior "), ((("a", "b"), (0.5, 0.3, 0.2)), "each of 2 labels"),
        (((), ()), "each of 0 labels"), ((("a", "b"), (1.0, 0.0)), "at least 1e-30"),
        ((("a", "b"), (1.0, 9e-31)), "at least 1e-30"), ((("a", "b"), None), "prior: None is not a list"),
        ((("a", "b"), (0.5, 0.5), (1.0, 0.0)), "target "), ((("a", "b"), (0.5, 0.5), (1.0,)), "target "),
        ((("a", "a"), (0.5, 0.5)), "a label twice"), (("ab", (0.5, 0.5)), "not a list of strings"),
        ((("a", "b"), (0.5, 0.5), None, []), "asked: "),
    ],
)  # fmt: skip
def test_what_is_no_prior(given: Any, says: str) -> None:
    with pytest.raises(CalibrationError, match=says):
        PriorCorrection(*given)


def test_shares_of_a_prior() -> None:
    assert PriorCorrection(("a", "b"), (3, 1), (1, 3)).prior == (0.75, 0.25)
    assert PriorCorrection(("a", "b"), (3, 1), (1, 3)).target == (0.25, 0.75)
    least = PriorCorrection(("a", "b"), (1.0, 1e-30))
    assert least.prior == (1.0, 1e-30)
    rounded = (0.1, 0.2, 0.7 + 1e-13)
    assert PriorCorrection(LABELS, rounded).prior == rounded, "a sum within 1e-12 of 1 keeps its bits"
    assert sum(PriorCorrection(LABELS, (0.1, 0.2, 0.7 + 1e-11)).prior) == pytest.approx(1.0, abs=1e-15)
    sure = [answer([0.9, 0.1], ("a", "b"))]
    aimed = PriorCorrection.of_answers(sure, {"a": 1.0, "b": 3.0})
    assert aimed.target == (0.25, 0.75) and aimed.prior == pytest.approx((0.9, 0.1))
    wrong: list[Any] = [{"a": 1.0}, {"a": 1.0, "b": 3.0, "other": 2.0}, ["a", "b"]]
    for target in wrong:
        with pytest.raises(CalibrationError, match=r"^target .*: it takes a share for each of the labels"):
            PriorCorrection.of_answers(sure, target)
    with pytest.raises(CalibrationError, match=r"^b: 'x' is not a number"):
        PriorCorrection.of_answers(sure, {"a": 1.0, "b": "x"})  # type: ignore[dict-item]
    with pytest.raises(InvalidRequest, match=r"^states: 'N/A' is not a list of texts"):
        PriorCorrection.content_free(None, None, "N/A")
    with pytest.raises(CalibrationError, match=r"^logit: nan is not a number"):
        Calibrator("temperature", {"temperature": 1.0}).score(math.nan)
    assert Calibrator("temperature", {"temperature": 1.0}).score(np.float32(0)) == 0.5
    for answers in ([], [*sure, answer([0.9, 0.1], ("b", "a"))]):
        with pytest.raises(CalibrationError, match="one set of labels"):
            PriorCorrection.of_answers(answers)


def test_states_without_content_are_three_by_default() -> None:
    asked: list[str] = []

    class Told:
        def decide(self, state: str, questions: Any, **keywords: Any) -> Any:
            asked.append(state)
            assert (questions, keywords) == (["q"], {"truncation": "tail"})
            return [answer([0.5, 0.3, 0.2])]

    assert PriorCorrection.content_free(Told(), "q", truncation="tail").labels == LABELS
    assert asked == ["N/A", "[...]", "-"]


# ------------------------------------------------------------------ one run
def test_the_split_of_a_run() -> None:
    rows, truth = drawn(61)
    answers, labels = [answer(row.tolist()) for row in rows], [LABELS[at] for at in truth]
    found = calibrate(answers, labels, resamples=20)
    assert (found.fitted, found.held_out) == (30, 31), "half of them by default"
    assert calibrate(answers, labels, labels=31, resamples=0).before_interval == (0.0, 0.0)
    for count in (29, 32):
        with pytest.raises(CalibrationError, match=f"^{count} of 61 rows to fit on; it takes at least 30"):
            calibrate(answers, labels, labels=count)
    assert calibrate(answers, labels, resamples=20).as_json() == found.as_json() != {}
    assert calibrate(answers, labels, seed=0, resamples=20).before == found.before
    assert calibrate(answers, labels, seed=1, resamples=20).before != found.before
    said = found.as_json()
    assert said["parameters"] == dict(found.calibrator.parameters) and said["method"] == "temperature"
    assert set(said["before"]) == {"count", "accuracy", "confidence", "ece", "brier", "nll", "aurc"}
    assert "parameters" not in calibrate(answers, labels, method="isotonic", resamples=20).as_json()
    assert found.prior is None
    assert calibrate(answers, labels, prior="labels", resamples=0).before == found.before, "of raw answers"
    for confidence, _ in found.curves.values():
        assert len(confidence) == 31
    assert (found.before.ece != found.after.ece) and found.before_interval != found.after_interval
    narrow, wide = found.before_interval, calibrate(answers, labels).before_interval
    assert wide == calibrate(answers, labels, resamples=1000).before_interval != narrow
    many = [metrics.ece(*[one[at] for one in found.curves["before"]]) for at in _draws(31, 20)]
    assert narrow == pytest.approx(tuple(np.quantile(many, [0.025, 0.975])))


def _draws(n: int, count: int) -> list[Any]:
    draw = np.random.default_rng(0)
    return [draw.integers(0, n, n) for _ in range(count)]


# ------------------------------------------------------------------ labelled rows
@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"label": 1.5, "probabilities": {"1.5": 1, "b": 1}}, "label 1.5 is not text"),
        ({"label": ["a"], "probabilities": {"a": 1, "b": 1}}, r"label \['a'\] is not text"),
        ({"label": "a", "state": "x"}, "nor a state and a question"),
        ({"label": "a", "question": "x"}, "nor a state and a question"),
        ({"label": "yes", "state": "x", "question": "q", "lables": ["yes", "no", "so"]}, "'lables' is no field of"),
        ({"label": "a", "probabilities": {"a": 1, "b": 2e100}}, "finite numbers by label"),
        ({"label": "a", "probabilities": ["a", "b"]}, "finite numbers by label"),
        ({"label": "a", "probabilities": {"a": 0, "b": 0}}, "not negative and not all zero"),
    ],
)
def test_a_row_that_is_refused(row: dict[str, Any], says: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row), encoding="utf-8")
    with pytest.raises(CalibrationError, match=rf"rows\.jsonl:1: .*{says}"):
        read_rows(file)


def test_rows_become_answers_and_tasks(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows: list[dict[str, Any]] = [
        {"label": "b", "probabilities": {"a": 1e100, "b": 0}, "question": "Which?"},
        {"label": "a", "logprobs": {"a": -1000, "b": -1000}, "question": 5},
        {"label": "a", "state": "s", "question": "q", "labels": ["a", "b"]},
        {"label": 2, "state": "s", "question": "q", "levels": 3},
        {"label": False, "state": "s", "question": "q", "criteria": {"true": "t"}},
    ]
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    first, second, *tasks = read_rows(file)
    assert first.answer is not None and second.answer is not None
    assert (first.answer.label, first.answer.index, first.answer.probability) == ("a", 0, 1.0)
    assert first.answer.logprobs["b"] == pytest.approx(math.log(1e-300)) and math.isnan(first.answer.mass)
    assert first.answer.asked is not None and first.answer.asked.question == "Which?"
    assert (second.answer.label, second.answer.asked) == ("a", None), "of equal ones the first"
    assert list(second.answer.probabilities.values()) == [0.5, 0.5]
    assert [row.label for row in tasks] == ["a", "2", "no"]
    made = [row.task for row in tasks]
    assert all(isinstance(task, Decide) and task.state == "s" for task in made)
    [choice], [score], [noul] = [task.questions for task in made if task is not None]
    assert (choice.labels, score.levels, noul.criteria) == (["a", "b"], 3, {"true": "t"})  # type: ignore[union-attr]
    file.write_text("\n".join(map(json.dumps, [rows[2], rows[0], rows[4]])), encoding="utf-8")
    with Engine.from_pretrained() as engine:
        answers = answers_of(read_rows(file), engine)
    assert [one.labels for one in answers] == [("a", "b"), ("a", "b"), ("yes", "no")]
    assert answers[1].probability == 1.0, "each stands in the place of its row"


def test_a_file_of_rows_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "rows.jsonl"
    with open(file, "wb") as written:
        written.truncate((1 << 28) + 1)
    with pytest.raises(CalibrationError, match=f"{(1 << 28) + 1} bytes; the limit is {1 << 28}"):
        read_rows(file)
    file.write_text('{"label": "a", "probabilities": {"a": 1, "b": 1}}\n', encoding="utf-8")
    size = file.stat().st_size
    monkeypatch.setattr("prelude.calibration.rows.MAX_BYTES", size)
    assert len(read_rows(file)) == 1
    monkeypatch.setattr("prelude.calibration.rows.MAX_BYTES", size - 1)
    with pytest.raises(CalibrationError, match="the limit is"):
        read_rows(file)


# ------------------------------------------------------------------ the command
def test_defaults_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_answered(tmp_path / "rows.jsonl", 100)

    def report(*options: str) -> dict[str, Any]:
        kept = tmp_path / "report.json"
        words = ["calibrate", str(path), "--model", "/no/such/model", "--report", str(kept), *options]
        assert main(words) == 0, "rows that are answered need no model"
        assert kept.read_text(encoding="utf-8").endswith("}\n")
        found: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
        return found

    plain = report()
    assert (plain["fitted"], plain["held_out"], plain["method"]) == (50, 50, "temperature")
    assert report("--seed", "0") == plain != report("--seed", "1")
    assert report("--prior", "none", "--method", "temperature") == plain != report("--prior", "labels")
    prior = tmp_path / "prior.json"
    report("--save-prior", str(prior))
    assert not prior.exists(), "without a prior there is none to keep"
    report("--prior", "labels", "--save-prior", str(prior))
    assert PriorCorrection.load(prior).labels == LABELS
    capsys.readouterr()


@pytest.mark.parametrize("option", ["--save", "--save-prior", "--report", "--plot", "--risk-plot"])
def test_a_target_is_checked_before_the_file_is_read(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    assert main(["calibrate", str(tmp_path / "none.jsonl"), option, str(tmp_path / "no" / "x.png")]) == 2
    said = capsys.readouterr().err
    assert f"{option} " in said and "there is no folder" in said
    wrong = main(["calibrate", str(tmp_path / "none.jsonl"), option, str(tmp_path / "x.txt")])
    assert wrong == 2 and ("has to end in one of" in capsys.readouterr().err) == ("plot" in option)
