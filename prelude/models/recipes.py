"""The recipes that a model directory's own files name, and the files that were looked for if there is none.

    recipe.json                      a recipe in the form of prelude/recipes, for rerank or for guard
    modules.json with LogitScore     a generative cross-encoder of sentence-transformers: the tokens of
                                     1_LogitScore/config.json, the chat template over query and document
    the chat template                the policy of a known guard model stands in it

A plain ``…ForCausalLM`` directory names none: a reranker and a chat model look alike there, and a guess would rank
plausibly and wrongly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from prelude.errors import ModelError, RecipeError, shown
from prelude.models.fields import Fields
from prelude.models.files import ModelDirectory, Where
from prelude.recipes import MAX_FILE_BYTES, GuardRecipe, ModelRecipes, RerankRecipe, read_recipe, shipped

_LIMIT = 1 << 20
_OWN = "recipe.json"
_CONFIG = "sentence_bert_config.json"
_SETTINGS = "config_sentence_transformers.json"
_ACTIVATIONS: Mapping[str, Literal["none", "sigmoid"]] = {"Sigmoid": "sigmoid", "Identity": "none"}
_SENTENCE_TRANSFORMERS = "sentence-transformers"


def read_recipes(where: Where, chat_template: str | None, vocab_size: int) -> ModelRecipes:
    """Raises ``ModelError`` for malformed files."""
    directory = ModelDirectory.of(where)
    found: dict[str, Any] = {}
    looked: list[str] = []
    if directory.has(_OWN):
        try:
            recipe = read_recipe(directory.read(_OWN, MAX_FILE_BYTES), str(directory.path / _OWN))
        except RecipeError as error:
            raise ModelError(str(error)) from error
        found["guard" if isinstance(recipe, GuardRecipe) else "rerank"] = recipe
    else:
        looked.append(_OWN)
    if "rerank" not in found:
        logit_score = _read_logit_score(directory, vocab_size)
        if isinstance(logit_score, RerankRecipe):
            found["rerank"] = logit_score
        else:
            looked.append(logit_score)
    if "guard" not in found:
        known = [one for one in shipped().values() if isinstance(one, GuardRecipe) and one.marks]
        for one in known:
            if chat_template is not None and all(mark in chat_template for mark in one.marks):
                found["guard"] = one
                break
        else:
            looked.append(f"the policy of {', '.join(one.name for one in known)} in the chat template")
    return ModelRecipes(looked=tuple(looked), **found)


def _read_logit_score(directory: ModelDirectory, vocab_size: int) -> RerankRecipe | str:
    """The recipe of a sentence-transformers directory with a ``LogitScore`` module, or the files that were looked
    for."""
    name = "modules.json"
    looked = "modules.json with a LogitScore module"
    if not directory.has(name):
        return looked
    modules = directory.value(name, _LIMIT)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ModelError(f"{directory.path / name}: a list of objects is expected")
    for module in modules:
        if str(module.get("type", "")).rsplit(".", 1)[-1] != "LogitScore":
            continue
        folder = module.get("path", "")
        if not isinstance(folder, str):
            raise ModelError(f"{directory.path / name}: path {shown(folder)} is not a string")
        file = f"{folder}/config.json"
        if not directory.has(file):
            return f"{file}, which modules.json names and which is missing"
        config = Fields(directory.object(file, _LIMIT), str(directory.path / file))
        yes, no = (config.token_id(key, vocab_size) for key in ("true_token_id", "false_token_id"))
        if yes is None:
            raise config.wrong("true_token_id", "a token id is needed")
        return _recipe(directory, yes, no)
    return looked


def _recipe(directory: ModelDirectory, yes: int, no: int | None) -> RerankRecipe | str:
    """Activation and default prompt stand in config_sentence_transformers.json, the way to call the chat template in
    sentence_bert_config.json. A setting that is not supported concerns ``rerank`` alone, which raises the error."""
    said = directory.object(_SETTINGS, _LIMIT) if directory.has(_SETTINGS) else {}
    named = said.get("activation_fn") or "torch.nn.Sigmoid"
    package, _, name = named.rpartition(".") if isinstance(named, str) else ("", "", "")
    if not package.startswith("torch.nn") or name not in _ACTIVATIONS:
        return f"an activation that is supported ({_SETTINGS} names {shown(named)})"
    given = directory.object(_CONFIG, _LIMIT).get("processing_kwargs") if directory.has(_CONFIG) else None
    options = (given.get("chat_template") if isinstance(given, dict) else given) or {}
    if not isinstance(options, dict) or set(options) - {"add_generation_prompt", "restore_suffix"}:
        return f"options of the chat template that are supported ({_CONFIG} has {shown(options)})"
    where = f"{directory.path / _CONFIG}: processing_kwargs.chat_template"
    prompts, default = said.get("prompts") or {}, said.get("default_prompt_name")
    instruction = prompts.get(default) if isinstance(prompts, dict) and isinstance(default, str) else None
    return RerankRecipe(
        _SENTENCE_TRANSFORMERS,
        yes=yes,
        no=no,
        instruction=instruction or None,
        activation=_ACTIVATIONS[name],
        generation_prompt=Fields(options, where).boolean("add_generation_prompt", False),
    )
