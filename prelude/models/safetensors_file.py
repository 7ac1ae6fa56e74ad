"""The weight files of a directory, and one ``.safetensors`` file: its header checked to the letter, its tensors as
arrays over a mapping.

    8 bytes   N, little endian
    N bytes   {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, …}
    the rest  the data, which the offsets cover without hole or overlap

The file is untrusted. No number of the header is used before it was compared with the size that
``fstat`` gave, all arithmetic is in Python's integers, which cannot wrap, and a header that two
parsers could read differently (a key given twice) is refused. The parser is ours because the
``safetensors`` package opens the path anew, copies tensors for numpy without saying where they lie,
takes a key that is given twice, and names neither tensor nor value in most of its errors.

An index is untrusted too: a name in it never leads out of the directory, and symbolic links out of it are refused
(see ``files.ModelDirectory``).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prelude.errors import CheckpointError, ModelError, shown
from prelude.models.files import LFS_ADVICE, LFS_POINTER, ModelDirectory
from prelude.models.mapped_file import MappedFile, TensorInfo
from prelude.records import dataclass
from prelude.values.strict_json import NATURAL, parse

if TYPE_CHECKING:
    from prelude.models.arrays import Array


MAX_HEADER_BYTES = 32 << 20
"""The reference implementation allows 100 MB; real headers have less than 2, and 100,000 tensors take 15."""
MAX_TENSORS = 100_000
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

    tensors: dict[str, TensorInfo]
    metadata: dict[str, str]

    def _parse(self, size: int) -> None:
        header = _read_header(self, size)
        self.data_start = 8 + len(header)
        self.tensors, self.metadata = _parse_header(header, size - self.data_start, self.path)

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def tensor(self, name: str) -> Array:
        """Return a view of the file; a copy only if the data is not aligned to its element size."""
        from prelude.models.arrays import BF16

        info = self.tensors.get(name)
        if info is None:
            raise CheckpointError(f"{self.path}: no tensor {shown(name)}")
        size, dtype = DTYPES[info.dtype]
        begin = self.data_start + info.begin
        flat = self.between(begin, begin + info.nbytes)
        if begin % size:
            flat = flat.copy()
        return flat.view(BF16 if info.dtype == "BF16" else dtype).reshape(info.shape)

    def release(self, name: str) -> None:
        """Take the pages of a tensor out of this process's memory. Views of it stay valid."""
        info = self.tensors[name]
        self.release_between(self.data_start + info.begin, self.data_start + info.end)


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


log = logging.getLogger(__name__)

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_INDEX_BYTES = 64 << 20
MAX_SHARDS = 10_000
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


@dataclass(frozen=True)
class WeightFiles:
    """Paths by file name; ``assigned`` says for each tensor which file an index put it in, if any."""

    paths: dict[str, Path]
    assigned: dict[str, str] | None


def find_weight_files(directory: ModelDirectory) -> WeightFiles:
    """Return the one file, or the shards of the index, of ``directory``."""
    if directory.has(SINGLE):
        if directory.has(INDEX):
            log.warning("%s: both %s and an index are there; the index is not used", directory, SINGLE)
        return WeightFiles({SINGLE: directory.file(SINGLE, CheckpointError)}, None)
    if directory.has(INDEX):
        assigned = _weight_map(directory)
        names = sorted(set(assigned.values()))
        if len(names) > MAX_SHARDS:
            raise CheckpointError(
                f"{directory.path / INDEX}: names {len(names):,} files, the limit is {MAX_SHARDS:,}"
            )
        return WeightFiles({name: directory.file(name, CheckpointError) for name in names}, assigned)
    raise _nothing_usable(directory.path)


def _weight_map(directory: ModelDirectory) -> dict[str, str]:
    index = directory.path / INDEX
    raw = directory.object(INDEX, MAX_INDEX_BYTES, CheckpointError)
    weight_map = raw.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: weight_map is {shown(weight_map)}, an object of file names is needed")
    if len(weight_map) > MAX_TENSORS:
        raise CheckpointError(f"{index}: weight_map has {len(weight_map):,} entries, the limit is {MAX_TENSORS:,}")
    for tensor, name in weight_map.items():
        if not _plain_file_name(name):
            raise CheckpointError(
                f"{index}: tensor {shown(tensor)} is said to lie in {shown(name)}; "
                "only the plain name of a .safetensors file beside the index is accepted"
            )
    return weight_map


def _plain_file_name(name: Any) -> bool:
    return (
        isinstance(name, str)
        and name.endswith(".safetensors")
        and len(name) <= 255
        and name.isprintable()
        and not any(character in name for character in "/\\:")
        and not name.startswith(".")
    )


def _nothing_usable(directory: Path) -> ModelError:
    try:
        names = sorted(os.listdir(directory))
    except OSError as failure:
        return ModelError(f"{directory}: cannot be read: {failure.strerror}")
    pickles = [name for name in names if name.endswith(_PICKLES)]
    others = [name for name in names if name.endswith(".safetensors")]
    if others:
        return CheckpointError(
            f"{directory}: has {shown(others)} but neither {SINGLE} nor {INDEX}, which names the file of each tensor"
        )
    if pickles:
        return ModelError(
            f"{directory}: only pickled weights ({pickles[0]}), which can run code when read; convert them where you "
            "trust them: AutoModelForCausalLM.from_pretrained(dir).save_pretrained(new_dir) with transformers"
        )
    return ModelError(f"{directory}: no weights: {SINGLE} or {INDEX} is needed")
