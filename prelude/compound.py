"""Verbs that are more than one task, each as a generator: it yields tasks that run together, and gets their results.

Both engines drive the same generators (``Engine._answer``, ``AsyncEngine._answer``).
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from prelude.admission.checks import flag, integer
from prelude.admission.guard import about_response, guard_recipe
from prelude.admission.preparer import Preparer
from prelude.errors import InvalidRequest, shown
from prelude.options import RequestOptions
from prelude.results import GuardAnswer, GuardResult, RankedDocument, Ranking
from prelude.tasks import Guard, Message, Rerank

Steps: TypeAlias = Generator[Sequence[Any], list[Any], Any]


class Remaining:
    """The options of a verb's later steps: the deadline is counted from the call."""

    def __init__(self, options: RequestOptions | None) -> None:
        self._options = options
        self._began = time.monotonic()

    def now(self) -> RequestOptions | None:
        return None if self._options is None else self._options.after(time.monotonic() - self._began)


def rerank_steps(
    query: str, documents: Iterable[Any], top_k: int | None, top_n: int | None, own: Mapping[str, Any]
) -> Steps:
    """One task a document, all together; then the ranking."""
    if top_k is not None and top_n is not None:
        raise InvalidRequest("top_k and top_n are two names of one limit; give one", field="top_n")
    name, top = ("top_n", top_n) if top_k is None else ("top_k", top_k)
    if top is not None:
        top = integer(top, name, 1, 1 << 31, "None for all documents")
    if isinstance(documents, str | bytes | Mapping):
        raise InvalidRequest(f"{shown(documents)} is not a list of documents", field="documents")
    given = list(documents)
    tasks = [Rerank(query, _text(one, at), **own) for at, one in enumerate(given)]
    results = (yield tasks) if tasks else []
    order = sorted(range(len(given)), key=lambda at: (-results[at].score, at))
    return Ranking(RankedDocument(at, results[at].score, given[at], results[at].stats) for at in order[:top])


def _text(document: Any, at: int) -> str:
    """A document is its text, or a mapping with a ``text``, as other rerankers take it."""
    text = document.get("text") if isinstance(document, Mapping) else document
    if not isinstance(text, str):
        raise InvalidRequest(f"{shown(document)} is not a text, nor a mapping with a text", field=f"documents[{at}]")
    return text


def guard_steps(preparer: Preparer, messages: Sequence[Message], detail: bool, own: Mapping[str, Any]) -> Steps:
    """The first field of the recipe; with ``detail`` one after the other, as the model would write them."""
    flag(detail, "detail")
    recipe = guard_recipe(preparer.facts, own.get("recipe"))
    task = preparer.snapshot(Guard(messages, **own))
    [first] = yield [task]
    answers: dict[str, GuardAnswer] = {first.field: first}
    if detail:
        response = about_response(task.prompt)
        for field in recipe.asked(response)[1:]:
            given = {name: answer.label for name, answer in answers.items()}
            if field.unless is not None and given.get(field.unless[0]) == field.unless[1]:
                answers[field.name] = settled(field.name, field.labels_for(response), field.unless[2])
                continue
            [answer] = yield [Guard(task.prompt, given=given, **own)]
            answers[field.name] = answer
    safe = [first.probabilities[label] for label in recipe.safe]
    return GuardResult(first.label, first.label not in recipe.safe, max(0.0, 1.0 - sum(safe)), answers)


def settled(field: str, labels: Sequence[str], label: str) -> GuardAnswer:
    """A field that needs no pass, since an earlier label settles it."""
    sure = {one: float(one == label) for one in labels}
    logprobs = {one: 0.0 if one == label else float("-inf") for one in labels}
    return GuardAnswer(field, label, sure, logprobs, float("nan"))
