"""Answers as System One writes them. Fields that the protocol does not have begin with ``x_``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from prelude import confidence
from prelude.results import Answer, Answers


def answer_body(question: Mapping[str, Any], answer: Answer) -> dict[str, Any]:
    """``question`` is as it was sent: the legend returns its levels unchanged."""
    shares = answer.probabilities
    if answer.kind == "noul":
        body: dict[str, Any] = {"type": "noul", "noul": answer.probability}
    elif answer.kind == "choice":
        body = {
            "type": "choice",
            "choice": answer.label,
            "probabilities": dict(shares),
            "confidence": confidence.of_choice(list(shares.values())),
        }
    else:
        body = {
            "type": "score",
            "score": answer.expected,
            "legend": dict(zip(shares, question["criteria"])),
            "probabilities": dict(shares),
            "confidence": confidence.of_score(list(shares.values())),
        }
    if not math.isnan(answer.mass):
        body["x_label_mass"] = answer.mass
    return body


def usage_of(parts: Sequence[Answers]) -> dict[str, int]:
    """``input_tokens`` are the tokens of the state, once for each part, and of all questions and labels."""
    return {
        "input_tokens": sum(part.stats.prompt_tokens for part in parts),
        "output_tokens": 0,
        "x_cached_tokens": sum(part.stats.cached_tokens for part in parts),
    }
