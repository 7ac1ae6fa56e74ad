"""A question as tokens and a label trie. Depends on template, question and labels alone, so it is kept."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeAlias

from prelude.admission.asked import Asked, asked_of, check_characters
from prelude.admission.chat import Frame
from prelude.admission.facts import CHARS_PER_TOKEN, Facts
from prelude.admission.labels import LabelTrie, build_trie
from prelude.admission.orders import Arranged, arranged, shifted, split
from prelude.admission.prompts import kept, shorten
from prelude.admission.template import DecisionTemplate
from prelude.admission.tokenization import Piece, Use
from prelude.batch import I32
from prelude.errors import InvalidRequest, RequestTooLarge, shown
from prelude.tasks import Choice, Noul, Orders, Question, Score

Places: TypeAlias = tuple[int, ...] | None
EVEN = 3
"""Tokens by which labels may differ in length before a comparison of their joint logprobs is warned about."""

log = logging.getLogger("prelude.engine")


@dataclass(frozen=True, slots=True)
class QuestionPlan:
    asked: Asked
    labels: tuple[str, ...]
    label_ids: tuple[tuple[int, ...], ...]
    token_ids: I32  # the question part, with what follows it in a chat template; at least one
    starts: tuple[int, ...]  # the shifts of the options that are shown
    shifts: tuple[I32, ...]  # what follows ``token_ids`` in each of them; () where there is one
    trie: LabelTrie  # behind each shift
    tokens: int  # that it adds to a tree
    depth: int  # that it adds to the longest sequence
    uneven: bool  # its labels' lengths differ by more than ``EVEN`` tokens
    chars: int
    nbytes: int

    @property
    def copies(self) -> int:
        """How often the trie is read."""
        return len(self.starts)


def plan_questions(
    facts: Facts,
    use: Use,
    questions: Sequence[Question],
    template: DecisionTemplate,
    frame: Frame,
    truncation: str,
    orders: Orders = "given",
) -> tuple[list[QuestionPlan], list[Places], int]:
    """One plan per question, the places of its labels in the plan, and how many characters were cut of their texts.
    ``InvalidRequest`` names the question that is wrong, ``questions[i]``."""
    check_list(facts, questions)
    plans: list[QuestionPlan] = []
    places: list[Places] = []
    most = max(facts.max_chars, CHARS_PER_TOKEN * facts.step_tokens)
    left, dropped = most, 0
    for index, question in enumerate(questions):
        here = f"questions[{index}]"
        asked = asked_of(facts, question, here)
        if len(asked.text) > facts.max_chars:
            text, _, cut = shorten(asked.text, facts.max_chars, truncation)
            asked, dropped = replace(asked, text=text), dropped + cut
        shown_in = arranged(asked, orders, template, here)
        key = (template, shown_in.asked, shown_in.starts, use.salt)
        plan: QuestionPlan | None = None if use.alone else facts.plans.get(key)
        left -= check_characters(facts, asked, here) * len(shown_in.starts) if plan is None else plan.chars
        if left < 0:
            raise RequestTooLarge(
                f"questions and labels have more than {most} characters, checked before tokenising; ask them in "
                "several calls",
                field="questions",
            )
        if plan is None:
            plan = make_plan(facts, use, shown_in, template, frame, here)
            if not use.alone:
                facts.plans.put(key, plan)
        plans.append(plan)
        places.append(shown_in.places)
    return plans, places, dropped


def check_list(facts: Facts, questions: Sequence[Question]) -> None:
    if type(questions) is not list and type(questions) is not tuple:
        if isinstance(questions, Choice | Noul | Score):
            raise InvalidRequest("one question alone; give a list of questions", field="questions")
        if isinstance(questions, str | bytes) or not isinstance(questions, Sequence):
            raise InvalidRequest(f"{shown(questions)} is not a list of questions", field="questions")
    most = facts.config.max_questions
    if not questions or (most is not None and len(questions) > most):
        takes = "1 or more" if most is None else f"1 to {most} (EngineConfig.max_questions)"
        raise InvalidRequest(f"{len(questions)} questions; it takes {takes}", field="questions")
    if len(questions) > facts.step_tokens:  # each has a token
        raise RequestTooLarge(
            f"{len(questions)} questions; all of their tokens are one step of at most {facts.step_tokens} (from "
            "EngineConfig.max_step_tokens); ask them in several calls or raise the limit",
            field="questions",
        )


@lru_cache(maxsize=256)
def warn_of_lengths(labels: tuple[str, ...], label_ids: tuple[tuple[int, ...], ...]) -> None:
    """Once for each set of labels: a joint logprob sums over a label's tokens, so that longer labels score lower."""
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
    facts: Facts, use: Use, given: Arranged, template: DecisionTemplate, frame: Frame, field: str
) -> QuestionPlan:
    asked, starts = given.asked, given.starts
    labels = template.labels_of(asked)
    rows = [use.encode_pieces(question_pieces(asked, labels, start, template, frame)) for start in starts]
    if not all(map(len, rows)):
        raise InvalidRequest("the question tokenises to nothing", field=f"{field}.question")
    token_ids, shifts = split(rows)
    if template.letters and asked.kind == "choice" and len(starts) > 1:
        raise InvalidRequest(
            'a template with letters names options by their place, which a shift changes; orders takes "given" or '
            '"sorted" with it',
            field="orders",
        )
    label_ids, trie = labels_of(facts, use, template.answers_of(asked, labels), template, f"{field}.labels")
    fed = sum(len(ids) for _, ids in trie.segments)
    chars = asked.chars * len(starts)
    own = len(token_ids) + sum(map(len, shifts))
    edges = sum(map(len, label_ids))
    return QuestionPlan(
        asked=asked,
        labels=labels,
        label_ids=label_ids,
        token_ids=token_ids,
        starts=starts,
        shifts=shifts,
        trie=trie,
        tokens=own + fed * len(starts),
        depth=max(map(len, rows)) + trie.depth,
        uneven=int(trie.lengths.max() - trie.lengths.min()) > EVEN,
        chars=chars,
        nbytes=1024 + 8 * chars + 8 * own + 64 * edges + 256 * (len(labels) + len(trie.segments)),
    )


