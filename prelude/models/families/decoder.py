"""Decoders of the Llama kind: RMSNorm before attention and MLP, rotary positions, a gated MLP with SiLU.

A family of this kind is ``decoder(...)`` with its switches.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from prelude.errors import ModelError, UnsupportedModel, shown
from prelude.models.families.base import (
    MAX_HEADS,
    MAX_LAYERS,
    MAX_VOCABULARY,
    MAX_WIDTH,
    Asked,
    Family,
    head_width,
    is_one_of,
    one_of,
    refuse_other_values,
)
from prelude.models.fields import Fields
from prelude.models.rope import MAX_POSITIONS, parse_rope, stretched_positions
from prelude.models.spec import (
    Activation,
    Attention,
    Classifier,
    Embeddings,
    Layer,
    Mlp,
    ModelSpec,
    Norm,
    Projection,
    Rope,
)

log = logging.getLogger("prelude.models.config")

ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "swish": "silu"}

_CAUSAL = {"is_causal": (None, True), "use_bidirectional_attention": (None, False)}

# Keys of other families, which transformers' classes of these families do not read: a file that has them means the
# same without them.
_IGNORED: dict[str, tuple[Any, ...]] = {
    "attention_chunk_size": (None,),
    "attn_logit_softcapping": (None, 0),
    "final_logit_softcapping": (None, 0),
    "logit_scale": (None, 1),
    "logits_scaling": (None, 1),
    "embedding_multiplier": (None, 1),
    "residual_multiplier": (None, 1),
    "attention_multiplier": (None,),
    "num_experts": (None, 0),
    "num_local_experts": (None, 0),
    "n_routed_experts": (None, 0),
}


@dataclass(frozen=True)
class Switches:
    """What makes one family of decoders differ from another."""

    qk_norm: bool = False
    attention_bias: bool | None = None
    """Bias on the query, key and value projections: fixed, or None where the config says."""
    output_bias: bool | None = None
    """Bias on the attention's output projection; None where it follows ``attention_bias``."""
    mlp_bias: bool | None = None
    window_switch: bool = False
    """``sliding_window`` only counts where ``use_sliding_window`` is true."""
    windows: bool = True
    """False for a family that has no windows at all: ``sliding_window`` is not read."""


def decoder(model_type: str, begins: str, defaults: Mapping[str, Any], **switches: Any) -> Family:
    """The family of transformers' classes whose names begin with ``begins``. ``switches``: see ``Switches``."""
    return Family(
        model_type,
        {
            f"{begins}ForCausalLM": "lm",
            f"{begins}Model": "none",
            f"{begins}ForSequenceClassification": "classifier",
        },
        partial(_build, Switches(**switches)),
        {"hidden_act": "silu", "tie_word_embeddings": False, **defaults},
    )


def _build(switches: Switches, fields: Fields, asked: Asked) -> ModelSpec:
    refuse_other_values(fields, _CAUSAL)
    _say_ignored(fields, switches, asked.model_type)
    vocab = fields.integer("vocab_size", 1, MAX_VOCABULARY)
    count = fields.integer("num_hidden_layers", 1, MAX_LAYERS)
    hidden, heads, kv_heads, width = _attention_sizes(fields)
    positions = fields.integer("max_position_embeddings", 1, MAX_POSITIONS)
    theta, scaling = parse_rope(fields, positions)
    positions = stretched_positions(fields, scaling, positions)
    _refuse_windows(fields, switches, asked.model_type, count, positions)
    inner = fields.integer("intermediate_size", 1, MAX_WIDTH)
    eps = fields.number("rms_norm_eps", 0.0, 0.1)
    tied = fields.boolean("tie_word_embeddings")
    activation = one_of(fields, "hidden_act", ACTIVATIONS)
    bias = _switch(fields, "attention_bias", switches.attention_bias)
    out_bias = bias if switches.output_bias is None else switches.output_bias
    mlp_bias = _switch(fields, "mlp_bias", switches.mlp_bias)
    rope = Rope(theta, width, scaling)

    def rms(name: str, values: int = hidden) -> Norm:
        return Norm(name, "rms", values, eps)

    def layer(at: str) -> Layer:
        attention, mlp = f"{at}.self_attn", f"{at}.mlp"
        queries, keys = heads * width, kv_heads * width
        names = (f"{attention}.q_proj", f"{attention}.k_proj", f"{attention}.v_proj")
        return Layer(
            Attention(
                heads,
                kv_heads,
                width,
                Projection(names, (queries, keys, keys), hidden, bias),
                Projection((f"{attention}.o_proj",), (hidden,), queries, out_bias),
                rope,
                q_norm=rms(f"{attention}.q_norm", width) if switches.qk_norm else None,
                k_norm=rms(f"{attention}.k_norm", width) if switches.qk_norm else None,
            ),
            Mlp(
                inner,
                Projection((f"{mlp}.gate_proj", f"{mlp}.up_proj"), (inner, inner), hidden, mlp_bias),
                Projection((f"{mlp}.down_proj",), (hidden,), inner, mlp_bias),
                activation,
                gated=True,
            ),
            rms(f"{at}.input_layernorm"),
            rms(f"{at}.post_attention_layernorm"),
        )

    return ModelSpec(
        prefix="model.",
        hidden=hidden,
        max_positions=positions,
        embeddings=Embeddings("model.embed_tokens", vocab, hidden),
        layers=tuple(layer(f"model.layers.{index}") for index in range(count)),
        final_norm=rms("model.norm"),
        lm_head=("tied" if tied else "own") if asked.head == "lm" else None,
        classifier=Classifier(Projection(("score",), (asked.labels,), hidden)) if asked.labels else None,
    )


