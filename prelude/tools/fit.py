"""``prelude fit ROWS``: a decision from labelled rows of a file, and how well it does on rows not seen."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, get_args

from prelude.api.sync import Engine
from prelude.bulk.files import Table, check_apart
from prelude.errors import BulkError, InvalidRequest, shown
from prelude.fitting.question import Kind
from prelude.terminal.command_line import add_model, check_target, writing
from prelude.terminal.progress import tqdm_class

_EXAMPLE = """\
example:
  prelude fit tickets.csv --text body --label team --model all-MiniLM-L6-v2 -o team.head
  prelude score new.csv labelled.csv --text-column body --head team.head --model all-MiniLM-L6-v2
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLE
    parser.add_argument("file", help=".jsonl, .csv or .parquet, the first two also .gz; a path or an fsspec URL")
    parser.add_argument("--text", default="text", help="the column with the text (%(default)s)")
    parser.add_argument("--label", default="label", help="the column with its label (%(default)s)")
    parser.add_argument("-o", "--output", help="write the question here; NAME.head for NAME.csv by default")
    parser.add_argument("--name", help="of the question; the output's name without its end by default")
    parser.add_argument("--kind", default="choice", choices=get_args(Kind), help="of its labels (%(default)s)")
    parser.add_argument("--question", help="its text, which stands in the answers")
    parser.add_argument("--pooling", help="of the vectors; the model's own by default")
    parser.add_argument("--prompt-name", help="a prompt of the model that stands before each text")
    parser.add_argument("--balanced", action="store_true", help="all labels count alike, however many rows they have")
    parser.add_argument("--keep", type=float, default=0.95, help="share of such rows that is in scope (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the folds")
    add_model(parser)
    parser.add_argument("--no-progress", action="store_true", help="no bar")


def main(chosen: argparse.Namespace) -> int:
    output = chosen.output or f"{Path(chosen.file).stem}.head"
    check_target("-o", output)
    check_apart({"the rows": chosen.file, "-o": output})
    texts, labels = _columns(chosen.file, chosen.text, chosen.label)
    with Engine.from_pretrained(chosen.model, revision=chosen.revision, dtype=chosen.dtype) as engine:
        try:
            found = engine.fit(
                texts,
                labels,
                name=chosen.name or Path(output).stem,
                kind=chosen.kind,
                question=chosen.question,
                pooling=chosen.pooling,
                prompt_name=chosen.prompt_name,
                class_weights="balanced" if chosen.balanced else None,
                keep=chosen.keep,
                seed=chosen.seed,
                progress=not chosen.no_progress and tqdm_class() is not None,
            )
        except InvalidRequest as error:
            raise BulkError(f"{chosen.file}: {error} (rows count from 0, behind the names of columns)") from error
    with writing(output):
        found.save(output)
    print(f"{found.report}\nwritten to {output}; label other rows with: prelude score --head {output}")
    return 0


def _columns(path: str, text: str, label: str) -> tuple[list[Any], list[Any]]:
    """Of all rows of a file. ``BulkError`` names the row without one of them."""
    table = Table.of(path)
    table.check_there()
    texts, labels = [], []
    for at, row in enumerate(table.rows([text, label])):
        if row.problem is not None:
            raise BulkError(f"{path}: row {at}: {row.problem}")
        for name in (text, label):
            if row.get(name) is None:
                said = "is null" if name in row else f"is missing; the row has {shown([*row])} (--text, --label)"
                raise BulkError(f"{path}: row {at}: the column {shown(name)} {said}")
        texts.append(row[text])
        labels.append(row[label])
    return texts, labels
