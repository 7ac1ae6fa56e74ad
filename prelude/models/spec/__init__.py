"""The network of a model as data: layers over a small set of operations, with the names of their weights.

``ModelConfig`` makes a ``ModelSpec`` from ``config.json``. The checkpoint and both executors read nothing else, so a
model family is a function from a config to one of these (see ``families``).

    embeddings ─▶ x ─▶ layers ─▶ final norm ─▶ LM head, classifier, or the rows themselves

    norm_first        x += mixer(norm(x));   x += mlp(norm(x));   some have another norm around mixer and MLP
    not norm_first    x = norm(x + mixer(x));   x = norm(x + mlp(x))

A weight is named as in the checkpoint of a model with its head, without ``.weight`` and ``.bias``.
"""

from __future__ import annotations

from prelude.models.spec.mixers import (
    Attention,
    GatedDelta,
    Mixer,
    Norm,
    NormKind,
    Projection,
    Recurrent,
    Relative,
    Rope,
    Shapes,
    ShortConv,
)
from prelude.models.spec.network import (
    LM_HEAD,
    Activation,
    ChoiceHead,
    ChoiceLayer,
    Classifier,
    Embeddings,
    HeadActivation,
    HeadPooling,
    Layer,
    LayerInput,
    LmHead,
    MaskedHead,
    Mlp,
    ModelSpec,
    OptionHead,
    PointerHead,
    PositionEmbeddings,
)

__all__ = [
    "LM_HEAD",
    "Activation",
    "Attention",
    "ChoiceHead",
    "ChoiceLayer",
    "Classifier",
    "Embeddings",
    "GatedDelta",
    "HeadActivation",
    "HeadPooling",
    "Layer",
    "LayerInput",
    "LmHead",
    "MaskedHead",
    "Mixer",
    "Mlp",
    "ModelSpec",
    "Norm",
    "NormKind",
    "OptionHead",
    "PointerHead",
    "PositionEmbeddings",
    "Projection",
    "Recurrent",
    "Relative",
    "Rope",
    "Shapes",
    "ShortConv",
]
