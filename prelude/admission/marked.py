"""Decide for a model whose head reads the options of a question: one logit an option.

The text of a prompt is the one that the model was trained on (``prelude/admission/forms``). Its own cuts are taken
if a request allows truncation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from prelude.admission.context import AdmissionContext, admitted
from prelude.admission.conversation import is_conversation, turns_of
from prelude.admission.decide import named
from prelude.admission.forms import FORMS, Asked, Form, Rendered
from prelude.admission.messages import check_bounds
from prelude.admission.plain_question import PlainQuestion, check_characters, plain_question
from prelude.admission.prepared import Admitted, Outcome
from prelude.admission.prompts import TRUNCATIONS
from prelude.admission.structured import MAX_TEXT, text_of
from prelude.admission.tokenization import TokenizationScope
from prelude.errors import InvalidRequest, PromptTooLong, RequestTooLarge, shown
from prelude.readouts.batch import HeadOutput, OptionOutput
from prelude.results import Answer, Answers, AskedQuestion
from prelude.tasks import Decide
from prelude.values import validation
from prelude.values.model_settings import OptionSettings


def prepare_marked(
    settings: OptionSettings, ctx: AdmissionContext, scope: TokenizationScope, task: Decide
) -> Admitted:
    _refuse(task)
    form = FORMS[settings.form]
    truncation = validation.one_of(task.truncation, "truncation", TRUNCATIONS)
    questions, names = named(task.questions)
    if not isinstance(questions, list | tuple) or not questions:
        raise InvalidRequest(f"{shown(questions)} is not a list of 1 or more questions", field="questions")
    most = ctx.config.max_questions
    if most is not None and len(questions) > most:
        raise InvalidRequest(
            f"{len(questions)} questions; the limit is {most} (EngineConfig.max_questions)", field="questions"
        )
    state = form.state(scope, settings, *_state(ctx, task.state))
    longest = min(settings.max_length, ctx.max_length)
    rendered = []
    for at, question in enumerate(questions):
        field = f"questions[{at}]"
        plain = plain_question(ctx, question, field)
        check_characters(ctx, plain, field)
        rendered.append(form.render(Asked(scope, settings, plain, state, longest, field)))
    tree, rows = form.tree(settings, state, rendered)
    cut = _cut(ctx, settings, rendered, truncation)
    if tree.depth > longest:
        at, one = max(enumerate(rendered), key=lambda found: len(found[1].ids))
        raise PromptTooLong(
            f"{len(one.read) - form.together} options and their question are {tree.depth} tokens after all cuts; the "
            f"limit is {longest}; ask with fewer options, or shorten the state",
            tokens=tree.depth,
            limit=longest,
            field=f"questions[{at}]",
        )
    if tree.num_tokens > ctx.step_tokens:
        raise RequestTooLarge(
            f"{tree.num_tokens} tokens of {len(rendered)} questions; one step computes at most {ctx.step_tokens} "
            "(from EngineConfig.max_step_tokens); ask them in several calls or raise the limit",
            field="questions",
        )
    finish = partial(_answers, ctx, form, rendered, settings, names)
    return admitted(ctx, scope, task, tree, form.readout(rows, rendered), finish, truncated=cut)


def _cut(ctx: AdmissionContext, settings: OptionSettings, rendered: list[Rendered], truncation: str) -> int:
    """Return how many tokens were left out; ``PromptTooLong`` if the request does not allow it."""
    cut = sum(one.cut for one in rendered)
    if cut and truncation == "error":
        first = next(at for at, one in enumerate(rendered) if one.cut)
        parts = f", of them {settings.head_length} for question and options" if settings.head_length else ""
        parts += f", of them {settings.state_length} for the state" if settings.state_length else ""
        raise PromptTooLong(
            f"questions[{first}] with its options and the state are {rendered[first].cut} tokens longer than the "
            f"model reads ({settings.max_length}{parts}); shorten "
            'them or set truncation="head", which cuts as the model was trained',
            tokens=len(rendered[first].ids) + rendered[first].cut,
            limit=settings.max_length,
            field="state",
        )
    return cut


def _refuse(task: Decide) -> None:
    """Refuse the settings that have no meaning if a head reads the options."""
    if task.template is not None:
        raise InvalidRequest(
            "a model whose head reads the options has a text form of its own; leave it at None", field="template"
        )
    if task.length_norm != "none":
        raise InvalidRequest(
            f'{shown(task.length_norm)}: such a head gives one number an option of any length; leave it at "none"',
            field="length_norm",
        )
    if task.orders != "given":
        raise InvalidRequest(
            f'{shown(task.orders)}: such a head reads the options as they are listed; leave it at "given"',
            field="orders",
        )


def _state(ctx: AdmissionContext, state: Any) -> tuple[str, bool]:
    """Return a state's text, and whether a too long text loses its beginning, as a list does."""
    from_left = isinstance(state, list | tuple)
    if not isinstance(state, str | Mapping) and not from_left:
        raise InvalidRequest(f"{shown(state)} is not text, an object or an array", field="state")
    if is_conversation(state):
        check_bounds(ctx, state, "state")
        state = turns_of(state, "state")
    return validation.text(text_of(state, "state", MAX_TEXT, layout=ctx.layout), "state", ctx.max_chars), from_left


def _answers(
    ctx: AdmissionContext,
    form: Form,
    rendered: list[Rendered],
    settings: OptionSettings,
    names: tuple[str, ...] | None,
    outcome: Outcome,
) -> Answers:
    output = outcome.output
    if not isinstance(output, HeadOutput | OptionOutput):
        raise TypeError(f"a head that reads options gives HeadOutput or OptionOutput, got {type(output).__name__}")
    logits = output.logits.reshape(-1).astype(np.float64)
    at, found = 0, []
    for one in rendered:
        count = len(one.read) - form.together
        scaled = logits[at : at + count] / settings.temperature(one.plain.kind, count)
        at += len(one.read)
        relative = scaled - scaled.max()
        logprobs = (relative - math.log(np.exp(relative).sum())).tolist()
        if one.plain.kind == "noul" and not form.yes_first:
            logprobs.reverse()
        labels = ctx.template.labels_of(one.plain)
        asked = AskedQuestion(one.plain.text, labels, one.plain.notes, settings.form, "none", ctx.model)
        found.append(_answer(one.plain, labels, logprobs, asked))
    return Answers(found, outcome.stats, names)


def _answer(plain: PlainQuestion, labels: tuple[str, ...], logprobs: list[float], asked: AskedQuestion) -> Answer:
    shares = [math.exp(one) for one in logprobs]
    index = max(range(len(shares)), key=shares.__getitem__)
    expected = None
    if plain.kind == "score":
        expected = math.fsum(level * share for level, share in enumerate(shares, start=plain.first))
    return Answer(
        labels[index],
        index,
        labels,
        dict(zip(labels, shares)),
        dict(zip(labels, logprobs)),
        math.nan,
        shares[0 if plain.kind == "noul" else index],
        expected,
        plain.kind,
        asked,
    )
