"""An untrusted file of weights, mapped: its tensors are arrays over it, which keep the mapping alive.

The mapping is private and read through numpy; ``close`` only lets go of it. A file that is *truncated* while views of
it are in use ends the process with a bus error, as any mapping would. So weights are copied out when a model is
loaded, and ``changed`` tells whether it changed until then. The packed weights of a converted directory are not
copied: they are used where they lie as long as the model is in use (``prelude/models/packed_file.py``). Such a file
is replaced by renaming another one over it, and never overwritten: ``UsedFile`` tells, before each step.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import weakref
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from prelude.errors import CheckpointError, ModelError
from prelude.models.files import open_regular
from prelude.records import dataclass

if TYPE_CHECKING:
    from prelude.models.arrays import Array

Self = TypeVar("Self", bound="MappedFile")


@dataclass(frozen=True)
class TensorInfo:
    """Where one tensor lies. ``begin`` and ``end`` are bytes from the start of a safetensors file's data, or from the
    start of a GGUF file."""

    dtype: str
    shape: tuple[int, ...]
    """The innermost dimension last."""
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.begin


class MappedFile:
    """One open file. Subclasses read the header in ``_parse``, which may raise ``CheckpointError``."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file: FileIO = os.fdopen(open_regular(self.path, CheckpointError), "rb", buffering=0)
        self._mapping: mmap.mmap | None = None
        self._bytes: Array | None = None
        try:
            status = os.fstat(self._file.fileno())
            self._written = _written(status)
            self.only_ours = _only_ours(status)
            self._parse(status.st_size)
            self._mapping = _map(self._file.fileno(), status.st_size)
        except (OSError, ValueError) as failure:
            self._file.close()
            if isinstance(failure, ModelError):
                raise
            raise CheckpointError(f"{self.path}: cannot be read: {failure}") from failure

    def _parse(self, size: int) -> None:
        """Read the header of ``size`` bytes of file."""
        raise NotImplementedError

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def changed(self) -> bool:
        """Return whether the file was written to since it was opened. Deleted or replaced, it stays readable."""
        return self._file.closed or _written(os.fstat(self._file.fileno())) != self._written

    def used(self) -> UsedFile:
        """Return the file for views that stay in use after ``close``."""
        return UsedFile(self.path, self._file.fileno(), self._written)

    def close(self) -> None:
        """Let go of the mapping; arrays that are still in use keep it alive."""
        self._bytes = None
        self._file.close()
        mapping, self._mapping = self._mapping, None
        if mapping is not None:
            with contextlib.suppress(BufferError):
                mapping.close()

    def read(self, count: int) -> bytes:
        """Return the next ``count`` bytes."""
        parts: list[bytes] = []
        while count:
            part = self._file.read(count)
            if not part:
                raise CheckpointError(f"{self.path}: became shorter while it was read")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def between(self, first: int, last: int) -> Array:
        """Return bytes [first, last) of the file, a view: uint8."""
        if self._bytes is None:
            import numpy as np  # here: reading a directory's files needs none

            if self._mapping is None:
                raise CheckpointError(f"{self.path}: already closed")
            self._bytes = np.frombuffer(self._mapping, np.uint8)
        return self._bytes[first:last]

    def release_between(self, first: int, last: int) -> None:
        """Take the pages of bytes [first, last) out of this process's memory. Views of them stay valid: a page that
        is looked at again is read from the file again."""
        advise = getattr(self._mapping, "madvise", None)
        if advise is None or not hasattr(mmap, "MADV_DONTNEED"):
            return
        first -= first % mmap.PAGESIZE
        advise(mmap.MADV_DONTNEED, first, last - first)


class UsedFile:
    """A file that is used where it lies after it was loaded. It is written into if its size or its time is another;
    replaced by renaming another file over it, it stays as it is."""

    def __init__(self, path: Path, descriptor: int, written: tuple[int, int]) -> None:
        self._path, self._descriptor, self._written = path, os.dup(descriptor), written
        weakref.finalize(self, os.close, self._descriptor)

    def check(self) -> None:
        """Raise ``CheckpointError`` if it was written into."""
        if _written(os.fstat(self._descriptor)) != self._written:
            raise CheckpointError(
                f"{self._path}: was written into while it is in use, so that answers would be wrong; make the engine "
                "again, and replace such a file by renaming another one over it"
            )


def _only_ours(status: os.stat_result) -> bool:
    """Whether this user or root alone may write the file, which then no other user changes while it is mapped."""
    if not hasattr(os, "geteuid"):
        return False
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & 0o022


def _written(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


def _map(descriptor: int, size: int) -> mmap.mmap:
    """Map copy on write, so that arrays of it are writable, as torch needs them for a GPU. Nothing writes to it."""
    if sys.platform == "win32":
        return mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)
    # Nothing is written, so nothing need be reserved: a file larger than memory can be mapped.
    no_reserve = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
    return mmap.mmap(descriptor, size, flags=mmap.MAP_PRIVATE | no_reserve, prot=mmap.PROT_READ | mmap.PROT_WRITE)
