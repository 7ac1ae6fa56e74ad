from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from prelude.errors import PreludeError, TraceError
from prelude.simulation import Arrival, ClosedLoop, Fleet, LinearCost, Machine, Report, machine, simulate
from prelude.simulation.fleet import Failure, OpenLoop, failures
from prelude.simulation.report import Latency, jain, table
from prelude.simulation.routing import ROUTERS, Loads, PowerOfTwo, PrefixAffine, router
from prelude.simulation.workloads import bursts, cancelled, chat_beside_decisions, merged, rubrics


def second_per_token(**config: object) -> Machine:
    """A machine on which a token takes a second and nothing else takes any."""
    chosen = machine("h200-qwen3-4b", **{"kv_blocks": 64, "max_length": 4096, **config})
    return replace(chosen, cost=LinearCost(0.0, 1.0, 0.0))


def one(at: float, tokens: int, **fields: object) -> Arrival:
    return Arrival(at, ((None, tokens),), **fields)  # type: ignore[arg-type]


def test_time_is_the_cost_of_the_batches_and_waiting_is_seen() -> None:
    report = simulate(second_per_token(), [one(0.0, 10), one(4.0, 5), one(30.0, 1)])
    assert report.seconds == 31.0
    assert report.latency.mean == pytest.approx((10 + 11 + 1) / 3)
    assert report.latency.longest_wait == 6.0
    assert report.latency.p50 == 10.0 and report.latency.p99 == report.latency.longest == 11.0
    assert report.busy == pytest.approx(16 / 31) and report.throughput == pytest.approx(3 / 31)


def test_a_request_that_comes_at_the_moment_a_step_begins_is_in_it() -> None:
    report = simulate(second_per_token(), [one(0.0, 10), one(10.0, 5), one(10.0, 5)])
    assert report.steps == 2 and report.latency.longest == 10.0


def test_first_tokens_and_ends_of_generated_text() -> None:
    report = simulate(second_per_token(), [one(0.0, 10, task="generate", max_tokens=5)])
    assert report.first_token.mean == 10.0 and report.by_task["generate"].mean == 14.0
    assert report.computed_tokens == 14


def test_deadlines_and_cancellations_happen_at_their_moments() -> None:
    trace = [one(0.0, 10), one(1.0, 10, deadline=5.0)]
    trace += [*[one(1.0, 10, cancel_after=2.0)] * 2, one(2.0, 10, cancel_after=50.0)]
    report = simulate(second_per_token(max_step_requests=1, max_running=1), trace)
    assert report.ends == {"cancelled": 2, "expired": 1, "finished": 2}
    assert report.seconds == 20.0


def test_a_request_that_the_engine_would_refuse_is_refused() -> None:
    trace = [one(0.0, 9000), *(one(0.5, 10) for _ in range(8))]
    report = simulate(second_per_token(max_queued_requests=3), [one(0.0, 10), *trace])
    assert report.ends == {"finished": 4, "refused": 6}


def test_the_same_seed_gives_the_same_report_to_the_last_digit() -> None:
    chosen = machine("h200-qwen3-4b", kv_blocks=3000)

    def reports(seed: int) -> Report:
        trace = cancelled(chat_beside_decisions(60.0, seed, requests=150), 0.1, 0.05, seed)
        return simulate(chosen, trace, replicas=3, routing="random", seed=seed)

    assert reports(1) == reports(1)
    assert reports(1) != reports(2)


def test_a_closed_loop_has_as_many_under_way_as_it_has_clients() -> None:
    fleet = Fleet(second_per_token())
    under_way: list[int] = []
    fleet.replicas[0].on_plan = lambda plan: under_way.append(len(fleet.replicas[0].core.live))
    report = fleet.run(ClosedLoop([one(0.0, 10) for _ in range(40)], 4, think=1.0))
    assert report.ends == {"finished": 40} and max(under_way) == 4
    assert report.seconds == pytest.approx(10 * 40 + 9)  # four at a time, a second to think between


WRONG_TIMES = [(0.0, 1, 1), (math.inf, 1, 1), (1, -1.0, 1), (1, math.inf, 1), (1, 1, 0.0), (1, 1, math.inf)]
WRONG = [
    Failure(*one) for one in ((-1.0, 0, 1), (math.inf, 0, 1), (0, 1, 1), (0, -1, 1), (0, 0, 0.0), (0, 0, math.inf))
]


