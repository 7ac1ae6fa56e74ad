"""Daft: ``score(frame, form)`` returns the frame with the result columns, through a class UDF.

Daft makes an instance of the class, and with it an engine, in each of ``concurrency`` workers.

pip install 'prelude-engine[daft]' (daft 0.7).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import daft

from prelude.api.windows import WINDOW_ROWS
from prelude.bulk.batches import BatchScorer, read_form
from prelude.bulk.columnar import arrow_type, json_rows
from prelude.bulk.form import Form
from prelude.errors import BulkError, shown


def score(
    frame: Any,
    form: Mapping[str, Any] | str,
    model: str | None = None,
    *,
    concurrency: int = 1,
    gpus: float = 0,
    batch_rows: int = WINDOW_ROWS,
    labels: tuple[str, ...] = (),
    prefix: str = "",
    **keywords: Any,
) -> Any:
    """``frame`` and the columns of ``form``. The frame stays lazy: nothing is computed here.

    ``concurrency``  workers, each with an engine. ``gpus``: GPUs of each
    ``batch_rows``   rows of a call
    ``labels``       those of the model's own classification head, which ``verb: classify`` needs
    ``keywords``     of ``BatchScorer``: ``threads``, ``config``, ...
    """
    import pyarrow as pa

    given = dict(read_form(form))
    shape = Form(given)
    read = shape.placeholders
    columns = shape.columns(labels, prefix, frame.column_names)
    kind = pa.struct([(column.name, arrow_type(column)) for column in columns])

    @daft.cls(max_concurrency=concurrency, gpus=gpus)
    class Scorer:
        def __init__(self) -> None:
            self._scorer = BatchScorer(given, model, window=batch_rows, prefix=prefix, **keywords)
            if self._scorer.columns != columns:
                raise BulkError(
                    f"labels: {shown(labels)}; the model has {shown(self._scorer.engine.model_info.labels)}"
                )

        @daft.method.batch(return_dtype=daft.DataType.from_arrow_type(kind), unnest=True, batch_size=batch_rows)
        def scored(self, *columns: Any) -> Any:
            table = pa.table(dict(zip(read, [column.to_arrow() for column in columns])))
            rows = self._scorer.values(list(json_rows(table)))
            return pa.array([{name: row.get(name) for name in kind.names} for row in rows], kind)

    return frame.select("*", Scorer().scored(*[frame[name] for name in read]))
