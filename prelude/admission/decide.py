"""Decide: one state, N questions, one tree of tokens and one forward pass. ``decision.py`` draws the tree."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np

from prelude._native.core import join_ids
from prelude.admission.context import LEAST_MASS, AdmissionContext, admitted, warn_of_mass
from prelude.admission.conversation import is_conversation, turns_of
from prelude.admission.decision import Decision, assembled, decision_of
from prelude.admission.labels import Weighed, shares_of
from prelude.admission.messages import check_bounds, shorten_messages
from prelude.admission.plain_question import PlainQuestion
from prelude.admission.prepared import Admitted, Outcome
from prelude.admission.prompts import beginning, kept, shorten
from prelude.admission.questions import LabelOrder, QuestionPlan, cut_notes, cut_question, question_too_long
from prelude.admission.structured import MAX_TEXT, text_of
from prelude.admission.template import template_hash
from prelude.admission.tokenization import TokenizationScope, token_ids
from prelude.errors import InvalidRequest, PromptTooLong, RequestTooLarge, shown
from prelude.fitting.question import FittedQuestion
from prelude.readouts.batch import I32
from prelude.results import Answer, Answers, AskedQuestion
from prelude.tasks import Decide
from prelude.values import validation


def prepare_decide(ctx: AdmissionContext, scope: TokenizationScope, task: Decide) -> Admitted:
    questions, names = named(task.questions)
    decision = decision_of(ctx, scope, task, questions)
    content, dropped = state_content(ctx, task.state, task.truncation)
    frame = decision.frame
    text = "" if dropped else frame.written(content)
    if text:
        state = join_ids(frame.head, scope.encode(text), frame.foot)
    else:
        state = scope.encode_pieces(frame.pieces(content))
    cut = truncated = 0
    if task.truncation != "error":
        decision, cut = cut_questions(ctx, scope, decision, len(state), task.truncation)
    if max(len(state), decision.least) > decision.room(ctx):
        state, truncated = fit_state(ctx, scope, state, content, decision, task.truncation)
    if not len(state) and decision.least:
        state = beginning(ctx, "state", eos=True)
    cut = truncated + cut or int(dropped + decision.dropped > 0)
    finish = partial(_answers, decision, asked_of(ctx, decision), names, ctx.warned)
    return admitted(ctx, scope, task, decision.tree(state), decision.readout, finish, truncated=cut, first=len(state))


def named(questions: Any) -> tuple[Any, tuple[str, ...] | None]:
    """Return the questions as a list, and the names of a mapping's. The names reach neither the model nor a cache."""
    if type(questions) is list or type(questions) is tuple or not isinstance(questions, Mapping):
        return questions, None
    asked, names = tuple(questions.values()), tuple(questions)  # the caller's own class: its errors are its own
    for name in names:
        if not isinstance(name, str) or not name:
            said = f"the name {shown(name)} is not a string of 1 or more characters"
            raise InvalidRequest(said, field="questions")
    return asked, tuple([str.__str__(name) for name in names])  # a subclass of str is copied as a plain string


def is_fitted(question: Any) -> bool:
    return type(question) is FittedQuestion


def asks_fitted(questions: Any) -> bool:
    if type(questions) is not list and type(questions) is not tuple:
        questions = tuple(questions.values()) if isinstance(questions, Mapping) else ()
    return any(map(is_fitted, questions))


def mixes_fitted(questions: Any) -> bool:
    return asks_fitted(questions) and not all(map(is_fitted, named(questions)[0]))


def asked_of(ctx: AdmissionContext, decision: Decision) -> list[AskedQuestion]:
    """Return the question that stands in each answer; made once for a decision."""
    if not decision.asked:
        template = template_hash(decision.frame.template)
        decision.asked[:] = [
            AskedQuestion(plan.plain.text, plan.labels, plan.plain.notes, template, decision.norm, ctx.model)
            for plan in decision.plans
        ]
    return decision.asked


def _answers(
    decision: Decision,
    asked: list[AskedQuestion],
    names: tuple[str, ...] | None,
    warned: list[str],
    outcome: Outcome,
) -> Answers:
    """The answers of an outcome. With ``length_norm="unconditional"`` the second half of its numbers is without the
    state."""
    logprobs = outcome.pairs()
    at, alone = 0, len(logprobs) // 2 if decision.norm == "unconditional" else -1
    found = []
    for plan, places, question in zip(decision.plans, decision.places, asked):
        labels, weighed = _weighed(plan, places, logprobs, at, alone, decision.norm == "token", not decision.mass)
        found.append(made_answer(warned, plan.plain, question, labels, weighed))
        edges = len(plan.trie.targets) * len(plan.starts)
        at += edges
        alone += edges if alone >= 0 else 0
    return Answers(found, outcome.stats, names)


