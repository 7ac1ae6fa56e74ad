"""Calibrator and PriorCorrection: fitted once, kept as JSON, applied to answers by the caller."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import numpy as np

from prelude.calibration.fitting import (
    LEAST_T,
    MOST_T,
    NOTHING_TO_CALIBRATE,
    fit_isotonic,
    fit_platt,
    fit_temperature,
    softmax,
)
from prelude.calibration.metrics import F64, check_rows, row_of, summary, worsened
from prelude.errors import CalibrationError, reason, shown
from prelude.models.identity import known_hash
from prelude.records import dataclass, field
from prelude.results import Answer
from prelude.values.strict_json import parse
from prelude.values.validation import listed

_SAID = {
    "question": "question",
    "descriptions": "descriptions of labels",
    "template": "hash of the template",
    "length_norm": "length_norm",
    "model": "hash of the model",
    "changed_by": "priors and calibrators applied before",
}


def asked_of(answer: Answer) -> dict[str, Any]:
    """The values of ``answer.asked`` that are known, as a file keeps them. The model is the hash of its files."""
    asked = answer.asked
    if asked is None:
        return {}
    found: dict[str, Any] = {"question": asked.question, "template": asked.template, "length_norm": asked.length_norm}
    if asked.template:  # of an answer that an engine gave
        found["descriptions"] = dict(zip(asked.labels, asked.notes))
        found["model"] = known_hash(asked.model)
    if asked.template or asked.changed_by:
        found["changed_by"] = list(asked.changed_by)
    return {name: value for name, value in found.items() if value != "" or name == "question"}


def common_asked(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return the values that are the same for all answers. ``CalibrationError`` if some were changed before by other
    priors or calibrators than the rest; a warning if they answer several questions."""
    first = asked_of(answers[0])
    several = False
    for answer in {id(answer.asked): answer for answer in answers}.values():
        other = asked_of(answer)
        if (before := first.get("changed_by", [])) != (now := other.get("changed_by", [])):
            raise CalibrationError(
                f"some answers were changed by {shown(before)}, others by {shown(now)}; give one kind"
            )
        several |= first.get("question", "") != other.get("question", "")
        first = {name: value for name, value in first.items() if name in other and other[name] == value}
    if several:
        log.warning("the answers are to several questions: answers to any question are taken later")
    return first


def check_asked(of: str, labels: Sequence[str] | None, asked: Mapping[str, Any], answer: Answer) -> None:
    """Raise ``CalibrationError`` if ``answer`` differs from the answers that a calibrator or prior is of."""
    _answers([answer])
    if labels is not None and sorted(answer.labels) != sorted(labels):
        raise CalibrationError(f"labels {shown(answer.labels)}; this {of} is of {shown(labels)}")
    if not asked:
        return
    found = asked_of(answer)
    for name, said in _SAID.items():
        if name in asked and name in found and asked[name] != found[name]:
            raise CalibrationError(
                f"{said} {shown(found[name])}; this {of} is of {shown(asked[name])}; fit one on answers of this kind"
            )


Method = Literal["temperature", "platt", "isotonic"]
_Kept = TypeVar("_Kept", "Calibrator", "PriorCorrection")
METHODS: tuple[str, ...] = get_args(Method)
VERSION = 1
LEAST_ROWS = 30
"""The least rows of a fit. With fewer, chance moves a temperature by more than the rows do."""
FOLDS = 5
MAX_BYTES = 1 << 24
_LEAST = 1e-30  # the least probability whose logarithm is taken
_LEAST_SHARE = 1e-9  # the least that the isotonic function gives: no label is excluded by a few hundred examples
_ROUNDING = 1e-12  # of the sum of shares
log = logging.getLogger("prelude.calibration")
_LARGEST = 1e6  # of a parameter: no row of probabilities becomes infinite by it


