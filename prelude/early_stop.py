"""Shifts of the options until the answer is clear: fewer than all of them where the first ones agree.

    from prelude.early_stop import decide_by_margin

    answers = decide_by_margin(engine, state, questions, margin=8.5)
    answers.shifts  # how many orders each question was read in

The shifts are read in waves, each a decision of its own about the same state. A question is done when the mean
logprob of its best option is ``margin`` above that of the second, or when all of its shifts were read. The state
comes out of the prefix cache where that holds it. As with every ``orders`` but "given", the order in which the caller
lists the options changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from prelude.admission import validation
from prelude.admission.orders import shift_count
from prelude.admission.plain_question import plain_question
from prelude.admission.preparer import Preparer
from prelude.compound import Steps, adrive, drive
from prelude.errors import InvalidRequest
from prelude.results import Answer, Answers, RequestStats
from prelude.tasks import Decide, Prompt, Questions, Text
from prelude.verbs import DecideKeywords, split_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from prelude.engine import AsyncEngine, Engine

MARGIN, WAVE = 8.5, 2


class MarginAnswers(Answers):
    """``shifts[i]``: in how many orders question i was read. ``waves``: the statistics of each decision; ``stats``
    are the first one's."""

    shifts: tuple[int, ...]
    waves: tuple[RequestStats, ...]

    @classmethod
    def of(
        cls,
        answers: Iterable[Answer],
        waves: Sequence[RequestStats],
        names: tuple[str, ...] | None,
        shifts: Iterable[int],
    ) -> MarginAnswers:
        self = cls(answers, waves[0], names)
        self.shifts, self.waves = tuple(shifts), tuple(waves)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return MarginAnswers.of, (tuple(self), self.waves, self.names, self.shifts)


def decide_by_margin(
    engine: Engine,
    state: Prompt | Text,
    questions: Questions,
    *,
    margin: float = MARGIN,
    wave: int = WAVE,
    **keywords: Unpack[DecideKeywords],
) -> MarginAnswers:
    """``decide`` with as many shifts as each question needs, ``wave`` at a time. ``keywords`` are those of
    ``decide``, without ``orders``, and with ``length_norm="none"``. Raises as ``decide`` does."""
    own, options = split_options(keywords, Decide)
    answers: MarginAnswers = drive(
        _waves(engine.preparer, Decide(state, questions, **own), margin, wave), options, engine.run_many
    )
    return answers


async def adecide_by_margin(
    engine: AsyncEngine,
    state: Prompt | Text,
    questions: Questions,
    *,
    margin: float = MARGIN,
    wave: int = WAVE,
    **keywords: Unpack[DecideKeywords],
) -> MarginAnswers:
    """As ``decide_by_margin``, in an event loop."""
    own, options = split_options(keywords, Decide)
    preparer = (await engine.start()).engine.preparer
    answers: MarginAnswers = await adrive(
        _waves(preparer, Decide(state, questions, **own), margin, wave), options, engine.run_many
    )
    return answers


def _waves(preparer: Preparer, task: Decide, margin: float, wave: int) -> Steps:
    validation.number(margin, "margin", 0, math.inf)
    validation.integer(wave, "wave", 1, 1 << 16)
    if task.orders != "given" or task.length_norm != "none":
        raise InvalidRequest(
            "the margin chooses the shifts and compares joint logprobs; leave out orders and length_norm",
            field="orders" if task.orders != "given" else "length_norm",
        )
    task = preparer.snapshot(task)
    given = task.questions
    names = tuple(given) if isinstance(given, Mapping) else None
    questions = list(given.values()) if isinstance(given, Mapping) else list(given)
    ctx = preparer.context
    template = ctx.template if task.template is None else task.template
    plain = [plain_question(ctx, question, f"questions[{at}]") for at, question in enumerate(questions)]
    counts = [shift_count(one, template) for one in plain]
    reads = [_Read(count) for count in counts]
    waiting, stats = list(range(len(questions))), []
    first = 0
    while waiting:
        part = replace(task, questions=[questions[at] for at in waiting], orders=range(first, first + wave))
        [answers] = yield [part]
        first += wave
        stats.append(answers.stats)
        for at, answer in zip(waiting, answers):
            reads[at].add(answer, min(first, counts[at]))
        waiting = [at for at in waiting if first < counts[at] and reads[at].margin < margin]
    return MarginAnswers.of([read.answer for read in reads], stats, names, [read.shifts for read in reads])


class _Read:
    """One question over its waves."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.shifts = 0
        self.answer: Answer

    def add(self, new: Answer, shifts: int) -> None:
        """``new`` is the mean of the shifts from ``self.shifts`` up to ``shifts``."""
        if not self.shifts:
            self.answer, self.shifts = new, shifts
            return
        old, part = self.shifts / shifts, (shifts - self.shifts) / shifts
        logprobs = {label: old * self.answer.logprobs[label] + part * value for label, value in new.logprobs.items()}
        best = max(logprobs.values())
        weights = {label: math.exp(value - best) for label, value in logprobs.items()}
        total = math.fsum(weights.values())
        shares = {label: weight / total for label, weight in weights.items()}
        chosen = min([label for label in new.labels if logprobs[label] == best])  # the first in the sorted order
        index = new.labels.index(chosen)
        if new.kind == "noul":
            index, chosen = next((at, label) for at, label in enumerate(new.labels) if logprobs[label] == best)
        self.answer = Answer(
            chosen,
            index,
            new.labels,
            shares,
            logprobs,
            old * self.answer.mass + part * new.mass,
            shares[new.labels[0] if new.kind == "noul" else chosen],
            new.expected,
            new.kind,
            new.asked,
        )
        self.shifts = shifts

    @property
    def margin(self) -> float:
        """Between the best and the second mean logprob."""
        ordered = sorted(self.answer.logprobs.values())
        return ordered[-1] - ordered[-2] if len(ordered) > 1 else math.inf
