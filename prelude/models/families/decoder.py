"""Decoders of the Llama kind: RMSNorm before attention and MLP, rotary positions, a gated MLP with SiLU.

A family of this kind is ``decoder(...)`` with its switches.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from prelude.errors import ModelError, UnsupportedModel, shown
from prelude.models.families.base import (
    CAUSAL,
    FULL,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_VOCABULARY,
    MAX_WIDTH,
    SLIDING,
    Family,
    SpecRequest,
    classes,
    head_width,
    is_one_of,
    layer_kinds,
    one_of,
    refuse_other_values,
)
from prelude.models.fields import Fields
from prelude.models.rope import MAX_POSITIONS, Ropes, parse_rope
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
from prelude.records import dataclass

log = logging.getLogger("prelude.models.config")

ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "swish": "silu"}

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


@dataclass(frozen=True, slots=True)
class Switches:
    """The differences between families of decoders."""

    qk_norm: bool = False
    attention_bias: bool | None = None
    """Bias on the query, key and value projections: fixed, or None if the config says."""
    output_bias: bool | None = None
    """Bias on the attention's output projection; None if it follows ``attention_bias``."""
    mlp_bias: bool | None = None
    window_switch: bool = False
    """``sliding_window`` only counts if ``use_sliding_window`` is true, for the layers from ``max_window_layers``
    on or those that ``layer_types`` names."""
    windows: bool = True
    """False for a family that has no windows at all: ``sliding_window`` is not read."""
    fused: bool = False
    """Queries, keys and values are one weight, gate and up of the MLP another."""
    no_rope_layers: bool = False
    """Layers without rotary positions, as ``no_rope_layers`` says."""
    partial: bool = False
    """``partial_rotary_factor`` counts."""
    longrope: tuple[str, ...] = ()
    """Other names of longrope in files of this family."""


def decoder(model_type: str, begins: str, defaults: Mapping[str, Any], **switches: Any) -> Family:
    """The family of transformers' classes whose names begin with ``begins``. ``switches``: see ``Switches``."""
    defaults = {"hidden_act": "silu", "tie_word_embeddings": False, **defaults}
    return Family(model_type, classes(begins), partial(_build, Switches(**switches)), defaults)


def _build(switches: Switches, fields: Fields, wanted: SpecRequest) -> ModelSpec:
    refuse_other_values(fields, CAUSAL)
    _say_ignored(fields, switches, wanted.model_type)
    sizes = read_sizes(fields)
    positions = fields.integer("max_position_embeddings", 1, MAX_POSITIONS)
    ropes = parse_rope(fields, sizes.head_dim, positions, switches.partial, switches.longrope)
    windows = _windows(fields, switches, sizes.layers)
    rotated = _rotated_layers(fields, sizes.layers) if switches.no_rope_layers else [True] * sizes.layers
    bias = _switch(fields, "attention_bias", switches.attention_bias)
    mlp_bias = _switch(fields, "mlp_bias", switches.mlp_bias)
    rms = rms_norms(sizes.hidden, fields.number("rms_norm_eps", 0.0, 0.1))
    activation = one_of(fields, "hidden_act", ACTIVATIONS)
    tied = fields.boolean("tie_word_embeddings")

    def layer(at: str, rope: Rope | None, window: int | None) -> Layer:
        mixer = attention(
            f"{at}.self_attn",
            sizes,
            rope,
            bias,
            rms if switches.qk_norm else None,
            out_bias=switches.output_bias,
            fused=switches.fused,
            window=window,
        )
        mlp = gated_mlp(f"{at}.mlp", sizes.hidden, sizes.inner, activation, mlp_bias, fused=switches.fused)
        return Layer(mixer, mlp, rms(f"{at}.input_layernorm"), rms(f"{at}.post_attention_layernorm"))

    def spec(ropes: Ropes) -> ModelSpec:
        layers = [
            layer(f"model.layers.{index}", ropes.rope if rotates else None, shorter(window, ropes.positions))
            for index, (window, rotates) in enumerate(zip(windows, rotated))
        ]
        longer = None if ropes.longer is None else spec(ropes.longer)
        return causal_spec(sizes, wanted, tied, layers, rms("model.norm"), ropes.positions, longer=longer)

    return spec(ropes)


# ------------------------------------------------------------------ parts that other decoders have too


@dataclass(frozen=True, slots=True)
class Sizes:
    """``heads * head_dim`` may differ from ``hidden``; ``kv_heads`` divides ``heads``, ``head_dim`` is even."""

    vocab: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int


def read_sizes(fields: Fields, inner: str = "intermediate_size") -> Sizes:
    """``inner``: the key of the MLPs' inner width."""
    return Sizes(
        fields.integer("vocab_size", 1, MAX_VOCABULARY),
        fields.integer("num_hidden_layers", 1, MAX_LAYERS),
        *_attention_sizes(fields),
        fields.integer(inner, 1, MAX_WIDTH),
    )


def rms_norms(hidden: int, eps: float, offset: float = 0.0) -> Callable[..., Norm]:
    """Return a function from a name, and from the values of a row if they are not ``hidden``, to an RMSNorm."""
    return lambda name, values=hidden: Norm(name, "rms", values, eps, offset=offset)


