"""Decoders of the Llama kind: RMSNorm before attention and MLP, rotary positions, a gated MLP with SiLU.

A family of this kind is ``decoder(...)`` with its switches.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from prelude.errors import ModelError, UnsupportedModel, shown
from prelude.models.families.base import (
    MAX_HEADS,
    MAX_LAYERS,
    MAX_VOCABULARY,
    MAX_WIDTH,
    Family,
    SpecRequest,
    head_width,
    is_one_of,
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
FULL, SLIDING = "full_attention", "sliding_attention"

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
    return Family(
        model_type,
        {
            f"{begins}ForCausalLM": "lm",
            f"{begins}Model": "none",
            f"{begins}ForSequenceClassification": "classifier",
            f"{begins}ForTokenClassification": "tokens",
        },
        partial(_build, Switches(**switches)),
        {"hidden_act": "silu", "tie_word_embeddings": False, **defaults},
    )


def _build(switches: Switches, fields: Fields, wanted: SpecRequest) -> ModelSpec:
    refuse_other_values(fields, _CAUSAL)
    _say_ignored(fields, switches, wanted.model_type)
    sizes = read_sizes(fields)
    positions = fields.integer("max_position_embeddings", 1, MAX_POSITIONS)
    ropes = parse_rope(fields, sizes.head_dim, positions, switches.partial, switches.longrope)
    windows = _windows(fields, switches, sizes.layers)
    rotated = _rotated_layers(fields, sizes.layers) if switches.no_rope_layers else [True] * sizes.layers
    parts = _Parts(
        switches,
        sizes,
        bias=_switch(fields, "attention_bias", switches.attention_bias),
        mlp_bias=_switch(fields, "mlp_bias", switches.mlp_bias),
        eps=fields.number("rms_norm_eps", 0.0, 0.1),
        activation=one_of(fields, "hidden_act", ACTIVATIONS),
    )
    tied = fields.boolean("tie_word_embeddings")
    classifier = Classifier(Projection(("score",), (wanted.labels,), sizes.hidden)) if wanted.labels else None

    def spec(ropes: Ropes) -> ModelSpec:
        rope = Rope(ropes.theta, ropes.width, ropes.scaling)
        layers = (
            parts.layer(f"model.layers.{index}", rope if rotates else None, shorter(window, ropes.positions))
            for index, (window, rotates) in enumerate(zip(windows, rotated))
        )
        return ModelSpec(
            prefix="model.",
            hidden=sizes.hidden,
            max_positions=ropes.positions,
            embeddings=Embeddings("model.embed_tokens", sizes.vocab, sizes.hidden),
            layers=tuple(layers),
            final_norm=parts.rms("model.norm"),
            lm_head=("tied" if tied else "own") if wanted.head == "lm" else None,
            classifier=classifier,
            longer=None if ropes.longer is None else spec(ropes.longer),
        )

    return spec(ropes)


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class _Parts:
    """The values that all layers of a model share."""

    switches: Switches
    sizes: Sizes
    bias: bool
    mlp_bias: bool
    eps: float
    activation: Activation

    def rms(self, name: str, values: int = 0) -> Norm:
        return Norm(name, "rms", values or self.sizes.hidden, self.eps)

    def layer(self, at: str, rope: Rope | None, window: int | None) -> Layer:
        return Layer(
            self._attention(f"{at}.self_attn", rope, window),
            self._mlp(f"{at}.mlp"),
            self.rms(f"{at}.input_layernorm"),
            self.rms(f"{at}.post_attention_layernorm"),
        )

    def _attention(self, at: str, rope: Rope | None, window: int | None) -> Attention:
        sizes, switches = self.sizes, self.switches
        queries, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        out_bias = self.bias if switches.output_bias is None else switches.output_bias
        return Attention(
            sizes.heads,
            sizes.kv_heads,
            sizes.head_dim,
            self._stacked(at, ("q_proj", "k_proj", "v_proj"), "qkv_proj", (queries, keys, keys), self.bias),
            Projection((f"{at}.o_proj",), (sizes.hidden,), queries, out_bias),
            rope,
            window=window,
            q_norm=self.rms(f"{at}.q_norm", sizes.head_dim) if switches.qk_norm else None,
            k_norm=self.rms(f"{at}.k_norm", sizes.head_dim) if switches.qk_norm else None,
        )

    def _mlp(self, at: str) -> Mlp:
        inner, hidden = self.sizes.inner, self.sizes.hidden
        return Mlp(
            inner,
            self._stacked(at, ("gate_proj", "up_proj"), "gate_up_proj", (inner, inner), self.mlp_bias),
            Projection((f"{at}.down_proj",), (hidden,), inner, self.mlp_bias),
            self.activation,
            gated=True,
        )

    def _stacked(self, at: str, parts: tuple[str, ...], fused: str, rows: tuple[int, ...], bias: bool) -> Projection:
        """One weight in families that store it so, else one for each part."""
        if self.switches.fused:
            return Projection((f"{at}.{fused}",), (sum(rows),), self.sizes.hidden, bias)
        return Projection(tuple(f"{at}.{part}" for part in parts), rows, self.sizes.hidden, bias)


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


def layer_kinds(fields: Fields, layers: int, known: tuple[str, ...] = (FULL, SLIDING)) -> list[str] | None:
    """``layer_types``, each of them one of ``known``; None if the config has none."""
    kinds = fields.get("layer_types", None)
    if kinds is None:
        return None
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise fields.wrong("layer_types", f"a list of {layers} names, one a layer, is needed")
    for kind in kinds:
        if kind not in known:
            raise UnsupportedModel(f"{fields.where}: unsupported: layer_types with {shown(kind)}")
    return kinds


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
    if head_dim % 2 or not head_dim:
        raise ModelError(f"{fields.where}: head_dim is {head_dim}, rotary embeddings need an even number")
    return hidden, heads, kv_heads, head_dim


def _switch(fields: Fields, key: str, fixed: bool | None) -> bool:
    return fields.boolean(key) if fixed is None else fixed
