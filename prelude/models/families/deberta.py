"""DeBERTa-v2 and v3, mDeBERTa: layers of the BERT kind whose scores have a relative term. Absolute positions beside
it, and token types beside those, are options.

Checkpoints with a convolution, projections of distances of their own or token types without positions are refused by
name.
"""

from __future__ import annotations

from typing import Any

from prelude.errors import UnsupportedModel, shown
from prelude.models.families.base import MAX_VOCABULARY, Family, SpecRequest, classes, one_of, refuse_other_values
from prelude.models.families.bert import (
    ACTIVATIONS,
    MAX_TYPES,
    Keys,
    MaskedNames,
    Names,
    Sizes,
    classifier,
    layer,
    masked,
    read_sizes,
)
from prelude.models.fields import Fields
from prelude.models.rope import MAX_POSITIONS
from prelude.models.spec import Embeddings, HeadActivation, ModelSpec, PositionEmbeddings, Relative

_PREFIX = "deberta."
_MAX_BUCKETS = 1 << 16
_NAMES = Names(**{part: f"attention.self.{part}_proj" for part in ("query", "key", "value")})
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "is_decoder": (None, False),
    "is_causal": (None, False),
    "conv_kernel_size": (None, 0),
}
_POOLER_ACTIVATIONS: dict[str, HeadActivation] = {**ACTIVATIONS, "tanh": "tanh"}


def _build(fields: Fields, wanted: SpecRequest) -> ModelSpec:
    refuse_other_values(fields, _NEUTRAL)
    sizes = read_sizes(fields, Keys())
    positions = fields.integer("max_position_embeddings", 1, MAX_POSITIONS)
    for key in ("embedding_size", "pooler_hidden_size"):
        refuse_other_values(fields, {key: (None, sizes.hidden)})
    extra = {"scale": (3 * sizes.width) ** -0.5, "relative": _relative(fields, positions, sizes)}
    names = f"{_PREFIX}{_NAMES.layer}"
    activation = one_of(fields, "pooler_hidden_act", _POOLER_ACTIVATIONS) if wanted.labels else None
    return ModelSpec(
        prefix=_PREFIX,
        hidden=sizes.hidden,
        max_positions=positions,
        embeddings=_embeddings(fields, positions, sizes),
        layers=tuple(layer(names, _NAMES, sizes, index, **extra) for index in range(sizes.layers)),
        classifier=classifier("classifier", "pooler.dense", activation or "", wanted.labels, sizes.hidden),
        # The newer masked-language head has other names, so that it is not read.
        masked=masked(MaskedNames(), fields, sizes, sizes.hidden) if wanted.head == "masked" else None,
    )


def _embeddings(fields: Fields, positions: int, sizes: Sizes) -> Embeddings:
    at, biased = f"{_PREFIX}embeddings", fields.boolean("position_biased_input")
    types = 0 if fields.get("type_vocab_size", None) is None else fields.integer("type_vocab_size", 0, MAX_TYPES)
    if types and not biased:
        raise UnsupportedModel(
            f"{fields.where}: unsupported: type_vocab_size ({types}) without position_biased_input"
        )
    return Embeddings(
        f"{at}.word_embeddings",
        fields.integer("vocab_size", 1, MAX_VOCABULARY),
        sizes.hidden,
        PositionEmbeddings(f"{at}.position_embeddings", positions) if biased else None,
        f"{at}.token_type_embeddings" if types else None,
        types,
        sizes.norm(f"{at}.LayerNorm"),
    )


def _relative(fields: Fields, positions: int, sizes: Sizes) -> Relative:
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
        sizes.hidden,
        farthest if buckets > 0 else None,
        sizes.norm(f"{_PREFIX}encoder.LayerNorm") if "layer_norm" in normed.lower() else None,
    )


DEBERTA = Family(
    "deberta-v2",
    classes("DebertaV2", encoder=True),
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
