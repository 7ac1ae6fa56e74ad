"""Parquet, by pyarrow. From Parquet to Parquet the columns of the input are handed through as they are stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

import pyarrow as pa
from pyarrow.parquet import ParquetFile, ParquetWriter

from prelude.bulk.form import INTEGER, NUMBER, NUMBERS, TEXT, VECTOR, Column
from prelude.bulk.rows import GROUP_ROWS, Malformed, Position, Row, check_columns, groups, json_value, text_of
from prelude.errors import BulkError, shown

READ_ROWS = 1024
MAX_KEYS = 256  # of the objects in one column; with more it becomes text


# ------------------------------------------------------------------ reading


def opened(file: IO[bytes]) -> Any:
    """Return the ``ParquetFile``."""
    try:
        return ParquetFile(file)
    except Exception as error:  # pyarrow's own kinds
        raise Malformed(f"not a Parquet file: {error}") from error


def names_once(schema: Any) -> list[str]:
    twice = [name for name in schema.names if schema.names.count(name) > 1]
    if twice:
        raise Malformed(f"two columns have one name: {shown(twice[0])}; rename one of them")
    return list(schema.names)


def batches(file: Any, names: Sequence[str] | None, rows: int = GROUP_ROWS) -> Iterator[Any]:
    try:
        for batch in file.iter_batches(batch_size=rows, columns=names):
            yield batch if names is None else batch.select(list(names))
    except pa.ArrowException as error:  # a part that is corrupt
        raise Malformed(str(error)) from error


def read(file: Any, names: Sequence[str] | None, position: Position | None) -> Iterator[Row]:
    known = names_once(file.schema_arrow)
    kept = known if names is None else [name for name in known if name in names]
    for batch in batches(file, kept, READ_ROWS):
        if position is not None:
            position.rows += batch.num_rows
        yield from json_rows(batch)


def check_types(schema: Any, read: Sequence[str], handed_through: bool) -> None:
    """``Malformed`` if a column that is ``read`` holds bytes, or one has no form as JSON that needs it."""
    for field in schema:
        if field.name in read and is_bytes(field.type):
            raise Malformed(f"column {shown(field.name)} holds bytes ({field.type}), not text")
        if field.name in read or not handed_through:
            json_type(field.type)


def json_rows(batch: Any) -> Iterator[Row]:
    """Yield the rows of a ``RecordBatch`` or a ``Table`` as JSON values."""
    schema = pa.schema([field.with_type(json_type(field.type)) for field in batch.schema])
    exact = [field.name for field in schema if not is_plain(field.type)]
    try:
        rows = batch.cast(schema).to_pylist() if len(schema) else [{}] * batch.num_rows
    except UnicodeDecodeError as error:
        raise Malformed(f"a text is not UTF-8: {error}") from error
    for columns in rows:
        for name in exact:
            columns[name] = json_value(columns[name])
        yield Row(columns)


def json_type(kind: Any) -> Any:
    """The Arrow type that becomes JSON values in Python without loss: dates, times and decimals are texts as Arrow
    writes them, a duration is the number of its units, a map is a list of pairs."""
    types = pa.types
    if types.is_dictionary(kind):
        return json_type(kind.value_type)
    if types.is_map(kind):
        return pa.map_(json_type(kind.key_type), json_type(kind.item_type))
    if types.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        if len({field.name for field in fields}) < len(fields):
            raise Malformed(f"two fields of a struct have one name: {shown(str(kind))}")
        return pa.struct([field.with_type(json_type(field.type)) for field in fields])
    lists = (
        types.is_list,
        types.is_large_list,
        types.is_fixed_size_list,
        types.is_list_view,
        types.is_large_list_view,
    )
    if any(is_one(kind) for is_one in lists):
        return pa.large_list(json_type(kind.value_type))
    if types.is_float16(kind):  # numpy's numbers in older pyarrow
        return pa.float32()
    if types.is_duration(kind):
        return pa.int64()
    if types.is_temporal(kind) or types.is_decimal(kind):
        return pa.string()
    return kind


def is_bytes(kind: Any) -> bool:
    types = pa.types
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_binary_view(kind)
        or (types.is_dictionary(kind) and is_bytes(kind.value_type))
    )


def is_plain(kind: Any) -> bool:
    """Return whether the values are JSON values already."""
    types = pa.types
    return bool(types.is_integer(kind) or types.is_boolean(kind) or types.is_string(kind) or types.is_null(kind))


# ------------------------------------------------------------------ writing


def arrow_type(column: Column) -> Any:
    """Return the Arrow type of a result's column."""
    if column.kind == NUMBERS:
        return pa.struct([(label, pa.float64()) for label in column.labels])
    return {TEXT: pa.string(), NUMBER: pa.float64(), INTEGER: pa.int64(), VECTOR: pa.list_(pa.float32())}[column.kind]


