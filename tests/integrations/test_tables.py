"""Spark's ``mapInPandas`` and Daft's class UDF, each skipped where it is not installed."""

from __future__ import annotations

import math
import os
import shutil
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from prelude.bulk.batches import BatchScorer
from prelude.errors import BulkError
from tests.engine.test_encoders import write
from tests.integrations.test_sentence_transformers import with_settings
from tests.ray.forms import FORM, ROWS


def expected() -> list[dict[str, Any]]:
    scorer = BatchScorer(FORM)
    names = [column.name for column in scorer.columns]
    try:
        return [{**row, **dict.fromkeys(names), **found} for row, found in zip(ROWS, scorer.values(ROWS))]
    finally:
        scorer.close()


def test_daft_adds_the_columns_with_the_same_bits() -> None:
    daft = pytest.importorskip("daft", reason="daft is not installed")
    from prelude.integrations.daft import score

    frame = score(daft.from_pylist(ROWS), FORM, batch_rows=16)
    assert sorted(frame.to_pylist(), key=lambda row: row["id"]) == expected()
    with pytest.raises(BulkError, match="questions"):
        score(frame, {"state": "{text}"})


def test_daft_reads_a_column_of_any_type_as_an_arrow_table_is_read() -> None:
    daft = pytest.importorskip("daft", reason="daft is not installed")
    import pyarrow as pa

    from prelude.integrations.daft import score

    row = {
        "day": date(2026, 1, 2), "at": datetime(2026, 1, 2, 3), "price": Decimal("1.50"), "raw": b"ab",
        "no": math.nan,
    }  # fmt: skip
    several = "{day} {at} {price} {raw}"
    table = pa.table({name: [value] for name, value in row.items()})
    for state in (several, "{no}"):
        scorer = BatchScorer({**FORM, "state": state})
        wanted = scorer.arrow(table).to_pylist()
        scorer.close()
        found = score(daft.from_arrow(table), {**FORM, "state": state}).to_pylist()
        assert repr(found) == repr(wanted), "repr: a NaN of the input is no other"


@pytest.mark.parametrize("kind", ["daft", "spark"])
def test_columns_that_are_there_and_labels_that_are_not_given_are_refused(kind: str) -> None:
    if kind == "daft":
        frame = pytest.importorskip("daft", reason="daft is not installed").from_pydict(
            {"error": ["x"], "text": ["y"]}
        )
        from prelude.integrations.daft import score as planned
    else:
        types = pytest.importorskip("pyspark.sql.types", reason="pyspark is not installed")
        frame = types.StructType().add("error", "string").add("text", "string")
        from prelude.integrations.spark import schema as planned
    with pytest.raises(BulkError, match="has a column 'error' already"):
        planned(frame, {**FORM, "state": "{text}"})
    with pytest.raises(BulkError, match="labels: none"):
        planned(frame, {"verb": "classify", "prompt": "{text}"}, prefix="a_")


def test_labels_that_are_not_the_model_s_are_refused_by_a_worker_of_daft(tmp_path: Path) -> None:
    daft = pytest.importorskip("daft", reason="daft is not installed")
    from prelude.integrations.daft import score

    path = with_settings(write(tmp_path, "ForSequenceClassification", num_labels=3))
    form, frame = {"verb": "classify", "prompt": "{text}"}, daft.from_pydict({"text": ["w1"]})
    labels = tuple(f"LABEL_{at}" for at in range(3))
    assert list(score(frame, form, str(path), labels=labels).to_pylist()[0]["scores"]) == [*labels]
    with pytest.raises(Exception, match=r"labels: .*; the model has \('LABEL_0'"):  # as Daft raises it
        score(frame, form, str(path), labels=labels[:2]).to_pylist()


def test_a_worker_of_spark_keeps_no_scorer_of_another_form_or_prefix() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    from prelude.integrations.spark import scorer

    for labels, prefix in ((["a", "b"], ""), (["b", "a"], ""), (["b", "a"], "new_")):
        form = {"state": "{text}", "questions": {"ok": {"labels": dict.fromkeys(labels)}}}
        frame = pandas.DataFrame({"text": ["Where is my parcel?"]})
        [found] = scorer(form, threads=1, prefix=prefix)(iter([frame]))
        assert [list(one) for one in found[f"{prefix}ok_probabilities"]] == [labels]


def test_a_worker_of_spark_gives_the_columns_of_its_frame_back_as_they_are() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    from prelude.integrations.spark import scorer

    maps = [{"a": 1}, {"b": 2}]  # as Spark hands over a column of maps
    frame = pandas.DataFrame({**ROWS[0], "map": maps, "at": datetime(2026, 1, 2), "price": Decimal("1.50")}, [7, 7])
    [found] = scorer(FORM, threads=1)(iter([frame.copy()]))
    pandas.testing.assert_frame_equal(found[frame.columns], frame)
    wanted = expected()[0]
    assert [found[name].tolist() for name in wanted if name not in frame and name != "error"] == [
        [value] * 2 for name, value in wanted.items() if name not in frame and name != "error"
    ]


def test_spark_adds_the_columns_with_the_same_bits() -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("java is not installed")
    from pyspark.sql import SparkSession

    from prelude.integrations.spark import schema, scorer

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    try:
        frame = spark.createDataFrame([tuple(row.values()) for row in ROWS], "id long, rubric string, text string")
        frame = frame.repartition(2)
        scored = frame.mapInPandas(scorer(FORM, threads=1), schema(frame.schema, FORM))
        found = [row.asDict(recursive=True) for row in scored.collect()]
    finally:
        spark.stop()
    assert sorted(found, key=lambda row: row["id"]) == expected()
