"""Choices that were made on a device, on disk for the next process: entries by name, in JSON."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prelude.cuda import compiler


def path_beside(choices: Path, kind: str, kernel_file: str) -> Path:
    """Where choices lie for the GPU and library that ``choices`` names: by the kernel's source and compiler."""
    text = compiler.source(kernel_file) + compiler.nvrtc_version()
    return choices.with_name(f"{choices.stem}-{kind}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json")


def trial_path(path: Path) -> Path:
    """Of the outcomes of ``own_trial.py``, beside the choices."""
    return path.with_name(f"{path.stem}-trial.json")


def write(path: Path, entries: dict[str, dict[str, Any]]) -> None:
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "w") as file:
            json.dump(entries, file, indent=1)
        os.replace(temporary, path)


def read(path: Path, sound: Callable[[Any], bool]) -> dict[str, dict[str, Any]]:
    """The sound entries of a file; all others are searched again."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return {key: entry for key, entry in found.items() if sound(entry)} if isinstance(found, dict) else {}


def passed(trial: Path) -> set[str]:
    """The names of the kernels that passed."""
    return {name for name, entry in read(trial, _tried).items() if entry["passed"]}


def keep_trial(trial: Path, name: str, passed: bool) -> None:
    write(trial, {**read(trial, _tried), name: {"passed": passed}})


def _tried(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("passed"), bool)
