"""The journal of a run over a file: the result of each row, in the order of the rows, kept as the run goes.

    header      {"prelude_journal": 1, "configuration": "…", "says": {…}}
    a row       CRC32 of the rest of the line, key of the row, its columns as JSON

A killed process leaves a whole number of good lines and at most one torn one, which is cut off when the file is
opened again. The header's configuration is a hash of everything that the columns depend on: a journal of another
configuration is refused. The key is a hash of the input row: a row that has changed is refused as well.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from prelude.errors import BulkError

VERSION = 1
SYNC_SECONDS = 5.0  # a machine that loses its power loses at most this much work; a killed process loses none
MAX_LINE = 1 << 28
HEAD_KEY = "prelude_journal"
HEAD = b'{"prelude_journal"'  # the first bytes of a header


def row_key(row: Any) -> str:
    """16 hexadecimal digits that name the contents of a row."""
    text = json.dumps([row, getattr(row, "problem", None)], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class Journal:
    """Rows are appended by one process: a second one is refused. ``rows``: how many it holds."""

    def __init__(self, path: Path, configuration: str, says: Mapping[str, Any]) -> None:
        """Opens the file or makes it. ``says``: the configuration in words, for the message of a refusal.
        ``BulkError`` where the file is of another configuration, in use, or no journal."""
        self.path, self._configuration = path, configuration
        self.rows = 0
        self._unwritten: list[bytes] = []
        self._synced = time.monotonic()
        try:
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115 -- closed by close()
        except OSError as error:
            raise BulkError(f"{path}: the journal cannot be written: {error.strerror}") from error
        try:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise BulkError(f"{path}: another process is writing this journal") from error
            self._recover(says)
        except BaseException:
            self._file.close()
            raise

    def _recover(self, says: Mapping[str, Any]) -> None:
        """Counts the lines that are whole, and cuts off the rest."""
        with open(self.path, "rb") as file:
            header = file.readline(MAX_LINE)
            good = len(header)
            if not header.endswith(b"\n"):
                if not HEAD.startswith(header[: len(HEAD)]):
                    raise BulkError(f"{self.path}: this file is no journal; move it away")
                head = {HEAD_KEY: VERSION, "configuration": self._configuration, "says": dict(says)}
                self._file.truncate(0)
                self._unwritten.append(json.dumps(head).encode() + b"\n")
                self._sync()
                return
            self._check(header, says)
            while (line := file.readline(MAX_LINE)).endswith(b"\n") and _whole(line):
                good += len(line)
                self.rows += 1
        self._file.truncate(good)

    def _check(self, header: bytes, says: Mapping[str, Any]) -> None:
        try:
            found = json.loads(header)
            version, configuration, said = found[HEAD_KEY], found["configuration"], dict(found["says"])
        except (ValueError, TypeError, KeyError, RecursionError):
            raise BulkError(f"{self.path}: this file is no journal; move it away") from None
        if version != VERSION:
            raise BulkError(f"{self.path}: a journal of format {version}; this version writes {VERSION}: --restart")
        if configuration != self._configuration:
            names = [name for name in {**said, **says} if said.get(name) != says.get(name)]
            raise BulkError(
                f"{self.path}: the journal was begun with another {' and '.join(sorted(names)) or 'configuration'}; "
                "--restart begins anew, and the command as it was goes on"
            )

    def append(self, key: str, columns: Mapping[str, Any]) -> None:
        text = f"{key} {json.dumps(columns, ensure_ascii=False)}".encode("utf-8", "surrogatepass")
        self._unwritten.append(b"%08x %b\n" % (zlib.crc32(text), text))
        self.rows += 1

    def flush(self) -> None:
        """Hands the lines to the system; ``fsync`` every few seconds. ``OSError`` where the disk takes no more: the
        journal then takes no more lines, and its file is cut to whole lines when it is opened again."""
        lines, self._unwritten = memoryview(b"".join(self._unwritten)), []
        while lines:
            lines = lines[self._file.write(lines) :]
        if time.monotonic() - self._synced > SYNC_SECONDS:
            self._sync()

    def _sync(self) -> None:
        self._synced = time.monotonic()
        self.flush()
        os.fsync(self._file.fileno())

    def read(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """(key, columns) of each row."""
        self._sync()
        with open(self.path, "rb") as file:
            file.readline()
            for _ in range(self.rows):
                line = file.readline()
                yield line[9:25].decode(), json.loads(line[26:].decode("utf-8", "surrogatepass"))

    def keys(self) -> Iterator[str]:
        """The key of each row."""
        self._sync()
        with open(self.path, "rb") as file:
            file.readline()
            for _ in range(self.rows):
                yield file.readline()[9:25].decode()

    def remove(self) -> None:
        self.path.unlink()
        self._file.close()

    def close(self) -> None:
        try:
            self._sync()
        finally:
            self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and not self._file.closed:
            self.close()
        else:
            self._file.close()


def _whole(line: bytes) -> bool:
    try:
        return len(line) > 27 and int(line[:8], 16) == zlib.crc32(line[9:-1])
    except ValueError:
        return False
