"""OpenDecider-nano's directories: an encoder with a marker head of two projections.

opendecider.json        kind, the longest prompt
config.json, tokenizer.json, model.safetensors    an encoder as transformers saves it
head.safetensors        0.*, 2.*, 3.*: Linear, GELU, LayerNorm, Linear
"""

from __future__ import annotations

from dataclasses import replace

from prelude.errors import UnsupportedModel, shown
from prelude.models.fields import Fields
from prelude.models.files import ModelDirectory
from prelude.models.options.base import (
    CONFIG_LIMIT,
    MAX_LENGTH,
    Network,
    OptionModel,
    TokenizerOf,
    body_of,
    special_names,
    token_ids,
)
from prelude.models.spec import Classifier, Norm, Projection
from prelude.values.model_settings import OptionSettings

CONFIG = "opendecider.json"
_HEAD = "head.safetensors"
_EPS = 1e-5
_LENGTH = 2048
_NAMES = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}


def _fields(directory: ModelDirectory) -> Fields:
    return Fields(directory.object(CONFIG, CONFIG_LIMIT), str(directory.path / CONFIG))


def _network(directory: ModelDirectory) -> Network:
    fields = _fields(directory)
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
    fields = _fields(directory)
    ids = token_ids(tokenizer, special_names(directory, "", _NAMES), fields.where)
    tokens = {use.removesuffix("_token"): token_id for use, token_id in ids.items()}
    return OptionSettings("opendecider", fields.integer("max_len", 16, MAX_LENGTH, _LENGTH), tokens)


OPENDECIDER = OptionModel("OpenDecider", _network, _settings)
