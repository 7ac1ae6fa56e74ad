"""The settings of a model directory for embeddings and reranking, in the sentence-transformers layout, old spelling
and new.

    modules.json                         Transformer, Pooling, Dense, Normalize; other modules change the vector;
                                         LogitScore makes a generative cross-encoder
    1_Pooling/config.json                how the vector is pooled, and whether over the prompt's tokens too
    1_LogitScore/config.json             the tokens of the cross-encoder, beside the chat template
    2_Dense/                             a projection of the pooled vector, with its weights
    config_sentence_transformers.json    prompts by name, and the one that is taken if none is named
    sentence_bert_config.json            the longest text, and whether it is lowered
    tokenizer_config.json                the longest text if no other file says it, and the side that is cut

Names and meanings are those of sentence-transformers; a setting that is not followed is named in a warning. It
reads its own two files of settings beside modules.json alone, and so do we.

If no file says how to pool, the caller has to name it, because a guess would be silently wrong. A pooling that is
not implemented concerns ``embed`` alone: such a model loads, and ``EmbeddingSettings.unsupported`` states the reason.

A recipe for rerank or guard may be in ``recipe.json``, in the form of prelude/recipes. A known guard model is found
by its policy in the chat template. A plain ``…ForCausalLM`` directory names no recipe: a reranker and a chat model
look alike there.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from prelude.errors import CheckpointError, ModelError, RecipeError, shown
from prelude.models.arrays import not_finite, widen
from prelude.models.config import activation_name, named_activation
from prelude.models.fields import Fields
from prelude.models.files import MODULES, ModelDirectory, Where
from prelude.models.safetensors_file import FLOATS, SafetensorsFile
from prelude.recipes import MAX_FILE_BYTES, GuardRecipe, ModelRecipes, RerankRecipe, read_recipe, shipped
from prelude.tokenizer.class_settings import gives_types
from prelude.values.arrays import F32
from prelude.values.model_settings import OF_VECTORS, POOLINGS, SIMILARITIES, Dense, EmbeddingSettings

log = logging.getLogger(__name__)

_SETTINGS_FILE, _OWN = "config_sentence_transformers.json", "recipe.json"
_TOKENIZER_LIMIT = 16 << 20
_MAX_PROMPTS = 4096
_MAX_PROMPT_CHARS = 1 << 16
_OURS = {name: name for name in POOLINGS if name != "last"} | {"lasttoken": "last"}
_KINDS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
_TRANSFORMER = (
    *("max_seq_length", "do_lower_case", "transformer_task", "modality_config", "module_output_name"),
    *("processing_kwargs", "unpad_inputs"),
)
_PROCESSING, _TEXT = ("text", "chat_template"), ("max_length",)
_SETTINGS = (
    *("prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim", "activation_fn"),
    *("__version__", "model_type", "requirements", "keep_in_fp32_modules"),
)
"""Keys that are followed, or change no number."""
_MAX_DENSE = 1 << 16
_ACTIVATIONS = {"Identity": "identity", "Tanh": "tanh", "ReLU": "relu"}
_PLAIN_DENSE: dict[str, tuple[Any, ...]] = {
    "module_input_name": (None, "sentence_embedding"),
    "module_output_name": (None, "sentence_embedding"),
    "use_residual": (None, False),
}
_OLD = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


def read_embedding(where: Where, hidden: int | None = None, side: str = "right") -> EmbeddingSettings:
    """``side``: the one that ``tokenizer.json`` cuts. Raises ``ModelError`` for malformed files, and for a Dense
    module that does not take vectors of ``hidden``."""
    directory = ModelDirectory.of(where)
    pooling: dict[str, Any] = {}
    if directory.has(MODULES):
        pooling = _read_modules(directory)
    elif directory.has("1_Pooling/config.json"):
        pooling = _read_pooling(directory, "1_Pooling")
    settings = EmbeddingSettings(**pooling, **_read_settings(directory), **_read_tokenizing(directory, side))
    made = None if hidden is None or settings.pooling is None else hidden * len(settings.pooling.split("+"))
    if made is not None and settings.dense and settings.dense[0].weight.shape[1] != made:
        raise ModelError(
            f"{directory.path / MODULES}: the first Dense module takes {settings.dense[0].weight.shape[1]} "
            f"values, the model makes {made}"
        )
    return settings


def _read_modules(directory: ModelDirectory) -> dict[str, Any]:
    found: dict[str, Any] = {"normalize": False}
    for kind, folder in directory.modules():
        if kind == "Pooling":
            found.update(_read_pooling(directory, folder))
        elif kind == "Normalize":
            found["normalize"] = True
        elif kind == "Dense" and "pooling" in found and not found["normalize"]:
            found.update(_read_dense(directory, folder, found.get("dense", ())))
        elif kind != "Transformer":
            found["unsupported"] = (
                f"{directory.path / MODULES}: module {shown(kind)} is not supported (Transformer, Pooling, Normalize "
                "are, and Dense between those two)"
            )
    if "unsupported" in found:
        found["pooling"] = None
    return found


def _read_pooling(directory: ModelDirectory, folder: str) -> dict[str, Any]:
    config = directory.fields(f"{folder}/config.json")
    include = config.boolean("include_prompt", True)
    named = config.get("pooling_mode", None)
    old = [name for key, name in _OLD.items() if config.get(key, None)]
    modes = old if named is None else [named] if isinstance(named, str) else named
    texts = isinstance(modes, list) and all(isinstance(mode, str) for mode in modes)
    if named is not None and old and texts and set(old) != set(modes):
        raise ModelError(f"{config.where}: pooling_mode {shown(named)} contradicts {', '.join(old)}")
    if not modes:
        modes, texts = ["mean"], True
    if not texts or not set(modes) <= set(_OURS) or len(set(modes)) < len(modes):
        return {"unsupported": f"{config.where}: pooling {shown(modes)} is not supported; {', '.join(_OURS)} are"}
    return {"pooling": "+".join(_OURS[mode] for mode in modes), "include_prompt": include}


def _read_dense(directory: ModelDirectory, folder: str, before: tuple[Dense, ...]) -> dict[str, Any]:
    name = f"{folder}/config.json"
    if not directory.has(name):
        return {"unsupported": f"{directory.path / name}: missing; it says the sizes of a Dense module"}
    fields = directory.fields(name)
    inputs, outputs = (fields.integer(f"{side}_features", 1, _MAX_DENSE) for side in ("in", "out"))
    said = fields.text("activation_function", "torch.nn.modules.activation.Tanh")
    activation = _ACTIVATIONS.get(said.rsplit(".", 1)[-1])
    biased = fields.boolean("bias", True)
    for key, allowed in _PLAIN_DENSE.items():
        if fields.get(key, None) not in allowed:
            return {"unsupported": f"{fields.where}: {key} {shown(fields.get(key))} is not supported"}
    if activation is None:
        known = ", ".join(_ACTIVATIONS)
        return {"unsupported": f"{fields.where}: activation_function {shown(said)} is not supported; {known} are"}
    if before and len(before[-1].weight) != inputs:
        raise fields.wrong("in_features", f"the module before it makes {len(before[-1].weight)} values")
    weights = f"{folder}/model.safetensors"
    if not directory.has(weights):
        return {"unsupported": f"{directory.path / weights} is missing; its weights are read from safetensors"}
    with SafetensorsFile(directory.file(weights, CheckpointError)) as file:
        weight = _values(file, "linear.weight", (outputs, inputs))
        bias = _values(file, "linear.bias", (outputs,)) if biased else None
    return {"dense": (*before, Dense(weight, bias, activation))}


def _values(file: SafetensorsFile, name: str, wanted: tuple[int, ...]) -> F32:
    """Return a copy in float32."""
    if name not in file:
        raise CheckpointError(f"{file.path}: tensor {name} is missing")
    info = file.tensors[name]
    if info.shape != wanted or info.dtype not in FLOATS:
        raise CheckpointError(
            f"{file.path}: tensor {name} is {info.dtype} of shape {list(info.shape)}, config.json implies "
            f"{list(wanted)}"
        )
    found: F32 = widen(file.tensor(name)).copy()
    if not_finite(found):
        raise CheckpointError(f"{file.path}: tensor {name} holds a NaN or an infinity")
    return found


def _prompts(fields: Fields) -> tuple[dict[str, str], str | None]:
    """Return the prompts by name, and the name of the one that is taken if none is named."""
    prompts = fields.get("prompts", None) or {}
    if not isinstance(prompts, dict) or len(prompts) > _MAX_PROMPTS:
        raise fields.wrong("prompts", f"an object of at most {_MAX_PROMPTS:,} texts is needed")
    prompts = {key: "" if text is None else text for key, text in prompts.items()}
    if not all(isinstance(text, str) and len(text) <= _MAX_PROMPT_CHARS for text in prompts.values()):
        raise fields.wrong("prompts", f"texts of at most {_MAX_PROMPT_CHARS:,} characters are needed")
    default = fields.get("default_prompt_name", None)
    if default is not None and (not isinstance(default, str) or default not in {**OF_VECTORS, **prompts}):
        raise fields.wrong("default_prompt_name", f"one of the prompts is needed: {shown(list(prompts))}")
    return prompts, default


def _read_settings(directory: ModelDirectory) -> dict[str, Any]:
    """Read ``config_sentence_transformers.json``, and ``config.json``, in which older files have the activation."""
    fields = _settings(directory, _SETTINGS_FILE)
    prompts, default = _prompts(fields)
    dimensions, similarity = fields.get("truncate_dim", None), fields.get("similarity_fn_name", None)
    activation = activation_name(fields, "activation_fn", fields.get("activation_fn", None))
    if activation is None:
        activation = named_activation(directory.fields("config.json", needed=False))
    _warn_unread(fields, _SETTINGS)
    return {
        "prompts": prompts,
        "default_prompt_name": default,
        "truncate_dim": None if dimensions is None else fields.integer("truncate_dim", 1, 1 << 20),
        "similarity": similarity if similarity in SIMILARITIES else "cosine",
        "activation": activation,
    }


def _read_tokenizing(directory: ModelDirectory, side: str) -> dict[str, Any]:
    """The longest text: sentence-transformers' ``max_seq_length``, or else the tokenizer's own limit. The side that
    is cut: that of ``tokenizer_config.json``, or else ``side``, which is that of ``tokenizer.json``. And whether
    there are token types."""
    fields, name = transformer_settings(directory), "tokenizer_config.json"
    for unread in () if directory.has(MODULES) else (fields.where, str(directory.path / _SETTINGS_FILE)):
        if directory.has(Path(unread).name):
            log.warning("%s is not followed without %s, as in sentence-transformers", unread, MODULES)
    values = directory.object(name, _TOKENIZER_LIMIT) if directory.has(name) else {}
    tokenizer = Fields(values, str(directory.path / name))
    longest: int | None
    if fields.get("max_seq_length", None) is not None:
        longest = fields.integer("max_seq_length", 1, 1 << 40)
    else:
        said = tokenizer.get("model_max_length", tokenizer.get("max_len", None))
        # some files have 1e30 for no limit
        longest = int(said) if type(said) in (int, float) and 1 <= said < 1 << 40 else None
    given = _inside(fields, "processing_kwargs")
    text = _inside(given, "text")
    if text.get("max_length", None) is not None:  # of each call, before the others
        longest = text.integer("max_length", 1, 1 << 40)
    side = tokenizer.get("truncation_side", side)
    if side not in ("left", "right"):
        raise tokenizer.wrong("truncation_side", "left or right is needed")
    for some, read in ((fields, _TRANSFORMER), (given, _PROCESSING), (text, _TEXT)):
        _warn_unread(some, read)
    found = {"max_length": longest, "truncation": "head" if side == "left" else "tail"}
    if directory.has("config.json"):
        kind = directory.object("config.json").get("model_type")
        found["token_types"] = gives_types(values, kind if isinstance(kind, str) else "")
    return found


def _inside(fields: Fields, key: str) -> Fields:
    """Return the object under ``key``; one without keys if there is none."""
    found = fields.get(key, None)
    return Fields(found if isinstance(found, dict) else {}, f"{fields.where}: {key}")


def lowers_text(directory: ModelDirectory) -> bool:
    """Return whether text is lowered before it is tokenised."""
    return transformer_settings(directory).boolean("do_lower_case", False)


def transformer_settings(directory: ModelDirectory) -> Fields:
    """Return the settings of sentence-transformers' Transformer module, from the first of its files that is there."""
    names = [f"sentence_{kind}_config.json" for kind in _KINDS]
    return _settings(directory, next(filter(directory.has, names), names[0]))


