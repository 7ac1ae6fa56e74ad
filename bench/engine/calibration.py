"""Held-out calibration error before and after fitting on 200 labels: python -m bench calibration [--json FILE]

Two models answer "Which language is it?" about the first characters of the packaged model's evaluation sentences,
with the rubric and the template that it was trained with. Whole sentences leave little to calibrate: nearly all are
right; the model was not trained on fragments of twelve characters.

    packaged       the packaged model as it is
    overconfident  a copy whose final norm is multiplied by 4, and so every logit

Each figure is of the rows that the fit did not see, for five random splits; the two sets of sentences are
``bench/train/data/heldout.jsonl`` and ``selection.jsonl``. Nothing is timed.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from bench import common
from bench.command_line import options_parser
from bench.train import DATA
from prelude import Choice, Decide, Engine, default_model
from prelude.calibration.calibrator import METHODS
from prelude.calibration.report import Report, calibrate
from prelude.results import Answer

LABELS, SEEDS, CHARACTERS, FACTOR = 200, 5, 12, 4.0


def overconfident(target: Path, factor: float) -> Path:
    """The packaged model with all logits multiplied by ``factor``."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(default_model.path(), target, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    weights = load_file(target / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"] * factor
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target


def answered(model: Path | None, characters: int | None) -> tuple[list[Answer], list[str]]:
    """The model's answer about every sentence, and the true one."""
    script = json.loads((default_model.path() / "demo.json").read_text(encoding="utf-8"))
    asked = script["questions"][0]
    names = ("heldout.jsonl", "selection.jsonl")
    lines = [line for name in names for line in (DATA / name).read_text(encoding="utf-8").splitlines()]
    rows = [json.loads(line) for line in lines]
    question = Choice(asked["question"], asked["labels"])
    states = [script["state"].format(rubric=script["rubric"], text=row["text"][:characters]) for row in rows]
    with Engine.from_pretrained(model) as engine:
        found = engine.run_many([Decide(state, [question]) for state in states])
    return [answers[0] for answers in found], [row["language"] for row in rows]


def measure(kept: common.Report, name: str, answers: list[Answer], truth: list[str]) -> None:
    """Every method on every split."""
    for method in METHODS:
        reports: list[Report] = [
            calibrate(answers, truth, labels=LABELS, method=method, seed=seed)  # type: ignore[arg-type]
            for seed in range(SEEDS)
        ]
        for measure, errors in (
            ("ECE before", [report.before.ece for report in reports]),
            ("ECE after", [report.after.ece for report in reports]),
        ):
            kept.add(f"{name}, {method}", measure, common.three(errors), "")


def main() -> int:
    parser = options_parser(__doc__)
    common.add_outputs(parser, plot=False)
    chosen = parser.parse_args()
    report = common.Report(f"Calibration error on held-out rows, {LABELS} labels", facts={"splits": SEEDS})
    measure(report, "whole sentences", *answered(None, None))
    measure(report, "fragments", *answered(None, CHARACTERS))
    with tempfile.TemporaryDirectory() as folder:
        model = overconfident(Path(folder) / "model", FACTOR)
        measure(report, "fragments, logits times 4", *answered(model, CHARACTERS))
    report.finish(chosen)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
