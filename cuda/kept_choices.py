"""The cache on disk, ``$PRELUDE_CACHE/cuda`` (default ``~/.cache/prelude/cuda``): cubins, choices and outcomes of
trials for the next process. A cache that cannot be written is done without."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def folder() -> Path:
    return Path(os.environ.get("PRELUDE_CACHE") or Path.home() / ".cache" / "prelude") / "cuda"


def path_of(*names: str) -> Path:
    """Name a file of entries that are good for all of these: a GPU, a release, a hash of a source."""
    return folder() / ("-".join(re.sub(r"[^A-Za-z0-9.]+", "-", name) for name in names) + ".json")


def write(path: Path, data: bytes) -> None:
    """Write beside its name, then rename, so that processes that start together read no half of it. No file is left
    if that fails."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise


def add(path: Path, sound: Callable[[Any], bool], entries: dict[str, dict[str, Any]]) -> None:
    """Entries by name, beside the sound ones of the file."""
    write(path, json.dumps({**read(path, sound), **entries}, indent=1).encode())


def read(path: Path, sound: Callable[[Any], bool]) -> dict[str, dict[str, Any]]:
    """Return the sound entries of a file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {key: entry for key, entry in found.items() if sound(entry)} if isinstance(found, dict) else {}
