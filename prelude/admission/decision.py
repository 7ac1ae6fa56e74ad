"""The shared part of decisions with equal questions: made once, kept, and appended to each state.

several questions                        one question
segment 0  state (trunk)                 segment 0  state and question (trunk)
segment 1    ├─ question 1                 └─ label pieces, if any
segment 2    │    └─ label piece
segment 3    └─ question 2               length_norm="unconditional" adds
                                         segment k  question without the state: a second root, with its
                                                      own label pieces

Everything but the state is the same for all of them: its tokens are the ``tail``, whose places count from the end of
the state. The readout's rows count from there as well, so that one readout serves all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from prelude._native.core import join_ids
from prelude.admission.chat import PLAIN, Frame
from prelude.admission.context import AdmissionContext
from prelude.admission.orders import check_orders
from prelude.admission.prepared import TokenTree
from prelude.admission.prompts import TRUNCATIONS
from prelude.admission.questions import (
    LabelOrder,
    QuestionPlan,
    plan_questions,
    question_too_long,
    strip_start,
    warn_of_lengths,
)
from prelude.admission.template import DecisionTemplate
from prelude.admission.tokenization import Piece, TokenizationScope
from prelude.errors import RequestTooLarge, TemplateError, shown
from prelude.readouts.batch import I32, LogprobRows
from prelude.records import dataclass, field
from prelude.results import AskedQuestion
from prelude.tasks import Choice, Decide, Noul, Score
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

    def written(self, content: Any) -> str:
        """The run of text that a state is encoded as, between ``head`` and ``foot``. Empty for a state of ids or
        without text: its ids are those of ``pieces``."""
        if not isinstance(content, str):
            return ""
        text = content.lstrip() if self.strips else content
        return f"{self.before}{text}{self.after}" if text else ""


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
    segments: tuple[tuple[int, I32], ...]
    readout: LogprobRows
    nbytes: int
    places: tuple[LabelOrder, ...]  # of each question: where the caller's labels are in the plan
    dropped: int  # characters that were cut of the questions' texts before tokenising
    asked: list[AskedQuestion] = field(default_factory=list)  # the question of each answer, once it was made

    def room(self, ctx: AdmissionContext) -> int:
        """Return tokens that a state may have."""
        return min(ctx.max_length - self.deepest, ctx.step_tokens - self.question_tokens)

    def tree(self, state: I32) -> TokenTree:
        (root, ids), *others = self.segments
        return TokenTree.build([(root, join_ids(state, ids)), *others])


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
    question_tokens = sum(plan.tokens for plan in plans)
    read = [plan for plan in plans for _ in plan.starts]
    if unconditional:
        bases += append_questions(segments, plans, -1, frame.start)
        question_tokens = 2 * question_tokens + len(frame.start) * len(plans)
        read += read
    raw = not mass and all(plan.trie.depth == 0 for plan in plans)  # labels of more tokens need their normalisers
    return Decision(
        tuple(plans),
        frame,
        norm,
        mass,
        max(plan.depth for plan in plans),
        question_tokens,
        int(several),  # several questions are children of a token: an empty state begins with one
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


# ------------------------------------------------------------------ made once, and kept


def decision_of(ctx: AdmissionContext, scope: TokenizationScope, task: Decide, questions: Any) -> Decision:
    """Return the decision of a task and its questions: the kept one if the same was asked with the same salt."""
    key = None if scope.alone else question_key(task, questions)
    known: Decision | None = None if key is None else ctx.kept.get_for(key, scope.salt)
    if known is not None:
        return known
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
    made = assembled(plans, frame, norm, mass, places, dropped)
    if made.deepest >= ctx.max_length and task.truncation == "error":
        raise question_too_long(ctx, plans)
    if made.question_tokens >= ctx.step_tokens and made.deepest < ctx.max_length:
        fit = len(plans) * ctx.step_tokens // made.question_tokens
        raise RequestTooLarge(
            f"the {len(plans)} questions have {made.question_tokens} tokens; state and questions together are one "
            f"step of at most {ctx.step_tokens} (from EngineConfig.max_step_tokens): about {fit} of these "
            "questions at a time; ask them in several calls or raise the limit",
            field="questions",
        )
    if key is not None:
        made = ctx.kept.put_for(key, scope.salt, made, made.nbytes)
    return made


def template_of(ctx: AdmissionContext, task: Decide) -> DecisionTemplate:
    template = ctx.template if task.template is None else task.template
    if not isinstance(template, DecisionTemplate):
        raise TemplateError(f"{shown(template)} is not a DecisionTemplate", field="template")
    return template


_TEXT, _NOTE = {str}, {str, type(None)}


def question_key(task: Decide, questions: Any) -> tuple[Any, ...] | None:
    """The key of a decision that asks ``questions``. None if a value is of a type that is equal to others (``True``
    and 1, a string of an enumeration) or may change."""
    if type(questions) is not tuple and type(questions) is not list:
        return None
    if type(task.mass) is not bool or type(task.length_norm) is not str or type(task.truncation) is not str:
        return None
    if type(task.template) not in (DecisionTemplate, type(None)) or type(task.orders) not in (str, int, range):
        return None
    keys = tuple([_key(question) for question in questions])
    if None in keys:
        return None
    return keys, task.template, task.length_norm, task.mass, task.truncation, task.orders


def _key(question: Any) -> tuple[Any, ...] | None:
    kind = type(question)
    if kind not in (Choice, Noul, Score) or type(question.question) not in _NOTE:
        return None
    if kind is Noul:
        return _noul(question.question, question.criteria)
    values = question.labels if kind is Choice else question.levels
    held = type(values)
    if kind is Score and held is int:
        return "score", question.question, values
    if held is list or held is tuple:
        return (kind, question.question, tuple(values)) if values and set(map(type, values)) == _TEXT else None
    if kind is Score or held is not dict:
        return None
    names, notes = tuple(values), tuple(values.values())
    plain = names and set(map(type, names)) == _TEXT and set(map(type, notes)) <= _NOTE
    return (kind, question.question, names, notes) if plain else None


def _noul(text: str | None, sides: Any) -> tuple[Any, ...] | None:
    if sides is None:
        return None if text is None else ("noul", text)
    if type(sides) is not dict or set(sides) - {"true", "false"}:
        return None
    if not set(map(type, sides.values())) <= _NOTE:
        return None
    return "noul", text, sides.get("true"), sides.get("false")
