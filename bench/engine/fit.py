"""Accuracy, calibration and cost of decisions that were fitted on labelled texts.

DATA holds ``banking77_train.csv``, ``banking77_test.csv`` and the same of SNIPS, with the columns ``text`` and
``category``. For 5, 10, 50 and all labels a class: test accuracy and expected calibration error, the share of test
rows that are in scope, the share of the other data set's test rows that are not, and the processor time of a fit.
"""

from __future__ import annotations

import csv
import time
from pathlib import Path

import numpy as np

from bench.command_line import options_parser
from prelude import Embed, Engine, FittedQuestion
from prelude.calibration.metrics import summary
from prelude.fitting.fit import fit_vectors

SETS = ("banking77", "snips")


def rows_of(engine: Engine, path: Path) -> tuple[np.ndarray, list[str]]:
    """Vectors and labels."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = engine.map(lambda row: Embed(row["text"], truncation="tail"), rows)
    return np.stack([np.asarray(one.get()) for one in found]), [row["category"] for row in rows]


def measured(train, test, other, seed: int, count: int | None) -> dict[str, float]:  # type: ignore[no-untyped-def]
    names = sorted(set(train[1]))
    truth = np.array([names.index(label) for label in train[1]], np.int32)
    random = np.random.default_rng(seed)
    classes = [random.permutation(np.flatnonzero(truth == label))[:count] for label in range(len(names))]
    some = np.concatenate(classes)
    began = time.process_time()
    weight, bias, scope, _ = fit_vectors(train[0][some], truth[some], names, np.ones(len(some)), seed=seed)
    spent = time.process_time() - began
    question = FittedQuestion.from_arrays(weight, bias, names, name="intent", scope=scope)
    answers = [question.answer(vector) for vector in test[0]]
    found = summary(
        [np.array(list(answer.probabilities.values())) for answer in answers], [names.index(one) for one in test[1]]
    )
    outside = [not question.answer(vector).in_scope for vector in other[0]]
    kept = float(np.mean([answer.in_scope for answer in answers]))
    figures = {"accuracy": found.accuracy, "ece": found.ece, "kept": kept}
    return figures | {"caught": float(np.mean(outside)), "seconds": spent}


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    with Engine.from_pretrained(asked.model, dtype="float32") as engine:
        found = {
            (name, part): rows_of(engine, asked.data / f"{name}_{part}.csv")
            for name in SETS
            for part in ("train", "test")
        }
    for name, other in (SETS, SETS[::-1]):
        for count in (5, 10, 50, None):
            seeds = range(asked.seeds if count else 1)
            runs = [
                measured(found[name, "train"], found[name, "test"], found[other, "test"], seed, count)
                for seed in seeds
            ]
            means = {figure: float(np.mean([run[figure] for run in runs])) for figure in runs[0]}
            print(name, count or "all", "; ".join([f"{figure} {mean:.4f}" for figure, mean in means.items()]))


if __name__ == "__main__":
    main()
