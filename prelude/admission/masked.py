"""Decide for an encoder with a masked-language head: one logprob a label, at the place of a mask.

    [CLS] <state part> <question part> [MASK]<after the label> [SEP]        label part "{before}{label}{after}"

The text is that of a ``DecisionTemplate``, in which the mask stands for the label and the text before it. A label is
one token. Each question is a prompt of its own, with the state in it.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from prelude.admission.context import LEAST_MASS, AdmissionContext, admitted, warn_of_mass
from prelude.admission.decide import named, state_content
from prelude.admission.decision import template_of
from prelude.admission.plain_question import PlainQuestion, check_characters, plain_question
from prelude.admission.prepared import Admitted, Outcome, TokenTree
from prelude.admission.prompts import TRUNCATIONS, kept
from prelude.admission.template import DecisionTemplate, template_hash
from prelude.admission.tokenization import TokenizationScope
from prelude.errors import InvalidRequest, RequestTooLarge, shown
from prelude.readouts.batch import LogprobOutput, LogprobRows
from prelude.results import Answer, Answers, AskedQuestion
from prelude.tasks import Decide
from prelude.values import validation
from prelude.values.arrays import I32


def prepare_masked(ctx: AdmissionContext, scope: TokenizationScope, task: Decide) -> Admitted:
    template = template_of(ctx, task)
    _refuse(ctx, task, template)
    truncation = validation.one_of(task.truncation, "truncation", TRUNCATIONS)
    questions, names = named(task.questions)
    if not isinstance(questions, list | tuple) or not questions:
        raise InvalidRequest(f"{shown(questions)} is not a list of 1 or more questions", field="questions")
    content, dropped = state_content(ctx, task.state, truncation)
    prefix, suffix = ctx.encoder.prefix, ctx.encoder.suffix
    asked: list[tuple[PlainQuestion, tuple[str, ...], I32, I32]] = []
    targets: list[list[int]] = []
    for at, question in enumerate(questions):
        field = f"questions[{at}]"
        plain = plain_question(ctx, question, field)
        check_characters(ctx, plain, field)
        labels = template.labels_of(plain)
        after, ids = _labels(scope, template, plain, labels, f"{field}.labels")
        text = "".join(str(piece) for piece, _ in template.question_pieces(plain, labels))
        asked.append((plain, labels, scope.encode(text), scope.encode(after)))
        targets.append(ids)
    state, cuttable = scope.encode_cuttable(template.state_pieces([(content, False)]))
    fixed = len(prefix) + len(suffix) + 1 + max(len(ask) + len(end) for _, _, ask, end in asked)
    room, cut = ctx.max_length - fixed, 0
    if len(state) > room:
        cut = len(state) - room
        state = state[kept(ctx, cuttable, cut, truncation, "state", room)]
    mask = np.array([ctx.mask_id], np.int32)
    segments: list[tuple[int, I32]] = []
    rows: list[int] = []
    tokens = 0
    for _, _, ask, end in asked:
        segments.append((-1, np.concatenate([prefix, state, ask, mask, end, suffix]).astype(np.int32)))
        rows.append(tokens + len(prefix) + len(state) + len(ask))
        tokens += len(segments[-1][1])
    if tokens > ctx.step_tokens:
        raise RequestTooLarge(
            f"{tokens} tokens of {len(asked)} questions; one step computes at most {ctx.step_tokens} "
            "(from EngineConfig.max_step_tokens); ask them in several calls or raise the limit",
            field="questions",
        )
    target_rows = np.repeat(np.arange(len(asked)), [len(ids) for ids in targets]).astype(np.int32)
    flat = np.array([token for ids in targets for token in ids], np.int32)
    readout = LogprobRows(np.array(rows, np.int32), target_rows, flat)
    hashed = template_hash(template)
    read = [
        (plain, AskedQuestion(plain.text, labels, plain.notes, hashed, "none", ctx.model))
        for plain, labels, _, _ in asked
    ]
    finish = partial(_answers, ctx, read, names)
    truncated = cut or int(dropped > 0)
    return admitted(ctx, scope, task, TokenTree.build(segments), readout, finish, truncated=truncated, masked=True)


def _refuse(ctx: AdmissionContext, task: Decide, template: DecisionTemplate) -> None:
    if ctx.mask_id is None:
        raise InvalidRequest("the tokenizer of this model has no mask token, which its head reads", field="Decide")
    if template.chat:
        raise InvalidRequest("an encoder has no chat template; use a template with chat=False", field="template")
    if task.length_norm != "none":
        raise InvalidRequest(
            f'{shown(task.length_norm)}: a label of any length is one token at a mask; leave it at "none"',
            field="length_norm",
        )
    if task.orders != "given":
        raise InvalidRequest(
            f'{shown(task.orders)}: such a head reads the labels as they are listed; leave it at "given"',
            field="orders",
        )


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


def _answers(
    ctx: AdmissionContext,
    read: list[tuple[PlainQuestion, AskedQuestion]],
    names: tuple[str, ...] | None,
    outcome: Outcome,
) -> Answers:
    output = outcome.output
    if not isinstance(output, LogprobOutput):
        raise TypeError(f"a masked-language head gives LogprobOutput, got {type(output).__name__}")
    found, at = [], 0
    for plain, asked in read:
        labels = asked.labels
        logprobs = output.logprobs[at : at + len(labels)].tolist()
        at += len(labels)
        mass = min(1.0, math.fsum(map(math.exp, logprobs)))
        if mass < LEAST_MASS:
            warn_of_mass(ctx.warned, asked, mass)
        highest = max(logprobs)
        weights = [math.exp(one - highest) for one in logprobs]
        shares = [weight / math.fsum(weights) for weight in weights]
        index = max(range(len(shares)), key=shares.__getitem__)
        expected = None
        if plain.kind == "score":
            expected = math.fsum(level * share for level, share in enumerate(shares, start=plain.first))
        found.append(
            Answer(
                labels[index],
                index,
                labels,
                dict(zip(labels, shares)),
                dict(zip(labels, logprobs)),
                mass,
                shares[0 if plain.kind == "noul" else index],
                expected,
                plain.kind,
                asked,
            )
        )
    return Answers(found, outcome.stats, names)
