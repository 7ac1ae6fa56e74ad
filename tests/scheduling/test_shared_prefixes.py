"""Requests that share a prefix: attach, fold, read in the same step, wait for a leader; and leaders that never end.

The toy model refuses to read a slot that no row wrote, and every number is compared with the request's own sequence.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from prelude._native.core import OneShotGroup

from prelude.admission.prepared import Prepared
from prelude.errors import DeadlineExceeded, RequestCancelled
from prelude.scheduling.request import State
from tests import toy
from tests.scheduling.cores import Collect, chat, check, last_logprob, post, prompt
from tests.service import Fault, FaultyExecutor, is_empty, run_steps, service_core

RUBRIC = prompt(2000, 77)


def tails(count: int, length: int = 20, rubric: np.ndarray = RUBRIC) -> list[np.ndarray]:
    return [np.concatenate([rubric, prompt(length, 100 + i)]) for i in range(count)]


def rubric_core(**options: Any) -> Any:
    executor = options.pop("executor", None) or toy.ToyExecutor(num_blocks=2048)
    defaults: dict[str, Any] = {"step_tokens": 1 << 15, "running": 16, "chunk": 4096}
    return service_core(executor, **{**defaults, **options})


def computed(core: Any) -> list[int]:
    """Tokens of each step."""
    return [batch.num_tokens for batch in core.executor.batches]


# ------------------------------------------------------------------ the leader fills, peers follow
@pytest.mark.feature("B6")
@pytest.mark.feature("B2")
def test_without_folding_a_leader_computes_the_rubric_and_its_peers_run_a_step_later() -> None:
    core = rubric_core(fold=False)
    sink = Collect()
    requests = [post(core, last_logprob(tokens), sink) for tokens in tails(8)]
    run_steps(core)
    assert computed(core) == [2000 + 20, 7 * 20]
    assert core.executor.batches[1].slices.context_lens.tolist() == [2000] * 7
    check(sink, requests)
    stats = [sink.ends[request.id][0].stats for request in requests]
    assert [s.deferred_ticks for s in stats] == [0] + [1] * 7
    assert [s.cached_tokens for s in stats] == [0] + [2000] * 7
    assert core.stats.deferrals == 7


@pytest.mark.feature("B6")
@pytest.mark.feature("E10")
def test_rows_of_one_step_read_the_keys_that_the_first_of_them_writes() -> None:
    """Chats cannot fold; requests that ask to be kept whole do not. Both share within the step, through the pool."""
    for make in (lambda t: chat(t, 4), lambda t: last_logprob(t, cache="always")):
        core = rubric_core()
        sink = Collect()
        requests = [post(core, make(tokens), sink) for tokens in tails(8)]
        core.step()
        assert core.executor.batches[0].num_tokens == 2000 + 8 * 20
        assert core.stats.deferrals == 0
        run_steps(core)
        check(sink, requests)
        assert is_empty(core)


@pytest.mark.feature("E10")
@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("kind", ["shot", "chat"])
def test_a_hundred_requests_compute_a_prefix_once(fold: bool, kind: str) -> None:
    core = rubric_core(fold=fold, running=128, step_requests=128)
    sink = Collect()
    rubric = prompt(400, 5)
    make = (lambda t: chat(t, 2)) if kind == "chat" else last_logprob
    requests = [post(core, make(tokens), sink) for tokens in tails(98, 12, rubric) + tails(2, 1, rubric)]
    run_steps(core)
    assert core.stats.prefill_tokens == 400 + 98 * 12 + 2
    check(sink, requests)


def test_a_chunked_leader_is_followed_chunk_by_chunk() -> None:
    """Beside a running row the leader's prompt takes five steps; its peer starts behind it, not beside it."""
    core = rubric_core(chunk=64, step_tokens=512, fold=False)
    sink = Collect()
    runs = post(core, chat(prompt(5, 3), 60), sink)
    core.step()
    rubric = prompt(300, 4)
    requests = [post(core, chat(tokens, 3), sink) for tokens in tails(2, 8, rubric)]
    run_steps(core)
    assert core.stats.prefill_tokens == 5 + 300 + 2 * 8
    assert 1 <= requests[1].stats.deferred_ticks <= 8
    check(sink, [runs, *requests])


def test_a_mixed_step_shares_between_classes() -> None:
    core = rubric_core()
    sink = Collect()
    first, second = tails(2)
    requests = [post(core, chat(first, 3), sink), post(core, last_logprob(second), sink)]
    core.step()
    assert core.executor.batches[0].num_tokens == 2000 + 2 * 20
    run_steps(core)
    check(sink, requests)


