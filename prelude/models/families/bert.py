"""Encoders of the BERT kind: learned positions, LayerNorm behind the sums, an MLP without gate, biases everywhere.

RoBERTa and XLM-R count positions from ``pad_token_id + 1`` on, and pad tokens have row ``pad_token_id``; ELECTRA may
have embeddings narrower than its layers; DistilBERT has names of its own and no token types.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from prelude.models.families.base import (
    MAX_HEADS,
    MAX_LAYERS,
    MAX_VOCABULARY,
    MAX_WIDTH,
    Family,
    Head,
    SpecRequest,
    classes,
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
    MaskedHead,
    Mlp,
    ModelSpec,
    Norm,
    PositionEmbeddings,
    Projection,
)
from prelude.records import dataclass

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

# Keys, with the values that an encoder with absolute positions has.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "is_decoder": (None, False),
    "is_causal": (None, False),
    "position_embedding_type": (None, "absolute"),
    "sinusoidal_pos_embds": (None, False),
    "use_bidirectional_attention": (None, True),
}


@dataclass(frozen=True, slots=True)
class Names:
    """Names of weights: ``layer`` holds the number as ``{}``, the others are parts of a layer."""

    layer: str = "encoder.layer.{}"
    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    out: str = "attention.output.dense"
    attention_norm: str = "attention.output.LayerNorm"
    up: str = "intermediate.dense"
    down: str = "output.dense"
    mlp_norm: str = "output.LayerNorm"


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of the config."""

    hidden: str = "hidden_size"
    layers: str = "num_hidden_layers"
    heads: str = "num_attention_heads"
    inner: str = "intermediate_size"
    activation: str = "hidden_act"
    eps: str | float = "layer_norm_eps"  # a key, or the value of a family that has none


@dataclass(frozen=True, slots=True)
class Sizes:
    """The values that all layers of an encoder share. ``width``: of a head; all together are as wide as the model."""

    hidden: int
    layers: int
    heads: int
    width: int
    inner: int
    activation: Activation
    eps: float

    def norm(self, name: str) -> Norm:
        return Norm(name, "layer", self.hidden, self.eps, bias=True)


def read_sizes(fields: Fields, keys: Keys) -> Sizes:
    hidden = fields.integer(keys.hidden, 1, MAX_WIDTH)
    heads = fields.integer(keys.heads, 1, MAX_HEADS)
    return Sizes(
        hidden,
        fields.integer(keys.layers, 1, MAX_LAYERS),
        heads,
        head_width(fields, hidden, heads, keys.hidden, keys.heads),
        fields.integer(keys.inner, 1, MAX_WIDTH),
        one_of(fields, keys.activation, ACTIVATIONS),
        fields.number(keys.eps, 0.0, 0.1) if isinstance(keys.eps, str) else keys.eps,
    )


@dataclass(frozen=True, slots=True)
class MaskedNames:
    """Names of the masked-language head. ``activation`` None: that of the layers."""

    dense: str = "cls.predictions.transform.dense"
    norm: str = "cls.predictions.transform.LayerNorm"
    bias: str = "cls.predictions.bias"
    activation: HeadActivation | None = None
    pretraining: bool = True
    """Whether the class ``…ForPreTraining`` has the same head."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The differences between these families."""

    prefix: str
    dense: str
    """The first projection of the classification head."""
    dense_activation: HeadActivation
    out: str
    """The second projection of the classification head."""
    names: Names = Names()
    keys: Keys = Keys()
    after_padding: bool = False
    """Positions count from ``pad_token_id + 1``, and pad tokens are not counted."""
    narrow: bool = False
    """``embedding_size`` may differ from the width of the layers."""
    types: bool = True
    masked: MaskedNames = MaskedNames()


def encoder(model_type: str, begins: str, kind: Kind, defaults: Mapping[str, Any]) -> Family:
    """Return the family of transformers' classes whose names begin with ``begins``."""
    pretraining: dict[str, Head] = {f"{begins}ForPreTraining": "masked" if kind.masked.pretraining else "none"}
    architectures = classes(begins, encoder=True) | pretraining
    return Family(model_type, architectures, partial(_build, kind), {kind.keys.activation: "gelu", **defaults})


