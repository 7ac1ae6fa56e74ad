"""bev-decider's directories: a Qwen3 whose options are read side by side, and a head over their rows.

config.json             backbone_config, head, the longest state and option
backbone_config.json    the Qwen3; config.json may name another file
tokenizer.json
model.safetensors       backbone.*, head.*
"""

from __future__ import annotations

from dataclasses import replace

from prelude.errors import UnsupportedModel
from prelude.models.fields import Fields
from prelude.models.files import ModelDirectory
from prelude.models.options.base import MAX_LENGTH, Network, OptionModel, TokenizerOf, body_of, renamed
from prelude.models.spec import ChoiceHead, ChoiceLayer, Norm, Projection
from prelude.values.model_settings import KINDS, OptionSettings

_MAX_LAYERS, _MAX_WIDTH = 64, 1 << 16
_EPS = 1e-5


def _network(directory: ModelDirectory) -> Network:
    fields = directory.fields("config.json")
    spec, config = body_of(directory, bidirectional=False, file=fields.text("backbone_config"))
    if spec.recurrent:
        raise UnsupportedModel(
            f"{config.where}: unsupported: layers with a recurrent state below options side by side"
        )
    if any(heads.window is not None for heads in spec.attentions):
        raise UnsupportedModel(f"{config.where}: unsupported: attention within a window below options side by side")
    said = fields.get("head", None)
    if not isinstance(said, dict):
        raise fields.wrong("head", "an object is needed")
    head = Fields(said, f"{fields.where}: head")
    types = head.integer("num_task_types", len(KINDS), 1 << 10)
    width = head.integer("new_dim", 1, _MAX_WIDTH)
    count = head.integer("num_layers", 0, _MAX_LAYERS)
    body = renamed(spec, "model.", "backbone.")
    return Network(replace(body, options=_head(spec.hidden, width, count, types)), config)


def _head(hidden: int, width: int, count: int, types: int) -> ChoiceHead:
    def norm(name: str) -> Norm:
        return Norm(f"head.{name}", "layer", hidden, _EPS, bias=True)

    def linear(name: str, rows: int, columns: int) -> Projection:
        return Projection((f"head.{name}",), (rows,), columns, bias=True)

    def layer(at: str) -> ChoiceLayer:
        query, key, value = (linear(f"{at}.attn.{name}", width, hidden) for name in "qkv")
        return ChoiceLayer(
            norm(f"{at}.norm1"),
            query,
            key,
            value,
            linear(f"{at}.attn.o", hidden, width),
            norm(f"{at}.norm2"),
            linear(f"{at}.mlp.0", width, hidden),
            linear(f"{at}.mlp.2", hidden, width),
        )

    return ChoiceHead(
        "head.task_embedding",
        types,
        norm("input_norm"),
        tuple(layer(f"layers.{index}") for index in range(count)),
        norm("final_norm"),
        linear("answer_proj", width, hidden),
        linear("choice_proj", width, hidden),
    )


def _settings(directory: ModelDirectory, tokenizer: TokenizerOf) -> OptionSettings:
    fields = directory.fields("config.json")
    return OptionSettings(
        "bev",
        MAX_LENGTH,
        state_length=fields.integer("max_state_tokens", 1, MAX_LENGTH),
        option_length=fields.integer("max_choice_tokens", 1, MAX_LENGTH),
        layout="indented",
    )


BEV = OptionModel("bev-decider", _network, _settings)
