"""A calibrator is of one question, one template and one model, and says when it makes probabilities worse."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prelude import Calibrator, Choice, Decide, Engine, PriorCorrection, YesNo
from prelude.admission.template import DecisionTemplate
from prelude.calibration.report import calibrate
from prelude.default_model import path as default_path
from prelude.errors import CalibrationError
from prelude.results import Answer
from prelude.tools.cli import main
from tests.calibration.test_calibrator import LABELS, answer, drawn

LANGUAGE = Choice("Which language is it?", ["English", "German"])
TEXTS = {"English": "The library is open on day {}.", "German": "Die Bibliothek ist am Tag {} offen."}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.from_pretrained() as made:
        yield made


def asked(engine: Engine, question: Any = LANGUAGE, **options: Any) -> list[Answer]:
    texts = [text.format(day) for day in range(20) for text in TEXTS.values()]
    return [one[0] for one in engine.run_many([Decide(text, [question], **options) for text in texts])]


def fitted(engine: Engine, folder: Path) -> tuple[Calibrator, PriorCorrection]:
    """Through files."""
    answers = asked(engine)
    Calibrator.fit_answers(answers, [*TEXTS] * 20).save(folder / "calibrator.json")
    PriorCorrection.of_answers(answers).save(folder / "prior.json")
    return Calibrator.load(folder / "calibrator.json"), PriorCorrection.load(folder / "prior.json")


@pytest.mark.feature("G22")
def test_answers_of_the_same_kind_are_changed(engine: Engine, tmp_path: Path) -> None:
    for one in fitted(engine, tmp_path):
        [answer] = engine.decide("Guten Tag.", [LANGUAGE])
        assert one.apply(answer).label == "German"
        turned = engine.decide("Guten Tag.", {"q": Choice(LANGUAGE.question, ["German", "English"])}, orders="all")
        assert one.apply(turned["q"]).label == "German", "neither a name nor an order is part of the question"


@pytest.mark.feature("G22")
@pytest.mark.parametrize(
    ("question", "options", "message"),
    [
        (Choice("Which language is it not?", ["English", "German"]), {}, "question 'Which language is it not"),
        (Choice(None, ["English", "German"]), {}, "question ''"),
        (Choice(LANGUAGE.question, ["English", "Dutch"]), {}, "labels .*Dutch"),
        (Choice(LANGUAGE.question, {"English": "of Britain", "German": None}), {}, "descriptions"),
        (YesNo(LANGUAGE.question), {}, "labels .*yes"),
        (LANGUAGE, {"template": DecisionTemplate(separator="; ")}, "template"),
        (LANGUAGE, {"length_norm": "token"}, "length_norm 'token'"),
    ],
)
def test_an_answer_of_another_kind_is_refused(
    question: Any, options: dict[str, Any], message: str, engine: Engine, tmp_path: Path
) -> None:
    [other] = engine.decide("Guten Tag.", [question], **options)
    for one in fitted(engine, tmp_path):
        with pytest.raises(CalibrationError, match=message):
            one.apply(other)


@pytest.mark.feature("G22")
def test_a_copy_of_the_model_is_the_same_and_another_model_is_refused(engine: Engine, tmp_path: Path) -> None:
    calibrator, prior = fitted(engine, tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(default_path(), copy, ignore=shutil.ignore_patterns("__pycache__"))
    with Engine.from_pretrained(copy) as same:
        calibrator.apply(same.decide("Guten Tag.", [LANGUAGE])[0])
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    other = tmp_path / "other"
    copy.rename(other)
    (other / "model.safetensors").write_bytes(weights)
    with Engine.from_pretrained(other) as tuned:
        [answer] = tuned.decide("Guten Tag.", [LANGUAGE])
        for one in (calibrator, prior):
            with pytest.raises(CalibrationError, match="model"):
                one.apply(answer)


@pytest.mark.feature("G22")
def test_an_answer_is_changed_once_and_in_the_order_of_the_fit(engine: Engine, tmp_path: Path) -> None:
    raw, prior = fitted(engine, tmp_path)
    answers = asked(engine)
    Calibrator.fit_answers([prior.apply(one) for one in answers], [*TEXTS] * 20).save(tmp_path / "after.json")
    after = Calibrator.load(tmp_path / "after.json")
    first = answers[0]
    others = [Calibrator("temperature", {"temperature": 1 + at / 100}, facts={"at": at}) for at in range(60)]
    others.append(Calibrator("temperature", {"temperature": 1.0}))
    assert len({one.apply(first).asked for one in others}) == 60, "facts change nothing"
    changed = PriorCorrection(("English", "German"), (0.25, 0.75)).apply(first).asked
    assert changed and changed.changed_by == ("PriorCorrection d925dbb478bca265",), "as later files name it"
    assert after.apply(prior.apply(first)).label == "English"
    uniform = PriorCorrection.content_free(engine, LANGUAGE)
    twice = [(raw, raw.apply(first)), (raw, prior.apply(first)), (prior, raw.apply(first)), (after, first)]
    for by, changed in [*twice, (after, uniform.apply(first))]:
        with pytest.raises(CalibrationError, match="applied before"):
            by.apply(changed)
    for fit in (lambda some: Calibrator.fit_answers(some, [*TEXTS] * 20), PriorCorrection.of_answers):
        with pytest.raises(CalibrationError, match="some answers were changed by"):
            fit([*answers[:20], *map(raw.apply, answers[20:])])


def test_answers_to_several_questions_share_what_is_the_same(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    several = asked(engine)[:20] + asked(engine, Choice("What is it written in?", ["English", "German"]))[:20]
    found = Calibrator.fit_answers(several, [*TEXTS] * 20)
    assert "several questions" in caplog.text
    assert "question" not in found.asked and {"template", "model"} <= set(found.asked)
    found.apply(several[0])
    [other] = engine.decide("Guten Tag.", [LANGUAGE], template=DecisionTemplate(separator="; "))
    with pytest.raises(CalibrationError, match="template"):
        found.apply(other)


def test_a_file_of_answered_rows_knows_its_question(tmp_path: Path) -> None:
    rows, truth = drawn(80)
    lines = [
        json.dumps({"question": "Which?", "probabilities": dict(zip(LABELS, row.tolist())), "label": LABELS[at]})
        for row, at in zip(rows, truth)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines), encoding="utf-8")
    assert main(["calibrate", str(tmp_path / "rows.jsonl"), "--save", str(tmp_path / "c.json")]) == 0
    found = Calibrator.load(tmp_path / "c.json")
    assert found.asked == {"question": "Which?"} and found.labels == LABELS
    found.apply(answer([0.5, 0.3, 0.2]))
    with pytest.raises(CalibrationError, match="labels"):
        found.apply(answer([0.5, 0.3, 0.2], ("a", "b", "d")))


@pytest.mark.feature("G22")
def test_a_fit_that_makes_held_out_answers_worse_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Truth that does not depend on the probabilities: a fit on it can only follow chance."""
    rows, truth = drawn(60, slope=1.0, seed=3)
    draw = np.random.default_rng(5)
    noise = [int(draw.choice(3, p=row)) for row in rows]
    found = Calibrator.fit(rows, noise, method="isotonic")
    held = found.facts["held_out"]
    assert held["nll"][1] > held["nll"][0] and "held-out fifths of the 60 rows get worse" in caplog.text
    assert f"NLL {held['nll'][0]:.4f} to {held['nll'][1]:.4f}" in caplog.text
    caplog.clear()
    answers = [answer(row.tolist()) for row in rows]
    report = calibrate(answers, [LABELS[at] for at in noise], method="isotonic")
    assert report.after.nll > report.before.nll
    assert "makes the 30 held-out answers worse" in caplog.text
    caplog.clear()
    steep, truth = drawn(400)
    held = Calibrator.fit(steep, truth).facts["held_out"]
    assert held["ece"][1] < held["ece"][0] / 2 and not caplog.text, "a fit that helps warns of nothing"
