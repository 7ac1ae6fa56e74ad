"""A ``.gguf`` file of version 2 or 3, little endian: its header checked to the letter, its tensors mapped.

    4 bytes   "GGUF"
    u32       version
    u64, u64  how many tensors, how many metadata
    metadata  key, type, value: numbers, booleans, texts, and arrays of these
    tensors   name, dimensions (the innermost first), type, offset
    the rest  from the next multiple of ``general.alignment`` on the data, where each tensor begins at such a multiple

The file is untrusted. A length, a count or an offset is compared with the rest of the file before it is used, and
arithmetic is in Python's integers, which cannot wrap. A key or a tensor that is given twice is refused, and so are
tensors that overlap, arrays in arrays, and types that are not computed.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from prelude.errors import CheckpointError, UnsupportedModel, shown
from prelude.models.files import LFS_ADVICE, LFS_POINTER
from prelude.models.safetensors_file import DTYPES, MappedFile, TensorInfo

if TYPE_CHECKING:
    from prelude.models.arrays import Array

Value: TypeAlias = "int | float | bool | str | list[Any]"

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_METADATA = 10_000
MAX_TENSORS = 100_000
MAX_KEY_BYTES = 256
MAX_NAME_BYTES = 256
"""llama.cpp takes 64."""
MAX_TEXT_BYTES = 8 << 20
"""Bytes of one text, such as a chat template."""
MAX_ARRAY = 4 << 20
"""Values of one array; the largest vocabularies have a quarter of a million tokens."""
MAX_ARRAY_VALUES = 16 << 20
"""Values of all arrays together."""
MAX_DIMENSIONS = 4
MAX_ELEMENTS = 1 << 60
MAX_ALIGNMENT = 1 << 20

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
_BOOL, _TEXT, _ARRAY = 7, 8, 9

TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    8: ("Q8_0", 32, 34),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    30: ("BF16", 1, 2),
}
"""Types by number: name, values of a block, bytes of a block."""
_OTHERS = {2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K"}
_OTHERS |= {16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S"}
_OTHERS |= {23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0"}
_OTHERS |= {35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0"}
BLOCK_TYPES = ("Q8_0", "Q4_K", "Q5_K", "Q6_K")


class GgufFile(MappedFile):
    """One open, validated file."""

    metadata: dict[str, Value]

    def _parse(self, size: int) -> None:
        first = self.read(min(size, len(LFS_POINTER)))
        if not first.startswith(MAGIC):
            advice = LFS_ADVICE if first == LFS_POINTER else "does not begin with GGUF"
            raise CheckpointError(f"{self.path}: {advice}")
        with mmap.mmap(self._file.fileno(), size, access=mmap.ACCESS_READ) as data:
            header = _Header(data, size, self.path)
            self.metadata, self.tensors = header.metadata, header.tensors

    def tensor(self, name: str) -> Array:
        """Return a view of the file: of F32, F16 and BF16 the values, of other types the rows of blocks, uint8."""
        from prelude.models.arrays import BF16

        info = self.tensors[name]
        flat = self.between(info.begin, info.end)
        if info.dtype in BLOCK_TYPES:
            return flat.reshape(-1, row_bytes(info))
        flat = flat.view(BF16 if info.dtype == "BF16" else DTYPES[info.dtype][1])  # the alignment is a multiple of 8
        return flat.reshape(info.shape)


def row_bytes(info: TensorInfo) -> int:
    """Return bytes of the innermost dimension."""
    block, size = next((block, size) for name, block, size in TYPES.values() if name == info.dtype)
    return info.shape[-1] // block * size


class _Header:
    def __init__(self, data: mmap.mmap, size: int, path: Path) -> None:
        self.data, self.size, self.path = data, size, path
        self.at = 4
        self.array_values = 0
        version = self.number("I", "version")
        if version not in VERSIONS:
            raise UnsupportedModel(
                f"{path}: unsupported: GGUF version {version}; versions 2 and 3 in little endian are read"
            )
        tensors, values = self.count("tensors", MAX_TENSORS), self.count("metadata", MAX_METADATA)
        self.metadata: dict[str, Value] = {}
        for _ in range(values):
            self.read_value()
        self.alignment = self.read_alignment()
        found = [self.read_tensor() for _ in range(tensors)]
        start = -(-self.at // self.alignment) * self.alignment
        self.tensors = self.placed(found, start)

    def wrong(self, why: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {why}")

    def take(self, count: int, name: str) -> bytes:
        left = self.size - self.at
        if count > left:
            raise self.wrong(f"{name} takes {count:,} bytes, {left:,} are left of the file: truncated, or malformed")
        begin, self.at = self.at, self.at + count
        return self.data[begin : self.at]

    def number(self, kind: str, name: str) -> Any:
        return struct.unpack(f"<{kind}", self.take(struct.calcsize(kind), name))[0]

    def count(self, name: str, limit: int) -> int:
        count: int = self.number("Q", f"the number of {name}")
        if count > limit:
            raise self.wrong(f"{count:,} {name}, the limit is {limit:,}")
        return count

    def text(self, name: str, limit: int) -> str:
        length = self.number("Q", name)
        if length > limit:
            raise self.wrong(f"{name} has {length:,} bytes, the limit is {limit:,}")
        try:
            return self.take(length, name).decode("utf-8")
        except UnicodeDecodeError as failure:
            raise self.wrong(f"{name} is not valid UTF-8: {failure}") from None

    def read_value(self) -> None:
        key = self.text("a metadata key", MAX_KEY_BYTES)
        if key in self.metadata:
            raise self.wrong(f"metadata {shown(key)} is there twice")
        kind = self.number("I", f"the type of {shown(key)}")
        self.metadata[key] = self.array(key) if kind == _ARRAY else self.value(kind, key)

    def value(self, kind: int, key: str) -> Value:
        name = f"metadata {shown(key)}"
        if kind == _TEXT:
            return self.text(name, MAX_TEXT_BYTES)
        if kind == _BOOL:
            return self.booleans(self.take(1, name), name)[0]
        if kind not in _NUMBERS:
            raise self.wrong(f"{name} is of the unknown type {kind}")
        found: int | float = self.number(_NUMBERS[kind], name)
        return found

    def booleans(self, data: bytes, name: str) -> list[bool]:
        if data.strip(b"\0\1"):
            raise self.wrong(f"{name} is a boolean other than 0 and 1")
        return [byte == 1 for byte in data]

    def array(self, key: str) -> list[Any]:
        name = f"metadata {shown(key)}"
        kind, length = self.number("I", name), self.number("Q", name)
        self.array_values += length
        if length > MAX_ARRAY or self.array_values > MAX_ARRAY_VALUES:
            raise self.wrong(
                f"{name} is an array of {length:,} values, the limits are {MAX_ARRAY:,} and {MAX_ARRAY_VALUES:,} for "
                "all arrays together"
            )
        if kind == _ARRAY:
            raise self.wrong(f"{name} is an array of arrays")
        if kind == _TEXT:
            return self.texts(length, name)
        if kind == _BOOL:
            return self.booleans(self.take(length, name), name)
        if kind not in _NUMBERS:
            raise self.wrong(f"{name} is an array of the unknown type {kind}")
        letter = _NUMBERS[kind]
        import numpy as np  # here: reading a directory's files needs none

        found: list[Any] = np.frombuffer(self.take(length * struct.calcsize(letter), name), f"<{letter}").tolist()
        return found

    def texts(self, count: int, name: str) -> list[str]:
        """Read ``count`` texts as ``text`` does, in a loop that takes less time."""
        data, at, last, length_of = self.data, self.at, self.size - 8, struct.Struct("<Q").unpack_from
        found: list[str] = []
        for _ in range(count):
            length = length_of(data, at)[0] if at <= last else self.size
            if length > MAX_TEXT_BYTES or at + 8 + length > self.size:
                raise self.wrong(
                    f"{name}: text {len(found):,} does not end in the file, or has over {MAX_TEXT_BYTES:,} bytes"
                )
            at += 8 + length
            try:
                found.append(data[at - length : at].decode())
            except UnicodeDecodeError as failure:
                raise self.wrong(f"{name}: text {len(found):,} is not valid UTF-8: {failure}") from None
        self.at = at
        return found

    def read_alignment(self) -> int:
        alignment = self.metadata.get("general.alignment", 32)
        if type(alignment) is int and 8 <= alignment <= MAX_ALIGNMENT and alignment & (alignment - 1) == 0:
            return alignment
        raise self.wrong(
            f"general.alignment is {shown(alignment)}, a power of two from 8 to {MAX_ALIGNMENT:,} is needed"
        )

    def read_tensor(self) -> tuple[str, str, tuple[int, ...], int, int]:
        """Name, type, shape, bytes and offset."""
        name = self.text("the name of a tensor", MAX_NAME_BYTES)
        where = f"tensor {shown(name)}"
        dimensions = self.number("I", where)
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise self.wrong(f"{where} has {dimensions:,} dimensions, from 1 to {MAX_DIMENSIONS} are read")
        sizes = [self.number("Q", where) for _ in range(dimensions)]
        elements = 1
        for one in sizes:
            elements *= one
        if not 0 < elements <= MAX_ELEMENTS:
            raise self.wrong(f"{where} has the sizes {shown(sizes)}, from 1 to {MAX_ELEMENTS:,} values are read")
        kind, offset = self.number("I", where), self.number("Q", where)
        if kind not in TYPES:
            supported = ", ".join(known for known, _, _ in TYPES.values())
            raise UnsupportedModel(
                f"{self.path}: unsupported: {where} is of type {_OTHERS.get(kind, kind)}; supported: {supported}"
            )
        dtype, block, size = TYPES[kind]
        if sizes[0] % block:
            raise self.wrong(f"{where} has rows of {sizes[0]:,} values, no whole blocks of {block} of {dtype}")
        if offset % self.alignment:
            raise self.wrong(f"{where} begins at {offset:,}, no multiple of general.alignment = {self.alignment}")
        return name, dtype, tuple(reversed(sizes)), elements // block * size, offset

    def placed(self, found: list[tuple[str, str, tuple[int, ...], int, int]], start: int) -> dict[str, TensorInfo]:
        tensors: dict[str, TensorInfo] = {}
        for name, dtype, shape, nbytes, offset in found:
            if name in tensors:
                raise self.wrong(f"tensor {shown(name)} is there twice")
            begin = start + offset
            if begin + nbytes > self.size:
                raise self.wrong(
                    f"tensor {shown(name)} ends at {begin + nbytes:,}, the file has {self.size:,} bytes: truncated, "
                    "or malformed"
                )
            tensors[name] = TensorInfo(dtype, shape, begin, begin + nbytes)
        reached, before = start, ""
        for name, info in sorted(tensors.items(), key=lambda item: item[1].begin):
            if info.begin < reached:
                raise self.wrong(f"tensor {shown(name)} overlaps tensor {shown(before)}")
            reached, before = info.end, name
        return tensors
