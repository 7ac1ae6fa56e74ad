"""The settings of a model directory for embeddings, in the sentence-transformers layout, old spelling and new.

    modules.json                         Transformer, Pooling, Dense, Normalize; other modules change the vector
    1_Pooling/config.json                how the vector is pooled, and whether over the prompt's tokens too
    2_Dense/                             a projection of the pooled vector, with its weights
    config_sentence_transformers.json    prompts by name, and the one that is taken if none is named
    sentence_bert_config.json            the longest text, and whether it is lowered
    tokenizer_config.json                the longest text if no other file says it, and the side that is cut

Names and meanings are those of sentence-transformers; a setting that is not followed is named in a warning.

If no file says how to pool, the caller has to name it, because a guess would be silently wrong. A pooling that is
not implemented concerns ``embed`` alone: such a model loads, and ``EmbeddingSettings.unsupported`` states the reason.
"""

from __future__ import annotations

import logging
from typing import Any

from prelude.errors import CheckpointError, ModelError, shown
from prelude.models.arrays import not_finite, widen
from prelude.models.classifier import activation_name, named_activation
from prelude.models.fields import Fields
from prelude.models.files import ModelDirectory, Where
from prelude.models.safetensors_file import FLOATS, SafetensorsFile
from prelude.tokenizer.class_settings import gives_types
from prelude.values.arrays import F32
from prelude.values.model_settings import POOLINGS, SIMILARITIES, Dense, EmbeddingSettings

log = logging.getLogger(__name__)

_LIMIT = 1 << 20
_CONFIG_LIMIT = 4 << 20
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
    if directory.has("modules.json"):
        pooling = _read_modules(directory)
    elif directory.has("1_Pooling/config.json"):
        pooling = _read_pooling(directory, "1_Pooling")
    settings = EmbeddingSettings(**pooling, **_read_settings(directory), **_read_tokenizing(directory, side))
    made = None if hidden is None or settings.pooling is None else hidden * len(settings.pooling.split("+"))
    if made is not None and settings.dense and settings.dense[0].weight.shape[1] != made:
        raise ModelError(
            f"{directory.path / 'modules.json'}: the first Dense module takes {settings.dense[0].weight.shape[1]} "
            f"values, the model makes {made}"
        )
    return settings


def _read_modules(directory: ModelDirectory) -> dict[str, Any]:
    where = directory.path / "modules.json"
    modules = directory.value("modules.json", _LIMIT)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ModelError(f"{where}: a list of objects is expected")
    found: dict[str, Any] = {"normalize": False}
    for module in modules:
        kind = str(module.get("type", "")).rsplit(".", 1)[-1]
        if kind == "Pooling":
            folder = module.get("path", "")
            if not isinstance(folder, str):
                raise ModelError(f"{where}: path {shown(folder)} is not a string")
            found.update(_read_pooling(directory, folder))
        elif kind == "Normalize":
            found["normalize"] = True
        elif kind == "Dense" and "pooling" in found and not found["normalize"]:
            found.update(_read_dense(directory, module.get("path", ""), found.get("dense", ())))
        elif kind != "Transformer":
            found["unsupported"] = (
                f"{where}: module {shown(kind)} is not supported (Transformer, Pooling, Normalize are, and Dense "
                "between those two)"
            )
    if "unsupported" in found:
        found["pooling"] = None
    return found


def _read_pooling(directory: ModelDirectory, folder: str) -> dict[str, Any]:
    name = f"{folder}/config.json"
    path = directory.path
    config = directory.object(name, _LIMIT)
    include = Fields(config, str(path / name)).boolean("include_prompt", True)
    named = config.get("pooling_mode")
    old = [name for key, name in _OLD.items() if config.get(key)]
    modes = old if named is None else [named] if isinstance(named, str) else named
    texts = isinstance(modes, list) and all(isinstance(mode, str) for mode in modes)
    if named is not None and old and texts and set(old) != set(modes):
        raise ModelError(f"{path / name}: pooling_mode {shown(named)} contradicts {', '.join(old)}")
    if not modes:
        modes, texts = ["mean"], True
    if not texts or not set(modes) <= set(_OURS) or len(set(modes)) < len(modes):
        return {"unsupported": f"{path / name}: pooling {shown(modes)} is not supported; {', '.join(_OURS)} are"}
    return {"pooling": "+".join(_OURS[mode] for mode in modes), "include_prompt": include}


