"""Decide for a model with a marker head: one prompt a question, one logit an option (``prelude/marking.py``).

The text of a prompt is the one that the model was trained on, pieces tokenised apart. Its own cuts are taken where a
request allows truncation: an option to 48 tokens, options and question to ``head_length``, the state to the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from prelude.admission import checks
from prelude.admission.asked import Asked, asked_of, check_characters
from prelude.admission.decide import named
from prelude.admission.facts import Facts, admitted
from prelude.admission.prepared import Admitted, Outcome, TokenTree
from prelude.admission.prompts import TRUNCATIONS
from prelude.admission.structured import MAX_TEXT, text_of
from prelude.admission.tokenization import Use
from prelude.batch import I32, HeadOutput, HeadRows
from prelude.errors import InvalidRequest, PromptTooLong, RequestTooLarge, shown
from prelude.marking import KINDS, MarkerSettings
from prelude.results import Answer, Answers
from prelude.tasks import Decide

_OPTION_TOKENS = 48  # behind its mask token
_LEAST_QUESTION, _LEAST_OPTION = 16, 4
_UNDESCRIBED = ("yes, the statement holds", "no, the statement does not hold")  # of a Noul: true, false


@dataclass(frozen=True, slots=True)
class Marked:
    """A question as a prompt. ``markers`` are the places of its options' mask tokens."""

    asked: Asked
    ids: I32
    markers: list[int]
    cut: int


def prepare_marked(settings: MarkerSettings, facts: Facts, use: Use, task: Decide) -> Admitted:
    _refuse(task)
    truncation = checks.one_of(task.truncation, "truncation", TRUNCATIONS)
    questions, names = named(task.questions)
    if not isinstance(questions, list | tuple) or not questions:
        raise InvalidRequest(f"{shown(questions)} is not a list of 1 or more questions", field="questions")
    most = facts.config.max_questions
    if most is not None and len(questions) > most:
        raise InvalidRequest(
            f"{len(questions)} questions; the limit is {most} (EngineConfig.max_questions)", field="questions"
        )
    state, from_left = _state(facts, task.state)
    ids = _encode(use, settings, state)
    marked = [
        _marked(facts, use, settings, question, f"questions[{at}]", ids, from_left)
        for at, question in enumerate(questions)
    ]
    cut = sum(one.cut for one in marked)
    if cut and truncation == "error":
        first = next(at for at, one in enumerate(marked) if one.cut)
        raise PromptTooLong(
            f"questions[{first}] with its options and the state are {marked[first].cut} tokens longer than the "
            f"model reads ({settings.max_length}, of them {settings.head_length} for question and options); shorten "
            'them or set truncation="head", which cuts as the model was trained',
            tokens=len(marked[first].ids) + marked[first].cut,
            limit=settings.max_length,
            field="state",
        )
    tree, rows = _tree(marked)
    if tree.num_tokens > facts.step_tokens:
        raise RequestTooLarge(
            f"{tree.num_tokens} tokens of {len(marked)} questions; one step computes at most {facts.step_tokens} "
            "(from EngineConfig.max_step_tokens); ask them in several calls or raise the limit",
            field="questions",
        )
    finish = partial(_answers, marked, settings, facts.template, names)
    return admitted(facts, use, task, tree, HeadRows(rows, several=True), finish, truncated=cut)


def _refuse(task: Decide) -> None:
    """What has no meaning where a head reads the options."""
    if task.template is not None:
        raise InvalidRequest("a model with a marker head has a text form of its own", field="template")
    if task.length_norm != "none":
        raise InvalidRequest("a marker head gives one number an option, whatever its length", field="length_norm")
    if task.orders != "given":
        raise InvalidRequest("a marker head reads the options as they are listed", field="orders")


def _state(facts: Facts, state: Any) -> tuple[str, bool]:
    """Its text, and whether the beginning is cut of one that is too long, as of a list."""
    from_left = isinstance(state, list | tuple)
    if not isinstance(state, str | Mapping) and not from_left:
        raise InvalidRequest(f"{shown(state)} is not text, an object or an array", field="state")
    return checks.text(text_of(state, "state", MAX_TEXT), "state", facts.max_chars), from_left


def _encode(use: Use, settings: MarkerSettings, text: str) -> list[int]:
    found: list[int] = use.encode(text.replace(settings.mask_text, " ")).tolist()
    return found


