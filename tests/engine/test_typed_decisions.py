"""Typed decisions through the engine: no order, name or company changes a bit; shifts until the answer is clear."""

from __future__ import annotations

import asyncio
import itertools
import pickle
import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from prelude import AsyncEngine, Choice, Decide, Engine, Noul, Score
from prelude.early_stop import MarginAnswers, adecide_by_margin, decide_by_margin
from prelude.errors import InvalidRequest
from prelude.systemone import SystemOne

STATE = "The invoice was paid twice and nobody has written back. " * 3
TEAMS = {"Billing": "Invoices and refunds", "Technical": None, "Sales": {"owns": ["prices", "upgrades"]}}
QUESTIONS: dict[str, Any] = {
    "refund": Noul("Is money asked for?"),
    "angry": Noul(None, {"true": "the writer is angry", "false": None}),
    "team": Choice("Which team?", TEAMS),
    "mood": Score("How is the mood?", ["calm", "tense", {"label": "furious"}]),
    "urgency": Score("How urgent?", 5),
    "language": Choice("Which language?", ["English", "French", "German", "Dutch"]),
}


def bits(answer: Any) -> tuple[Any, ...]:
    names = sorted(answer.probabilities)
    shares = [answer.probabilities[name] for name in names]
    return (
        answer.label,
        answer.mass,
        answer.probability,
        answer.expected,
        *shares,
        *[answer.logprobs[n] for n in names],
    )


@pytest.mark.feature("G19")
@pytest.mark.parametrize("orders", ["given", "sorted", 2, "all"])
def test_questions_renamed_reordered_and_extended_have_the_same_bits(
    make_engine: Callable[..., Engine], orders: Any
) -> None:
    engine = make_engine(deterministic=True)
    alone = {name: bits(engine.decide(STATE, [asked], orders=orders)[0]) for name, asked in QUESTIONS.items()}
    rng = random.Random(0)
    for _ in range(12):
        names = rng.sample(list(QUESTIONS), rng.randrange(1, len(QUESTIONS) + 1))
        answers = engine.decide(STATE, {f"{name} 질문": QUESTIONS[name] for name in names}, orders=orders)
        assert [bits(answer) for answer in answers] == [alone[name] for name in names]


@pytest.mark.feature("G20")
@pytest.mark.parametrize("deterministic", [True, False])
def test_options_in_every_order_have_the_same_answer(make_engine: Callable[..., Engine], deterministic: bool) -> None:
    engine = make_engine(deterministic=deterministic)
    for orders in ("sorted", 2, "all"):
        tasks = [
            Decide(STATE, [Choice("Which team?", {name: TEAMS[name] for name in order})], orders=orders)  # type: ignore[arg-type]
            for order in itertools.permutations(TEAMS)
        ]
        found = [answers[0] for answers in engine.run_many(tasks)]
        if deterministic:
            assert len({bits(answer) for answer in found}) == 1
        for answer in found[1:]:
            assert answer.probabilities == pytest.approx(dict(found[0].probabilities), abs=1e-6)


