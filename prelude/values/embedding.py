"""The settings of a model directory for texts that are pooled or read by a head, as admission needs them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from prelude.records import dataclass, field
from prelude.values.arrays import F32

POOLINGS = ("last", "cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean")
"""sentence-transformers' names, but for its "lasttoken". "mean_sqrt_len_tokens" divides the sum by the root of the
number of tokens; "weightedmean" weighs a token by its place in the prompt, counted from 1."""

SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """``activation(weight @ vector + bias)``, float32: sentence-transformers' ``Dense`` on a pooled vector."""

    weight: F32  # [outputs, inputs]
    bias: F32 | None
    activation: str  # "identity", "tanh" or "relu"

    def __call__(self, vector: F32) -> F32:
        made = self.weight @ vector
        if self.bias is not None:
            made += self.bias
        if self.activation == "tanh":
            np.tanh(made, out=made)
        elif self.activation == "relu":
            np.maximum(made, 0.0, out=made)
        return made


@dataclass(frozen=True, slots=True)
class EmbeddingSettings:
    """Names and meanings are those of sentence-transformers."""

    pooling: str | None = None
    """A name of ``POOLINGS``, or several joined by "+"; None if the directory does not say."""
    normalize: bool = False
    """Whether a Normalize module stands behind the others."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Text that is put before the caller's, by name."""
    default_prompt_name: str | None = None
    include_prompt: bool = True
    """Whether the mean is over the tokens of such a prompt too."""
    max_length: int | None = None
    """Tokens of a text or a pair, prompt and special tokens among them; None for the model's own limit."""
    truncation: Literal["head", "tail"] = "tail"
    """The side that the directory's tokenizer cuts."""
    token_types: bool = True
    """Whether the second text of a pair has the token type that the tokenizer gives it."""
    truncate_dim: int | None = None
    """Values of a vector that are left, behind all modules; None for all."""
    similarity: str = "cosine"
    """A name of ``SIMILARITIES``."""
    activation: str | None = None
    """Activation of a cross-encoder's scores, if its settings name one: "none", "sigmoid", "softmax", or a
    name in the file that is none of them."""
    dense: tuple[Dense, ...] = ()
    """Modules, one after the other, behind pooling and before the vector is normalised."""
    unsupported: str | None = None
    """Why the vector that the directory describes cannot be computed; None if it can."""
