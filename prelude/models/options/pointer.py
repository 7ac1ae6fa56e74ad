"""A decoder with a pointer head, as Kev has it, in a directory that holds no pickle and no adapter.

    pointer_head.json           head_dim, temperature
    pointer_head.safetensors    q.weight, q.bias, k.weight, k.bias: the tensors of Kev's head.pt
    config.json, model.safetensors, tokenizer.json    the base with the adapter merged into it

The logit of an option is the product of the key of its last token and the query of the prompt's last token, over the
root of ``head_dim``.
"""

from __future__ import annotations

from dataclasses import replace

from prelude.models.files import ModelDirectory
from prelude.models.options.base import Network, OptionModel, TokenizerOf, body_of, token_ids
from prelude.models.spec import PointerHead, Projection
from prelude.values.model_settings import OptionSettings

CONFIG, _HEAD = "pointer_head.json", "pointer_head.safetensors"
_MAX_WIDTH = 1 << 16
_QUESTION = 8192
_STATE = 65536
_TOKENS = {
    "state": "<|fim_prefix|>",
    "question": "<|fim_middle|>",
    "open": "<|box_start|>",
    "close": "<|box_end|>",
    "answer": "<|fim_suffix|>",
}


def _network(directory: ModelDirectory) -> Network:
    fields = directory.fields(CONFIG)
    spec, config = body_of(directory, bidirectional=False)
    width = fields.integer("head_dim", 1, _MAX_WIDTH)
    query, key = (Projection((f"head.{name}",), (width,), spec.hidden, bias=True) for name in "qk")
    return Network(replace(spec, options=PointerHead(query, key)), config, ((_HEAD, "head."),))


def _settings(directory: ModelDirectory, tokenizer: TokenizerOf) -> OptionSettings:
    fields = directory.fields(CONFIG)
    temperature = fields.number("temperature", 0.0, 1e6, 1.0)
    return OptionSettings(
        "kev",
        _STATE + _QUESTION,
        token_ids(tokenizer, _TOKENS, fields.where),
        head_length=_QUESTION,
        state_length=_STATE,
        layout="lines",
        temperatures=(temperature,) * 3,
    )


POINTER = OptionModel("Kev", _network, _settings)
