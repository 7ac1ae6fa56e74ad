"""A task that owns all its values: changes that the caller makes after submitting have no effect."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from prelude.admission.messages import copy_messages, copy_value
from prelude.admission.sampling import in_context
from prelude.tasks import Choice, Noul, SamplingParams, Score

T = TypeVar("T")
PROMPT_FIELDS = ("state", "prompt", "context", "continuation", "query", "document")


def snapshot(task: T) -> T:
    """Return ``task`` itself if it holds nothing mutable, else one with copies. Never raise for bad values: checking
    belongs to ``prepare``."""
    changes: dict[str, Any] = {}
    for name in PROMPT_FIELDS:
        value = getattr(task, name, None)
        if value is not None and not isinstance(value, str | bytes):
            changes[name] = copy_prompt(value)
    questions = getattr(task, "questions", None)
    if isinstance(questions, (list, tuple)):
        copied = tuple([copy_question(question) for question in questions])
        if type(questions) is list or any(a is not b for a, b in zip(copied, questions)):
            changes["questions"] = copied
    elif isinstance(questions, Mapping):
        changes["questions"] = {name: copy_question(question) for name, question in questions.items()}
    given = getattr(task, "given", None)
    if isinstance(given, dict):
        changes["given"] = {name: tuple(label) if isinstance(label, list) else label for name, label in given.items()}
    params = getattr(task, "params", None)
    if isinstance(params, SamplingParams):
        copied_params = copy_params(params)
        if copied_params is not params:
            changes["params"] = copied_params
    return dataclasses.replace(task, **changes) if changes else task  # type: ignore[type-var]


def copy_prompt(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.copy()
    if type(value) is tuple and all(type(part) is str for part in value):
        return value  # a pair of texts
    if isinstance(value, Mapping):
        return copy_value(value)
    if isinstance(value, list | tuple):
        return copy_messages(value) if value and isinstance(value[0], Mapping | list | tuple) else list(value)
    return value  # immutable, or refused


def copy_params(params: SamplingParams) -> SamplingParams:
    lists = ("stop", "stop_token_ids", "allowed_token_ids", "banned_token_ids")
    changes: dict[str, Any] = {}
    for name in lists:
        value = getattr(params, name)
        if isinstance(value, list | np.ndarray):
            changes[name] = value.copy()
    if isinstance(params.logit_bias, dict):
        changes["logit_bias"] = dict(params.logit_bias)
    if params.allowed_tokens_fn is not None:
        changes["allowed_tokens_fn"] = in_context(params.allowed_tokens_fn)
    return dataclasses.replace(params, **changes) if changes else params


def copy_question(question: Any) -> Any:
    """Return ``question`` itself if it holds nothing that may change."""
    changes: dict[str, Any] = {}
    for name in _MUTABLE.get(type(question), ()):
        value = getattr(question, name)
        if type(value) is list and set(map(type, value)) <= _STR:
            changes[name] = tuple(value)
        elif isinstance(value, Mapping) or (isinstance(value, list | tuple) and not set(map(type, value)) <= _STR):
            changes[name] = copy_value(value)
    return dataclasses.replace(question, **changes) if changes else question


_STR = {str}
_MUTABLE: Mapping[type, tuple[str, ...]] = {
    Choice: ("question", "labels"),
    Noul: ("question", "criteria"),
    Score: ("question", "levels"),
}
