"""``prelude score INPUT OUTPUT``: one task for each row of a file. Killed at any moment, the same command goes on."""

from __future__ import annotations

import argparse
import csv
import sys
import time
from pathlib import Path
from typing import Any

from prelude.api.sync import Engine
from prelude.api.windows import WINDOW_ROWS
from prelude.bulk import files
from prelude.bulk.files import Table
from prelude.bulk.form import Form, read_task
from prelude.bulk.journal import Journal
from prelude.bulk.run import BulkRun, Report, configuration, configuration_hash
from prelude.errors import BulkError
from prelude.terminal.command_line import add_model
from prelude.terminal.progress import tqdm_class
from prelude.values.config import EngineConfig

FAILED, INTERRUPTED = 3, 130
_EXAMPLE = """\
example:
  prelude score tickets.csv labelled.parquet --text-column body \\
      --choice topic=billing,delivery,other --noul urgent="Does it have to be answered today?"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLE
    parser.add_argument("input", help=".jsonl, .csv or .parquet, the first two also .gz; a path or an fsspec URL")
    parser.add_argument("output", help="the same formats")
    task = parser.add_argument_group("the task", "a file, or flags")
    task.add_argument("--task", help="a JSON file (docs/BULK.md)")
    task.add_argument("--text-column", help="the column with the text; the same as --state '{NAME}'")
    task.add_argument("--state", help="a text with {column} where a column stands")
    task.add_argument("--choice", action="append", default=[], metavar="NAME=A,B,C", help='which label? ("B, too")')
    task.add_argument("--noul", action="append", default=[], metavar="NAME=QUESTION", help="is it true?")
    task.add_argument("--score", action="append", default=[], metavar="NAME=LEVELS", help="which of so many levels?")
    task.add_argument(
        "--ask", action="append", default=[], metavar="NAME=QUESTION", help="a choice or score in words"
    )
    task.add_argument(
        "--head", action="append", default=[], metavar="FILE", help="a question of prelude fit, named as its file"
    )
    task.add_argument("--classify", action="store_true", help="the model's own classification head")
    task.add_argument("--embed", action="store_true", help="one vector for each row")
    add_model(parser)
    parser.add_argument(
        "--window", type=int, default=WINDOW_ROWS, help="rows that run together, at most (%(default)s)"
    )
    parser.add_argument("--prefix", default="", help="put before the names of the new columns")
    parser.add_argument("--journal", help="OUTPUT.journal by default")
    parser.add_argument("--restart", action="store_true", help="forget the journal of an earlier run")
    parser.add_argument("--overwrite", action="store_true", help="replace an output that is there already")
    parser.add_argument("--fail-on-errors", action="store_true", help=f"exit with {FAILED} where a row has an error")
    parser.add_argument("--no-progress", action="store_true", help="no bar")


def main(chosen: argparse.Namespace) -> int:
    form = Form(read_form(chosen))
    source, target = Table.of(chosen.input), Table.of(chosen.output)
    source.check_there()
    if target.remote and chosen.journal is None:
        raise BulkError(f"{target.path}: --journal has to name a local file for it")
    journal_path = Path(chosen.journal or f"{target.path}.journal")
    names = {"the input": source.path, "the output": target.path, "the journal": str(journal_path)}
    files.check_apart(names if chosen.task is None else {**names, "the task": chosen.task})
    files.check_target(target, chosen.overwrite)
    return run(chosen, form, source, target, journal_path)


def run(chosen: argparse.Namespace, form: Form, source: Table, target: Table, journal_path: Path) -> int:
    config = EngineConfig(deterministic=True)
    with Engine.from_pretrained(chosen.model, revision=chosen.revision, dtype=chosen.dtype, config=config) as engine:
        bulk = BulkRun(engine, form, source, target, chosen.window, chosen.prefix)
        says = configuration(engine, form)
        with Journal(journal_path, configuration_hash(says), says, chosen.restart) as journal:
            began = time.perf_counter()
            if journal.rows:
                print(f"{journal_path}: goes on after {journal.rows:,} rows", file=sys.stderr)
            try:
                report = bulk.compute(journal, not chosen.no_progress and tqdm_class() is not None)
                seconds = time.perf_counter() - began
                bulk.finish(journal, report)
            except BaseException as error:
                print(f"\n{journal.rows:,} rows are in {journal_path}; the same command goes on", file=sys.stderr)
                if isinstance(error, KeyboardInterrupt):
                    return INTERRUPTED
                raise
            if chosen.journal is None or journal.rows <= report.rows:
                journal.remove()
            else:
                print(f"{journal_path}: is kept, since it has rows of other inputs", file=sys.stderr)
    print(summary(report, seconds, target.path))
    return FAILED if chosen.fail_on_errors and report.failed else 0


def summary(report: Report, seconds: float, path: str) -> str:
    rate = report.computed / seconds if seconds > 0 else 0.0
    return (
        f"{path}: {report.rows:,} rows, {report.failed:,} with an error; {report.computed:,} computed in "
        f"{seconds:.1f} s ({rate:,.0f} rows/s, {report.hit_rate:.0%} of prompt tokens from the prefix cache)"
    )


def read_form(chosen: argparse.Namespace) -> dict[str, Any]:
    """The task as the JSON object that ``--task`` holds, or as the flags say it."""
    flags = [*chosen.choice, *chosen.noul, *chosen.score, *chosen.ask, *chosen.head]
    if chosen.task is not None:
        if flags or chosen.text_column or chosen.state or chosen.classify or chosen.embed:
            raise BulkError("--task FILE says the whole task; the flags of the task cannot stand beside it")
        return read_task(Path(chosen.task))
    if chosen.text_column is not None and chosen.state is not None:
        raise BulkError("--text-column and --state say the same thing; give one")
    if chosen.text_column is None and chosen.state is None:
        raise BulkError("--text-column NAME says which column holds the text (or --state, or --task)")
    if chosen.text_column is not None and set("{}") & set(chosen.text_column):
        raise BulkError(f"--text-column {chosen.text_column}: it takes a name without braces; those are of --state")
    text = chosen.state if chosen.state is not None else "{" + chosen.text_column + "}"
    if chosen.classify or chosen.embed:
        if flags or (chosen.classify and chosen.embed):
            raise BulkError("--classify and --embed stand alone")
        return {"verb": "classify" if chosen.classify else "embed", "prompt": text}
    return {"verb": "decide", "state": text, "questions": read_questions(chosen)}


def read_questions(chosen: argparse.Namespace) -> dict[str, Any]:
    questions: dict[str, Any] = {}
    words = dict(split("--ask", flag) for flag in chosen.ask)
    for option, flags in (("--choice", chosen.choice), ("--noul", chosen.noul), ("--score", chosen.score)):
        for name, value in (split(option, flag) for flag in flags):
            if name in questions:
                raise BulkError(f"{option} {name}: there are two questions of this name")
            questions[name] = {"question": value if option == "--noul" else words.pop(name, f"{name}?")}
            if option == "--choice":
                try:  # a label in quotes may hold commas
                    [labels] = csv.reader([value], skipinitialspace=True, strict=True)
                except csv.Error as wrong:
                    raise BulkError(f"--choice {name}={value!r}: the labels are no line of CSV: {wrong}") from None
                questions[name]["labels"] = [label.strip() for label in labels]
            elif option == "--score":
                if not value.isdecimal():
                    raise BulkError(f"--score {name}={value}: the number of levels is a number from 2 to 10")
                questions[name]["levels"] = int(value)
    for file in chosen.head:
        name = Path(file).stem
        if name in questions:
            raise BulkError(f"--head {file}: there are two questions of the name {name}")
        questions[name] = {"head": file}
    if words:
        raise BulkError(f"--ask {next(iter(words))}: there is no choice or score of this name")
    if not questions:
        raise BulkError("no question: --choice, --noul, --score, --head, or --classify or --embed")
    return questions


def split(option: str, flag: str) -> tuple[str, str]:
    name, _, value = flag.partition("=")
    if not name or not value:
        raise BulkError(f"{option} {flag!r}: NAME=VALUE is expected")
    return name, value
