"""Decide: one state, N questions, one tree of tokens and one forward pass.

several questions                        one question
segment 0  state (trunk)                 segment 0  state and question (trunk)
segment 1    ├─ question 1                 └─ label pieces, if any
segment 2    │    └─ label piece
segment 3    └─ question 2               length_norm="unconditional" adds
                                         segment k  question without the state: a second root, with its
                                                      own label pieces
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from prelude.admission import checks
from prelude.admission.chat import PLAIN, Frame
from prelude.admission.facts import Facts, admitted
from prelude.admission.logprobs import logprob_output
from prelude.admission.messages import check_messages, content_text, shorten_messages
from prelude.admission.prepared import Admitted, Outcome, TokenTree
from prelude.admission.prompts import TRUNCATIONS, beginning, is_messages, kept, shorten
from prelude.admission.questions import (
    QuestionPlan,
    branch,
    cut_question,
    plan_questions,
    strip_start,
    warn_of_lengths,
)
from prelude.admission.template import DecisionTemplate
from prelude.admission.tokenization import Piece, Use, token_ids
from prelude.batch import F64, I32, LogprobRows
from prelude.errors import InvalidRequest, PromptTooLong, RequestTooLarge, TemplateError, shown
from prelude.results import Answer, Answers
from prelude.tasks import Decide, Score, YesNo

LENGTH_NORMS = ("none", "token", "unconditional")


@dataclass(frozen=True, slots=True)
class Layout:
    """A decision as tokens. Pairs of the readout follow ``plans``, then the plans once more without the state
    where ``length_norm`` is "unconditional"."""

    tree: TokenTree
    readout: LogprobRows
    plans: tuple[QuestionPlan, ...]
    truncated: int


def prepare_decide(facts: Facts, use: Use, task: Decide) -> tuple[Admitted, Layout]:
    norm = checks.one_of(task.length_norm, "length_norm", LENGTH_NORMS)
    mass = checks.flag(task.mass, "mass")
    layout = lay_out(facts, use, task, unconditional=norm == "unconditional")
    plans = layout.plans
    if norm == "none":
        for plan in plans:
            if plan.uneven:
                warn_of_lengths(plan.labels, plan.label_ids)
    if not mass and all(plan.trie.depth == 0 for plan in plans):  # labels of more tokens need their normalisers
        layout = replace(layout, readout=replace(layout.readout, raw=True))

    def finish(outcome: Outcome) -> Answers:
        logprobs = logprob_output(outcome).logprobs
        answers, at = [], 0
        for plan in plans:
            count = len(plan.trie.targets)
            joint = plan.trie.joint(logprobs[at : at + count])
            scores = joint
            if norm == "token":
                scores = joint / plan.trie.lengths
            elif norm == "unconditional":
                pairs = len(logprobs) // 2  # the second half is without the state
                scores = joint - plan.trie.joint(logprobs[pairs + at : pairs + at + count])
            answers.append(answer(plan, joint, scores, relative=not mass))
            at += count
        return Answers(answers, outcome.stats)

    ready = admitted(facts, use, task, layout.tree, layout.readout, finish, truncated=layout.truncated)
    return ready, layout


def answer(plan: QuestionPlan, joint: F64, scores: F64, *, relative: bool = False) -> Answer:
    """``joint`` and ``scores`` are float64[L]. The first label wins a tie. ``relative``: without their mass."""
    # Plain floats: a handful of labels is the rule, and numpy's fixed cost a call would be most of the time.
    values, joints = scores.tolist(), joint.tolist()
    best = max(values)
    index = values.index(best)
    weights = [math.exp(value - best) for value in values]
    total = math.fsum(weights)
    shares = [weight / total for weight in weights]
    labels = plan.labels
    if relative:
        mass, joints = math.nan, [value - best - math.log(total) for value in values]
    else:
        mass = min(1.0, math.fsum([math.exp(joints[i]) for i in plan.trie.counted]))
    expected = None
    if isinstance(plan.question, Score):
        expected = math.fsum(level * share for level, share in enumerate(shares, start=1))
    return Answer(
        labels[index],
        index,
        labels,
        dict(zip(labels, shares)),
        dict(zip(labels, joints)),
        mass,
        shares[0 if isinstance(plan.question, YesNo) else index],
        expected,
    )


# ------------------------------------------------------------------ layout


def lay_out(facts: Facts, use: Use, task: Decide, *, unconditional: bool) -> Layout:
    checks.one_of(task.truncation, "truncation", TRUNCATIONS)
    template = template_of(facts, task)
    frame = facts.frame() if template.chat else PLAIN
    pieces = template.state_pieces(state_pieces(facts, task.state, task.truncation))
    plans = plan_questions(facts, use, task.questions, template, frame, task.truncation)
    if template.chat:
        pieces = [(frame.before, True), *(strip_start(pieces) if frame.strips else pieces)]
        start = use.encode_pieces([(frame.before, True)]) if unconditional else None
    else:
        start = use.encoder.prefix
        pieces = [(start, True), *pieces]
    state = use.encode_pieces(pieces)
    cut = 0
    if task.truncation != "error":
        plans, cut = cut_questions(facts, use, plans, template, frame, len(state), task.truncation)
    state, truncated = fit_state(facts, use, state, pieces, plans, task.truncation, start if unconditional else None)
    truncated += cut
    if len(plans) == 1 and not unconditional and not plans[0].trie.segments:
        ids = np.concatenate([state, plans[0].token_ids])
        return Layout(TokenTree.single(ids), read_rows(plans, [len(ids) - 1]), tuple(plans), truncated)
    segments: list[tuple[int, I32]] = []
    if len(plans) == 1:
        bases = hang(segments, plans, -1, state)
    else:
        segments.append((-1, state if len(state) else beginning(facts, "state", eos=True)))
        bases = hang(segments, plans, 0)
    if unconditional:
        bases += hang(segments, plans, -1, start)
        plans = plans + plans
    tree = TokenTree.build(segments)
    return Layout(tree, read_rows(plans, bases), tuple(plans[: len(task.questions)]), truncated)


def hang(
    segments: list[tuple[int, I32]], plans: Sequence[QuestionPlan], parent: int, start: I32 | None = None
) -> list[int]:
    """Append each question and its label pieces; returns the token index of each question's last token."""
    bases = []
    count = sum(len(ids) for _, ids in segments)
    for plan in plans:
        own = len(segments)
        ids = branch(plan, start)
        segments.append((parent, ids))
        bases.append(count + len(ids) - 1)
        segments += [(own if above < 0 else own + 1 + above, piece) for above, piece in plan.trie.segments]
        count += len(ids) + plan.tokens - len(plan.token_ids)
    return bases


