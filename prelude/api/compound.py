"""Verbs that are more than one task, each as a generator: it yields tasks that run together, and gets their results.

``drive`` and ``adrive`` run such a generator on an engine of either kind: ``rerank``, ``guard`` and
``SystemOne`` use them. The options of the call hold for all of its tasks, and the deadline counts from the call.
"""

from __future__ import annotations

import time
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from prelude.admission.decide import named
from prelude.admission.fitted import answers_questions, apart
from prelude.admission.guard import about_response, guard_recipe
from prelude.admission.preparer import Preparer
from prelude.errors import InvalidRequest, shown
from prelude.recipes import GuardField
from prelude.results import Answers, GuardAnswer, GuardResult, RankedDocument, Ranking
from prelude.tasks import Decide, Guard, Message, Rerank
from prelude.values.options import RequestOptions
from prelude.values.validation import flag, integer, wrong_type

T = TypeVar("T")
Steps: TypeAlias = Generator[Sequence[Any], list[Any], Any]


def drive(steps: Steps, options: RequestOptions | None, run_many: Callable[..., list[Any]]) -> Any:
    """Return the result of ``steps``; ``run_many(tasks, options)`` runs the tasks that it yields."""
    return finished(adrive(steps, options, at_once(run_many)))


async def adrive(steps: Steps, options: RequestOptions | None, run_many: Callable[..., Awaitable[list[Any]]]) -> Any:
    """Run ``drive`` in an event loop."""
    remaining = _Remaining(options)
    try:
        tasks = next(steps)
        while True:
            tasks = steps.send(await run_many(tasks, remaining.now()))
    except StopIteration as end:
        return end.value


class _Remaining:
    """The options of a verb's later steps: the deadline is counted from the call."""

    def __init__(self, options: RequestOptions | None) -> None:
        self._options = options
        self._began = time.monotonic()

    def now(self) -> RequestOptions | None:
        return None if self._options is None else self._options.after(time.monotonic() - self._began)


def rerank_steps(
    query: str, documents: Iterable[Any], top_k: int | None, top_n: int | None, own: Mapping[str, Any]
) -> Steps:
    """Yield one task a document, all together, and return the ranking."""
    if top_k is not None and top_n is not None:
        raise InvalidRequest("top_k and top_n are two names of one limit; give one", field="top_n")
    name, top = ("top_n", top_n) if top_k is None else ("top_k", top_k)
    if top is not None:
        top = integer(top, name, 1, 1 << 31, "None for all documents")
    if isinstance(documents, str | bytes | Mapping) or not isinstance(documents, Iterable):
        raise wrong_type(documents, "documents", "a list of texts, or of mappings with a text")
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


def decide_steps(model_parts: Callable[[], tuple[Preparer, Path]], task: Decide) -> Steps:
    """A decision of fitted questions and others: one request for each kind, which run together."""
    preparer, _ = model_parts()
    if not answers_questions(preparer.context):
        return (yield [task])[0]  # an error that names the question
    questions, names = named(task.questions)
    parts = apart(task, questions, range(len(questions)))
    first, second = yield [part for _, part in parts]
    answers = dict(zip([at for places, _ in parts for at in places], [*first, *second]))
    sums = {name: getattr(first.stats, name) + getattr(second.stats, name) for name in _SUMMED}
    return Answers([answers[at] for at in range(len(questions))], replace(first.stats, **sums), names)


_SUMMED = ("prompt_tokens", "cached_tokens", "computed_tokens")


def guard_steps(
    model_parts: Callable[[], tuple[Preparer, Path]],
    messages: Sequence[Message],
    detail: bool,
    own: Mapping[str, Any],
) -> Steps:
    """Ask the first field of the recipe; with ``detail`` all, in the order in which the model writes them.
    ``model_parts`` is called when the first step is: an engine may start between the call and that step."""
    flag(detail, "detail")
    preparer, _ = model_parts()
    recipe = guard_recipe(preparer.context, own.get("recipe"))
    task = preparer.snapshot(Guard(messages, **own))
    answers: dict[str, GuardAnswer] = {}
    response = about_response(task.prompt)
    for field in recipe.asked(response) if detail else recipe.asked(response)[:1]:
        if field.unless and (before := answers.get(field.unless[0])) and before.label == field.unless[1]:
            answers[field.name] = known_answer(field.name, field.labels_for(response), field.unless[2])
            continue
        given = {name: (*answer.labels, "") if answer.more else answer.label for name, answer in answers.items()}
        answers[field.name] = yield from _labels(task.prompt, given, field, len(field.labels_for(response)), own)
    first = next(iter(answers.values()))
    safe = [first.probabilities[label] for label in recipe.safe]
    return GuardResult(first.label, first.label not in recipe.safe, max(0.0, 1.0 - sum(safe)), answers)


def _labels(
    messages: Sequence[Message], given: Mapping[str, Any], field: GuardField, most: int, own: Mapping[str, Any]
) -> Steps:
    """Ask a field's label; if it may have several, one after the other until the end is the likeliest."""
    [first] = yield [Guard(messages, given=given, **own)]
    labels: tuple[str, ...] = first.labels
    more: list[GuardAnswer] = []
    single = not field.joiner or first.label == field.none
    while not single and len(labels) < most - bool(field.none):
        [answer] = yield [Guard(messages, given={**given, field.name: labels}, **own)]
        more.append(answer)
        if not answer.label:
            break
        labels = (*labels, answer.label)
    return replace(first, labels=labels, more=tuple(more))


def known_answer(field: str, labels: Sequence[str], label: str) -> GuardAnswer:
    """Answer a field without a pass if an earlier label determines its answer."""
    sure = {one: float(one == label) for one in labels}
    logprobs = {one: 0.0 if one == label else float("-inf") for one in labels}
    return GuardAnswer(field, label, sure, logprobs, float("nan"), labels=(label,))


# ------------------------------------------------------------------ coroutines without an event loop


def at_once(call: Callable[..., T]) -> Callable[..., Coroutine[Any, Any, T]]:
    """Return ``call`` as an asynchronous function, which waits for nothing."""

    async def waited(*args: Any, **keywords: Any) -> T:
        return call(*args, **keywords)

    return waited


def finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that waits for functions ``at_once`` and for its turn alone."""
    try:
        while True:
            coroutine.send(None)
    except StopIteration as end:
        found: T = end.value
        return found


def each(items: AsyncGenerator[T, None]) -> Iterator[T]:
    """Yield the items of an asynchronous generator of this kind."""

    async def following() -> tuple[T, ...]:
        async for item in items:
            return (item,)
        return ()

    try:
        while found := finished(following()):
            yield found[0]
    finally:
        finished(items.aclose())
