"""Encoders of the BERT kind: learned positions, LayerNorm behind the sums, an MLP without gate, biases everywhere.

RoBERTa and XLM-R count positions from ``pad_token_id + 1`` on; ELECTRA may have embeddings narrower than its layers;
DistilBERT has names of its own and no token types.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from prelude.models.families.base import (
    MAX_HEADS,
    MAX_LAYERS,
    MAX_VOCABULARY,
    MAX_WIDTH,
    Asked,
    Family,
    Head,
    head_width,
    one_of,
    refuse_other_values,
)
from prelude.models.fields import Fields
from prelude.models.rope import MAX_POSITIONS
from prelude.models.spec import (
    Activation,
    Attention,
    Classifier,
    Embeddings,
    HeadActivation,
    Layer,
    Mlp,
    ModelSpec,
    Norm,
    PositionEmbeddings,
    Projection,
)

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
MAX_TYPES = 1 << 10

# Values with which a checkpoint of these classes is something else than an encoder with absolute positions.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "is_decoder": (None, False),
    "is_causal": (None, False),
    "position_embedding_type": (None, "absolute"),
    "sinusoidal_pos_embds": (None, False),
    "use_bidirectional_attention": (None, True),
}


@dataclass(frozen=True)
class Names:
    """Of weights: ``layer`` holds the index as ``{}``, the others are parts of a layer."""

    layer: str = "encoder.layer.{}"
    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    out: str = "attention.output.dense"
    attention_norm: str = "attention.output.LayerNorm"
    up: str = "intermediate.dense"
    down: str = "output.dense"
    mlp_norm: str = "output.LayerNorm"


@dataclass(frozen=True)
class Keys:
    """Of the config."""

    hidden: str = "hidden_size"
    layers: str = "num_hidden_layers"
    heads: str = "num_attention_heads"
    inner: str = "intermediate_size"
    activation: str = "hidden_act"


@dataclass(frozen=True)
class Kind:
    """What makes one of these families differ from another."""

    prefix: str
    dense: str
    """The first projection of the classification head,"""
    dense_activation: HeadActivation
    out: str
    """and the second one."""
    names: Names = Names()
    keys: Keys = Keys()
    after_padding: bool = False
    """Positions count from ``pad_token_id + 1``."""
    narrow: bool = False
    """``embedding_size`` may differ from the width of the layers."""
    types: bool = True


def encoder(model_type: str, begins: str, kind: Kind, defaults: Mapping[str, Any]) -> Family:
    """The family of transformers' classes whose names begin with ``begins``. A masked-language head is not loaded."""
    architectures: dict[str, Head] = {
        f"{begins}Model": "none",
        f"{begins}ForMaskedLM": "none",
        f"{begins}ForPreTraining": "none",
        f"{begins}ForSequenceClassification": "classifier",
    }
    return Family(model_type, architectures, partial(_build, kind), {kind.keys.activation: "gelu", **defaults})


def _build(kind: Kind, fields: Fields, asked: Asked) -> ModelSpec:
    refuse_other_values(fields, _NEUTRAL)
    keys = kind.keys
    hidden = fields.integer(keys.hidden, 1, MAX_WIDTH)
    heads = fields.integer(keys.heads, 1, MAX_HEADS)
    width = head_width(fields, hidden, heads, keys.hidden, keys.heads)
    count = fields.integer(keys.layers, 1, MAX_LAYERS)
    inner = fields.integer(keys.inner, 1, MAX_WIDTH)
    eps = fields.number("layer_norm_eps", 0.0, 0.1)
    activation = one_of(fields, keys.activation, ACTIVATIONS)
    embeddings, positions = _embeddings(kind, fields, hidden, eps)
    classifier = None
    if asked.labels:
        classifier = Classifier(
            Projection((kind.out,), (asked.labels,), hidden, bias=True),
            "first",
            Projection((kind.dense,), (hidden,), hidden, bias=True),
            kind.dense_activation,
        )
    return ModelSpec(
        prefix=kind.prefix,
        hidden=hidden,
        max_positions=positions,
        embeddings=embeddings,
        layers=tuple(_layer(kind, index, hidden, heads, width, inner, eps, activation) for index in range(count)),
        classifier=classifier,
    )


def _layer(
    kind: Kind, index: int, hidden: int, heads: int, width: int, inner: int, eps: float, activation: Activation
) -> Layer:
    names, at = kind.names, kind.prefix + kind.names.layer.format(index)

    def linear(rows: int, columns: int, *parts: str) -> Projection:
        return Projection(tuple(f"{at}.{part}" for part in parts), (rows,) * len(parts), columns, bias=True)

    return Layer(
        Attention(
            heads,
            heads,
            width,
            linear(hidden, hidden, names.query, names.key, names.value),
            linear(hidden, hidden, names.out),
            rope=None,
            causal=False,
        ),
        Mlp(inner, linear(inner, hidden, names.up), linear(hidden, inner, names.down), activation, gated=False),
        Norm(f"{at}.{names.attention_norm}", "layer", hidden, eps, bias=True),
        Norm(f"{at}.{names.mlp_norm}", "layer", hidden, eps, bias=True),
        norm_first=False,
    )


def _embeddings(kind: Kind, fields: Fields, hidden: int, eps: float) -> tuple[Embeddings, int]:
    """And how many positions there are."""
    at = f"{kind.prefix}embeddings"
    rows = fields.integer("max_position_embeddings", 1, MAX_POSITIONS)
    first = 0
    if kind.after_padding:
        first = fields.integer("pad_token_id", 0, rows - 2) + 1 if rows > 1 else 1
        if first >= rows:
            raise fields.wrong("max_position_embeddings", f"positions begin at pad_token_id + 1 = {first}")
    width = fields.integer("embedding_size", 1, MAX_WIDTH) if kind.narrow else hidden
    types = fields.integer("type_vocab_size", 0, MAX_TYPES) if kind.types else 0
    embeddings = Embeddings(
        f"{at}.word_embeddings",
        fields.integer("vocab_size", 1, MAX_VOCABULARY),
        width,
        PositionEmbeddings(f"{at}.position_embeddings", rows, first),
        f"{at}.token_type_embeddings" if types else None,
        types,
        Norm(f"{at}.LayerNorm", "layer", width, eps, bias=True),
        Projection((f"{kind.prefix}embeddings_project",), (hidden,), width, bias=True) if width != hidden else None,
    )
    return embeddings, rows - first


BERT = Kind("bert.", "bert.pooler.dense", "tanh", "classifier")
ROBERTA = Kind("roberta.", "classifier.dense", "tanh", "classifier.out_proj", after_padding=True)
ELECTRA = Kind("electra.", "classifier.dense", "gelu", "classifier.out_proj", narrow=True)
DISTILBERT = Kind(
    "distilbert.",
    "pre_classifier",
    "relu",
    "classifier",
    Names(
        "transformer.layer.{}",
        "attention.q_lin",
        "attention.k_lin",
        "attention.v_lin",
        "attention.out_lin",
        "sa_layer_norm",
        "ffn.lin1",
        "ffn.lin2",
        "output_layer_norm",
    ),
    Keys("dim", "n_layers", "n_heads", "hidden_dim", "activation"),
    types=False,
)
