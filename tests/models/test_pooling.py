"""What a directory says about pooling, in both spellings, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prelude.errors import ModelError, UnsupportedModel
from prelude.models.pooling import PoolingConfig, read_pooling

KIND = "sentence_transformers.models."


def directory(path: Path, pooling: dict[str, Any] | None, modules: Any = None, folder: str = "1_Pooling") -> Path:
    if pooling is not None:
        (path / folder).mkdir(parents=True)
        (path / folder / "config.json").write_text(json.dumps(pooling))
    if modules is not None:
        (path / "modules.json").write_text(json.dumps(modules))
    return path


def listing(*names: str, folder: str = "1_Pooling") -> list[dict[str, Any]]:
    places = {"Pooling": folder}
    return [{"idx": i, "type": KIND + name, "path": places.get(name, "")} for i, name in enumerate(names)]


def test_no_files_say_nothing(tmp_path: Path) -> None:
    assert read_pooling(tmp_path) == PoolingConfig(None, True)


@pytest.mark.parametrize(
    "config, mode",
    [
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, "last"),
        ({"pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode": ["lasttoken"]}, "last"),
        ({"word_embedding_dimension": 8}, "mean"),
        ({"pooling_mode": "cls", "pooling_mode_cls_token": True}, "cls"),
    ],
)
def test_both_spellings(tmp_path: Path, config: dict[str, Any], mode: str) -> None:
    assert read_pooling(directory(tmp_path, config)).mode == mode
    named = directory(tmp_path / "named", config, listing("Transformer", "Pooling"))
    assert read_pooling(named) == PoolingConfig(mode, False)
    unit = directory(tmp_path / "unit", config, listing("Transformer", "Pooling", "Normalize"))
    assert read_pooling(unit) == PoolingConfig(mode, True)


@pytest.mark.fault(46)
@pytest.mark.parametrize(
    "config, modules, match",
    [
        ({"pooling_mode": "max"}, None, "max"),
        ({"pooling_mode": ["cls", "mean"]}, None, "cls"),
        ({"pooling_mode": "cls", "pooling_mode_mean_tokens": True}, None, "contradicts"),
        ({"pooling_mode": 3}, None, "pooling"),
        ({"pooling_mode": "cls"}, listing("Transformer", "Pooling", "Dense"), "Dense"),
        ({"pooling_mode": "cls"}, {"a": 1}, "list of objects"),
        ({"pooling_mode": "cls"}, [1], "list of objects"),
        ({"pooling_mode": "cls"}, [{"type": KIND + "Pooling", "path": 3}], "not a string"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    tmp_path: Path, config: dict[str, Any], modules: Any, match: str
) -> None:
    with pytest.raises(ModelError, match=match):
        read_pooling(directory(tmp_path, config, modules))


@pytest.mark.fault(46)
def test_a_path_may_not_lead_out_of_the_directory(tmp_path: Path) -> None:
    directory(tmp_path / "outside", {"pooling_mode": "cls"})
    model = directory(tmp_path / "model", None)
    model.mkdir()
    (model / "modules.json").write_text(json.dumps(listing("Pooling", folder="../outside/1_Pooling")))
    with pytest.raises(ModelError):
        read_pooling(model)
    assert issubclass(UnsupportedModel, ModelError)