def _say_ignored(fields: Fields, switches: Switches, model_type: str) -> None:
    ignored = [key for key, neutral in _IGNORED.items() if not is_one_of(fields.get(key, None), neutral)]
    for key, fixed in (("attention_bias", switches.attention_bias), ("mlp_bias", switches.mlp_bias)):
        if fixed is not None and fields.get(key, fixed) not in (fixed, None):
            ignored.append(key)
    if ignored:
        log.warning(
            "%s: %s not read by a %s model, here and in transformers; the weights decide",
            fields.where,
            ", ".join(f"{key} {shown(fields.get(key))}" for key in ignored)
            + (" is" if len(ignored) == 1 else " are"),
            model_type,
        )


def _refuse_windows(fields: Fields, switches: Switches, model_type: str, num_layers: int, max_positions: int) -> None:
    """Raise where a layer would attend to a part of its context. A window that no layer uses, or that is as long as
    the longest context, changes nothing."""
    window = fields.get("sliding_window", fields.defaults.get("sliding_window"))
    switched = fields.get("use_sliding_window", None) is not None and fields.boolean("use_sliding_window")
    kinds = fields.get("layer_types", None)
    if kinds is not None and (not isinstance(kinds, list) or len(kinds) != num_layers):
        raise fields.wrong("layer_types", f"a list of {num_layers} names, one a layer, is needed")
    harmless = window is None or (type(window) is int and window >= max_positions)
    for kind in kinds or ():
        if kind != "full_attention" and not (kind == "sliding_attention" and switched and harmless):
            raise UnsupportedModel(f"{fields.where}: unsupported: layer_types with {shown(kind)}")
    if harmless:
        return
    if switches.window_switch:
        first = fields.integer("max_window_layers", 0, 1 << 20, 28)  # the first layer with a window
        if switched and kinds is None and first < num_layers:
            raise UnsupportedModel(
                f"{fields.where}: unsupported: use_sliding_window from layer {first} of {num_layers} on"
            )
    elif switches.windows:
        said = "" if "sliding_window" in fields.values else f", which a {model_type} config without it means"
        raise UnsupportedModel(f"{fields.where}: unsupported: sliding_window {shown(window)}{said}")


def _attention_sizes(fields: Fields) -> tuple[int, int, int, int]:
    """``(hidden, heads, kv_heads, head_dim)``."""
    hidden = fields.integer("hidden_size", 1, MAX_WIDTH)
    heads = fields.integer("num_attention_heads", 1, MAX_HEADS)
    kv_heads = heads
    if fields.get("num_key_value_heads") is not None:
        kv_heads = fields.integer("num_key_value_heads", 1, MAX_HEADS)
    if heads % kv_heads:
        raise fields.wrong("num_key_value_heads", f"it must divide num_attention_heads = {heads}")
    if fields.get("head_dim") is not None:
        head_dim = fields.integer("head_dim", 2, 1024)
    else:
        head_dim = head_width(fields, hidden, heads)
    if head_dim % 2 or not head_dim:
        raise ModelError(f"{fields.where}: head_dim is {head_dim}, rotary embeddings need an even number")
    return hidden, heads, kv_heads, head_dim


def _switch(fields: Fields, key: str, fixed: bool | None) -> bool:
    return fields.boolean(key) if fixed is None else fixed
