"""The journal of a run over a file: the result of each row by the row's key, kept as the run goes.

    header      {"prelude_journal": 2, "configuration": "…", "says": {…}}
    a row       CRC32 of the rest of the line, key of the row, its columns as JSON

A line whose sum is wrong is no row; an incomplete line at the end is cut off when the file is opened again. The
header's configuration is a hash of everything that the columns depend on beside the row: a journal of another
configuration is refused. The key is a hash of the columns that the task reads. So rows may be added, removed, changed
or moved: a row whose key is there is not computed again.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import json
import os
import re
import stat
import time
import zlib
from array import array
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np

from prelude.bulk.files import sync_folder
from prelude.bulk.rows import json_text, json_value
from prelude.errors import BulkError, shown
from prelude.values.strict_json import loads

VERSION = 2
SYNC_SECONDS = 5.0  # a machine that loses its power loses at most this much work; a killed process loses none
MAX_LINE = 1 << 28
HEAD_KEY = "prelude_journal"
HEAD = b'{"prelude_journal"'  # the first bytes of a header
_ROW = re.compile(rb"[0-9a-f]{8} [0-9a-f]{32} [^\n]*\n")
_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe in the journal's place does not hang


def row_key(columns: Mapping[str, Any], problem: str | None) -> str:
    """32 hexadecimal digits that name the contents of a row, with the order of keys in its objects, which the model
    sees. ``problem``: why it could not be read."""
    text = json.dumps([columns, problem])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class Journal:
    """Rows are appended by one process: a second one is refused. ``rows``: how many it holds."""

    def __init__(self, path: Path, configuration: str, says: Mapping[str, Any], restart: bool = False) -> None:
        """Opens the file or makes it. ``says``: the configuration in words, for the message of a refusal.
        ``restart``: forgets the rows of an earlier run, of whatever configuration. ``BulkError`` if the file is of
        another configuration, in use, or no journal."""
        self.path, self._configuration = path, configuration
        self.rows = 0
        self._unwritten: list[bytes] = []
        self._synced = time.monotonic()
        self._files = ExitStack()
        try:
            self._file = self._files.enter_context(opened(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, "ab"))
            self._reader = self._files.enter_context(io.BufferedReader(opened(path, os.O_RDONLY, "rb")))
            if not os.path.sameopenfile(self._file.fileno(), self._reader.fileno()):
                raise BulkError(f"{path}: another file was put into the journal's place")
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise BulkError(f"{path}: another process is writing this journal") from error
            self._recover(says, restart)
        except BaseException:
            self._files.close()
            raise

    def _recover(self, says: Mapping[str, Any], restart: bool) -> None:
        """Counts the rows, and cuts off an incomplete line at the end."""
        header = self._reader.readline(MAX_LINE)
        if not HEAD.startswith(header[: len(HEAD)]):
            raise BulkError(f"{self.path}: this file is no journal; move it away")
        if restart or not header.endswith(b"\n"):
            head = {HEAD_KEY: VERSION, "configuration": self._configuration, "says": dict(says)}
            self._file.truncate(0)
            self._unwritten.append(json.dumps(head).encode() + b"\n")
            self.flush(sync=True)
            sync_folder(self.path)
            return
        self._check(header, says)
        end = len(header)
        while line := self._reader.readline(MAX_LINE):
            if line.endswith(b"\n"):
                self.rows += _whole(line)
                end = self._reader.tell()
        self._file.truncate(end)

    def _check(self, header: bytes, says: Mapping[str, Any]) -> None:
        try:
            found = loads(header)
            version, configuration, said = found[HEAD_KEY], found["configuration"], dict(found["says"])
        except (ValueError, TypeError, KeyError):
            raise BulkError(f"{self.path}: this file is no journal; move it away") from None
        if version != VERSION:
            raise BulkError(
                f"{self.path}: a journal of format {shown(version)}; this version has {VERSION}: --restart"
            )
        if configuration != self._configuration:
            names = [name for name in {**said, **says} if json.dumps(said.get(name)) != json.dumps(says.get(name))]
            other = " and ".join(sorted(names))[:200] or "configuration"
            raise BulkError(
                f"{self.path}: the journal was begun with another {other}; --restart begins anew, and the command "
                "as it was goes on"
            )

    def append(self, key: str, columns: Mapping[str, Any]) -> None:
        try:
            text = f"{key} {json_text(columns)}".encode()
        except ValueError:  # a number that is not finite, or a message with a part of the row that is no text
            text = f"{key} {json.dumps(json_value(columns), allow_nan=False)}".encode()
        self._unwritten.append(b"%08x %b\n" % (zlib.crc32(text), text))
        self.rows += 1

    def flush(self, sync: bool = False) -> None:
        """Hands the lines to the system; ``fsync`` every few seconds, or with ``sync``. ``OSError`` if the disk takes
        no more: the journal takes no more lines then, and its file is cut to whole lines when it is opened again."""
        lines, self._unwritten = memoryview(b"".join(self._unwritten)), []
        while lines:
            lines = lines[self._file.write(lines) :]
        if sync or time.monotonic() - self._synced > SYNC_SECONDS:
            os.fsync(self._file.fileno())
            self._synced = time.monotonic()

    def results(self) -> Results:
        """Return the results that it holds now."""
        self.flush(sync=True)
        return Results(self._reader, self._file.seek(0, os.SEEK_END))

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        self._files.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        with self._files:
            if error is None and not self._file.closed:
                self.flush(sync=True)


class Results:
    """The results of a journal by their keys. Keys that are asked for in the order of the file take no memory; the
    first one out of order costs 16 bytes for each row of the file."""

    def __init__(self, file: IO[bytes], end: int) -> None:
        self._file, self._end = file, end
        file.seek(0)
        self._at = self._first = len(file.readline(MAX_LINE))
        self._keys: Any = None
        self._places: Any = None

    def get(self, key: str) -> dict[str, Any] | None:
        if self._keys is None and self._at >= self._end:  # the rows before were those of the file; this one is new
            return None
        columns = self._take(self._at, key)
        return self._look_up(key) if columns is None else columns

    def _take(self, place: int, key: str) -> dict[str, Any] | None:
        """Return the row at ``place`` if it has this key; the row behind it is then the next."""
        self._file.seek(place)
        line = self._file.readline(MAX_LINE) if place < self._end else b""
        if line[9:41] != key.encode() or not _whole(line):
            return None
        try:
            columns = loads(line[42:])
        except ValueError:
            return None
        self._at = place + len(line)
        return columns if isinstance(columns, dict) else None

    def _look_up(self, key: str) -> dict[str, Any] | None:
        if self._keys is None:
            self._index()
        wanted = int(key[:16], 16)
        at = int(np.searchsorted(self._keys, np.uint64(wanted)))
        while at < len(self._keys) and int(self._keys[at]) == wanted:
            columns = self._take(int(self._places[at]), key)
            if columns is not None:
                return columns
            at += 1
        return None

    def _index(self) -> None:
        keys, places, at = array("Q"), array("Q"), self._first
        self._file.seek(at)
        while at < self._end and (line := self._file.readline(MAX_LINE)):
            if _whole(line):
                keys.append(int(line[9:25], 16))
                places.append(at)
            at += len(line)
        order = np.argsort(np.array(keys, np.uint64), kind="stable")
        self._keys, self._places = (np.array(one, np.uint64)[order] for one in (keys, places))


def opened(path: Path, flags: int, mode: str) -> Any:
    """Return the file without a buffer, if it is a regular one of one name."""
    try:
        number = os.open(path, flags | _FLAGS, 0o666)
    except OSError as error:
        problem = "it is a link" if error.errno == errno.ELOOP else error.strerror
        raise BulkError(f"{path}: the journal cannot be written: {problem}") from error
    found = os.fstat(number)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        os.close(number)
        raise BulkError(f"{path}: the journal cannot be written: it has to be a regular file of one name")
    return open(number, mode, buffering=0)


def _whole(line: bytes) -> bool:
    """Return whether the line is a row, as it was written."""
    return bool(_ROW.match(line)) and int(line[:8], 16) == zlib.crc32(line[9:-1])