def _settings(directory: ModelDirectory, name: str) -> Fields:
    """Return a file of settings; one without keys if the library reads none."""
    return directory.fields(name, needed=False) if directory.has(MODULES) else Fields({}, str(directory.path / name))


def _warn_unread(fields: Fields, read: tuple[str, ...]) -> None:
    unread = sorted(key for key, value in fields.values.items() if key not in read and value)
    if unread:
        log.warning("%s: %s not followed: sentence-transformers may give other numbers", fields.where, shown(unread))


# ------------------------------------------------------------------ recipes


def read_recipes(where: Where, chat_template: str | None, vocab_size: int) -> ModelRecipes:
    """Return the recipes that a directory's own files name, and the files that were looked for if there is none.
    Raises ``ModelError`` for malformed files."""
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
    """The recipe of a directory with a ``LogitScore`` module, or the files that were looked for."""
    folder = next((folder for kind, folder in directory.modules() if kind == "LogitScore"), None)
    if folder is None:
        return f"{MODULES} with a LogitScore module"
    file = f"{folder}/config.json"
    if not directory.has(file):
        return f"{file}, which {MODULES} names and which is missing"
    config = directory.fields(file)
    yes, no = (config.token_id(key, vocab_size) for key in ("true_token_id", "false_token_id"))
    if yes is None:
        raise config.wrong("true_token_id", "a token id is needed")
    return _rerank_recipe(directory, yes, no)


