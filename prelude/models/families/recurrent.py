"""Decoders whose layers mostly keep a state of the sequence: Qwen3.5 (gated delta rule), LFM2 (short convolutions).

Qwen3.5's attention has gates, rotates a part of each head, and its norms count from one; the norm inside a delta rule
does not. Its checkpoints often hold a vision tower and prediction heads as well, with the text model's config in
``text_config``. They are not read.
"""

from __future__ import annotations

from typing import Any

from prelude.errors import UnsupportedModel, shown
from prelude.models.families.base import (
    CAUSAL,
    FULL,
    MAX_HEADS,
    MAX_WIDTH,
    Family,
    SpecRequest,
    layer_kinds,
    one_of,
    refuse_other_values,
)
from prelude.models.families.decoder import (
    ACTIVATIONS,
    attention,
    causal_spec,
    gated_mlp,
    read_sizes,
    rms_norms,
)
from prelude.models.fields import Fields
from prelude.models.rope import MAX_POSITIONS, Ropes, parse_rope
from prelude.models.spec import GatedDelta, Layer, ModelSpec, Norm, Projection, ShortConv

_LINEAR, _CONV = "linear_attention", "conv"


def _rope(fields: Fields, head_dim: int, partial: float | None) -> Ropes:
    positions = fields.integer("max_position_embeddings", 1, MAX_POSITIONS)
    return parse_rope(fields, head_dim, positions, partial is not None, turning=1.0 if partial is None else partial)


def _kinds(fields: Fields, layers: int, other: str, default: list[str]) -> list[str]:
    kinds = layer_kinds(fields, layers, (FULL, other)) or default
    if FULL not in kinds:
        raise UnsupportedModel(f"{fields.where}: unsupported: layer_types without {shown(FULL)}")
    return kinds


# ------------------------------------------------------------------ Qwen3.5


def _qwen3_5(fields: Fields, wanted: SpecRequest) -> ModelSpec:
    refuse_other_values(fields, {**CAUSAL, "attn_output_gate": (None, True)})
    activation = one_of(fields, "hidden_act", ACTIVATIONS)  # of the MLP and of the convolution
    sizes = read_sizes(fields)
    ropes = _rope(fields, sizes.head_dim, 0.25)
    eps = fields.number("rms_norm_eps", 0.0, 0.1)
    rms = rms_norms(sizes.hidden, eps, offset=1.0)
    bias = fields.boolean("attention_bias")
    rule = _rule_sizes(fields)
    prefix = "model.language_model." if wanted.nested else "model."

    def layer(index: int, kind: str) -> Layer:
        at = f"{prefix}layers.{index}"
        return Layer(
            attention(f"{at}.self_attn", sizes, ropes.rope, bias, rms, gate=True)
            if kind == FULL
            else _gated_delta(f"{at}.linear_attn", sizes.hidden, rule, eps),
            gated_mlp(f"{at}.mlp", sizes.hidden, sizes.inner, activation),
            rms(f"{at}.input_layernorm"),
            rms(f"{at}.post_attention_layernorm"),
        )

    every = fields.integer("full_attention_interval", 1, 1 << 20)
    default = [_LINEAR if (index + 1) % every else FULL for index in range(sizes.layers)]
    layers = [layer(*one) for one in enumerate(_kinds(fields, sizes.layers, _LINEAR, default))]
    tied = fields.boolean("tie_word_embeddings")
    return causal_spec(sizes, wanted, tied, layers, rms(f"{prefix}norm"), ropes.positions, prefix)


def _rule_sizes(fields: Fields) -> tuple[int, int, int, int, int]:
    """``(key_heads, value_heads, key_dim, value_dim, kernel)``."""
    keys, values = (fields.integer(f"linear_num_{part}_heads", 1, MAX_HEADS) for part in ("key", "value"))
    if values % keys:
        raise fields.wrong("linear_num_value_heads", f"it must be a multiple of linear_num_key_heads = {keys}")
    key_dim, value_dim = (fields.integer(f"linear_{part}_head_dim", 1, 1024) for part in ("key", "value"))
    return keys, values, key_dim, value_dim, fields.integer("linear_conv_kernel_dim", 1, _most_taps())


def _gated_delta(at: str, hidden: int, sizes: tuple[int, int, int, int, int], eps: float) -> GatedDelta:
    key_heads, value_heads, key_dim, value_dim, kernel = sizes
    values = value_heads * value_dim
    names = tuple(f"{at}.in_proj_{part}" for part in ("qkv", "z", "b", "a"))
    rows = (2 * key_heads * key_dim + values, values, value_heads, value_heads)
    return GatedDelta(
        at,
        key_heads,
        value_heads,
        key_dim,
        value_dim,
        kernel,
        Projection(names, rows, hidden),
        Projection((f"{at}.out_proj",), (hidden,), values),
        Norm(f"{at}.norm", "rms", value_dim, eps),
    )