@dataclass(frozen=True, slots=True)
class Calibrator:
    """A map from the probabilities of one question to calibrated ones.

    ==============  ===================================================  ==============================
    temperature     softmax(log p / T)                                   any labels; keeps the best one
    platt           softmax(a log p + b), one offset b a label           the labels that it was fitted on
    isotonic        g(p), normalised; g ascending, fitted over all       any labels; keeps the best one,
                    labels of all rows                                   up to ties
    ==============  ===================================================  ==============================

    Temperature has one number and is the choice for a few hundred labels; platt corrects a leaning towards a label
    as well; isotonic takes any ascending form and wants a thousand labels. ``parameters`` are "temperature", or
    "slope" and "offsets", or "x" and "y". ``labels`` and ``asked`` (question, template, model) are those of the fit,
    as far as they are known and the same for all answers: ``apply`` refuses others. ``facts`` are notes, such as the
    size of the fit; they change nothing.
    """

    method: Method
    parameters: Mapping[str, Any]
    labels: tuple[str, ...] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    asked: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise CalibrationError(f"method {shown(self.method)} is not one of {', '.join(METHODS)}")
        if self.labels is not None:
            object.__setattr__(self, "labels", _labels(self.labels))
        for name in ("parameters", "facts", "asked"):
            if not isinstance(getattr(self, name), Mapping):
                raise CalibrationError(f"{name}: {shown(getattr(self, name))} is not an object")
        given = self.parameters
        if self.method == "temperature":
            if _number(given, "temperature") < 1 / _LARGEST:
                raise CalibrationError(f"temperature: {given['temperature']} is not at least {1 / _LARGEST:g}")
        elif self.method == "platt":
            offsets = _numbers(given, "offsets")
            if self.labels is None or len(self.labels) != len(offsets) or _number(given, "slope") <= 0:
                raise CalibrationError("platt needs its labels, an offset for each and a slope above 0")
        else:
            x, y = _numbers(given, "x"), _numbers(given, "y")
            steps = [*np.diff(x), *np.diff(y)]
            if not x or len(x) != len(y) or min(steps, default=0) < 0 or min(y) < 0 or max(y) > 1:
                raise CalibrationError("isotonic needs x and y of equal length, ascending, y between 0 and 1")

    # -------------------------------------------------------------- fitting

    @classmethod
    def fit(
        cls,
        probabilities: Sequence[Sequence[float]],
        truth: Sequence[int],
        *,
        method: Method = "temperature",
        labels: Sequence[str] | None = None,
    ) -> Calibrator:
        """Fit at least 30 rows of probabilities to the index of each row's true label. ``labels`` names the
        columns: "platt" needs it. Five further fits, each without a fifth of the rows, are measured on that fifth: if
        probabilities get worse, a warning says so, and ``facts`` has the numbers. Raises ``CalibrationError``."""
        if method not in METHODS:
            raise CalibrationError(f"method {shown(method)} is not one of {', '.join(METHODS)}")
        rows = [row_of(row, f"rows[{at}]") for at, row in enumerate(listed(probabilities, "probabilities"))]
        truth = listed(truth, "truth")
        check_rows(rows, truth)
        if len(rows) < LEAST_ROWS:
            raise CalibrationError(f"{len(rows)} labelled rows to fit on; it takes at least {LEAST_ROWS}")
        index = [int(label) for label in truth]
        if method == "platt" and (labels is None or {len(row) for row in rows} != {len(labels)}):
            raise CalibrationError("platt has an offset for each label: give labels, in the same order for all rows")
        named = None if labels is None else tuple(labels)
        held = list(rows)
        fold_of = np.random.default_rng(0).permutation(len(rows)) % FOLDS
        for fold in range(FOLDS):
            ours = np.flatnonzero(fold_of != fold).tolist()
            part = cls._fitted(method, [rows[at] for at in ours], [index[at] for at in ours], named)
            for at in np.flatnonzero(fold_of == fold).tolist():
                held[at] = part.probabilities(rows[at])
        before, after = summary([row / row.sum() for row in rows], index), summary(held, index)
        if worse := worsened(before, after):
            log.warning("held-out fifths of the %d rows get worse: %s", len(rows), worse)
        found = cls._fitted(method, rows, index, named)
        if method == "isotonic" and len(set(found.parameters["y"])) == 1:
            raise CalibrationError(f"the fitted function is the same for all probabilities: {NOTHING_TO_CALIBRATE}")
        temperature = found.parameters.get("temperature", 1.0)
        if not LEAST_T * 1.01 < temperature < MOST_T / 1.01:
            log.warning("the fitted temperature %.3g is at its limit: the labels say too little", temperature)
        held_out = {name: [getattr(before, name), getattr(after, name)] for name in ("ece", "brier", "nll")}
        return dataclasses.replace(found, facts={"rows": len(rows), "held_out": held_out})

    @classmethod
    def _fitted(
        cls, method: Method, rows: Sequence[F64], index: Sequence[int], labels: tuple[str, ...] | None
    ) -> Calibrator:
        logs = [log_of(row) for row in rows]
        if method == "temperature":
            return cls(method, {"temperature": fit_temperature(logs, index)}, labels)
        if method == "isotonic":
            x, y = fit_isotonic(logs, index)
            return cls(method, {"x": x, "y": y}, labels)
        slope, offsets = fit_platt(logs, index, len(rows[0]))
        return cls(method, {"slope": slope, "offsets": offsets}, labels)

    @classmethod
    def fit_answers(
        cls, answers: Sequence[Answer], truth: Sequence[str], *, method: Method = "temperature"
    ) -> Calibrator:
        """Fit answers to one question to the true label of each. The calibrator knows their question, template and
        model, and is applied to no others."""
        answers = _answers(answers)
        rows, index = rows_of(answers, truth)
        labels = answers[0].labels
        same = all(answer.labels == labels for answer in answers)
        found = cls.fit(rows, index, method=method, labels=labels if same else None)
        return dataclasses.replace(found, asked=common_asked(answers))

    # -------------------------------------------------------------- applying

    def probabilities(self, given: Sequence[float], labels: Sequence[str] | None = None) -> F64:
        """Return the calibrated probabilities of one row, float64 [labels], which sum to 1."""
        logs = log_of(row_of(given, "probabilities"))
        if self.method == "temperature":
            return softmax(logs / self.parameters["temperature"])
        if self.method == "isotonic":
            shares = np.interp(np.exp(logs), self.parameters["x"], self.parameters["y"])
            shares = np.maximum(shares, _LEAST_SHARE)
            found: F64 = shares / shares.sum()
            return found
        offsets = np.array(self.parameters["offsets"])
        if labels is not None and self.labels is not None and tuple(labels) != self.labels:
            if sorted(labels) != sorted(self.labels):
                raise CalibrationError(f"labels {shown(tuple(labels))}; this calibrator is of {shown(self.labels)}")
            offsets = offsets[[self.labels.index(label) for label in labels]]
        if len(offsets) != len(logs):
            raise CalibrationError(f"{len(logs)} labels; this calibrator is of {len(offsets)}")
        return softmax(self.parameters["slope"] * logs + offsets)

    def apply(self, answer: Answer) -> Answer:
        """The answer with calibrated ``probabilities`` and the values that follow from them: ``label``, ``index``,
        ``probability``, ``expected`` and ``confidence``. ``logprobs`` and ``mass`` stay the model's own.
        ``CalibrationError`` for an answer to another question, of another template or of another model, and for one
        that other priors or calibrators changed before than those of the fit."""
        check_asked("calibrator", self.labels, self.asked, answer)
        return changed(answer, self.probabilities(list(answer.probabilities.values()), answer.labels), self)

    def score(self, logit: float) -> float:
        """The calibrated probability of yes of a number such as ``RerankResult.logit``, for a calibrator that was
        fitted on rows (1 - p, p) with p = sigmoid(logit)."""
        return float(self.probabilities(pair(_number({"logit": logit}, "logit")), self.labels)[1])

    # -------------------------------------------------------------- kept

    def save(self, path: str | Path) -> None:
        _save(self, "calibrator", path)

    @classmethod
    def load(cls, path: str | Path) -> Calibrator:
        """Raises ``CalibrationError`` that names the file."""
        return _loaded(path, "calibrator", cls)


