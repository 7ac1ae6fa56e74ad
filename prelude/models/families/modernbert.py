"""ModernBERT and mmBERT: LayerNorm before attention and MLP, rotary positions, a gated MLP, local and global layers.

Every ``global_attn_every_n_layers``-th layer sees the whole prompt, the others ``local_attention`` tokens around each
one, with another rotary base. Norms have ``norm_eps``; the ``layer_norm_eps`` that some files have is not read.
"""

from __future__ import annotations

from typing import Any

from prelude.errors import ModelError, UnsupportedModel, shown
from prelude.models.families.base import (
    FULL,
    MAX_LAYERS,
    MAX_VOCABULARY,
    SLIDING,
    Family,
    SpecRequest,
    classes,
    layer_kinds,
    one_of,
    refuse_other_values,
)
from prelude.models.families.bert import ACTIVATIONS, Keys, read_sizes
from prelude.models.fields import Fields
from prelude.models.rope import MAX_POSITIONS
from prelude.models.spec import (
    Attention,
    Classifier,
    Embeddings,
    HeadPooling,
    Layer,
    MaskedHead,
    Mlp,
    ModelSpec,
    Norm,
    Projection,
    Rope,
)

_PREFIX = "model."
_POOLINGS: dict[str, HeadPooling] = {"cls": "first", "mean": "mean"}
_OLD_THETA = {FULL: "global_rope_theta", SLIDING: "local_rope_theta"}


def build(fields: Fields, wanted: SpecRequest, prefix: str = _PREFIX) -> ModelSpec:
    """``prefix`` begins the names of the body's weights."""
    refuse_other_values(fields, {"is_causal": (None, False)})
    sizes = read_sizes(fields, Keys(activation="hidden_activation", eps="norm_eps"))
    hidden, width, inner = sizes.hidden, sizes.width, sizes.inner
    if width % 2:
        raise ModelError(f"{fields.where}: heads of {width} values, rotary embeddings need an even number")
    norm_bias, bias, mlp_bias = (fields.boolean(f"{part}_bias") for part in ("norm", "attention", "mlp"))
    window = fields.integer("local_attention", 1, MAX_POSITIONS) // 2

    def norm(name: str) -> Norm:
        return Norm(name, "layer", hidden, sizes.eps, norm_bias)

    def linear(name: str, rows: int, columns: int, biased: bool) -> Projection:
        return Projection((name,), (rows,), columns, biased)

    def layer(index: int, kind: str) -> Layer:
        at = f"{prefix}layers.{index}"
        mixer = Attention(
            sizes.heads,
            sizes.heads,
            width,
            linear(f"{at}.attn.Wqkv", 3 * hidden, hidden, bias),
            linear(f"{at}.attn.Wo", hidden, hidden, bias),
            Rope(_theta(fields, kind), width),
            causal=False,
            window=window if kind == SLIDING else None,
        )
        mlp = Mlp(
            inner,
            linear(f"{at}.mlp.Wi", 2 * inner, hidden, mlp_bias),
            linear(f"{at}.mlp.Wo", hidden, inner, mlp_bias),
            sizes.activation,
            gated=True,
        )
        return Layer(mixer, mlp, norm(f"{at}.attn_norm") if index else None, norm(f"{at}.mlp_norm"))

    vocab = fields.integer("vocab_size", 1, MAX_VOCABULARY)
    return ModelSpec(
        prefix=prefix,
        hidden=hidden,
        max_positions=fields.integer("max_position_embeddings", 1, MAX_POSITIONS),
        embeddings=Embeddings(
            f"{prefix}embeddings.tok_embeddings", vocab, hidden, norm=norm(f"{prefix}embeddings.norm")
        ),
        layers=tuple(layer(index, kind) for index, kind in enumerate(_kinds(fields, sizes.layers))),
        final_norm=norm(f"{prefix}final_norm"),
        classifier=_classifier(fields, wanted.labels, hidden, norm("head.norm")) if wanted.labels else None,
        masked=_masked(fields, hidden, norm("head.norm")) if wanted.head == "masked" else None,
    )


def _classifier(fields: Fields, labels: int, hidden: int, norm: Norm) -> Classifier:
    return Classifier(
        Projection(("classifier",), (labels,), hidden, bias=True),
        one_of(fields, "classifier_pooling", _POOLINGS),
        Projection(("head.dense",), (hidden,), hidden, fields.boolean("classifier_bias")),
        one_of(fields, "classifier_activation", ACTIVATIONS),
        norm,
    )


def _masked(fields: Fields, hidden: int, norm: Norm) -> MaskedHead | None:
    """Return None if it has other weights than those of the embeddings and a bias."""
    if not fields.boolean("tie_word_embeddings", True) or not fields.boolean("decoder_bias", True):
        return None
    return MaskedHead(
        Projection(("head.dense",), (hidden,), hidden, fields.boolean("classifier_bias")),
        one_of(fields, "classifier_activation", ACTIVATIONS),
        norm,
        "decoder.bias",
    )


def _kinds(fields: Fields, layers: int) -> list[str]:
    """Return the kind of each layer."""
    every = fields.integer("global_attn_every_n_layers", 1, MAX_LAYERS)
    return layer_kinds(fields, layers) or [SLIDING if index % every else FULL for index in range(layers)]


def _theta(fields: Fields, kind: str) -> float:
    """Return the rotary base of a kind of layer, in the spelling of transformers 5 or 4."""
    old = _OLD_THETA[kind]
    ropes = fields.get("rope_parameters", None)
    if ropes is None:
        if kind == SLIDING and fields.get(old) is None:
            return _theta(fields, FULL)
        return fields.number(old, 1.0, 1e15)
    if not isinstance(ropes, dict) or not isinstance(ropes.get(kind), dict):
        raise fields.wrong("rope_parameters", f"an object with an object for {kind} is needed")
    rope = Fields(ropes[kind], f"{fields.where}: rope_parameters of {kind}")
    form = rope.text("rope_type", "default")
    if form != "default":
        raise UnsupportedModel(f"{fields.where}: unsupported: rope_type {shown(form)}; supported: default")
    theta = rope.number("rope_theta", 1.0, 1e15)
    said: Any = fields.values.get(old)
    if said is not None and said != theta:
        raise ModelError(f"{fields.where}: {old} is {shown(said)}, and rope_parameters say {theta:g} for {kind}")
    return theta


MODERNBERT = Family(
    "modernbert",
    classes("ModernBert", encoder=True),
    build,
    {
        "hidden_activation": "gelu",
        "classifier_activation": "gelu",
        "norm_eps": 1e-5,
        "norm_bias": False,
        "attention_bias": False,
        "mlp_bias": False,
        "classifier_bias": False,
        "classifier_pooling": "cls",
        "local_attention": 128,
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160000.0,
        "local_rope_theta": 10000.0,
        "max_position_embeddings": 8192,
    },
)
