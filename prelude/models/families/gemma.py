"""Gemma 1 to 3, text: norms whose weights count from one, scaled embeddings, a gated MLP with GELU.

Gemma 2 and 3 norm the outputs of attention and MLP, and alternate layers with a window with layers without one. Gemma
2 caps scores and logits; Gemma 3 norms the heads of queries and keys, and its layers with a window have a rotary base
of their own. EmbeddingGemma is Gemma 3 with ``use_bidirectional_attention``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from prelude.errors import UnsupportedModel
from prelude.models.families.base import (
    FULL,
    SLIDING,
    Family,
    Head,
    SpecRequest,
    classes,
    layer_kinds,
    one_of,
    refuse_other_values,
)
from prelude.models.families.decoder import attention, causal_spec, gated_mlp, read_sizes, rms_norms, shorter
from prelude.models.fields import Fields
from prelude.models.rope import MAX_POSITIONS, Ropes, parse_rope
from prelude.models.spec import Activation, Layer, ModelSpec
from prelude.records import dataclass

_NEW: dict[str, Activation] = {"gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh"}
_OLD = {**_NEW, "gelu": _NEW["gelu_pytorch_tanh"]}
"""The first files say ``gelu`` and mean the form with tanh, which transformers then takes."""
_LOCAL_BASE = "rope_local_base_freq"


@dataclass(frozen=True, slots=True)
class Kind:
    """The differences between generations."""

    activation_key: str = "hidden_activation"
    activations: Mapping[str, Activation] | None = None
    norms_after: bool = True
    qk_norm: bool = False
    scalar: bool = True
    """Scores are scaled by ``query_pre_attn_scalar``, else by the width of a head."""
    every: int | None = None
    """If the config does not say it, every so many-th layer sees all; None: all of them do."""
    attention_cap: bool = False
    logit_cap: bool = False
    two_ropes: bool = False
    may_see_all: bool = False
    """``use_bidirectional_attention`` may be true."""


def _build(kind: Kind, fields: Fields, wanted: SpecRequest) -> ModelSpec:
    sizes = read_sizes(fields)
    causal = not _sees_all(kind, fields, wanted)
    positions = fields.integer("max_position_embeddings", 1, MAX_POSITIONS)
    ropes = {name: _rope(kind, fields, name, sizes.head_dim, positions) for name in (FULL, SLIDING)}
    positions = min(rope.positions for rope in ropes.values())
    window = None if kind.every is None else _window(fields, positions, causal)
    rms = rms_norms(sizes.hidden, fields.number("rms_norm_eps", 0.0, 0.1), offset=1.0)
    bias = fields.boolean("attention_bias")
    scale = fields.number("query_pre_attn_scalar", 0.0, 1e6) ** -0.5 if kind.scalar else None
    attention_cap = _cap(fields, "attn_logit_softcapping") if kind.attention_cap else 0.0
    activation = one_of(fields, kind.activation_key, kind.activations or _NEW)
    tied = fields.boolean("tie_word_embeddings")

    def layer(index: int, name: str) -> Layer:
        at = f"model.layers.{index}"
        mixer = attention(
            f"{at}.self_attn",
            sizes,
            ropes[name].rope,
            bias,
            rms if kind.qk_norm else None,
            causal=causal,
            window=window if name == SLIDING else None,
            scale=scale,
            cap=attention_cap,
        )
        mlp = gated_mlp(f"{at}.mlp", sizes.hidden, sizes.inner, activation)
        before, after = rms(f"{at}.input_layernorm"), rms(f"{at}.post_attention_layernorm")
        if not kind.norms_after:
            return Layer(mixer, mlp, before, after)
        pre, post = (rms(f"{at}.{side}_feedforward_layernorm") for side in ("pre", "post"))
        return Layer(mixer, mlp, before, pre, mixer_after=after, mlp_after=post)

    return causal_spec(
        sizes,
        wanted,
        tied,
        (layer(index, name) for index, name in enumerate(_kinds(kind, fields, sizes.layers))),
        rms("model.norm"),
        positions,
        scale=sizes.hidden**0.5,
        logit_cap=_cap(fields, "final_logit_softcapping") if kind.logit_cap else 0.0,
    )


def _sees_all(kind: Kind, fields: Fields, wanted: SpecRequest) -> bool:
    if not kind.may_see_all:
        refuse_other_values(fields, {"use_bidirectional_attention": (None, False)})
    key = "use_bidirectional_attention"
    sees_all = bool(fields.get(key, False)) and fields.boolean(key)
    if sees_all and wanted.head == "lm":
        raise UnsupportedModel(f"{fields.where}: unsupported: use_bidirectional_attention with a language-model head")
    return sees_all


def _kinds(kind: Kind, fields: Fields, layers: int) -> list[str]:
    if kind.every is None:
        return [FULL] * layers
    kinds = layer_kinds(fields, layers)
    if kinds is not None:
        return kinds
    every = fields.integer("sliding_window_pattern", 1, 1 << 20, kind.every)
    return [SLIDING if (index + 1) % every else FULL for index in range(layers)]


def _window(fields: Fields, positions: int, causal: bool) -> int | None:
    """Return how far a layer with a window reaches; None if that is as far as any context."""
    if fields.get("sliding_window") is None:
        return None
    window = fields.integer("sliding_window", int(causal), MAX_POSITIONS)
    # The window of a bidirectional model counts both sides.
    return shorter(window if causal else window // 2 + 1, positions)


def _rope(kind: Kind, fields: Fields, name: str, head_dim: int, positions: int) -> Ropes:
    """Return the rotation of layers of a kind, in the spelling of transformers 5 or 4."""
    if not kind.two_ropes:
        return parse_rope(fields, head_dim, positions)
    default = {"rope_theta": fields.get("rope_theta") if name == FULL else fields.get(_LOCAL_BASE)}
    said = fields.get("rope_parameters", None)
    values = {"rope_scaling": fields.get("rope_scaling", None)} if name == FULL else {}
    if said is not None:
        if not isinstance(said, dict) or not isinstance(said.get(name, {}), dict):
            raise fields.wrong("rope_parameters", f"an object with an object for {name} is needed")
        values = {"rope_parameters": said.get(name, {})}
    return parse_rope(Fields(values, f"{fields.where}: {name}", default), head_dim, positions)


def _cap(fields: Fields, key: str) -> float:
    return 0.0 if fields.get(key) is None else fields.number(key, 0.0, 1e6)


def _family(model_type: str, architectures: dict[str, Head], kind: Kind, defaults: Mapping[str, Any]) -> Family:
    shared = {"attention_bias": False, "tie_word_embeddings": True, "rope_theta": 10000.0}
    shared |= {"bos_token_id": 2, "eos_token_id": 1}
    return Family(model_type, architectures, partial(_build, kind), {**shared, **defaults})


GEMMA = _family(
    "gemma",
    classes("Gemma"),
    Kind("hidden_act", _OLD, norms_after=False, scalar=False),
    {"hidden_act": "gelu_pytorch_tanh"},
)
GEMMA2 = _family(
    "gemma2",
    classes("Gemma2"),
    Kind(every=2, attention_cap=True, logit_cap=True),
    {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
)
GEMMA3 = _family(
    "gemma3_text",
    {"Gemma3ForCausalLM": "lm", "Gemma3TextModel": "none", "Gemma3TextForSequenceClassification": "classifier"},
    Kind(qk_norm=True, every=6, logit_cap=True, two_ropes=True, may_see_all=True),
    {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "final_logit_softcapping": None,
        "rope_theta": 1000000.0,
        _LOCAL_BASE: 10000.0,
    },
)