def _options(asked: Asked) -> list[str]:
    notes = asked.notes
    if asked.kind == "choice":
        written = notes or ("",) * len(asked.labels)
        return [f"{label}: {note}" if note else label for label, note in zip(asked.labels, written)]
    if asked.kind == "score":
        return [f"level {index}: {text}" for index, text in enumerate(notes or asked.labels)]
    true, false = (note or usual for note, usual in zip(notes or ("", ""), _UNDESCRIBED))
    return [f"false: {false}", f"true: {true}"]


def _marked(
    facts: Facts, use: Use, settings: MarkerSettings, question: Any, field: str, state: list[int], from_left: bool
) -> Marked:
    asked = asked_of(facts, question, field)
    check_characters(facts, asked, field)
    whole = [_encode(use, settings, f" {option}") for option in _options(asked)]
    options = [[settings.mask, *ids[:_OPTION_TOKENS]] for ids in whole]
    if settings.head_length - sum(map(len, options)) < _LEAST_QUESTION:
        most = max(_LEAST_OPTION, (settings.head_length - _LEAST_QUESTION) // len(options))
        options = [ids[:most] for ids in options]
    all_ids = _encode(use, settings, f"{asked.kind} question: {asked.text}")
    text = all_ids[: max(8, settings.head_length - sum(map(len, options)))]
    cut = len(all_ids) - len(text) + sum(map(len, whole)) + len(whole) - sum(map(len, options))
    ids, markers = [settings.cls, *text, settings.sep], []
    for option in options:
        markers.append(len(ids))
        ids += option
    ids.append(settings.sep)
    most = min(settings.max_length, facts.max_length)
    room = max(0, most - len(ids) - 1)
    kept = state[max(0, len(state) - room) :] if from_left else state[:room]
    ids += [*kept, settings.sep]
    if len(ids) > most:
        raise PromptTooLong(
            f"{len(options)} options and their question are {len(ids)} tokens, cut as short as they may be; the "
            f"limit is {most}; ask with fewer options",
            tokens=len(ids),
            limit=most,
            field=field,
        )
    return Marked(asked, np.array(ids, dtype=np.int32), markers, cut + len(state) - len(kept))


def _tree(marked: list[Marked]) -> tuple[TokenTree, I32]:
    """A tree for each question. The type of a token counts the segments above its own, so a question of type t stands
    below t empty segments."""
    segments: list[tuple[int, I32]] = []
    rows: list[int] = []
    tokens = 0
    for one in marked:
        parent = -1
        for _ in range(KINDS.index(one.asked.kind)):
            segments.append((parent, np.zeros(0, dtype=np.int32)))
            parent = len(segments) - 1
        segments.append((parent, one.ids))
        rows += [tokens + marker for marker in one.markers]
        tokens += len(one.ids)
    return TokenTree.build(segments), np.array(rows, dtype=np.int32)


def _answers(
    marked: list[Marked], settings: MarkerSettings, template: Any, names: tuple[str, ...] | None, outcome: Outcome
) -> Answers:
    output = outcome.output
    if not isinstance(output, HeadOutput):
        raise TypeError(f"a marker head gives HeadOutput, got {type(output).__name__}")
    logits, at, found = output.logits[:, 0].astype(np.float64), 0, []
    for one in marked:
        count = len(one.markers)
        scaled = logits[at : at + count] / settings.temperature(one.asked.kind, count)
        at += count
        relative = scaled - scaled.max()
        logprobs = (relative - math.log(np.exp(relative).sum())).tolist()
        found.append(_answer(one.asked, logprobs, template))
    return Answers(found, outcome.stats, names)


def _answer(asked: Asked, logprobs: list[float], template: Any) -> Answer:
    labels = asked.labels
    if asked.kind == "noul":
        labels, logprobs = (template.yes, template.no), logprobs[::-1]
    shares = [math.exp(one) for one in logprobs]
    index = max(range(len(shares)), key=shares.__getitem__)
    expected = None
    if asked.kind == "score":
        expected = math.fsum(level * share for level, share in enumerate(shares, start=asked.first))
    return Answer(
        labels[index],
        index,
        labels,
        dict(zip(labels, shares)),
        dict(zip(labels, logprobs)),
        math.nan,
        shares[0 if asked.kind == "noul" else index],
        expected,
        asked.kind,
    )
