"""The weights of a model directory, compared with its config.

``Checkpoint.open`` maps the files and checks names, shapes and types. Once a reader has copied the weights
out, the directory may be deleted or overwritten: nothing of it is in use any more, but for the packed
weights of a converted directory (``packed_file.py``). Overwritten *while* being loaded, it is an error.

Names: transformers writes ``model.layers.…`` for a model with its head and ``layers.…`` for a body
that was saved alone. Here a weight always has the name with the prefix, as in ``ModelSpec``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from prelude.errors import CheckpointError, UnsupportedModel, shown
from prelude.models.config import ModelConfig
from prelude.models.files import ModelDirectory, WeightFiles, Where, find_weight_files
from prelude.models.gguf.directory import GgufDirectory, GgufWeights
from prelude.models.gguf.reader import BLOCK_TYPES, TYPES
from prelude.models.packed_file import PACKED, PACKED_FILE, Converted, Kept, PackedWeights
from prelude.models.safetensors_file import FLOATS, MappedFile, SafetensorsFile, TensorInfo, UsedFile
from prelude.models.spec import LM_HEAD, ModelSpec
from prelude.records import dataclass

if TYPE_CHECKING:
    from prelude.models.arrays import Array
    from prelude.models.gguf.blocks import Blocks

log = logging.getLogger(__name__)

Head = Literal["own", "tied", "none"]
_LM_HEAD = f"{LM_HEAD}.weight"
_POOLER = ".pooler."  # of BERT's checkpoints; the pooling of a directory does without it
_IGNORED_ENDINGS = (".rotary_emb.inv_freq", ".masked_bias", ".position_ids", ".token_type_ids")
"""Buffers that old versions saved; they are computed."""
_OLD_ENDINGS = {
    ".LayerNorm.gamma": ".LayerNorm.weight",
    ".LayerNorm.beta": ".LayerNorm.bias",
    ".in_proj_weight": ".in_proj.weight",
    ".in_proj_bias": ".in_proj.bias",
}
"""Names of the first BERT checkpoints, which came from TensorFlow."""
_CHUNK = 1 << 22
Q8_VALUES, Q8_BYTES = TYPES[8][1:]
"""Values and bytes of a block of Q8_0, the form in which all blocks are computed."""


@dataclass(frozen=True, slots=True)
class _Place:
    file: MappedFile
    name: str

    @property
    def info(self) -> TensorInfo:
        return self.file.tensors[self.name]

    @property
    def blocks(self) -> bool:
        """Whether it is stored in blocks of a few bits."""
        return self.info.dtype in BLOCK_TYPES


class Checkpoint:
    """The open, checked weights; a context manager."""

    def __init__(self, directory: Path, config: ModelConfig, places: dict[str, _Place], head: Head) -> None:
        self.directory = directory
        self.config = config
        self.head: Head = head
        """``own``: ``lm_head.weight`` is there. ``tied``: use the embeddings. ``none``: no logits."""
        self._places = places
        self._latest: _Place | None = None
        self._files = list({id(place.file): place.file for place in places.values()}.values())

    @classmethod
    def open(cls, where: Where, config: ModelConfig, *, scan: bool = False) -> Checkpoint:
        """Map and check the weights of a model directory; ``scan`` also reads them all for NaN and Inf."""
        found = ModelDirectory.of(where)
        files: dict[str, MappedFile]
        if isinstance(found, GgufDirectory):
            files = {found.weights.name: GgufWeights(found.weights)}
        else:
            files = dict(_open_files(find_weight_files(found)))
        try:
            if not isinstance(found, GgufDirectory) and found.has(PACKED_FILE):
                files[PACKED_FILE] = PackedWeights(found.file(PACKED_FILE, CheckpointError))
            places = _places(found.path, config.spec, files)
            for name, begins in config.beside:
                files[name] = other = SafetensorsFile(found.file(name, CheckpointError))
                for tensor in other:
                    if f"{begins}{tensor}" in places:
                        raise CheckpointError(f"{other.path}: tensor {shown(tensor)} is in {found.path} too")
                    places[f"{begins}{tensor}"] = _Place(other, tensor)
            head = _reconcile(found, config, places)
            checkpoint = cls(found.path, config, places, head)
            if scan:
                checkpoint.scan()
            return checkpoint
        except BaseException:
            for file in files.values():
                file.close()
            raise

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def names(self) -> list[str]:
        """Return the weights in the order of the config's ``ModelSpec``, named as there."""
        return list(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._place(name).info.shape

    def nbytes(self, itemsize: int, keep: bool = False) -> int:
        """Bytes of all weights with ``itemsize`` bytes a value; with ``keep`` those of two bytes stay as they are.
        Blocks, and numbers beside blocks in a projection, take 8 bits, but for Q4_K and Q6_K."""
        repacked = self._repacked()
        return sum(_bytes_in(place.info, itemsize, keep, name in repacked) for name, place in self._places.items())

    def _repacked(self) -> set[str]:
        """Return the weights of projections that have blocks."""
        found: set[str] = set()
        for layer in self.config.spec.layers:
            for projection in (layer.mixer.in_proj, layer.mlp.up):
                names = [f"{name}.weight" for name in projection.names if f"{name}.weight" in self._places]
                if any(self._places[name].blocks for name in names):
                    found.update(names)
        return found

    def tensor(self, name: str) -> Array:
        """Return the weight as it is stored: a view of the file, valid while the file is not truncated.

        The memory of the weight that was asked for before is given back, so that loading takes its copies and one
        weight of the files, and not the files beside their copies.
        """
        place = self._place(name)
        self._moved(place)
        return place.file.tensor(place.name)

    def _moved(self, place: _Place) -> None:
        if self._latest is not None and self._latest != place:
            self._latest.file.release(self._latest.name)
        self._latest = place

    def in_blocks(self, name: str) -> bool:
        """Return whether a weight is stored in blocks of a few bits."""
        return self._place(name).blocks

    @property
    def converted(self) -> Converted | None:
        """The choice that packed weights were made for; None if there are none."""
        found = self._packed_weights()
        return None if found is None else found.converted

    def packed(self, names: Sequence[str]) -> tuple[Array, Kept] | None:
        """The words of the weight that was packed of ``names``, and their description; None if they are stored as
        weights."""
        found = self._packed_weights()
        kept = None if found is None else found.find(names)
        return None if found is None or kept is None else (found.words(kept), kept)

    @property
    def used(self) -> UsedFile | None:
        """The file whose words stay in use where they lie, once one was read."""
        found = self._packed_weights()
        return None if found is None else found.in_use

    def _packed_weights(self) -> PackedWeights | None:
        return next((file for file in self._files if isinstance(file, PackedWeights)), None)

    def blocks(self, name: str) -> Blocks:
        """Return a weight that is ``in_blocks``; ``CheckpointError`` if it holds a NaN or an infinity."""
        place = self._place(name)
        if not place.blocks or not isinstance(place.file, GgufWeights):
            raise TypeError(f"{name} is not stored in blocks")
        self._moved(place)
        found = place.file.blocks(place.name)
        if bad := found.count_bad():
            raise CheckpointError(f"{place.file.path}: tensor {name}: {bad:,} blocks hold NaN or infinite values")
        return found

    def finite(self, name: str, part: Callable[[Array], Array] | None = None) -> Array:
        """``tensor(name)``, or the ``part`` of it that is wanted; ``CheckpointError`` if that holds a NaN or an
        infinity."""
        from prelude.models.arrays import not_finite

        array = self.tensor(name) if part is None else part(self.tensor(name))
        if bad := not_finite(array):
            raise CheckpointError(
                f"{self._place(name).file.path}: tensor {name}: {bad:,} of {array.size:,} values are NaN or infinite"
            )
        return array

    def check_unchanged(self) -> None:
        """Raise if a file was written to since it was opened; for callers that copy weights out of ``tensor``."""
        for file in self._files:
            if file.changed():
                raise CheckpointError(f"{file.path}: changed while it was being loaded; load it again")

    def scan(self) -> None:
        """Read every weight; raise if one holds a NaN or an infinity, or is not the packed one."""
        for name, place in self._places.items():
            if not isinstance(place.file, PackedWeights):
                self.finite(name)
        if (packed := self._packed_weights()) is not None:
            packed.check()

    def close(self) -> None:
        """Let go of the files; views that are still in use stay valid."""
        for file in self._files:
            file.close()

    def _place(self, name: str) -> _Place:
        place = self._places.get(name)
        if place is None:
            raise CheckpointError(f"{self.directory}: no weight {shown(name)}")
        return place


def _bytes_in(info: TensorInfo, itemsize: int, keep: bool, repacked: bool) -> int:
    if info.dtype == "Q4_K":
        return info.nbytes * 148 // 144  # a byte a scale of 6 bits
    if info.dtype == "Q6_K":
        return info.nbytes
    if info.dtype in BLOCK_TYPES or repacked:
        return -(-math.prod(info.shape) // Q8_VALUES) * Q8_BYTES
    stays = info.dtype == PACKED or (keep and info.dtype in ("BF16", "F16"))
    return info.nbytes if stays else math.prod(info.shape) * itemsize


def _open_files(found: WeightFiles) -> dict[str, SafetensorsFile]:
    """Return tensors by file name. With an index, each file holds exactly the tensors that the index names."""
    files: dict[str, SafetensorsFile] = {}
    try:
        for name, path in found.paths.items():
            files[name] = SafetensorsFile(path)
        if found.assigned is not None:
            _check_assignment(found.assigned, files)
    except BaseException:
        for file in files.values():
            file.close()
        raise
    return files


def _check_assignment(assigned: dict[str, str], files: dict[str, SafetensorsFile]) -> None:
    for tensor, name in assigned.items():
        if tensor not in files[name]:
            others = [other for other, file in files.items() if tensor in file]
            hint = f"it lies in {others[0]}" if others else "no other shard has it"
            raise CheckpointError(f"{files[name].path}: tensor {shown(tensor)} is missing; {hint}")
    for name, file in files.items():
        for tensor in file:
            owner = assigned.get(tensor)
            if owner != name:
                said = f"puts it in {shown(owner)}" if owner else "does not list it"
                raise CheckpointError(f"{file.path}: holds tensor {shown(tensor)}, but the index {said}")


def _places(directory: Path, spec: ModelSpec, files: Mapping[str, MappedFile]) -> dict[str, _Place]:
    """Return every tensor of the files under its normal name."""
    places: dict[str, _Place] = {}
    every = (*spec.tensors(), *spec.masked_tensors())
    heads = {_LM_HEAD, *(name for name in every if not name.startswith(spec.prefix))}
    for file in files.values():
        for name in file:
            normal = _renamed(name)
            if not normal.startswith(spec.prefix) and normal not in heads:
                normal = f"{spec.prefix}{normal}"
            if normal.endswith(_IGNORED_ENDINGS):
                continue
            if normal in places:
                raise CheckpointError(
                    f"{directory}: tensor {shown(normal)} is there twice, as {shown(places[normal].name)} "
                    f"in {places[normal].file.path.name} and as {shown(name)} in {file.path.name}"
                )
            places[normal] = _Place(file, name)
    return places


def _renamed(name: str) -> str:
    for old, new in _OLD_ENDINGS.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def _reconcile(directory: ModelDirectory, config: ModelConfig, places: dict[str, _Place]) -> Head:
    """Check names, shapes and types; leave in ``places`` the tensors that the model uses, in the expected order."""
    expected = config.spec.tensors()
    parts = _parts(expected, config.spec.prefix)
    table = f"{config.spec.embeddings.name}.weight"
    if config.spec.lm_head == "tied" and table not in places and _LM_HEAD in places:
        places[table] = places.pop(_LM_HEAD)  # one weight, which was saved under its other name
    if table not in places:
        _check_beginnings(directory, config, places)
    head = _decide_head(directory, config, places)
    if head == "own":
        expected[_LM_HEAD] = (config.vocab_size, config.hidden_size)
    else:
        expected.pop(_LM_HEAD, None)
        places.pop(_LM_HEAD, None)
    masked = config.spec.masked_tensors()
    if masked and all(name in places for name in masked):
        expected |= masked
    elif masked:
        log.warning("%s: the weights of the masked-language head are not all there: it is not read", directory)
    if missing := [name for name in expected if name not in places]:
        raise CheckpointError(f"{directory}: {_several(missing)} missing, though the configuration implies it")
    if extra := [name for name in places if name not in expected]:
        own = [places[name].name for name in extra]
        if any(name.startswith(parts) for name in extra):
            raise CheckpointError(f"{directory}: {_several(own)} not part of a {config.architecture} as configured")
        level = logging.INFO if all(_POOLER in f".{name}" for name in own) else logging.WARNING
        log.log(level, "%s: %s not part of a %s and ignored", directory, _several(own), config.architecture)
    for name, shape in expected.items():
        _check_tensor(name, places[name], shape)
    ordered = {name: places[name] for name in expected}
    places.clear()
    places.update(ordered)
    return head


def _check_beginnings(directory: ModelDirectory, config: ModelConfig, places: Mapping[str, _Place]) -> None:
    """Names of another class's model, or of one that was wrapped, have a part in front that transformers does not
    take away either."""
    prefix = config.spec.prefix
    body = f"{config.spec.embeddings.name}.weight".removeprefix(prefix)
    for place in places.values():
        for end in (f"{prefix}{body}", body, _LM_HEAD):
            if place.name.endswith(f".{end}"):
                begins = place.name.removesuffix(end)
                raise CheckpointError(
                    f"{place.file.path}: tensor {shown(place.name)} begins with {shown(begins)}, as no weight of a "
                    f"{config.architecture} does; save the model inside, or rename the weights"
                )


def _parts(expected: Iterable[str], prefix: str) -> tuple[str, ...]:
    """How the names of the body's parts begin, such as ``model.layers.``. A weight of these parts that the config
    does not know would change every answer. Other weights belong to heads and towers that this architecture does not
    have, such as a value head; transformers ignores them too."""
    return tuple({f"{prefix}{name.removeprefix(prefix).split('.', 1)[0]}." for name in expected})


def _check_tensor(name: str, place: _Place, shape: tuple[int, ...]) -> None:
    info = place.info
    if info.shape != shape:
        raise CheckpointError(
            f"{place.file.path}: tensor {name} has shape {list(info.shape)}, the configuration implies {list(shape)}"
        )
    if info.dtype not in (*FLOATS, PACKED) and not place.blocks:
        raise UnsupportedModel(
            f"{place.file.path}: unsupported: tensor {name} is stored as {info.dtype}; supported: {', '.join(FLOATS)}"
        )


def _decide_head(directory: ModelDirectory, config: ModelConfig, places: dict[str, _Place]) -> Head:
    """Where logits come from, out of the class, ``tie_word_embeddings`` and the tensors of the files."""
    if config.spec.lm_head is None:
        return "none"
    table = f"{config.spec.embeddings.name}.weight"
    own, embeddings = places.get(_LM_HEAD), places.get(table)
    if config.spec.lm_head == "tied":
        if own is None or embeddings is None or _same_values(own, embeddings):
            return "tied"
        log.warning(
            "%s: tie_word_embeddings is true, but lm_head.weight differs from the embeddings; lm_head.weight is used",
            directory,
        )
    if own is not None:
        return "own"
    if embeddings is not None and embeddings.name == table:
        raise CheckpointError(
            f"{directory}: lm_head.weight is missing and tie_word_embeddings is false; "
            "if the head is the embeddings, set tie_word_embeddings to true in the configuration"
        )
    log.warning("%s: the body alone was saved, without lm_head.weight: there will be no logits", directory)
    return "none"


def _same_values(one: _Place, other: _Place) -> bool:
    if one.info.shape != other.info.shape:
        return False
    if one.info.dtype not in FLOATS or other.info.dtype not in FLOATS:
        return False
    from prelude.models.arrays import widen

    left, right = (place.file.tensor(place.name).reshape(-1) for place in (one, other))
    parts = (slice(at, at + _CHUNK) for at in range(0, left.size, _CHUNK))  # so that temporaries stay small
    return all(bool((widen(left[part]) == widen(right[part])).all()) for part in parts)


def _several(names: list[str]) -> str:
    first = ", ".join(shown(name) for name in names[:3])
    return f"tensor {first} is" if len(names) == 1 else f"{len(names):,} tensors ({first}, …) are"


__all__ = ["Checkpoint", "Head"]
