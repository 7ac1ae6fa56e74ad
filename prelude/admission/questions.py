"""A question as tokens and a label trie. Depends on template, question and labels alone, so it is kept."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, TypeAlias

from prelude.admission.chat import Frame
from prelude.admission.context import CHARS_PER_TOKEN, AdmissionContext
from prelude.admission.labels import LabelTrie, build_trie
from prelude.admission.orders import Arranged, arranged, shifted, split
from prelude.admission.plain_question import PlainQuestion, check_characters, plain_question
from prelude.admission.prompts import kept, shorten
from prelude.admission.template import DecisionTemplate
from prelude.admission.tokenization import Piece, TokenizationScope
from prelude.errors import InvalidRequest, PromptTooLong, RequestTooLarge, shown
from prelude.readouts.batch import I32
from prelude.records import dataclass, replace
from prelude.tasks import Choice, Noul, Orders, Question, Score

LabelOrder: TypeAlias = tuple[int, ...] | None
EVEN = 3
"""Tokens by which labels may differ in length before a comparison of their joint logprobs is warned about."""

log = logging.getLogger("prelude.engine")


@dataclass(frozen=True, slots=True)
class QuestionPlan:
    plain: PlainQuestion
    labels: tuple[str, ...]
    label_ids: tuple[tuple[int, ...], ...]
    token_ids: I32  # the question part, with the text after it in a chat template; at least one
    starts: tuple[int, ...]  # the shifts of the options that are shown; the trie is read once in each
    lettered: bool  # the trie is of places: in another shift they stand for other labels
    shifts: tuple[I32, ...]  # the ids after ``token_ids`` in each of them; () if there is one
    trie: LabelTrie  # behind each shift
    tokens: int  # tokens that it adds to a tree
    depth: int  # tokens that it adds to the longest sequence
    uneven: bool  # its labels' lengths differ by more than ``EVEN`` tokens
    chars: int
    nbytes: int

    @property
    def describes(self) -> bool:
        """Whether the descriptions are longer than the question's own text."""
        return sum(map(len, self.plain.notes)) > len(self.plain.text)


def plan_questions(
    ctx: AdmissionContext,
    scope: TokenizationScope,
    questions: Sequence[Question],
    template: DecisionTemplate,
    frame: Frame,
    truncation: str,
    orders: Orders,
) -> tuple[list[QuestionPlan], list[LabelOrder], int]:
    """One plan per question, the places of its labels in the plan, and how many characters were cut of their texts.
    ``InvalidRequest`` names the question that is wrong, ``questions[i]``."""
    check_list(ctx, questions)
    plans: list[QuestionPlan] = []
    places: list[LabelOrder] = []
    most = max(ctx.max_chars, CHARS_PER_TOKEN * ctx.step_tokens)
    left, dropped = most, 0
    for index, question in enumerate(questions):
        here = f"questions[{index}]"
        plain = plain_question(ctx, question, here)
        if len(plain.text) > ctx.max_chars:
            text, _, cut = shorten(plain.text, ctx.max_chars, truncation)
            plain, dropped = replace(plain, text=text), dropped + cut
        shown_in = arranged(plain, orders, template, here)
        key = ("plan", template, shown_in.plain, shown_in.starts)
        plan: QuestionPlan | None = scope.kept.get_for(key, scope.salt)
        left -= check_characters(ctx, plain, here) * len(shown_in.starts) if plan is None else plan.chars
        if left < 0:
            raise RequestTooLarge(
                f"questions and labels have more than {most} characters, checked before tokenising; ask them in "
                "several calls",
                field="questions",
            )
        if plan is None:
            plan = make_plan(ctx, scope, shown_in, template, frame, here)
            plan = scope.kept.put_for(key, scope.salt, plan, plan.nbytes)
        plans.append(plan)
        places.append(shown_in.places)
    return plans, places, dropped


def check_list(ctx: AdmissionContext, questions: Any) -> None:
    if type(questions) is not list and type(questions) is not tuple:
        if isinstance(questions, Choice | Noul | Score):
            raise InvalidRequest("one question alone; give a list of questions", field="questions")
        if isinstance(questions, str | bytes) or not isinstance(questions, Sequence):
            raise InvalidRequest(f"{shown(questions)} is not a list of questions", field="questions")
    most = ctx.config.max_questions
    if not questions or (most is not None and len(questions) > most):
        takes = "1 or more" if most is None else f"1 to {most} (EngineConfig.max_questions)"
        raise InvalidRequest(f"{len(questions)} questions; it takes {takes}", field="questions")
    if len(questions) > ctx.step_tokens:  # each has a token
        raise RequestTooLarge(
            f"{len(questions)} questions; all of their tokens are one step of at most {ctx.step_tokens} (from "
            "EngineConfig.max_step_tokens); ask them in several calls or raise the limit",
            field="questions",
        )


