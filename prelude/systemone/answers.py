"""Answers as System One writes them. Fields that the protocol does not have begin with ``x_``."""

from __future__ import annotations

from collections.abc import Sequence

from prelude._native.core import answer_bodies, summed_stats
from prelude.results import Answers


def usage_of(parts: Sequence[Answers]) -> tuple[dict[str, int], int]:
    """The usage, and how many tokens were cut. ``input_tokens`` are the tokens of the state, once for each part, and
    of all questions and labels."""
    prompt, cached, cut = summed_stats(parts)
    return {"input_tokens": prompt, "output_tokens": 0, "x_cached_tokens": cached}, cut


__all__ = ["answer_bodies", "usage_of"]
