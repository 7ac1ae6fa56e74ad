"""Blocks in host memory under the pool of leases. A block's content says which prefix it belongs to."""

from __future__ import annotations

import hashlib
import threading
from typing import Any

import numpy as np
import pytest
from prelude._native.core import ConcurrentUse, KvPool, Lease

from tests.pools import compute

SIZE = 4
GARBAGE = -1


def content(tokens: np.ndarray, salt: int, blocks: int) -> list[int]:
    """The content that the first blocks of a prompt have: a number for each, of its whole prefix."""
    found = []
    for end in range(SIZE, blocks * SIZE + 1, SIZE):
        digest = hashlib.sha256(np.int64(salt).tobytes() + np.asarray(tokens[:end], np.int64).tobytes()).digest()
        found.append(int.from_bytes(digest[:6], "little"))
    return found


class Machine:
    """A pool of blocks with host memory behind it. ``failing``: the numbers of the copies that fail, which leave
    garbage."""

    def __init__(
        self, blocks: int, entries: int, *, least: int = SIZE, failing: frozenset[int] = frozenset()
    ) -> None:
        self.pool = KvPool(blocks, SIZE)
        self.kv = np.full(blocks, GARBAGE, np.int64)
        self.host = np.full(entries, GARBAGE, np.int64)
        self.failing = failing
        self.copies = 0
        self.pool.keep_on_host(entries, least, self._out, self._in)

    def _out(self, blocks: np.ndarray, entries: np.ndarray) -> bool:
        return self._copy(self.kv, blocks, self.host, entries)

    def _in(self, entries: np.ndarray, blocks: np.ndarray) -> bool:
        return self._copy(self.host, entries, self.kv, blocks)

    def _copy(self, source: np.ndarray, places: np.ndarray, target: np.ndarray, to: np.ndarray) -> bool:
        self.copies += 1
        for a, b in zip(places.tolist(), to.tolist()):  # in order
            target[b] = source[a]
        if self.copies - 1 in self.failing:
            target[to] = GARBAGE
            return False
        return True

    def attach(self, tokens: np.ndarray, salt: int = 0) -> Lease:
        """A lease whose cached blocks have been read: each has the content of its prefix."""
        lease = self.pool.attach(tokens, salt, len(tokens) - 1, growable=True)
        self.pool.bring_back(lease, tokens, salt, len(tokens) - 1)
        shared = lease.shared
        assert self.kv[shared].tolist() == content(tokens, salt, len(shared))
        return lease

    def ask(self, tokens: np.ndarray, salt: int = 0) -> int:
        """A request from its lease to its end: how many blocks it had from the cache. -1: there was no room."""
        lease = self.attach(tokens, salt)
        cached = lease.num_shared
        whole = len(tokens) // SIZE
        if not self.pool.grow(lease, whole - cached):
            self.pool.release(lease)
            return -1
        table = lease.table()
        self.kv[table[cached:]] = GARBAGE  # whatever a step writes first: copies out have been requested by now
        self.kv[table] = content(tokens, salt, whole)
        self.pool.publish(lease, tokens, salt)
        self.pool.release(lease)
        self.pool.audit([])
        return cached

    def counts(self, *names: str) -> tuple[int, ...]:
        return tuple(self.pool.host_counts()[name] for name in names)


def prompt(seed: int, blocks: int, tail: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 50, blocks * SIZE + tail).astype(np.int32)


@pytest.mark.feature("G10")
def test_blocks_that_left_the_pool_come_back_with_their_content() -> None:
    machine = Machine(6, 32)
    first, second = prompt(1, 6), prompt(2, 6)
    assert machine.ask(first) == 0 and machine.ask(second) == 0
    assert machine.counts("copied_out", "copied_in", "hits") == (6, 0, 0), "the whole path, in one go"
    assert machine.ask(first) == 6
    assert machine.counts("copied_out", "copied_in", "hits", "blocks") == (12, 6, 1, 12)
    assert machine.ask(second) == 6
    assert machine.counts("copied_out", "copied_in", "hits") == (12, 12, 2), "what the host has is not copied again"


