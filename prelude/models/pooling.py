"""What a model directory says about pooling, in the sentence-transformers layout, old spelling and new.

No file, no answer: the caller has to name a pooling then, because a guess would be silently wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prelude.errors import ModelError, UnsupportedModel, shown
from prelude.models.files import contained, read_object
from prelude.models.strict_json import parse

_LIMIT = 1 << 20
_OURS = {"lasttoken": "last", "cls": "cls", "mean": "mean"}
_OLD = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True, slots=True)
class PoolingConfig:
    mode: str | None = None  # "last", "cls", "mean"; None where the directory does not say
    normalize: bool = True


def read_pooling(path: Path) -> PoolingConfig:
    """From ``modules.json`` and the pooling module's ``config.json``.

    Raises ``UnsupportedModel`` for modules or modes that are not implemented, ``ModelError`` for malformed files.
    """
    modules_file = path / "modules.json"
    if not modules_file.exists():
        folder = "1_Pooling"
        if not (path / folder / "config.json").exists():
            return PoolingConfig()
        return PoolingConfig(_mode(path, folder))
    mode, normalize = None, False
    for module in _modules(modules_file):
        kind = str(module.get("type", "")).rsplit(".", 1)[-1]
        folder = module.get("path", "")
        if kind == "Pooling":
            mode = _mode(path, folder)
        elif kind == "Normalize":
            normalize = True
        elif kind != "Transformer":
            raise UnsupportedModel(
                f"{modules_file}: module {shown(kind)} is not supported (Transformer, Pooling, Normalize are)"
            )
    return PoolingConfig(mode, normalize)


def _modules(file: Path) -> list[Mapping[str, Any]]:
    target = contained(file.parent, file.name, ModelError)
    if target.stat().st_size > _LIMIT:
        raise ModelError(f"{file}: larger than {_LIMIT} bytes")
    modules = parse(target.read_bytes(), str(file), ModelError)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ModelError(f"{file}: a list of objects is expected")
    return modules


def _mode(path: Path, folder: Any) -> str:
    if not isinstance(folder, str):
        raise ModelError(f"{path / 'modules.json'}: path {shown(folder)} is not a string")
    name = f"{folder}/config.json"
    config = read_object(path, name, limit=_LIMIT)
    named = config.get("pooling_mode")
    old = [name for key, name in _OLD.items() if config.get(key)]
    modes = old if named is None else [named] if isinstance(named, str) else named
    if named is not None and old and set(old) != set(modes):
        raise ModelError(f"{path / name}: pooling_mode {shown(named)} contradicts {', '.join(old)}")
    if not modes:
        modes = ["mean"]
    if not isinstance(modes, list) or len(modes) != 1 or modes[0] not in _OURS:
        raise UnsupportedModel(
            f"{path / name}: pooling {shown(modes)} is not supported; one of {', '.join(_OURS)} is"
        )
    return _OURS[modes[0]]
