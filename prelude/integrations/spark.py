"""Spark: ``frame.mapInPandas(scorer(form), schema(frame.schema, form))``.

Each Python worker loads one engine with its first batch and keeps it. A task that failed is run again by Spark
(``spark.task.maxFailures``), and its rows come out once.

pip install 'prelude-engine[spark]' (pyspark 4.3 and a Java runtime).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prelude.bulk.batches import BatchScorer, as_arrow, read_form
from prelude.bulk.form import INTEGER, NUMBER, NUMBERS, TEXT, VECTOR, Column, Form

_KEPT: dict[str, BatchScorer] = {}  # of this worker, by form and arguments: one engine a process


def scorer(
    form: Mapping[str, Any] | str, model: str | None = None, **keywords: Any
) -> Callable[[Any], Iterator[Any]]:
    """The function for ``DataFrame.mapInPandas``. ``keywords``: those of ``BatchScorer`` (``threads``, ``window``,
    ``prefix``, ``config``, ...); Spark has to be able to pickle them."""
    given = dict(read_form(form))

    def scored(frames: Iterator[Any]) -> Iterator[Any]:
        one = kept(given, model, keywords)
        for frame in frames:
            table = one.arrow(as_arrow(frame))
            new = table.drop_columns(list(frame.columns)).to_pandas()
            yield frame.assign(**{name: new[name].array for name in new})  # Arrow would make one struct of all maps

    return scored


def kept(form: Mapping[str, Any], model: str | None, keywords: Mapping[str, Any]) -> BatchScorer:
    """Return the scorer of this process; another form or model closes the one before."""
    key = json.dumps([form, model, keywords], default=repr)  # labels in another order are another form
    if key not in _KEPT:
        for other in _KEPT.values():
            other.close()
        _KEPT.clear()
        _KEPT[key] = BatchScorer(form, model, **keywords)
    return _KEPT[key]


def schema(rows: Any, form: Mapping[str, Any] | str, *, labels: tuple[str, ...] = (), prefix: str = "") -> Any:
    """The ``StructType`` of the rows that ``scorer`` returns: that of the frame's rows, and the result columns.
    ``labels``: those of the model's own classification head, which ``verb: classify`` needs."""
    from pyspark.sql.types import StructType

    found = StructType(list(rows.fields))
    for column in Form(read_form(form)).columns(labels, prefix, rows.names):
        found = found.add(column.name, spark_type(column), True)
    return found


def spark_type(column: Column) -> Any:
    from pyspark.sql import types

    if column.kind == NUMBERS:
        return types.StructType([types.StructField(label, types.DoubleType()) for label in column.labels])
    return {
        TEXT: types.StringType(),
        NUMBER: types.DoubleType(),
        INTEGER: types.LongType(),
        VECTOR: types.ArrayType(types.FloatType()),
    }[column.kind]