def plain_questions(ctx: AdmissionContext, questions: Any) -> list[PlainQuestion]:
    """Return the questions of a list, all checked."""
    check_list(ctx, questions)
    found = []
    for at, question in enumerate(questions):
        found.append(plain_question(ctx, question, f"questions[{at}]"))
        check_characters(ctx, found[-1], f"questions[{at}]")
    return found


def check_step(ctx: AdmissionContext, tokens: int, questions: int) -> None:
    """``RequestTooLarge`` unless one step computes the ``tokens`` of so many questions and their state."""
    if tokens > ctx.step_tokens:
        raise RequestTooLarge(
            f"{tokens} tokens of {questions} questions; one step computes at most {ctx.step_tokens} "
            "(from EngineConfig.max_step_tokens); ask them in several calls or raise the limit",
            field="questions",
        )


def warn_of_lengths(ctx: AdmissionContext, labels: tuple[str, ...], label_ids: tuple[tuple[int, ...], ...]) -> None:
    """Warn once for each set of labels: a joint logprob sums over tokens, so that longer labels score lower."""
    known = ("warned", hash(labels))  # the labels themselves may be large
    if ctx.encoder.kept.get(known):
        return
    ctx.encoder.kept.put(known, True, 100)
    shortest, longest = min(label_ids, key=len), max(label_ids, key=len)
    log.warning(
        "labels of %d to %d tokens (%s, %s) are compared by joint logprobs, which favours the short ones; "
        'length_norm="token" divides by the number of tokens, "unconditional" subtracts the label\'s logprob without '
        "the state",
        len(shortest),
        len(longest),
        shown(labels[label_ids.index(shortest)]),
        shown(labels[label_ids.index(longest)]),
    )


def make_plan(
    ctx: AdmissionContext,
    scope: TokenizationScope,
    given: Arranged,
    template: DecisionTemplate,
    frame: Frame,
    field: str,
) -> QuestionPlan:
    plain, starts = given.plain, given.starts
    labels = template.labels_of(plain)
    rows = [scope.encode_pieces(question_pieces(plain, labels, start, template, frame)) for start in starts]
    if not all(map(len, rows)):
        raise InvalidRequest("the question tokenises to nothing", field=f"{field}.question")
    token_ids, shifts = split(rows)
    label_ids, trie = labels_of(ctx, scope, template.answers_of(plain, labels), template, f"{field}.labels")
    fed = sum(len(ids) for _, ids in trie.segments)
    chars = plain.chars * len(starts)
    own = len(token_ids) + sum(map(len, shifts))
    return QuestionPlan(
        plain=plain,
        labels=labels,
        label_ids=label_ids,
        token_ids=token_ids,
        starts=starts,
        lettered=template.letters and plain.kind == "choice",
        shifts=shifts,
        trie=trie,
        tokens=own + fed * len(starts),
        depth=max(map(len, rows)) + trie.depth,
        uneven=trie.depth + 1 - min(map(len, label_ids)) > EVEN,
        chars=chars,
        nbytes=512 + 4 * chars + 8 * own + label_bytes(label_ids) + template_bytes(ctx, template),
    )


def label_bytes(label_ids: Sequence[Sequence[int]]) -> int:
    """Memory of labels with these ids and of their trie, their text left out: an estimate from above."""
    return 512 + 220 * len(label_ids) + 76 * sum(map(len, label_ids))


def template_bytes(ctx: AdmissionContext, template: DecisionTemplate) -> int:
    """Memory of a template that a task brought."""
    return 0 if template is ctx.template else 2048 + 4 * template.chars


def labels_of(
    ctx: AdmissionContext, scope: TokenizationScope, labels: tuple[str, ...], template: DecisionTemplate, field: str
) -> tuple[tuple[tuple[int, ...], ...], LabelTrie]:
    """Return the ids of the labels and their trie; kept, since many questions may have the same labels."""
    key = ("labels", template, labels)
    found: Any = scope.kept.get_for(key, scope.salt)
    if found is None:
        label_ids = tuple(tuple(scope.encode_pieces(template.label_pieces(label)).tolist()) for label in labels)
        found = label_ids, build_trie(label_ids, labels, field)
        weight = label_bytes(label_ids) + 4 * sum(map(len, labels)) + template_bytes(ctx, template)
        found = scope.kept.put_for(key, scope.salt, found, weight)
    ids, trie = found
    return ids, trie


