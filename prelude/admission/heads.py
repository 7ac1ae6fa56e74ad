"""Decide for models whose head reads each question as a prompt of its own, with the state in it.

A head that reads the options of a question gives each a logit. The text of a prompt is the one that the model was
trained on (``prelude/admission/forms``), and its own cuts are taken if a request allows truncation.

An encoder with a masked-language head gives one logprob a label, at the place of a mask:

    [CLS] <state part> <question part> [MASK]<after the label> [SEP]        label part "{before}{label}{after}"

Its text is that of a ``DecisionTemplate``, in which the mask stands for the label and the text before it. A label is
one token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from prelude.admission.context import AdmissionContext
from prelude.admission.conversation import is_conversation, turns_of
from prelude.admission.decide import made_answer, named, refuse_settings, shares_of, state_content
from prelude.admission.decision import template_of
from prelude.admission.forms import FORMS, Asked, Form, Rendered
from prelude.admission.messages import check_bounds
from prelude.admission.plain_question import PlainQuestion
from prelude.admission.prepared import Outcome, Parts, TokenTree
from prelude.admission.prompts import TRUNCATIONS, kept
from prelude.admission.questions import check_step, plain_questions
from prelude.admission.structured import MAX_TEXT, text_of
from prelude.admission.template import DecisionTemplate, template_hash
from prelude.admission.tokenization import TokenizationScope
from prelude.errors import InvalidRequest, PromptTooLong, shown
from prelude.readouts.batch import LogprobRows
from prelude.results import Answers, AskedQuestion
from prelude.tasks import Decide
from prelude.values import validation
from prelude.values.arrays import I32
from prelude.values.model_settings import OptionSettings

# ------------------------------------------------------------------ heads that read options


def prepare_marked(settings: OptionSettings, ctx: AdmissionContext, scope: TokenizationScope, task: Decide) -> Parts:
    refuse_settings(
        task,
        "a head that reads the options",
        {
            "template": "its model has a text form of its own",
            "length_norm": "it gives one number an option of any length",
            "orders": "it reads the options as they are listed",
        },
    )
    form = FORMS[settings.form]
    truncation = validation.one_of(task.truncation, "truncation", TRUNCATIONS)
    questions, names = named(task.questions)
    plains = plain_questions(ctx, questions)
    state = form.state(scope, settings, *_state(ctx, task.state))
    longest = min(settings.max_length, ctx.max_length)
    rendered = [
        form.render(Asked(scope, settings, plain, state, longest, f"questions[{at}]"))
        for at, plain in enumerate(plains)
    ]
    tree, rows = form.tree(settings, state, rendered)
    cut = _cut(settings, rendered, truncation)
    if tree.depth > longest:
        at, one = max(enumerate(rendered), key=lambda found: len(found[1].ids))
        raise PromptTooLong(
            f"{len(one.read) - form.together} options and their question are {tree.depth} tokens after all cuts; the "
            f"limit is {longest}; ask with fewer options, or shorten the state",
            tokens=tree.depth,
            limit=longest,
            field=f"questions[{at}]",
        )
    check_step(ctx, tree.num_tokens, len(rendered))
    finish = partial(_option_answers, ctx, form, rendered, settings, names)
    return Parts(tree, form.readout(rows, rendered), finish, truncated=cut)


def _cut(settings: OptionSettings, rendered: list[Rendered], truncation: str) -> int:
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


def _state(ctx: AdmissionContext, state: Any) -> tuple[str, bool]:
    """Return a state's text, and whether a too long text loses its beginning, as a list does."""
    from_left = isinstance(state, list | tuple)
    if not isinstance(state, str | Mapping) and not from_left:
        raise InvalidRequest(f"{shown(state)} is not text, an object or an array", field="state")
    if is_conversation(state):
        check_bounds(ctx, state, "state")
        state = turns_of(state, "state")
    return validation.text(text_of(state, "state", MAX_TEXT, layout=ctx.layout), "state", ctx.max_chars), from_left


def _option_answers(
    ctx: AdmissionContext,
    form: Form,
    rendered: list[Rendered],
    settings: OptionSettings,
    names: tuple[str, ...] | None,
    outcome: Outcome,
) -> Answers:
    logits = outcome.output.logits.reshape(-1).astype(np.float64)
    at, found = 0, []
    for one in rendered:
        count = len(one.read) - form.together
        scaled = logits[at : at + count] / settings.temperature(one.plain.kind, count)
        at += len(one.read)
        relative = scaled - scaled.max()
        logprobs = (relative - math.log(np.exp(relative).sum())).tolist()
        if one.plain.kind == "noul" and not form.yes_first:
            logprobs.reverse()
        shares = [math.exp(logprob) for logprob in logprobs]
        labels = ctx.template.labels_of(one.plain)
        asked = AskedQuestion(one.plain.text, labels, one.plain.notes, settings.form, "none", ctx.model)
        best, shared = shares.index(max(shares)), dict(zip(labels, shares))
        weighed = best, shares, shared, dict(zip(labels, logprobs)), math.nan
        found.append(made_answer(ctx.warned, one.plain, asked, labels, weighed))
    return Answers(found, outcome.stats, names)


