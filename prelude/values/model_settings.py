"""The settings of a model directory that admission needs: for texts that are pooled or read by a head, and for a head
that reads the options of a question."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias

from prelude.records import dataclass, field

if TYPE_CHECKING:
    from prelude.values.arrays import F32

POOLINGS = ("last", "cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean")
"""sentence-transformers' names, but for its "lasttoken". "mean_sqrt_len_tokens" divides the sum by the root of the
number of tokens; "weightedmean" weighs a token by its place in the prompt, counted from 1."""

SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")


OF_VECTORS = {"query": "", "document": ""}
"""Prompts of every model of vectors, as in sentence-transformers."""


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """``activation(weight @ vector + bias)``, float32: sentence-transformers' ``Dense`` on a pooled vector."""

    weight: F32  # [outputs, inputs]
    bias: F32 | None
    activation: str  # "identity", "tanh" or "relu"


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


KINDS = ("choice", "score", "noul")
"""The kinds by the number of a question's type in the models that have one."""
COLDEST, HOTTEST = 0.5, 5.0
Layout: TypeAlias = Literal["json", "indented", "lines"]


@dataclass(frozen=True, slots=True)
class OptionSettings:
    """A head that gives a logit to each option of a question: it reads the hidden state of a token in front of or
    behind the option's text. ``form`` names the text around it, which the model was trained on
    (``prelude/admission/forms``). ``max_length``: tokens of a prompt; ``head_length``: of those, the most for
    question and options."""

    form: str
    max_length: int
    tokens: Mapping[str, int] = field(default_factory=dict)
    """Control tokens by their use in the form."""
    head_length: int = 0
    option_length: int = 0
    state_length: int = 0
    mask_text: str = ""
    """A token that becomes a space in a caller's text."""
    static: bool = False
    """Whether a token has the same vector in any text."""
    layout: Layout = "json"
    """The form in which objects and arrays are written."""
    temperatures: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """The temperature by kind."""
    by_options: Mapping[str, float] = field(default_factory=dict)
    """The temperature by kind and number of options, as ``choice:3-5``: instead of the one of the kind."""

    def temperature(self, kind: str, options: int) -> float:
        """Return the divisor of a question's logits, within 0.5 and 5 as in Laya's own program."""
        found = self.by_options.get(f"{kind}:{_bucket(options)}", self.temperatures[KINDS.index(kind)])
        return min(max(found, COLDEST), HOTTEST)


def _bucket(options: int) -> str:
    for most, name in ((2, "2"), (5, "3-5"), (10, "6-10")):
        if options <= most:
            return name
    return "11+"
