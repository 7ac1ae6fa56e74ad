"""The shared part of decisions with equal questions: made once, kept, and appended to each state.

several questions                        one question
segment 0  state (trunk)                 segment 0  state and question (trunk)
segment 1    ├─ question 1                 └─ label pieces, if any
segment 2    │    └─ label piece
segment 3    └─ question 2               length_norm="unconditional" adds
                                         segment k  question without the state: a second root, with its
                                                      own label pieces

Everything but the state is the same for all of them. The readout's rows count from the end of the state, so that one
readout serves all. A text that is too long is cut here, too: the questions' are part of what was made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from prelude._native.core import join_ids
from prelude.admission.chat import PLAIN, Frame
from prelude.admission.context import AdmissionContext
from prelude.admission.orders import check_orders
from prelude.admission.prompts import TRUNCATIONS, kept
from prelude.admission.questions import (
    LabelOrder,
    QuestionPlan,
    cut_notes,
    cut_question,
    plan_questions,
    question_too_long,
    strip_start,
    warn_of_lengths,
)
from prelude.admission.template import DecisionTemplate
from prelude.admission.tokenization import Piece, TokenizationScope
from prelude.errors import InvalidRequest, PromptTooLong, RequestTooLarge, TemplateError, shown
from prelude.readouts.batch import I32, LogprobRows
from prelude.records import dataclass, field
from prelude.results import AskedQuestion
from prelude.tasks import Decide
from prelude.values import validation

LENGTH_NORMS = ("none", "token", "unconditional")


@dataclass(frozen=True, slots=True)
class StateFrame:
    """The template around a state. Text of a state is encoded between ``before`` and ``after``, as one run; the ids
    of ``head`` stand before it, those of ``foot`` after it. ``start``: the ids of a prompt before any state."""

    template: DecisionTemplate
    frame: Frame
    start: I32
    head: I32
    before: str
    after: str
    foot: I32
    strips: bool  # white space at the beginning of the state

    def pieces(self, content: Any) -> list[Piece]:
        pieces = self.template.state_pieces([(content, False)])
        if not self.template.chat:
            return [(self.start, True), *pieces]
        return [(self.frame.before, True), *(strip_start(pieces) if self.frame.strips else pieces)]


def state_frame(ctx: AdmissionContext, scope: TokenizationScope, template: DecisionTemplate) -> StateFrame:
    frame = ctx.frame() if template.chat else PLAIN
    (before, _), _, (after, _) = template.state_pieces([("", False)])
    opening: list[Piece] = [(frame.before, True)] if template.chat else [(scope.encoder.prefix, True)]
    strips = template.chat and frame.strips
    written = before.lstrip() if strips else before  # type: ignore[union-attr]
    runs = scope.runs([*opening, (written, True)])
    head, text_before = _ids_and_text(scope, runs, last=True)
    foot, text_after = _ids_and_text(scope, scope.runs([(after, True)]), last=False)
    start = scope.encode_pieces([(frame.before, True)]) if template.chat else scope.encoder.prefix
    return StateFrame(template, frame, start, head, text_before, text_after, foot, strips and not written)


def _ids_and_text(scope: TokenizationScope, runs: list[Any], *, last: bool) -> tuple[I32, str]:
    """Return fixed runs as ids. The run beside the state is encoded together with the state."""
    text = ""
    if runs and isinstance(runs[-1 if last else 0], list):
        text = "".join([part for part, _ in runs.pop(-1 if last else 0)])
    fixed = [
        scope.encoder.fixed(scope, "".join([part for part, _ in run])) if isinstance(run, list) else run
        for run in runs
    ]
    return join_ids(*fixed), text


@dataclass(frozen=True, slots=True)
class Decision:
    """``segments`` are those of the tree behind an empty state. The first segment begins with that state."""

    plans: tuple[QuestionPlan, ...]
    frame: StateFrame
    norm: str
    mass: bool
    deepest: int  # tokens of the longest question with its label
    question_tokens: int  # tokens of all of it but the state
    least: int  # tokens that a state has at least
    room: int  # and at most
    segments: tuple[tuple[int, I32], ...]
    readout: LogprobRows
    nbytes: int
    places: tuple[LabelOrder, ...]  # of each question: where the caller's labels are in the plan
    dropped: int  # characters that were cut of the questions' texts before tokenising
    asked: list[AskedQuestion] = field(default_factory=list)  # the question of each answer, once it was made


def append_questions(
    segments: list[tuple[int, I32]], plans: Sequence[QuestionPlan], parent: int, start: I32 | None = None
) -> list[int]:
    """Append each question, its shifts and the label pieces of each; returns the token index of the last token of
    each shift, and of a question that has none."""
    bases = []
    count = sum(len(ids) for _, ids in segments)
    for plan in plans:
        ids = plan.token_ids if start is None else np.concatenate([start, plan.token_ids])
        count += len(ids)
        question = len(segments)
        segments.append((parent, ids))
        for shift in plan.shifts or (None,):
            own = question
            if shift is not None:
                own = len(segments)
                segments.append((question, shift))
                count += len(shift)
            bases.append(count - 1)
            first = len(segments)
            segments += [(own if above < 0 else first + above, piece) for above, piece in plan.trie.segments]
            count += sum([len(piece) for _, piece in plan.trie.segments])
    return bases


def assembled(
    ctx: AdmissionContext,
    plans: Sequence[QuestionPlan],
    frame: StateFrame,
    norm: str,
    mass: bool,
    places: Sequence[LabelOrder],
    dropped: int,
) -> Decision:
    """Return the tree behind an empty state, from whose end places count."""
    none: I32 = np.zeros(0, dtype=np.int32)
    unconditional = norm == "unconditional"
    several = len(plans) > 1
    segments = [(-1, none)] if several else []
    bases = append_questions(segments, plans, 0 if several else -1)
    read = [plan for plan in plans for _ in plan.starts]
    if unconditional:
        bases += append_questions(segments, plans, -1, frame.start)
        read += read
    deepest = max(plan.depth for plan in plans)
    question_tokens = sum(len(ids) for _, ids in segments)
    raw = not mass and all(plan.trie.depth == 0 for plan in plans)  # labels of more tokens need their normalisers
    return Decision(
        tuple(plans),
        frame,
        norm,
        mass,
        deepest,
        question_tokens,
        int(several),  # several questions are children of a token: an empty state begins with one
        min(ctx.max_length - deepest, ctx.step_tokens - question_tokens),
        tuple(segments),
        read_rows(read, bases, raw),
        1024 + 24 * question_tokens + sum(plan.nbytes for plan in plans),
        tuple(places),
        dropped,
    )


def read_rows(plans: Sequence[QuestionPlan], bases: Sequence[int], raw: bool) -> LogprobRows:
    """Collect every edge of every trie once; ``plans`` and ``bases`` side by side."""
    rows, target_rows, before = [], [], 0
    for plan, base in zip(plans, bases):
        rows.append(plan.trie.rows + np.int32(base))
        target_rows.append(plan.trie.target_rows + np.int32(before))
        before += len(plan.trie.rows)
    return LogprobRows(
        np.concatenate(rows),
        np.concatenate(target_rows),
        np.concatenate([plan.trie.targets for plan in plans]),
        raw=raw,
    )


def make_decision(ctx: AdmissionContext, scope: TokenizationScope, task: Decide, questions: Any) -> Decision:
    norm = validation.one_of(task.length_norm, "length_norm", LENGTH_NORMS)
    mass = validation.flag(task.mass, "mass")
    validation.one_of(task.truncation, "truncation", TRUNCATIONS)
    template = template_of(ctx, task)
    frame = state_frame(ctx, scope, template)
    orders = check_orders(task.orders)
    plans, places, dropped = plan_questions(ctx, scope, questions, template, frame.frame, task.truncation, orders)
    if norm == "none":
        for plan in plans:
            if plan.uneven:
                warn_of_lengths(ctx, plan.labels, plan.label_ids)
    made = assembled(ctx, plans, frame, norm, mass, places, dropped)
    if made.question_tokens + made.least > ctx.step_tokens and made.deepest <= ctx.max_length:
        fit = len(plans) * max(ctx.step_tokens - made.least, 0) // made.question_tokens
        raise RequestTooLarge(
            f"the {len(plans)} questions have {made.question_tokens} tokens; state and questions together are one "
            f"step of at most {ctx.step_tokens} (from EngineConfig.max_step_tokens): about {fit} of these "
            "questions at a time; ask them in several calls or raise the limit",
            field="questions",
        )
    return made


def template_of(ctx: AdmissionContext, task: Decide) -> DecisionTemplate:
    template = ctx.template if task.template is None else task.template
    if not isinstance(template, DecisionTemplate):
        raise TemplateError(f"{shown(template)} is not a DecisionTemplate", field="template")
    return template


# ------------------------------------------------------------------ texts that do not fit


def cut_questions(
    ctx: AdmissionContext, scope: TokenizationScope, decision: Decision, state: int, truncation: str
) -> tuple[Decision, int]:
    """Return questions that leave room for their state of ``state`` tokens, and the number of cut tokens. The longer
    of state and question is cut: a question only if its own text has more than half of ``max_length``."""
    room = ctx.max_length - min(state, ctx.max_length // 2)
    if decision.deepest <= room:
        return decision, 0
    template, frame = decision.frame.template, decision.frame.frame
    found = [
        plan
        if plan.depth <= room
        else (cut_notes if plan.describes else cut_question)(
            ctx, scope, plan, template, frame, room, truncation, f"questions[{at}]"
        )
        for at, plan in enumerate(decision.plans)
    ]
    cut = sum(plan.tokens for plan in decision.plans) - sum(plan.tokens for plan in found)
    return assembled(ctx, found, decision.frame, decision.norm, decision.mass, decision.places, decision.dropped), cut


def fit_state(
    ctx: AdmissionContext, scope: TokenizationScope, state: int, content: Any, decision: Decision, truncation: str
) -> tuple[I32, int]:
    """Return the ids of ``content``, which is ``state`` tokens, cut to the decision's room. Labels are never cut."""
    room, tokens = decision.room, max(state, decision.least)
    if truncation == "error" or room < decision.least:
        raise state_too_long(ctx, tokens, decision)
    ids, cuttable = scope.encode_cuttable(decision.frame.pieces(content))
    return ids[kept(ctx, cuttable, tokens - room, truncation, "state", room)], tokens - room


def state_too_long(ctx: AdmissionContext, state: int, decision: Decision) -> InvalidRequest:
    deepest, question_tokens = decision.deepest, decision.question_tokens
    if deepest >= ctx.max_length:
        return question_too_long(ctx, decision.plans)
    if state + deepest > ctx.max_length:
        return PromptTooLong(
            f"{state} tokens of state and {deepest} of the longest question and label; the limit is "
            f'{ctx.max_length}; shorten the state or set truncation="head", "tail" or "middle"',
            tokens=state + deepest,
            limit=ctx.max_length,
            field="state",
        )
    return RequestTooLarge(
        f"{state} tokens of state and {question_tokens} of questions and labels; one step computes at most "
        f"{ctx.step_tokens} (from EngineConfig.max_step_tokens); ask them in several calls or raise the limit",
        field="state",
    )