def test_a_state_and_questions_without_deterministic_mode_agree_to_1e_6(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine()
    together = engine.decide(STATE, QUESTIONS)
    for name, asked in QUESTIONS.items():
        alone = engine.decide(STATE, [asked])[0]
        assert alone.probabilities == pytest.approx(dict(together[name].probabilities), abs=1e-6)


def test_all_shifts_in_waves_are_all_shifts_at_once(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(deterministic=True)
    whole = engine.decide(STATE, QUESTIONS, orders="all")
    for wave in (1, 2, 3, 9):
        waves = decide_by_margin(engine, STATE, QUESTIONS, margin=1e9, wave=wave)
        assert waves.shifts == (2, 2, 3, 1, 1, 4) and waves.names == whole.names
        assert len(waves.waves) == -(-4 // wave)
        for one, other in zip(waves, whole):
            assert (one.label, one.index, one.labels, one.kind) == (
                other.label,
                other.index,
                other.labels,
                other.kind,
            )
            assert one.probabilities == pytest.approx(dict(other.probabilities), abs=1e-12)
            assert one.logprobs == pytest.approx(dict(other.logprobs)) and one.mass == pytest.approx(other.mass)
            assert one.expected == other.expected and one.probability == pytest.approx(other.probability)


def test_a_clear_answer_needs_the_first_wave_alone(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(deterministic=True)
    some = decide_by_margin(engine, STATE, QUESTIONS, margin=0)
    assert some.shifts == (2, 2, 2, 1, 1, 2) and len(some.waves) == 1
    first = engine.decide(STATE, QUESTIONS, orders=2)
    assert [bits(answer) for answer in some] == [bits(answer) for answer in first]
    margins = {}
    for name, answer in first.named.items():
        ordered = sorted(answer.logprobs.values())
        margins[name] = ordered[-1] - ordered[-2]
    between = sorted([margins["team"], margins["language"]])
    part = decide_by_margin(engine, STATE, QUESTIONS, margin=sum(between) / 2)
    more = "team" if margins["team"] < margins["language"] else "language"
    assert dict(zip(part.names or (), part.shifts))[more] == {"team": 3, "language": 4}[more]
    assert dict(zip(part.names or (), part.shifts))[{"team": "language", "language": "team"}[more]] == 2
    copy = pickle.loads(pickle.dumps(part))
    assert isinstance(copy, MarginAnswers) and copy.shifts == part.shifts and copy == part

    async def main() -> None:
        same = await adecide_by_margin(AsyncEngine(engine), STATE, QUESTIONS, margin=sum(between) / 2)
        assert same.shifts == part.shifts and [bits(a) for a in same] == [bits(a) for a in part]

    asyncio.run(main())


def test_the_margin_does_not_depend_on_the_order_of_options(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(deterministic=True)
    found = set()
    for order in itertools.permutations(TEAMS):
        asked = Choice("Which team?", {name: TEAMS[name] for name in order})  # type: ignore[misc]
        answers = decide_by_margin(engine, STATE, [asked], margin=1e9)
        found.add((bits(answers[0]), answers.shifts))
    assert len(found) == 1


def test_margins_that_make_no_sense(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine()
    for options, match in (
        ({"margin": -1}, "margin"),
        ({"wave": 0}, "wave"),
        ({"orders": "all"}, "orders: the margin chooses"),
        ({"length_norm": "token"}, "length_norm: the margin"),
    ):
        with pytest.raises(InvalidRequest, match=match):
            decide_by_margin(engine, STATE, QUESTIONS, **options)  # type: ignore[arg-type]


class _Spy:
    """An engine that notes the deadline of each step and takes its time over it."""

    def __init__(self, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.deadlines: list[float] = []
        run_many = engine.run_many

        def noted(tasks: Any, options: Any = None, **keywords: Any) -> Any:
            self.deadlines.append(options.deadline)
            time.sleep(0.02)
            return run_many(tasks, options, **keywords)

        monkeypatch.setattr(engine, "run_many", noted)


def counted_from_the_call(deadlines: list[float]) -> bool:
    return len(deadlines) > 1 and all(first - second >= 0.02 for first, second in itertools.pairwise(deadlines))


def test_every_step_of_a_compound_call_has_the_deadline_of_the_call(
    make_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(deterministic=True)
    asked = {"team": QUESTIONS["team"]}
    spy = _Spy(engine, monkeypatch)
    decide_by_margin(engine, STATE, asked, margin=1e9, wave=1, deadline=60.0)
    assert counted_from_the_call(spy.deadlines)

    async def awaited() -> list[float]:
        aengine = AsyncEngine(engine)
        spy = _Spy(aengine, monkeypatch)
        await adecide_by_margin(aengine, STATE, asked, margin=1e9, wave=1, deadline=60.0)
        return spy.deadlines

    assert counted_from_the_call(asyncio.run(awaited()))
    # As well where a request of more questions than a step holds becomes several decisions.
    small = make_engine(deterministic=True, max_length=256, max_step_tokens=512)
    spy = _Spy(small, monkeypatch)
    questions = {str(n): {"type": "noul", "instructions": f"Is there a {n} in it?"} for n in range(80)}
    SystemOne(small).answer({"state": "One.", "questions": questions}, deadline=60.0)
    assert counted_from_the_call(spy.deadlines)