@dataclass(frozen=True, slots=True)
class PriorCorrection:
    """p'(label) in proportion to p(label) / prior(label): the model's preference for a label without a text is
    divided out. ``prior`` and ``target`` are in the order of ``labels``, and are divided by their sums.

    The prior of ``content_free`` is the model's answer to states without content; that of ``of_answers`` is the
    mean of its answers to many real states, which supposes that the labels are about equally frequent there, or as
    frequent as ``target`` says. Both are estimates from outside of a request: keep them fixed, since a prior that
    follows the traffic makes an answer depend on earlier ones.
    """

    labels: tuple[str, ...]
    prior: tuple[float, ...]
    target: tuple[float, ...] | None = None
    asked: Mapping[str, Any] = field(default_factory=dict)  # as that of a ``Calibrator``

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", _labels(self.labels))
        if not isinstance(self.asked, Mapping):
            raise CalibrationError(f"asked: {shown(self.asked)} is not an object")
        for name in ("prior", "target"):
            shares = getattr(self, name)
            if shares is None and name == "target":
                continue
            numbers = _numbers({name: shares}, name)
            if len(numbers) != len(self.labels) or not numbers or min(numbers) < _LEAST:
                raise CalibrationError(
                    f"{name} {shown(shares)}: a number of at least {_LEAST:g} for each of {len(self.labels)} labels"
                )
            total = sum(numbers)
            if abs(total - 1) > _ROUNDING:  # shares that were divided before keep their bits, as those of a file do
                numbers = [number / total for number in numbers]
            object.__setattr__(self, name, tuple(numbers))

    @classmethod
    def of_answers(cls, answers: Sequence[Answer], target: Mapping[str, float] | None = None) -> PriorCorrection:
        """Return the mean probabilities of answers to one question."""
        answers = _answers(answers)
        labels = _common(answers)
        mean = np.mean([list(answer.probabilities.values()) for answer in answers], axis=0)
        if target is not None and (not isinstance(target, Mapping) or set(target) != set(labels)):
            raise CalibrationError(f"target {shown(target)}: it takes a share for each of the labels {shown(labels)}")
        aim = None if target is None else tuple(_number(target, label) for label in labels)
        return cls(labels, tuple(np.maximum(mean, _LEAST_SHARE).tolist()), aim, common_asked(answers))

    @classmethod
    def content_free(
        cls, engine: Any, question: Any, states: Sequence[str] = ("N/A", "[...]", "-"), **keywords: Any
    ) -> PriorCorrection:
        """The mean answer of ``engine`` to ``question`` about states without content. They should
        have the form of the real ones, with an empty text in the place of the judged one."""
        engine = getattr(engine, "engine", engine)  # of an AsyncEngine
        asked = listed(states, "states", " of texts")
        return cls.of_answers([engine.decide(state, [question], **keywords)[0] for state in asked])

    def apply(self, answer: Answer) -> Answer:
        check_asked("prior", self.labels, self.asked, answer)
        places = [self.labels.index(label) for label in answer.labels]
        logs = log_of(np.array(list(answer.probabilities.values()))) - np.log(np.array(self.prior)[places])
        if self.target is not None:
            logs = logs + np.log(np.array(self.target)[places])
        return changed(answer, softmax(logs), self)

    def save(self, path: str | Path) -> None:
        _save(self, "prior", path)

    @classmethod
    def load(cls, path: str | Path) -> PriorCorrection:
        """Raises ``CalibrationError`` that names the file."""
        return _loaded(path, "prior", cls)


