"""Decide: one state, N questions, one tree of tokens and one forward pass; and the answers of its numbers.

``decision.py`` draws the tree behind a state and makes it once for equal questions.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from prelude.admission.context import AdmissionContext
from prelude.admission.conversation import is_conversation, turns_of
from prelude.admission.decision import Decision, StateFrame, cut_questions, fit_state, make_decision
from prelude.admission.labels import LabelTrie
from prelude.admission.messages import check_bounds, shorten_messages
from prelude.admission.plain_question import PlainQuestion
from prelude.admission.prepared import Outcome, Parts, TokenTree
from prelude.admission.prompts import beginning, shorten
from prelude.admission.questions import LabelOrder, QuestionPlan
from prelude.admission.structured import MAX_TEXT, text_of
from prelude.admission.template import DecisionTemplate, template_hash
from prelude.admission.tokenization import TokenizationScope, token_ids
from prelude.errors import InvalidRequest, shown
from prelude.fitting.question import FittedQuestion
from prelude.readouts.batch import I32
from prelude.results import Answer, Answers, AskedQuestion
from prelude.tasks import Choice, Decide, Noul, Score
from prelude.values import validation

# The best label's index, shares in order, the same by label, logprobs by label, mass.
Weighed: TypeAlias = tuple[int, list[float], dict[str, float], dict[str, float], float]
LEAST_MASS = 0.01
"""Summed probability of a question's labels. Below it a warning is due."""
log = logging.getLogger("prelude.engine")


def prepare_decide(ctx: AdmissionContext, scope: TokenizationScope, task: Decide) -> Parts:
    questions, names = named(task.questions)
    decision = decision_of(ctx, scope, task, questions)
    content, dropped = state_content(ctx, task.state, task.truncation)
    frame = decision.frame
    text = "" if dropped else written(frame, content)
    state = [frame.head, scope.encode(text), frame.foot] if text else [scope.encode_pieces(frame.pieces(content))]
    tokens = sum(map(len, state))
    cut = truncated = 0
    if task.truncation != "error":
        decision, cut = cut_questions(ctx, scope, decision, tokens, task.truncation)
    if max(tokens, decision.least) > decision.room:
        ids, truncated = fit_state(ctx, scope, tokens, content, decision, task.truncation)
        state, tokens = [ids], len(ids)
    if not tokens and decision.least:
        state, tokens = [beginning(ctx, "state", eos=True)], 1
    tree = TokenTree.build(decision.segments, before=state)
    cut = truncated + cut or min(dropped + decision.dropped, 1)
    finish = partial(_answers, decision, asked_of(ctx, decision), names, ctx.warned)
    return Parts(tree, decision.readout, finish, truncated=cut, first=tokens)


def decision_of(ctx: AdmissionContext, scope: TokenizationScope, task: Decide, questions: Any) -> Decision:
    """Return the decision of a task and its questions: the kept one if the same was asked with the same salt."""
    key = None if scope.alone else question_key(task, questions)
    if key is None:
        return make_decision(ctx, scope, task, questions)
    known: Decision | None = scope.encoder.kept.get_for(key, scope.salt)
    if known is None:
        known = make_decision(ctx, scope, task, questions)
        known = scope.encoder.kept.put_for(key, scope.salt, known, known.nbytes)
    return known


def written(frame: StateFrame, content: Any) -> str:
    """Return the run of text that a state is encoded as, between ``frame.head`` and ``frame.foot``. Empty for a state
    of ids or without text: its ids are those of ``frame.pieces``."""
    if not isinstance(content, str):
        return ""
    text = content.lstrip() if frame.strips else content
    return f"{frame.before}{text}{frame.after}" if text else ""


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


_USUAL = {field.name: field.default for field in fields(Decide)}


def refuse_settings(task: Decide, reader: str, reasons: Mapping[str, str]) -> None:
    """Refuse settings that ``reader`` does not follow, for a reason by the name of each."""
    for name, why in reasons.items():
        value, usual = getattr(task, name), _USUAL[name]
        if value is not usual and value != usual:
            said = f"{shown(value)} has no meaning for {reader}: {why}; leave it at {usual!r}"
            raise InvalidRequest(said, field=name)


# ------------------------------------------------------------------ the kept decision

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


# ------------------------------------------------------------------ the state


