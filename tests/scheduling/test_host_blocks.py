"""Evicted blocks that come back from host memory, under the planner and the loop, with an executor that makes copies
and steps in the order in which it was asked for them, as late as it may."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import numpy as np
import pytest

from prelude.errors import RequestCancelled
from prelude.runtime.assembly import HostCopies
from prelude.runtime.core import EngineCore
from prelude.scheduling.policies import RoundRobin
from prelude.scheduling.queues import Policies
from tests import toy
from tests.scheduling.cores import Collect, chat, check, last_logprob, post, prompt
from tests.service import Fault, FaultyExecutor, is_empty, run_steps, service_core


class HostExecutor(FaultyExecutor):
    """``failing``: the numbers of the copies that raise ``error``, and leave nonsense behind."""

    def __init__(
        self,
        *faults: Fault,
        entries: int = 64,
        failing: frozenset[int] = frozenset(),
        error: BaseException | None = None,
        **sizes: Any,
    ) -> None:
        super().__init__(*faults, **sizes)
        self.host = np.full(entries * self.block_size, toy.UNWRITTEN, np.int64)
        self.failing = failing
        self.error = error or RuntimeError("injected")
        self.copies = 0
        self.asked: deque[Any] = deque()  # batches, and copies as calls

    def submit(self, batch: Any) -> Any:
        handle = super().submit(batch)
        self.asked.append(handle)
        return handle

    def wait(self, handle: Any) -> Any:
        while (one := self.asked.popleft()) is not handle:
            one()
        return super().wait(handle)

    @property
    def nbytes(self) -> int:
        return self.host.nbytes

    def copy_out(self, blocks: np.ndarray, entries: np.ndarray) -> None:
        self._ask(self.pool, blocks, self.host, entries)

    def copy_in(self, entries: np.ndarray, blocks: np.ndarray) -> None:
        self._ask(self.host, entries, self.pool, blocks)

    def _ask(self, source: np.ndarray, places: np.ndarray, target: np.ndarray, to: np.ndarray) -> None:
        self.copies += 1
        fails = self.copies - 1 in self.failing
        pairs = list(zip(self._slots(places), self._slots(to)))

        def copy() -> None:
            for a, b in pairs:
                target[b] = toy.UNDEFINED if fails else source[a]

        self.asked.append(copy)
        if fails:
            raise self.error

    def _slots(self, blocks: np.ndarray) -> list[np.ndarray]:
        return [np.arange(self.block_size) + block * self.block_size for block in blocks.tolist()]


def host_core(executor: HostExecutor, least: int = 4, **options: Any) -> EngineCore:
    core = service_core(executor, **{"step_tokens": 512, "running": 8, "chunk": 64, **options})
    copies = HostCopies(executor)
    core.pool.keep_on_host(len(executor.host) // executor.block_size, least, copies.copy_out, copies.copy_in)
    copies.blocked = core.stepper.blocked
    return core


def users(count: int, length: int = 40) -> list[np.ndarray]:
    return [prompt(length, 500 + user) for user in range(count)]


@pytest.mark.feature("G10")
@pytest.mark.parametrize("entries", [0, 128])
def test_profiles_of_more_users_than_the_pool_holds_are_cached_tokens(entries: int) -> None:
    """Ten blocks for each of eight users, and a pool of 24: with host memory the second question of each is answered
    with its profile from the cache, without it with nothing."""
    executor = HostExecutor(num_blocks=24, entries=max(1, entries))
    core = host_core(executor) if entries else service_core(executor, step_tokens=512)
    sink = Collect()
    cached = []
    for turn in range(2):
        for user, profile in enumerate(users(8)):
            request = post(core, last_logprob(np.concatenate([profile, prompt(3, 10 * turn + user)])), sink)
            run_steps(core)
            check(sink, [request])
            cached.append(sink.ends[request.id][0].stats.cached_tokens)
    assert cached[:8] == [0] * 8
    assert cached[8:] == ([40] * 8 if entries else [0] * 8)
    stats = core.snapshot()
    assert stats["host_kv_hits"] == (8 if entries else 0)
    assert stats["host_kv_copied_in"] == (80 if entries else 0)
    assert stats["prefix_hit_tokens"] == sum(cached)
    assert is_empty(core)


@pytest.mark.feature("G10")
def test_a_preempted_chat_and_its_next_turn_go_on_from_host_memory() -> None:
    core = host_core(HostExecutor(num_blocks=20, entries=128))
    sink = Collect()
    tokens = prompt(40, 1)
    first = post(core, chat(tokens, 8), sink)
    run_steps(core)
    for seed in range(3):
        post(core, chat(prompt(60, 50 + seed), 4), sink)
        run_steps(core)
    again = post(core, chat(tokens, 8), sink)
    run_steps(core)
    check(sink, [first, again])
    assert sink.ends[again.id][0].stats.cached_tokens == 36, "all blocks but that of the last token"
    assert core.snapshot()["host_kv_hits"] == 1
    assert is_empty(core)


@pytest.mark.fault(65)
def test_the_profile_of_another_tenant_stays_his() -> None:
    core = host_core(HostExecutor(num_blocks=16, entries=64))
    sink = Collect()
    [profile, other] = users(2)
    for salt, tokens, cached in ((1, profile, 0), (1, other, 0), (2, profile, 0), (1, profile, 40)):
        request = post(core, last_logprob(np.concatenate([tokens, prompt(2, 9)]), salt=salt), sink)
        run_steps(core)
        check(sink, [request])
        assert sink.ends[request.id][0].stats.cached_tokens == cached
    assert core.snapshot()["host_kv_hits"] == 1, "the one of the tenant that had asked before"


def test_a_copy_that_fails_is_computed_again_and_fails_no_request() -> None:
    for failing in range(6):
        executor = HostExecutor(num_blocks=16, entries=64, failing=frozenset([failing]))
        core = host_core(executor)
        sink = Collect()
        requests = []
        for turn in range(3):
            for user, profile in enumerate(users(3)):
                tokens = np.concatenate([profile, prompt(3, 10 * turn + user)])
                requests.append(post(core, last_logprob(tokens), sink))
                run_steps(core)
        check(sink, requests)
        assert core.snapshot()["host_kv_failed"] == 1 and core.stats.failed_steps == 0
        assert is_empty(core)


def test_the_seconds_of_copies_are_the_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on in copies alone. Each of them may wait for the step in flight."""
    now = [0.0]

    class Slow(HostExecutor):
        def _ask(self, *places: Any) -> None:
            now[0] += 1.0
            super()._ask(*places)

    executor = Slow(num_blocks=16, entries=64)
    core = host_core(executor, overlap=True)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    sink = Collect()
    for turn in range(2):
        for user, profile in enumerate(users(3)):
            post(core, last_logprob(np.concatenate([profile, prompt(3, 10 * turn + user)])), sink)
            run_steps(core)
    assert executor.copies > 4 and core.snapshot()["host_seconds"] == 0.0


