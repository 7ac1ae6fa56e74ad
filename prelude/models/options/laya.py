"""Laya's and Julia's directories: a ModernBERT with a marker head.

    rl_agent_config.json    of Laya: lengths, layers of the head, temperatures
    julia_config.json       of Julia: layers of the head
    inference-policy.json   of Julia: lengths, may be missing
    encoder/config.json     the ModernBERT
    tokenizer/              tokenizer.json and tokenizer_config.json
    model.safetensors       encoder.*, head.layers.*, type_emb, scorer.*

Behind the encoder's last norm the type of the question is added to every row; ``head_layers`` layers follow, and a
scorer reads the rows of the mask tokens. The network's act head is not read: its answer is nearly constant.
"""

from __future__ import annotations

from dataclasses import replace

from prelude.errors import ModelError
from prelude.models.families.base import SpecRequest, refuse_other_values
from prelude.models.families.modernbert import MODERNBERT, build
from prelude.models.fields import Fields
from prelude.models.files import ModelDirectory
from prelude.models.options.base import MAX_LENGTH, Network, OptionModel, TokenizerOf, marker_tokens
from prelude.models.spec import Attention, Classifier, Layer, LayerInput, Mlp, Norm, Projection
from prelude.values.model_settings import KINDS, OptionSettings

LAYA_CONFIG, JULIA_CONFIG = "rl_agent_config.json", "julia_config.json"
_TOKENIZER = "tokenizer/"
_MAX_HEAD_LAYERS = 64
_EPS = 1e-5
_HEAD_WIDTH = 64
_OPTION_TOKENS = 48  # behind its mask token
_JULIA_LENGTHS = {"max_length": 8192, "head_length": 512}


def _laya_network(directory: ModelDirectory) -> Network:
    fields = directory.fields(LAYA_CONFIG)
    refuse_other_values(fields, {"option_layout": (None, "sequential")})
    return _network(directory, fields)


def _julia_network(directory: ModelDirectory) -> Network:
    fields = directory.fields(JULIA_CONFIG)
    refuse_other_values(fields, {"format_version": (None, 1)})
    return _network(directory, fields)


def _network(directory: ModelDirectory, fields: Fields) -> Network:
    count = fields.integer("head_layers", 1, _MAX_HEAD_LAYERS)
    encoder = directory.fields("encoder/config.json", MODERNBERT.defaults)
    refuse_other_values(encoder, {"model_type": ("modernbert",)})
    body = build(encoder, SpecRequest("modernbert", "none"), "encoder.")
    width = body.hidden
    if body.final_norm is None or width % max(1, width // _HEAD_WIDTH):
        raise ModelError(f"{encoder.where}: hidden_size is {width}, the head needs a multiple of {_HEAD_WIDTH}")
    entry = LayerInput(body.final_norm, "type_emb", len(KINDS))
    head = [_layer(index, width, entry if index == 0 else None) for index in range(count)]
    scorer = Classifier(
        Projection(("scorer.3",), (1,), width, bias=True),
        "markers",
        Projection(("scorer.1",), (width,), width, bias=True),
        "gelu",
        Norm("scorer.0", "layer", width, _EPS, bias=True),
        norm_first=True,
    )
    return Network(replace(body, layers=(*body.layers, *head), final_norm=None, classifier=scorer), encoder)


def _layer(index: int, width: int, entry: LayerInput | None) -> Layer:
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


def _laya_settings(directory: ModelDirectory, tokenizer: TokenizerOf) -> OptionSettings:
    fields = directory.fields(LAYA_CONFIG)
    length = fields.integer("max_len", 16, MAX_LENGTH)
    return replace(
        _settings("laya", directory, tokenizer, fields.where),
        max_length=length,
        head_length=fields.integer("head_max_len", 16, length),
        temperatures=_temperatures(fields),
        by_options=_by_options(fields),
    )


def _julia_settings(directory: ModelDirectory, tokenizer: TokenizerOf) -> OptionSettings:
    fields = directory.fields("inference-policy.json", _JULIA_LENGTHS, needed=False)
    length = fields.integer("max_length", 16, MAX_LENGTH)
    return replace(
        _settings("julia", directory, tokenizer, str(directory.path / JULIA_CONFIG)),
        max_length=length,
        head_length=fields.integer("head_length", 16, length),
    )


def _settings(form: str, directory: ModelDirectory, tokenizer: TokenizerOf, where: str) -> OptionSettings:
    tokens, mask = marker_tokens(directory, tokenizer, where, _TOKENIZER)
    return OptionSettings(form, 0, tokens, option_length=_OPTION_TOKENS, mask_text=mask)


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


LAYA = OptionModel("Laya", _laya_network, _laya_settings, _TOKENIZER)
JULIA = OptionModel("Julia", _julia_network, _julia_settings, _TOKENIZER)
