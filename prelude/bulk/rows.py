"""A row of a table as JSON values, and its texts."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Iterator, Sized
from typing import IO, Any

from prelude.errors import BulkError
from prelude.records import dataclass

MAX_COLUMNS = 1 << 12  # of JSON lines that become a table
GROUP_ROWS, GROUP_BYTES = 1 << 14, 1 << 27  # of a Parquet row group


class Malformed(BulkError):
    """A file that is not in its format: ``files.reading`` adds its name."""


class Row(dict[str, Any]):
    """The columns by name, as JSON values. ``problem``: why the row could not be read; a CSV row has the columns that
    could. ``line``: the JSON object as it was written, of JSON lines alone. ``size``: bytes of a line."""

    __slots__ = ("line", "problem", "size")

    def __init__(
        self, columns: Iterable[tuple[str, Any]] = (), problem: str | None = None, line: bytes = b"", size: int = 0
    ) -> None:
        super().__init__(columns)
        self.problem, self.line, self.size = problem, line, size


@dataclass(slots=True)
class Position:
    """How far a file has been read. ``unit``: "B" for bytes, or "row". ``total``: ``None`` if the file does not tell.
    ``passed``: up to which the rows were not new."""

    unit: str
    total: int | None
    file: IO[bytes] | None = None
    rows: int = 0
    passed: int = 0

    @property
    def read(self) -> int:
        if self.file is None or self.file.closed:
            return self.rows if self.unit == "row" else self.total or 0
        return self.file.tell()


def json_value(value: Any) -> Any:
    """``value`` as JSON can hold it: bytes are base64, a number that is not finite is null."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {name: json_value(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(one) for one in value]
    return str(value)


def json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def text_of(value: Any) -> str | None:
    """A text stays as it is, null stays null, any other value becomes its JSON text."""
    return value if value is None or isinstance(value, str) else json_text(value)


def groups(rows: Iterable[Row]) -> Iterator[list[Row]]:
    group: list[Row] = []
    size = 0
    for row in rows:
        group.append(row)
        size += row.size
        if len(group) == GROUP_ROWS or size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def key_names(rows: Iterable[Row]) -> list[str]:
    """Return the names of the columns of JSON rows, in the order in which they come."""
    names: dict[str, None] = {}
    for row in rows:
        names.update(dict.fromkeys(row))
        check_columns(names)
    return list(names)


def check_columns(names: Sized) -> None:
    if len(names) > MAX_COLUMNS:
        raise BulkError(f"the rows have more than {MAX_COLUMNS:,} keys, too many columns for a table: write .jsonl")
