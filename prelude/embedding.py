"""What a model directory says about its embeddings, as admission needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EmbeddingSettings:
    """Names and meanings are those of sentence-transformers."""

    pooling: str | None = None
    """"last", "cls" or "mean"; None where the directory does not say."""
    normalize: bool = True
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Text that is put before the caller's, by name."""
    default_prompt_name: str | None = None
    include_prompt: bool = True
    """Whether the mean is over the tokens of such a prompt too."""
    max_length: int | None = None
    """Tokens of one text, prompt and special tokens among them; None for the model's own limit."""
    lower_case: bool = False
    unsupported: str | None = None
    """Why the vector that the directory describes cannot be computed; None where it can."""
