"""Opening what a model directory holds: regular files, bounded, and nothing outside the directory.

Symbolic links that lead out of the directory are refused, except in a snapshot of the Hugging Face
cache, which is made of links to ``models--*/blobs`` beside it (and from there, where files are
shared between models, to the ``blobs`` store of the whole cache).
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

from prelude.errors import ModelError, shown
from prelude.models.strict_json import parse


def check_directory(path: str | os.PathLike[str]) -> Path:
    """``path`` as an absolute path, or a ``ModelError`` that says why it is no directory to read."""
    try:
        directory = Path(os.path.abspath(os.fspath(path)))
        os.listdir(directory)
    except FileNotFoundError:
        raise ModelError(f"{path}: no such directory") from None
    except NotADirectoryError:
        raise ModelError(f"{path}: a file; give the directory that holds config.json and the weights") from None
    except (OSError, ValueError, TypeError) as failure:
        reason = getattr(failure, "strerror", None) or failure
        raise ModelError(f"{shown(path)}: cannot be read: {reason}") from failure
    return directory


def contained(directory: Path, name: str, error: type[ModelError]) -> Path:
    """``directory / name`` with links resolved, or an error if that is not a file of this model."""
    try:
        root = directory.resolve(strict=True)
        target = (root / name).resolve(strict=True)
    except FileNotFoundError:
        raise error(f"{directory / name}: missing; was the download completed?") from None
    except (OSError, RuntimeError) as failure:  # a loop of links is a RuntimeError before Python 3.13
        raise error(f"{directory / name}: cannot be resolved: {failure}") from None
    if not any(target.is_relative_to(allowed) for allowed in (root, *_hub_stores(root))):
        raise error(
            f"{directory / name}: a link that leads out of the model directory, to {shown(str(target))}; "
            "put the file itself there"
        )
    if not target.is_file():
        raise error(f"{directory / name}: not a regular file")
    return target


def _hub_stores(root: Path) -> list[Path]:
    """Where links of a hub cache snapshot may lead; nothing for any other directory."""
    repository = root.parent.parent
    if root.parent.name != "snapshots" or not repository.name.startswith("models--"):
        return []
    return [repository / "blobs", repository.parent / "blobs"]


def open_regular(path: Path, error: type[ModelError]) -> int:
    """A descriptor on ``path``, which is a regular file; never waits on a pipe or a device."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as failure:
        reason = getattr(failure, "strerror", None) or failure
        raise error(f"{path}: cannot be opened: {reason}") from failure
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise error(f"{path}: not a regular file")
    return descriptor


def read_object(directory: Path, name: str, *, limit: int, error: type[ModelError] = ModelError) -> dict[str, Any]:
    """The JSON object in the file ``name`` of ``directory``, of at most ``limit`` bytes."""
    path = directory / name
    with open(open_regular(contained(directory, name, error), error), "rb") as file:
        try:
            data = file.read(limit + 1)
        except OSError as failure:
            raise error(f"{path}: cannot be read: {failure.strerror}") from failure
    if len(data) > limit:
        raise error(f"{path}: larger than the limit of {limit:,} bytes")
    value = parse(data, str(path), error)
    if not isinstance(value, dict):
        raise error(f"{path}: holds a {type(value).__name__}, an object is needed")
    return value
