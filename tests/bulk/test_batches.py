"""The callable of batches that Ray Data, Spark and Daft load in their workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from prelude import Engine, EngineConfig
from prelude.bulk.batches import BatchScorer, as_arrow
from prelude.errors import BulkError, ConfigError, EngineClosed, InvalidRequest
from tests.ray.forms import FORM, ROWS

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")


@pytest.fixture(scope="module")
def scorer() -> Iterator[BatchScorer]:
    one = BatchScorer(FORM)
    yield one
    one.close()


def test_a_batch_has_its_own_columns_and_typed_results(scorer: BatchScorer) -> None:
    table = scorer.arrow(pa.Table.from_pylist(ROWS[:10]))
    assert table.column_names[:3] == ["id", "rubric", "text"]
    types = dict(zip(table.column_names, table.schema.types))
    assert types["language"] == pa.string() and types["polite_probability"] == pa.float64()
    assert types["language_probabilities"] == pa.struct([("English", pa.float64()), ("German", pa.float64())])
    assert types["prompt_tokens"] == pa.int64()
    errors = table.column("error").to_pylist()
    assert [error is None for error in errors] == [row["text"] is not None for row in ROWS[:10]]


def test_batches_of_any_size_have_the_same_bits(scorer: BatchScorer) -> None:
    whole = scorer.arrow(pa.Table.from_pylist(ROWS))
    parts = [scorer.arrow(pa.Table.from_pylist(ROWS[at : at + 7])) for at in range(0, len(ROWS), 7)]
    assert pa.concat_tables(parts).combine_chunks() == whole.combine_chunks()


def test_a_missing_column_is_each_rows_error_and_an_empty_batch_stays_typed(scorer: BatchScorer) -> None:
    found = scorer.arrow(pa.table({"id": [1, 2]}))
    assert all("column 'rubric' is missing" in error for error in found.column("error").to_pylist())
    empty = scorer.arrow(pa.Table.from_pylist(ROWS).slice(0, 0))
    assert empty.num_rows == 0 and empty.schema.field("language").type == pa.string()


def test_taken_names_are_refused_and_a_prefix_is_the_way_out(scorer: BatchScorer) -> None:
    with pytest.raises(BulkError, match="column 'error' already: prefix="):
        scorer.arrow(pa.table({"text": ["x"], "rubric": ["y"], "error": ["z"]}))
    one = BatchScorer({**FORM, "mass": False}, prefix="new_", threads=1, config=EngineConfig(max_length=99))
    assert one.engine.max_length == 99
    found = one.arrow(pa.table({"text": ["x", None], "rubric": ["y", "y"], "error": ["z", "z"]})).to_pylist()
    one.close()
    assert found[0]["new_language"] in ("English", "German") and found[0]["error"] == found[1]["error"] == "z"
    assert found[0]["new_language_mass"] is None and "'text' is null" in found[1]["new_error"]


def test_a_form_that_the_model_cannot_serve_frees_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    load, made = Engine.from_pretrained, list[Engine]()
    monkeypatch.setattr(Engine, "from_pretrained", lambda *args, **more: made.append(load(*args, **more)) or made[0])
    with pytest.raises(BulkError, match="no row could be served"):
        BatchScorer({"verb": "classify", "prompt": "{text}"})
    with pytest.raises(EngineClosed):
        made[0].generate("a")


@pytest.mark.parametrize("name", ["threads", "window"])
@pytest.mark.parametrize("value", [0, 1.5, "2", 65537])
def test_keywords_out_of_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises((ConfigError, InvalidRequest), match=name):
        BatchScorer(FORM, **{name: value})


def test_a_value_that_is_no_batch_or_form_is_refused() -> None:
    assert as_arrow({"a": np.arange(3)}).to_pydict() == {"a": [0, 1, 2]}
    pandas = pytest.importorskip("pandas")
    assert as_arrow(pandas.DataFrame({"a": [1, 2]}, index=["x", "y"])).to_pydict() == {"a": [1, 2]}
    with pytest.raises(BulkError, match="is no batch"):
        as_arrow(7)
    with pytest.raises(BulkError, match="neither a mapping nor the path"):
        BatchScorer(7)  # type: ignore[arg-type]
