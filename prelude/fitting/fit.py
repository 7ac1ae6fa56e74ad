"""From labelled texts and their vectors to a fitted question.

folds       every fold's rows are judged by a fit of the others, for rising strengths from one start to the next
strength    the one whose held-out logits have the least loss, each at its own temperature
question    a fit of all rows, divided by that temperature; the report is of the held-out rows
"""

from __future__ import annotations

import logging
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
from prelude.fitting.question import FittedQuestion, Kind, check_facts, number
from prelude.fitting.report import MOST_PAIRS, FitReport
from prelude.fitting.rows import LabelledTexts
from prelude.fitting.scope import Scope
from prelude.models.identity import known_hash
from prelude.models.packed import PackedLinear
from prelude.tasks import Embed, Pooling, Truncation, unknown_keyword
from prelude.values.arrays import F32, F64, I32
from prelude.values.memo import Memo

FOLDS = 5
STRENGTHS = (1.0, 4.0, 16.0, 64.0, 256.0)
KNOTS = 1001
MANY = 2000  # rows, from which on two folds are enough to choose the strength
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
        self._seed = int(number(facts.pop("seed"), "seed", 0, (1 << 63) - 1, whole=True))
        self._keep = float(number(facts.pop("keep"), "keep", 0.5, 1.0))
        weights = facts.pop("class_weights")
        check_facts(**facts)
        self._facts = facts
        self._rows = LabelledTexts.of(facts["kind"], texts, labels)
        self._weights = _row_weights(weights, self._rows)
        self._found: dict[str, tuple[F32, bool]] = {}
        for one in dict.fromkeys(self._rows.texts):
            vector = kept.get(self._key(one))
            if vector is not None:
                self._found[one] = vector
        self.missing = [one for one in dict.fromkeys(self._rows.texts) if one not in self._found]
        self._began = time.perf_counter()

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
                raise _named(one.error, self._rows.texts.index(one.row))
            result: Any = one.result
            vector, cut = np.array(result), result.stats.truncated_tokens > 0
            self._found[one.row] = vector, cut
            self._kept.put(self._key(one.row), (vector, cut), vector.nbytes + 4 * len(one.row) + 300)
        seconds = time.perf_counter() - self._began
        vectors = np.stack([self._found[one][0] for one in self._rows.texts])
        cut = sum([self._found[one][1] for one in self._rows.texts])
        if cut:
            log.warning("%d of %d rows are longer than the model reads and were cut", cut, len(vectors))
        model = known_hash(self._model)
        weight, bias, scope, facts = fit_vectors(
            vectors, self._rows.truth, self._rows.labels, self._weights, seed=self._seed, keep=self._keep
        )
        report = FitReport(**facts, cut=cut, embed_seconds=seconds)
        return FittedQuestion.from_arrays(
            weight, bias, self._rows.labels, scope=scope, report=report, model=model, **self._facts
        )


def _named(error: Exception, row: int) -> Exception:
    if isinstance(error, PreludeError) and error.args:
        error.args = (f"texts[{row}]: {error.args[0]}", *error.args[1:])
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
    vectors: F32, truth: I32, labels: Sequence[str], weights: F64, *, seed: int = 0, keep: float = 0.95
) -> tuple[F32, F64, Scope, dict[str, Any]]:
    """Weight [labels, inputs], bias [labels] and scope of a head for ``vectors`` [rows, inputs], of which row n has
    the label ``truth[n]``; and the facts of its report. Equal arguments give equal bits. It runs in one thread: the
    steps of an engine beside it need the others."""
    with given(1):
        return _fit_vectors(vectors, truth, labels, weights, seed, keep)


def _fit_vectors(
    vectors: F32, truth: I32, labels: Sequence[str], weights: F64, seed: int, keep: float
) -> tuple[F32, F64, Scope, dict[str, Any]]:
    began = time.perf_counter()
    rows, count = logistic.Rows.of(vectors), len(labels)
    folds = _folds(truth, seed)
    starts: list[F64 | None] = [None] * len(folds)

    def held_out(strength: float, count_of: int) -> tuple[F64, list[int], float]:
        """Logits of the rows of the first folds, their labels and the temperature of least loss."""
        parts = []
        for at, fold in enumerate(folds[:count_of]):
            seen = weights.copy()
            seen[fold] = 0.0
            starts[at] = found = logistic.fit(rows, truth, count, seen, strength, starts[at])
            parts.append(rows.logits(found)[:, fold].T)
        table, own = np.concatenate(parts).astype(np.float64), truth[np.concatenate(folds[:count_of])].tolist()
        return table, own, fit_temperature(list(table), own)

    used, least = len(folds) if len(truth) < MANY else 2, np.inf
    for tried in STRENGTHS:
        judged = held_out(tried, used)
        loss = mean_nll(judged[0] / judged[2], judged[1])
        if loss >= least:
            break
        strength, least, best = tried, loss, judged
    table, own, temperature = best if used == len(folds) else held_out(strength, len(folds))
    weight, bias = logistic.uncentred(rows, logistic.fit(rows, truth, count, weights, strength, starts[0]))
    scope = _scope(rows, vectors, truth, count, folds, keep)
    facts = {
        "rows": len(truth),
        "labels": count,
        "folds": len(folds),
        "strength": strength,
        "temperature": temperature,
        **_figures(np.exp(logistic.log_shares(table.T / temperature)).T, np.array(own), labels),
        "fit_seconds": time.perf_counter() - began,
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


def _scope(rows: logistic.Rows, vectors: F32, truth: I32, count: int, folds: Sequence[I32], keep: float) -> Scope:
    """The middle of each label's rows as a direction. The knots are of rows that their own middle is without."""
    hot = np.zeros((count, len(truth)), np.float32)
    hot[truth, np.arange(len(truth))] = 1.0
    scores = np.empty(len(truth))
    for fold in folds:
        seen = hot.copy()
        seen[:, fold] = 0.0
        scores[fold] = PackedLinear(_middles(rows, seen), None, "float32")(vectors[fold]).max(axis=1)
    knots = np.quantile(scores, np.linspace(0, 1, min(KNOTS, len(truth))))
    return Scope(_middles(rows, hot), tuple(np.maximum.accumulate(knots).tolist()), keep)


def _middles(rows: logistic.Rows, hot: F32) -> F32:
    sums = rows.backward(hot) + hot.sum(axis=1, keepdims=True) * rows.middle
    found: F32 = (sums / np.maximum(np.sqrt((sums**2).sum(axis=1, keepdims=True)), 1e-12)).astype(np.float32)
    return found
