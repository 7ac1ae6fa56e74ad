"""Calibrators and priors: fits against other libraries, their changes of an answer, and their refusals."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prelude import AsyncEngine, Choice, Engine, Score, YesNo
from prelude.calibration import METHODS, Calibrator, PriorCorrection, metrics
from prelude.calibration.calibrator import pair
from prelude.errors import CalibrationError
from prelude.results import Answer

LABELS = ("a", "b", "c")


def drawn(count: int, slope: float = 3.0, lean: float = 0.0, seed: int = 0) -> tuple[list[np.ndarray], list[int]]:
    """Probabilities with logarithms ``slope`` times too steep that lean towards the first label, and the truth."""
    draw = np.random.default_rng(seed)
    rows, truth = [], []
    for _ in range(count):
        logits = draw.normal(size=3) * 1.5
        shares = np.exp(logits) / np.exp(logits).sum()
        truth.append(int(draw.choice(3, p=shares)))
        told = slope * logits + np.array([lean, 0.0, 0.0])
        told = np.exp(told - told.max())
        rows.append(told / told.sum())
    return rows, truth


def answer(shares: list[float], labels: tuple[str, ...] = LABELS, **fields: Any) -> Answer:
    at = int(np.argmax(shares))
    logs = {label: math.log(share) for label, share in zip(labels, shares)}
    return Answer(labels[at], at, labels, dict(zip(labels, shares)), logs, 0.9, max(shares), **fields)


@pytest.mark.feature("G22")
def test_metrics_by_hand() -> None:
    confidence, correct = np.array([0.95, 0.9, 0.6, 0.55]), np.array([1.0, 0.0, 1.0, 0.0])
    # Two bins of four have answers: 0.95 and 0.9 at accuracy 1/2, 0.6 and 0.55 at 1/2.
    by_hand = (2 * abs(0.5 - 0.925) + 2 * abs(0.5 - 0.575)) / 4
    assert metrics.ece(confidence, correct, 4) == pytest.approx(by_hand)
    bins = metrics.reliability(confidence, correct, 4)
    assert [one.count for one in bins] == [0, 0, 2, 2] and bins[3].confidence == pytest.approx(0.925)
    coverage, risk = metrics.risk_coverage(confidence, correct)
    assert coverage.tolist() == [0.25, 0.5, 0.75, 1.0] and risk.tolist() == pytest.approx([0, 0.5, 1 / 3, 0.5])
    rows = [np.array([0.7, 0.3]), np.array([0.2, 0.8])]
    assert metrics.brier(rows, [0, 0]) == pytest.approx(((0.3**2 + 0.3**2) + (0.8**2 + 0.8**2)) / 2)
    nll, squares = -(math.log(0.7) + math.log(0.2)) / 2, metrics.brier(rows, [0, 0])
    found = dataclasses.astuple(metrics.summary(rows, [0, 0]))
    assert found == pytest.approx((2, 0.5, 0.75, (0.3 + 0.8) / 2, squares, nll, (1 + 0.5) / 2))
    for some, truth in (([], []), (rows, [0]), (rows[:1], [0, 0]), (rows, [0, 2]), (rows, [0, -1])):
        with pytest.raises(CalibrationError):
            metrics.summary(some, truth)
    assert metrics.reliability(np.array([0.0, 1.0]), np.array([0.0, 1.0]), 5)[0].count == 1


@pytest.mark.feature("G22")
def test_temperature_finds_the_slope_and_halves_the_error() -> None:
    rows, truth = drawn(4000)
    fitted = Calibrator.fit(rows[:2000], truth[:2000])
    assert fitted.parameters["temperature"] == pytest.approx(3.0, rel=0.08)
    before = metrics.summary(rows[2000:], truth[2000:])
    after = metrics.summary([fitted.probabilities(row) for row in rows[2000:]], truth[2000:])
    assert after.ece < before.ece / 4 and after.accuracy == before.accuracy and after.nll < before.nll


def test_temperature_is_the_minimum_of_the_likelihood() -> None:
    optimize = pytest.importorskip("scipy.optimize")
    rows, truth = drawn(200, seed=4)
    rows += [row[:2] / row[:2].sum() for row in rows[:80]]  # of fewer labels
    truth += [at % 2 for at in truth[:80]]

    def loss(temperature: float) -> float:
        scaled = [np.log(row) / temperature for row in rows]
        return float(np.mean([np.logaddexp.reduce(row) - row[at] for row, at in zip(scaled, truth)]))

    best = optimize.minimize_scalar(loss, bounds=(0.05, 20), method="bounded", options={"xatol": 1e-9}).x
    assert Calibrator.fit(rows, truth).parameters["temperature"] == pytest.approx(best, rel=1e-5)


@pytest.mark.feature("G22")
def test_platt_is_the_regularised_regression() -> None:
    """scikit-learn's, of two labels: the same features, the same pull on the slope's distance from 1."""
    optimize = pytest.importorskip("scipy.optimize")
    rows, truth = drawn(300, slope=2.0, lean=1.5, seed=2)
    fitted = Calibrator.fit(rows, truth, method="platt", labels=LABELS)
    table = np.log(np.stack(rows))

    def loss(parameters: np.ndarray) -> float:
        logits = parameters[0] * table + np.array([parameters[1], parameters[2], 0.0])
        nll = np.logaddexp.reduce(logits, axis=1) - logits[np.arange(len(table)), truth]
        return float(nll.mean() + ((parameters - [1, 0, 0]) ** 2).sum() / (2 * len(table)))

    best = optimize.minimize(loss, [1.0, 0.0, 0.0], method="BFGS", options={"gtol": 1e-9}).x
    assert fitted.parameters["slope"] == pytest.approx(best[0], abs=1e-4)
    assert fitted.parameters["offsets"] == pytest.approx([best[1], best[2], 0.0], abs=1e-4)
    leaning = np.mean([row[0] for row in rows]) - np.mean(np.array(truth) == 0)
    left = np.mean([fitted.probabilities(row)[0] for row in rows]) - np.mean(np.array(truth) == 0)
    assert abs(left) < abs(leaning) / 3


@pytest.mark.feature("G22")
def test_isotonic_is_that_of_scikit_learn() -> None:
    isotonic = pytest.importorskip("sklearn.isotonic")
    rows, truth = drawn(250, seed=7)
    fitted = Calibrator.fit(rows, truth, method="isotonic")
    x = np.concatenate(rows)
    y = np.concatenate([np.arange(3) == at for at in truth]).astype(float)
    theirs = isotonic.IsotonicRegression(out_of_bounds="clip").fit(x, y)
    grid = np.linspace(0, 1, 301)
    ours = np.interp(grid, fitted.parameters["x"], fitted.parameters["y"])
    assert np.abs(ours - theirs.predict(grid)).max() < 1e-7
    for row in rows[:50]:
        found = fitted.probabilities(row)
        assert found.sum() == pytest.approx(1.0) and found[int(np.argmax(row))] == found.max()


@pytest.mark.feature("G22")
def test_isotonic_counts_how_often_a_probability_occurs() -> None:
    """The label of 0.4 is true in 6 of 30 rows, that of 0.45 in 1 of 10."""
    rows = [[0.4, 0.6]] * 30 + [[0.45, 0.55]] * 10
    fitted = Calibrator.fit(rows, [0] * 6 + [1] * 24 + [0] * 1 + [1] * 9, method="isotonic")
    y = np.interp([0.4, 0.45, 0.55, 0.6], fitted.parameters["x"], fitted.parameters["y"])
    assert y == pytest.approx([7 / 40, 7 / 40, 33 / 40, 33 / 40])


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_labels_that_the_probabilities_do_not_foresee_are_refused(method: Any) -> None:
    """A constant function would give each label the same share, and the first label to every answer."""
    with pytest.raises(CalibrationError, match="nothing to calibrate"):
        Calibrator.fit([[0.9, 0.1]] * 20 + [[0.2, 0.8]] * 20, [1] * 20 + [0] * 20, method=method, labels=["a", "b"])


def test_an_isotonic_fit_whose_parts_alone_are_constant_is_made() -> None:
    rows = [[share, 1 - share] for share in [0.6] * 21 + [0.55] * 9]
    truth = [0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 0, 1, 1, 0, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0]
    found = Calibrator.fit(rows, truth, method="isotonic").parameters
    assert found["y"] == pytest.approx([7 / 15, 7 / 15, 8 / 15, 8 / 15])


@pytest.mark.parametrize("bins", [10, 15, 20, 100])
def test_a_decimal_edge_belongs_to_the_bin_below_it(bins: int) -> None:
    for at in range(bins):
        edge = (at + 1) / bins
        found = metrics.reliability(np.array([edge]), np.array([1.0]), bins)
        assert [one.count for one in found].index(1) == at
    [seventh] = [one for one in metrics.reliability(np.array([0.07]), np.array([1.0]), 100) if one.count]
    assert (seventh.low, seventh.high) == (0.06, 0.07)


@pytest.mark.parametrize("method", METHODS)
def test_a_saved_calibrator_gives_the_same_numbers(method: Any, tmp_path: Path) -> None:
    rows, truth = drawn(120)
    fitted = Calibrator.fit(rows, truth, method=method, labels=LABELS)
    fitted.save(tmp_path / "calibrator.json")
    loaded = Calibrator.load(tmp_path / "calibrator.json")
    assert loaded.method == method
    for row in rows[:20]:
        assert loaded.probabilities(row).tolist() == fitted.probabilities(row).tolist()


@pytest.mark.feature("G22")
def test_an_answer_keeps_the_models_probabilities() -> None:
    fitted = Calibrator("temperature", {"temperature": 2.0})
    given = answer([0.8, 0.15, 0.05])
    found = fitted.apply(given)
    expected = np.sqrt([0.8, 0.15, 0.05])
    assert list(found.probabilities.values()) == pytest.approx((expected / expected.sum()).tolist())
    assert (found.label, found.mass, found.logprobs) == (given.label, given.mass, given.logprobs)
    assert found.probability == found.probabilities["a"] and found.confidence < given.confidence  # type: ignore[operator]
    for first, levels in ((1, ("1", "2", "3")), (0, ("0", "1", "2"))):
        told = fitted.apply(answer([0.5, 0.3, 0.2], levels, expected=first + 0.7, kind="score"))
        assert told.expected == pytest.approx(sum(n * p for n, p in enumerate(told.probabilities.values(), first)))
    noul = answer([0.2, 0.8], ("yes", "no"), kind="noul")
    assert fitted.apply(noul).probability == fitted.apply(noul).probabilities["yes"]


def test_platt_follows_the_labels_in_another_order() -> None:
    fitted = Calibrator("platt", {"slope": 1.0, "offsets": [1.0, 0.0, -1.0]}, LABELS)
    straight = fitted.apply(answer([0.2, 0.3, 0.5]))
    turned = fitted.apply(answer([0.5, 0.3, 0.2], ("c", "b", "a")))
    for label in LABELS:
        assert straight.probabilities[label] == pytest.approx(turned.probabilities[label])
    with pytest.raises(CalibrationError, match="this calibrator is of"):
        fitted.apply(answer([0.5, 0.3, 0.2], ("a", "b", "d")))
    with pytest.raises(CalibrationError, match="2 labels"):
        fitted.probabilities([0.5, 0.5])


def test_a_score_of_two_sides() -> None:
    draw = np.random.default_rng(1)
    logits = draw.normal(size=600) * 4
    truth = (draw.random(600) < 1 / (1 + np.exp(-logits / 4))).astype(int)
    fitted = Calibrator.fit([pair(x) for x in logits], truth, method="platt", labels=("no", "yes"))
    assert fitted.score(4.0) == pytest.approx(1 / (1 + math.exp(-1)), abs=0.08)
    assert fitted.score(-1e4) >= 0.0 and fitted.score(1e4) <= 1.0


@pytest.mark.feature("G22")
def test_a_prior_is_divided_out() -> None:
    even = PriorCorrection(("a", "b"), (0.75, 0.25)).apply(answer([0.75, 0.25], ("a", "b")))
    assert list(even.probabilities.values()) == pytest.approx([0.5, 0.5])
    aimed = PriorCorrection(("b", "a"), (0.25, 0.75), (0.1, 0.9)).apply(answer([0.75, 0.25], ("a", "b")))
    assert aimed.probabilities["a"] == pytest.approx(0.9)
    mean = PriorCorrection.of_answers([answer([0.9, 0.1], ("a", "b")), answer([0.5, 0.5], ("a", "b"))])
    assert mean.prior == pytest.approx((0.7, 0.3))
    sure = dataclasses.replace(answer([0.9, 0.1], ("a", "b")), probabilities={"a": 1.0, "b": 0.0})
    assert PriorCorrection.of_answers([sure]).apply(sure).label == "a", "a label that no answer had has a small share"
    with pytest.raises(CalibrationError, match="this prior is of"):
        mean.apply(answer([0.5, 0.3, 0.2]))


@pytest.mark.feature("G22")
def test_a_content_free_prior_of_an_engine(tmp_path: Path) -> None:
    question = Choice("Which language is it?", ["English", "French", "German"])
    with Engine.from_pretrained() as engine:
        prior = PriorCorrection.content_free(engine, question, ("N/A", "-"))
        alone = [engine.decide(state, [question])[0] for state in ("N/A", "-")]
        mean = np.mean([list(one.probabilities.values()) for one in alone], axis=0)
        assert prior.prior == pytest.approx(tuple(np.maximum(mean, 1e-9).tolist()), rel=1e-3)
        assert PriorCorrection.content_free(AsyncEngine(engine), question, ("N/A", "-")) == prior
        answers = engine.decide("The library is open.", [question, YesNo("Is it?"), Score("How clear is it?")])
        found = prior.apply(answers[0])
        assert sum(found.probabilities.values()) == pytest.approx(1.0)
        for one in answers:
            told = Calibrator("temperature", {"temperature": 3.0}).apply(one)
            assert told.label == one.label and max(told.probabilities.values()) <= max(one.probabilities.values())
    prior.save(tmp_path / "prior.json")
    assert PriorCorrection.load(tmp_path / "prior.json") == prior


# ------------------------------------------------------------------ refusals
@pytest.mark.parametrize(
    ("rows", "truth", "options"),
    [
        ([[0.5, 0.5]] * 40, [0] * 40, {"method": "magic"}),
        ([[0.5, 0.5]] * 40, [0] * 40, {"method": "platt"}),
        ([[0.5, 0.5], [0.2, 0.3, 0.5]] * 20, [0, 1] * 20, {"method": "platt", "labels": ("a", "b")}),
        ([[0.7, 0.3]] * 29, [0] * 29, {}),
    ],
)
def test_data_that_cannot_be_fitted(rows: Any, truth: Any, options: Any) -> None:
    with pytest.raises(CalibrationError):
        Calibrator.fit(rows, truth, **options)


def test_separable_data_stay_finite(caplog: pytest.LogCaptureFixture) -> None:
    rows, truth = [np.array([0.9, 0.1]), np.array([0.1, 0.9])] * 50, [0, 1] * 50
    for method in METHODS:
        fitted = Calibrator.fit(rows, truth, method=method, labels=("a", "b"))  # type: ignore[arg-type]
        assert np.isfinite(fitted.probabilities([0.7, 0.3])).all()
    assert Calibrator.fit(rows, [1, 0] * 50).parameters["temperature"] == pytest.approx(20.0, rel=0.01)
    assert Calibrator.fit([[0.51, 0.49], [0.49, 0.51]] * 50, truth).parameters["temperature"] < 0.051
    assert all(f"the fitted temperature {limit} is at its limit" in caplog.text for limit in ("0.05", "20"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"method": "magic"}, {"parameters": {}}, {"parameters": {"temperature": 0}},
        {"parameters": {"temperature": "2"}}, {"parameters": {"temperature": True}},
        {"parameters": {"temperature": int("9" * 401)}}, {"parameters": None}, {"parameters": 2.0},
        {"parameters": [2.0]}, {"method": None}, {"method": ["temperature"]}, {"labels": 3}, {"labels": "ab"},
        {"labels": [["a"], ["b"]]}, {"labels": ["a", "a"]}, {"asked": ["question"]}, {"facts": 7},
        {"method": "platt"},
        {"method": "platt", "parameters": {"slope": 1.0, "offsets": [1.0]}, "labels": ["a", "b"]}, {"kind": "prior"},
        {"version": 9}, {"unknown": 1}, {"parameters": {"temperature": 1e-320}},
        {"method": "platt", "parameters": {"slope": 1.0, "offsets": [10**400, 0]}, "labels": ["a", "b"]},
        {"method": "platt", "parameters": {"slope": 1.0, "offsets": [1e308, 0]}, "labels": ["a", "b"]},
    ],
)  # fmt: skip
def test_a_file_that_is_no_calibrator(wrong: dict[str, Any], tmp_path: Path) -> None:
    good = {"version": 1, "kind": "calibrator", "method": "temperature", "parameters": {"temperature": 2.0}}
    path = tmp_path / "c.json"
    path.write_text(json.dumps(good), encoding="utf-8")
    assert Calibrator.load(path).parameters["temperature"] == 2.0
    path.write_text(json.dumps({**good, **wrong}), encoding="utf-8")
    with pytest.raises(CalibrationError, match=r"c\.json"):
        Calibrator.load(path)


def test_a_file_that_is_no_json_is_no_calibrator(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    for text in ("[", "[" * 100_000, '{"kind": "calibrator", "kind": "calibrator"}', "9" * 5000, "\ufeff{}"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(CalibrationError, match=r"c\.json"):
            Calibrator.load(path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"labels": None}, {"labels": 2}, {"labels": ["a", "a"]}, {"prior": None}, {"prior": [0.5]},
        {"prior": [0.5, "0.5"]}, {"prior": [10**400, 1]}, {"prior": [1e308, 1e308]}, {"prior": [5e-324, 1.0]},
        {"target": 0.5}, {"target": [0.5, 0.0]},
    ],
)  # fmt: skip
def test_a_file_that_is_no_prior(wrong: dict[str, Any], tmp_path: Path) -> None:
    good = {"version": 1, "kind": "prior", "labels": ["a", "b"], "prior": [0.25, 0.75]}
    path = tmp_path / "p.json"
    path.write_text(json.dumps(good), encoding="utf-8")
    assert PriorCorrection.load(path).prior == (0.25, 0.75)
    [name] = wrong
    path.write_text(json.dumps({**good, **wrong}), encoding="utf-8")
    with pytest.raises(CalibrationError, match=rf"p\.json: .*{name}"):
        PriorCorrection.load(path)


# ------------------------------------------------------------------ figures
def segments(counts: list[int], shares: Any, x: Any) -> list[Any]:
    """A line for each share: Wilson's 95 % interval, as scipy has it."""
    stats = pytest.importorskip("scipy.stats")
    tests = [stats.binomtest(round(count * share), count) for count, share in zip(counts, shares)]
    return [
        [[at, low], [at, high]] for at, (low, high) in zip(x, [one.proportion_ci(method="wilson") for one in tests])
    ]