def state_content(ctx: AdmissionContext, state: Any, truncation: str) -> tuple[str | I32, int]:
    """Return text and ids as they are, and the number of cut characters. Conversations become "role: content"
    paragraphs: the question is about them, so none of their messages is an instruction to the model. Other objects
    and arrays become their canonical text."""
    if isinstance(state, str):
        dropped = 0
        if truncation != "error":
            state, _, dropped = shorten(state, ctx.max_chars, truncation)
        return validation.text(state, "state", ctx.max_chars), dropped
    if is_conversation(state):
        messages, dropped = shorten_messages(ctx, state, "state", truncation)
        check_bounds(ctx, messages, "state")
        return transcript(turns_of(messages, "state")), dropped
    if is_data(state):
        return state_content(ctx, text_of(state, "state", MAX_TEXT), truncation)
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


# ------------------------------------------------------------------ the answers


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


def warn_of_mass(warned: list[str], asked: AskedQuestion, mass: float) -> None:
    """Warn, once for an engine (``warned``), that its model would not have answered with any of the labels."""
    if not warned:
        warned.append(asked.question)
        log.warning(
            "question %s: its labels have a probability of %.1g together (answer.mass), so that the model would have "
            "answered something else, and the probabilities among them follow chance; ask in other words, or load a "
            "model that was trained for such questions. Later answers of this engine are not warned about",
            shown(asked.question),
            mass,
        )


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
        weighed: Weighed = weigh(plan.trie, plan.labels, logprobs, first, alone, by_length, relative)
    else:
        weighed = weigh_shifts(plan, logprobs, first, alone, by_length, relative)
    return (plan.labels, weighed) if places is None else replaced(plan.labels, places, weighed)


def weigh(
    trie: LabelTrie,
    labels: tuple[str, ...],
    logprobs: list[float],
    first: int,
    alone: int = -1,
    by_length: bool = False,
    relative: bool = False,
) -> Weighed:
    """Return the numbers of ``labels``, whose edges have ``logprobs[first:]``. ``alone``: where those without the
    state begin, -1 for none; they are subtracted. ``by_length``: joint logprobs are compared after a division by
    the label's tokens. ``relative``: the logprobs given back are those of the probabilities, and the mass is NaN.
    The first label wins a tie."""
    scores = joint = _sums(trie, logprobs, first)
    if alone >= 0:
        scores = [own - other for own, other in zip(joint, _sums(trie, logprobs, alone))]
    if by_length:
        scores = [score / len(path) for score, path in zip(scores, trie.paths)]
    shares, best, rest = shares_of(scores)
    mass = math.nan
    if relative:
        joint = [score - best - rest for score in scores]
    else:
        mass = min(1.0, math.fsum([math.exp(joint[label]) for label in trie.counted]))
    return scores.index(best), shares, dict(zip(labels, shares)), dict(zip(labels, joint)), mass


def _sums(trie: LabelTrie, logprobs: list[float], first: int) -> list[float]:
    """Return the joint logprob of each label: the sum over its path."""
    own = logprobs[first : first + len(trie.targets)].__getitem__
    return [math.fsum(map(own, path)) for path in trie.paths]


def shares_of(scores: Sequence[float]) -> tuple[list[float], float, float]:
    """Return the softmax of ``scores``, the largest score, and the logarithm of the sum relative to it."""
    best = max(scores)
    weights = [math.exp(score - best) for score in scores]
    total = math.fsum(weights)
    return [weight / total for weight in weights], best, math.log(total)


def weigh_shifts(
    plan: QuestionPlan, logprobs: list[float], at: int, alone: int, by_length: bool, relative: bool
) -> Weighed:
    """The means over the plan's shifts, whose edges stand one after another from ``at`` on, and without the state
    from ``alone`` on (-1: nowhere). The logarithms of the probabilities are averaged, and the joint logprobs, and the
    masses. Letters are read as the labels in their places. The first label in the plan's order wins a tie."""
    trie, labels, edges = plan.trie, plan.labels, len(plan.trie.targets)
    logs: list[dict[str, float]] = []
    joints: list[dict[str, float]] = []
    masses: list[float] = []
    for shift, start in enumerate(plan.starts):
        here, without = at + shift * edges, alone + shift * edges if alone >= 0 else -1
        read = labels[start:] + labels[:start] if plan.lettered else labels
        logs.append(weigh(trie, read, logprobs, here, without, by_length, True)[3])
        if not relative:
            _, _, _, joint, mass = weigh(trie, read, logprobs, here)
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
