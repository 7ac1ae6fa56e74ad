"""A batch of rows in, the same rows with the columns of their results out: the callable that Ray Data, Spark and Daft
load once in each of their workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prelude.api.mapping import RowBar, map_rows_now
from prelude.api.windows import WINDOW_ROWS, window_size
from prelude.bulk.form import Form, read_task, refuse_taken
from prelude.errors import BulkError, shown
from prelude.values.config import EngineConfig
from prelude.values.options import RequestOptions

if TYPE_CHECKING:
    from prelude.api.sync import Engine


class BatchScorer:
    """One engine, and a form for every row of every batch. Calls come one at a time.

    ``form``      the task as ``prelude score --task FILE`` takes it: a mapping, or a path of a JSON file
    ``model``     a directory or a hub name; ``None``: the packaged model. ``load``: further keywords of
                  ``Engine.from_pretrained``
    ``threads``   ``EngineConfig.threads``, in the place of the one in ``config``: one for each core that the worker
                  has for itself
    ``window``    rows that run together; within a window, rows whose texts begin alike are neighbours
    ``prefix``    stands before the names of the new columns
    ``config``    ``None``: ``EngineConfig(deterministic=True)``, with which a batch that is computed a second time
                  has the same bits

    A form, model or configuration that no row could be served with raises ``BulkError``, ``ModelError`` or
    ``ConfigError`` here. An error of one row is a text in its column ``error``.
    """

    def __init__(
        self,
        form: Mapping[str, Any] | str,
        model: str | None = None,
        *,
        threads: int | None = None,
        window: int = WINDOW_ROWS,
        prefix: str = "",
        config: EngineConfig | None = None,
        **load: Any,
    ) -> None:
        self.form = Form(read_form(form))
        self._window = window_size(window)
        self._prefix = prefix
        self.engine: Engine = load_engine(model, threads, config, load)
        try:
            self.columns = self.form.served_by(self.engine, prefix)
        except BulkError:
            self.engine.close()
            raise

    def values(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the new columns of each row, in the order of ``rows``. A row that failed has ``error`` alone."""
        bar = RowBar(None, len(rows))
        mapped = map_rows_now(self.engine.run_many, self.form.task, rows, self._window, True, bar, RequestOptions())
        return [
            {self._prefix + name: value for name, value in self.form.values(one).items()}  # in the order of the rows
            for one in mapped
        ]

    def arrow(self, table: Any) -> Any:
        """A ``pyarrow.Table`` with the columns of ``table`` and the new ones. ``BulkError`` if a name is taken."""
        from prelude.bulk import columnar

        refuse_taken([column.name for column in self.columns], table.column_names)
        read = [name for name in self.form.placeholders if name in table.column_names]
        found = self.values(list(columnar.json_rows(table.select(read))))
        for field, array in columnar.result_arrays(self.columns, found):
            table = table.append_column(field, array)
        return table

    def close(self) -> None:
        """Frees the model. Any number of times."""
        self.engine.close()


def read_form(form: Mapping[str, Any] | str) -> Mapping[str, Any]:
    if isinstance(form, str):
        return read_task(Path(form))
    if not isinstance(form, Mapping):
        raise BulkError(f"form: {shown(form)} is neither a mapping nor the path of a JSON file")
    return form


def load_engine(
    model: str | None, threads: int | None, config: EngineConfig | None, load: Mapping[str, Any]
) -> Engine:
    """Return an engine for the only worker of this process."""
    from prelude import Engine

    config = config or EngineConfig(deterministic=True)
    if threads is not None:
        config = replace(config, threads=threads)
    return Engine.from_pretrained(model, config=config, **load)


def as_arrow(batch: Any) -> Any:
    """A ``pyarrow.Table`` of a table, a pandas frame or a dictionary of arrays; ``BulkError`` for anything else."""
    import pyarrow as pa

    if isinstance(batch, pa.Table):
        return batch
    if isinstance(batch, Mapping):
        return pa.table({name: pa.array(list(values)) for name, values in batch.items()})
    if hasattr(batch, "to_dict") and hasattr(batch, "columns"):
        return pa.Table.from_pandas(batch, preserve_index=False)
    raise BulkError(f"{shown(batch)} is no batch: a pyarrow.Table, a pandas.DataFrame or a dictionary of arrays")
