"""Accuracy, calibration and cost of decisions that were fitted on labelled texts.

    python -m bench fit MODEL DATA [--seeds 10] [--json FILE]

DATA holds ``banking77_train.csv``, ``banking77_test.csv`` and the same of SNIPS, with the columns ``text`` and
``category``. For 5, 10, 50 and all labels a class: test accuracy and expected calibration error, the share of test
rows that are in scope, the share of the other data set's test rows that are not, and the processor time of a fit
whose vectors are at hand. A value is the mean over the seeds, which draw the rows and deal out the folds, with the
least and the most. Then one and 16 questions of 7 and of 77 labels against ``embed`` of the same text.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.command_line import options_parser
from bench.common import Report, add_outputs, machine_facts, paired, ratio
from prelude import Embed, Engine, EngineConfig, FittedQuestion
from prelude.calibration.metrics import summary
from prelude.fitting.fit import NAMED, fit_vectors, words_of

SETS = ("banking77", "snips")
COUNTS = (5, 10, 50, None)
REACH = {
    "accuracy": {
        "banking77": {5: ">= 0.80", 10: ">= 0.85", 50: ">= 0.91", None: ">= 0.93"},
        "snips": {5: ">= 0.90", 50: ">= 0.96", None: ">= 0.985"},
    },
    "calibration error": {"banking77": {50: "<= 0.04"}},
    "other texts caught": {"banking77": dict.fromkeys(COUNTS, ">= 0.9")},
    "processor time": {"banking77": {5: "<= 0.5", None: "<= 30"}},
}
TEXT = "I still have not received my new card, I ordered it over a week ago."
Part = tuple[np.ndarray, list[str]]


def vectors_of(engine: Engine, texts: Sequence[str]) -> np.ndarray:
    return np.stack([np.asarray(one.get()) for one in engine.map(lambda text: Embed(text, truncation="tail"), texts)])


def rows_of(engine: Engine, path: Path) -> Part:
    """Vectors and labels."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return vectors_of(engine, [row["text"] for row in rows]), [row["category"] for row in rows]


class Fits:
    """Fits of one data set. ``other``: test rows of another one. ``words``: vectors of the labels."""

    def __init__(self, train: Part, test: Part, other: Part, words: np.ndarray) -> None:
        self.names = sorted(set(train[1]))
        self._vectors, self._test, self._other, self._words = train[0], test, other, words
        self._truth = np.array([self.names.index(label) for label in train[1]], np.int32)

    def question(self, seed: int, count: int | None) -> tuple[FittedQuestion, float]:
        """And the seconds of processor time of its fit."""
        random = np.random.default_rng(seed)
        classes = [np.flatnonzero(self._truth == label) for label in range(len(self.names))]
        some = np.concatenate([random.permutation(rows)[:count] for rows in classes])
        words = self._words if len(some) < NAMED * len(self.names) else None
        began = time.process_time()
        weight, bias, scope, _ = fit_vectors(
            self._vectors[some], self._truth[some], self.names, np.ones(len(some)), words, seed=seed
        )
        spent = time.process_time() - began
        return FittedQuestion.from_arrays(weight, bias, self.names, name=f"intent {seed}", scope=scope), spent

    def measured(self, seed: int, count: int | None) -> dict[str, float]:
        question, spent = self.question(seed, count)
        answers = [question.answer(vector) for vector in self._test[0]]
        found = summary(
            [np.array(list(answer.probabilities.values())) for answer in answers],
            [self.names.index(one) for one in self._test[1]],
        )
        return {
            "accuracy": found.accuracy,
            "calibration error": found.ece,
            "in scope": float(np.mean([answer.in_scope for answer in answers])),
            "other texts caught": float(np.mean([not question.answer(one).in_scope for one in self._other[0]])),
            "processor time": spent,
        }


def cost(report: Report, model: str, heads: Sequence[FittedQuestion]) -> None:
    """Of a decision, alone and with many heads, against the vector alone."""
    with Engine.from_pretrained(model, dtype="float32", config=EngineConfig(prefix_cache=False)) as engine:
        named = {str(at): FittedQuestion.from_arrays(**arrays_of(head, at)) for at, head in enumerate(heads)}
        of = f"of {len(heads[0].labels)} labels"
        one = dict([*named.items()][:1])
        sides: dict[str, Any] = {
            "embed": lambda: engine.embed(TEXT),
            "one": lambda: engine.decide(TEXT, one),
            "many": lambda: engine.decide(TEXT, named),
        }
        times = paired(sides, 300, 20)
        report.add(f"one question {of} over embed", "time", ratio(times["one"], times["embed"]), "x", "<= 1.05")
        report.add(f"{len(named)} questions {of} over one", "time", ratio(times["many"], times["one"]), "x", "<= 1.1")


def arrays_of(head: FittedQuestion, at: int) -> dict[str, Any]:
    return {
        "weight": head.weight,
        "bias": head.bias,
        "labels": head.labels,
        "name": f"intent {at}",
        "scope": head.scope,
    }


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    add_outputs(parser)
    asked = parser.parse_args()
    report = Report("Decisions that were fitted on labelled texts", facts=machine_facts())
    heads: dict[str, list[FittedQuestion]] = {}
    for kept in (None, "int8"):
        with Engine.from_pretrained(asked.model, dtype="float32", config=EngineConfig(quantization=kept)) as engine:
            found = {
                (name, part): rows_of(engine, asked.data / f"{name}_{part}.csv")
                for name in SETS
                for part in ("train", "test")
            }
            words = {name: vectors_of(engine, words_of(sorted(set(found[name, "train"][1])))) for name in SETS}
        for name, other in (SETS, SETS[::-1]):
            fits = Fits(found[name, "train"], found[name, "test"], found[other, "test"], words[name])
            for count in COUNTS:
                runs = [fits.measured(seed, count) for seed in range(asked.seeds)]
                for figure in runs[0]:
                    values = [run[figure] for run in runs]
                    reach = REACH.get(figure, {}).get(name, {}).get(count, "")
                    load = f"{name}, {count or 'all'} a class, {kept or 'float32'}"
                    unit = "s" if figure == "processor time" else ""
                    report.add(load, figure, (float(np.mean(values)), min(values), max(values)), unit, reach)
            heads.setdefault(name, [fits.question(seed, 5)[0] for seed in range(16)])
    for name in SETS:
        cost(report, asked.model, heads[name])
    report.finish(asked)


if __name__ == "__main__":
    main()