# ------------------------------------------------------------------ helpers


def log_of(row: F64) -> F64:
    """Logarithms of a row of probabilities, normalised, none below that of 1e-30."""
    found: F64 = np.log(np.maximum(row / row.sum(), _LEAST))
    return found


def pair(logit: float) -> tuple[float, float]:
    """(1 - p, p) of a logit."""
    small = math.exp(-abs(logit))
    high, low = 1 / (1 + small), small / (1 + small)
    return (low, high) if logit >= 0 else (high, low)


def rows_of(answers: Sequence[Answer], truth: Sequence[str]) -> tuple[list[list[float]], list[int]]:
    answers, truth = _answers(answers), listed(truth, "labels")
    if len(answers) == 0 or len(answers) != len(truth):
        raise CalibrationError(f"{len(answers)} answers and {len(truth)} labels; one label an answer, at least one")
    index = []
    for at, (answer, label) in enumerate(zip(answers, truth)):
        if label not in answer.labels:
            raise CalibrationError(f"answers[{at}]: {shown(label)} is none of its labels {shown(answer.labels)}")
        index.append(answer.labels.index(label))
    return [list(answer.probabilities.values()) for answer in answers], index


def changed(answer: Answer, shares: F64, by: Calibrator | PriorCorrection) -> Answer:
    """``answer`` with other probabilities. What ``answer.asked`` knows of it grows by the hash of ``by``."""
    index = int(np.argmax(shares))
    values = dict(zip(answer.labels, shares.tolist()))
    expected = answer.expected
    if expected is not None:
        first = 1 if answer.labels[0] == "1" else 0
        expected = math.fsum([level * share for level, share in enumerate(shares.tolist(), start=first)])
    probability = float(shares[0] if answer.kind == "noul" else shares[index])
    asked = answer.asked
    if asked is not None:
        fields = {one.name: getattr(by, one.name) for one in dataclasses.fields(by) if one.name != "facts"}
        described = json.dumps(fields, sort_keys=True, default=str)
        digest = hashlib.blake2b(described.encode(), digest_size=8).hexdigest()
        asked = dataclasses.replace(asked, changed_by=(*asked.changed_by, f"{type(by).__name__} {digest}"))
    return dataclasses.replace(
        answer,
        label=answer.labels[index],
        index=index,
        probabilities=values,
        probability=probability,
        expected=expected,
        asked=asked,
    )


