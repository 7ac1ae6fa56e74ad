"""Choices that were made on a device, on disk for the next process: entries by name, in JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from prelude.cuda import cache_files, compiler


def path_beside(choices: Path, kind: str, kernel_file: str, flags: Iterable[tuple[str, ...]]) -> Path:
    """Where choices lie for the GPU and library that ``choices`` names: by the kernel's source and compiler, and by
    the ``flags`` of each of its variants."""
    text = compiler.source(kernel_file) + compiler.nvrtc_version() + str([*flags])
    return choices.with_name(f"{choices.stem}-{kind}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json")


def trial_path(path: Path) -> Path:
    """Of the outcomes of ``own_trial.py``, beside the choices."""
    return path.with_name(f"{path.stem}-trial.json")


def write(path: Path, entries: dict[str, dict[str, Any]]) -> None:
    cache_files.write(path, json.dumps(entries, indent=1).encode())


def read(path: Path, sound: Callable[[Any], bool]) -> dict[str, dict[str, Any]]:
    """The sound entries of a file; all others are searched again."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
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
