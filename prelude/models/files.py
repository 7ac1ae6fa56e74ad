"""The files of a model directory: plain files, of bounded size, and none that lie outside the directory.

Every file that is read because it stands in a model directory is read through ``ModelDirectory``. A symbolic link
that leads out of the directory is refused, with two exceptions. A snapshot in the Hugging Face cache is made of
links to ``models--*/blobs`` beside it (and from there, if models share files, to the ``blobs`` of the whole
cache): these are followed. And ``follow_links=True`` of ``from_pretrained`` says that the caller trusts the
directory's links.

An index of weight files is untrusted too: a name in it never leads out of the directory.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from prelude.errors import CheckpointError, ModelError, reason, shown
from prelude.models.fields import Fields
from prelude.records import dataclass
from prelude.values.strict_json import parse

log = logging.getLogger(__name__)

GGUF = ".gguf"
"""The suffix of a file that is a whole model."""
LFS_POINTER = b"version https://git-lfs"
LFS_ADVICE = "a git-LFS pointer, not the file itself; run `git lfs pull` in the directory"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MODULES = "modules.json"
CONFIG_LIMIT = 4 << 20
"""Bytes of a configuration file; real ones have a few thousand."""
MAX_INDEX_BYTES = 64 << 20
MAX_SHARDS = 10_000
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
MAX_TENSORS = 100_000


def check_directory(path: str | os.PathLike[str]) -> Path:
    """``path`` as an absolute path, or a ``ModelError`` that says why it is no directory to read."""
    try:
        directory = Path(os.path.abspath(os.fspath(path)))
        os.listdir(directory)
    except FileNotFoundError:
        raise ModelError(f"{path}: there is no such file or directory") from None
    except NotADirectoryError:
        raise ModelError(
            f"{path}: a file; give the directory that holds config.json and the weights, or a {GGUF} file"
        ) from None
    except (OSError, ValueError, TypeError) as failure:
        raise ModelError(f"{shown(path)}: cannot be read: {reason(failure)}") from failure
    return directory


def check_model(path: str | os.PathLike[str]) -> Path:
    """``path``, a GGUF file or a directory, as an absolute path; ``ModelError`` if it is neither."""
    if os.fspath(path).endswith(GGUF) and os.path.isfile(path):
        return Path(os.path.abspath(path))
    return check_directory(path)


@dataclass(frozen=True, slots=True)
class ModelDirectory:
    """An existing directory, and whether links in it may lead out of it."""

    path: Path
    links: bool = False
    inner: str = ""
    """The folder of the model's own files in the old layout of sentence-transformers, such as ``0_Transformer``."""

    @classmethod
    def of(cls, where: Where, links: bool = False) -> ModelDirectory:
        """``where`` itself, or the directory at that path; ``ModelError`` if there is none."""
        if isinstance(where, ModelDirectory):
            return where
        found = ModelDirectory(check_directory(where), links)
        return ModelDirectory(found.path, links, _transformer_folder(found))

    def __str__(self) -> str:
        return str(self.path)

    def has(self, name: str) -> bool:
        """Return whether there is anything of that name, be it a link that leads nowhere."""
        return os.path.lexists(self.path / self._at(name))

    def _at(self, name: str) -> str:
        inside = f"{self.inner}/{name}"
        return inside if self.inner and os.path.lexists(self.path / inside) else name

    def where(self, name: str) -> str:
        return str(self.path / name)

    def file(self, name: str, error: type[ModelError] = ModelError) -> Path:
        """Where the file ``name`` lies, its links resolved; ``error`` if that is not a file of this model."""
        name = self._at(name)
        shown_path = self.path / name
        if os.path.isabs(name) or ".." in Path(name).parts:
            raise error(f"{self.path}: {shown(name)} leads out of the model directory")
        try:
            root = self.path.resolve(strict=True)
            target = (root / name).resolve(strict=True)
        except FileNotFoundError:
            raise error(f"{shown_path}: missing; was the download completed?") from None
        except (OSError, RuntimeError, ValueError) as failure:  # a loop of links is a RuntimeError before Python 3.13
            raise error(f"{shown_path}: cannot be resolved: {failure}") from None
        if not self.links and not any(target.is_relative_to(allowed) for allowed in (root, *_hub_stores(root))):
            raise error(
                f"{shown_path}: a link that leads out of the model directory, to {shown(str(target))}; put the file "
                "itself there, or load with follow_links=True if the links of this directory are yours"
            )
        if not target.is_file():
            raise error(f"{shown_path}: not a regular file")
        return target

    def read(self, name: str, limit: int, error: type[ModelError] = ModelError) -> bytes:
        """Return the content of the file ``name``, of at most ``limit`` bytes."""
        from prelude.tokenizer.backends.files import read_plain

        try:
            data = read_plain(self.file(name, error), limit)
        except OSError as failure:
            raise error(f"{self.path / name}: cannot be read: {reason(failure)}") from failure
        if data.startswith(LFS_POINTER):
            raise error(f"{self.path / name}: {LFS_ADVICE}")
        return data

    def value(self, name: str, limit: int = CONFIG_LIMIT, error: type[ModelError] = ModelError) -> Any:
        """Return the JSON value in the file ``name``."""
        return parse(self.read(name, limit, error), self.where(name), error)

    def object(self, name: str, limit: int = CONFIG_LIMIT, error: type[ModelError] = ModelError) -> dict[str, Any]:
        """Return the JSON object in the file ``name``."""
        value = self.value(name, limit, error)
        if not isinstance(value, dict):
            raise error(f"{self.where(name)}: holds a {type(value).__name__}, an object is needed")
        return value

    def fields(self, name: str, defaults: Mapping[str, Any] | None = None, *, needed: bool = True) -> Fields:
        """Return the object in the file ``name`` for reading; one without keys if the file is not ``needed`` and is
        missing."""
        values = self.object(name) if needed or self.has(name) else {}
        return Fields(values, self.where(name), defaults)

    def modules(self) -> list[tuple[str, str]]:
        """Return class and folder of each module of sentence-transformers."""
        if not self.has(MODULES):
            return []
        where, listed = self.path / MODULES, self.value(MODULES)
        if not isinstance(listed, list) or not all(isinstance(module, dict) for module in listed):
            raise ModelError(f"{where}: a list of objects is expected")
        found = [(str(module.get("type", "")).rsplit(".", 1)[-1], module.get("path", "")) for module in listed]
        for _, folder in found:
            if not isinstance(folder, str):
                raise ModelError(f"{where}: path {shown(folder)} is not a string")
        return found