def _answers(given: Any) -> list[Answer]:
    for at, answer in enumerate(found := listed(given, "answers")):
        if not isinstance(answer, Answer):
            raise CalibrationError(f"answers[{at}]: {shown(answer)} is not the Answer to one question")
    return found


def _common(answers: Sequence[Answer]) -> tuple[str, ...]:
    if not answers or any(answer.labels != answers[0].labels for answer in answers):
        raise CalibrationError("a prior is over one set of labels: give answers to one question, at least one")
    return answers[0].labels


def _number(values: Mapping[str, Any], name: str) -> float:
    value = values.get(name)
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float | np.integer | np.floating)
        or not -_LARGEST <= value <= _LARGEST
    ):
        raise CalibrationError(f"{name}: {shown(value)} is not a number from {-_LARGEST:g} to {_LARGEST:g}")
    return float(value)


def _labels(given: Any) -> tuple[str, ...]:
    if not isinstance(given, list | tuple) or not all(isinstance(label, str) for label in given):
        raise CalibrationError(f"labels: {shown(given)} is not a list of strings")
    if len(set(given)) != len(given):
        raise CalibrationError(f"labels: {shown(given)} has a label twice")
    return tuple(given)


def _numbers(values: Mapping[str, Any], name: str) -> list[float]:
    given = values.get(name)
    if not isinstance(given, list | tuple):
        raise CalibrationError(f"{name}: {shown(given)} is not a list of numbers")
    return [_number({name: value}, name) for value in given]


def _save(kept: Calibrator | PriorCorrection, kind: str, path: str | Path) -> None:
    text = json.dumps({"version": VERSION, "kind": kind, **dataclasses.asdict(kept)}, indent=1)
    Path(path).write_text(text + "\n", encoding="utf-8")


def _loaded(path: str | Path, kind: str, cls: type[_Kept]) -> _Kept:
    from prelude.tokenizer.backends.files import read_plain

    try:
        data = read_plain(path, MAX_BYTES)
    except (OSError, ValueError) as error:
        raise CalibrationError(f"{path}: cannot be read: {reason(error)}") from error
    found = parse(data, str(path), CalibrationError)
    if not isinstance(found, dict) or found.pop("kind", None) != kind or found.pop("version", None) != VERSION:
        raise CalibrationError(f"{path}: not a {kind} of version {VERSION}")
    known = {one.name: one for one in dataclasses.fields(cls)}
    if unknown := sorted(found.keys() - known.keys()):
        raise CalibrationError(f"{path}: unknown field {shown(unknown[0])}")
    for name, one in known.items():
        if name not in found and one.default is one.default_factory is dataclasses.MISSING:
            raise CalibrationError(f"{path}: {name} is missing")
    try:
        return cls(**found)
    except CalibrationError as error:
        raise CalibrationError(f"{path}: {error}") from error