def result_arrays(columns: Sequence[Column], values: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Any, Any]]:
    """(field, array) of each new column. ``values``: of each row."""
    for column in columns:
        kind = arrow_type(column)
        try:
            yield pa.field(column.name, kind), pa.array([one.get(column.name) for one in values], kind)
        except (pa.ArrowException, OverflowError) as error:
            raise BulkError(f"the journal's {column.name!r} has another type ({error}): --restart") from error


def with_results(batch: Any, columns: Sequence[Column], values: Sequence[Mapping[str, Any]]) -> Any:
    """``batch``, a ``RecordBatch``, with the new ``columns`` after its own."""
    schema, arrays = batch.schema, list(batch.columns)
    for field, array in result_arrays(columns, values):
        schema = schema.append(field)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def write(file: IO[bytes], batches: Iterable[Any], schema: Any, columns: Sequence[Column]) -> None:
    """``schema``: of the input's columns. ``columns``: the new ones."""
    for column in columns:
        schema = schema.append(pa.field(column.name, arrow_type(column)))
    with ParquetWriter(file, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def batch_of(rows: Sequence[Row], schema: Any) -> Any:
    """Return the rows as a ``RecordBatch`` of a schema that ``common_schema`` has made of them."""
    arrays = [array_of([row.get(field.name) for row in rows], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def array_of(values: list[Any], kind: Any) -> Any:
    return pa.array([text_of(value) for value in values] if kind == pa.string() else values, kind)


def text_schema(names: Sequence[str]) -> Any:
    return pa.schema([(name, pa.string()) for name in names])


def common_schema(rows: Callable[[], Iterable[Row]]) -> Any:
    """The schema of JSON rows, which ``rows`` begins anew. A column whose values have no type in common that holds
    each of them exactly becomes text: a text stays as it is, any other value becomes its JSON text."""
    kinds: dict[str, Any] = {}
    widened: set[str] = set()
    for group in groups(rows()):
        for name in dict.fromkeys(name for row in group for name in row):
            kind = kind_of([row.get(name) for row in group], None)
            known = kinds.setdefault(name, kind)
            if known != kind:
                kinds[name] = common_kind(known, kind)
                widened.add(name)
        check_columns(kinds)
    if widened:
        for group in groups(rows()):
            for name in widened:
                kinds[name] = kind_of([row.get(name) for row in group], kinds[name])
    return pa.schema([(name, kind if is_stored(kind) else pa.string()) for name, kind in kinds.items()])


def kind_of(values: list[Any], kind: Any) -> Any:
    """``kind``, or without one the type that pyarrow finds, if it holds the values exactly; else text."""
    if kind == pa.string() or too_many_keys(values) or mixes(values):
        return pa.string()
    try:
        return pa.array(values, kind).type
    except (pa.ArrowException, OverflowError):
        return pa.string()


def common_kind(one: Any, other: Any) -> Any:
    both = [pa.schema([("", kind)]) for kind in (one, other)]
    try:
        return pa.unify_schemas(both, promote_options="permissive").field(0).type
    except pa.ArrowException:
        return pa.string()


def too_many_keys(values: Iterable[Any]) -> bool:
    """Return whether objects are used as maps: each key of a struct takes memory in each row."""
    keys: set[str] = set()
    ahead = [value for value in values if isinstance(value, dict | list)]
    while ahead and len(keys) <= MAX_KEYS:
        value = ahead.pop()
        if isinstance(value, dict):
            keys.update(value)
        inside = value.values() if isinstance(value, dict) else value
        ahead += [one for one in inside if isinstance(one, dict | list)]
    return len(keys) > MAX_KEYS


def mixes(values: Sequence[Any]) -> bool:
    """Return whether booleans stand where numbers do, which pyarrow would write as 1.0 and 0.0."""
    kinds = set(map(type, values))
    if {bool, float} <= kinds:
        return True
    if list in kinds and mixes([one for value in values if isinstance(value, list) for one in value]):
        return True
    tables = [value for value in values if isinstance(value, dict)] if dict in kinds else []
    return any(mixes([one[key] for one in tables if key in one]) for key in {key for one in tables for key in one})


def is_stored(kind: Any) -> bool:
    """Return whether Parquet has the type: it has no struct without fields."""
    try:
        ParquetWriter(pa.BufferOutputStream(), pa.schema([("", kind)])).close()
    except pa.ArrowNotImplementedError:
        return False
    return True