def attention(
    at: str,
    sizes: Sizes,
    rope: Rope | None,
    bias: bool,
    head_norm: Callable[..., Norm] | None,
    *,
    out_bias: bool | None = None,
    fused: bool = False,
    gate: bool = False,
    names: tuple[str, str, str] = ("o_proj", "q_norm", "k_norm"),
    **more: Any,
) -> Attention:
    """Attention whose weights' names begin with ``at``. ``head_norm``: of single heads. ``out_bias``: None for
    ``bias``. ``names``: of the projection behind it and of the norms of heads. ``more``: other fields."""
    queries, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    out, *norms = (f"{at}.{name}" for name in names)
    q_norm, k_norm = (None if head_norm is None else head_norm(name, sizes.head_dim) for name in norms)
    parts = [f"{at}.{part}_proj" for part in (("qkv",) if fused else "qkv")]
    rows = (2 * queries if gate else queries, keys, keys)
    return Attention(
        sizes.heads,
        sizes.kv_heads,
        sizes.head_dim,
        _stacked(parts, rows, sizes.hidden, bias),
        Projection((out,), (sizes.hidden,), queries, bias if out_bias is None else out_bias),
        rope,
        q_norm=q_norm,
        k_norm=k_norm,
        gate=gate,
        **more,
    )


def gated_mlp(
    at: str,
    hidden: int,
    inner: int,
    activation: Activation,
    bias: bool = False,
    *,
    fused: bool = False,
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> Mlp:
    """``names``: of the half that is activated, of the other one, and of the projection behind them."""
    first, second, down = (f"{at}.{name}" for name in names)
    up = _stacked([f"{at}.gate_up_proj"] if fused else [first, second], (inner, inner), hidden, bias)
    return Mlp(inner, up, Projection((down,), (hidden,), inner, bias), activation, gated=True)


def _stacked(names: list[str], rows: tuple[int, ...], columns: int, bias: bool) -> Projection:
    """Return a projection of one weight for each part, or of one for all of them."""
    return Projection(tuple(names), (sum(rows),) if len(names) == 1 else rows, columns, bias)


def causal_spec(
    sizes: Sizes,
    wanted: SpecRequest,
    tied: bool,
    layers: Iterable[Layer],
    final_norm: Norm,
    positions: int,
    prefix: str = "model.",
    scale: float = 1.0,
    **more: Any,
) -> ModelSpec:
    """The network of a decoder, with the head that is ``wanted``. ``more``: other fields."""
    return ModelSpec(
        prefix=prefix,
        hidden=sizes.hidden,
        max_positions=positions,
        embeddings=Embeddings(f"{prefix}embed_tokens", sizes.vocab, sizes.hidden, scale=scale),
        layers=tuple(layers),
        final_norm=final_norm,
        lm_head=("tied" if tied else "own") if wanted.head == "lm" else None,
        classifier=Classifier(Projection(("score",), (wanted.labels,), sizes.hidden)) if wanted.labels else None,
        **more,
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


def _windows(fields: Fields, switches: Switches, layers: int) -> list[int | None]:
    """Return the window of each layer, in tokens with its own; None if a layer sees all."""
    said = fields.get("sliding_window", fields.defaults.get("sliding_window"))
    window = (
        None if said is None or not switches.windows else fields.integer("sliding_window", 1, MAX_POSITIONS, said)
    )
    kinds = layer_kinds(fields, layers)
    if switches.window_switch:
        switched = fields.get("use_sliding_window", None) is not None and fields.boolean("use_sliding_window")
        window = window if switched else None
        if kinds is None and switches.no_rope_layers:
            kinds = [FULL if rotated else SLIDING for rotated in _rotated_layers(fields, layers)]
        elif kinds is None:
            first = fields.integer("max_window_layers", 0, 1 << 20, 28)  # the first layer with a window
            kinds = [FULL if index < first else SLIDING for index in range(layers)]
        elif window is None and SLIDING in kinds:
            raise UnsupportedModel(f"{fields.where}: unsupported: layer_types with {SLIDING} and no window in use")
        return [window if kind == SLIDING else None for kind in kinds]
    if kinds is not None and set(kinds) != {FULL if window is None else SLIDING}:
        raise UnsupportedModel(
            f"{fields.where}: unsupported: layer_types with {shown(sorted(set(kinds)))} and sliding_window "
            f"{shown(said)}, which holds for all layers of such a model"
        )
    return [window] * layers


def shorter(window: int | None, positions: int) -> int | None:
    """Return how far a window of ``window`` tokens reaches back; None if that is as far as any context."""
    return None if window is None or window >= positions else window - 1


def _rotated_layers(fields: Fields, layers: int) -> list[bool]:
    """Return whether each layer has rotary positions."""
    every = fields.integer("no_rope_layer_interval", 1, MAX_LAYERS)
    rotated = fields.get("no_rope_layers", None)
    if rotated is None:
        return [bool((index + 1) % every) for index in range(layers)]
    if not isinstance(rotated, list) or len(rotated) != layers or not all(one in (0, 1) for one in rotated):
        raise fields.wrong("no_rope_layers", f"a list of {layers} zeros and ones is needed: 1 where a layer rotates")
    return [one == 1 for one in rotated]


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
    if head_dim % 2:
        raise ModelError(f"{fields.where}: head_dim is {head_dim}, rotary embeddings need an even number")
    return hidden, heads, kv_heads, head_dim


def _switch(fields: Fields, key: str, fixed: bool | None) -> bool:
    return fields.boolean(key) if fixed is None else fixed