def test_figures_show_each_bin_and_each_coverage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = pytest.importorskip("matplotlib.figure")
    from prelude.calibration.plots import reliability_plot, risk_coverage_plot

    saved: list[Any] = []
    monkeypatch.setattr(figures.Figure, "savefig", lambda figure, path, **options: saved.append((figure, path)))
    draw = np.random.default_rng(0)
    confidence = draw.uniform(0.4, 1.0, 300)
    correct = (draw.random(300) < confidence**2).astype(float)
    curves = {"before": (confidence, correct), "after": (confidence**2, correct)}
    reliability_plot(curves, tmp_path / "bins.png", bins=5, title="of 300 answers")
    risk_coverage_plot(curves, tmp_path / "risk.png", title="of 300 answers")
    (bins, first), (risks, second) = saved
    assert (first, second) == (tmp_path / "bins.png", tmp_path / "risk.png")
    (above, below), [axes] = bins.axes, risks.axes
    said = [[text.get_text() for text in one.get_legend().get_texts()] for one in (above, below, axes)]
    eces = [f"{name}: ECE {metrics.ece(*curve, 5):.3f}" for name, curve in curves.items()]
    areas = [f"{name}: area {metrics.risk_coverage(*curve)[1].mean():.4f}" for name, curve in curves.items()]
    assert said == [["calibrated", *eces], ["before", "after"], areas]
    assert (
        above.get_title() == "Reliability\nof 300 answers" and axes.get_title() == "Risk by coverage\nof 300 answers"
    )
    assert above.lines[0].get_xydata().tolist() == [[0, 0], [1, 1]] and below.get_shared_x_axes().joined(above, below)
    assert above.get_ylim() == (-0.03, 1.03) and below.get_xlim() == (-0.02, 1.02) and axes.get_ylim()[0] == 0
    width = 1 / 5 / 2.5
    for at, curve in enumerate(curves.values()):
        found = [one for one in metrics.reliability(*curve, 5) if one.count]
        x, y, counts = zip(*[(one.confidence, one.accuracy, one.count) for one in found])
        lines, dots = above.collections[2 * at : 2 * at + 2]
        assert np.allclose(lines.get_segments(), segments(counts, y, x), atol=1e-4)
        assert np.allclose(dots.get_offsets(), list(zip(x, y)))
        assert np.allclose((dots.get_sizes() - 8) / np.array(counts), 150 / max(counts)), "by the bin's answers"
        bars = [(bar.get_center()[0], bar.get_width(), bar.get_height()) for bar in below.containers[at]]
        middles = [(one.low + one.high) / 2 + width * (at - 0.5) for one in found]
        assert np.allclose(bars, [(middle, width, count) for middle, count in zip(middles, counts)])
        coverage, risk = metrics.risk_coverage(*curve)
        dots = axes.lines[at].get_xydata()
        kept = np.round((dots[:, 0] - 0.004 * at) * 300).astype(int)
        assert (kept[0], kept[-1], len(kept)) == (20, 300, 40) and np.ptp(np.diff(kept)) <= 1
        assert np.allclose(dots, np.stack([coverage[kept - 1] + 0.004 * at, risk[kept - 1]], axis=1))
        assert np.allclose(axes.collections[at].get_segments(), segments(kept, dots[:, 1], dots[:, 0]), atol=1e-4)
    risk_coverage_plot({"few": (confidence[:5], correct[:5])}, tmp_path / "few.png", title="")
    assert saved[-1][0].axes[0].lines[0].get_xydata().tolist() == [[1.0, 1 - correct[:5].mean()]]
