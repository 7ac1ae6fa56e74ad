"""Ranking of replicas by the prefixes that they have, and the report against a real cache."""

from __future__ import annotations

import math

import numpy as np
import pytest

from prelude import Choice, Decide, Embed, Engine, EngineConfig, ExpertConfig, Loglikelihood
from prelude.integrations.affinity import Affinity, Served, chain_of, chain_of_task, report

LENGTHS = [math.isqrt(1 << 16 + step) for step in range(18)]
MEMORY, KEPT_TEXTS, KEPT_CHARS = 1 << 16, 256, 1 << 17
QUESTION = Choice("Which language is it?", ["English", "German"])


def text(number: int, words: int = 300) -> str:
    drawn = np.random.default_rng(number).integers(0, 50, words)
    return f"Rubric {number}. " + " ".join(f"word{one}" for one in drawn)


def idle(replica: object) -> int:
    return 0


def test_texts_have_equal_hashes_up_to_their_last_common_length() -> None:
    one, other = text(1) + " A" * 400, text(1) + " B" * 400
    common = sum(length <= len(text(1)) for length in LENGTHS)
    assert chain_of(one)[:common] == chain_of(other)[:common]
    assert not set(chain_of(one)[common + 1 :]) & set(chain_of(other))
    assert not set(chain_of(one)) & set(chain_of(one, salt="tenant"))
    for count, length in enumerate(LENGTHS):
        assert (len(chain_of("x" * (length - 1))), len(chain_of("x" * length))) == (count, count + 1)
    assert len(set(chain_of("x" * 10**6))) == 18
    assert 1 << 62 < max(chain_of("\ud800" * 20_000)) < 1 << 63  # lone surrogates
    assert chain_of_task(Decide(one, [QUESTION], cache="never")) == ()


def test_a_report_has_the_prefixes_that_would_hit_finds_and_no_others() -> None:
    """A pool that holds two of four rubrics."""
    with Engine.from_pretrained(config=EngineConfig(max_length=2048, expert=ExpertConfig(kv_blocks=128))) as engine:
        served = Served()
        for number in range(4):
            for own in range(2):
                task = Decide(f"{text(number)}\n\nText {own}.", [QUESTION])
                engine.run(task)
                served.add(task)
        found = set(report(served.kept(), engine))
        asked = [Decide(f"{text(number)}\n\nAnother.", [QUESTION]) for number in range(5)]
        cached = [engine.would_hit(task) > 256 for task in asked]
        assert [len(found & set(chain_of_task(task))) >= 3 for task in asked] == cached
        assert any(cached) and not all(cached[:4])


@pytest.mark.parametrize("salt", [None, "tenant"])
def test_a_whole_text_that_is_cached_is_reported(salt: str | None) -> None:
    task, served = Embed(text(9, 100), pooling="last", salt=salt), Served()
    with Engine.from_pretrained() as engine:
        served.add(task)
        assert report(served.kept(), engine) == []
        engine.run(task)
        assert {*report(served.kept(), engine)} >= {*chain_of(text(9, 100), salt)[:-1]}


def test_the_memory_of_a_replica_is_bounded() -> None:
    served = Served()
    for number in range(3 * KEPT_TEXTS):
        served.add(Embed(f"{number} " + "x" * 300))
    served.add(Embed("z" * KEPT_CHARS))
    served.add(Embed("y" * (KEPT_CHARS + 1)))
    served.add(Loglikelihood([1, 2], [3], cache="never"))
    assert len(served.kept()) == KEPT_TEXTS and served.kept()[-1].chars == KEPT_CHARS


def test_the_texts_served_last_are_kept() -> None:
    served = Served()
    texts = [f"{number} " + "x" * 300 for number in range(KEPT_TEXTS + 1)]
    for one in (*texts[:-1], texts[0], texts[-1]):
        served.add(Embed(one))
    assert [one.task.prompt for one in served.kept()] == [*texts[2:-1], texts[0], texts[-1]]


