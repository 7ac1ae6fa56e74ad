"""Policies: each against its definition written out request by request, and the promise of each to waiting
requests."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prelude._native.core import KvPool

from prelude import Engine, EngineConfig, ExpertConfig
from prelude.errors import ConfigError
from prelude.scheduling.policies import (
    POLICIES,
    EarliestDeadline,
    FirstComeFirstServed,
    PrefillFirst,
    ResponseRatio,
    ShortestPrefillFirst,
    policy_named,
)
from prelude.scheduling.queues import Accounts, Policies, WaitingQueue
from prelude.scheduling.request import Request
from prelude.values.options import RequestOptions
from prelude.values.policy import Keys, WaitingColumns
from tests import toy
from tests.scheduling.cores import Collect, chat, last_logprob, post, prompt, text
from tests.service import run_steps, service_core

ORDERS = {
    "first_come_first_served": lambda r, cached, now: 0,
    "shortest_prefill_first": lambda r, cached, now: 2e5 * np.log2(max(1, r.num_known - cached)) + r.queued_at,
    "response_ratio": lambda r, cached, now: Fraction(r.queued_at - now, max(1, r.num_known - cached)),
    "earliest_deadline": lambda r, cached, now: r.expires,
    "nearest_then_longest": lambda r, cached, now: (r.expires, -r.num_known),
}


class NearestThenLongest(EarliestDeadline):
    def keys(self, waiting: WaitingColumns, now: float) -> Keys:
        return (waiting.expires, -waiting.tokens)


def naive(waiting: list[Request], cached: dict[int, int], served: dict[Any, int], now: int, name: str) -> list[int]:
    """Priorities; then again and again the tenant with the fewest tokens, and of it the first by the order."""
    out: list[int] = []
    left = list(waiting)
    served = dict(served)
    while left:
        top = max(r.options.priority for r in left)
        level = [r for r in left if r.options.priority == top]
        heads = {}
        for r in level:
            key = (ORDERS[name](r, cached[r.order], now), r.order)
            if r.options.tenant not in heads or key < heads[r.options.tenant][0]:
                heads[r.options.tenant] = (key, r)
        tenant = min(heads, key=lambda t: (served[top, t], heads[t][0]))
        chosen = heads[tenant][1]
        served[top, tenant] += max(1, chosen.num_known)
        left.remove(chosen)
        out.append(chosen.order)
    return out


class Known:
    """Cached tokens, by order of arrival."""

    def __init__(self, cached: dict[int, int]) -> None:
        self.cached = cached

    prefix_changes = 0

    def cached_tokens(self, requests: list[Request | None]) -> Any:
        return np.array([0 if one is None else self.cached[one.order] for one in requests])


class Asked:
    streams = False

    def token(self, *_: Any) -> bool:
        return False

    def deliver(self, *_: Any) -> None:
        pass


def waiting_request(tokens: int, order: int, priority: int = 0, tenant: str | None = None) -> Request:
    request = Request(last_logprob(prompt(tokens, order)), Asked(), RequestOptions(priority=priority, tenant=tenant))
    request.order = order
    return request


def test_all_that_wait_are_given_or_those_that_share_a_batch_with_the_first() -> None:
    queue = WaitingQueue(FirstComeFirstServed(), None)
    for order in range(1, 7):
        request = waiting_request(3, order)
        if order % 2:
            request = Request(chat(prompt(3, order), 5), Asked(), RequestOptions())
            request.order = order
        queue.append(request, 0)
    assert [r.order for r in queue.in_order(0)] == [1, 2, 3, 4, 5, 6]
    assert [r.order for r in queue.in_order(0, one_group=True)] == [1, 3, 5]


@pytest.mark.parametrize("name", sorted(ORDERS))
@settings(max_examples=20, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.integers(1, 60),  # tokens
            st.sampled_from([0, 0, 0, 1]),
            st.sampled_from([None, None, "a", "b"]),
            st.sampled_from([math.inf, 5.0, 6.0, 7.0]),
            st.sampled_from([0, 0, 0, 0, 1, 4]),  # how many are served then: fewer than come
            st.integers(0, 60),  # its tokens in the cache
            st.integers(0, 40),  # how many more tokens were served
            st.booleans(),  # whether one leaves unserved
        ),
        min_size=20,
        max_size=40,
    )
)
@pytest.mark.feature("G5")
@pytest.mark.feature("F22")
def test_a_queue_is_in_the_order_that_its_policy_defines(name: str, steps: list[Any]) -> None:
    """With requests that join, leave, are served and are matched anew, at any time."""
    cached: dict[int, int] = {}
    policy = POLICIES.get(name, NearestThenLongest)()
    known = Known(cached)
    queue = WaitingQueue(policy, cast(KvPool, known))
    now = 0
    waiting: list[Request] = []
    for order, (tokens, priority, tenant, expires, serve, hit, more, leaves) in enumerate(steps, 1):
        request = waiting_request(tokens, order, priority, tenant)
        request.expires = expires
        cached[order] = min(hit, tokens - 1)
        queue.append(request, now)
        waiting.append(request)
        now += more
        served = {key: queue.accounts.accounts[key].served for key in queue.accounts.accounts}
        expected = naive(waiting, cached, served, now, name)
        assert [r.order for r in queue.in_order(now)] == expected
        for number in expected[:serve]:
            [chosen] = [r for r in waiting if r.order == number]
            queue.serve(chosen)
            waiting.remove(chosen)
        if leaves and waiting:
            queue.remove(waiting.pop(len(waiting) // 2))
        if waiting and policy.estimates:
            moved = waiting[len(waiting) // 3]
            cached[moved.order] = moved.num_known // 2
            known.prefix_changes += 1
        assert sorted(r.order for r in queue) == sorted(r.order for r in waiting)
        assert len(queue) == len(waiting) == sum(account.waiting for account in queue.accounts.accounts.values())


def test_ten_thousand_are_ranked_as_a_few_are() -> None:
    """The partial order that a long queue works with is the beginning of the whole one, to its end."""
    rng = np.random.default_rng(0)
    queue = WaitingQueue(ShortestPrefillFirst(), None)
    waiting = []
    tokens = prompt(64, 0)
    for order in range(1, 6001):
        request = Request(last_logprob(tokens[: int(rng.integers(1, 64))]), Asked())
        request.order = order
        queue.append(request, int(rng.integers(0, 400_000)))
        waiting.append(request)
    expected = sorted(waiting, key=lambda r: (200_000 * np.log2(r.num_known) + r.queued_at, r.order))
    for request in expected[:700]:
        assert next(queue.in_order(0)) is request
        queue.serve(request)
    assert list(queue.in_order(0)) == expected[700:]


# ------------------------------------------------------------------ starvation
def endless(half_life: float, long: int = 200, most: int = 900) -> int | None:
    """Tokens served until a long request starts beside endless short ones; ``None``: not within ``most`` steps."""
    core = service_core(
        toy.ToyExecutor(num_blocks=64),
        step_tokens=220,
        step_requests=4,
        running=2,
        cache=False,
        policies=Policies(ShortestPrefillFirst(half_life)),
    )
    sink = Collect()
    for i in range(40):
        post(core, last_logprob(prompt(10, i)), sink)
    target = post(core, last_logprob(prompt(long, 99)), sink)
    came = None
    for step in range(most):
        for i in range(4):  # as many as a step serves
            post(core, last_logprob(prompt(10, 1000 + 4 * step + i)), sink)
        core.step()
        came = target.queued_at if came is None else came
        if target.planned:
            return core.queues.served - came
    return None


@pytest.mark.feature("G6")
@pytest.mark.parametrize("half_life", [40, 200, 1000])
def test_a_long_request_starts_within_the_stated_bound(half_life: float) -> None:
    """Only requests that come within half_life * log2(work / its own) tokens served can overtake it."""
    waited = endless(half_life)
    overtaking = half_life * math.log2(200 / 10)
    backlog = 41 * 10
    assert waited is not None and overtaking < waited <= overtaking + backlog + 200 + 2 * 40


@pytest.mark.feature("G6")
def test_without_ageing_it_starves_and_a_response_ratio_does_not_let_it() -> None:
    assert endless(math.inf) is None
    ratio = WaitingQueue(ResponseRatio(), None)
    ratio.append(waiting_request(60, 1), 0)
    for order in range(2, 30):
        ratio.append(waiting_request(5, order), 50 * order)
    assert next(ratio.in_order(1400)).order != 1
    ratio.append(waiting_request(5, 40), 10_000)
    for request in list(ratio.in_order(10_000)):
        if request.order not in (1, 40):
            ratio.remove(request)
    assert [r.order for r in ratio.in_order(10_001)] == [1, 40]


# ------------------------------------------------------------------ tenants
@pytest.mark.feature("F22")
def test_tenants_that_wait_are_served_equal_tokens_under_every_policy() -> None:
    for name in POLICIES.keys() & ORDERS.keys():
        core = service_core(
            toy.ToyExecutor(num_blocks=64),
            step_tokens=84,
            step_requests=8,
            cache=False,
            policies=Policies(policy_named(name)),
        )
        sink = Collect()
        owner = {}
        for i in range(120):
            owner[post(core, last_logprob(prompt(8, i)), sink, tenant="many").id] = ("many", 8)
        for i in range(30):
            owner[post(core, last_logprob(prompt(32, 500 + i)), sink, tenant="few").id] = ("few", 32)
        for _ in range(12):
            core.step()
        got = {
            tenant: sum(n for i, (t, n) in owner.items() if t == tenant and i in sink.ends)
            for tenant in ("many", "few")
        }
        assert abs(got["many"] - got["few"]) <= 2 * 32 + 8, name


@pytest.mark.feature("F22")
def test_a_tenant_that_was_away_starts_level_with_the_others() -> None:
    queue = WaitingQueue(FirstComeFirstServed(), None)
    orders = iter(range(1, 99))

    def join(tenant: str, count: int) -> None:
        for _ in range(count):
            queue.append(waiting_request(10, next(orders), tenant=tenant), 0)

    def turns() -> str:
        return "".join(str(r.options.tenant) for r in queue.in_order(0))

    join("a", 10)
    for request in list(queue)[:5]:
        queue.serve(request)
    join("b", 5)
    assert turns() == "bababababa"
    for request in list(queue):  # all of b's are served last, and the line is empty
        queue.serve(request)
    join("a", 2)
    join("b", 2)
    assert turns() == "abab"


@pytest.mark.feature("F22")
def test_the_class_of_the_highest_priority_goes_first_whatever_came_first() -> None:
    core = service_core(toy.ToyExecutor(num_blocks=64), step_tokens=36, chunk=64)
    sink = Collect()
    post(core, last_logprob(prompt(20, 1)), sink)
    talk = post(core, chat(prompt(30, 2), 2), sink, priority=1)
    shot = post(core, last_logprob(prompt(20, 3)), sink, priority=2)
    core.step()
    assert list(sink.ends) == [shot.id] and talk.cached_len == 16, "the rest of the step"


# ------------------------------------------------------------------ Decode requests
@pytest.mark.feature("F5")
def test_prefill_first_takes_the_whole_prompt_in_the_next_step() -> None:
    gaps = {}
    for name in ("prefill_first", "first_come_first_served"):
        core = service_core(
            toy.ToyExecutor(num_blocks=128), step_tokens=128, chunk=8, policies=Policies(decode=policy_named(name))
        )
        sink = Collect()
        runs = post(core, chat(prompt(6, 1), 40), sink)
        core.step()
        core.step()
        late = post(core, chat(prompt(60, 2), 3), sink)
        core.step()
        batch = core.executor.batches[-1]
        gaps[name] = batch.prefill_tokens
        assert batch.decode_tokens == 1, "the running row has its token in the same step"
        run_steps(core)
        assert text(sink, late) == toy.generate(prompt(60, 2).tolist(), 3)
        assert text(sink, runs) == toy.generate(prompt(6, 1).tolist(), 40)
    assert gaps == {"prefill_first": 60, "first_come_first_served": 8}


@pytest.mark.feature("F1")
def test_static_batches_refill_when_all_rows_are_free() -> None:
    """The book's example: 1000, 100, 120 and 100 tokens, four requests at once, scaled by ten."""
    steps, widths = {}, {}
    for name in ("static_batches", "first_come_first_served"):
        core = service_core(
            toy.ToyExecutor(num_blocks=256), running=4, step_tokens=64, policies=Policies(decode=policy_named(name))
        )
        sink = Collect()
        requests = [post(core, chat(prompt(4, i), n), sink) for i, n in enumerate([100, 10, 12, 10] * 2)]
        steps[name] = run_steps(core)
        widths[name] = [
            batch.decode_tokens if hasattr(batch, "decode_tokens") else batch.num_tokens
            for batch in core.executor.batches
        ]
        assert [len(text(sink, r)) for r in requests] == [100, 10, 12, 10] * 2
    assert steps["static_batches"] == 200
    assert sum(w == 1 for w in widths["static_batches"]) == 2 * 88, "one of four rows used for 88 of 100 steps"
    assert steps["first_come_first_served"] <= 126


