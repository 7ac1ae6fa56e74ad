"""One run over a file: computes the rows that the journal lacks, then makes the output of input and journal."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import IO, TYPE_CHECKING, Any

import prelude
from prelude.api.compound import at_once, each, finished
from prelude.api.mapping import ProgressCallback, RowBar, in_order, run_window, windows
from prelude.api.windows import window_size
from prelude.bulk import files, texts
from prelude.bulk.files import Table
from prelude.bulk.form import Form
from prelude.bulk.journal import Journal, Results, row_key
from prelude.bulk.rows import Position, Row, groups, key_names
from prelude.errors import BulkError, InvalidRequest, shown
from prelude.models.identity import model_hash
from prelude.records import dataclass
from prelude.values.options import NO_OPTIONS

if TYPE_CHECKING:
    from prelude.api.sync import Engine


class FileBar(RowBar):
    """How much of the file is done, and the new rows in words."""

    def __init__(self, told: bool | ProgressCallback | None, position: Position) -> None:
        super().__init__(told, position.total, position.unit)
        self._position = position
        self._began = time.monotonic()

    def end_window(self, rows: int, results: Mapping[int, Any]) -> None:
        if not self.rows:  # rows of an earlier run do not count to this one's rate
            self.done = self._position.passed
            if self._bar is not None:
                self._bar.initial = self._bar.n = self._bar.last_print_n = self.done
        super().end_window(rows, results)

    def words(self) -> str:
        seconds = max(time.monotonic() - self._began, 1e-3)
        return f"{self.rows:,} rows, {self.rows / seconds:,.0f} rows/s, {super().words()}"

    def ended(self, rows: int) -> int:
        return self._position.read - self.done


FIRST_ROWS, WINDOW_SECONDS = 16, 5.0


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
        self._engine, self._form, self._source, self._target = engine, form, source, target
        self._window = window_size(window)
        self._prefix = prefix
        self._read = form.placeholders
        self._columns = form.served_by(engine, prefix)
        self._names = {column.name for column in self._columns}
        self._check()

    def _check(self) -> None:
        """Check before the first row. ``BulkError`` if every row would fail, or a new column has a name of the
        input's; of JSON lines the first window is looked at."""
        names = self._source.column_names()
        if names is not None:
            missing = [name for name in self._read if name not in names]
            if missing:
                raise BulkError(f"{self._source.path}: there is no column {missing[0]!r}; it has {', '.join(names)}")
            self._check_names(names)
        else:
            for row in islice(self._source.rows(), self._window):
                self._check_names(row)
        if self._source.format == "parquet":
            self._source.check_types(self._read, self._target.format == "parquet")
        if not all(map(texts.is_text, self._names)):
            raise BulkError(f"the names of the new columns are not text: {shown(self._names)}")

    def _check_names(self, names: Iterable[str], where: str = "the input") -> None:
        if not self._names.isdisjoint(names):
            taken = next(name for name in names if name in self._names)
            raise BulkError(
                f"{where} has a column {shown(taken)} already: --prefix puts a text before the new names; rows "
                "that are computed stay so"
            )

    def compute(self, journal: Journal, progress: Any = None) -> Report:
        """Computes the rows that ``journal`` lacks. An exception of a row is its error; a broken input ends the run
        after the rows before the break."""
        report = Report()
        position = self._source.position()
        rows = self._missing(journal.results(), position)
        pace = Pace(self._window)
        run_many, pause = at_once(self._engine.run_many), at_once(time.sleep)
        try:
            with FileBar(progress, position) as bar:
                for number, window in enumerate(each(windows(task_of, rows, pace.rows))):
                    began = time.monotonic()
                    _, results = finished(run_window(run_many, window, number % 2 == 1, NO_OPTIONS, pause))
                    for mapped in in_order(window, results, True):
                        journal.append(mapped.row[0], self._form.values(mapped))
                    journal.flush()
                    report.computed += len(window.rows)
                    pace.measure(len(window.rows), time.monotonic() - began)
                    bar.end_window(len(window.rows), results)
                report.hit_rate = bar.hit_rate
        except OSError as error:
            problem = error.strerror or error
            raise BulkError(f"{journal.path}: {problem}; the rows before are kept, and a new run goes on") from error
        return report

    def _missing(self, earlier: Results, position: Position) -> Iterator[tuple[str, Any]]:
        """(key, task) of the rows that are not among the ``earlier``. In place of a task: the error of making it."""
        for row in self._source.rows(self._read, position):
            key = self._key(row)
            if earlier.get(key) is not None:
                position.passed = position.read
                continue
            try:
                yield key, self._task(row)
            except Exception as error:
                yield key, error

    def _key(self, row: Row) -> str:
        return row_key({name: row[name] for name in self._read if name in row}, row.problem)

    def _task(self, row: Row) -> Any:
        if row.problem is not None:
            raise InvalidRequest(row.problem, field=None)
        return self._form.task(row)

    def finish(self, journal: Journal, report: Report) -> None:
        """Writes the output beside its place and moves it there: no reader sees a part of it."""
        values = self._values(journal, report)
        try:
            with files.created(self._target) as file:
                if self._target.format == "parquet":
                    self._write_parquet(file, values)
                    return
                joined = ((row, values(row)) for row in self._source.rows())
                if self._target.format == "csv":
                    names = self._source.column_names()
                    known = key_names(self._source.rows()) if names is None else names
                    texts.write_csv(file, joined, known, [column.name for column in self._columns])
                else:
                    texts.write_lines(file, joined)
        except OSError as error:
            raise BulkError(
                f"{self._target.path}: {error.strerror or error}; the journal is kept, and a new run goes on"
            ) from error

    def _values(self, journal: Journal, report: Report) -> Callable[[Row], dict[str, Any]]:
        """Return a function from a row to its new columns, each of them."""
        results, path = journal.results(), self._source.path
        names = [(column.name, column.name.removeprefix(self._prefix)) for column in self._columns]

        def values(row: Row) -> dict[str, Any]:
            found = results.get(self._key(row))
            report.rows += 1
            if found is None:
                raise BulkError(f"{path} was changed while the run went on, at row {report.rows}: run it again")
            self._check_names(row, f"row {report.rows} of {path}")
            report.failed += found.get("error") is not None
            return {name: found.get(own) for name, own in names}

        return values

    def _write_parquet(self, file: IO[bytes], values: Callable[[Row], dict[str, Any]]) -> None:
        source, columnar = self._source, files.parquet()
        parts: Iterator[tuple[Any, Iterable[Row]]]
        if source.format == "parquet":
            schema = source.schema()
            parts = ((batch, columnar.json_rows(batch.select(self._read))) for batch in source.batches())
        else:
            names = source.column_names()
            schema = columnar.common_schema(source.rows) if names is None else columnar.text_schema(names)
            parts = ((columnar.batch_of(group, schema), group) for group in groups(source.rows()))
        joined = (columnar.with_results(batch, self._columns, [values(row) for row in rows]) for batch, rows in parts)
        columnar.write(file, joined, schema, self._columns)


class Pace:
    """How many rows run together, ``most`` at most: so many that they take some seconds, since a run that is killed
    loses the rows that run."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._rows = min(FIRST_ROWS, most)

    def rows(self) -> int:
        return self._rows

    def measure(self, rows: int, seconds: float) -> None:
        """Learn that so many ``rows`` took so many ``seconds``."""
        self._rows = min(max(int(rows * WINDOW_SECONDS / max(seconds, 1e-3)), FIRST_ROWS), self._most)


def task_of(pending: tuple[str, Any]) -> Any:
    """Return the task of a row that is to be computed; raises the error of making it."""
    if isinstance(pending[1], Exception):
        raise pending[1]
    return pending[1]


def configuration(engine: Engine, form: Form) -> dict[str, Any]:
    """Everything that a row's columns depend on beside the row, by name. The names of the files and the prefix of the
    columns are no part of it."""
    info = engine.model_info
    return {
        "form": form.given,
        "model": model_hash(info.path),
        "dtype": info.dtype,
        "device": info.device,
        "max_length": info.max_length,
        "version": prelude.__version__,
    }


def configuration_hash(configuration: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(configuration).encode(), digest_size=16).hexdigest()
