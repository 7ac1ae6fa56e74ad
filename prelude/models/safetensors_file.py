"""A ``.safetensors`` file: its header checked to the letter, its tensors as arrays over a mapping.

    8 bytes   N, little endian
    N bytes   {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, …}
    the rest  the data, which the offsets cover without hole or overlap

The file is untrusted. No number of the header is used before it was compared with the size that
``fstat`` gave, all arithmetic is in Python's integers, which cannot wrap, and a header that two
parsers could read differently (a key given twice) is refused. The parser is ours because the
``safetensors`` package opens the path anew, copies tensors for numpy without saying where they lie,
takes a key that is given twice, and names neither tensor nor value in most of its errors.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import weakref
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from prelude.errors import CheckpointError, ModelError, shown
from prelude.models.files import LFS_ADVICE, LFS_POINTER, MAX_TENSORS, open_regular
from prelude.records import dataclass
from prelude.values.strict_json import NATURAL, parse

if TYPE_CHECKING:
    from prelude.models.arrays import Array


Self = TypeVar("Self", bound="MappedFile")


@dataclass(frozen=True, slots=True)
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
    """One open, untrusted file of weights: its tensors are arrays over a mapping, which they keep alive. Subclasses
    read the header in ``_parse``, which may raise ``CheckpointError``, and then have ``tensors``.

    A file that is *truncated* while views of it are in use ends the process with a bus error. So weights are copied
    out when a model is loaded, and ``changed`` tells whether it changed until then. The packed weights of a converted
    directory are used where they lie (``prelude/models/packed_file.py``). Such a file is replaced by renaming another
    one over it, and never overwritten: ``UsedFile`` tells, before each step.
    """

    tensors: dict[str, TensorInfo]
    data_start = 0
    """The byte from which ``begin`` and ``end`` of tensors count."""

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

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def tensor(self, name: str) -> Array:
        """Return a view of the file, or a copy of a part of it that no view can show."""
        raise NotImplementedError

    def release(self, name: str) -> None:
        """Take the pages of a tensor out of this process's memory. Views of it stay valid: a page that is looked at
        again is read from the file again."""
        info = self.tensors[name]
        first, last = self.data_start + info.begin, self.data_start + info.end
        advise = getattr(self._mapping, "madvise", None)
        if advise is None or not hasattr(mmap, "MADV_DONTNEED"):
            return
        first -= first % mmap.PAGESIZE
        advise(mmap.MADV_DONTNEED, first, last - first)

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


MAX_HEADER_BYTES = 32 << 20
"""The reference implementation allows 100 MB; real headers have less than 2, and 100,000 tensors take 15."""
MAX_DIMENSIONS = 32
MAX_ELEMENTS = 1 << 60

DTYPES: dict[str, tuple[int, str]] = {
    "BOOL": (1, "bool"),
    "U8": (1, "uint8"),
    "I8": (1, "int8"),
    "F8_E4M3": (1, "V1"),
    "F8_E5M2": (1, "V1"),
    "I16": (2, "int16"),
    "U16": (2, "uint16"),
    "F16": (2, "float16"),
    "BF16": (2, "bfloat16"),
    "I32": (4, "int32"),
    "U32": (4, "uint32"),
    "F32": (4, "float32"),
    "I64": (8, "int64"),
    "U64": (8, "uint64"),
    "F64": (8, "float64"),
}
"""Bytes of a value, and its dtype; that of bfloat16 is ``arrays.BF16``."""
FLOATS = ("F32", "BF16", "F16", "F64")


class SafetensorsFile(MappedFile):
    """One open, validated file."""

    metadata: dict[str, str]

    def _parse(self, size: int) -> None:
        header = _read_header(self, size)
        self.data_start = 8 + len(header)
        self.tensors, self.metadata = _parse_header(header, size - self.data_start, self.path)

    def tensor(self, name: str) -> Array:
        """Return a view of the file; a copy only if the data is not aligned to its element size."""
        info = self.tensors.get(name)
        if info is None:
            raise CheckpointError(f"{self.path}: no tensor {shown(name)}")
        return self.view(info)

    def view(self, info: TensorInfo) -> Array:
        from prelude.models.arrays import BF16

        size, dtype = DTYPES[info.dtype]
        begin = self.data_start + info.begin
        flat = self.between(begin, begin + info.nbytes)
        if begin % size:
            flat = flat.copy()
        return flat.view(BF16 if info.dtype == "BF16" else dtype).reshape(info.shape)


def _read_header(file: SafetensorsFile, size: int) -> bytes:
    path = file.path
    if size < 8:
        raise CheckpointError(f"{path}: {size} bytes, too short for a safetensors file")
    first = file.read(8)
    if LFS_POINTER.startswith(first):
        raise CheckpointError(f"{path}: {LFS_ADVICE}")
    length = int.from_bytes(first, "little")
    if not 2 <= length <= MAX_HEADER_BYTES:
        raise CheckpointError(
            f"{path}: the header claims {length:,} bytes, the limits are 2 and {MAX_HEADER_BYTES:,}; "
            "is this a safetensors file?"
        )
    if length > size - 8:
        raise CheckpointError(
            f"{path}: the header claims {length:,} bytes, the file has {size - 8:,} after the length: "
            "truncated, or not a safetensors file"
        )
    return file.read(length)


def _parse_header(header: bytes, data_bytes: int, path: Path) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    if header[:1] != b"{":
        raise CheckpointError(f"{path}: the header is not a JSON object")
    _check_count(header.count(b'"data_offsets"'), path)  # before parsing: too many are refused cheaply
    parsed = parse(header, f"{path}: header", CheckpointError, numbers=NATURAL)
    metadata = parsed.pop("__metadata__", {})
    _check_count(len(parsed), path)
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointError(f"{path}: __metadata__ must be an object of strings")
    tensors = {name: _tensor_info(name, entry, data_bytes, path) for name, entry in parsed.items()}
    _check_coverage(tensors, data_bytes, path)
    return tensors, metadata


def _check_count(tensors: int, path: Path) -> None:
    if tensors > MAX_TENSORS:
        raise CheckpointError(f"{path}: the header lists {tensors:,} tensors, the limit is {MAX_TENSORS:,}")


def _tensor_info(name: str, entry: Any, data_bytes: int, path: Path) -> TensorInfo:
    where = f"{path}: tensor {shown(name)}"
    if not _encodable(name):
        raise CheckpointError(f"{where}: the name is not valid Unicode")
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"{where}: an object of dtype, shape and data_offsets is needed, got {shown(entry)}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise CheckpointError(f"{where}: unknown dtype {shown(dtype)}; known: {', '.join(DTYPES)}")
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS:
        seen = f"{len(shape):,} dimensions" if isinstance(shape, list) else shown(shape)
        raise CheckpointError(f"{where}: shape is {seen}, a list of at most {MAX_DIMENSIONS} sizes is needed")
    extent = 1  # as torch counts strides: a zero-size dimension must not hide an overflow beside it
    elements = 1
    for size in shape:
        if type(size) is not int:
            raise CheckpointError(f"{where}: shape {shown(shape)} holds {shown(size)}, sizes are natural numbers")
        extent *= max(size, 1)
        elements *= size
    if extent > MAX_ELEMENTS:
        raise CheckpointError(f"{where}: shape {shown(shape)} overflows, the limit is {MAX_ELEMENTS:,} elements")
    if not isinstance(offsets, list) or len(offsets) != 2 or any(type(offset) is not int for offset in offsets):
        raise CheckpointError(f"{where}: data_offsets is {shown(offsets)}, two natural numbers are needed")
    begin, end = offsets
    if not begin <= end <= data_bytes:
        raise CheckpointError(
            f"{where}: data_offsets [{begin}, {end}] do not lie in order within the {data_bytes:,} bytes of data: "
            "malformed, or the file is truncated"
        )
    needed = elements * DTYPES[dtype][0]
    if end - begin != needed:
        raise CheckpointError(
            f"{where}: data_offsets [{begin}, {end}] span {end - begin:,} bytes, "
            f"shape {shown(shape)} in {dtype} takes {needed:,}"
        )
    return TensorInfo(dtype, tuple(shape), begin, end)


def _check_coverage(tensors: dict[str, TensorInfo], data_bytes: int, path: Path) -> None:
    """Check that tensors lie end to end and fill the file. Tensors of no bytes may share an offset."""
    reached = 0
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if info.begin != reached:
            what = "overlaps the tensor before it" if info.begin < reached else "leaves a hole before it"
            raise CheckpointError(
                f"{path}: tensor {shown(name)} {what}: it begins at {info.begin:,}, "
                f"the data before it ends at {reached:,}"
            )
        reached = info.end
    if reached != data_bytes:
        raise CheckpointError(f"{path}: {data_bytes - reached:,} bytes after the last tensor belong to none")


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