def labels_of(
    facts: Facts, use: Use, labels: tuple[str, ...], template: DecisionTemplate, field: str
) -> tuple[tuple[tuple[int, ...], ...], LabelTrie]:
    """The ids of the labels and their trie; kept, since many questions may have the same labels."""
    key = (template, labels, use.salt)
    found: Any = None if use.alone else facts.tries.get(key)
    if found is None:
        label_ids = tuple(tuple(use.encode_pieces(template.label_pieces(label)).tolist()) for label in labels)
        found = label_ids, build_trie(label_ids, labels, field)
        if not use.alone:
            facts.tries.put(key, found)
    ids, trie = found
    return ids, trie


def question_pieces(
    asked: Asked, labels: tuple[str, ...], start: int, template: DecisionTemplate, frame: Frame
) -> list[Piece]:
    """With the label at ``start`` first."""
    pieces = template.question_pieces(*shifted(asked, labels, start))
    return [*(strip_end(pieces) if frame.strips else pieces), (frame.after, True)]


def cut_question(
    facts: Facts,
    use: Use,
    plan: QuestionPlan,
    template: DecisionTemplate,
    frame: Frame,
    room: int,
    truncation: str,
    field: str,
) -> QuestionPlan:
    """The plan with as many tokens of the question's own text left out as make it at most ``room`` deep, where that
    text has more than half of ``max_length``. Not kept."""
    rows = []
    for start in plan.starts:
        pieces = question_pieces(plan.asked, plan.labels, start, template, frame)
        listing = template.listing(*shifted(plan.asked, plan.labels, start))
        ids, cuttable = use.encode_cuttable(pieces, fixed=(listing,))
        if 2 * int(cuttable.sum()) <= facts.max_length:
            return plan
        excess = len(ids) + plan.trie.depth - room
        rows.append(ids[kept(facts, cuttable, excess, truncation, f"{field}.question", room)] if excess > 0 else ids)
    token_ids, shifts = split(rows)
    fed = plan.tokens - len(plan.token_ids) - sum(map(len, plan.shifts))
    tokens = len(token_ids) + sum(map(len, shifts)) + fed
    depth = max(map(len, rows)) + plan.trie.depth
    return replace(plan, token_ids=token_ids, shifts=shifts, tokens=tokens, depth=depth)


def strip_start(pieces: list[Piece]) -> list[Piece]:
    """Without leading white space, as a chat template that strips its messages would leave it."""
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
