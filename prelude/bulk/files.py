"""Tables in files: JSON lines, CSV and Parquet, read row by row and written in bounded memory.

A name with ``://`` goes through fsspec. ``.gz`` behind ``.jsonl`` or ``.csv`` is read and written compressed.
"""

from __future__ import annotations

import gzip
import io
import itertools
import os
import secrets
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

from prelude.bulk import texts
from prelude.bulk.rows import Malformed, Position, Row
from prelude.errors import BulkError
from prelude.records import dataclass

FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet", ".pq": "parquet"}


def parquet() -> Any:
    """Return the module that reads and writes Parquet."""
    try:
        from prelude.bulk import columnar
    except ImportError:
        raise BulkError("Parquet needs pyarrow: pip install 'prelude-engine[bulk]'") from None
    return columnar


@dataclass(frozen=True, slots=True)
class Table:
    """A file by its name. ``format``: "jsonl", "csv" or "parquet"."""

    path: str
    format: str

    @classmethod
    def of(cls, path: str) -> Table:
        """``BulkError`` if the name has another end, or a package is missing that reads it."""
        if "://" in path:
            filesystem, name = located(path)
            path = name if "file" in filesystem.protocol else path
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

    def check_there(self) -> None:
        """``BulkError`` if a local one is no regular file."""
        if not self.remote and not Path(self.path).is_file():
            problem = "is not a regular file" if Path(self.path).exists() else "there is no such file"
            raise BulkError(f"{self.path}: {problem}")

    def schema(self) -> Any:
        """Return the Arrow schema of a Parquet file."""
        with reading(self.path) as file:
            return parquet().opened(file).schema_arrow

    def column_names(self) -> list[str] | None:
        """``None`` of JSON lines, whose rows may differ."""
        if self.format == "jsonl":
            return None
        with reading(self.path) as file:
            if self.format == "parquet":
                names: list[str] = parquet().names_once(parquet().opened(file).schema_arrow)
                return names
            return texts.header(unpacked(file, self.zipped))

    def check_types(self, read: Sequence[str], handed_through: bool) -> None:
        """``BulkError`` if a Parquet file has a column of a type that cannot be ``read`` or written."""
        with reading(self.path) as file:
            parquet().check_types(parquet().opened(file).schema_arrow, read, handed_through)

    def position(self) -> Position:
        """Return the beginning of the file."""
        with reading(self.path) as file:
            if self.format == "parquet":
                return Position("row", int(parquet().opened(file).metadata.num_rows))
            try:
                return Position("B", file.seek(0, os.SEEK_END))
            except (OSError, ValueError, NotImplementedError):  # some remote files
                return Position("B", None)

    def rows(self, names: Sequence[str] | None = None, position: Position | None = None) -> Iterator[Row]:
        """The rows, as JSON values. A row that cannot be read says its ``problem``; ``BulkError`` if the file cannot
        be. ``names``: the columns that are needed; a format that keeps them apart reads no other. ``position`` is
        kept up to date."""
        with reading(self.path) as file:
            if self.format == "parquet":
                yield from parquet().read(parquet().opened(file), names, position)
                return
            if position is not None:
                position.file = file
            read = texts.read_lines if self.format == "jsonl" else texts.read_csv
            yield from read(unpacked(file, self.zipped))

    def batches(self) -> Iterator[Any]:
        """Yield the ``RecordBatch`` es of a Parquet file, as they are stored."""
        with reading(self.path) as file:
            yield from parquet().batches(parquet().opened(file), None)


@contextmanager
def opened(path: str, mode: str) -> Iterator[IO[bytes]]:
    """The file ``path``, open; "xb" makes a new one, through no link. ``BulkError`` if it cannot be."""
    try:
        if "://" in path:
            filesystem, name = located(path)
            file: IO[bytes] = filesystem.open(name, mode)
        else:
            file = open(path, mode)  # noqa: SIM115 -- closed below
    except (OSError, ValueError, ImportError) as error:
        if isinstance(error, BulkError):
            raise
        raise BulkError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    with closing(file):
        yield file


def located(path: str) -> tuple[Any, str]:
    """Return the file system of a name with ``://``, and the name there."""
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise BulkError(f"{path}: fsspec is needed: pip install 'prelude-engine[bulk]'") from None
    try:
        filesystem, name = url_to_fs(path)
    except (OSError, ValueError, ImportError) as error:
        raise BulkError(f"{path}: {error}") from error
    return filesystem, name


@contextmanager
def reading(path: str) -> Iterator[IO[bytes]]:
    """Open the file ``path``. An error of its content is a ``BulkError`` that names it."""
    with opened(path, "rb") as file:
        try:
            yield file
        except (OSError, EOFError, zlib.error, Malformed) as error:
            raise BulkError(f"{path}: {error}") from error


def unpacked(file: IO[bytes], zipped: bool) -> Any:
    return io.BufferedReader(gzip.GzipFile(fileobj=file)) if zipped else file


# ------------------------------------------------------------------ writing


@contextmanager
def created(target: Table) -> Iterator[IO[bytes]]:
    """A new file, which takes the place of ``target`` when it is whole and on the disk: no reader sees a part of it.
    It is made beside ``target`` under a name that cannot have been given to another file or link before."""
    if target.remote:
        with opened(target.path, "wb") as file:
            yield from packed(file, target.zipped)
        return
    beside = f"{target.path}.{secrets.token_hex(8)}.part"
    try:
        with opened(beside, "xb") as file:
            yield from packed(file, target.zipped)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, target.path)
        sync_folder(target.path)
    finally:
        Path(beside).unlink(missing_ok=True)


def packed(file: IO[bytes], zipped: bool) -> Iterator[IO[bytes]]:
    if not zipped:
        yield file
        return
    with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as inner:
        yield cast(IO[bytes], inner)


def sync_folder(path: str | Path) -> None:
    """The name ``path`` is on the disk, as its content is."""
    folder = os.open(Path(path).absolute().parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def check_target(target: Table, overwrite: bool) -> None:
    """Check before any work that ``target`` can be made. ``BulkError`` says why not."""
    if target.remote:
        return
    path = Path(target.path).absolute()
    if path.is_dir():
        raise BulkError(f"{target.path}: is a directory; name a file in it")
    if not path.parent.is_dir():
        raise BulkError(f"{target.path}: there is no folder {str(path.parent)!r}")
    if not os.access(path.parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise BulkError(f"{target.path}: cannot be written")
    if os.path.lexists(path) and not overwrite:
        raise BulkError(f"{target.path}: is already there; --overwrite replaces it")


def check_apart(paths: Mapping[str, str | None]) -> None:
    """``BulkError`` if two of the files are one, under any name. ``paths``: by each file's use; None: not given."""
    given = [(use, path) for use, path in paths.items() if path is not None]
    for (one, path), (other, there) in itertools.combinations(given, 2):
        if is_one_file(path, there):
            raise BulkError(f"{there}: {one} and {other} are one file")


def is_one_file(path: str, other: str) -> bool:
    if "://" not in path + other:
        with suppress(OSError):
            return os.path.samefile(path, other)
        return os.path.realpath(path) == os.path.realpath(other)
    return "://" in path and "://" in other and located(path) == located(other)
