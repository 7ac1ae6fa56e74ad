"""The heads of a model beside its LM head."""

from __future__ import annotations

from typing import Literal, TypeAlias

from prelude.models.spec.basics import Norm, Projection, Shapes
from prelude.records import dataclass

HeadActivation: TypeAlias = str  # of a native kernel, "tanh", or of ACTIVATIONS in ops.py
HeadPooling = Literal["first", "last", "mean", "markers", "tokens"]


@dataclass(frozen=True, slots=True)
class Classifier:
    """``out(norm(activation(dense row)))``, or ``out row`` if there is no ``dense``; with ``norm_first`` the norm
    stands in front of ``dense``. The row is the hidden state of the first or last token, or the mean of all; with
    ``markers`` there is one row for each option of a question, with ``tokens`` one for each token that is asked
    for."""

    out: Projection
    pooling: HeadPooling = "last"
    dense: Projection | None = None
    activation: HeadActivation | None = None
    norm: Norm | None = None
    norm_first: bool = False

    def tensors(self) -> Shapes:
        for part in (self.dense, self.norm, self.out):
            if part is not None:
                yield from part.tensors()


@dataclass(frozen=True, slots=True)
class PointerHead:
    """The logit of an option is ``key(row of the option) · query(row of the answer)``, over the root of the width."""

    query: Projection
    key: Projection

    def tensors(self) -> Shapes:
        yield from self.query.tensors()
        yield from self.key.tensors()


@dataclass(frozen=True, slots=True)
class ChoiceLayer:
    """``x += out(attention(norm x)); x += down(gelu(up(mlp_norm x)))``, with one head of attention over all rows."""

    norm: Norm
    query: Projection
    key: Projection
    value: Projection
    out: Projection
    mlp_norm: Norm
    up: Projection
    down: Projection

    def tensors(self) -> Shapes:
        for part in (self.norm, self.query, self.key, self.value, self.out, self.mlp_norm, self.up, self.down):
            yield from part.tensors()


@dataclass(frozen=True, slots=True)
class ChoiceHead:
    """Layers over the rows of one question: the row of ``types`` [num_types, hidden] of its kind, the options' rows
    and the answer's row. The logit of an option is ``choice(its row) · answer(last row)``, over the root of the
    width."""

    types: str
    num_types: int
    norm: Norm
    layers: tuple[ChoiceLayer, ...]
    final_norm: Norm
    answer: Projection
    choice: Projection

    def tensors(self) -> Shapes:
        yield f"{self.types}.weight", (self.num_types, self.norm.width)
        yield from self.norm.tensors()
        for layer in self.layers:
            yield from layer.tensors()
        for part in (self.final_norm, self.answer, self.choice):
            yield from part.tensors()


@dataclass(frozen=True, slots=True)
class MaskedHead:
    """Logits over the vocabulary at a mask: the embeddings by ``norm(activation(dense row))``, plus ``bias``
    [vocab]. A checkpoint without its weights has no masked-language head."""

    dense: Projection
    activation: HeadActivation
    norm: Norm
    bias: str

    def tensors(self, vocab: int) -> Shapes:
        yield from self.dense.tensors()
        yield from self.norm.tensors()
        yield self.bias, (vocab,)


OptionHead: TypeAlias = PointerHead | ChoiceHead
"""Reads the rows of a question's options and of its answer together, and gives each option a logit."""
