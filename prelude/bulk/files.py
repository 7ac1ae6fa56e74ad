"""Tables in files: JSON lines, CSV and Parquet, read row by row and written in bounded memory.

A name with ``://`` goes through fsspec. ``.gz`` behind ``.jsonl`` or ``.csv`` is read and written compressed.
"""

from __future__ import annotations

import csv
import gzip
import importlib
import io
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from prelude.bulk.form import INTEGER, NUMBER, NUMBERS, TEXT, VECTOR, Column
from prelude.errors import BulkError, shown

MAX_LINE = 1 << 26  # bytes of one JSON line, characters of one CSV field
GROUP_ROWS = 1 << 14  # of a Parquet row group
FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet", ".pq": "parquet"}


class BadRow(dict[str, Any]):
    """A row that could not be read: it has no columns. ``problem`` says why."""

    def __init__(self, problem: str) -> None:
        super().__init__()
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Table:
    """A file by its name. ``format``: "jsonl", "csv" or "parquet"."""

    path: str
    format: str

    @classmethod
    def of(cls, path: str) -> Table:
        name = path.lower().removesuffix(".gz")
        found = FORMATS.get(os.path.splitext(name)[1])
        if found is None or (found == "parquet" and name != path.lower()):
            raise BulkError(f"{path}: the name has to end in {', '.join(FORMATS)}, the first three also with .gz")
        if found == "parquet":
            parquet()
        return cls(path, found)

    @property
    def remote(self) -> bool:
        return "://" in self.path

    @property
    def zipped(self) -> bool:
        return self.path.lower().endswith(".gz")

    def count(self) -> int | None:
        """The number of rows, where the file tells it without being read."""
        if self.format != "parquet":
            return None
        with reading(self.path) as file:
            return int(parquet_file(file).metadata.num_rows)

    def column_names(self) -> list[str] | None:
        """``None`` of JSON lines, whose rows may differ."""
        if self.format == "jsonl":
            return None
        with reading(self.path) as file:
            if self.format == "parquet":
                return list(parquet_file(file).schema_arrow.names)
            return next(csv.reader(as_text(file, self.zipped)), [])

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows, ``BadRow`` for those that cannot be read; ``BulkError`` where the file cannot be."""
        with reading(self.path) as file:
            yield from {"jsonl": read_lines, "csv": read_csv, "parquet": read_parquet}[self.format](file, self.zipped)


def parquet() -> ModuleType:
    try:
        return importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise BulkError("Parquet needs pyarrow: pip install 'prelude-engine[bulk]'") from None


@contextmanager
def opened(path: str, mode: str) -> Iterator[IO[bytes]]:
    try:
        if "://" in path:
            try:
                import fsspec
            except ImportError:
                raise BulkError(f"{path}: fsspec is needed: pip install 'prelude-engine[bulk]'") from None
            file: IO[bytes] = fsspec.open(path, mode).open()
        else:
            file = open(path, mode)  # noqa: SIM115 -- closed below
    except BulkError:
        raise
    except (OSError, ValueError, ImportError) as error:
        raise BulkError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    with closing(file):
        yield file


class Malformed(BulkError):
    """A file that is not in its format: ``reading`` adds its name."""


@contextmanager
def reading(path: str) -> Iterator[IO[bytes]]:
    """The file ``path``, open. An error of its content is a ``BulkError`` that names it."""
    with opened(path, "rb") as file:
        try:
            yield file
        except (OSError, EOFError, csv.Error, zlib.error, Malformed) as error:
            raise BulkError(f"{path}: {error}") from error


def as_text(file: IO[bytes], zipped: bool) -> io.TextIOWrapper:
    """A CSV file's text. Bytes that are no UTF-8 become lone surrogates, and their row becomes a ``BadRow``."""
    raw: Any = gzip.GzipFile(fileobj=file) if zipped else file
    return io.TextIOWrapper(raw, encoding="utf-8-sig", errors="surrogateescape", newline="")


def read_lines(file: IO[bytes], zipped: bool) -> Iterator[dict[str, Any]]:
    raw: Any = gzip.GzipFile(fileobj=file) if zipped else file
    number = 0
    while line := raw.readline(MAX_LINE):
        number += 1
        if len(line) == MAX_LINE and not line.endswith(b"\n"):
            while (rest := raw.readline(MAX_LINE)) and not rest.endswith(b"\n"):
                pass
            yield BadRow(f"line {number}: longer than {MAX_LINE} bytes")
        elif line.strip():
            yield json_row(line, number)


