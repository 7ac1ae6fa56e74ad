"""DeBERTa-v2 and v3, mDeBERTa: layers of the BERT kind whose scores have a relative term. Absolute positions beside
it, and token types beside those, are options.

Checkpoints with a convolution, projections of distances of their own or token types without positions are refused by
name.
"""

from __future__ import annotations

from typing import Any

from prelude.errors import UnsupportedModel, shown
from prelude.models.families.base import (
    MAX_HEADS,
    MAX_LAYERS,
    MAX_VOCABULARY,
    MAX_WIDTH,
    Family,
    SpecRequest,
    head_width,
    one_of,
    refuse_other_values,
)
from prelude.models.families.bert import ACTIVATIONS, MAX_TYPES
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
    Relative,
)

_PREFIX = "deberta."
_MAX_BUCKETS = 1 << 16
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "is_decoder": (None, False),
    "is_causal": (None, False),
    "conv_kernel_size": (None, 0),
}
_POOLER_ACTIVATIONS: dict[str, HeadActivation] = {**ACTIVATIONS, "tanh": "tanh"}


def _build(fields: Fields, wanted: SpecRequest) -> ModelSpec:
    refuse_other_values(fields, _NEUTRAL)
    hidden = fields.integer("hidden_size", 1, MAX_WIDTH)
    heads = fields.integer("num_attention_heads", 1, MAX_HEADS)
    width = head_width(fields, hidden, heads)
    inner = fields.integer("intermediate_size", 1, MAX_WIDTH)
    eps = fields.number("layer_norm_eps", 0.0, 0.1)
    activation = one_of(fields, "hidden_act", ACTIVATIONS)
    positions = fields.integer("max_position_embeddings", 1, MAX_POSITIONS)
    for key in ("embedding_size", "pooler_hidden_size"):
        refuse_other_values(fields, {key: (None, hidden)})

    def norm(name: str) -> Norm:
        return Norm(f"{_PREFIX}{name}", "layer", hidden, eps, bias=True)

    relative = _relative(fields, positions, hidden, norm("encoder.LayerNorm"))

    def layer(index: int) -> Layer:
        at = f"encoder.layer.{index}"

        def linear(rows: int, columns: int, *parts: str) -> Projection:
            names = tuple(f"{_PREFIX}{at}.{part}" for part in parts)
            return Projection(names, (rows,) * len(parts), columns, bias=True)

        return Layer(
            Attention(
                heads,
                heads,
                width,
                linear(hidden, hidden, *(f"attention.self.{part}_proj" for part in ("query", "key", "value"))),
                linear(hidden, hidden, "attention.output.dense"),
                rope=None,
                causal=False,
                scale=(3 * width) ** -0.5,
                relative=relative,
            ),
            Mlp(
                inner,
                linear(inner, hidden, "intermediate.dense"),
                linear(hidden, inner, "output.dense"),
                activation,
                gated=False,
            ),
            norm(f"{at}.attention.output.LayerNorm"),
            norm(f"{at}.output.LayerNorm"),
            norm_first=False,
        )

    count = fields.integer("num_hidden_layers", 1, MAX_LAYERS)
    vocab = fields.integer("vocab_size", 1, MAX_VOCABULARY)
    return ModelSpec(
        prefix=_PREFIX,
        hidden=hidden,
        max_positions=positions,
        embeddings=_embeddings(fields, vocab, positions, hidden, norm("embeddings.LayerNorm")),
        layers=tuple(layer(index) for index in range(count)),
        classifier=_classifier(fields, wanted.labels, hidden) if wanted.labels else None,
        masked=_masked(fields, hidden, eps, activation) if wanted.head == "masked" else None,
    )