def made_answer(
    warned: list[str], plain: PlainQuestion, asked: AskedQuestion, labels: tuple[str, ...], weighed: Weighed
) -> Answer:
    index, shares, probabilities, logprobs, mass = weighed
    if mass < LEAST_MASS:
        warn_of_mass(warned, asked, mass)
    kind, expected = plain.kind, None
    if kind == "score":
        expected = math.fsum([level * share for level, share in enumerate(shares, plain.first)])
    share = shares[0 if kind == "noul" else index]
    return Answer(labels[index], index, labels, probabilities, logprobs, mass, share, expected, kind, asked)


_USUAL = {field.name: field.default for field in fields(Decide)}


def refuse_settings(task: Decide, reader: str, reasons: Mapping[str, str]) -> None:
    """Refuse settings that ``reader`` does not follow, for a reason by the name of each."""
    for name, why in reasons.items():
        value, usual = getattr(task, name), _USUAL[name]
        if value is not usual and value != usual:
            said = f"{shown(value)} has no meaning for {reader}: {why}; leave it at {usual!r}"
            raise InvalidRequest(said, field=name)


def _weighed(
    plan: QuestionPlan,
    places: LabelOrder,
    logprobs: list[float],
    first: int,
    alone: int,
    by_length: bool,
    relative: bool,
) -> tuple[tuple[str, ...], Weighed]:
    """Return the labels in the caller's order and their numbers."""
    if len(plan.starts) == 1 and not (plan.lettered and plan.starts[0]):
        weighed: Weighed = plan.trie.weigh(plan.labels, logprobs, first, alone, by_length, relative)
    else:
        weighed = weigh_shifts(plan, logprobs, first, alone, by_length, relative)
    return (plan.labels, weighed) if places is None else replaced(plan.labels, places, weighed)


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
    return assembled(found, decision.frame, decision.norm, decision.mass, decision.places, decision.dropped), cut


def fit_state(
    ctx: AdmissionContext, scope: TokenizationScope, state: I32, content: Any, decision: Decision, truncation: str
) -> tuple[I32, int]:
    """Return the state's ids (those of ``content``), cut to the decision's room. Labels are never cut."""
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
    """Return text and ids as they are, and the number of cut characters. Conversations become "role: content"
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
    """Return whether a state that is no conversation is an object, an empty array or an array of strings, arrays or
    objects: no text and no token ids."""
    if isinstance(state, Mapping):
        return True
    return isinstance(state, list | tuple) and (not state or isinstance(state[0], str | Mapping | list | tuple))


def transcript(turns: Sequence[Mapping[str, str]]) -> str:
    return "\n\n".join(
        f"{turn['role']} ({turn['name']}): {turn['content']}"
        if "name" in turn
        else f"{turn['role']}: {turn['content']}"
        for turn in turns
    )


def weigh_shifts(
    plan: QuestionPlan, logprobs: list[float], at: int, alone: int, by_length: bool, relative: bool
) -> Weighed:
    """The means over the plan's shifts, whose edges stand one after another from ``at`` on, and without the state
    from ``alone`` on (-1: nowhere). The logarithms of the probabilities are averaged, and the joint logprobs, and the
    masses. Letters are read as the labels in their places. The first label in the plan's order wins a tie."""
    weigh, labels, edges = plan.trie.weigh, plan.labels, len(plan.trie.targets)
    logs: list[dict[str, float]] = []
    joints: list[dict[str, float]] = []
    masses: list[float] = []
    for shift, start in enumerate(plan.starts):
        here, without = at + shift * edges, alone + shift * edges if alone >= 0 else -1
        read = labels[start:] + labels[:start] if plan.lettered else labels
        logs.append(weigh(read, logprobs, here, without, by_length, True)[3])
        if not relative:
            _, _, _, joint, mass = weigh(read, logprobs, here)
            joints.append(joint)
            masses.append(mass)
    scores = [_mean([log[label] for log in logs]) for label in labels]
    shares, best, rest = shares_of(scores)
    if relative:
        level = best + rest
        means, mass = [score - level for score in scores], math.nan
    else:
        means, mass = [_mean([joint[label] for joint in joints]) for label in labels], _mean(masses)
    return scores.index(best), shares, dict(zip(labels, shares)), dict(zip(labels, means)), mass


def replaced(labels: tuple[str, ...], places: tuple[int, ...], found: Weighed) -> tuple[tuple[str, ...], Weighed]:
    """Put numbers in the caller's order: ``places[i]`` is where the caller's label i is in ``labels``."""
    index, shares, probabilities, logprobs, mass = found
    order = tuple([labels[at] for at in places])
    by_label = {label: probabilities[label] for label in order}
    logs = {label: logprobs[label] for label in order}
    return order, (places.index(index), [shares[at] for at in places], by_label, logs, mass)


def _mean(values: list[float]) -> float:
    """Sum with one rounding: the order of the values makes no difference."""
    return math.fsum(values) / len(values)
