"""Laya's directories: a ModernBERT with a marker head.

    rl_agent_config.json    lengths, layers of the head, temperatures
    encoder/config.json     the ModernBERT
    tokenizer/              tokenizer.json and tokenizer_config.json
    model.safetensors       encoder.*, head.layers.*, type_emb, scorer.*

Behind the encoder's last norm the type of the question is added to every row; ``head_layers`` layers follow, and a
scorer reads the rows of the mask tokens. The network's act head is not read: its answer is nearly constant.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from prelude.errors import ModelError, UnsupportedModel, shown
from prelude.marking import KINDS, MarkerSettings
from prelude.models.families.base import Asked
from prelude.models.families.modernbert import MODERNBERT, build
from prelude.models.fields import Fields
from prelude.models.files import ModelDirectory
from prelude.models.spec import Attention, Classifier, Entry, Layer, Mlp, ModelSpec, Norm, Projection

CONFIG = "rl_agent_config.json"
ENCODER = "encoder/config.json"
TOKENIZER = "tokenizer"
_LIMIT = 4 << 20
_MAX_HEAD_LAYERS = 64
_MAX_LENGTH = 1 << 20
_EPS = 1e-5
_HEAD_WIDTH = 64
_NAMES = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}


def is_marker_model(directory: ModelDirectory) -> bool:
    return directory.has(CONFIG) and not directory.has("config.json")


def marker_fields(directory: ModelDirectory) -> Fields:
    return Fields(directory.object(CONFIG, _LIMIT), str(directory.path / CONFIG))


def marker_spec(directory: ModelDirectory) -> tuple[ModelSpec, Fields]:
    """The network, and the encoder's config."""
    fields = marker_fields(directory)
    layout = fields.get("option_layout", None)
    if layout not in (None, "sequential"):
        raise UnsupportedModel(f"{fields.where}: unsupported: option_layout {shown(layout)}; supported: sequential")
    count = fields.integer("head_layers", 1, _MAX_HEAD_LAYERS)
    where = str(directory.path / ENCODER)
    encoder = Fields(directory.object(ENCODER, _LIMIT), where, MODERNBERT.defaults)
    if encoder.get("model_type", None) != "modernbert":
        raise UnsupportedModel(
            f"{where}: unsupported: model_type {shown(encoder.get('model_type', None))}; a marker head stands on "
            "modernbert"
        )
    body = build(encoder, Asked("modernbert", "none"), "encoder.")
    width = body.hidden
    if body.final_norm is None or width % max(1, width // _HEAD_WIDTH):
        raise ModelError(f"{where}: hidden_size is {width}, the head needs a multiple of {_HEAD_WIDTH}")
    entry = Entry(body.final_norm, "type_emb", len(KINDS))
    head = [_layer(index, width, entry if index == 0 else None) for index in range(count)]
    scorer = Classifier(
        Projection(("scorer.3",), (1,), width, bias=True),
        "markers",
        Projection(("scorer.1",), (width,), width, bias=True),
        "gelu",
        Norm("scorer.0", "layer", width, _EPS, bias=True),
        norm_first=True,
    )
    return replace(body, layers=(*body.layers, *head), final_norm=None, classifier=scorer), encoder


def _layer(index: int, width: int, entry: Entry | None) -> Layer:
    at, heads, inner = f"head.layers.{index}", max(1, width // _HEAD_WIDTH), 4 * width

    def linear(name: str, rows: int, columns: int) -> Projection:
        return Projection((f"{at}.{name}",), (rows,), columns, bias=True)

    def norm(name: str) -> Norm:
        return Norm(f"{at}.{name}", "layer", width, _EPS, bias=True)

    return Layer(
        Attention(
            heads,
            heads,
            width // heads,
            linear("self_attn.in_proj", 3 * width, width),
            linear("self_attn.out_proj", width, width),
            rope=None,
            causal=False,
        ),
        Mlp(inner, linear("linear1", inner, width), linear("linear2", width, inner), "relu", gated=False),
        norm("norm1"),
        norm("norm2"),
        entry=entry,
    )


def marker_settings(directory: ModelDirectory, tokenizer: Any) -> MarkerSettings:
    """``tokenizer`` is the one of the directory."""
    fields = marker_fields(directory)
    said: dict[str, Any] = {}
    if directory.has(f"{TOKENIZER}/tokenizer_config.json"):
        said = directory.object(f"{TOKENIZER}/tokenizer_config.json", _LIMIT)
    names = {key: _name(said.get(key), default) for key, default in _NAMES.items()}
    ids = {key: tokenizer.token_to_id(name) for key, name in names.items()}
    for key, found in ids.items():
        if found is None:
            raise ModelError(f"{fields.where}: the tokenizer has no token {shown(names[key])} for {key}")
    length = fields.integer("max_len", 16, _MAX_LENGTH)
    return MarkerSettings(
        length,
        fields.integer("head_max_len", 16, length),
        ids["cls_token"],
        ids["sep_token"],
        ids["mask_token"],
        names["mask_token"],
        _temperatures(fields),
        _by_options(fields),
    )


def _name(said: Any, default: str) -> str:
    if isinstance(said, dict):
        said = said.get("content")
    return said if isinstance(said, str) else default


def _temperatures(fields: Fields) -> tuple[float, float, float]:
    said = fields.get("temperature", None)
    if said is None:
        return 1.0, 1.0, 1.0
    if not isinstance(said, list) or len(said) != len(KINDS):
        raise fields.wrong("temperature", f"a list of {len(KINDS)} numbers is needed: {', '.join(KINDS)}")
    values = Fields(dict(zip(KINDS, said)), f"{fields.where}: temperature")
    choice, score, noul = (values.number(kind, 0.0, 1e6) for kind in KINDS)
    return choice, score, noul


def _by_options(fields: Fields) -> dict[str, float]:
    said = fields.get("temperature_by_options", None)
    if said is None:
        return {}
    if not isinstance(said, dict) or len(said) > 1024:
        raise fields.wrong("temperature_by_options", "an object of numbers is needed")
    values = Fields(said, f"{fields.where}: temperature_by_options")
    return {str(key): values.number(key, 0.0, 1e6) for key in said}