Where: TypeAlias = "ModelDirectory | str | os.PathLike[str]"


def _transformer_folder(directory: ModelDirectory) -> str:
    """Return modules.json's folder; "" if the model lies in the directory."""
    kind, folder = next(iter(directory.modules()), ("", ""))
    if kind != "Transformer":
        return ""
    if Path(folder).name != folder or folder == "..":
        raise ModelError(f"{directory.path / MODULES}: path {shown(folder)} is not the name of a folder")
    return folder


def open_regular(path: Path, error: type[ModelError]) -> int:
    """Return a descriptor on ``path``, which is a regular file; never waits on a pipe or a device."""
    from prelude.tokenizer.backends.files import open_plain

    try:
        return open_plain(path)
    except (OSError, ValueError) as failure:
        raise error(f"{path}: cannot be opened: {reason(failure)}") from failure


def _hub_stores(root: Path) -> list[Path]:
    """Where links of a hub cache snapshot may lead; nothing for any other directory."""
    repository = root.parent.parent
    if root.parent.name != "snapshots" or not repository.name.startswith("models--"):
        return []
    return [repository / "blobs", repository.parent / "blobs"]


@dataclass(frozen=True, slots=True)
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
            raise CheckpointError(f"{directory}/{INDEX}: names {len(names):,} files, the limit is {MAX_SHARDS:,}")
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
