"""Held-out calibration error before and after fitting on 200 labels: python -m bench calibration [--out FILE]

Two models answer "Which language is it?" about the first characters of the packaged model's evaluation sentences,
with the rubric and the template that it was trained with. Whole sentences leave nothing to calibrate (98.9 % are
right, at a mean confidence of 99.5 %); the model was not trained on fragments of twelve characters.

    packaged       the packaged model as it is
    overconfident  a copy whose final norm is multiplied by 4, and so every logit

Each figure is of the rows that the fit did not see, for five random splits; the two sets of sentences are
``bench/train/data/heldout.jsonl`` and ``selection.jsonl``. Nothing is timed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

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


def measure(answers: list[Answer], truth: list[str]) -> dict[str, Any]:
    """Every method on every split."""
    found: dict[str, Any] = {"rows": len(answers)}
    for method in METHODS:
        reports: list[Report] = [
            calibrate(answers, truth, labels=LABELS, method=method, seed=seed)  # type: ignore[arg-type]
            for seed in range(SEEDS)
        ]
        pairs = [(report.before.ece, report.after.ece) for report in reports]
        found[method] = {
            "ece": [{"before": round(before, 4), "after": round(after, 4)} for before, after in pairs],
            "halved": sum(after <= before / 2 for before, after in pairs),
            "first_split": reports[0].as_json(),
        }
    return found


def main() -> int:
    parser = options_parser(__doc__)
    parser.add_argument("--out", default=None)
    chosen = parser.parse_args()
    weights = (default_model.path() / "model.safetensors").read_bytes()
    result: dict[str, Any] = {
        "command": "python -m bench calibration",
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        "labels": LABELS,
        "characters": CHARACTERS,
        "whole_sentences": measure(*answered(None, None)),
        "packaged": measure(*answered(None, CHARACTERS)),
    }
    with tempfile.TemporaryDirectory() as folder:
        model = overconfident(Path(folder) / "model", FACTOR)
        result["overconfident"] = measure(*answered(model, CHARACTERS))
    for name in ("whole_sentences", "packaged", "overconfident"):
        for method in METHODS:
            found = result[name][method]
            pairs = ", ".join(f"{one['before']:.3f} -> {one['after']:.3f}" for one in found["ece"])
            print(f"{name:16}{method:12} ECE {pairs}   halved in {found['halved']} of {SEEDS} splits")
    if chosen.out:
        Path(chosen.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
