"""Answers as System One writes them. Fields that the protocol does not have begin with ``x_``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prelude.results import Answer, Answers


def usage_of(parts: Sequence[Answers]) -> tuple[dict[str, int], int]:
    """The usage, and how many tokens were cut. ``input_tokens`` are the tokens of the state, once for each part, and
    of all questions and labels."""
    prompt = sum([part.stats.prompt_tokens for part in parts])
    cached = sum([part.stats.cached_tokens for part in parts])
    cut = sum([part.stats.truncated_tokens for part in parts])
    return {"input_tokens": prompt, "output_tokens": 0, "x_cached_tokens": cached}, cut


def answer_bodies(
    names: Sequence[str], questions: Sequence[Mapping[str, Any]], answers: Iterable[Answer]
) -> dict[str, Any]:
    """Return the answers by the names of their questions, which are as they were sent."""
    return {name: _body(question, answer) for name, question, answer in zip(names, questions, answers)}


def _body(question: Mapping[str, Any], answer: Answer) -> dict[str, Any]:
    """The legend of a score returns the levels of its question unchanged."""
    kind = answer.kind
    body: dict[str, Any] = {"type": kind}
    if kind == "noul":
        body["noul"] = answer.probability
    else:
        shares = dict(answer.probabilities)
        if kind == "choice":
            body["choice"] = answer.label
        else:
            body |= {"score": answer.expected, "legend": dict(zip(shares, question.get("criteria") or shares))}
        body |= {"probabilities": shares, "confidence": answer.confidence}
    if answer.mass == answer.mass:  # not NaN
        body["x_label_mass"] = answer.mass
    if answer.scope is not None:
        body |= {"x_scope": answer.scope, "x_in_scope": answer.in_scope}
    return body