def _embeddings(fields: Fields, vocab: int, positions: int, hidden: int, norm: Norm) -> Embeddings:
    at, biased = f"{_PREFIX}embeddings", fields.boolean("position_biased_input")
    types = 0 if fields.get("type_vocab_size", None) is None else fields.integer("type_vocab_size", 0, MAX_TYPES)
    if types and not biased:
        raise UnsupportedModel(
            f"{fields.where}: unsupported: type_vocab_size ({types}) without position_biased_input"
        )
    return Embeddings(
        f"{at}.word_embeddings",
        vocab,
        hidden,
        PositionEmbeddings(f"{at}.position_embeddings", positions) if biased else None,
        f"{at}.token_type_embeddings" if types else None,
        types,
        norm,
    )


def _relative(fields: Fields, positions: int, hidden: int, norm: Norm) -> Relative:
    for key in ("relative_attention", "share_att_key"):
        if not fields.boolean(key):
            raise UnsupportedModel(f"{fields.where}: unsupported: {key} (False); supported: True")
    said = fields.get("pos_att_type")
    kinds = said.lower().split("|") if isinstance(said, str) else said
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        raise fields.wrong("pos_att_type", "a list of names is needed")
    if sorted({kind.strip() for kind in kinds}) != ["c2p", "p2c"]:
        raise UnsupportedModel(f"{fields.where}: unsupported: pos_att_type {shown(said)}; supported: c2p with p2c")
    normed = fields.text("norm_rel_ebd")
    if normed.strip().lower() not in ("none", "layer_norm"):
        raise UnsupportedModel(
            f"{fields.where}: unsupported: norm_rel_ebd {shown(normed)}; supported: layer_norm, none"
        )
    farthest = fields.integer("max_relative_positions", -1, MAX_POSITIONS)
    farthest = farthest if farthest > 0 else positions
    buckets = fields.integer("position_buckets", -1, _MAX_BUCKETS)
    if buckets > 0 and farthest - 1 <= buckets // 2:
        raise fields.wrong(
            "position_buckets", f"it must be below 2 * (max_relative_positions - 1) = {2 * farthest - 2}"
        )
    if buckets <= 0 and farthest > _MAX_BUCKETS:
        raise fields.wrong("max_relative_positions", f"without position_buckets the limit is {_MAX_BUCKETS:,}")
    return Relative(
        f"{_PREFIX}encoder.rel_embeddings",
        buckets if buckets > 0 else farthest,
        hidden,
        farthest if buckets > 0 else None,
        norm if "layer_norm" in normed.lower() else None,
    )


def _classifier(fields: Fields, labels: int, hidden: int) -> Classifier:
    return Classifier(
        Projection(("classifier",), (labels,), hidden, bias=True),
        "first",
        Projection(("pooler.dense",), (hidden,), hidden, bias=True),
        one_of(fields, "pooler_hidden_act", _POOLER_ACTIVATIONS),
    )


def _masked(fields: Fields, hidden: int, eps: float, activation: Activation) -> MaskedHead | None:
    """Return None if the vocabulary's weight is not the embeddings'. The newer head has other names, so that it is
    not read."""
    if not fields.boolean("tie_word_embeddings", True):
        return None
    at = "cls.predictions"
    return MaskedHead(
        Projection((f"{at}.transform.dense",), (hidden,), hidden, bias=True),
        activation,
        Norm(f"{at}.transform.LayerNorm", "layer", hidden, eps, bias=True),
        f"{at}.bias",
    )


DEBERTA = Family(
    "deberta-v2",
    {
        "DebertaV2Model": "none",
        "DebertaV2ForMaskedLM": "masked",
        "DebertaV2ForSequenceClassification": "classifier",
        "DebertaV2ForTokenClassification": "tokens",
    },
    _build,
    {
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-7,
        "pooler_hidden_act": "gelu",
        "position_biased_input": True,
        "relative_attention": False,
        "share_att_key": False,
        "pos_att_type": [],
        "max_relative_positions": -1,
        "position_buckets": -1,
        "norm_rel_ebd": "none",
        "max_position_embeddings": 512,
    },
)
