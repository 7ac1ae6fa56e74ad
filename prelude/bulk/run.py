"""One run over a file: computes the rows that the journal lacks, then makes the output of input and journal."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import prelude
from prelude.bulk import files
from prelude.bulk.bar import RowBar
from prelude.bulk.files import BadRow, Table
from prelude.bulk.form import Column, Form
from prelude.bulk.journal import Journal, row_key
from prelude.bulk.mapping import map_rows
from prelude.errors import BulkError, InvalidRequest
from prelude.models.identity import model_hash
from prelude.options import NO_OPTIONS

if TYPE_CHECKING:
    from prelude.sync import Engine


@dataclass(slots=True)
class Report:
    """``rows``: all of the output. ``computed``: those that this run computed. ``failed``: those with an error."""

    rows: int = 0
    computed: int = 0
    failed: int = 0
    hit_rate: float = 0.0


class BulkRun:
    """``source`` to ``target`` by ``form`` on ``engine``, which is in deterministic mode: then a row's columns do not
    depend on the other rows, and a run that is continued after a stop writes the same rows as an uninterrupted
    run."""

    def __init__(
        self, engine: Engine, form: Form, source: Table, target: Table, window: int, prefix: str = ""
    ) -> None:
        self._engine, self._form, self._source, self._target, self._window = engine, form, source, target, window
        self._columns = [
            Column(prefix + column.name, column.kind, column.labels)
            for column in form.columns(engine.model_info.labels)
        ]
        self._prefix = prefix
        self.check()

    def check(self) -> None:
        """The checks before the first row. ``BulkError`` where every row would fail."""
        names = self._source.column_names()
        if names is not None:
            missing = [name for name in self._form.placeholders if name not in names]
            if missing:
                raise BulkError(f"{self._source.path}: there is no column {missing[0]!r}; it has {', '.join(names)}")
            self.check_names(names)
        try:
            self._engine.explain(self._form.task(dict.fromkeys(self._form.placeholders, "text")))
        except InvalidRequest as error:
            raise BulkError(f"no row could be served: {error}") from error

    def check_names(self, names: Any) -> None:
        taken = [column.name for column in self._columns if column.name in names]
        if taken:
            raise BulkError(f"the input has a column {taken[0]!r} already: --prefix puts a text before the new names")

    def configuration(self) -> dict[str, Any]:
        """Everything that the columns depend on, beside the rows."""
        info = self._engine.model_info
        return {
            "form": self._form.given,
            "model": model_hash(info.path),
            "dtype": info.dtype,
            "device": info.device,
            "max_length": info.max_length,
            "prefix": self._prefix,
            "version": prelude.__version__,
        }

    def compute(self, journal: Journal, progress: Any = None) -> Report:
        """Computes the rows that ``journal`` lacks. An exception of a row is its error; a broken input ends the run
        after the rows before the break."""
        rows = self._source.rows()
        self.check_journal(journal, rows)
        report = Report()
        bar = RowBar(progress, self._source.count(), journal.rows)
        try:
            for mapped in map_rows(self._engine, self._task, rows, self._window, True, bar, NO_OPTIONS):
                journal.append(row_key(mapped.row), self._form.values(mapped))
                report.computed += 1
                if report.computed % self._window == 0:
                    journal.flush()
            journal.flush()
        except OSError as error:
            problem = error.strerror or error
            raise BulkError(f"{journal.path}: {problem}; the rows before are kept, and a new run goes on") from error
        except BaseException:  # Ctrl-C, or a broken input: the rows that have ended are kept
            with suppress(OSError):
                journal.flush()
            raise
        report.hit_rate = bar.hit_rate
        return report

    def _task(self, row: dict[str, Any]) -> Any:
        if isinstance(row, BadRow):
            raise InvalidRequest(row.problem)
        return self._form.task(row)

    def check_journal(self, journal: Journal, rows: Iterator[dict[str, Any]]) -> None:
        """Takes the journal's rows from ``rows``, which then goes on with the first that it lacks. ``BulkError``
        where a row of the input is another one."""
        for number, key in enumerate(journal.keys()):
            row = next(rows, None)
            if row is None or row_key(row) != key:
                raise BulkError(f"row {number} of {self._source.path} is not the row that the journal has: --restart")

    def finish(self, journal: Journal, report: Report) -> None:
        """Writes the output beside its place and moves it there: no reader sees a part of it."""
        schema, names = None, self._source.column_names() or []
        if self._target.format == "parquet":
            schema = files.arrow_schema(self._source.rows(), self._columns)
        elif self._target.format == "csv" and not names:
            names = list(dict.fromkeys(name for row in self._source.rows() for name in row))
        beside = self._target.path if self._target.remote else f"{self._target.path}.writing"
        try:
            files.write(self._target, beside, self._joined(journal, report), names, self._columns, schema)
            if not self._target.remote:
                os.replace(beside, self._target.path)
        except OSError as error:
            raise BulkError(
                f"{self._target.path}: {error.strerror or error}; the journal is kept, and a new run goes on"
            ) from error
        finally:
            if not self._target.remote:
                Path(beside).unlink(missing_ok=True)

    def _joined(self, journal: Journal, report: Report) -> Iterator[dict[str, Any]]:
        rows = self._source.rows()
        empty = {column.name: None for column in self._columns}
        for key, values in journal.read():
            row = next(rows, None)
            if row is None or row_key(row) != key:
                raise BulkError(f"{self._source.path} was changed while the run went on")
            self.check_names(row)
            report.rows += 1
            report.failed += values.get("error") is not None
            yield {**row, **empty, **{self._prefix + name: value for name, value in values.items()}}


def configuration_hash(configuration: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(configuration, sort_keys=True).encode(), digest_size=16).hexdigest()