@pytest.mark.feature("G10")
def test_a_prompt_goes_on_where_the_pool_ends_and_the_host_has_more() -> None:
    machine = Machine(12, 32)
    shared = prompt(1, 4, 0)
    tails = [np.concatenate([shared, prompt(10 + i, 4)]) for i in range(3)]
    for tokens in tails:
        machine.ask(tokens)
    machine.ask(prompt(99, 4))
    lease = machine.attach(tails[0])
    assert lease.num_shared == 8 and machine.counts("hits") == (1,)
    assert machine.counts("copied_in")[0] < 8, "the shared part was in the pool"
    assert machine.kv[lease.shared].tolist() == content(tails[0], 0, 8)
    machine.pool.release(lease)
    machine.pool.audit([])


@pytest.mark.feature("G10")
def test_host_memory_is_bounded_and_gives_up_blocks_that_were_asked_for_the_longest_time_ago() -> None:
    machine = Machine(4, 12)
    prompts = [prompt(i, 4) for i in range(6)]
    for tokens in prompts:
        machine.ask(tokens)
        assert machine.counts("blocks")[0] <= 12
    assert machine.counts("evictions") == (8,), "five left the pool, three fit"
    assert machine.ask(prompts[4]) == 4 and machine.ask(prompts[0]) == 0
    machine.ask(prompts[2])
    assert machine.ask(prompts[4]) == 4, "it was asked for since the others were"


@pytest.mark.feature("G10")
def test_of_a_path_longer_than_host_memory_the_beginning_is_kept() -> None:
    machine = Machine(10, 4)
    long = prompt(1, 10)
    machine.ask(long)
    machine.ask(prompt(2, 10))
    assert machine.counts("blocks") == (4,)
    lease = machine.attach(long)
    assert lease.num_shared in (3, 4)
    machine.pool.release(lease)


def test_a_run_shorter_than_the_least_is_computed_again() -> None:
    machine = Machine(4, 32, least=4 * SIZE)
    short, long = prompt(1, 3), prompt(2, 4)
    for tokens in (short, long, prompt(3, 4)):
        machine.ask(tokens)
    assert machine.ask(short) == 0 and machine.counts("copied_in") == (0,)
    machine.ask(prompt(4, 4))
    assert machine.ask(long) == 4 and machine.counts("copied_in") == (4,)


def test_host_memory_gives_up_blocks_in_the_order_in_which_prompts_asked_for_them() -> None:
    machine = Machine(2, 4, least=2 * SIZE)
    again = prompt(1, 2, 0)  # too short a run comes back for it, so that it is computed again
    for tokens in (again, prompt(2, 2), again, prompt(3, 2), prompt(4, 2)):
        assert machine.ask(tokens) == 0
    assert machine.ask(prompt(2, 2)) == 2
    machine = Machine(4, 4)
    for seed in (10, 11):
        machine.ask(np.concatenate([prompt(1, 2, 0), prompt(seed, 1)]))
    for seed in range(20, 26):
        machine.ask(prompt(seed, 1))
    machine.ask(prompt(2, 4))
    assert machine.counts("copied_out") == (3 + 1 + 6,), "a beginning that was asked for twice stays"


def test_blocks_that_are_in_use_are_not_evicted_for_those_that_come_back() -> None:
    machine = Machine(8, 32)
    first, second = prompt(1, 6), prompt(2, 6)
    machine.ask(first)
    machine.ask(second)
    held = machine.attach(second)
    lease = machine.attach(first)
    assert lease.num_shared == 2, "two blocks were free"
    assert machine.kv[held.shared].tolist() == content(second, 0, 6)
    machine.pool.release(held)
    machine.pool.release(lease)
    machine.pool.audit([])


def compute_two(pool: KvPool) -> None:
    """Two prompts of two blocks each, one after the other: in a pool of two blocks the second evicts the first."""
    for seed in (1, 2):
        compute(pool, prompt(seed, 2))