def read_rows(plans: Sequence[QuestionPlan], bases: Sequence[int]) -> LogprobRows:
    """Every edge of every trie, once."""
    if len(plans) == 1:
        trie = plans[0].trie
        return LogprobRows(trie.rows + np.int32(bases[0]), trie.target_rows, trie.targets)
    rows, target_rows, before = [], [], 0
    for plan, base in zip(plans, bases):
        rows.append(plan.trie.rows + np.int32(base))
        target_rows.append(plan.trie.target_rows + np.int32(before))
        before += len(plan.trie.rows)
    return LogprobRows(
        np.concatenate(rows), np.concatenate(target_rows), np.concatenate([plan.trie.targets for plan in plans])
    )


def cut_questions(
    facts: Facts,
    use: Use,
    plans: list[QuestionPlan],
    template: DecisionTemplate,
    frame: Frame,
    state: int,
    truncation: str,
) -> tuple[list[QuestionPlan], int]:
    """Plans of questions that leave room for their state, of ``state`` tokens; and how many tokens were cut. The
    longer of state and question is cut: a question only where its own text has more than half of ``max_length``."""
    room = facts.max_length - min(state, facts.max_length // 2)
    if all(plan.depth <= room for plan in plans):
        return plans, 0
    found = [
        plan
        if plan.depth <= room
        else cut_question(facts, use, plan, template, frame, room, truncation, f"questions[{at}]")
        for at, plan in enumerate(plans)
    ]
    return found, sum(plan.tokens for plan in plans) - sum(plan.tokens for plan in found)


def fit_state(
    facts: Facts,
    use: Use,
    state: I32,
    pieces: list[Piece],
    plans: list[QuestionPlan],
    truncation: str,
    start: I32 | None,
) -> tuple[I32, int]:
    """The state's ids (those of ``pieces``), cut where they have to be; labels never are."""
    deepest = max(plan.depth for plan in plans)
    asked = sum(plan.tokens for plan in plans)
    if start is not None:
        asked = 2 * asked + len(start) * len(plans)
    if asked >= facts.step_tokens:
        fit = len(plans) * facts.step_tokens // asked
        raise RequestTooLarge(
            f"the {len(plans)} questions have {asked} tokens; state and questions together are one step of at most "
            f"{facts.step_tokens} (from EngineConfig.max_step_tokens): about {fit} of these "
            "questions at a time; ask them in several calls or raise the limit",
            field="questions",
        )
    room = min(facts.max_length - deepest, facts.step_tokens - asked)
    least = 1 if len(plans) > 1 else 0  # several questions hang from a token: an empty state begins with one
    excess = max(len(state), least) - room
    if excess <= 0:
        return state, 0
    if truncation == "error" or room < least:
        raise state_too_long(facts, max(len(state), least), deepest, asked)
    ids, cuttable = use.encode_cuttable(pieces)
    return ids[kept(facts, cuttable, excess, truncation, "state", room)], excess


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


def template_of(facts: Facts, task: Decide) -> DecisionTemplate:
    template = facts.template if task.template is None else task.template
    if not isinstance(template, DecisionTemplate):
        raise TemplateError(f"{shown(template)} is not a DecisionTemplate", field="template")
    return template


def state_pieces(facts: Facts, state: Any, truncation: str) -> list[Piece]:
    """Text and ids as they are. Messages are written out as "role: content" paragraphs: they are what the question
    is about, so none of them speaks to the model."""
    if isinstance(state, str):
        return [(checks.text(shorten(state, facts.max_chars, truncation)[0], "state", facts.max_chars), False)]
    if not is_messages(state, "state"):
        return [(token_ids(state, "state", facts.encoder, facts.max_chars), False)]
    state, _ = shorten_messages(facts, state, "state", truncation)
    check_messages(facts, state, "state")
    return [(transcript(state), False)]


def transcript(messages: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for message in messages:
        content = message.get("content")
        shown_content = content if isinstance(content, str) else content_text(content, "state", 1 << 62)
        lines.append(f"{message['role']}: {shown_content}")
    return "\n\n".join(lines)
