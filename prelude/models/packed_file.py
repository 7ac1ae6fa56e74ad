"""The projections of a converted directory in the packed form, mapped and used where they lie (``prelude convert``).

``packed.safetensors`` has a tensor of int32 for each packed weight: the words of ``PackedLinear``. Its metadata:

    format, version     "prelude-packed" and the version of this layout and of the values that go into it
    layout              outputs of a group and inputs of a block of int8, as the kernels have them
    dtype, quantization  of ``Precision``: the choice of ``prelude convert``, resolved
    packing             the packing that ``auto`` chose
    sha256              of the words, in the order of their names
    weights             JSON: for each tensor its packing, its inputs, and the weights that are its outputs, in order

The file is untrusted: every number is compared with the size of its tensor, and words are numbers of any value. Its
pages are used in place if no other user can write them, so that processes share them and nothing is read before it
is needed; else they are copied. The digest is compared by ``check`` alone: to read all words would cost the start
that the file is made for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from prelude.errors import CheckpointError, UnsupportedModel, shown
from prelude.models.safetensors_file import DTYPES, SafetensorsFile, TensorInfo, UsedFile
from prelude.records import dataclass
from prelude.values.strict_json import NATURAL, parse

if TYPE_CHECKING:
    from prelude.models.arrays import Array, Packing

PACKED_FILE = "packed.safetensors"
PACKED = "PACKED"
"""The type of a weight that is there in packed form alone."""
FORMAT, VERSION, LAYOUT = "prelude-packed", "1", "32x32"
PRODUCED: dict[Packing, tuple[Packing, ...]] = {
    "float32": ("float32",),
    "bfloat16": ("bfloat16",),
    "int8": ("int8",),
    "widened": ("widened", "float16", "float32"),
    "float16": ("float16", "float32"),
}
"""The packings that weights may have, by the packing that was chosen."""
ALIGNMENT = 64
"""Bytes: vectors are loaded whole from one line of the cache."""


@dataclass(frozen=True, slots=True)
class Converted:
    """The choice that a directory was converted with."""

    dtype: str
    quantization: str | None
    packing: Packing


@dataclass(frozen=True, slots=True)
class Kept:
    """A packed weight."""

    tensor: str
    packing: Packing
    inputs: int
    parts: tuple[tuple[str, int], ...]
    """The weights that lie one under the other in it, and their rows."""

    @property
    def outputs(self) -> int:
        return sum(rows for _, rows in self.parts)


class PackedWeights(SafetensorsFile):
    """One open file of packed weights. Its ``tensors`` are the weights that were packed."""

    def _parse(self, size: int) -> None:
        super()._parse(size)
        self.stored = self.tensors
        self.in_use: UsedFile | None = None
        self.converted = self._converted()
        self._kept = {kept.parts[0][0]: kept for kept in self._weights()}
        self.tensors = {}
        for kept in self._kept.values():
            for name, rows in kept.parts:
                if name in self.tensors:
                    raise CheckpointError(f"{self.path}: weight {shown(name)} is there twice")
                share = self.stored[kept.tensor].nbytes * rows // kept.outputs
                self.tensors[name] = TensorInfo(PACKED, (rows, kept.inputs), 0, share)

    def tensor(self, name: str) -> Array:
        made = self.converted
        raise CheckpointError(
            f"{self.path}: weight {shown(name)} is there in packed form, for dtype={made.dtype!r} and "
            f"quantization={made.quantization!r} on a CPU; load the directory that this one was converted from"
        )

    def find(self, names: Sequence[str]) -> Kept | None:
        """Return the packed weight whose outputs are those of ``names``; None if they are no packed weight."""
        if not any(name in self.tensors for name in names):
            return None
        kept = self._kept.get(names[0])
        if kept is None or [name for name, _ in kept.parts] != list(names):
            raise CheckpointError(f"{self.path}: weights {shown(list(names))} are not packed together")
        return kept

    def words(self, kept: Kept) -> Array:
        """Return the words of ``kept``, int32: a view of the file if no other user can write it."""
        found = self.view(self.stored[kept.tensor])
        if not self.only_ours or found.ctypes.data % ALIGNMENT:
            found = found.copy()
        elif self.in_use is None:
            self.in_use = self.used()
        return found

    def check(self) -> None:
        """Read all words; ``CheckpointError`` if their digest is not that of the metadata."""
        if digest(self.view(self.stored[name]) for name in sorted(self.stored)) != self.metadata.get("sha256"):
            raise CheckpointError(f"{self.path}: the words are not those that were written; convert the model again")

    def release(self, name: str) -> None:
        """Do nothing: the words stay in use."""

    def _converted(self) -> Converted:
        metadata = self.metadata
        for key, wanted in (("format", FORMAT), ("version", VERSION), ("layout", LAYOUT)):
            if metadata.get(key) != wanted:
                raise UnsupportedModel(
                    f"{self.path}: unsupported: {key} {shown(metadata.get(key))}, this version of prelude has "
                    f"{wanted!r}; convert the model again"
                )
        dtype, quantization, packing = (metadata.get(key) for key in ("dtype", "quantization", "packing"))
        known = dtype in ("float32", "bfloat16") and quantization in ("", "int8")
        if quantization == "int8":
            agree = packing == "int8"
        else:
            agree = packing in (("widened", "bfloat16") if dtype == "bfloat16" else ("widened", "float16", "float32"))
        if not known or not agree:
            raise CheckpointError(
                f"{self.path}: dtype {shown(dtype)}, quantization {shown(quantization)}, packing {shown(packing)}"
            )
        return Converted(cast("str", dtype), quantization or None, cast("Packing", packing))

    def _weights(self) -> Iterator[Kept]:
        from prelude._native import cpu

        listed = parse(self.metadata.get("weights", ""), f"{self.path}: weights", CheckpointError, numbers=NATURAL)
        if not isinstance(listed, dict) or listed.keys() != self.stored.keys():
            raise CheckpointError(f"{self.path}: the list of weights is not that of the tensors")
        for name, entry in listed.items():
            kept = _kept(name, entry)
            if kept is None:
                raise CheckpointError(f"{self.path}: weight {shown(name)} is described by {shown(entry)}")
            if kept.packing not in PRODUCED[self.converted.packing]:
                raise CheckpointError(
                    f"{self.path}: weight {shown(name)} is in {kept.packing}, which the packing "
                    f"{self.converted.packing!r} of the file never gives"
                )
            info = self.stored[name]
            words = cpu.packed_words(kept.outputs, kept.inputs, cpu.PACKINGS[kept.packing])
            if info.dtype != "I32" or info.shape != (words,):
                raise CheckpointError(
                    f"{self.path}: tensor {shown(name)} is {info.dtype} {list(info.shape)}; "
                    f"{kept.outputs:,} outputs of {kept.inputs:,} inputs in {kept.packing} are {words:,} words"
                )
            yield kept


def _kept(name: str, entry: Any) -> Kept | None:
    """Return None if the description is none. Sizes are such that the native count of words does not overflow."""
    if not isinstance(entry, dict) or entry.keys() != {"packing", "inputs", "parts"}:
        return None
    packing, inputs, parts = entry["packing"], entry["inputs"], entry["parts"]
    if packing not in [*PRODUCED] or type(inputs) is not int or not 1 <= inputs < 1 << 31:
        return None
    if not isinstance(parts, list) or not parts:
        return None
    for part in parts:
        if not isinstance(part, list) or len(part) != 2 or not isinstance(part[0], str):
            return None
        if type(part[1]) is not int or not 1 <= part[1] < 1 << 31:
            return None
    if sum(rows for _, rows in parts) * inputs >= 1 << 56:
        return None
    return Kept(name, packing, inputs, tuple((part, rows) for part, rows in parts))


def digest(arrays: Iterable[Array]) -> str:
    found = hashlib.sha256()
    for array in arrays:
        found.update(array.data)
    return found.hexdigest()


def write_safetensors(path: Path, arrays: dict[str, Array], metadata: dict[str, str]) -> None:
    """``arrays`` in their order. Those whose sizes are multiples of ``ALIGNMENT`` bytes lie at such addresses of a
    mapping when they come first; the ``safetensors`` package lays them at multiples of 8."""
    from prelude.models.arrays import name_of

    names = {dtype: name for name, (_, dtype) in DTYPES.items()}
    header: dict[str, Any] = {"__metadata__": metadata}
    at = 0
    for name, array in arrays.items():
        end = at + array.nbytes
        header[name] = {"dtype": names[name_of(array.dtype)], "shape": list(array.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for array in arrays.values():
            file.write(array.tobytes())
