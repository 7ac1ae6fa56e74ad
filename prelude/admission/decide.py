"""Decide: one state, N questions, one tree of tokens and one forward pass. ``decision.py`` draws the tree."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from prelude._native.core import Maker, PromptMould, join_ids
from prelude.admission import checks
from prelude.admission.decision import Decision, assembled, decision_of
from prelude.admission.facts import (
    Facts,
    admitted,
    cache_of,
    make_admitted,
    make_prepared,
    require_lm_head,
    salt_of,
)
from prelude.admission.messages import check_messages, content_text, shorten_messages
from prelude.admission.prepared import Admitted, Outcome, make_tree, shape_of
from prelude.admission.prompts import beginning, is_messages, kept, shorten
from prelude.admission.questions import QuestionPlan, cut_question
from prelude.admission.structured import MAX_TEXT, text_of
from prelude.admission.tokenization import Use, token_ids
from prelude.admission.weighing import replaced, weigh_shifts
from prelude.batch import I32
from prelude.errors import InvalidRequest, PromptTooLong, RequestTooLarge, shown
from prelude.results import Answer, Answers
from prelude.tasks import Decide

_make_answer = Maker(Answer)
INT32_MAX = (1 << 31) - 1  # of ids that the tokenizer made


def prepare_decides(facts: Facts, use: Use, tasks: Sequence[Decide]) -> list[Admitted | Exception]:
    """Of tasks that differ in their state alone. What is wrong with one state is in its place; what is wrong with
    all of the tasks is raised."""
    questions, names = named(tasks[0].questions)
    decision = decision_of(facts, use, tasks[0], questions)
    mould = mould_of(facts, decision, tasks[0], names)
    frame, most = decision.frame, facts.max_chars
    contents: list[tuple[Any, int]] = []  # a state, or what is wrong with it; characters that were cut
    texts: list[str] = []
    for task in tasks:
        state, dropped = task.state, 0
        try:
            if type(state) is not str or len(state) > most or not state.isascii():
                state, dropped = state_content(facts, state, task.truncation)
        except Exception as error:
            contents.append((error, 0))
            continue
        contents.append((state, dropped))
        if (text := frame.written(state)) and not dropped:
            texts.append(text)
    ids: list[Any] = use.encode_all(texts) if texts else []
    ms = use.close() / max(1, len(ids))
    made: list[Any] = [None] * len(ids)
    whole = False
    if mould is not None:
        made, whole = mould.make(ids, INT32_MAX, ms)
    if whole and len(made) == len(tasks):
        return made
    return _one_by_one(facts, tasks, decision, names, contents, iter(zip(ids, made)), ms)


def _one_by_one(
    facts: Facts,
    tasks: Sequence[Decide],
    decision: Decision,
    names: tuple[str, ...] | None,
    contents: Sequence[tuple[Any, int]],
    encoded: Iterator[tuple[I32 | Exception, Admitted | None]],
    ms: float,
) -> list[Admitted | Exception]:
    """``encoded``: of the states that have text, and of whose text nothing was cut, their ids and what came of
    them."""
    found: list[Admitted | Exception] = []
    for task, (content, dropped) in zip(tasks, contents):
        ids, made = next(encoded) if decision.frame.written(content) and not dropped else (None, None)
        if made is not None:
            found.append(made)
        elif isinstance(content, Exception) or isinstance(ids, Exception):
            found.append(content if isinstance(content, Exception) else ids)  # type: ignore[arg-type]
        else:
            try:
                found.append(_admit_fitted(facts, task, decision, names, content, dropped, ids, ms))
            except Exception as error:
                found.append(error)
    return found


def _admit_fitted(
    facts: Facts,
    task: Decide,
    decision: Decision,
    names: tuple[str, ...] | None,
    content: Any,
    dropped: int,
    ids: I32 | None,
    ms: float,
) -> Admitted:
    """A state that is empty, given as ids, too long, or has a tree of its own. ``ids``: of its text."""
    use, frame = Use(facts.encoder, facts.config.default_cache, task), decision.frame
    use.seconds = ms / 1e3
    state = use.encode_pieces(frame.pieces(content)) if ids is None else join_ids(frame.head, ids, frame.foot)
    cut = truncated = 0
    if task.truncation != "error":
        decision, cut = cut_questions(facts, use, decision, len(state), task.truncation)
    if max(len(state), decision.least) > decision.room(facts):
        state, truncated = fit_state(facts, use, state, content, decision, task.truncation)
    if not len(state) and decision.least:
        state = beginning(facts, "state", eos=True)
    cut = truncated + cut or int(dropped + decision.dropped > 0)
    tree, finish = decision.tree(state), partial(answers, decision, names=names)
    return admitted(facts, use, task, tree, decision.readout, finish, truncated=cut, first=len(state))


def mould_of(facts: Facts, decision: Decision, task: Decide, names: tuple[str, ...] | None) -> PromptMould | None:
    """What requests of a decision have in common; ``None`` where each state has a tree of its own, or something was
    cut of the questions. Kept where the questions have no names, which are not part of the decision."""
    mode = task.cache
    known = decision.moulds.get(mode) if names is None and type(mode) is str else None
    if known is None:
        require_lm_head(facts, task)
        cache = cache_of(facts, task)
        if decision.norm == "unconditional" or decision.dropped:
            return None
        known = PromptMould(
            (make_tree, make_prepared, make_admitted),
            shape_of,
            decision.frame.head,
            decision.frame.foot,
            (decision.tail, decision.positions, decision.starts, decision.parents),
            (decision.readout, 0, None, cache, salt_of(task)),
            (partial(answers, decision, names=names),),
            back=0,
            least=decision.least,
            most=decision.room(facts),
        )
        if names is None:
            decision.moulds[mode] = known
    return known


def named(questions: Any) -> tuple[Any, tuple[str, ...] | None]:
    """The questions as a list, and the names of a mapping's. The names reach neither the model nor a cache."""
    if type(questions) is list or type(questions) is tuple or not isinstance(questions, Mapping):
        return questions, None
    for name in questions:
        if not isinstance(name, str) or not name:
            raise InvalidRequest(f"the name {shown(name)} is not a string of 1 or more characters", field="questions")
    return tuple(questions.values()), tuple([str.__str__(name) for name in questions])


