"""Typed decisions through the engine: no order, name or company changes a bit."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from prelude import AsyncEngine, Choice, Decide, Engine, Noul, Score
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
        answer.label, answer.mass, answer.probability, answer.expected, *shares, *[answer.logprobs[n] for n in names],
    )  # fmt: skip


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
    """A request of more questions than a step holds becomes several decisions."""
    small = make_engine(deterministic=True, max_length=256, max_step_tokens=512)
    spy = _Spy(small, monkeypatch)
    questions = {str(n): {"type": "noul", "instructions": f"Is there a {n} in it?"} for n in range(80)}
    body = {"state": "One.", "questions": questions}
    SystemOne(small).answer(body, deadline=60.0)
    assert counted_from_the_call(spy.deadlines)

    async def awaited() -> list[float]:
        aengine = AsyncEngine(small)
        spy = _Spy(aengine, monkeypatch)
        await SystemOne(aengine).aanswer(body, deadline=60.0)
        return spy.deadlines

    assert counted_from_the_call(asyncio.run(awaited()))