# ------------------------------------------------------------------ masked-language heads


def prepare_masked(ctx: AdmissionContext, scope: TokenizationScope, task: Decide) -> Parts:
    template = template_of(ctx, task)
    if ctx.mask_id is None:
        raise InvalidRequest("the tokenizer of this model has no mask token, which its head reads", field="Decide")
    if template.chat:
        raise InvalidRequest("an encoder has no chat template; use a template with chat=False", field="template")
    refuse_settings(
        task,
        "a masked-language head",
        {
            "length_norm": "a label of any length is one token at a mask",
            "orders": "it reads the labels as they are listed",
        },
    )
    truncation = validation.one_of(task.truncation, "truncation", TRUNCATIONS)
    questions, names = named(task.questions)
    plains = plain_questions(ctx, questions)
    content, dropped = state_content(ctx, task.state, truncation)
    prefix, suffix = ctx.encoder.prefix, ctx.encoder.suffix
    read: list[tuple[PlainQuestion, AskedQuestion]] = []
    around: list[tuple[I32, I32]] = []  # the ids between the state and the mask, and behind the mask
    targets: list[list[int]] = []
    for at, plain in enumerate(plains):
        labels = template.labels_of(plain)
        after, ids = _labels(scope, template, plain, labels, f"questions[{at}].labels")
        text = "".join(str(piece) for piece, _ in template.question_pieces(plain, labels))
        around.append((scope.encode(text), scope.encode(after)))
        targets.append(ids)
        asked = AskedQuestion(plain.text, labels, plain.notes, template_hash(template), "none", ctx.model)
        read.append((plain, asked))
    state, cuttable = scope.encode_cuttable(template.state_pieces([(content, False)]))
    fixed = len(prefix) + len(suffix) + 1 + max(len(ask) + len(end) for ask, end in around)
    room, cut = ctx.max_length - fixed, 0
    if len(state) > room:
        cut = len(state) - room
        state = state[kept(ctx, cuttable, cut, truncation, "state", room)]
    mask = np.array([ctx.mask_id], np.int32)
    segments: list[tuple[int, I32]] = []
    rows: list[int] = []
    tokens = 0
    for ask, end in around:
        segments.append((-1, np.concatenate([prefix, state, ask, mask, end, suffix]).astype(np.int32)))
        rows.append(tokens + len(prefix) + len(state) + len(ask))
        tokens += len(segments[-1][1])
    check_step(ctx, tokens, len(around))
    target_rows = np.repeat(np.arange(len(around)), [len(ids) for ids in targets]).astype(np.int32)
    flat = np.array([token for ids in targets for token in ids], np.int32)
    readout = LogprobRows(np.array(rows, np.int32), target_rows, flat)
    finish = partial(_masked_answers, ctx, read, names)
    truncated = cut or int(dropped > 0)
    return Parts(TokenTree.build(segments), readout, finish, truncated=truncated, masked=True)


def _labels(
    scope: TokenizationScope, template: DecisionTemplate, plain: PlainQuestion, labels: tuple[str, ...], field: str
) -> tuple[str, list[int]]:
    """Return the text after a label, and the token of each."""
    found: list[int] = []
    after = ""
    for at, (label, answer) in enumerate(zip(labels, template.answers_of(plain, labels))):
        before, _, after = (str(piece) for piece, _ in template.label_pieces(answer))
        ids = scope.encode(f"{before}{answer}").tolist()
        if len(ids) != 1:
            raise InvalidRequest(
                f"label {shown(label)} is {len(ids)} tokens, and a masked-language head scores one token at its "
                "mask; choose a label of one token, or a template with letters=True",
                field=f"{field}[{at}]",
            )
        if ids[0] in found:
            raise InvalidRequest(
                f"labels {shown(labels[found.index(ids[0])])} and {shown(label)} are the same token {ids[0]}: no "
                "model can tell them apart",
                field=f"{field}[{at}]",
            )
        found += ids
    return after, found


def _masked_answers(
    ctx: AdmissionContext,
    read: list[tuple[PlainQuestion, AskedQuestion]],
    names: tuple[str, ...] | None,
    outcome: Outcome,
) -> Answers:
    found, at = [], 0
    for plain, asked in read:
        labels = asked.labels
        logprobs = outcome.output.logprobs[at : at + len(labels)].tolist()
        at += len(labels)
        mass = min(1.0, math.fsum(map(math.exp, logprobs)))
        shares, _, _ = shares_of(logprobs)
        best, shared = shares.index(max(shares)), dict(zip(labels, shares))
        weighed = best, shares, shared, dict(zip(labels, logprobs)), mass
        found.append(made_answer(ctx.warned, plain, asked, labels, weighed))
    return Answers(found, outcome.stats, names)