@pytest.mark.parametrize(("again", "others", "kept"), [(0, 18 * 256 - 1, 1), (0, 18 * 256, 2), (1, 18 * 256, 1)])
def test_a_beginning_is_known_until_so_many_others_came(again: int, others: int, kept: int) -> None:
    """Of two texts that have it both are kept if it is a new one for the first of them."""
    served = Served()
    for one in ["A" * 300, *(f"{number} " + "x" * 300 for number in range(others))]:
        served.add(Embed(one))
        if again and one.startswith("0 "):
            served.add(Embed("A" * 300))
    for end in "bc":
        served.add(Embed("A" * 256 + end * 200))
    assert sum(one.task.prompt.startswith("A") for one in served.kept()) == kept


def test_of_texts_that_begin_alike_one_is_kept() -> None:
    served = Served()
    for own in range(20):
        served.add(Embed(text(1) + f" {own} " + "z" * own))
    assert len(served.kept()) <= 2


def test_the_replica_with_the_longest_beginning_comes_first() -> None:
    affinity: Affinity[str] = Affinity()
    chain = chain_of(text(1))
    affinity.reported("b", chain[:2])
    affinity.reported("c", chain)
    assert affinity.ranked(chain, ["a", "b", "c"], idle, 0.0) == [["c"], ["b"], ["a", "b", "c"]]
    affinity.reported("c", ())
    assert affinity.ranked(chain, ["a", "b", "c"], idle, 0.0)[0] == ["b"]
    affinity.keep({"a", "c"})
    assert affinity.ranked(chain, ["a", "c"], idle, 0.0)[0] in (["a"], ["c"])
    assert affinity.ranked((), ["a", "c"], idle, 0.0) == [["a", "c"]]
    assert affinity.ranked(chain, [], idle, 0.0) == []


def test_new_prefixes_spread_and_sent_requests_count_for_a_while() -> None:
    affinity: Affinity[int] = Affinity(trust=10.0)
    went = []
    for number in range(8):
        chain = chain_of(text(number))
        went.append(affinity.ranked(chain, range(4), lambda _: 0, 0.0)[0][0])
        affinity.sent(chain, went[-1], 0.0)
    assert sorted(went) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [affinity.ranked(chain_of(text(n)), range(4), lambda _: 0, 9.0)[0] for n in range(8)] == [
        [w] for w in went
    ]
    chain = chain_of(text(7))
    affinity.sent(chain, 0, 0.0)
    assert affinity.ranked(chain, range(4), lambda _: 0, 9.0)[0] == [went[7], 0]
    affinity.reported(2, chain)  # after its trust has ended a report alone counts, also of what was sent again
    affinity.sent(chain, 2, 11.0)
    assert affinity.ranked(chain, range(4), lambda _: 0, 99.0)[0] == [2]


def test_a_prefix_that_was_evicted_comes_back_to_its_replica() -> None:
    """Otherwise replicas whose caches are too small would send each other's prefixes around."""
    affinity: Affinity[int] = Affinity(trust=1.0)
    chains = [chain_of(text(number)) for number in range(6)]
    homes = []
    for chain in chains:
        homes.append(affinity.ranked(chain, range(3), lambda _: 0, 0.0)[0][0])
        affinity.sent(chain, homes[-1], 0.0)
        affinity.reported(homes[-1], chain)
    for replica in range(3):
        affinity.reported(replica, ())
    assert [affinity.ranked(chain, range(3), lambda _: 0, 60.0)[0][0] for chain in chains] == homes
    affinity.keep({0, 1})
    for chain, home in zip(chains, homes):
        assert affinity.ranked(chain, [0, 1], lambda _: 0, 60.0)[0] in ([[home]] if home < 2 else [[0], [1]])