def answers(decision: Decision, outcome: Outcome, names: tuple[str, ...] | None = None) -> Answers:
    logprobs = outcome.pairs()
    by_length, relative = decision.norm == "token", not decision.mass
    half = len(logprobs) // 2 if decision.norm == "unconditional" else -1  # the second half is without the state
    found, at = [], 0
    for plan, places in zip(decision.plans, decision.places):
        labels, edges = plan.labels, len(plan.trie.targets) * plan.copies
        if plan.copies == 1:
            weighed = plan.trie.paths.weigh(labels, logprobs, at, half, by_length, relative)
        else:
            weighed = weigh_shifts(plan, logprobs, at, half, by_length, relative)
        if places is not None:
            labels, weighed = replaced(labels, places, weighed)
        found.append(answer(plan, labels, *weighed))
        at += edges
        half += edges if half >= 0 else 0
    return Answers(found, outcome.stats, names)


def answer(
    plan: QuestionPlan,
    labels: tuple[str, ...],
    index: int,
    shares: list[float],
    probabilities: dict[str, float],
    logprobs: dict[str, float],
    mass: float,
) -> Answer:
    """From the numbers of ``LabelPaths.weigh``, in the order of ``labels``."""
    expected = None
    kind = plan.asked.kind
    if kind == "score":
        expected = math.fsum([level * share for level, share in enumerate(shares, start=plan.asked.first)])
    probability = shares[0 if kind == "noul" else index]
    found: Answer = _make_answer(
        labels[index], index, labels, probabilities, logprobs, mass, probability, expected, kind
    )
    return found


