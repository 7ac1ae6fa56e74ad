"""From format to format: the columns of the input come out with their values and types, or as texts."""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prelude import BulkError, Engine, EngineConfig
from prelude.bulk.files import Table
from prelude.bulk.form import Form
from prelude.bulk.journal import Journal
from prelude.bulk.run import BulkRun

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
from pyarrow import parquet  # noqa: E402 -- behind the line that skips

FORM = {"verb": "decide", "state": "{text}", "questions": {"ok": {"question": "Is it polite?"}}}
NEW = ["ok", "ok_probability", "ok_mass", "prompt_tokens", "error"]
DAY = datetime.datetime(2024, 2, 29, 1, 2, 3, 456789)
NANO = 1_709_168_523_456_789_123
Run = Callable[..., Path]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.from_pretrained(config=EngineConfig(deterministic=True)) as made:
        yield made


@pytest.fixture
def run(engine: Engine, tmp_path: Path) -> Run:
    def ran(source: Path, kind: str, form: dict[str, Any] = FORM) -> Path:
        target = tmp_path / f"out.{kind}"
        with Journal(tmp_path / f"{kind}.journal", "c", {}) as journal:
            bulk = BulkRun(engine, Form(form), Table.of(str(source)), Table.of(str(target)), 1024)
            bulk.finish(journal, bulk.compute(journal))
        return target

    return ran


def array(values: list[Any], kind: Any) -> Any:
    return pa.array([*values, None], kind)


# By name: two values and null of an Arrow type that Parquet stores, and the values as JSON.
TYPES: dict[str, tuple[Any, list[Any]]] = {
    "bool": (array([True, False], pa.bool_()), [True, False, None]),
    "int8": (array([-128, 127], pa.int8()), [-128, 127, None]),
    "int32": (array([1, 2], pa.int32()), [1, 2, None]),
    "int64": (array([2**63 - 1, 2**53 + 1], pa.int64()), [2**63 - 1, 2**53 + 1, None]),
    "uint64": (array([2**64 - 1, 0], pa.uint64()), [2**64 - 1, 0, None]),
    "half": (array(list(np.array([0.5, 1], np.float16)), pa.float16()), [0.5, 1.0, None]),
    "float": (array([0.5, float("nan")], pa.float32()), [0.5, None, None]),
    "double": (array([0.1, float("-inf")], pa.float64()), [0.1, None, None]),
    "string": (array(["", "null"], pa.string()), ["", "null", None]),
    "large_string": (array(["a", "é\n"], pa.large_string()), ["a", "é\n", None]),
    "binary": (array([b"\xff", b""], pa.binary()), ["/w==", "", None]),
    "fixed_binary": (array([b"ab", b"cd"], pa.binary(2)), ["YWI=", "Y2Q=", None]),
    "timestamp_ns": (
        array([NANO, 1], pa.timestamp("ns")),
        ["2024-02-29 01:02:03.456789123", "1970-01-01 00:00:00.000000001", None],
    ),
    "timestamp_zone": (
        array([DAY, DAY], pa.timestamp("us", "Europe/Berlin")),
        ["2024-02-29 02:02:03.456789+0100"] * 2 + [None],
    ),
    "timestamp_ms": (array([1, 2], pa.timestamp("ms")), ["1970-01-01 00:00:00.001", "1970-01-01 00:00:00.002", None]),
    "date": (array([DAY.date(), DAY.date()], pa.date32()), ["2024-02-29", "2024-02-29", None]),
    "time": (array([DAY.time(), DAY.time()], pa.time64("us")), ["01:02:03.456789"] * 2 + [None]),
    "time_ns": (array([1, 2], pa.time64("ns")), ["00:00:00.000000001", "00:00:00.000000002", None]),
    "duration": (array([1, 2], pa.duration("ns")), [1, 2, None]),
    "decimal": (
        array([decimal.Decimal("1.10"), decimal.Decimal("-0.01")], pa.decimal128(9, 2)),
        ["1.10", "-0.01", None],
    ),
    "decimal256": (array([decimal.Decimal(10**50)] * 2, pa.decimal256(60, 0)), [str(10**50)] * 2 + [None]),
    "dictionary": (array(["b", "a"], pa.string()).dictionary_encode(), ["b", "a", None]),
    "list": (array([[], [1, None]], pa.list_(pa.int32())), [[], [1, None], None]),
    "large_list": (array([["a"], []], pa.large_list(pa.string())), [["a"], [], None]),
    "fixed_list": (array([[1.5, 2], [0, float("nan")]], pa.list_(pa.float32(), 2)), [[1.5, 2.0], [0.0, None], None]),
    "struct": (
        array([{"a": DAY, "b": [b"\xff"]}] * 2, pa.struct([("a", pa.timestamp("us")), ("b", pa.list_(pa.binary()))])),
        [{"a": "2024-02-29 01:02:03.456789", "b": ["/w=="]}] * 2 + [None],
    ),
    "times": (array([[DAY], [None]], pa.list_(pa.timestamp("us"))), [["2024-02-29 01:02:03.456789"], [None], None]),
    "map": (array([[("k", 1), ("k", 2)], []], pa.map_(pa.string(), pa.uint64())), [[["k", 1], ["k", 2]], [], None]),
    "nothing": (pa.nulls(3), [None] * 3),
}
TEXT = ["Hello.", "Go away", "x" * 100]


