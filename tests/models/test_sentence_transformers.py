"""Directories of sentence-transformers: pooling in both spellings, refusals, and the old layout."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prelude import Engine
from prelude.errors import ModelError
from prelude.models.checkpoint import Checkpoint
from prelude.models.config import ModelConfig
from prelude.models.files import ModelDirectory
from prelude.models.sentence_transformers import read_embedding, read_recipes
from prelude.recipes import RerankRecipe
from prelude.tools.convert import convert
from prelude.values.model_settings import EmbeddingSettings
from tests.encoders import write_encoder
from tests.option_models import save_tokenizer

KIND = "sentence_transformers.models."


def directory(path: Path, pooling: dict[str, Any] | None, modules: Any = None, folder: str = "1_Pooling") -> Path:
    if pooling is not None:
        (path / folder).mkdir(parents=True)
        (path / folder / "config.json").write_text(json.dumps(pooling), encoding="utf-8")
    if modules is not None:
        (path / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    return path


def listing(*names: str, folder: str = "1_Pooling") -> list[dict[str, Any]]:
    places = {"Pooling": folder}
    return [{"idx": i, "type": KIND + name, "path": places.get(name, "")} for i, name in enumerate(names)]


def test_a_module_is_named_with_its_package_or_without(tmp_path: Path) -> None:
    (directory(tmp_path, None, [{"type": "Transformer", "path": "0_Transformer"}]) / "0_Transformer").mkdir()
    (tmp_path / "0_Transformer" / "config.json").write_text("{}", encoding="utf-8")
    assert ModelDirectory.of(tmp_path).inner == "0_Transformer"


def test_no_files_say_nothing(tmp_path: Path) -> None:
    assert read_embedding(tmp_path) == EmbeddingSettings()


@pytest.mark.parametrize(
    "config, mode",
    [
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, "last"),
        ({"pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode": ["lasttoken"]}, "last"),
        ({"word_embedding_dimension": 8}, "mean"),
        ({"pooling_mode": "cls", "pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode": "max"}, "max"),
        ({"pooling_mode": ["weightedmean", "cls"]}, "weightedmean+cls"),
        (
            dict.fromkeys(
                ("pooling_mode_mean_sqrt_len_tokens", "pooling_mode_max_tokens", "pooling_mode_lasttoken"), True
            ),
            "max+mean_sqrt_len_tokens+last",
        ),
    ],
)
def test_both_spellings(tmp_path: Path, config: dict[str, Any], mode: str) -> None:
    assert read_embedding(directory(tmp_path, config)).pooling == mode
    named = directory(tmp_path / "named", config, listing("Transformer", "Pooling"))
    assert read_embedding(named) == EmbeddingSettings(mode, False)
    unit = directory(tmp_path / "unit", config, listing("Transformer", "Pooling", "Normalize"))
    assert read_embedding(unit) == EmbeddingSettings(mode, True)


@pytest.mark.fault(46)
@pytest.mark.parametrize(
    "config, modules, match",
    [
        ({"pooling_mode": "cls", "pooling_mode_mean_tokens": True}, None, "contradicts"),
        ({"pooling_mode": "cls", "include_prompt": 1}, None, "include_prompt is 1"),
        ({"pooling_mode": "cls"}, {"a": 1}, "list of objects"), ({"pooling_mode": "cls"}, [1], "list of objects"),
        ({"pooling_mode": "cls"}, [{"type": KIND + "Pooling", "path": 3}], "not a string"),
    ],
)  # fmt: skip
def test_malformed_files_are_refused(tmp_path: Path, config: dict[str, Any], modules: Any, match: str) -> None:
    with pytest.raises(ModelError, match=match):
        read_embedding(directory(tmp_path, config, modules))


@pytest.mark.fault(46)
@pytest.mark.parametrize(
    "config, modules, match",
    [
        ({"pooling_mode": "median"}, None, "median"),
        ({"pooling_mode": 5, "pooling_mode_cls_token": True}, None, "pooling 5"),
        ({"pooling_mode": [["cls"]]}, None, "pooling"), ({"pooling_mode": ["cls", "cls"]}, None, "cls"),
        ({"pooling_mode": "last"}, None, "pooling ['last'] is not supported"),
        ({"pooling_mode": "cls"}, listing("Transformer", "Pooling", "CNN"), "module 'CNN' is not supported"),
        ({"pooling_mode": "cls"}, listing("Transformer", "Dense", "Pooling"), "module 'Dense' is not supported"),
        ({"pooling_mode": "cls"}, listing("Transformer", "LogitScore"), "module 'LogitScore' is not supported"),
    ],
)  # fmt: skip
def test_an_unsupported_pooling_is_refused_by_name(
    tmp_path: Path, config: dict[str, Any], modules: Any, match: str
) -> None:
    """To callers of ``embed``: a model loads with it, and its other verbs work."""
    found = read_embedding(directory(tmp_path, config, modules))
    assert found.pooling is None and match in (found.unsupported or "")


@pytest.mark.parametrize(
    "name, content, match",
    [
        ("config_sentence_transformers.json", {"prompts": ["a"]}, "prompts is .*an object"),
        ("config_sentence_transformers.json", {"prompts": {"a": 1}}, "prompts is .*texts"),
        ("config_sentence_transformers.json", {"prompts": {"a": "b" * 70000}}, "texts of at most"),
        ("config_sentence_transformers.json", {"default_prompt_name": "a"}, "one of the prompts is needed"),
        ("sentence_bert_config.json", {"max_seq_length": 0}, "max_seq_length is 0, the limits"),
        ("sentence_bert_config.json", {"max_seq_length": "5"}, "max_seq_length is '5', an integer"),
    ],
)
def test_malformed_settings(name: str, content: dict[str, Any], match: str, tmp_path: Path) -> None:
    directory(tmp_path, {"pooling_mode": "cls"}, listing("Transformer", "Pooling"))
    (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ModelError, match=match):
        read_embedding(tmp_path)


MANY, LONG = {str(i): "" for i in range(4096)}, "b" * (1 << 16)
BOUNDS: list[tuple[str, str, list[Any], list[Any]]] = [
    ("config_sentence_transformers", "truncate_dim", [1, 1 << 20], [0, (1 << 20) + 1, 5.0]),
    ("config_sentence_transformers", "prompts", [{"a": LONG}, MANY], [{"a": LONG + "b"}, {**MANY, "x": ""}, ["a"]]),
    ("sentence_bert_config", "max_seq_length", [1, 1 << 40], [0, (1 << 40) + 1, True]),
    ("tokenizer_config", "truncation_side", ["left", "right"], ["middle", None]),
]


@pytest.mark.parametrize("name, key, right, wrong", BOUNDS)
def test_both_sides_of_a_bound(name: str, key: str, right: list[Any], wrong: list[Any], tmp_path: Path) -> None:
    directory(tmp_path, {"pooling_mode": "cls"}, listing("Transformer", "Pooling"))
    field = {"max_seq_length": "max_length", "truncation_side": "truncation"}.get(key, key)
    for value in right:
        (tmp_path / f"{name}.json").write_text(json.dumps({key: value}), encoding="utf-8")
        found = getattr(read_embedding(tmp_path), field)
        assert found == {"left": "head", "right": "tail"}.get(str(value), value)
    for value in wrong:
        (tmp_path / f"{name}.json").write_text(json.dumps({key: value}), encoding="utf-8")
        with pytest.raises(ModelError, match=f"{name}.json: {key} is "):
            read_embedding(tmp_path)


@pytest.mark.parametrize(
    "said, longest",
    [
        ({}, None), ({"model_max_length": 1}, 1), ({"model_max_length": 12.0}, 12), ({"model_max_length": 0}, None),
        ({"model_max_length": (1 << 40) - 1}, (1 << 40) - 1), ({"model_max_length": 1 << 40}, None),
        ({"model_max_length": "5"}, None), ({"model_max_length": True}, None), ({"max_len": 7}, 7),
        ({"max_len": 7, "model_max_length": 9}, 9),
    ],
)  # fmt: skip
def test_the_longest_text_of_the_tokenizer(said: dict[str, Any], longest: int | None, tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(said), encoding="utf-8")
    assert read_embedding(tmp_path).max_length == longest
    directory(tmp_path, {"pooling_mode": "cls"}, listing("Transformer", "Pooling"))
    for inner, wanted in (({"max_length": 3}, 3), ({}, longest), (None, longest)):
        text = json.dumps({"processing_kwargs": {"text": inner}})
        (tmp_path / "sentence_bert_config.json").write_text(text, encoding="utf-8")
        assert read_embedding(tmp_path).max_length == wanted


TEMPLATE = "chat_template"
RECIPES: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any] | str]] = [
    ({}, {}, {}),
    ({"activation_fn": "torch.nn.modules.linear.Identity"}, {}, {"activation": "none"}),
    ({"activation_fn": "torch.nn.Tanh"}, {}, "an activation that is supported"),
    ({"prompts": {"a": "Be strict."}, "default_prompt_name": "a"}, {}, {"instruction": "Be strict."}),
    ({"prompts": {"a": ""}, "default_prompt_name": "a"}, {}, {}),
    ({"prompts": {"a": "Be strict."}}, {TEMPLATE: {"restore_suffix": True}}, {}),
    ({}, {TEMPLATE: {"add_generation_prompt": True}, "text": {}}, {"generation_prompt": True}),
    ({}, {TEMPLATE: {"enable_thinking": False}}, "options of the chat template"),
    ({}, {TEMPLATE: [1]}, "options of the chat template"),
]


@pytest.mark.parametrize("settings, processing, expected", RECIPES)
@pytest.mark.parametrize("no", [None, 3])
def test_the_recipe_of_a_module_of_two_tokens(
    settings: dict[str, Any], processing: Any, expected: dict[str, Any] | str, no: int | None, tmp_path: Path
) -> None:
    modules = [*listing("Transformer"), {"type": KIND + "LogitScore", "path": "1_LogitScore"}]
    directory(tmp_path, {"true_token_id": 5, "false_token_id": no}, modules, "1_LogitScore")
    said = {"config_sentence_transformers": settings, "sentence_bert_config": {"processing_kwargs": processing}}
    for name, content in said.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    found = read_recipes(tmp_path, None, 8)
    if isinstance(expected, str):
        assert found.rerank is None and expected in found.looked[1]
        return
    usual = RerankRecipe("sentence-transformers", 5, no, activation="sigmoid", generation_prompt=False)
    assert found.rerank == replace(usual, **expected)
    with pytest.raises(ModelError, match="true_token_id is 5, token ids here are between 0 and vocab_size - 1 = 4"):
        read_recipes(tmp_path, None, 5)


@pytest.mark.parametrize(
    ("modules", "said"), [(True, "['config_args', 'other'] not followed"), (False, "is not followed")]
)
def test_settings_that_are_not_followed_are_named(
    modules: bool, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And neither those that are, nor those that say nothing."""
    directory(tmp_path, {"pooling_mode": "cls"}, listing("Transformer", "Pooling") if modules else None)
    settings = {"max_seq_length": 5, "do_lower_case": True, "none": None, "no": False, "empty": {}}
    path = tmp_path / "sentence_bert_config.json"
    for content, expected in ((settings, not modules), ({**settings, "other": 1, "config_args": {"a": 1}}, True)):
        path.write_text(json.dumps(content), encoding="utf-8")
        caplog.clear()
        read_embedding(tmp_path)
        found = [said in one.getMessage() and str(path) in one.getMessage() for one in caplog.records]
        assert found == [True] * expected