# ------------------------------------------------------------------ what does not fit


def cut_questions(facts: Facts, use: Use, decision: Decision, state: int, truncation: str) -> tuple[Decision, int]:
    """With questions that leave room for their state, of ``state`` tokens; and how many tokens were cut. The longer
    of state and question is cut: a question only where its own text has more than half of ``max_length``."""
    room = facts.max_length - min(state, facts.max_length // 2)
    if decision.deepest <= room:
        return decision, 0
    template, frame = decision.frame.template, decision.frame.frame
    found = [
        plan
        if plan.depth <= room
        else cut_question(facts, use, plan, template, frame, room, truncation, f"questions[{at}]")
        for at, plan in enumerate(decision.plans)
    ]
    cut = sum(plan.tokens for plan in decision.plans) - sum(plan.tokens for plan in found)
    return assembled(found, decision.frame, decision.norm, decision.mass, decision.places, decision.dropped), cut


def fit_state(
    facts: Facts, use: Use, state: I32, content: Any, decision: Decision, truncation: str
) -> tuple[I32, int]:
    """The state's ids (those of ``content``), cut to the decision's room; labels never are."""
    room, tokens = decision.room(facts), max(len(state), decision.least)
    if truncation == "error" or room < decision.least:
        raise state_too_long(facts, tokens, decision.deepest, decision.asked)
    ids, cuttable = use.encode_cuttable(decision.frame.pieces(content))
    return ids[kept(facts, cuttable, tokens - room, truncation, "state", room)], tokens - room


def state_too_long(facts: Facts, state: int, deepest: int, asked: int) -> InvalidRequest:
    if deepest >= facts.max_length:
        return PromptTooLong(
            f"the longest question has {deepest} tokens with its label; the limit is {facts.max_length}, the state "
            "included; shorten the question",
            tokens=deepest,
            limit=facts.max_length,
            field="questions",
        )
    if state + deepest > facts.max_length:
        return PromptTooLong(
            f"{state} tokens of state and {deepest} of the longest question and label; the limit is "
            f'{facts.max_length}; shorten the state or set truncation="head", "tail" or "middle"',
            tokens=state + deepest,
            limit=facts.max_length,
            field="state",
        )
    return RequestTooLarge(
        f"{state} tokens of state and {asked} of questions and labels; one step computes at most "
        f"{facts.step_tokens} (from EngineConfig.max_step_tokens); ask them in several calls or raise the limit",
        field="state",
    )


def state_content(facts: Facts, state: Any, truncation: str) -> tuple[str | I32, int]:
    """Text and ids as they are, and how many characters were cut. Messages are written out as "role: content"
    paragraphs: they are what the question is about, so none of them speaks to the model. Other objects and arrays
    become their canonical text."""
    if is_data(state):
        state = text_of(state, "state", MAX_TEXT)
    if isinstance(state, str):
        text, _, dropped = shorten(state, facts.max_chars, truncation)
        return checks.text(text, "state", facts.max_chars), dropped
    if not is_messages(state, "state"):
        return token_ids(state, "state", facts.encoder, facts.max_chars), 0
    state, dropped = shorten_messages(facts, state, "state", truncation)
    check_messages(facts, state, "state")
    return transcript(state), dropped


def is_data(state: Any) -> bool:
    """Whether a state is an object, or an array of strings, arrays, or objects without roles: neither text, nor
    token ids, nor messages."""
    if isinstance(state, Mapping):
        return True
    if not isinstance(state, list | tuple) or not state:
        return False
    first = state[0]
    return "role" not in first if isinstance(first, Mapping) else isinstance(first, str | list | tuple)


def transcript(messages: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for message in messages:
        content = message.get("content")
        shown_content = content if isinstance(content, str) else content_text(content, "state", 1 << 62)
        lines.append(f"{message['role']}: {shown_content}")
    return "\n\n".join(lines)
