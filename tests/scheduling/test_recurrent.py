"""State entries: a state a running sequence, whose numbers are those of the sequence computed alone and at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from prelude._native.core import KvPool

from prelude import EngineConfig
from prelude.errors import RequestTooLarge
from prelude.execution.executor import ExecutorLimits
from prelude.readouts.batch import DecodeBatch, MixedBatch, OneShotBatch
from prelude.runtime.assembly import make_core
from prelude.runtime.core import EngineCore
from prelude.scheduling.request import Request, State
from tests import recurrent, toy
from tests.recurrent import FaultyRecurrent, RecurrentToy
from tests.scheduling.cores import Collect, chat, last_logprob, prompt, run, submit, text, tree_request
from tests.service import Fault, is_empty, service_core

OVERLAP = pytest.mark.parametrize("overlap", [False, True], ids=["", "overlap"])


def states_of(core: EngineCore) -> dict[int, int]:
    """By the id of each request that holds one."""
    return {r.id: r.lease.state_index for r in core.live.values() if r.lease is not None and r.lease.state_index >= 0}


def stepped(core: EngineCore) -> None:
    """Until no step is left. After each step every account is right, and each running request has an entry."""
    while core.step():
        core.audit()
        held = states_of(core)
        assert held.keys() >= {request.id for request in core.queues.running}
        assert len(set(held.values())) == len(held) == core.pool.num_running_states - core.pool.free_running_states
    assert is_empty(core) and core.pool.free_running_states == core.pool.num_running_states


def check(sink: Collect, made: list[tuple[Request, Any, int]]) -> None:
    for request, tokens, count in made:
        outcome, error = sink.ends[request.id]
        assert error is None, error
        if count:
            assert list(outcome.token_ids) == recurrent.generate(tokens, count)
        else:
            assert outcome.output.logprobs[0] == recurrent.logprob_after(tokens, 5)


@pytest.mark.feature("A8")
@OVERLAP
def test_chats_and_decisions_of_a_recurrent_model(overlap: bool) -> None:
    core = service_core(RecurrentToy(entries=4, num_blocks=256), chunk=5, step_tokens=40, overlap=overlap)
    sink, made = Collect(), list[tuple[Request, Any, int]]()
    common = prompt(9, 77)
    for i in range(12):
        tokens, count = prompt(3 + 5 * (i % 4), i), 2 + i % 7
        made.append((submit(core, [chat(tokens, count)], sink)[0], tokens, count))
        shot = np.concatenate([common, prompt(1 + i, 50 + i)])
        made.append((submit(core, [last_logprob(shot)], sink)[0], shot, 0))
        core.step()
        core.audit()
    stepped(core)
    check(sink, made)
    kinds = {type(batch) for batch in core.executor.batches}
    assert kinds >= {MixedBatch, DecodeBatch}
    most = 0
    for batch in core.executor.batches:
        if isinstance(batch, MixedBatch):
            chunks = batch.slices.state_to
            entries = [] if chunks is None else chunks[chunks >= 0].tolist()
            entries += batch.decode_state_indices.tolist()
        else:
            entries = batch.state_indices.tolist() if isinstance(batch, DecodeBatch) else []
        assert len(set(entries)) == len(entries) <= 4
        most = max(most, len(entries))
    assert most == 4


@pytest.mark.feature("A8")
def test_oneshot_rows_take_no_entry_and_leave_none() -> None:
    core = service_core(RecurrentToy(entries=1, num_blocks=64))
    branches = [prompt(2, 1), prompt(3, 2)]
    trees = [tree_request(prompt(12, 3), branches), tree_request(prompt(12, 3), branches)]
    outcomes = run(core, [*trees, last_logprob(prompt(6, 4))])
    for outcome in outcomes[:2]:
        expected = [recurrent.logprob_after([*prompt(12, 3), *branch], 5) for branch in branches]
        assert outcome.output.logprobs.tolist() == expected
    assert outcomes[2].output.logprobs[0] == recurrent.logprob_after(prompt(6, 4), 5)
    assert {type(batch) for batch in core.executor.batches} == {OneShotBatch}
    assert all(batch.slices.state_to is None for batch in core.executor.batches)
    assert np.isnan(core.executor.states).all(), "no entry was written"
    assert core.snapshot()["states_free"] == 1 and core.snapshot()["states_used"] == 0


@pytest.mark.feature("A8")
@OVERLAP
def test_a_request_that_finds_no_state_entry_waits_for_one(overlap: bool) -> None:
    core = service_core(RecurrentToy(entries=2, num_blocks=256), running=8, overlap=overlap)
    sink = Collect()
    requests = submit(core, [chat(prompt(6, i), 4 + i) for i in range(6)], sink)
    core.step()
    assert [r.state is State.WAITING for r in requests] == [False] * 2 + [True] * 4
    assert core.snapshot()["states_used"] == 2 and core.pool.num_free > 200, "it is the entries that are short"
    [shot] = submit(core, [last_logprob(prompt(5, 9))], sink)
    core.step()
    core.step()
    assert shot.id in sink.ends, "a OneShot request does not wait for them"
    stepped(core)
    for i, request in enumerate(requests):
        assert text(sink, request) == recurrent.generate(prompt(6, i), 4 + i)


@pytest.mark.feature("A8")
@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("site", ["submit", "wait"])
@OVERLAP
def test_a_state_that_a_failed_step_may_have_moved_is_computed_again(overlap: bool, site: str, place: int) -> None:
    executor = FaultyRecurrent(
        Fault("raise", site, place), Fault("memory", site, place + 4), entries=4, num_blocks=256
    )
    core = service_core(executor, chunk=5, overlap=overlap, unhealthy=100)
    sink, made = Collect(), list[tuple[Request, Any, int]]()
    for i in range(4):
        tokens = prompt(4 + 6 * i, i)
        made.append((submit(core, [chat(tokens, 8)], sink)[0], tokens, 8))
    stepped(core)
    check(sink, made)
    assert core.stats.failed_steps >= 2


@pytest.mark.feature("A8")
@OVERLAP
@pytest.mark.parametrize("prefixes", [0, 3])
@pytest.mark.parametrize("seed", [1, 2])
def test_random_loads_with_cancellations_faults_and_preemptions(seed: int, prefixes: int, overlap: bool) -> None:
    """Prompts of a few families, too few blocks and states. Audited after every step; a request that survives has its
    own numbers, to the bit."""
    rng = np.random.default_rng(seed)
    faults = [Fault("raise", str(rng.choice(["submit", "wait"])), int(at)) for at in rng.integers(0, 400, 12)]
    executor = FaultyRecurrent(*faults, entries=3, prefixes=prefixes, num_blocks=14)
    core = service_core(executor, running=5, chunk=4, step_tokens=48, overlap=overlap, unhealthy=100)
    sink, made, cancelled = Collect(), dict[int, tuple[Request, Any, int]](), set[int]()
    while len(made) < 150 or core.live:
        for _ in range(int(rng.integers(0, 3)) if len(made) < 150 else 0):
            head = prompt(int(rng.integers(1, 20)), int(rng.integers(0, 3)))
            tokens = np.concatenate([head, prompt(3, int(rng.integers(0, 4)))])
            count = int(rng.integers(2, 20)) if rng.random() < 0.7 else 0
            [request] = submit(core, [chat(tokens, count) if count else last_logprob(tokens)], sink)
            made[request.id] = (request, tokens, count)
        for request in list(core.live.values()):
            if rng.random() < 0.01:
                core.cancel(request)
                cancelled.add(request.id)
        core.step()
        core.audit()
    assert is_empty(core) and core.pool.free_running_states == 3
    assert executor.errors > 4 and core.stats.preemptions > 5
    if prefixes:
        assert core.stats.prefix_hit_tokens > 50 and core.pool.prefix_counts()["states_evicted"] > 10
    well = [one for key, one in made.items() if sink.ends[key][1] is None]
    check(sink, well)
    failed = made.keys() - cancelled - {request.id for request, _, _ in well}
    assert len(well) > 60
    for request, _, count in map(made.__getitem__, failed):
        assert not count or request.stats.replays, "chats outlive a step that fails"


@pytest.mark.feature("A8")
def test_a_request_that_can_never_have_a_state_entry_is_refused() -> None:
    core = service_core(RecurrentToy(entries=0))
    with pytest.raises(
        RequestTooLarge, match=r"takes a recurrent state, the executor has room for none.*max_tokens=1"
    ):
        core.request(chat(prompt(6, 1), 2), Collect())
    [outcome] = run(core, [last_logprob(prompt(6, 1))])
    assert outcome.output.logprobs[0] == recurrent.logprob_after(prompt(6, 1), 5)


@pytest.mark.feature("A8")
@pytest.mark.parametrize(("entries", "state"), [(0, 0), (0, 64), (3, 64)])
def test_an_engine_has_the_state_entries_of_its_executor_and_caches_where_there_are_no_states(
    entries: int, state: int
) -> None:
    class Executor(toy.ToyExecutor):
        def limits(self) -> ExecutorLimits:
            return replace(super().limits(), running_states=entries, bytes_per_state=state)

    core = make_core(EngineCore, Executor(), EngineConfig())
    assert core.pool.num_running_states == entries and core.pool.caching == (state == 0)


@pytest.mark.feature("A8")
def test_the_auditor_counts_state_entries() -> None:
    pool = KvPool(8, 4, running_states=2)
    tokens = prompt(6, 1)
    first, second = (pool.attach(tokens, 0, 5, growable=True) for _ in range(2))
    assert pool.take_running_state(first) and first.state_index == 0 and pool.free_running_states == 1
    with pytest.raises(RuntimeError, match="Decode lease has no state entry"):
        pool.audit([first, second])
    assert pool.take_running_state(second)
    pool.audit([first, second])
    shot = pool.attach(tokens, 0, 5, growable=False)
    with pytest.raises(RuntimeError, match="takes none"):
        pool.take_running_state(shot)
    with pytest.raises(RuntimeError, match="takes none"):
        pool.take_running_state(first)
    third = pool.attach(tokens, 0, 5, growable=True)
    assert not pool.take_running_state(third) and third.state_index == -1
    pool.release(shot)
    pool.release(third)
    pool.audit([first, second])
    with pytest.raises(RuntimeError, match=r"0 of 2 state entries are free, leases hold \[0, 0\]"):
        pool.audit([first, first])
    pool.release(first)
    assert first.state_index == -1 and pool.free_running_states == 1
    pool.audit([second])
    pool.release(second)
    with pytest.raises(ValueError, match="running_states"):
        KvPool(8, 4, running_states=-1)