def json_row(line: bytes, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        return BadRow(f"line {number}: not UTF-8")
    except (ValueError, RecursionError) as error:
        return BadRow(f"line {number}: not JSON: {error}")
    return row if isinstance(row, dict) else BadRow(f"line {number}: {shown(row)} is not an object")


def read_csv(file: IO[bytes], zipped: bool) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(MAX_LINE)
    reader = csv.reader(as_text(file, zipped))
    header = next(reader, [])
    if len(set(header)) < len(header):
        raise Malformed(f"two columns of the header have one name: {shown(header)}")
    for values in reader:
        if not values:
            continue
        if len(values) != len(header):
            yield BadRow(f"line {reader.line_num}: {len(values)} fields under a header of {len(header)}")
        elif any("\udc80" <= char <= "\udcff" for value in values if not value.isascii() for char in value):
            yield BadRow(f"line {reader.line_num}: not UTF-8")
        else:
            yield dict(zip(header, values))


def parquet_file(file: IO[bytes]) -> Any:
    module = parquet()
    try:
        return module.ParquetFile(file)
    except Exception as error:  # pyarrow's own kinds
        raise Malformed(f"not a Parquet file: {error}") from error


def read_parquet(file: IO[bytes], zipped: bool) -> Iterator[dict[str, Any]]:
    del zipped
    from pyarrow import ArrowException

    try:
        for batch in parquet_file(file).iter_batches(batch_size=1024):
            yield from batch.to_pylist()
    except ArrowException as error:  # a part that is corrupt
        raise Malformed(str(error)) from error


# ------------------------------------------------------------------ writing


def write(
    target: Table,
    path: str,
    rows: Iterable[Mapping[str, Any]],
    names: Sequence[str],
    columns: Sequence[Column],
    schema: Any,
) -> None:
    """``rows`` in the format of ``target`` to the file ``path``, which is synced. ``names``: of the input's columns.
    ``schema``: the Arrow schema of the input's columns; of Parquet alone."""
    with opened(path, "wb") as file:
        if target.format == "parquet":
            write_parquet(file, rows, columns, schema)
        else:
            packed = gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) if target.zipped else None
            if target.format == "csv":
                write_csv(packed or file, rows, [*names, *[column.name for column in columns]])
            else:
                for row in rows:
                    (packed or file).write(json_line(row))
            if packed is not None:
                packed.close()
        file.flush()
        if not target.remote:
            os.fsync(file.fileno())


def json_line(row: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(row, ensure_ascii=False, default=str).encode() + b"\n"
    except UnicodeEncodeError:  # a lone surrogate of the input
        return json.dumps(row, default=str).encode() + b"\n"


def write_csv(file: Any, rows: Iterable[Mapping[str, Any]], header: Sequence[str]) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", errors="replace", newline="", write_through=False)
    writer = csv.writer(text)
    writer.writerow(header)
    for row in rows:
        writer.writerow([csv_value(row.get(name)) for name in header])
    text.flush()
    text.detach()


def csv_value(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value


def arrow_schema(rows: Iterable[Mapping[str, Any]], columns: Sequence[Column]) -> Any:
    """The schema of the input's columns over all rows. A column whose values have no common type becomes text."""
    import pyarrow as pa

    found: dict[str, Any] = {}
    added = {column.name for column in columns}
    for group in groups(rows):
        for name in dict.fromkeys(name for row in group for name in row if name not in added):
            values = [row.get(name) for row in group]
            try:
                kind = pa.infer_type(values)
                if name in found:
                    both = [pa.schema([(name, found[name])]), pa.schema([(name, kind)])]
                    kind = pa.unify_schemas(both, promote_options="permissive").field(name).type
            except (pa.ArrowInvalid, pa.ArrowTypeError):
                kind = pa.string()
            found[name] = kind
    return pa.schema(list(found.items()))


def arrow_type(column: Column) -> Any:
    """The Arrow type of a result's column."""
    import pyarrow as pa

    if column.kind == NUMBERS:
        return pa.struct([(label, pa.float64()) for label in column.labels])
    return {TEXT: pa.string(), NUMBER: pa.float64(), INTEGER: pa.int64(), VECTOR: pa.list_(pa.float32())}[column.kind]


def write_parquet(file: Any, rows: Iterable[Mapping[str, Any]], columns: Sequence[Column], schema: Any) -> None:
    import pyarrow as pa

    for column in columns:
        schema = schema.append(pa.field(column.name, arrow_type(column)))
    texts = {field.name for field in schema if field.type == pa.string()}
    with parquet().ParquetWriter(file, schema) as writer:
        for group in groups(rows):
            plain = [
                {name: as_string(value) if name in texts else value for name, value in row.items()} for row in group
            ]
            writer.write_table(pa.Table.from_pylist(plain, schema=schema))


def as_string(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def groups(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    group: list[Mapping[str, Any]] = []
    for row in rows:
        group.append(row)
        if len(group) == GROUP_ROWS:
            yield group
            group = []
    if group:
        yield group


def check_target(target: Table) -> None:
    """Before any work: whether ``target`` can be made. ``BulkError`` says why not."""
    if target.remote:
        return
    path = Path(target.path).absolute()
    if path.is_dir():
        raise BulkError(f"{target.path}: is a directory; name a file in it")
    if not path.parent.is_dir():
        raise BulkError(f"{target.path}: there is no folder {str(path.parent)!r}")
    if not os.access(path.parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise BulkError(f"{target.path}: cannot be written")
