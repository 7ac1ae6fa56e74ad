"""Keys of caches: of two requests that differ in one part of a key alone, neither gets what was kept of the other."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prelude._native import core

from prelude import (
    Choice,
    Decide,
    DecisionTemplate,
    Engine,
    EngineConfig,
    ExpertConfig,
    Generate,
    SamplingParams,
    Score,
    YesNo,
)
from prelude.integrations.affinity import Served, chain_of_task
from prelude.scheduling.planner import Budgets

CHOICE = Choice("Which is it?", ("apple", "pear", "plum"))
TEMPLATE = DecisionTemplate()
QUESTIONS: list[Any] = [
    CHOICE, Choice("Which was it?", CHOICE.labels), Choice("Which is it?", ("pear", "apple", "plum")),
    Choice("Which is it?", ("apple", "pear", "plums")), Choice("Which is it?", ("apple", "pear")),
    Choice("Which is it?", {"apple": "red", "pear": "green", "plum": "blue"}),
    Choice("Which is it?", {"apple": "red", "pear": "green", "plum": "black"}),
    Choice("Which is it?", {"apple": "red", "pear": "green", "plum": None}), Choice(None, CHOICE.labels),
    YesNo("Which is it?"), YesNo("Which is it?", {"true": "apple"}), YesNo("Which is it?", {"false": "apple"}),
    YesNo("Which is it?", {"true": "apple", "false": "pear"}), Score("Which is it?", 3), Score("Which is it?", 4),
    Score("Which is it?", ("apple", "pear", "plum")), Score("Which is it?", ("apple", "plum", "pear")),
]  # fmt: skip
PARTS: dict[str, tuple[str, ...]] = {
    "state": ("{state}. ",), "question": ("Q {question} {labels}:",), "label": (" - {label}",),
    "yes_no": ("Y {question} {labels}:",), "score": ("S {question} {labels}:",), "yes": ("true",), "no": ("false",),
    "separator": (" | ",), "described": ("\n* {label} = {description}",), "undescribed": ("\n* {label}",),
    "choose": ("Pick one.",), "judge": ("Say yes or no.",), "rate": ("Rate it.",),
}  # fmt: skip
TEMPLATES = [TEMPLATE, *(replace(TEMPLATE, **{name: text}) for name, [text] in PARTS.items())]
SETTINGS: list[dict[str, Any]] = [
    {}, {"length_norm": "token"}, {"length_norm": "unconditional"}, {"mass": False}, {"orders": "sorted"},
    {"orders": "all"}, {"orders": 2}, {"orders": range(1, 3)}, {"truncation": "head"}, {"truncation": "tail"},
]  # fmt: skip


@pytest.fixture(scope="module")
def forgetful(checkpoint: Path) -> Iterator[Engine]:
    with Engine.from_pretrained(
        checkpoint, config=EngineConfig(prefix_cache=False, expert=ExpertConfig(question_plan_bytes=0))
    ) as engine:
        yield engine


def test_each_part_of_a_question_its_template_and_its_settings_is_in_the_key(
    forgetful: Engine, checkpoint: Path
) -> None:
    asked = [Decide("A fruit.", [question]) for question in QUESTIONS]
    asked += [Decide("A fruit.", QUESTIONS, template=template) for template in TEMPLATES]
    asked += [Decide("A fruit.", [CHOICE, QUESTIONS[5]], **settings) for settings in SETTINGS]
    asked += [Decide("A fruit.", [QUESTIONS[first], QUESTIONS[9]]) for first in (1, 2)]
    with Engine.from_pretrained(checkpoint) as engine:
        for order in ([*asked, *asked], asked[::-1]):
            for task in order:
                found, right = engine.run(task), forgetful.run(task)
                assert [one.labels for one in found] == [one.labels for one in right]
                for one, other in zip(found, right):
                    np.testing.assert_allclose(
                        list(one.logprobs.values()), list(other.logprobs.values()), atol=1e-4, err_msg=str(task)
                    )
    assert forgetful.stats()["memory"]["question_bytes"] == 0


def test_how_a_long_question_is_cut_is_in_the_key(forgetful: Engine, checkpoint: Path) -> None:
    long = YesNo(" ".join(f"word {number}" for number in range(20_000)))
    with Engine.from_pretrained(checkpoint) as engine:
        for _ in range(2):
            for cut in ("head", "tail", "middle"):
                found = engine.explain(Decide("A fruit.", [long], truncation=cut)).text
                assert found == forgetful.explain(Decide("A fruit.", [long], truncation=cut)).text


def test_each_part_of_the_settings_of_a_text_is_in_the_key(checkpoint: Path) -> None:
    params = SamplingParams(max_tokens=1, temperature=0)
    prompt = list(range(5, 85))
    with Engine.from_pretrained(checkpoint) as engine:
        for _ in range(2):
            for salt in ("a", None, "b"):
                engine.run(Generate(prompt, params, salt=salt))
                assert engine.would_hit(Generate(prompt, params, salt=salt)) > 0
            assert engine.would_hit(Generate(prompt, params, salt="c")) == 0
            assert engine.run(Generate(prompt, params, cache="never")).stats.cached_tokens == 0
            assert engine.run(Generate(prompt, params)).stats.cached_tokens > 0
        long = list(range(5, 500)) * 100
        for cut in ("head", "tail", "middle"):
            ids = engine.explain(Generate(long, params, truncation=cut)).token_ids.tolist()
            assert [ids[0] == long[0], ids[-1] == long[-1]] == [cut != "head", cut != "tail"]


def test_many_tenants_share_no_prefix(checkpoint: Path) -> None:
    """More than a hash of one byte has values."""
    prompt = list(range(5, 45))
    tasks = [Decide(prompt, [YesNo("Is it so?")], salt=f"tenant {number}") for number in range(400)]
    with Engine.from_pretrained(checkpoint) as engine:
        assert {engine.run(task).stats.cached_tokens for task in tasks} == {0}
        assert {engine.run(task).stats.cached_tokens for task in tasks[-8:]} != {0}


def test_a_prefix_that_a_leader_of_another_salt_computes_is_not_borrowed() -> None:
    pool, tokens = core.KvPool(16, 4), np.arange(9, dtype=np.int32)
    leaders = {}
    for salt in (1, 2):
        leaders[salt] = pool.attach(tokens, salt, 8, growable=True)
        assert pool.grow(leaders[salt], 3)
        pool.promise(leaders[salt], tokens, salt)
    limits = Budgets(64, 4, 4, 64, 1 << 20, 100, 4).limits
    for salt in (2, 1, 3):
        follower = pool.attach(tokens, salt, 8, growable=True)
        assert not limits.must_wait(pool, follower, tokens, salt, 0, False)
        assert follower.shared.tolist() == (leaders[salt].table().tolist()[:2] if salt in leaders else [])


def test_a_replica_ranks_a_text_for_its_salt() -> None:
    text = "A rubric of some length. " * 40
    plain, salted = Decide(text, [CHOICE]), Decide(text, [CHOICE], salt="a")
    assert not set(chain_of_task(plain)) & set(chain_of_task(salted))
    served = Served()
    for task in (plain, salted):
        served.add(task)
    assert [one.chain for one in served.kept()] == [chain_of_task(plain), chain_of_task(salted)]


@pytest.mark.long
def test_what_new_questions_leave_is_bounded(checkpoint: Path) -> None:
    """Questions, labels, templates and tenants that are new in each request."""
    bound = 1 << 19
    most, traced = 0, []
    with Engine.from_pretrained(
        checkpoint, config=EngineConfig(expert=ExpertConfig(question_plan_bytes=bound))
    ) as engine:
        tracemalloc.start()
        try:
            for number in range(450):
                labels = [f"label {number} {at}" for at in range(number % 24 + 2)]
                template = DecisionTemplate(judge=f"{number}: " + "yes or no? " * (number % 40))
                for task in (
                    Decide("A fruit.", [Choice(f"Which of {number}?", labels)]),
                    Decide("A fruit.", [YesNo("Is it?")], salt=f"{number} " * 20),
                    Decide("A fruit.", [YesNo("Is it?")], template=template),
                    Generate("A", SamplingParams(max_tokens=1, stop=(f"{number}" * 100,))),
                ):
                    engine.explain(task)
                most = max(most, engine.stats()["memory"]["question_bytes"])
                if number % 150 == 149:
                    gc.collect()
                    traced.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
        assert bound // 2 < most <= bound + (1 << 20)
        assert traced[-1] < bound + (1 << 20) and traced[-1] < 1.5 * traced[0]
