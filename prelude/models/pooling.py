"""What a model directory says about pooling, in the sentence-transformers layout, old spelling and new.

No file, no answer: the caller has to name a pooling then, because a guess would be silently wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prelude.errors import ModelError, UnsupportedModel, shown
from prelude.models.files import ModelDirectory, Where

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


def read_pooling(where: Where) -> PoolingConfig:
    """From ``modules.json`` and the pooling module's ``config.json``.

    Raises ``UnsupportedModel`` for modules or modes that are not implemented, ``ModelError`` for malformed files.
    """
    directory = ModelDirectory.of(where)
    if not directory.has("modules.json"):
        folder = "1_Pooling"
        return PoolingConfig(_mode(directory, folder)) if directory.has(f"{folder}/config.json") else PoolingConfig()
    mode, normalize = None, False
    for module in _modules(directory):
        kind = str(module.get("type", "")).rsplit(".", 1)[-1]
        folder = module.get("path", "")
        if kind == "Pooling":
            mode = _mode(directory, folder)
        elif kind == "Normalize":
            normalize = True
        elif kind != "Transformer":
            raise UnsupportedModel(
                f"{directory.path / 'modules.json'}: module {shown(kind)} is not supported "
                "(Transformer, Pooling, Normalize are)"
            )
    return PoolingConfig(mode, normalize)


def _modules(directory: ModelDirectory) -> list[Mapping[str, Any]]:
    modules = directory.value("modules.json", _LIMIT)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ModelError(f"{directory.path / 'modules.json'}: a list of objects is expected")
    return modules


def _mode(directory: ModelDirectory, folder: Any) -> str:
    if not isinstance(folder, str):
        raise ModelError(f"{directory.path / 'modules.json'}: path {shown(folder)} is not a string")
    name = f"{folder}/config.json"
    config = directory.object(name, _LIMIT)
    path = directory.path
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