def stored(path: Path, columns: dict[str, Any], rows: int) -> tuple[Path, Any]:
    """A Parquet file of these columns and a text, with notes on a column and on the table; and how it reads."""
    table = pa.table({"text": TEXT, **columns}).slice(0, rows)
    field = table.schema.field("text").with_nullable(False).with_metadata({"note": "of the column"})
    schema = table.schema.set(0, field).with_metadata({"note": "of the table"})
    parquet.write_table(table.cast(schema), path)
    return path, parquet.read_table(path)


@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize("name", TYPES)
def test_parquet_to_parquet_keeps_each_type(run: Run, tmp_path: Path, name: str, rows: int) -> None:
    source, want = stored(tmp_path / "in.parquet", {"c": TYPES[name][0]}, rows)
    found = parquet.read_table(run(source, "parquet"))
    assert found.column_names == ["text", "c", *NEW]
    own = found.select(["text", "c"])
    assert own.schema.equals(want.schema, check_metadata=True)
    for kept, given in zip(own.column("c").to_pylist(), want.column("c").to_pylist()):
        assert repr(kept) == repr(given)  # nan too
    assert [str(found.schema.field(new).type) for new in NEW] == ["string", "double", "double", "int64", "string"]


@pytest.mark.parametrize("name", TYPES)
def test_parquet_to_text_writes_each_type(run: Run, tmp_path: Path, name: str) -> None:
    values, want = TYPES[name]
    source, _ = stored(tmp_path / "in.parquet", {"c": values}, 3)
    lines = run(source, "jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line, parse_constant=pytest.fail)["c"] for line in lines] == want
    texts = [value if isinstance(value, str) else "" if value is None else json.dumps(value) for value in want]
    assert [row["c"] for row in Table.of(str(run(source, "csv"))).rows()] == texts


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "csv"])
@pytest.mark.parametrize("source", ["parquet", "jsonl", "csv"])
def test_a_table_without_rows_keeps_its_columns(run: Run, tmp_path: Path, source: str, kind: str) -> None:
    path = tmp_path / f"in.{source}"
    if source == "parquet":
        stored(path, {"c": TYPES["dictionary"][0]}, 0)
    else:
        path.write_text("text,c\n" if source == "csv" else "", "utf-8")
    target = run(path, kind)
    own = [] if source == "jsonl" else ["text", "c"]
    if kind == "parquet":
        found = parquet.read_table(target)
        assert found.column_names == [*own, *NEW] and found.num_rows == 0
    else:
        assert target.read_text("utf-8").strip() == ("" if kind == "jsonl" else ",".join([*own, *NEW]))


def lines_of(path: Path, values: list[Any]) -> Path:
    lines = [json.dumps({"text": "a", "c": value}) if value is not ... else '{"text": "a"}' for value in values]
    path.write_text("\n".join(lines), "utf-8")
    return path


