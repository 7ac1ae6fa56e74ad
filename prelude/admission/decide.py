"""Decide: one state, N questions, one tree of tokens and one forward pass. ``decision.py`` draws the tree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from prelude._native.core import AnswerReader, DecisionPreparer, Maker, PromptMould, join_ids, names_of
from prelude.admission import validation
from prelude.admission.context import (
    LEAST_MASS,
    AdmissionContext,
    admitted,
    cache_of,
    make_admitted,
    make_prepared,
    require_lm_head,
    salt_of,
    warn_of_mass,
)
from prelude.admission.conversation import is_conversation, turns_of
from prelude.admission.decision import Decision, StateFrame, assembled, decision_of
from prelude.admission.messages import MAX_VALUES, check_bounds, shorten_messages
from prelude.admission.prepared import Admitted, make_tree, shape_of
from prelude.admission.prompts import beginning, kept, shorten
from prelude.admission.question_keys import QUESTION_KEYS
from prelude.admission.questions import Places, QuestionPlan, cut_notes, cut_question, question_too_long
from prelude.admission.structured import MAX_TEXT, text_of
from prelude.admission.template import template_hash
from prelude.admission.tokenization import TokenizationScope, token_ids
from prelude.admission.weighing import Weighed, replaced, weigh_shifts
from prelude.batch import I32
from prelude.errors import InvalidRequest, PromptTooLong, RequestTooLarge, shown
from prelude.results import Answer, Answers, AskedQuestion
from prelude.tasks import Decide

_make_answer = Maker(Answer)
MAX_PLAIN = MAX_VALUES // 3  # messages of a role and a content, each of which counts as three values


def decision_preparer(ctx: AdmissionContext) -> DecisionPreparer:
    """Prepares decisions that differ in their state alone: ``preparer(tasks)``. The native part knows the questions
    that were asked before, and states of plain text; it calls these functions for the others."""
    return DecisionPreparer(
        ctx,
        QUESTION_KEYS,
        most_messages=MAX_PLAIN,
        scope=partial(TokenizationScope, ctx.encoder, ctx.config.default_cache),
        named=named,
        salt=salt_of,
        decision=partial(decision_of, ctx),
        mould=partial(mould_of, ctx),
        contents=partial(_contents, ctx),
        one_by_one=partial(_one_by_one, ctx),
    )


def _contents(
    ctx: AdmissionContext, tasks: Sequence[Decide], frame: StateFrame
) -> tuple[list[tuple[Any, int]], list[str]]:
    """For each task its state, or the error of it, and the number of characters that were cut from it; and the texts
    of the states that have text and were not cut."""
    contents: list[tuple[Any, int]] = []
    texts: list[str] = []
    for task in tasks:
        try:
            state, dropped = state_content(ctx, task.state, task.truncation)
        except Exception as error:
            contents.append((error, 0))
            continue
        contents.append((state, dropped))
        if (text := frame.written(state)) and not dropped:
            texts.append(text)
    return contents, texts


def _one_by_one(
    ctx: AdmissionContext,
    tasks: Sequence[Decide],
    decision: Decision,
    names: tuple[str, ...] | None,
    contents: Sequence[tuple[Any, int]],
    encoded: Iterator[tuple[I32 | Exception, Admitted | None]],
    ms: float,
) -> list[Admitted | Exception]:
    """``encoded``: for each state that has text and was not cut, its ids, and the ``Admitted`` that was made of
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
                found.append(_admit_fitted(ctx, task, decision, names, content, dropped, ids, ms))
            except Exception as error:
                found.append(error)
    return found


def _admit_fitted(
    ctx: AdmissionContext,
    task: Decide,
    decision: Decision,
    names: tuple[str, ...] | None,
    content: Any,
    dropped: int,
    ids: I32 | None,
    ms: float,
) -> Admitted:
    """A state that is empty, given as ids, too long, or has a tree of its own. ``ids``: of its text."""
    scope, frame = TokenizationScope(ctx.encoder, ctx.config.default_cache, task), decision.frame
    scope.seconds = ms / 1e3
    state = scope.encode_pieces(frame.pieces(content)) if ids is None else join_ids(frame.head, ids, frame.foot)
    cut = truncated = 0
    if task.truncation != "error":
        decision, cut = cut_questions(ctx, scope, decision, len(state), task.truncation)
    if max(len(state), decision.least) > decision.room(ctx):
        state, truncated = fit_state(ctx, scope, state, content, decision, task.truncation)
    if not len(state) and decision.least:
        state = beginning(ctx, "state", eos=True)
    cut = truncated + cut or int(dropped + decision.dropped > 0)
    tree, finish = decision.tree(state), reader_of(ctx, decision, names)
    return admitted(ctx, scope, task, tree, decision.readout, finish, truncated=cut, first=len(state))


