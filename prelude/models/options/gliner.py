"""The classification of GLiNER2's directories: a DeBERTa and a scorer of label tokens.

config.json                 model_type extractor
encoder_config/config.json  the DeBERTa
tokenizer.json              with the added tokens [P], [L], [DESCRIPTION], [SEP_STRUCT], [SEP_TEXT]
model.safetensors           encoder.*, classifier.0, classifier.2; heads for spans and counts are not read
"""

from __future__ import annotations

from dataclasses import replace

from prelude.errors import UnsupportedModel, shown
from prelude.models.families.base import SpecRequest
from prelude.models.families.deberta import DEBERTA
from prelude.models.fields import Fields
from prelude.models.files import ModelDirectory
from prelude.models.options.base import (
    CONFIG_LIMIT,
    Network,
    OptionModel,
    TokenizerOf,
    renamed,
    token_ids,
)
from prelude.models.spec import Classifier, Projection
from prelude.values.model_settings import OptionSettings

_CONFIG, _ENCODER = "config.json", "encoder_config/config.json"
_LONGEST = 8192
"""Positions are distances, and the farthest share a row, so that a prompt may be longer than
``max_position_embeddings``."""
_TOKENS = {
    "prompt": "[P]",
    "label": "[L]",
    "description": "[DESCRIPTION]",
    "text": "[SEP_TEXT]",
}


def _fields(directory: ModelDirectory) -> Fields:
    return Fields(directory.object(_CONFIG, CONFIG_LIMIT), str(directory.path / _CONFIG))


def _network(directory: ModelDirectory) -> Network:
    fields = _fields(directory)
    form = fields.get("architecture", None)
    if form not in (None, "span"):
        raise UnsupportedModel(f"{fields.where}: unsupported: architecture {shown(form)}; supported: span")
    pooling = fields.get("token_pooling", None)
    if pooling not in (None, "first"):
        raise UnsupportedModel(f"{fields.where}: unsupported: token_pooling {shown(pooling)}; supported: first")
    where = str(directory.path / _ENCODER)
    encoder = Fields(directory.object(_ENCODER, CONFIG_LIMIT), where, DEBERTA.defaults)
    kind = encoder.get("model_type", None)
    if kind not in (None, "deberta-v2"):
        raise UnsupportedModel(f"{where}: unsupported: model_type {shown(kind)}; GLiNER2 stands on deberta-v2")
    body = renamed(DEBERTA.build(encoder, SpecRequest("deberta-v2", "none")), "deberta.", "encoder.")
    width = body.hidden
    head = Classifier(
        Projection(("classifier.2",), (1,), 2 * width, bias=True),
        "markers",
        Projection(("classifier.0",), (2 * width,), width, bias=True),
        "relu",
    )
    return Network(replace(body, classifier=head, max_positions=max(body.max_positions, _LONGEST)), encoder)


def _settings(directory: ModelDirectory, tokenizer: TokenizerOf) -> OptionSettings:
    return OptionSettings("gliner", _LONGEST, token_ids(tokenizer, _TOKENS, _fields(directory).where))


GLINER = OptionModel("GLiNER2", _network, _settings)