COLUMNS: dict[str, tuple[list[Any], list[Any]]] = {
    "integers": ([1, None, 2], [1, None, 2]), "numbers": ([1, 2.5], [1.0, 2.5]),
    "a number that is no double": ([2**53 + 1, 0.5], ["9007199254740993", "0.5"]),
    "a number and a text": ([1, "x"], ["1", "x"]), "a text and a number": (["x", 1, None], ["x", "1", None]),
    "truth and a number": ([True, 1], ["true", "1"]), "a number and truth": ([0.5, True], ["0.5", "true"]),
    "a number and truth inside": ([{"a": [0.5]}, {"a": [True]}], ['{"a": [0.5]}', '{"a": [true]}']),
    "truth in a list and a number": ([[True], [0.5]], ["[true]", "[0.5]"]),
    "truth and a number of two keys": ([{"a": True}, {"b": 0.5}], [{"a": True, "b": None}, {"a": None, "b": 0.5}]),
    "more than 63 bits": ([2**63, 1], [str(2**63), "1"]), "more than 64 bits": ([2**80], [str(2**80)]),
    "no field": ([{}, {}], ["{}", "{}"]), "no field inside": ([{"a": [{}]}], ['{"a": [{}]}']),
    "objects": ([{"a": 1}, {"b": [2]}, ...], [{"a": 1, "b": None}, {"a": None, "b": [2]}, None]),
    "objects of other types": ([{"a": 1}, {"a": "x"}], ['{"a": 1}', '{"a": "x"}']),
    "a list and an object": ([[1], {"a": 1}], ["[1]", '{"a": 1}']), "lists": ([[], [1], None], [[], [1], None]),
    "nothing": ([None, ...], [None, None]),
    "dates as text": (["2024-01-01", "2024-01-02T00:00:00Z"], ["2024-01-01", "2024-01-02T00:00:00Z"]),
}  # fmt: skip


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_of_json_lines_has_its_values_or_is_text(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, apart: bool
) -> None:
    """In one row group, and each value in its own."""
    if apart:
        monkeypatch.setattr("prelude.bulk.rows.GROUP_ROWS", 1)
    given, want = COLUMNS[name]
    found = parquet.read_table(run(lines_of(tmp_path / "in.jsonl", given), "parquet"))
    assert [json.dumps(value) for value in found.column("c").to_pylist()] == [json.dumps(value) for value in want]


@pytest.mark.parametrize("inside", [False, True])
def test_objects_of_more_than_256_keys_are_maps_which_become_text(run: Run, tmp_path: Path, inside: bool) -> None:
    for keys in (256, 257):
        values: list[Any] = [{f"user {at}": at} for at in range(keys)]
        source = lines_of(tmp_path / "in.jsonl", [[[one]] for one in values] if inside else values)
        found = parquet.read_table(run(source, "parquet")).column("c").to_pylist()
        assert all(isinstance(one, str) for one in found) is (keys == 257)
        rows = map(json.loads, found) if keys == 257 else found
        objects = [row[0][0] if inside else row for row in rows]
        assert [max(filter(None, one.values()), default=0) for one in objects] == [*range(keys)]