def question_pieces(
    plain: PlainQuestion, labels: tuple[str, ...], start: int, template: DecisionTemplate, frame: Frame
) -> list[Piece]:
    """Return the plan with the label at ``start`` first."""
    pieces = template.question_pieces(*shifted(plain, labels, start))
    return [*(strip_end(pieces) if frame.strips else pieces), (frame.after, True)]


def cut_question(
    ctx: AdmissionContext,
    scope: TokenizationScope,
    plan: QuestionPlan,
    template: DecisionTemplate,
    frame: Frame,
    room: int,
    truncation: str,
    field: str,
) -> QuestionPlan:
    """The plan with as many tokens of the question's own text left out as make it at most ``room`` deep, if that
    text has more than half of ``max_length``. Not kept."""
    rows = []
    for start in plan.starts:
        pieces = question_pieces(plan.plain, plan.labels, start, template, frame)
        listing = template.listing(*shifted(plan.plain, plan.labels, start))
        ids, cuttable = scope.encode_cuttable(pieces, fixed=(listing,))
        if 2 * int(cuttable.sum()) <= ctx.max_length:
            return plan
        excess = len(ids) + plan.trie.depth - room
        rows.append(ids[kept(ctx, cuttable, excess, truncation, f"{field}.question", room)] if excess > 0 else ids)
    token_ids, shifts = split(rows)
    fed = plan.tokens - len(plan.token_ids) - sum(map(len, plan.shifts))
    tokens = len(token_ids) + sum(map(len, shifts)) + fed
    depth = max(map(len, rows)) + plan.trie.depth
    return replace(plan, token_ids=token_ids, shifts=shifts, tokens=tokens, depth=depth)


def cut_notes(
    ctx: AdmissionContext,
    scope: TokenizationScope,
    plan: QuestionPlan,
    template: DecisionTemplate,
    frame: Frame,
    room: int,
    truncation: str,
    field: str,
) -> QuestionPlan:
    """The plan with its longest descriptions cut to one number of characters, the greatest that makes it at most
    ``room`` deep. Not kept."""
    found, low, high = plan, 1, max(map(len, plan.plain.notes))
    while low <= high:
        most = (low + high) // 2
        notes = tuple([shorten(note, most, truncation)[0] for note in plan.plain.notes])
        given = Arranged(replace(plan.plain, notes=notes), plan.starts)
        made = make_plan(ctx, scope, given, template, frame, field)
        found, low, high = (made, most + 1, high) if made.depth <= room else (found, low, most - 1)
    return replace(found, plain=plan.plain)  # answers name the question as it was asked


def question_too_long(ctx: AdmissionContext, plans: Sequence[QuestionPlan]) -> PromptTooLong:
    """Make the error of the longest question, which leaves no room for a state."""
    deepest = max(plan.depth for plan in plans)
    at = [plan.depth for plan in plans].index(deepest)
    plan = plans[at]
    cut = 'or set truncation="head", "tail" or "middle"'
    where, way = "", f"shorten the question {cut}"
    if plan.describes:
        where = ", most of it in its descriptions"
        way = f"shorten its descriptions, ask about fewer options at a time, {cut}"
    elif sum(map(len, plan.labels)) > len(plan.plain.text):
        where, way = ", most of it in its labels", "shorten the labels or ask about fewer at a time"
    return PromptTooLong(
        f"it has {deepest} tokens with its longest label{where}; the limit is {ctx.max_length}, the state included; "
        f"{way}",
        tokens=deepest,
        limit=ctx.max_length,
        field=f"questions[{at}]",
    )


def strip_start(pieces: list[Piece]) -> list[Piece]:
    """Leave out leading white space, as a chat template that strips its messages would leave it."""
    for index, (content, trusted) in enumerate(pieces):
        if not isinstance(content, str):
            return pieces[index:]
        if content := content.lstrip():
            return [(content, trusted), *pieces[index + 1 :]]
    return []


def strip_end(pieces: list[Piece]) -> list[Piece]:
    for index in range(len(pieces) - 1, -1, -1):
        content, trusted = pieces[index]
        if not isinstance(content, str):
            return pieces[: index + 1]
        if content := content.rstrip():
            return [*pieces[:index], (content, trusted)]
    return []
