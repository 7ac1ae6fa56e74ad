"""Decide with fitted questions: one vector of the state, the one that ``embed`` gives for its text, and behind it the
head of each question, in the caller's thread. So requests with any heads, and those of ``embed``, share a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from prelude.admission.context import AdmissionContext
from prelude.admission.decide import is_fitted, named, refuse_settings, state_content
from prelude.admission.pooled import prepare_embed, vector_size
from prelude.admission.prepared import Outcome, Parts
from prelude.admission.prompts import TRUNCATIONS
from prelude.admission.questions import check_list
from prelude.admission.tokenization import TokenizationScope
from prelude.errors import InvalidRequest, shown
from prelude.fitting.question import FittedQuestion, answers
from prelude.results import Answers
from prelude.tasks import Decide, Embed
from prelude.values import validation


def answers_questions(ctx: AdmissionContext) -> bool:
    """Return whether the model answers questions that are not fitted."""
    return bool(ctx.limits.lm_head or ctx.limits.masked_lm or ctx.options is not None)


def apart(task: Decide, questions: Sequence[Any], places: Sequence[int]) -> list[tuple[tuple[int, ...], Decide]]:
    """Return the decision of the questions at ``places`` as one task of those that are fitted and one of the others,
    each with its places. A kind that has no question has no task."""
    settings = Decide(task.state, (), truncation=task.truncation, cache=task.cache, salt=task.salt)  # of fitted ones
    tasks = []
    for fitted, kind in ((False, task), (True, settings)):
        some = tuple([at for at in places if is_fitted(questions[at]) is fitted])
        if some:
            tasks.append((some, replace(kind, questions=tuple([questions[at] for at in some]))))
    return tasks


def prepare_fitted(ctx: AdmissionContext, scope: TokenizationScope, task: Decide) -> Parts:
    given, names = named(task.questions)
    questions = _checked(ctx, task, given)
    first = questions[0]
    truncation = validation.one_of(task.truncation, "truncation", TRUNCATIONS)
    content, dropped = state_content(ctx, task.state, truncation)
    embed = Embed(
        content,
        pooling=first.pooling,  # type: ignore[arg-type]
        prompt_name=first.prompt_name,
        truncation=task.truncation,
        cache=task.cache,
        salt=task.salt,
    )
    ready = prepare_embed(ctx, scope, embed, "state")
    size = vector_size(ctx, first.pooling)
    for at, question in enumerate(questions):
        if question.inputs != size:
            said = f"{shown(question)} has {question.inputs} inputs, and a vector of this model {size} values"
            raise InvalidRequest(f"{said}; fit it on this model", field=f"questions[{at}]")
    truncated = max(ready.truncated, int(dropped > 0))

    def finish(outcome: Outcome) -> Answers:
        vector = ready.finish(outcome)
        return Answers(answers(questions, vector, ctx.model), outcome.stats, names)

    return replace(ready, truncated=truncated, finish=finish)


def _checked(ctx: AdmissionContext, task: Decide, questions: Sequence[Any]) -> Sequence[FittedQuestion]:
    """Return the questions if one vector of this model answers all of them."""
    refuse_settings(
        task,
        "a fitted question",
        {
            "template": "it reads the vector of the state alone, and no text of a question",
            "length_norm": "it gives one number a label of any length",
            "orders": "it reads no list of options",
            "mass": "its mass is always NaN",
        },
    )
    check_list(ctx, questions)
    first: FittedQuestion | None = None
    for at, question in enumerate(questions):
        field = f"questions[{at}]"
        if not is_fitted(question):
            apart = "ask it in a task of its own"
            if not answers_questions(ctx):
                apart = "this model has no head that answers it: fit it on labelled rows, or load one that has"
            said = f"{shown(question)} stands beside fitted questions, which read the vector of the state and no text"
            raise InvalidRequest(f"{said}; {apart}", field=field)
        first = first or question
        if (question.prompt_name, question.pooling) != (first.prompt_name, first.pooling):
            raise InvalidRequest(
                f"prompt_name={question.prompt_name!r} and pooling={question.pooling!r}; the first question has "
                f"{first.prompt_name!r} and {first.pooling!r}, and a decision has one vector: ask them apart",
                field=field,
            )
        if not question.of_model(ctx.model):
            raise InvalidRequest(
                f"{shown(question)} was fitted on the vectors of another model (its files have the hash "
                f"{question.model}); load that model, or fit the question again on this one",
                field=field,
            )
    return questions
