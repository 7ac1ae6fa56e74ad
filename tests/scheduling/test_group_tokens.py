"""A step is not filled up with a long request that the short ones in it would have to wait for."""

from __future__ import annotations

import itertools

import pytest

from prelude.scheduling.plan import Plan
from prelude.simulation import Arrival, Fleet, machine


def steps(*arrivals: Arrival, **config: object) -> list[list[str | None]]:
    """The requests of each step, all of which came at once."""
    fleet = Fleet(machine("cpu-default", **{"max_length": 2048, "max_step_tokens": 2200, "block_size": 4, **config}))
    seen: list[list[str | None]] = []

    def note(plan: Plan) -> None:
        seen.append([row.request.options.request_id for row in plan.oneshot])

    fleet.replicas[0].on_plan = note
    fleet.run(arrivals)
    return seen


def alone(name: str, tokens: int) -> Arrival:
    return Arrival(0.0, ((None, tokens),), id=name)


def test_short_requests_go_together_and_the_long_one_after_them() -> None:
    came = (alone("long", 1500), alone("a", 20), alone("b", 30))
    assert steps(*came, group_tokens=100) == [["a", "b"], ["long"]]
    assert steps(*came, group_tokens=2000) == [["long", "a", "b"]]  # all of it fits: one step


def test_the_first_request_of_a_step_may_be_longer_than_the_group_limit() -> None:
    came = (alone("long", 1500), alone("a", 60), alone("b", 60))
    assert steps(*came, group_tokens=100, policy="first_come_first_served") == [["long", "a"], ["b"]]


def test_a_request_that_folds_with_the_first_is_charged_with_its_own_part_alone() -> None:
    same = tuple(Arrival(0.0, (("rubric", 1000), (None, 20)), id=name) for name in "abcd")
    assert steps(*same, group_tokens=64) == [["a", "b", "c", "d"]]
    assert steps(*same, group_tokens=40) == [["a", "b", "c"], ["d"]]


@pytest.mark.parametrize("policy", ["first_come_first_served", "shortest_prefill_first", "response_ratio"])
def test_every_request_is_served_once_under_any_bound(policy: str) -> None:
    came = [alone(str(n), 1 + 37 * n % 900) for n in range(60)]
    for bound in (1, 50, 500, 8192):
        served = list(itertools.chain(*steps(*came, group_tokens=bound, policy=policy)))
        assert sorted(served, key=str) == sorted((a.id for a in came), key=str)


@pytest.mark.feature("G4")
def test_a_prefix_that_others_wait_for_displaces_promoted_blocks_and_a_unique_one_does_not() -> None:
    """Once old prefixes that were hit fill three quarters of the pool, a new one that is longer than the rest is kept
    while peers wait for it: it is computed once. A prompt that no request shares computes as much and displaces
    nothing."""

    def run(second: str | None) -> tuple[int, int]:
        old = [Arrival(float(n), ((f"old-{n % 5}", 400), (None, 4)), id=f"old-{n}") for n in range(10)]
        busy = Arrival(100.0, ((None, 1500),), id="busy")
        new = [Arrival(100.001, ((second, 800), (None, 8)), id=f"new-{n}") for n in range(4)]
        settings = {"kv_blocks": 666, "group_tokens": 16, "fold": False, "defer_steps": 0, "block_size": 4}
        fleet = Fleet(machine("cpu-default", **{"max_length": 2048, "max_step_tokens": 2200, **settings}))
        fleet.run([*old, busy, *new])
        core = fleet.replicas[0].core
        kept = sum(core.pool.would_hit(fleet.tokens.part(f"old-{n}", 400)) == 100 for n in range(5))  # blocks
        return core.stats.prefill_tokens, kept

    alone, kept_alone = run(None)
    shared, kept_shared = run("new")
    assert kept_alone == 5 and kept_shared == 4
    assert alone - shared == 3 * 800