@pytest.mark.parametrize(
    "wrong, said",
    [
        (lambda: ClosedLoop([], 0), "at least 1 client"),
        *((lambda think=think: ClosedLoop([], 1, think), "time to think") for think in (-1.0, math.inf, math.nan)),
        (lambda: machine("abacus"), "machine='abacus' is not one of h"),
        (lambda: router("magic", 2, 0), "router='magic' is not one of random, "),
        *((lambda rate=rate: next(rubrics(rate)), "not a positive number") for rate in (0.0, -1.0, math.inf)),
        *((lambda wrong=wrong: failures(1, *wrong, 0), "positive times") for wrong in WRONG_TIMES),
        *((lambda wrong=wrong: Fleet(second_per_token(), failures=[wrong]), "is 0 to 0") for wrong in WRONG),
        *((lambda count=count: Fleet(second_per_token(), count), "1 to 1000") for count in (0, 1001)),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: Callable[[], object], said: str) -> None:
    with pytest.raises(PreludeError, match=said):
        wrong()
    with pytest.raises(TraceError, match=r"an arrival at 1\.0 follows one at 2\.0: sort the trace by at"):
        simulate(second_per_token(), [one(2.0, 1), one(1.0, 1)])
    for empty in (OpenLoop([]), ClosedLoop([], 1)):
        with pytest.raises(TraceError, match="the trace has ended"):
            empty.pop()


@pytest.mark.feature("N6")
@pytest.mark.feature("F17")
@pytest.mark.parametrize("blocks", [150, 20_000])
def test_bursts_whose_callers_go_away_leave_nothing_behind(blocks: int) -> None:
    """Overload on a pool that holds little, or much: every step audited, everybody ends, all blocks free again."""
    chosen = machine("h200-qwen3-4b", kv_blocks=blocks, max_running=8, max_step_requests=32, max_length=2048)
    trace = cancelled(merged(bursts(800.0, requests=300), chat_beside_decisions(60.0, requests=100)), 0.2, 0.05)
    fleet = Fleet(chosen, 2, audit=1)
    report = fleet.run(trace)
    assert sum(report.ends.values()) == 400 and set(report.ends) == {"cancelled", "finished"}
    for replica in fleet.replicas:
        assert replica.core.pool.num_used == 0 and replica.core.pool.live_leases == 0
        assert replica.core.queues.empty and not replica.core.live


# ------------------------------------------------------------------ more than one machine
def test_prefix_affine_routing_reuses_prefixes_that_random_routing_computes_again() -> None:
    """Each of 8 replicas holds an eighth of the rubrics: affinity finds it, chance does not."""
    chosen = machine("h200-qwen3-4b", kv_blocks=2500)
    by_way = {
        way: simulate(chosen, rubrics(300.0, requests=1500, rubrics=120, skew=0.3), replicas=8, routing=way)
        for way in ("random", "least-loaded", "prefix-affine")
    }
    assert by_way["prefix-affine"].hit_rate > 1.5 * by_way["random"].hit_rate
    assert by_way["prefix-affine"].latency.mean < by_way["least-loaded"].latency.mean
    assert by_way["prefix-affine"].latency.mean < by_way["random"].latency.mean


def test_the_least_loaded_replica_is_the_one_with_the_fewest_tokens_under_way() -> None:
    fleet = Fleet(second_per_token(), 3, routing="least-loaded")
    went: dict[str | None, int] = {}
    for replica in fleet.replicas:
        replica.on_plan = lambda plan, number=replica.number: went.update(
            {request.options.request_id: number for request in plan.requests()}
        )
    ids = [("a", 0.0, 100), ("b", 0.0, 10), ("c", 0.0, 20), ("d", 1.0, 5), ("e", 16.0, 5), ("f", 50.0, 5)]
    ids += [("g", 200.0, 5)]
    fleet.run([one(at, tokens, id=name) for name, at, tokens in ids])
    # At 1 the second has 10 tokens to go. At 16 it has none left, the third 20. At 50 both are idle,
    # and at 200 all three.
    assert went == {"a": 0, "b": 1, "c": 2, "d": 1, "e": 1, "f": 1, "g": 0}


def test_one_hot_prefix_spreads_over_replicas_once_its_own_is_loaded() -> None:
    routing, loads = PrefixAffine(4, 0), Loads(4)
    arrival = Arrival(0.0, (("everybody", 900), (None, 100)))
    owners = []
    for _ in range(40):
        owners.append(routing.route(arrival, loads))
        loads.add(owners[-1], arrival.prompt_tokens)
    assert set(owners) == {0, 1, 2, 3}
    assert max(loads.tokens) <= 1.25 * (loads.total + 1000) / 4 + 1000
    for replica in range(4):
        loads.lose(replica)
    assert (loads.total, loads.in_flight, loads.up) == (0, 0, [])
    loads = Loads(4)
    loads.lose(owners[0])
    loads.lose(owners[1])
    own = routing.route(arrival, loads)
    for replica in loads.up:
        loads.add(replica, 12_000 if replica == own else 10_000)
    assert routing.route(arrival, loads) == own, "up to 1.25 times the mean of those that live"


def test_a_replica_more_moves_the_prefixes_that_it_gets_and_no_other() -> None:
    prefixes = [Arrival(0.0, ((f"p{number}", 100), (None, 10))) for number in range(400)]

    def owners(count: int, seed: int = 0) -> list[int]:
        way, idle = router("prefix-affine", count, seed), Loads(count)
        return [way.route(prefix, idle) for prefix in prefixes]

    four, five = owners(4), owners(5)
    assert four == owners(4) != owners(4, 1)
    assert all(40 < four.count(replica) < 180 for replica in range(4)), "an idle one takes its own, however long"
    assert [new for old, new in zip(four, five) if old != new] == [4] * five.count(4)


def test_routers_that_know_no_cache_draw_by_their_seed() -> None:
    idle, nothing = Loads(4), one(0.0, 10)
    for seed in (0, 2):
        way = router("round-robin", 4, seed)
        assert [way.route(nothing, idle) for _ in range(5)] == [(seed + turn) % 4 for turn in range(5)]
    for name in ("random", "power-of-two", "prefix-reported"):
        ways = [router(name, 4, seed) for seed in (0, 0, 1)]
        first, again, other = ([way.route(nothing, idle) for _ in range(40)] for way in ways)
        assert first == again != other and set(first) == {0, 1, 2, 3}


def test_prefixes_are_those_of_the_first_named_parts() -> None:
    trunk = Arrival(0.0, (("a", 900), ("b", 100), (None, 9)))
    for fields, same in (
        ({"parts": (("a", 900), ("c", 9))}, True), ({"parts": (("b", 900),)}, False), ({"cache": "never"}, False),
        ({"parts": ((None, 9), ("a", 900))}, False),
    ):  # fmt: skip
        way, loads = router("prefix-reported", 4, 0), Loads(4)
        held = way.route(trunk, loads)
        loads.add(held, 1000)  # so that a request without a prefix there goes to another replica
        assert (way.route(replace(trunk, **fields), loads) == held) == same


# ------------------------------------------------------------------ numbers
def test_fairness_is_jains_index_of_progress() -> None:
    assert jain([1.0, 1.0, 1.0]) == pytest.approx(1.0) and jain([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
    trace = [one(0.0, 10, user="a"), one(0.0, 10, user="b", cache="never")]
    assert simulate(second_per_token(), trace).fairness == pytest.approx(1.0)
    late = simulate(second_per_token(max_step_requests=1, max_running=1), trace)
    assert late.fairness == pytest.approx(jain([1.0, 0.5]))
    keys = replace(
        second_per_token(), cost=LinearCost(0.0, 1.0, 0.5)
    )  # alone: four tokens behind 12 keys in the mean
    apart = [one(0.0, 10, user="a", task="generate", max_tokens=5), one(1000.0, 4, user="b")]
    taken, alone = 10 + 55 / 2 + 4 + (11 + 12 + 13 + 14) / 2, 10 + 55 / 2 + 4 + 4 * 12 / 2
    assert simulate(keys, apart).fairness == pytest.approx(jain([alone / taken, 1.0]), rel=1e-9)


def test_hits_and_folds_are_counted_against_the_asked_tokens() -> None:
    shared = Arrival(0.0, (("a", 160), (None, 40)))
    report = simulate(second_per_token(), [shared, shared, replace(shared, at=1000.0)])
    assert report.folded_rate == pytest.approx(160 / 600) and report.hit_rate == pytest.approx(160 / 600)
    assert report.computed_tokens == 280


def test_every_figure_of_a_report() -> None:
    """A step of 48 + 10 tokens, four of a token of text, one of the 16 tokens that no block has, and two of one
    request each. One request is too large, one expires and one is cancelled."""
    shared = Arrival(0.0, (("a", 32), (None, 8)), questions=(4, 4), user="u")
    trace = [shared, one(0.0, 10, task="generate", max_tokens=5, tenant="t"), one(3.0, 10, deadline=5.0)]
    trace += [one(3.0, 9000), one(4.0, 6, cancel_after=2.0), replace(shared, at=100.0, user=None, tenant="t")]
    found = simulate(second_per_token(), [*trace, one(200.0, 10), one(204.0, 6)])
    text = Latency(1, 62.0, 62.0, 62.0, 62.0, 0.0, 0.0)
    assert replace(found, starvation=0.0) == Report(
        machine="h200-qwen3-4b", replicas=1, seconds=216.0,
        ends={"cancelled": 1, "expired": 1, "finished": 5, "refused": 1},
        latency=Latency(5, pytest.approx(158 / 5), 16.0, 62.0, 62.0, pytest.approx(1.2), 6.0),
        by_task={"decide": Latency(4, 24.0, 12.0, 58.0, 58.0, 1.5, 6.0), "generate": text},
        first_token=replace(text, mean=58.0, p50=58.0, p99=58.0, longest=58.0),
        throughput=pytest.approx(5 / 216), prompt_tokens=122, computed_tokens=94, hit_rate=pytest.approx(32 / 122),
        folded_rate=0.0, steps=8, busy=pytest.approx(94 / 216), preemptions=0, deferrals=0, evictions=0, overtaken=0,
        starvation=0.0, fairness=pytest.approx(jain([48 / 58, (14 / 62 + 48 / 16) / 2, (1 + 6 / 12) / 2])), users=3,
    )  # fmt: skip
    *_, row = table([replace(found, label="one")]).splitlines()
    assert " ".join(row.split()) == "one 31.6 s 16 s 62 s 62 s 0.02315 26.2% 0.0% 0 - 0.882 44%"
    assert list(found.ends) == sorted(found.ends) and found.json()["starvation"] is None, "tenants have no bound"
    refused = simulate(second_per_token(), [one(0.0, 9000)]).json()
    assert refused["seconds"] == 0 and refused["throughput"] is refused["latency"]["mean"] is refused["busy"] is None


# ------------------------------------------------------------------ failures, and the routers of a real fleet
def test_requests_of_a_replica_that_dies_are_asked_again_and_count_from_their_first_asking() -> None:
    """It dies at 5 in a step that ends at 10: nothing of it counts. The second replica takes both requests."""
    fleet = Fleet(second_per_token(), 2, routing="round-robin", failures=[Failure(5.0, 0, 100.0)])
    report = fleet.run([one(0.0, 10), one(0.0, 4), one(1.0, 3)])
    assert report.ends == {"finished": 3} and report.retried == 2
    assert report.latency.longest == pytest.approx(5.1 + 13.0) and report.replicas == 2
    assert report.latency.p50 == pytest.approx(17.1) and report.busy == pytest.approx((5 + 4 + 13) / (18.1 * 2))


def test_the_cache_of_a_replica_is_gone_with_it() -> None:
    shared = Arrival(0.0, (("a", 160), (None, 40)))
    trace = [replace(shared, at=at) for at in (0.0, 1000.0, 2000.0)]
    whole = simulate(second_per_token(), trace)
    killed = simulate(second_per_token(), trace, failures=[Failure(1500.0, 0, 10.0)])
    assert whole.computed_tokens == 280 and killed.computed_tokens == 440 and killed.retried == 0
    quick = replace(second_per_token(), cost=LinearCost(0.0, 0.01, 0.0))
    trace = [replace(shared, at=at) for at in (0.0, 5.5, 10.0)]  # the first two on a replica each
    found = simulate(quick, trace, replicas=2, routing="prefix-reported", failures=[Failure(5.0, 0, 1.0)])
    assert found.computed_tokens == 440, "the third one goes where the prefix still is"


def test_requests_wait_while_no_replica_lives() -> None:
    report = simulate(second_per_token(), [one(0.0, 10), one(20.0, 5)], failures=[Failure(15.0, 0, 30.0)])
    assert report.ends == {"finished": 2} and report.seconds == pytest.approx(50.0)


def test_a_failure_of_a_replica_that_is_down_changes_nothing() -> None:
    """It is down from 5 to 15 and dies again at 20, whatever the order in which the failures are given."""
    down = [Failure(20.0, 0, 1.0), Failure(5.0, 0, 10.0), Failure(15.0, 0, 3.0), Failure(7.0, 0, 1.0)]
    report = simulate(second_per_token(), [one(0.0, 10)], failures=down)
    assert (report.retried, report.seconds, report.ends) == (2, 31.0, {"finished": 1})


def test_what_a_dead_replica_had_cached_is_forgotten() -> None:
    way, loads = router("prefix-reported", 3, 0), Loads(3)
    shared = Arrival(0.0, (("a", 900), (None, 100)))
    held = way.route(shared, loads)
    loads.add(held, 1000)
    assert [way.route(shared, loads) for _ in range(9)] == [held] * 9
    loads.lose(held)
    way.lost(held, loads)
    loads.regain(held)
    loads.add(held, 1000)
    assert way.route(shared, loads) != held


def test_the_step_that_a_failure_interrupts_takes_no_time_beyond_it() -> None:
    """It dies at 5 in a step of 100 s and asks again from 6 on; the next step begins at 106, with both that came."""
    trace = [one(0.0, 100), one(50.0, 10), one(102.0, 10)]
    report = simulate(second_per_token(), trace, failures=[Failure(5.0, 0, 1.0)])
    assert report.latency.mean == pytest.approx((106 + 76 + 24) / 3) and (report.steps, report.seconds) == (3, 126)
    assert report.busy == pytest.approx((5 + 120) / 126)


@pytest.mark.long
@pytest.mark.parametrize("routing", ["random", "round-robin", "power-of-two", "least-loaded", "prefix-affine",
                                     "prefix-reported"])  # fmt: skip
def test_every_request_is_answered_through_any_router_while_replicas_come_and_go(routing: str) -> None:
    chosen = machine("h200-qwen3-4b", kv_blocks=2000)
    gone = failures(20, 3.0, 10.0, 1.0, seed=4)
    fleet = Fleet(chosen, 20, routing=routing, failures=gone, audit=50)
    report = fleet.run(cancelled(rubrics(300.0, requests=2000, rubrics=60), 0.1, 0.05))
    assert len(gone) > 20 and report.retried > 0
    assert sum(report.ends.values()) == 2000 and set(report.ends) <= {"cancelled", "finished"}
    assert len(fleet.dead) > 20 and fleet.loads.total == sum(fleet.loads.tokens)


def test_the_shorter_queue_of_two_is_taken() -> None:
    routing, loads = PowerOfTwo(4, 0), Loads(4)
    loads.lose(3)
    for replica, requests in enumerate((5, 1, 0)):
        for _ in range(requests):
            loads.add(replica, 10)
    chosen = [routing.route(one(0.0, 10), loads) for _ in range(300)]
    assert set(chosen) == {1, 2} and 0.5 < chosen.count(2) / 300 < 0.8  # two thirds in the mean


@pytest.mark.parametrize("routing", ROUTERS)
def test_a_request_without_a_prefix_goes_to_a_replica_that_lives(routing: str) -> None:
    way, loads = router(routing, 3, 0), Loads(3)
    nothing = Arrival(0.0, ((None, 10),))
    loads.add(0, 10)
    assert {way.route(nothing, loads) for _ in range(60)} <= {0, 1, 2}
    if routing in ("least-loaded", "prefix-affine", "prefix-reported"):
        assert 0 not in {way.route(nothing, loads) for _ in range(60)}
    loads.lose(0)
    loads.lose(2)
    assert {way.route(nothing, loads) for _ in range(5)} == {1}