def _build(kind: Kind, fields: Fields, wanted: SpecRequest) -> ModelSpec:
    refuse_other_values(fields, _NEUTRAL)
    sizes = read_sizes(fields, kind.keys)
    embeddings, positions = _embeddings(kind, fields, sizes)
    return ModelSpec(
        prefix=kind.prefix,
        hidden=sizes.hidden,
        max_positions=positions,
        embeddings=embeddings,
        layers=tuple(layer(f"{kind.prefix}{kind.names.layer}", kind.names, sizes, at) for at in range(sizes.layers)),
        classifier=classifier(kind.out, kind.dense, kind.dense_activation, wanted.labels, sizes.hidden),
        masked=masked(kind.masked, fields, sizes, embeddings.width) if wanted.head == "masked" else None,
    )


def classifier(out: str, dense: str, activation: HeadActivation, labels: int, hidden: int) -> Classifier | None:
    """A classifier of the first token with a hidden projection; None without labels."""
    if not labels:
        return None
    first, second = (
        Projection((name,), (rows,), hidden, bias=True) for name, rows in ((dense, hidden), (out, labels))
    )
    return Classifier(second, "first", first, activation)


def masked(names: MaskedNames, fields: Fields, sizes: Sizes, width: int) -> MaskedHead | None:
    """``width``: of the embeddings. Return None if the vocabulary's weight is not that of the embeddings."""
    if not fields.boolean("tie_word_embeddings", True):
        return None
    return MaskedHead(
        Projection((names.dense,), (width,), sizes.hidden, bias=True),
        names.activation or sizes.activation,
        Norm(names.norm, "layer", width, sizes.eps, bias=True),
        names.bias,
    )


def layer(begins: str, names: Names, sizes: Sizes, index: int, **attention: Any) -> Layer:
    """``begins``: of names of weights, with the place of the layer's number. ``attention``: other fields of it."""
    at, hidden = begins.format(index), sizes.hidden

    def linear(rows: int, columns: int, *parts: str) -> Projection:
        return Projection(tuple(f"{at}.{part}" for part in parts), (rows,) * len(parts), columns, bias=True)

    mixer = Attention(
        sizes.heads,
        sizes.heads,
        sizes.width,
        linear(hidden, hidden, names.query, names.key, names.value),
        linear(hidden, hidden, names.out),
        rope=None,
        causal=False,
        **attention,
    )
    up, down = linear(sizes.inner, hidden, names.up), linear(hidden, sizes.inner, names.down)
    return Layer(
        mixer,
        Mlp(sizes.inner, up, down, sizes.activation, gated=False),
        sizes.norm(f"{at}.{names.attention_norm}"),
        sizes.norm(f"{at}.{names.mlp_norm}"),
        norm_first=False,
    )


def _embeddings(kind: Kind, fields: Fields, sizes: Sizes) -> tuple[Embeddings, int]:
    """Return also how many positions there are."""
    at, hidden = f"{kind.prefix}embeddings", sizes.hidden
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
        PositionEmbeddings(f"{at}.position_embeddings", rows, first, first - 1 if kind.after_padding else None),
        f"{at}.token_type_embeddings" if types else None,
        types,
        Norm(f"{at}.LayerNorm", "layer", width, sizes.eps, bias=True),
        Projection((f"{kind.prefix}embeddings_project",), (hidden,), width, bias=True) if width != hidden else None,
    )
    return embeddings, rows - first


BERT = Kind("bert.", "bert.pooler.dense", "tanh", "classifier")
ROBERTA = Kind(
    "roberta.",
    "classifier.dense",
    "tanh",
    "classifier.out_proj",
    after_padding=True,
    masked=MaskedNames("lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "gelu"),
)
ELECTRA = Kind(
    "electra.",
    "classifier.dense",
    "gelu",
    "classifier.out_proj",
    narrow=True,
    masked=MaskedNames(
        "generator_predictions.dense",
        "generator_predictions.LayerNorm",
        "generator_lm_head.bias",
        "gelu",
        pretraining=False,  # a discriminator: it says of each token whether it was replaced
    ),
)
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
    Keys("dim", "n_layers", "n_heads", "hidden_dim", "activation", 1e-12),
    types=False,
    masked=MaskedNames("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
)
