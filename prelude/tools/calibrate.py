"""``prelude calibrate FILE``: fit on labelled answers, measure on others, keep the calibrator and draw figures."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from prelude.api.sync import Engine
from prelude.bulk.files import check_apart
from prelude.calibration.calibrator import METHODS, PriorCorrection
from prelude.calibration.report import Report, calibrate
from prelude.calibration.rows import Row, answers_of, read_rows
from prelude.errors import CalibrationError
from prelude.fitting.question import FittedQuestion
from prelude.terminal.command_line import add_model, check_target, writing
from prelude.terminal.tables import shortened, text_table

PRIORS = ("none", "labels", "content-free")
_OUTPUTS = ("plot", "risk_plot", "save", "save_prior", "report")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="labelled rows, one JSON object a line (docs/CALIBRATION.md)")
    add_model(parser)
    parser.add_argument("--method", default="temperature", choices=METHODS, help="of the fit (%(default)s)")
    parser.add_argument("--prior", default="none", choices=PRIORS, help="the prior to divide out before the fit")
    parser.add_argument("--labels", type=int, help="rows to fit on; half of them by default")
    parser.add_argument("--seed", type=int, default=0, help="of the split")
    parser.add_argument("--save", help="write the calibrator here, as JSON")
    parser.add_argument("--save-prior", help="write the prior here, as JSON")
    parser.add_argument("--report", help="write the figures here, as JSON")
    parser.add_argument("--plot", help="reliability before and after, as .png, .svg or .pdf")
    parser.add_argument("--risk-plot", help="risk against coverage before and after")


def main(chosen: argparse.Namespace) -> int:
    outputs = {f"--{name.replace('_', '-')}": getattr(chosen, name) for name in _OUTPUTS}
    for option, path in outputs.items():
        check_target(option, path, figure="plot" in option)
    check_apart({"the rows": chosen.file, **outputs})
    if chosen.save and chosen.prior != "none" and not chosen.save_prior:
        raise CalibrationError(
            "--save without --save-prior: the calibrator needs the prior; give --save-prior FILE too"
        )
    rows = read_rows(chosen.file, FittedQuestion.load)
    prior: Any = chosen.prior
    if all(row.task is None for row in rows):
        if prior == "content-free":
            raise CalibrationError(
                "--prior content-free asks the model, and every row of the file is answered already"
            )
        answers = answers_of(rows, None)
    else:
        with Engine.from_pretrained(chosen.model, revision=chosen.revision, dtype=chosen.dtype) as engine:
            answers = answers_of(rows, engine)
            if prior == "content-free":
                prior = PriorCorrection.content_free(engine, same_question(rows))
    truth = [row.label for row in rows]
    report = calibrate(answers, truth, labels=chosen.labels, method=chosen.method, prior=prior, seed=chosen.seed)
    print(table(report))
    figures = json.dumps(report.as_json(), indent=1) + "\n"
    writes: list[tuple[str | None, Callable[[str], object]]] = [
        (chosen.save, report.calibrator.save),
        (chosen.report, lambda path: Path(path).write_text(figures, encoding="utf-8")),
    ]
    if report.prior is not None:
        writes.append((chosen.save_prior, report.prior.save))
    if chosen.plot or chosen.risk_plot:
        from prelude.calibration import plots

        title = title_of(report, chosen)
        writes.append((chosen.plot, lambda path: plots.reliability_plot(report.curves, path, title=title)))
        writes.append((chosen.risk_plot, lambda path: plots.risk_coverage_plot(report.curves, path, title=title)))
    for path, write in writes:
        if path:
            with writing(path):
                write(path)
    return 0


def title_of(report: Report, chosen: argparse.Namespace) -> str:
    """The question, the model and the method of a figure."""
    question = report.calibrator.asked.get("question")
    asked = f'"{shortened(question, 70)}"' if question else f"{Path(chosen.file).name}: several questions"
    known = "model" in report.calibrator.asked
    model = Path(chosen.model or "packaged model").name if known else f"answers of {Path(chosen.file).name}"
    fitted = f"{report.calibrator.method}, fitted on {report.fitted}, {report.held_out} held-out answers"
    return f"{asked}\n{shortened(model, 40)}: {fitted}"


def same_question(rows: Sequence[Row]) -> Any:
    """The question of every row; ``CalibrationError`` where they ask several, or bring answers."""
    asked = [None if row.task is None else row.task.questions for row in rows]
    if any(questions != asked[0] for questions in asked) or asked[0] is None:
        raise CalibrationError("--prior content-free is of one question; the rows of the file ask several")
    return next(iter(asked[0]))


def table(report: Report) -> str:
    """The held-out figures before and after."""
    names = ("accuracy", "confidence", "ece", "brier", "nll", "aurc")
    rows = [[name, f"{getattr(report.before, name):.4f}", f"{getattr(report.after, name):.4f}"] for name in names]
    ranges = (report.before_interval, report.after_interval)
    rows.insert(names.index("ece") + 1, ["ece, 95 %", *[f"{low:.4f} to {high:.4f}" for low, high in ranges]])
    title = f"{report.held_out} held-out answers; fitted on {report.fitted} ({report.calibrator.method})"
    return text_table(rows, header=["", "before", "after"], right=(1, 2), title=title)