@pytest.mark.parametrize("error", [KeyError("of the test"), KeyboardInterrupt()])
def test_a_copy_that_raises_is_one_that_fails(error: BaseException) -> None:
    pool = KvPool(2, SIZE)

    def copy(first: Any, second: Any) -> bool:
        raise error

    pool.keep_on_host(4, SIZE, copy, copy)
    compute_two(pool)
    assert pool.host_counts()["failed"] == 1 and pool.host_counts()["blocks"] == 0
    assert pool.host_counts()["evictions"] == 0
    pool.audit([])


def test_a_second_writer_is_told() -> None:
    """A copy is requested inside of a call of the pool. Another thread that writes meanwhile gets an error."""
    pool = KvPool(2, SIZE)
    told: list[BaseException] = []

    def attach() -> None:
        try:
            pool.attach([], 0, 0, growable=True)
        except ConcurrentUse as error:
            told.append(error)

    def copy(first: Any, second: Any) -> bool:
        thread = threading.Thread(target=attach)
        thread.start()
        thread.join()
        return True

    pool.keep_on_host(4, SIZE, copy, copy)
    compute_two(pool)
    assert len(told) == 1 and pool.live_leases == 0
    pool.audit([])


@pytest.mark.parametrize("failures", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_random_requests_read_their_own_prefixes(seed: int, failures: bool) -> None:
    """Prompts that begin alike, two salts, leases that stay open beside others, pools and host memory of any size."""
    rng = np.random.default_rng(seed)
    failing = frozenset(np.flatnonzero(rng.random(2000) < 0.05).tolist()) if failures else frozenset()
    blocks = int(rng.integers(6, 20))
    machine = Machine(blocks, int(rng.integers(1, 40)), least=int(rng.integers(1, 9)), failing=failing)
    stems = [prompt(100 + i, 4, 0) for i in range(3)]
    held: list[Lease] = []
    hits = 0
    for _ in range(400):
        stem = stems[rng.integers(3)][: SIZE * int(rng.integers(1, 5))]
        tokens = np.concatenate(
            [stem, prompt(int(rng.integers(12)), int(rng.integers(1, 3)), int(rng.integers(1, 4)))]
        )
        salt = int(rng.integers(2))
        if held and rng.random() < 0.4:
            machine.pool.release(held.pop(int(rng.integers(len(held)))))
        if rng.random() < 0.2:
            held.append(machine.attach(tokens, salt))
            machine.pool.audit(held)
            continue
        lease = machine.attach(tokens, salt)
        cached, whole = lease.num_shared, len(tokens) // SIZE
        hits += cached
        if machine.pool.grow(lease, whole - cached):
            table = lease.table()
            machine.kv[table[cached:]] = content(tokens, salt, whole)[cached:]
            machine.pool.publish(lease, tokens, salt, promoted=bool(rng.random() < 0.3))
        machine.pool.release(lease)
        machine.pool.audit(held)
    for lease in held:
        machine.pool.release(lease)
    machine.pool.audit([])
    assert hits and (machine.counts("failed")[0] > 0) == (failures and machine.copies > 40)


def test_host_memory_is_refused_where_it_cannot_be() -> None:
    def copy(first: Any, second: Any) -> bool:
        return True

    with pytest.raises(ValueError, match="caches no prefixes"):
        KvPool(4, SIZE, prefix_cache=False).keep_on_host(4, 1, copy, copy)
    with pytest.raises(ValueError, match="recurrent states"):
        KvPool(4, SIZE, running_states=2, prefix_states=2).keep_on_host(4, 1, copy, copy)
    pool = KvPool(4, SIZE)
    with pytest.raises(ValueError, match="entries"):
        pool.keep_on_host(0, 1, copy, copy)
    assert pool.host_counts() == {}
    pool.keep_on_host(4, 1, copy, copy)
    with pytest.raises(ValueError, match="already"):
        pool.keep_on_host(4, 1, copy, copy)