def test_a_loaded_replica_gives_its_prefix_up() -> None:
    affinity: Affinity[int] = Affinity(slack=0.25, least_load=4)
    chain = chain_of(text(1))
    affinity.reported(0, chain)
    loads = {0: 3, 1: 0, 2: 0, 3: 0}
    assert affinity.ranked(chain, range(4), loads.__getitem__, 0.0) == [[0], [0, 1, 2, 3]]
    bounds = ((3, 0, True), (4, 0, False), (14, 10, True), (16, 10, False))  # the least load, 1.25 times the mean
    for load, others, keeps in bounds:
        at = {0: load, 1: others, 2: others, 3: others}
        assert (affinity.ranked(chain, range(4), at.__getitem__, 0.0)[0] == [0]) == keeps
    loads[0] = 30
    assert affinity.ranked(chain, range(4), loads.__getitem__, 0.0)[0] != [0]
    busy = dict.fromkeys(range(4), 30)
    assert affinity.ranked(chain, range(4), busy.__getitem__, 0.0)[0] == [0]  # 1.25 times the mean is its bound


def test_a_routers_memory_is_bounded() -> None:
    affinity: Affinity[int] = Affinity()
    for number in (*range(MEMORY), 0, MEMORY):
        affinity.sent((number,), 0, 0.0)
    first = [affinity.ranked((number,), [0, 1], lambda _: 0, 0.0)[0] for number in (0, 1, 2, MEMORY)]
    assert first == [[0], [1], [0], [0]]  # 1 is forgotten: a new one, and 0 has had most
    affinity.reported(0, [0, 1])
    affinity.sent(range(2, MEMORY + 2), 1, 0.0)  # forgets both
    affinity.sent((1,), 1, 0.0)
    affinity.reported(0, [])
    assert affinity.ranked((1,), [0, 1, 2], [0, 8, 0].__getitem__, 99.0)[0] == [2], "1 alone had it"
    affinity = Affinity()
    for number in (0, MEMORY):
        affinity.reported(0, range(number, number + MEMORY))
    assert [affinity.ranked((number,), [1, 0], idle, 0.0)[0] for number in (0, MEMORY)] == [[1], [0]]


def test_a_replica_that_comes_back_begins_anew() -> None:
    affinity: Affinity[int] = Affinity()
    for one, replica in ((5, 0), (6, 0), (7, 1)):
        affinity.sent((one,), replica, 0.0)
    affinity.reported(0, [5])
    affinity.keep({1})
    assert affinity.ranked((9,), [1, 0], idle, 0.0)[0] == [0], "no beginning was its own"
    assert affinity.ranked((9,), [1, 0], [8, 8].__getitem__, 0.0)[0] == [0]
    assert affinity.ranked((9,), [1, 0], [8, 0].__getitem__, 0.0)[0] == [1], "it is at its bound"
    affinity.reported(0, [5])
    assert affinity.ranked((5,), [2, 0], idle, 0.0)[0] == [0], "an equal report counts"


def test_the_last_home_of_the_longest_beginning_has_it_again() -> None:
    affinity: Affinity[int] = Affinity()
    for chain, replica in (((5,), 0), ((5, 6), 1)):
        affinity.sent(chain, replica, 0.0)
    assert [affinity.ranked(chain, [0, 1], idle, 99.0)[0] for chain in ((5,), (5, 6))] == [[0], [1]]


def test_a_router_has_limits_of_its_own() -> None:
    affinity: Affinity[int] = Affinity()
    for one, replica in ((5, 0), (5, 1), (7, 1), (8, 1), *[(5, 0)] * 3):
        affinity.sent((one,), replica, 0.0)
    for loads, now, first in (
        ((7, 0, 0, 0), 29.9, [0, 1]),
        ((8, 0, 0, 0), 29.9, [1]),
        ((7, 0, 0, 0), 30.0, [0]),
        ((8, 0, 0, 0), 30.0, [1]),
        ((10, 8, 7, 7), 0.0, [0, 1]),
        ((10, 7, 7, 7), 0.0, [1]),
    ):
        for total in (None, sum(loads)):
            groups = affinity.ranked((6, 5), range(4), loads.__getitem__, now, total)
            assert groups == [first, [0, 1, 2, 3]]
    assert affinity.ranked((9,), [1, 0], lambda _: 0, 0.0)[0] == [0], "a beginning counts once"
