"""A fitted question: a linear head on the vector of a text, and the answer that it gives."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from prelude._native import cpu
from prelude.errors import CheckpointError, InvalidRequest, shown
from prelude.fitting.report import FitReport, Scope
from prelude.models.identity import known_hash
from prelude.models.packed import PackedLinear
from prelude.records import dataclass
from prelude.results import Answer, AskedQuestion
from prelude.values import validation
from prelude.values.arrays import F32

Kind: TypeAlias = Literal["choice", "noul", "score"]
SIDES = ("yes", "no")
_SIDE_OF = {True: "yes", False: "no", "yes": "yes", "no": "no", "true": "yes", "false": "no"}
MOST_LABELS, MOST_LEVELS, MOST_INPUTS, MOST_CHARS = 4096, 10, 1 << 16, 1 << 16
MOST_WEIGHT = 1e6
"""Of a value of a head: no product with a vector of length 1 overflows."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FittedQuestion:
    """A question that ``engine.fit`` made of labelled texts, or ``from_arrays`` of a trained head. ``decide``
    takes it; the model computes the state once for all fitted questions of a decision.

    ``labels`` are those of an answer, in its order. ``prompt_name`` and ``pooling`` are those of ``embed``; ``model``
    is the hash of the model's files, "" where any model with vectors of that size is taken. ``report`` says how well
    it did on rows that it had not seen; ``digest`` is equal for equal heads. It never changes and can be pickled."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    question: str
    prompt_name: str | None
    pooling: str | None
    model: str
    scope: Scope | None
    report: FitReport | None
    digest: str
    _head: PackedLinear

    @classmethod
    def from_arrays(
        cls,
        weight: Any,
        bias: Any,
        labels: Sequence[Any],
        *,
        name: str,
        kind: Kind = "choice",
        question: str | None = None,
        prompt_name: str | None = None,
        pooling: str | None = None,
        model: str = "",
        scope: Scope | None = None,
        report: FitReport | None = None,
    ) -> FittedQuestion:
        """Of ``weight`` [labels, inputs] and ``bias`` [labels] for the vector of ``embed``; or [1, inputs] and [1] of
        the second of two labels, as scikit-learn's ``coef_`` and ``intercept_`` have it.

        The labels of a "noul" are True and False (or "yes" and "no"), those of a "score" the numbers of its levels,
        from 0 or 1 on. Raises ``InvalidRequest`` that names the argument."""
        check_facts(name, kind, question, prompt_name, pooling)
        names = [
            label_of(kind, label, f"labels[{at}]") for at, label in enumerate(validation.listed(labels, "labels"))
        ]
        order = check_labels(kind, names)
        weights, biases = _numbers(weight, "weight", 2), _numbers(bias, "bias", 1)
        if len(weights) == len(biases) == 1 and len(names) == 2:
            weights = np.concatenate([np.zeros_like(weights), weights])
            biases = np.concatenate([np.zeros_like(biases), biases])
        if len(weights) != len(names) or len(biases) != len(names):
            said = f"{len(weights)} rows of weights and {len(biases)} biases of {len(names)} labels; give one a label"
            raise InvalidRequest(said, field="weight")
        if not 1 <= weights.shape[1] <= MOST_INPUTS:
            raise InvalidRequest(f"{weights.shape[1]} inputs; it takes 1 to {MOST_INPUTS}", field="weight")
        weights, biases, found = weights[order], biases[order], tuple([names[at] for at in order])
        described = json.dumps([kind, found, question or "", prompt_name, pooling, model])
        hashed = hashlib.sha256(described.encode())
        rows, wide = [weights], biases
        if scope is not None:
            rows.append(_numbers(scope.rows, "scope", 2))
            wide = np.concatenate([biases, np.zeros(len(rows[1]), np.float32)])
            hashed.update(repr((scope.knots, scope.keep)).encode())
        whole = np.concatenate(rows)
        hashed.update(whole.tobytes() + wide.tobytes())
        head = PackedLinear(whole, wide, "float32")
        digest = hashed.hexdigest()[:32]
        return cls(name, kind, found, question or "", prompt_name, pooling, model, scope, report, digest, head)

    # -------------------------------------------------------------- seen from outside

    @property
    def inputs(self) -> int:
        """Values of a vector."""
        return self._head.inputs

    @property
    def weight(self) -> F32:
        """[labels, inputs], a copy."""
        return self._head.gather(np.arange(len(self.labels)))

    @property
    def bias(self) -> F32:
        """[labels], a copy."""
        return np.array(self._head.bias)[: len(self.labels)]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FittedQuestion):
            return NotImplemented
        return (self.name, self.digest) == (other.name, other.digest)

    def __hash__(self) -> int:
        return hash((self.name, self.digest))

    def __repr__(self) -> str:
        return f"<FittedQuestion {shown(self.name)}: {self.kind} of {len(self.labels)} labels, {self.inputs} inputs>"

    def __reduce__(self) -> Any:
        return _again, (self.weight, self.bias, self._facts())

    def _facts(self) -> dict[str, Any]:
        """The keywords of ``from_arrays``, and ``labels``."""
        fields = ("labels", "name", "kind", "question", "prompt_name", "pooling", "model", "scope", "report")
        return {field: getattr(self, field) for field in fields}

    def of_model(self, path: str) -> bool:
        """Whether it was fitted on the vectors of the model at ``path``, as far as it knows its model."""
        return not self.model or self.model == known_hash(path)

    def answer(self, vector: npt.NDArray[np.float32], model: str = "") -> Answer:
        """The answer for a vector [inputs] of ``embed``. ``mass`` is NaN. ``scope`` is the share of rows like those
        of the fit that lie as far off as this text, or farther; ``in_scope``: whether it is at least ``1 - keep``."""
        return answers([self], vector, model)[0]

    def _answer(self, logits: F32, logprobs: list[float], shares: list[float], near: float, model: str) -> Answer:
        labels = self.labels
        index, expected, scope, inside = int(logits.argmax()), None, None, None
        if self.kind == "score":
            expected = math.fsum([level * share for level, share in enumerate(shares, start=int(labels[0]))])
        if self.scope is not None:
            scope = self.scope.share(near)
            inside = scope >= 1.0 - self.scope.keep
        return Answer(
            labels[index],
            index,
            labels,
            dict(zip(labels, shares)),
            dict(zip(labels, logprobs)),
            math.nan,
            shares[0 if self.kind == "noul" else index],
            expected,
            self.kind,
            AskedQuestion(self.question or self.name, labels, (), f"fitted {self.digest}", "none", model),
            scope,
            inside,
        )

    # -------------------------------------------------------------- kept

    def save(self, path: str | Path) -> None:
        """Writes the question to a file, which replaces one of that name. Raises ``OSError``."""
        from prelude.fitting.file import write

        write(Path(path), self.weight, self.bias, self._facts())

    @classmethod
    def load(cls, path: str | Path) -> FittedQuestion:
        """Raises ``CheckpointError`` that names the file. A question of another model is refused by ``decide``."""
        from prelude.fitting.file import read

        try:
            return cls.from_arrays(**read(Path(path)))
        except InvalidRequest as error:
            raise CheckpointError(f"{path}: {error}") from error


def answers(questions: Sequence[FittedQuestion], vector: npt.NDArray[np.float32], model: str = "") -> list[Answer]:
    """The answer of each question for a vector [inputs] of ``embed``, with the bits that it has alone."""
    row = np.ascontiguousarray(vector, dtype=np.float32).view(np.ndarray)[None]
    bounds, at = [], 0  # the labels of a head, and then the rows of its scope
    for question in questions:
        bounds += [at, at + len(question.labels)]
        at += question._head.outputs
    made = np.empty((1, at), np.float32)
    before = cpu.give_threads(1)  # no other thread is worth waking for a head
    try:
        for question, start in zip(questions, bounds[::2]):
            question._head.into(row, made[:, start : start + question._head.outputs])
    finally:
        cpu.give_threads(before)
    logits = made[0]
    # "reduceat" takes no empty part: one without a scope ends with its labels
    starts = [start for start, stop in zip(bounds, [*bounds[1:], at]) if start < stop]
    sizes = np.diff([*starts, at])
    relative = logits.astype(np.float64)
    tops = np.maximum.reduceat(relative, starts)
    relative -= np.repeat(tops, sizes)
    relative -= np.repeat(np.log(np.add.reduceat(np.exp(relative), starts)), sizes)
    shares, logprobs, near = np.exp(relative).tolist(), relative.tolist(), dict(zip(starts, tops.tolist()))
    return [
        question._answer(logits[start:stop], logprobs[start:stop], shares[start:stop], near.get(stop, 0.0), model)
        for question, start, stop in zip(questions, bounds[::2], bounds[1::2])
    ]


def _again(weight: F32, bias: F32, facts: dict[str, Any]) -> FittedQuestion:
    return FittedQuestion.from_arrays(weight, bias, facts.pop("labels"), **facts)


# ------------------------------------------------------------------ checks


def check_facts(name: Any, kind: Any, question: Any, prompt_name: Any, pooling: Any) -> None:
    text(name, "name", empty=False)
    validation.one_of(kind, "kind", get_args(Kind))
    for value, field in ((question, "question"), (prompt_name, "prompt_name"), (pooling, "pooling")):
        if value is not None:
            text(value, field)


def text(value: Any, field: str, *, empty: bool = True) -> str:
    return validation.text(value, field, MOST_CHARS, empty=empty, way_out="shorten it")


def label_of(kind: str, value: Any, field: str) -> str:
    """A label as an answer has it."""
    if isinstance(value, np.generic):
        value = value.item()
    if kind == "choice":
        return sys.intern(text(value, field, empty=False))  # heads of equal labels share them
    side = value.lower() if isinstance(value, str) else value
    if kind == "noul" and isinstance(side, bool | str) and side in _SIDE_OF:
        return _SIDE_OF[side]
    if kind == "noul":
        raise InvalidRequest(f'{shown(value)} is not True, False, "yes" or "no", the labels of a noul', field=field)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 3:
        value = int(value)
    if type(value) is not int or not 0 <= value <= MOST_LEVELS:
        raise InvalidRequest(f"{shown(value)} is not the number of a level from 0 to {MOST_LEVELS}", field=field)
    return str(value)


def check_labels(kind: str, labels: Sequence[str]) -> list[int]:
    """The places of the distinct ``labels`` in the order of an answer; ``InvalidRequest`` where they are no labels of
    ``kind``."""
    if not 2 <= len(labels) <= MOST_LABELS:
        raise InvalidRequest(f"{shown(labels)} has {len(labels)}; a question has 2 to {MOST_LABELS}", field="labels")
    if len(set(labels)) != len(labels):
        twice = next(label for at, label in enumerate(labels) if label in labels[:at])
        raise InvalidRequest(f"{shown(twice)} is given twice", field="labels")
    if kind == "noul":
        return [labels.index(side) for side in SIDES]
    if kind == "score":
        levels = sorted(map(int, labels))
        if levels[0] > 1 or levels != list(range(levels[0], levels[0] + len(levels))) or len(levels) > MOST_LEVELS:
            raise InvalidRequest(
                f"levels {levels}; a score has 2 to {MOST_LEVELS} levels, from 0 or 1 on without a gap: number them "
                'anew, or use kind="choice"',
                field="labels",
            )
        return [labels.index(str(level)) for level in levels]
    return list(range(len(labels)))


def _numbers(given: Any, field: str, dimensions: int) -> F32:
    try:
        found = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{shown(given)} is no array of numbers", field=field) from error
    if found.ndim != dimensions:
        raise InvalidRequest(f"an array of shape {list(found.shape)}; it takes {dimensions} dimensions", field=field)
    if not (np.abs(found) <= MOST_WEIGHT).all():
        raise InvalidRequest(
            f"it holds values that are not between -{MOST_WEIGHT:g} and {MOST_WEIGHT:g}", field=field
        )
    return np.ascontiguousarray(found, dtype=np.float32)