def test_readouts_that_cannot_share_a_batch_attach_in_the_next_step() -> None:
    core = rubric_core()
    sink = Collect()
    first, second = tails(2)
    other = last_logprob(second)
    readout = type(other.readout)(other.readout.rows, other.readout.target_rows, other.readout.targets, 1, False)
    requests = [post(core, last_logprob(first), sink), post(core, Prepared(other.tree, readout), sink)]
    run_steps(core)
    assert computed(core) == [2020, 20]
    check(sink, requests)


# ------------------------------------------------------------------ bounds
@pytest.mark.feature("B7")
@pytest.mark.parametrize("most", [0, 1, 3, 8])
def test_no_request_waits_longer_than_the_configured_steps(most: int) -> None:
    """Every step another leader fills the next part of the last one's prompt; there are six."""
    core = rubric_core(fold=False, defer_steps=most)
    sink = Collect()
    parts = prompt(6 * 16, 4)
    requests = [
        post(core, last_logprob(np.concatenate([parts[: 16 * k], prompt(3, k)])), sink, priority=9 - k)
        for k in range(1, 7)
    ]
    last = post(core, last_logprob(np.concatenate([parts, prompt(16, 50)])), sink)
    run_steps(core)
    assert last.stats.deferred_ticks == min(most, 6)
    check(sink, [*requests, last])


@pytest.mark.feature("B7")
@pytest.mark.fault(52)
@pytest.mark.parametrize("kind", ["raise", "nan"])
def test_when_a_leader_fails_a_peer_leads_in_the_next_step(kind: str) -> None:
    executor = FaultyExecutor(Fault(kind), num_blocks=2048)
    core = rubric_core(fold=False, executor=executor)
    sink = Collect()
    requests = [post(core, last_logprob(tokens), sink) for tokens in tails(5)]
    run_steps(core)
    assert sink.ends[requests[0].id][1] is not None
    check(sink, requests[1:])
    assert computed(core) == [2020, 2020, 3 * 20]
    assert core.pool.prefix_counts()["broken"] == 2020 // 4 and is_empty(core)


@pytest.mark.feature("B7")
@pytest.mark.fault(52)
@pytest.mark.parametrize("how", ["cancel", "deadline"])
def test_when_a_chunked_leader_ends_early_a_peer_goes_on_where_it_stood(how: str) -> None:
    now = [0.0]
    core = rubric_core(chunk=64, step_tokens=512, fold=False, clock=lambda: now[0])
    sink = Collect()
    post(core, chat(prompt(5, 3), 60), sink)
    core.step()
    first, second = tails(2, 8, prompt(400, 4))
    leader = post(core, chat(first, 3), sink, deadline=10.0)
    leader.expires = 10.0
    core.step()
    peer = post(core, chat(second, 3), sink)
    core.step()
    assert peer.state is State.WAITING
    if how == "deadline":
        now[0] = 11.0
    else:
        core.cancel(leader)
    core.step()
    assert peer.state is State.PREFILL, "the very next step"
    run_steps(core)
    assert isinstance(sink.ends[leader.id][1], DeadlineExceeded if how == "deadline" else RequestCancelled)
    check(sink, [peer])
    assert peer.stats.cached_tokens == 128 and is_empty(core)


@pytest.mark.fault(52)
@pytest.mark.parametrize("kind", ["raise", "memory"])
@pytest.mark.parametrize("at", range(4))
def test_a_failed_step_of_chats_that_share_its_blocks_runs_again_with_the_same_text(at: int, kind: str) -> None:
    core = rubric_core(executor=FaultyExecutor(Fault(kind, at=at), num_blocks=512), chunk=64, step_tokens=512)
    sink = Collect()
    requests = [post(core, chat(tokens, 5), sink) for tokens in tails(6, 7, prompt(150, 9))]
    run_steps(core)
    check(sink, requests)
    assert core.stats.failed_steps == 1 and is_empty(core)


# ------------------------------------------------------------------ kept prefixes
@pytest.mark.feature("G10")
def test_unique_suffixes_never_displace_a_prefix_that_was_used_again() -> None:
    core = rubric_core(executor=toy.ToyExecutor(num_blocks=64), step_tokens=512)
    sink = Collect()
    rubric = prompt(100, 1)
    for tokens in tails(2, 5, rubric):
        post(core, last_logprob(tokens), sink)
        run_steps(core)
    for i in range(60):
        post(core, last_logprob(prompt(90, 300 + i)), sink)
        run_steps(core)
        assert core.pool.would_hit(rubric) == 25
    assert core.pool.evictions > 0, "the pool was full: others gave way"