@pytest.mark.fault(46)
def test_a_path_may_not_lead_out_of_the_directory(tmp_path: Path) -> None:
    directory(tmp_path / "outside", {"pooling_mode": "cls"})
    model = directory(tmp_path / "model", None)
    model.mkdir()
    (model / "modules.json").write_text(
        json.dumps(listing("Pooling", folder="../outside/1_Pooling")), encoding="utf-8"
    )
    with pytest.raises(ModelError):
        read_embedding(model)


def written(root: Path, folder: str) -> Path:
    """Write a model in the old layout: its own files lie in a folder that modules.json names."""
    own = root / folder
    own.mkdir(parents=True)
    write_encoder(own, family="bert", vocab_size=300)
    save_tokenizer(own / "tokenizer.json", ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"))
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    (own / "tokenizer_config.json").write_text(json.dumps(told), encoding="utf-8")
    (own / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 64}), encoding="utf-8")
    modules = [{**module, "name": str(module["idx"])} for module in listing("Transformer", "Pooling")]
    modules[0]["path"] = folder
    return directory(root, {"word_embedding_dimension": 48, "pooling_mode_mean_tokens": True}, modules)


def test_vectors_are_those_of_sentence_transformers(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    root = written(tmp_path / "old", "0_Transformer")
    texts = ["a short text", "another one, a little longer " * 9]
    wanted = library.SentenceTransformer(str(root), device="cpu").encode(texts)
    with Engine.from_pretrained(root) as engine:
        found = [engine.embed(text, truncation="tail", normalize=False) for text in texts]
    assert np.abs(np.stack(found) - wanted).max() < 1e-5


def test_the_layout_is_converted(tmp_path: Path) -> None:
    root = written(tmp_path / "old", "0_Transformer")
    convert(root, tmp_path / "new")
    with Engine.from_pretrained(root) as before, Engine.from_pretrained(tmp_path / "new") as after:
        assert np.abs(before.embed("a text") - after.embed("a text")).max() < 1e-6


@pytest.mark.parametrize("path", ["..", "a/b", "/etc", 3, None])
def test_a_path_that_is_no_folder_of_the_directory(path: object, tmp_path: Path) -> None:
    root = written(tmp_path / "old", "0_Transformer")
    modules = json.loads((root / "modules.json").read_text(encoding="utf-8"))
    modules[0]["path"] = path
    (root / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    with pytest.raises(ModelError, match=r"modules\.json"):
        config = ModelConfig.from_dir(ModelDirectory.of(root))
        Checkpoint.open(root, config).close()
