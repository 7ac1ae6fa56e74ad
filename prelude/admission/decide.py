"""Decide: one state, N questions, one tree of tokens and one forward pass. ``decision.py`` draws the tree."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from prelude._native.core import Maker
from prelude.admission import checks
from prelude.admission.decision import Decision, assembled, decision_of
from prelude.admission.facts import Facts, admitted
from prelude.admission.messages import check_messages, content_text, shorten_messages
from prelude.admission.prepared import Admitted, Outcome, TokenTree
from prelude.admission.prompts import beginning, is_messages, kept, shorten
from prelude.admission.questions import QuestionPlan, cut_question
from prelude.admission.structured import MAX_TEXT, text_of
from prelude.admission.tokenization import Use, token_ids
from prelude.batch import I32
from prelude.errors import InvalidRequest, PromptTooLong, RequestTooLarge, shown
from prelude.results import Answer, Answers
from prelude.tasks import Decide

_make_answer = Maker(Answer)
_FEW_EDGES = 64  # a path's sum is taken number by number up to here; numpy's fixed cost is a microsecond


@dataclass(frozen=True, slots=True)
class Layout:
    """A decision as tokens. Pairs of the readout follow ``plans``, then the plans once more without the state
    where ``length_norm`` is "unconditional"."""

    tree: TokenTree
    plans: tuple[QuestionPlan, ...]


def prepare_decide(facts: Facts, use: Use, task: Decide) -> tuple[Admitted, Layout]:
    questions, names = named(task.questions)
    decision = decision_of(facts, use, task, questions)
    content, dropped = state_content(facts, task.state, task.truncation)
    state = decision.frame.encode(use, content)
    cut = truncated = 0
    if task.truncation != "error":
        decision, cut = cut_questions(facts, use, decision, len(state), task.truncation)
    if max(len(state), decision.least) > decision.room(facts):
        state, truncated = fit_state(facts, use, state, content, decision, task.truncation)
    if not len(state) and decision.least:
        state = beginning(facts, "state", eos=True)
    tree = decision.tree(state)
    ready = admitted(
        facts,
        use,
        task,
        tree,
        decision.readout,
        lambda outcome: answers(decision, outcome, names),
        truncated=truncated + cut or int(dropped + decision.dropped > 0),
        first=len(state),
    )
    return ready, Layout(tree, decision.plans)


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
    found, at = [], 0
    for plan in decision.plans:
        count = len(plan.trie.targets)
        joint = joint_of(plan, logprobs[at : at + count])
        scores = joint
        if decision.norm == "token":
            scores = [value / length for value, length in zip(joint, plan.trie.lengths.tolist())]
        elif decision.norm == "unconditional":
            pairs = len(logprobs) // 2  # the second half is without the state
            alone = joint_of(plan, logprobs[pairs + at : pairs + at + count])
            scores = [value - other for value, other in zip(joint, alone)]
        found.append(answer(plan, joint, scores, relative=not decision.mass))
        at += count
    return Answers(found, outcome.stats, names)


def joint_of(plan: QuestionPlan, edges: list[float]) -> list[float]:
    """Logprob of each label: the sum over its path. Finite for any input but NaN."""
    trie = plan.trie
    if trie.path_edges is None:
        return edges
    if len(edges) > _FEW_EDGES:
        summed: list[float] = trie.joint(np.array(edges)).tolist()
        return summed
    return [sum([edges[edge] for edge in path]) for path in trie.paths]


def answer(plan: QuestionPlan, joint: list[float], scores: list[float], *, relative: bool = False) -> Answer:
    """``joint`` and ``scores``: a number a label. The first label wins a tie. ``relative``: without their mass."""
    best = max(scores)
    index = scores.index(best)
    exp = math.exp
    weights = [exp(value - best) for value in scores]
    total = math.fsum(weights)
    shares = [weight / total for weight in weights]
    labels = plan.labels
    if relative:
        mass, joint = math.nan, [value - best - math.log(total) for value in scores]
    else:
        mass = min(1.0, math.fsum([exp(joint[i]) for i in plan.trie.counted]))
    expected = None
    kind = plan.asked.kind
    if kind == "score":
        expected = math.fsum([level * share for level, share in enumerate(shares, start=plan.asked.first)])
    found: Answer = _make_answer(
        labels[index],
        index,
        labels,
        dict(zip(labels, shares)),
        dict(zip(labels, joint)),
        mass,
        shares[0 if kind == "noul" else index],
        expected,
        kind,
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
    return assembled(found, decision.frame, decision.norm, decision.mass, decision.dropped), cut


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
