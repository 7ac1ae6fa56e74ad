"""JSON lines and CSV. A row that cannot be read says why; ``Malformed`` if its end is not known."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

from prelude.bulk.rows import Malformed, Row, json_text, text_of
from prelude.errors import shown
from prelude.values.strict_json import MAX_FILE_VALUES, loads

MAX_LINE = 1 << 26  # bytes of a JSON line, characters of a CSV record
_NO_STRUCTURE = re.compile('[^",\r\n]+')


def read_lines(file: IO[bytes]) -> Iterator[Row]:
    number = 0
    while line := file.readline(MAX_LINE):
        number += 1
        if len(line) == MAX_LINE and not line.endswith(b"\n"):
            while (rest := file.readline(MAX_LINE)) and not rest.endswith(b"\n"):
                pass
            yield Row(problem=f"line {number}: longer than {MAX_LINE} bytes")
            continue
        line = line.removeprefix(codecs.BOM_UTF8).strip()
        if line:
            yield json_row(line, number)


def json_row(line: bytes, number: int) -> Row:
    try:
        row = loads(line, max_values=MAX_FILE_VALUES)
        if b"\\u" in line:
            json_text(row).encode()
    except UnicodeDecodeError:
        return Row(problem=f"line {number}: not UTF-8")
    except UnicodeEncodeError:
        return Row(problem=f"line {number}: half of a surrogate pair, which is no text")
    except ValueError as error:
        return Row(problem=f"line {number}: not JSON: {error}")
    if not isinstance(row, dict):
        return Row(problem=f"line {number}: {shown(row)} is not an object")
    return Row(row, line=line, size=len(line))


class Records:
    """The lines of a CSV file, for ``csv.reader``. Of a record that is too long only the structure is kept, so that
    the next record is found in bounded memory: quotes, commas, ends of lines and an x for any other text; of the
    lines in which a quoted field goes on, what follows the first quote."""

    def __init__(self, file: IO[bytes]) -> None:
        # Bytes that are no UTF-8 become lone surrogates, and their row a problem.
        self._text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
        self._number = 0
        self.begin()
        csv.field_size_limit(max(2 * MAX_LINE, csv.field_size_limit()))
        self._reader = csv.reader(self, strict=True)

    def begin(self) -> None:
        self.first, self.size = self._number + 1, 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._text.readline(MAX_LINE)
        if not line:
            if self.size:
                raise Malformed(f"line {self.first}: a quote of this record is open at the end of the file")
            raise StopIteration
        self._number += 1
        inside = self.size > 0  # in a quoted field that began in a line before
        self.size += len(line)
        if self.size < MAX_LINE:
            return line
        kept = _NO_STRUCTURE.sub("x", line)
        while line and not line.endswith(("\n", "\r")):
            line = self._text.readline(MAX_LINE)
            self.size += len(line)
            kept += _NO_STRUCTURE.sub("x", line)
            if len(kept) > MAX_LINE:
                raise Malformed(f"line {self.first}: longer than {MAX_LINE} characters")
        if inside:
            _, quote, behind = kept.partition('"')
            return quote + behind
        return kept

    def records(self) -> Iterator[list[str]]:
        """Yield each record but an empty line. ``first`` and ``size`` are those of the record that came last."""
        while True:
            self.begin()
            try:
                values = next(self._reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise Malformed(f"line {self.first}: the record that begins here is not CSV: {error}") from error
            if values:
                yield values


def header(file: IO[bytes]) -> list[str]:
    return names_of(Records(file))


def names_of(lines: Records) -> list[str]:
    names = next(lines.records(), None)
    if names is None:
        raise Malformed("the file is empty; the first line of CSV has the names of the columns")
    if len(set(names)) < len(names):
        raise Malformed(f"two columns of the header have one name: {shown(names)}")
    if not all(map(is_text, names)) or lines.size >= MAX_LINE:
        raise Malformed(f"line {lines.first}: the header is too long, or not UTF-8")
    return names


def read_csv(file: IO[bytes]) -> Iterator[Row]:
    lines = Records(file)
    names = names_of(lines)
    for values in lines.records():
        if lines.size >= MAX_LINE:
            yield Row(problem=f"line {lines.first}: longer than {MAX_LINE} characters")
            continue
        problem = None
        if not all(map(is_text, values)):
            problem = f"line {lines.first}: not UTF-8"
            values = [value.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for value in values]
        if len(values) != len(names):
            problem = f"line {lines.first}: {len(values)} fields under a header of {len(names)}"
        yield Row(zip(names, values), problem, size=lines.size)


def is_text(value: str) -> bool:
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False


# ------------------------------------------------------------------ writing


def write_lines(file: IO[bytes], rows: Iterable[tuple[Row, Mapping[str, Any]]]) -> None:
    """Write each row with its new columns. A row of JSON lines is written with the bytes that it was read with."""
    for row, added in rows:
        own = row.line or json_text(row).encode()
        file.write(own[:-1].rstrip() + (b", " if row else b"") + json_text(added).encode()[1:] + b"\n")


def write_csv(
    file: IO[bytes], rows: Iterable[tuple[Row, Mapping[str, Any]]], names: Sequence[str], added: Sequence[str]
) -> None:
    """``names``: of the rows' own columns. ``added``: of the new ones."""
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.writer(text)
    writer.writerow([*names, *added])
    for row, values in rows:
        writer.writerow([*[text_of(row.get(name)) for name in names], *[text_of(values.get(name)) for name in added]])
    text.flush()
    text.detach()
