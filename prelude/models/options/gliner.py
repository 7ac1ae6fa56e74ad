"""The classification of GLiNER2's directories: a DeBERTa and a scorer of label tokens.

config.json                 model_type extractor
encoder_config/config.json  the DeBERTa
tokenizer.json              with the added tokens [P], [L], [DESCRIPTION], [SEP_STRUCT], [SEP_TEXT]
model.safetensors           encoder.*, classifier.0, classifier.2; heads for spans and counts are not read
"""

from __future__ import annotations

from dataclasses import replace

from prelude.models.families.base import SpecRequest, refuse_other_values
from prelude.models.families.deberta import DEBERTA
from prelude.models.files import ModelDirectory
from prelude.models.options.base import Network, OptionModel, TokenizerOf, renamed, token_ids
from prelude.models.spec import Classifier, Projection
from prelude.values.model_settings import OptionSettings

_LONGEST = 8192
"""Positions are distances, and the farthest share a row, so that a prompt may be longer than
``max_position_embeddings``."""
_TOKENS = {"prompt": "[P]", "label": "[L]", "description": "[DESCRIPTION]", "text": "[SEP_TEXT]"}


def _network(directory: ModelDirectory) -> Network:
    refuse_other_values(
        directory.fields("config.json"), {"architecture": (None, "span"), "token_pooling": (None, "first")}
    )
    encoder = directory.fields("encoder_config/config.json", DEBERTA.defaults)
    refuse_other_values(encoder, {"model_type": (None, "deberta-v2")})
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
    return OptionSettings("gliner", _LONGEST, token_ids(tokenizer, _TOKENS, str(directory.path / "config.json")))


GLINER = OptionModel("GLiNER2", _network, _settings)
