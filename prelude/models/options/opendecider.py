"""OpenDecider-nano's directories: an encoder with a marker head of two projections.

opendecider.json        kind, the longest prompt
config.json, tokenizer.json, model.safetensors    an encoder as transformers saves it
head.safetensors        0.*, 2.*, 3.*: Linear, GELU, LayerNorm, Linear
"""

from __future__ import annotations

from dataclasses import replace

from prelude.errors import UnsupportedModel, shown
from prelude.models.files import ModelDirectory
from prelude.models.options.base import (
    MAX_LENGTH,
    Network,
    OptionModel,
    TokenizerOf,
    body_of,
    marker_tokens,
)
from prelude.models.spec import Classifier, Norm, Projection
from prelude.values.model_settings import OptionSettings

CONFIG = "opendecider.json"
_HEAD = "head.safetensors"
_EPS = 1e-5
_LENGTH = 2048


def _network(directory: ModelDirectory) -> Network:
    fields = directory.fields(CONFIG)
    kind = fields.text("kind")
    if kind != "nano":
        why = "; the other kinds are LoRA adapters: merge one into its base and load that directory"
        raise UnsupportedModel(f"{fields.where}: unsupported: kind {shown(kind)}; supported: nano{why}")
    spec, config = body_of(directory, bidirectional=True)
    width = spec.hidden
    head = Classifier(
        Projection(("head.3",), (1,), width, bias=True),
        "markers",
        Projection(("head.0",), (width,), width, bias=True),
        "gelu",
        Norm("head.2", "layer", width, _EPS, bias=True),
    )
    return Network(replace(spec, classifier=head), config, ((_HEAD, "head."),))


def _settings(directory: ModelDirectory, tokenizer: TokenizerOf) -> OptionSettings:
    fields = directory.fields(CONFIG)
    tokens, _ = marker_tokens(directory, tokenizer, fields.where)
    return OptionSettings("opendecider", fields.integer("max_len", 16, MAX_LENGTH, _LENGTH), tokens)


OPENDECIDER = OptionModel("OpenDecider", _network, _settings)