def mould_of(ctx: AdmissionContext, decision: Decision, task: Decide) -> tuple[PromptMould | None, AnswerReader]:
    """The shared parts of a decision's requests, and the reader of its answers; both are kept. No mould where each
    state has a tree of its own, or the questions were cut."""
    require_lm_head(ctx, task)
    cache = cache_of(ctx, task)
    mould, reader = None, reader_of(ctx, decision, None)
    if decision.norm != "unconditional" and not decision.dropped:
        mould = PromptMould(
            (make_tree, make_prepared, make_admitted),
            shape_of,
            decision.frame.head,
            decision.frame.foot,
            (decision.tail, decision.positions, decision.starts, decision.parents),
            (decision.readout, 0, None, cache),
            (reader,),
            back=0,
            least=decision.least,
            most=decision.room(ctx),
        )
    if type(task.cache) is str:  # a class of the caller's may be equal to a mode and be written as another
        decision.moulds[task.cache] = mould, reader
    return mould, reader


def named(questions: Any) -> tuple[Any, tuple[str, ...] | None]:
    """The questions as a list, and the names of a mapping's. The names reach neither the model nor a cache."""
    if type(questions) is list or type(questions) is tuple or not isinstance(questions, Mapping):
        return questions, None
    asked, names = tuple(questions.values()), tuple(questions)  # the caller's own class: its errors are its own
    try:
        return asked, names_of(names)
    except ValueError as error:
        said = f"the name {shown(error.args[0])} is not a string of 1 or more characters"
        raise InvalidRequest(said, field="questions") from None


def reader_of(ctx: AdmissionContext, decision: Decision, names: tuple[str, ...] | None) -> AnswerReader:
    """The object that makes ``Answers`` of an outcome of the decision."""
    template = template_hash(decision.frame.template)
    questions = []
    for plan, places in zip(decision.plans, decision.places):
        plain, edges = plan.plain, len(plan.trie.targets) * plan.copies
        asked = AskedQuestion(plain.text, plan.labels, plain.notes, template, decision.norm, ctx.model)
        weigh = _weigh(plan, places)
        questions.append((plan.trie.paths, plan.labels, edges, plain.kind, plain.first, weigh, asked))
    return AnswerReader(
        _make_answer,
        Answers,
        tuple(questions),
        names,
        unconditional=decision.norm == "unconditional",
        by_length=decision.norm == "token",
        relative=not decision.mass,
        least_mass=LEAST_MASS,
        low_mass=partial(warn_of_mass, ctx.warned),
    )


def _weigh(plan: QuestionPlan, places: Places) -> Callable[..., tuple[tuple[str, ...], Weighed]] | None:
    """How a question is weighed whose options are shown in several orders, or in another order than the caller's."""
    if plan.copies == 1 and places is None:
        return None

    def weigh(
        logprobs: list[float], first: int, alone: int, by_length: bool, relative: bool
    ) -> tuple[tuple[str, ...], Weighed]:
        if plan.copies == 1 and not (plan.lettered and plan.starts[0]):
            weighed = plan.trie.paths.weigh(plan.labels, logprobs, first, alone, by_length, relative)
        else:
            weighed = weigh_shifts(plan, logprobs, first, alone, by_length, relative)
        return (plan.labels, weighed) if places is None else replaced(plan.labels, places, weighed)

    return weigh


# ------------------------------------------------------------------ texts that do not fit


def cut_questions(
    ctx: AdmissionContext, scope: TokenizationScope, decision: Decision, state: int, truncation: str
) -> tuple[Decision, int]:
    """With questions that leave room for their state, of ``state`` tokens; and how many tokens were cut. The longer
    of state and question is cut: a question only where its own text has more than half of ``max_length``."""
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
    return assembled(found, decision.frame, decision.norm, decision.mass, decision.places, decision.dropped), cut


def fit_state(
    ctx: AdmissionContext, scope: TokenizationScope, state: I32, content: Any, decision: Decision, truncation: str
) -> tuple[I32, int]:
    """The state's ids (those of ``content``), cut to the decision's room; labels never are."""
    room, tokens = decision.room(ctx), max(len(state), decision.least)
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


def state_content(ctx: AdmissionContext, state: Any, truncation: str) -> tuple[str | I32, int]:
    """Text and ids as they are, and how many characters were cut. Conversations are written out as "role: content"
    paragraphs: the question is about them, so none of their messages is an instruction to the model. Other objects
    and arrays become their canonical text."""
    if is_conversation(state):
        messages, dropped = shorten_messages(ctx, state, "state", truncation)
        check_bounds(ctx, messages, "state")
        return transcript(turns_of(messages, "state")), dropped
    if is_data(state):
        state = text_of(state, "state", MAX_TEXT)
    if isinstance(state, str):
        text, _, dropped = shorten(state, ctx.max_chars, truncation)
        return validation.text(text, "state", ctx.max_chars), dropped
    if isinstance(state, bytes | bytearray) or not isinstance(state, Sequence | np.ndarray):
        raise validation.wrong_type(state, "state", "text, an object, an array or token ids")
    return token_ids(state, "state", ctx.encoder, ctx.max_chars), 0


def is_data(state: Any) -> bool:
    """Whether a state that is no conversation is an object, or an array of strings, arrays or objects: neither text
    nor token ids."""
    if isinstance(state, Mapping):
        return True
    return isinstance(state, list | tuple) and bool(state) and isinstance(state[0], str | Mapping | list | tuple)


def transcript(turns: Sequence[Mapping[str, str]]) -> str:
    return "\n\n".join(
        f"{turn['role']} ({turn['name']}): {turn['content']}"
        if "name" in turn
        else f"{turn['role']}: {turn['content']}"
        for turn in turns
    )