@pytest.mark.feature("G10")
def test_prefixes_of_new_users_are_kept_when_those_of_earlier_users_fill_the_pool() -> None:
    """Each user asks alone, so no request that waits shares the prefix."""
    core = rubric_core(executor=toy.ToyExecutor(num_blocks=64), step_tokens=512)
    sink = Collect()
    for user in range(12):
        profile = prompt(48, 500 + user)
        for tokens in tails(4, 3, profile):
            request = post(core, last_logprob(tokens), sink)
            run_steps(core)
        outcome, error = sink.ends[request.id]
        assert error is None and outcome.stats.cached_tokens == 48, f"user {user}"
        core.audit()
    assert core.pool.prefix_counts()["evicted_hit"] == 0, "those that gave way had been demoted before"


@pytest.mark.feature("G10")
def test_no_more_than_a_quarter_of_the_pool_is_taken_from_prefixes_that_were_used_again() -> None:
    core = rubric_core(executor=toy.ToyExecutor(num_blocks=64), step_tokens=512)
    sink = Collect()
    rubrics = [prompt(32, 700 + number) for number in range(8)]  # 8 blocks each: all of the pool
    for rubric in rubrics:
        for tokens in tails(3, 3, rubric):
            post(core, last_logprob(tokens), sink)
            run_steps(core)
    assert sum(core.pool.would_hit(rubric) for rubric in rubrics) == 64
    for i in range(60):
        post(core, last_logprob(prompt(48, 900 + i)), sink)
        run_steps(core)
    hits = [core.pool.would_hit(rubric) for rubric in rubrics]
    assert hits[2:] == [8] * 6 and sum(hits[:2]) < 16, "the two that were asked for first gave way"
    post(core, last_logprob(prompt(80, 999)), sink)  # more than the quarter: not kept, and nothing gives way for it
    run_steps(core)
    assert [core.pool.would_hit(rubric) for rubric in rubrics][2:] == [8] * 6 and core.queues.not_kept == 1


@pytest.mark.feature("G10")
@pytest.mark.parametrize(("salt", "not_kept"), [(7, 0), (8, 1)], ids=["the same salt", "another"])
def test_a_prefix_that_a_waiting_request_of_its_salt_shares_takes_more_of_the_pool(salt: int, not_kept: int) -> None:
    core = rubric_core(executor=toy.ToyExecutor(num_blocks=64), step_tokens=128, step_requests=1)
    sink = Collect()
    for number in range(8):
        for tokens in tails(3, 3, prompt(32, 700 + number)):
            post(core, last_logprob(tokens), sink)
            run_steps(core)
    for tokens, of in zip(tails(2, 3, prompt(80, 999)), (7, salt)):
        post(core, last_logprob(tokens, salt=of), sink)
    core.step()
    assert core.queues.not_kept == not_kept


@pytest.mark.feature("G10")
@pytest.mark.parametrize(("cache", "kept"), [("never", (0, 0, 0)), ("auto", (9, 15, 21))])
def test_the_cache_option_chooses_the_blocks_that_are_kept_and_never_changes_an_answer(
    cache: str, kept: tuple[int, int, int]
) -> None:
    """Three prompts of 39 tokens, nine whole blocks, that have 12 tokens in common: the later two keep six more."""
    core = rubric_core(executor=toy.ToyExecutor(num_blocks=24), step_tokens=512)
    sink = Collect()
    shared = prompt(12, 1)
    seen = []
    for i in range(3):
        tokens = np.concatenate([shared, prompt(27, 50 + i)])
        request = post(core, last_logprob(tokens, cache=cache), sink)
        run_steps(core)
        check(sink, [request])
        seen.append(core.pool.num_cached)
        assert sink.ends[request.id][0].stats.cached_tokens == (12 if i and cache != "never" else 0)
    assert tuple(seen) == kept


@pytest.mark.feature("B6")
def test_a_request_that_is_never_cached_neither_leads_nor_follows() -> None:
    core = rubric_core(fold=False)
    sink = Collect()
    requests = [post(core, last_logprob(tokens, cache="never"), sink) for tokens in tails(3)]
    assert run_steps(core) == 1
    assert core.stats.deferrals == 0 and core.pool.num_cached == 0
    check(sink, requests)


def test_a_group_whose_requests_cannot_be_read_to_their_end_holds_nothing() -> None:
    core = rubric_core()
    requests = [core.request(last_logprob(prompt(16, 1), cache="always"), Collect()), None]
    with pytest.raises(TypeError, match="a request is None"):
        OneShotGroup(core.pool, core.budgets.limits, requests, 64, 64, 1 << 30, -1, *[False] * 3)
    assert core.pool.live_leases == core.pool.num_used == 0