# ------------------------------------------------------------------ configuration
@pytest.mark.feature("F24")
def test_policies_are_chosen_by_name_or_given_as_objects() -> None:
    assert policy_named("shortest_prefill_first") == ShortestPrefillFirst()
    assert policy_named(PrefillFirst(ShortestPrefillFirst(5000))).whole_prompts
    EngineConfig(policy="response_ratio", expert=ExpertConfig(decode_policy=PrefillFirst()))
    for wrong in (3, None, ShortestPrefillFirst):
        with pytest.raises(ConfigError, match="policy"):
            EngineConfig(policy=wrong)  # type: ignore[arg-type]
    for name in ("policy", "decode_policy"):
        with pytest.raises(ConfigError, match=f"{name}='fifo' is neither a Policy nor one of first_come"):
            Engine.from_pretrained(config=EngineConfig().changed(**{name: "fifo"}))  # type: ignore[arg-type]
    for value in (-1, 0, math.nan, True, "0.1"):
        with pytest.raises(ConfigError, match="half_life"):
            ShortestPrefillFirst(half_life=value)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="curvature"):
        ShortestPrefillFirst(curvature=-1)


@pytest.mark.feature("N11")
def test_presets_for_chat_and_for_bulk_work_are_on_either_side_of_the_default() -> None:
    default, talk, bulk = EngineConfig(), EngineConfig.chat(), EngineConfig.bulk()
    assert talk.chunk_tokens < default.chunk_tokens < bulk.chunk_tokens
    assert talk.max_running < default.max_running < bulk.max_running
    assert talk.oneshot_share < default.oneshot_share < bulk.oneshot_share
    assert EngineConfig.chat(chunk_tokens=64, expert=ExpertConfig(kv_blocks=7)).chunk_tokens == 64
    with pytest.raises(ConfigError):
        EngineConfig.bulk(chunk_tokens=0)