# ------------------------------------------------------------------ LFM2


def _lfm2(fields: Fields, wanted: SpecRequest) -> ModelSpec:
    refuse_other_values(fields, CAUSAL)
    sizes = read_sizes(fields, inner="block_ff_dim" if "block_ff_dim" in fields.values else "intermediate_size")
    inner, hidden = _adjusted(fields, sizes.inner), sizes.hidden
    ropes = _rope(fields, sizes.head_dim, None)
    rms = rms_norms(hidden, fields.number("norm_eps", 0.0, 0.1))
    kernel, bias = fields.integer("conv_L_cache", 1, _most_taps()), fields.boolean("conv_bias")
    tied = fields.boolean("tie_embedding" if "tie_embedding" in fields.values else "tie_word_embeddings")
    names = ("out_proj", "q_layernorm", "k_layernorm")

    def convolution(at: str) -> ShortConv:
        return ShortConv(
            at,
            kernel,
            Projection((f"{at}.in_proj",), (3 * hidden,), hidden, bias),
            Projection((f"{at}.out_proj",), (hidden,), hidden, bias),
            bias,
        )

    def layer(index: int, kind: str) -> Layer:
        at = f"model.layers.{index}"
        return Layer(
            attention(f"{at}.self_attn", sizes, ropes.rope, False, rms, names=names)
            if kind == FULL
            else convolution(f"{at}.conv"),
            gated_mlp(f"{at}.feed_forward", hidden, inner, "silu", names=("w1", "w3", "w2")),
            rms(f"{at}.operator_norm"),
            rms(f"{at}.ffn_norm"),
        )

    layers = [layer(*one) for one in enumerate(_lfm2_kinds(fields, sizes.layers))]
    return causal_spec(sizes, wanted, tied, layers, rms("model.embedding_norm"), ropes.positions)


def _lfm2_kinds(fields: Fields, layers: int) -> list[str]:
    full = fields.get("full_attn_idxs", None)
    if full is None:
        full = list(range(layers))
    elif not isinstance(full, list) or not all(type(one) is int and 0 <= one < layers for one in full):
        raise fields.wrong("full_attn_idxs", f"a list of layers between 0 and {layers - 1} is needed")
    return _kinds(fields, layers, _CONV, [FULL if index in full else _CONV for index in range(layers)])


def _adjusted(fields: Fields, inner: int) -> int:
    """Return the inner width of the MLPs: two thirds of the config's value, if the config asks for that."""
    if not fields.boolean("block_auto_adjust_ff_dim"):
        return inner
    inner = 2 * inner // 3
    if fields.get("block_ffn_dim_multiplier") is not None:
        inner = int(fields.number("block_ffn_dim_multiplier", 0.0, 1e3) * inner)
        step = fields.integer("block_multiple_of", 1, MAX_WIDTH)
        inner = -(-inner // step) * step
    if not 1 <= inner <= MAX_WIDTH:
        raise fields.wrong("intermediate_size", f"adjusted it is {inner}; the limits are 1 and {MAX_WIDTH:,}")
    return inner


_QWEN3_5_DEFAULTS: dict[str, Any] = {
    "hidden_act": "silu",
    "head_dim": 256,
    "attention_bias": False,
    "full_attention_interval": 4,
    "tie_word_embeddings": False,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
QWEN3_5_TEXT = Family(
    "qwen3_5_text",
    {
        "Qwen3_5ForCausalLM": "lm",
        "Qwen3_5TextModel": "none",
        "Qwen3_5TextForSequenceClassification": "classifier",
    },
    _qwen3_5,
    _QWEN3_5_DEFAULTS,
)
QWEN3_5 = Family(
    "qwen3_5",
    {"Qwen3_5ForConditionalGeneration": "lm"},
    _qwen3_5,
    _QWEN3_5_DEFAULTS,
    nested="text_config",
)
LFM2 = Family(
    "lfm2",
    {"Lfm2ForCausalLM": "lm", "Lfm2Model": "none"},
    _lfm2,
    {
        "head_dim": None,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_auto_adjust_ff_dim": True,
        "block_ffn_dim_multiplier": 1.0,
        "block_multiple_of": 256,
    },
)


def _most_taps() -> int:
    """Taps of a convolution's kernel."""
    from prelude._native.cpu import MOST_TAPS  # a config is read without numpy

    return MOST_TAPS