@pytest.mark.feature("G10")
def test_chats_that_wait_for_room_copy_nothing() -> None:
    """A long prompt holds most of the pool, and six chats with blocks in host memory take turns with it."""
    policies = Policies(decode=RoundRobin())
    core = host_core(HostExecutor(num_blocks=30, entries=400), chunk=8, step_tokens=64, policies=policies)
    sink, profiles = Collect(), users(6, 72)
    for profile in profiles:
        post(core, chat(profile, 2), sink)
        run_steps(core)
    requests = [post(core, chat(prompt(100, 9), 4), sink)]
    core.step()
    before = core.snapshot()
    for user, profile in enumerate(profiles):
        requests.append(post(core, chat(np.concatenate([profile, prompt(8, 50 + user)]), 2), sink))
    while len(core.queues.running) == 1:
        core.step()
        if len(core.queues.running) == 1:
            assert core.snapshot()["host_kv_copied_in"] == before["host_kv_copied_in"]
    run_steps(core)
    check(sink, requests)
    after = core.snapshot()
    started = 6 + after["preemptions"] - before["preemptions"]
    assert 0 < after["host_kv_hits"] - before["host_kv_hits"] <= started


@pytest.mark.feature("G10")
def test_a_decision_that_a_step_has_no_room_for_copies_nothing() -> None:
    """Two of 52 tokens behind a profile of 40, in steps of 100 tokens."""
    core = host_core(HostExecutor(num_blocks=24, entries=128), step_tokens=100)
    sink, profiles = Collect(), users(6)
    for profile in profiles:
        post(core, last_logprob(np.concatenate([profile, prompt(3, 1)])), sink)
        run_steps(core)
    requests = [post(core, last_logprob(np.concatenate([profile, prompt(52, 2)])), sink) for profile in profiles[:2]]
    core.step()
    assert core.snapshot()["host_kv_hits"] == 1
    run_steps(core)
    assert core.snapshot()["host_kv_hits"] == 2
    check(sink, requests)
    assert [sink.ends[request.id][0].stats.cached_tokens for request in requests] == [40, 40]


@pytest.mark.feature("G10")
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_random_loads_have_their_answers(seed: int, overlap: bool) -> None:
    """Chats and decisions over common prefixes in a pool that is too small for them: cancelled at any time, with
    steps and copies that fail, copies under way when others evict, and host memory that is too small as well."""
    rng = np.random.default_rng(seed)
    faults = [Fault("raise", at=int(at)) for at in rng.integers(5, 120, 3)] if seed % 2 else []
    failing = frozenset(rng.integers(0, 60, 3).tolist()) if seed % 3 == 0 else frozenset()
    executor = HostExecutor(*faults, num_blocks=40, entries=int(rng.integers(8, 120)), failing=failing)
    core = host_core(executor, least=int(rng.choice([4, 16])), overlap=overlap, fold=bool(seed % 4))
    sink = Collect()
    stems = users(6, 32)
    requests, cancelled = [], []
    for _ in range(90):
        stem = stems[rng.integers(6)][: int(rng.integers(8, 33))]
        tokens = np.concatenate([stem, prompt(int(rng.integers(1, 24)), 1000 + int(rng.integers(30)))])
        salt = int(rng.integers(2))
        cache = ["auto", "auto", "always", "never"][rng.integers(4)]
        if rng.random() < 0.3:
            made = chat(tokens, int(rng.integers(2, 12)), cache=cache, salt=salt)
        else:
            made = last_logprob(tokens, cache=cache, salt=salt)
        requests.append(post(core, made, sink))
        if rng.random() < 0.12:
            victim = requests[int(rng.integers(len(requests)))]
            if victim.id not in sink.ends:
                core.cancel(victim)
                cancelled.append(victim)
        for _step in range(int(rng.integers(0, 3))):
            core.step()
            core.audit()
    run_steps(core)
    errors = {request.id: sink.ends[request.id][1] for request in requests}
    check(sink, [request for request in requests if errors[request.id] is None])
    wrong = [error for error in errors.values() if error is not None and "injected" not in str(error)]
    assert len(wrong) <= len(cancelled) and all(isinstance(error, RequestCancelled) for error in wrong)
    assert sum(error is None for error in errors.values()) > 60
    stats = core.snapshot()
    assert stats["host_kv_hits"] > 0 and stats["host_kv_copied_out"] > 0 and stats["evictions"] > 0
    assert is_empty(core)