def test_names_that_never_come_back_are_forgotten_though_a_tenant_always_waits() -> None:
    accounts = Accounts()
    waiting = [accounts.join(RequestOptions(tenant=f"t{n}")) for n in range(4)]
    for n in range(4, 30_000):
        waiting.append(accounts.join(RequestOptions(tenant=f"t{n}", priority=n % 3)))
        accounts.serve(waiting.pop(0), 5 + n % 7)
    assert len(accounts.served()) < 2500


def test_a_tenant_that_was_served_much_stays_behind_newcomers_while_names_are_forgotten() -> None:
    accounts = Accounts()
    waits = accounts.join(RequestOptions(tenant="waits"))
    heavy = accounts.join(RequestOptions(tenant="heavy"))
    accounts.serve(heavy, 1_000_000)
    for n in range(10_000):
        accounts.serve(accounts.join(RequestOptions(tenant=f"t{n}")), 10)
    newcomer = accounts.join(RequestOptions(tenant="new"))
    accounts.serve(accounts.join(RequestOptions(tenant="heavy")), 1_000_000)
    again = accounts.take_back(RequestOptions(tenant="heavy"), 1_000_000)
    assert 1_100_000 > again.served - newcomer.served > 900_000
    assert waits.served <= newcomer.served


def test_priorities_without_accounts_are_forgotten_and_the_place_of_the_others_is_kept() -> None:
    accounts = Accounts()
    accounts.join(RequestOptions(tenant="waits"))
    for _ in range(2):  # the second one begins at a million
        accounts.serve(accounts.join(RequestOptions(tenant="heavy")), 1_000_000)
    for n in range(10_000):
        accounts.serve(accounts.join(RequestOptions(tenant=f"t{n}", priority=n)), 0)
    assert accounts.join(RequestOptions(tenant="new")).served == 1_000_000
    assert max(len(accounts.now), len(accounts.latest)) < 2500
