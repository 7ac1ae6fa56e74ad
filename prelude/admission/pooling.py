"""How a model directory says its vectors are made: ``modules.json`` and ``1_Pooling/config.json``, both spellings.

=====================  ====================================================================================
older                  ``pooling_mode_cls_token``, ``pooling_mode_mean_tokens``, ``pooling_mode_lasttoken``, … flags;
                       all false is mean
newer                  ``pooling_mode``: a name, or a list of one
=====================  ====================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prelude.errors import ModelError, UnsupportedModel, shown

MAX_BYTES = 1 << 20
_NAMES = {"cls": "cls", "mean": "mean", "lasttoken": "last"}
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True, slots=True)
class Pooling:
    pooling: str  # "last", "cls" or "mean"
    normalize: bool  # whether the directory ends in a Normalize module


def read_pooling(directory: str | Path) -> Pooling | None:
    """``None`` where the directory does not say: the pooling has to be named then. ``ModelError`` for a file that
    is malformed or contradicts itself, ``UnsupportedModel`` for modules and modes that are not implemented."""
    root = Path(directory)
    modules = root / "modules.json"
    folder, normalize = "1_Pooling", True
    if modules.is_file():
        kinds = _modules(modules)
        if "Pooling" not in kinds:
            return None
        folder, normalize = kinds["Pooling"], "Normalize" in kinds
    path = root / folder / "config.json"
    if not path.is_file():
        return None
    found = _json(path)
    if not isinstance(found, dict):
        raise ModelError(f"{path}: {type(found).__name__} instead of an object")
    return Pooling(_mode(found, path), normalize)


def _modules(path: Path) -> dict[str, str]:
    """Last component of each module's type → its folder."""
    found = _json(path)
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise ModelError(f"{path}: a list of modules is needed")
    kinds: dict[str, str] = {}
    for item in found:
        kind = str(item.get("type")).rsplit(".", 1)[-1]
        folder = item.get("path", "")
        if kind not in ("Transformer", "Pooling", "Normalize"):
            raise UnsupportedModel(f"{path}: module {shown(kind)} is not implemented")
        if not isinstance(folder, str) or folder.strip(".") != folder or any(c in folder for c in "/\\\0:"):
            raise ModelError(f"{path}: {shown(folder)} is not a folder of this directory")
        if kind in kinds:
            raise UnsupportedModel(f"{path}: two modules of type {kind}")
        kinds[kind] = folder
    return kinds


def _mode(config: Mapping[str, Any], path: Path) -> str:
    flags = [name for flag, name in _FLAGS.items() if config.get(flag) is True]
    named = config.get("pooling_mode")
    names = [named] if isinstance(named, str) else named
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ModelError(f"{path}: pooling_mode is {shown(named)}; a name or a list of names is needed")
    if names is not None and flags and names != flags:
        raise ModelError(f"{path}: pooling_mode {shown(names)} and the flags {shown(flags)} contradict each other")
    modes = names or flags or ["mean"]
    if len(modes) > 1 or modes[0] not in _NAMES:
        raise UnsupportedModel(f"{path}: pooling {' + '.join(modes)} is not implemented; last, cls and mean are")
    return _NAMES[modes[0]]


def _json(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise ModelError(f"{path}: more than {MAX_BYTES} bytes")
        return json.loads(raw)
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{path}: not readable as JSON: {error}") from error
