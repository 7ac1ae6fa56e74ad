"""From labelled texts and their vectors to a fitted question.

folds       every fold's rows are judged by a fit of the others, for rising strengths from one start to the next
strength    the one whose held-out logits have the least loss, each at its own temperature
names       with few rows, the name of a label is one more row of it, if the loss is less with it
question    a fit of all rows, divided by that temperature; the report is of the held-out rows
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

import numpy as np
import numpy.typing as npt

from prelude.calibration.fitting import fit_temperature, mean_nll
from prelude.calibration.metrics import summary
from prelude.cpu.threads import given
from prelude.errors import InvalidRequest, PreludeError, UnknownParameter, shown
from prelude.fitting import logistic
from prelude.fitting.question import FittedQuestion, Kind, check_facts
from prelude.fitting.report import MOST_PAIRS, FitReport, Scope
from prelude.fitting.rows import LabelledTexts, rows_said
from prelude.models.identity import known_hash
from prelude.models.packed import PackedLinear
from prelude.tasks import Embed, Pooling, Truncation, unknown_keyword
from prelude.values.arrays import F32, F64, I32
from prelude.values.memo import Memo
from prelude.values.validation import integer, number

FOLDS = 5
STRENGTHS = (4.0, 16.0, 64.0, 256.0)
KNOTS = 1001
MANY = 2000  # rows, from which on two folds are enough to choose the strength
NAMED = 20  # rows a label, from which on its name adds nothing
_SEPARATOR = re.compile(r"[\W_]+|(?<=[a-z])(?=[A-Z])")  # of the words of a label
log = logging.getLogger("prelude.engine")


class FitKeywords(TypedDict, total=False):
    """The keywords of ``engine.fit``, but for ``name`` and ``progress``."""

    kind: Kind
    question: str | None
    prompt_name: str | None
    pooling: Pooling | None
    class_weights: Mapping[str, float] | Literal["balanced"] | None
    keep: float
    seed: int


USUAL: FitKeywords = {
    "kind": "choice",
    "question": None,
    "prompt_name": None,
    "pooling": None,
    "class_weights": None,
    "keep": 0.95,
    "seed": 0,
}


class Fit:
    """One call of ``engine.fit``: its checked arguments. ``model`` names the model's files, and ``side`` is the one
    on which longer texts are cut. ``kept`` holds vectors of earlier ones."""

    def __init__(
        self,
        model: str,
        side: Truncation,
        kept: Memo[Any, tuple[F32, bool]],
        texts: Any,
        labels: Any,
        name: str,
        keywords: FitKeywords,
    ) -> None:
        for one in keywords:
            if one not in USUAL:
                raise UnknownParameter(unknown_keyword("fit", one, ["name", *USUAL, "progress"]), field=one)
        self._model, self._side, self._kept = model, side, kept
        facts: dict[str, Any] = {"name": name, **USUAL, **keywords}
        self._seed = integer(facts.pop("seed"), "seed", 0, (1 << 63) - 1)
        self._keep = number(facts.pop("keep"), "keep", 0.5, 1.0)
        weights = facts.pop("class_weights")
        check_facts(**facts)
        self._facts = facts
        self._rows = LabelledTexts.of(facts["kind"], texts, labels)
        self._weights = _row_weights(weights, self._rows)
        self._names = self._names_of(self._rows)
        self._found: dict[str, tuple[F32, bool]] = {}
        for one in dict.fromkeys([*self._rows.texts, *self._names]):
            vector = kept.get(self._key(one))
            if vector is not None:
                self._found[one] = vector
        self.missing = [one for one in dict.fromkeys([*self._rows.texts, *self._names]) if one not in self._found]
        self._began = time.perf_counter()

    def _names_of(self, rows: LabelledTexts) -> list[str]:
        """The labels of a choice in words, if its rows are few."""
        few = self._facts["kind"] == "choice" and len(rows.truth) < NAMED * len(rows.labels)
        names = words_of(rows.labels) if few else []
        return names if all(names) else []

    def _key(self, text: str) -> tuple[str, Any, Any]:
        return text, self._facts["prompt_name"], self._facts["pooling"]

    def task(self, text: str) -> Embed:
        facts = self._facts
        return Embed(
            text, pooling=facts["pooling"], prompt_name=facts["prompt_name"], truncation=self._side, cache="never"
        )

    def fitted(self, embedded: Sequence[Any]) -> FittedQuestion:
        """``embedded``: ``Mapped`` of the tasks of ``missing``."""
        for one in embedded:
            if one.error is not None:
                raise _named(one.error, one.row, self._rows.texts)
            result: Any = one.result
            vector, cut = np.array(result), result.stats.truncated_tokens > 0
            self._found[one.row] = vector, cut
            self._kept.put(self._key(one.row), (vector, cut), vector.nbytes + 4 * len(one.row) + 300)
        seconds = time.perf_counter() - self._began
        vectors = np.stack([self._found[one][0] for one in self._rows.texts])
        names = np.stack([self._found[one][0] for one in self._names]) if self._names else None
        cut = sum([self._found[one][1] for one in self._rows.texts])
        if cut:
            log.warning("%d of %d rows are longer than the model reads and were cut", cut, len(vectors))
        rows, model = self._rows, known_hash(self._model)
        other = rows.other_script()
        if other:
            said = rows_said(other)
            log.warning("%d of %d rows are in another script than most: %s", len(other), len(vectors), said)
        weight, bias, scope, facts = fit_vectors(
            vectors, rows.truth, rows.labels, self._weights, names, seed=self._seed, keep=self._keep
        )
        report = FitReport(**facts, cut=cut, other_script=len(other), embed_seconds=seconds)
        return FittedQuestion.from_arrays(
            weight, bias, rows.labels, scope=scope, report=report, model=model, **self._facts
        )


def words_of(labels: Sequence[str]) -> list[str]:
    """``card_arrival`` and ``CardArrival`` as texts."""
    return [_SEPARATOR.sub(" ", label).strip() for label in labels]


def _named(error: Exception, text: str, texts: Sequence[str]) -> Exception:
    if isinstance(error, PreludeError) and error.args and text in texts:
        error.args = (f"texts[{texts.index(text)}]: {error.args[0]}", *error.args[1:])
    return error


def _row_weights(asked: Any, rows: LabelledTexts) -> F64:
    if asked is None:
        return np.ones(len(rows.truth))
    if asked == "balanced":
        shares = len(rows.truth) / (len(rows.labels) * np.bincount(rows.truth))
    elif isinstance(asked, Mapping) and asked.keys() == {*rows.labels}:
        shares = np.array([number(asked[one], f"class_weights[{one!r}]", 1e-3, 1e3) for one in rows.labels])
    else:
        said = f'{shown(asked)} is not None, "balanced" or a weight for each of the labels {shown(rows.labels)}'
        raise InvalidRequest(said, field="class_weights")
    found: F64 = shares[rows.truth]
    return found


def fit_vectors(
    vectors: F32,
    truth: I32,
    labels: Sequence[str],
    weights: F64,
    names: F32 | None = None,
    *,
    seed: int = 0,
    keep: float = 0.95,
) -> tuple[F32, F64, Scope, dict[str, Any]]:
    """Weight [labels, inputs], bias [labels] and scope of a head for ``vectors`` [rows, inputs], of which row n has
    the label ``truth[n]``; and the facts of its report. ``names`` [labels, inputs]: of the labels themselves. Equal
    arguments give equal bits. It runs in one thread: the steps of an engine beside it need the others."""
    with given(1):
        return _Fitting(vectors, truth, labels, weights, names, seed).found(keep)


class _Fitting:
    """The rows of a fit, the names of labels behind them, and the fits of its folds."""

    def __init__(
        self, vectors: F32, truth: I32, labels: Sequence[str], weights: F64, names: F32 | None, seed: int
    ) -> None:
        self._began = time.perf_counter()
        self._vectors, self._truth, self._labels, self._count = vectors, truth, labels, len(labels)
        self._named = 0 if names is None else self._count
        self._every = vectors if names is None else np.concatenate([vectors, names])
        self._middle = self._every.mean(axis=0, dtype=np.float64)
        self._all = np.concatenate([truth, np.arange(self._named, dtype=np.int32)])
        self._weights = np.concatenate([weights, np.ones(self._named)])
        self._folds = _folds(truth, seed)
        self._starts: list[F32 | None] = [None] * len(self._folds)

    def _fit(self, folds: Sequence[int], strength: float, start: F32 | None, least_fall: float) -> F32:
        """Of the rows of these folds, and of the names."""
        behind = np.arange(len(self._truth), len(self._truth) + self._named, dtype=np.int32)
        some = np.concatenate([*[self._folds[at] for at in folds], behind])
        rows = logistic.Rows.of(self._every[some], self._middle)
        return logistic.fit(rows, self._all[some], self._count, self._weights[some], strength, start, least_fall)

    def _held_out(
        self, strength: float, folds: int, seen: int | None = None, least_fall: float = logistic.ROUGH
    ) -> tuple[F64, list[int], float]:
        """Logits of the rows of the first ``folds`` folds, their labels and the temperature of least loss. Each is
        judged by a fit of the others, of the ``seen`` next ones alone if that is given."""
        parts, count = [], len(self._folds)
        for at, fold in enumerate(self._folds[:folds]):
            others = [(at + step) % count for step in range(1, count if seen is None else seen + 1)]
            found = self._fit(others, strength, self._starts[at], least_fall)
            if seen is None:
                self._starts[at] = found
            weight, bias = logistic.uncentred(found, self._middle)
            parts.append(PackedLinear(weight.astype(np.float32), None, "float32")(self._vectors[fold]) + bias)
        table = np.concatenate(parts)
        own = self._truth[np.concatenate(self._folds[:folds])].tolist()
        return table, own, fit_temperature(list(table), own)

    def found(self, keep: float) -> tuple[F32, F64, Scope, dict[str, Any]]:
        every = len(self._folds)
        used, least = every if len(self._truth) < MANY else 2, np.inf
        for tried in STRENGTHS:
            judged = self._held_out(tried, used)
            loss = mean_nll(judged[0] / judged[2], judged[1])
            if loss < least:
                strength, least, starts = tried, loss, [*self._starts]
            elif tried != STRENGTHS[1]:  # the fits are rough, and the first two are close
                break
        self._starts = [*starts]
        if named := self._named:
            self._named = 0
            judged = self._held_out(strength, used)
            if mean_nll(judged[0] / judged[2], judged[1]) >= least:
                self._named, self._starts = named, starts
        table, own, temperature = self._held_out(strength, every, least_fall=logistic.CLOSE)
        curve = []
        for seen in (1, 2):
            rest, truth, _ = self._held_out(strength, 2 if used == every else 1, seen)
            curve.append((seen * len(self._truth) // every, float((rest.argmax(axis=1) == np.array(truth)).mean())))
        whole = self._fit(range(every), strength, self._starts[0], logistic.CLOSE)
        weight, bias = logistic.uncentred(whole, self._middle)
        scope = _scope(self._vectors, self._truth, self._count, self._folds, keep)
        facts = {
            "rows": len(self._truth),
            "labels": self._count,
            "named": self._named,
            "folds": every,
            "strength": strength,
            "temperature": temperature,
            **_figures(np.exp(logistic.log_shares(table.T / temperature)).T, np.array(own), self._labels),
            "curve": tuple(curve),
            "fit_seconds": time.perf_counter() - self._began,
        }
        return (weight / temperature).astype(np.float32), bias / temperature, scope, facts


def _folds(truth: I32, seed: int) -> list[I32]:
    """Rows of each fold. Those of a label are dealt out one by one, so that two of them never share a fold before
    every fold has one."""
    order = np.random.default_rng(seed).permutation(len(truth))
    order = order[np.argsort(truth[order], kind="stable")]
    dealt = [order[at::FOLDS].astype(np.int32) for at in range(FOLDS)]
    return [np.sort(fold) for fold in dealt if len(fold)]


def _figures(shares: F64, truth: npt.NDArray[np.int64], labels: Sequence[str]) -> dict[str, Any]:
    """Of probabilities [rows, labels]."""
    found, count = summary(list(shares), truth.tolist()), len(labels)
    said = shares.argmax(axis=1)
    table = np.bincount(truth * count + said, minlength=count * count).reshape(count, count)
    right, both = np.diag(table), table.sum(axis=0) + table.sum(axis=1)
    wrong = table - np.diag(right)
    places = np.argsort(-wrong, axis=None, kind="stable")[:MOST_PAIRS]
    pairs = [(*divmod(int(place), count), int(wrong.flat[place])) for place in places]
    return {
        "accuracy": found.accuracy,
        "macro_f1": float((2 * right / both).mean()),
        "log_loss": found.nll,
        "calibration_error": found.ece,
        "confusions": tuple([(labels[true], labels[other], rows) for true, other, rows in pairs if rows]),
    }


def _scope(vectors: F32, truth: I32, count: int, folds: Sequence[I32], keep: float) -> Scope:
    """The middle of each label's rows as a direction. The knots are of rows that their own middle is without."""
    sums = PackedLinear(np.ascontiguousarray(vectors.T), None, "float32")
    hot = np.zeros((count, len(vectors)), np.float32)
    hot[truth, np.arange(len(truth))] = 1.0
    scores = np.empty(len(truth))
    for fold in folds:
        seen = hot.copy()
        seen[:, fold] = 0.0
        scores[fold] = PackedLinear(_directions(sums(seen)), None, "float32")(vectors[fold]).max(axis=1)
    knots = np.quantile(scores, np.linspace(0, 1, min(KNOTS, len(truth))))
    return Scope(_directions(sums(hot)), tuple(np.maximum.accumulate(knots).tolist()), keep)


def _directions(sums: F32) -> F32:
    found: F32 = sums / np.maximum(np.sqrt((sums**2).sum(axis=1, keepdims=True)), np.float32(1e-12))
    return found