def _read_dense(directory: ModelDirectory, folder: Any, before: tuple[Dense, ...]) -> dict[str, Any]:
    if not isinstance(folder, str):
        raise ModelError(f"{directory.path / 'modules.json'}: path {shown(folder)} is not a string")
    name = f"{folder}/config.json"
    if not directory.has(name):
        return {"unsupported": f"{directory.path / name}: missing; it says the sizes of a Dense module"}
    fields = Fields(directory.object(name, _LIMIT), str(directory.path / name))
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


def _read_settings(directory: ModelDirectory) -> dict[str, Any]:
    """Read ``config_sentence_transformers.json``, and ``config.json``, in which older files have the activation."""
    name = "config_sentence_transformers.json"
    fields = Fields(directory.object(name, _LIMIT) if directory.has(name) else {}, str(directory.path / name))
    prompts = fields.get("prompts", None) or {}
    if not isinstance(prompts, dict) or len(prompts) > _MAX_PROMPTS:
        raise fields.wrong("prompts", f"an object of at most {_MAX_PROMPTS:,} texts is needed")
    prompts = {key: "" if text is None else text for key, text in prompts.items()}
    if not all(isinstance(text, str) and len(text) <= _MAX_PROMPT_CHARS for text in prompts.values()):
        raise fields.wrong("prompts", f"texts of at most {_MAX_PROMPT_CHARS:,} characters are needed")
    default = fields.get("default_prompt_name", None)
    if default is not None and (not isinstance(default, str) or default not in prompts):
        raise fields.wrong("default_prompt_name", f"one of the prompts is needed: {shown(list(prompts))}")
    dimensions, similarity = fields.get("truncate_dim", None), fields.get("similarity_fn_name", None)
    activation = fields.get("activation_fn", None)
    if activation is None and directory.has("config.json"):
        activation = named_activation(Fields(directory.object("config.json", _CONFIG_LIMIT), "config.json"))
    else:
        activation = activation_name(fields, "activation_fn", activation)
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
    fields = transformer_settings(directory)
    tokenizer = Fields({}, "")
    if directory.has("tokenizer_config.json"):
        where = str(directory.path / "tokenizer_config.json")
        tokenizer = Fields(directory.object("tokenizer_config.json", _TOKENIZER_LIMIT), where)
    longest: int | None
    if fields.get("max_seq_length", None) is not None:
        longest = fields.integer("max_seq_length", 1, 1 << 40)
    else:
        said = tokenizer.get("model_max_length", tokenizer.get("max_len", None))
        # some files have 1e30 for no limit
        longest = int(said) if type(said) in (int, float) and 1 <= said < 1 << 40 else None
    given = fields.get("processing_kwargs", None)
    text = given.get("text") if isinstance(given, dict) else None
    if isinstance(text, dict) and text.get("max_length") is not None:  # of each call, before the others
        longest = Fields(text, f"{fields.where}: processing_kwargs.text").integer("max_length", 1, 1 << 40)
    side = tokenizer.get("truncation_side", side)
    if side not in ("left", "right"):
        raise tokenizer.wrong("truncation_side", "left or right is needed")
    _warn_unread(fields, _TRANSFORMER)
    _warn_unread(Fields(given if isinstance(given, dict) else {}, f"{fields.where}: processing_kwargs"), _PROCESSING)
    _warn_unread(Fields(text if isinstance(text, dict) else {}, f"{fields.where}: processing_kwargs.text"), _TEXT)
    found = {"max_length": longest, "truncation": "head" if side == "left" else "tail"}
    if directory.has("config.json"):
        kind = directory.object("config.json", _CONFIG_LIMIT).get("model_type")
        found["token_types"] = gives_types(tokenizer.values, kind if isinstance(kind, str) else "")
    return found


def lowers_text(directory: ModelDirectory) -> bool:
    """Return whether text is lowered before it is tokenised."""
    return transformer_settings(directory).boolean("do_lower_case", False)


def transformer_settings(directory: ModelDirectory) -> Fields:
    """Return the settings of sentence-transformers' Transformer module, from the first of its files that is there."""
    names = [f"sentence_{kind}_config.json" for kind in _KINDS]
    name = next((name for name in names if directory.has(name)), names[0])
    return Fields(directory.object(name, _LIMIT) if directory.has(name) else {}, str(directory.path / name))


def _warn_unread(fields: Fields, read: tuple[str, ...]) -> None:
    unread = sorted(key for key, value in fields.values.items() if key not in read and value)
    if unread:
        log.warning("%s: %s not followed: sentence-transformers may give other numbers", fields.where, shown(unread))