@pytest.mark.long
def test_rows_of_thousands_of_keys_are_no_table(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("\n".join(json.dumps({"text": "a", f"k{at}": 1}) for at in range(5000)), "utf-8")
    for kind in ("csv", "parquet"):
        with pytest.raises(BulkError, match=r"more than 4,096 keys.*\.jsonl"):
            run(source, kind)
    assert len(run(source, "jsonl").read_bytes().splitlines()) == 5000


def test_json_lines_keep_their_bytes(run: Run, tmp_path: Path) -> None:
    """Digits that no float has, the order of keys, escapes."""
    lines = [
        '{"n": 0.10000000000000000000001, "text":"a" , "e": "\\u00e9"}',
        '{"text": "b", "big": 1' + "0" * 400 + " }",
        "{ }",
    ]
    source = tmp_path / "in.jsonl"
    source.write_text("\r\n".join(lines), "utf-8")
    for line, found in zip(lines, run(source, "jsonl").read_text("utf-8").splitlines(), strict=True):
        assert found.startswith(line[:-1].rstrip() + ', "ok": '[2 * (line == "{ }") :])


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_json_lines_to_csv(run: Run, tmp_path: Path, kind: str) -> None:
    values = ["a", "", None, True, 1, 0.5, 2**80, [1, "é"], {"a": None}, ...]
    rows = list(Table.of(str(run(lines_of(tmp_path / "in.jsonl", values), kind))).rows())
    want = ["a", "", None, "true", "1", "0.5", str(2**80), '[1, "é"]', '{"a": null}', None]
    assert [row["c"] for row in rows] == [text or "" if kind == "csv" else text for text in want]


def test_csv_to_parquet_is_text(run: Run, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text('text,c\na,1\nb,\nc,"x\ny"\n', "utf-8")
    found = parquet.read_table(run(tmp_path / "in.csv", "parquet"))
    assert found.column("c").to_pylist() == ["1", "", "x\ny"] and found.schema.field("c").type == pa.string()


def test_csv_is_written_as_it_was_read(run: Run, tmp_path: Path) -> None:
    text = 'text,,"a ""b"""\r\n"x, y",,"l\r\nm"\r\n,0x1,é\r\n'
    (tmp_path / "in.csv").write_bytes(text.encode())
    found = run(tmp_path / "in.csv", "csv").read_bytes().decode()
    assert found.startswith('text,,"a ""b""",ok,') and '\r\n"x, y",,"l\r\nm",' in found and "\r\n,0x1,é," in found


# ------------------------------------------------------------------ what is read as the row's text
@pytest.mark.parametrize(
    ("values", "says"),
    [
        (TYPES["timestamp_ns"][0], None), (TYPES["decimal"][0], None), (TYPES["map"][0], None),
        (TYPES["dictionary"][0], None), (pa.array([float("nan")] * 3), "column 'c' is null"),
        (TYPES["nothing"][0], "column 'c' is null"),
    ],
)  # fmt: skip
def test_a_column_of_any_type_is_read(run: Run, tmp_path: Path, values: Any, says: str | None) -> None:
    source, _ = stored(tmp_path / "in.parquet", {"c": values.fill_null(values[0]) if says is None else values}, 3)
    rows = list(Table.of(str(run(source, "jsonl", {**FORM, "state": "It says {c}."}))).rows())
    assert all(row["error"] is None if says is None else says in row["error"] for row in rows)


@pytest.mark.parametrize(
    "kind",
    [pa.binary(), pa.large_binary(), pa.binary(2), pa.binary_view(), pa.dictionary(pa.int32(), pa.binary())],
    ids=str,
)
def test_bytes_are_no_text(run: Run, tmp_path: Path, kind: Any) -> None:
    source, _ = stored(tmp_path / "in.parquet", {"c": pa.array([b"ab", b"\xff\x00", b"ab"]).cast(kind)}, 3)
    assert parquet.read_schema(source).field("c").type == kind
    with pytest.raises(BulkError, match=r"in\.parquet: column 'c' holds bytes"):
        run(source, "jsonl", {**FORM, "state": "{c}"})


def test_a_text_that_is_no_utf_8_is_an_error_of_its_file(run: Run, tmp_path: Path) -> None:
    broken = pa.Array.from_buffers(pa.string(), 3, pa.array([b"a", b"\xff", b""]).buffers())
    source, _ = stored(tmp_path / "in.parquet", {"c": broken}, 3)
    for kind, form in (("jsonl", FORM), ("parquet", {**FORM, "state": "{c}"})):
        with pytest.raises(BulkError, match=r"in\.parquet: a text is not UTF-8"):
            run(source, kind, form)
    found = parquet.read_table(run(source, "parquet")).column("c").cast(pa.binary())
    assert found.to_pylist() == [b"a", b"\xff", b""]


def test_a_form_without_columns_reads_none(run: Run, tmp_path: Path) -> None:
    source, _ = stored(tmp_path / "in.parquet", {}, 3)
    rows = list(Table.of(str(run(source, "jsonl", {**FORM, "state": "Hello"}))).rows())
    assert len(rows) == 3 and len({row["ok_probability"] for row in rows}) == 1


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_two_columns_of_one_name_are_refused(run: Run, tmp_path: Path, kind: str) -> None:
    source = tmp_path / "in.parquet"
    parquet.write_table(pa.table([TEXT, [1, 2, 3], [4, 5, 6]], names=["text", "c", "c"]), source)
    with pytest.raises(BulkError, match=r"in\.parquet: two columns have one name: 'c'"):
        run(source, kind)
    inner = pa.StructArray.from_arrays([pa.array([1] * 3), pa.array([2] * 3)], names=["a", "a"])
    source, want = stored(source, {"c": inner}, 3)
    if kind == "parquet":
        assert parquet.read_table(run(source, kind)).column("c") == want.column("c")
    else:
        with pytest.raises(BulkError, match=r"in\.parquet: two fields of a struct have one name"):
            run(source, kind)


def test_parts_that_one_group_cannot_hold(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows in more batches and groups than one."""
    monkeypatch.setattr("prelude.bulk.rows.GROUP_BYTES", 1000)
    monkeypatch.setattr("prelude.bulk.columnar.READ_ROWS", 7)
    count = 50
    table = pa.table(
        {"text": [f"text {at}" for at in range(count)], "c": pa.array(["a", "b"] * 25).dictionary_encode()}
    )
    parquet.write_table(table, tmp_path / "in.parquet", row_group_size=11)
    found = parquet.read_table(run(tmp_path / "in.parquet", "parquet"))
    assert found.select(["text", "c"]).equals(parquet.read_table(tmp_path / "in.parquet"))
    values = [{"a": at} if at < 40 else {"b": [at]} for at in range(count)]
    target = run(lines_of(tmp_path / "in.jsonl", values), "parquet")
    assert parquet.ParquetFile(target).num_row_groups > 1, "a group has about so many bytes of the input"
    again = parquet.read_table(target)
    assert again.column("c").to_pylist() == [{"a": None, "b": None, **value} for value in values]