def _rerank_recipe(directory: ModelDirectory, yes: int, no: int | None) -> RerankRecipe | str:
    """Activation and default prompt are those of the model, the way to call the chat template is in the settings of
    the Transformer module. A setting that is not supported concerns ``rerank`` alone, which raises the error."""
    said = directory.fields(_SETTINGS_FILE, needed=False)
    named = said.get("activation_fn", None) or "torch.nn.Sigmoid"
    activation: Any = activation_name(said, "activation_fn", named)
    if activation not in ("sigmoid", "none"):
        return f"an activation that is supported ({_SETTINGS_FILE} names {shown(named)})"
    settings = transformer_settings(directory)
    given = settings.get("processing_kwargs", None)
    options = (given.get("chat_template") if isinstance(given, dict) else given) or {}
    if not isinstance(options, dict) or set(options) - {"add_generation_prompt", "restore_suffix"}:
        return f"options of the chat template that are supported ({Path(settings.where).name} has {shown(options)})"
    prompts, default = _prompts(said)
    return RerankRecipe(
        "sentence-transformers",
        yes=yes,
        no=no,
        instruction=None if default is None else prompts[default] or None,
        activation=activation,
        generation_prompt=Fields(options, f"{settings.where}: processing_kwargs.chat_template").boolean(
            "add_generation_prompt", False
        ),
    )
