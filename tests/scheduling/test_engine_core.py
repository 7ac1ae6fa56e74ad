"""The loop over real queues, pool and packing, with the toy model: every row must see its own sequence."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from prelude.admission.classes import ExecutionClass
from prelude.admission.prepared import Outcome, Prepared, TokenTree
from prelude.batch import DecodeBatch, HeadRows, LogprobRows, MixedBatch, OneShotBatch, PooledRows, Readout
from prelude.errors import EngineClosed, ExecutionError, QueueFull, RequestTooLarge
from prelude.readouts.sampling import Sampling, SamplingState
from prelude.runtime.core import EngineCore
from prelude.scheduling.lease import KvPool
from prelude.scheduling.planner import Budgets
from prelude.scheduling.request import Request, State
from tests import toy
from tests.patience import PATIENCE


class Collect:
    streams = False

    def token(self, request, token_id, output, row) -> bool:  # type: ignore[no-untyped-def]
        return False

    def __init__(self) -> None:
        self.ends: dict[int, tuple[Outcome | None, BaseException | None]] = {}

    def deliver(self, request: Request, outcome: Outcome | None, error: BaseException | None) -> None:
        if id(request) in self.ends:
            raise AssertionError("a request ended twice")
        self.ends[id(request)] = (outcome, error)


def make_core(
    executor: toy.ToyExecutor | None = None,
    *,
    fold: bool = True,
    cache: bool = True,
    step_tokens: int = 256,
    running: int = 4,
    chunk: int = 8,
    step_requests: int = 64,
    logits_bytes: int = 1 << 30,
    queued: int = 1 << 20,
) -> EngineCore:
    executor = executor or toy.ToyExecutor()
    pool = KvPool(executor.num_blocks, executor.block_size, prefix_cache=cache)
    budgets = Budgets(step_tokens, step_requests, running, chunk, logits_bytes, toy.VOCAB, 64, fold)
    return EngineCore(
        executor, pool, budgets, max_queued_requests=queued, max_queued_tokens=1 << 31, unhealthy_after=3
    )


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def prompt(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, toy.VOCAB, n).astype(np.int32)


def last_logprob(tokens: np.ndarray, target: int = 5, **options: object) -> Prepared:
    return Prepared(
        TokenTree.single(tokens),
        LogprobRows(ids(len(tokens) - 1), ids(0), ids(target)),
        **options,  # type: ignore[arg-type]
    )


def chat(tokens: np.ndarray, count: int, stop: frozenset[int] = frozenset(), **options: object) -> Prepared:
    sampling = Sampling(0.0, 0, 1.0, 0.0, 0, stop)
    drawing = SamplingState(len(tokens) - 1, sampling)
    return Prepared(TokenTree.single(tokens), drawing, count, sampling, **options)  # type: ignore[arg-type]


def run(core: EngineCore, items: list[Prepared]) -> list[Outcome]:
    """All at once, audited after every step."""
    sink = Collect()
    requests = [core.request(item, sink) for item in items]
    core.lifecycle.post(requests)
    while core.step():
        core.audit()
    core.audit()
    results = []
    for request in requests:
        outcome, error = sink.ends[id(request)]
        if error is not None:
            raise error
        assert outcome is not None
        results.append(outcome)
    return results


def expected_logprob(tokens: np.ndarray, target: int = 5) -> float:
    return float(toy.logprobs_of(tokens.tolist())[target])


# ------------------------------------------------------------------ OneShot


@pytest.mark.feature("A17")
def test_oneshot_rows_see_their_own_sequences() -> None:
    core = make_core()
    prompts = [prompt(n, n) for n in (1, 2, 3, 4, 5, 17, 33)]
    outcomes = run(core, [last_logprob(p) for p in prompts])
    for tokens, outcome in zip(prompts, outcomes):
        assert outcome.output.logprobs[0] == pytest.approx(expected_logprob(tokens), abs=1e-12)
    [batch] = core.executor.batches
    assert isinstance(batch, OneShotBatch)
    assert batch.slices.num_tokens == sum(len(p) for p in prompts), "no padding"
    assert len(batch.readout.rows) == len(prompts), "one row a sequence meets the vocabulary"


@pytest.mark.feature("B3")
@pytest.mark.feature("B4")
@pytest.mark.feature("B9")
def test_a_second_request_attaches_the_first_ones_blocks() -> None:
    core = make_core()
    shared = prompt(16, 1)
    a, b = np.concatenate([shared, prompt(3, 2)]), np.concatenate([shared, prompt(5, 3)])
    [first] = run(core, [last_logprob(a)])
    [second] = run(core, [last_logprob(b)])
    assert (first.stats.cached_tokens, first.stats.computed_tokens) == (0, 19)
    assert (second.stats.cached_tokens, second.stats.computed_tokens) == (16, 5)
    assert second.output.logprobs[0] == pytest.approx(expected_logprob(b), abs=1e-12)
    slices = core.executor.batches[1].slices
    assert slices.context_lens.tolist() == [16]
    assert core.pool.trie.match(shared, 0, -1).blocks.tolist() == slices.context_blocks.tolist()


@pytest.mark.feature("B9")
@pytest.mark.parametrize(
    "readout",
    [
        lambda last: LogprobRows(ids(last), ids(0), ids(5)),
        lambda last: PooledRows(ids(last), ids(0, 1), "last"),
        lambda last: HeadRows(ids(last)),
    ],
    ids=["score", "embed", "classify"],
)
def test_every_head_reads_its_prefix_from_the_cache(readout: Callable[[int], Readout]) -> None:
    shared = prompt(16, 1)
    first, second = (np.concatenate([shared, prompt(n, n)]) for n in (3, 5))

    def asked(tokens: np.ndarray) -> Prepared:
        return Prepared(TokenTree.single(tokens), readout(len(tokens) - 1))

    core = make_core()
    run(core, [asked(first)])
    [warm] = run(core, [asked(second)])
    assert (warm.stats.cached_tokens, warm.stats.computed_tokens) == (16, 5)
    [cold] = run(make_core(), [asked(second)])
    assert repr(warm.output) == repr(cold.output)


@pytest.mark.feature("B5")
def test_an_exact_duplicate_still_computes_what_it_reads() -> None:
    core = make_core()
    for n in (16, 17, 20):
        tokens = prompt(n, n)
        [cold] = run(core, [last_logprob(tokens)])
        [warm] = run(core, [last_logprob(tokens)])
        assert warm.stats.cached_tokens == (n - 1) // 4 * 4
        assert warm.output.logprobs[0] == cold.output.logprobs[0]


@pytest.mark.feature("E12")
def test_cache_off_gives_the_same_numbers_and_keeps_nothing() -> None:
    core = make_core()
    tokens = prompt(40, 1)
    [never] = run(core, [last_logprob(tokens, cache="never")])
    assert core.pool.allocator.num_free == core.pool.num_blocks
    run(core, [last_logprob(tokens)])
    [still] = run(core, [last_logprob(tokens, cache="never")])
    assert still.stats.cached_tokens == 0
    assert still.output.logprobs[0] == never.output.logprobs[0]


@pytest.mark.feature("A12")
@pytest.mark.feature("A23")
def test_oneshot_leaves_nothing_but_the_cache() -> None:
    core = make_core()
    run(core, [last_logprob(prompt(30, i)) for i in range(5)])
    allocator = core.pool.allocator
    assert allocator.num_used == 0 and allocator.num_cached == 5 * 7
    assert core.pool.live_leases == 0 and core.queues.empty


@pytest.mark.feature("G10")
def test_publishing_never_evicts_what_was_hit() -> None:
    core = make_core(toy.ToyExecutor(num_blocks=8))
    shared = prompt(16, 1)
    run(core, [last_logprob(np.concatenate([shared, prompt(2, i)])) for i in range(1)])
    run(core, [last_logprob(np.concatenate([shared, prompt(2, 9)]))])  # the shared blocks are hit: promoted
    for i in range(20):
        run(core, [last_logprob(prompt(30, 100 + i))])  # unique prompts larger than the rest of the pool
    [again] = run(core, [last_logprob(np.concatenate([shared, prompt(2, 7)]))])
    assert again.stats.cached_tokens == 16


# ------------------------------------------------------------------ trees and folds


def tree_request(state: np.ndarray, branches: list[np.ndarray]) -> Prepared:
    tree = TokenTree.build([(-1, state), *((0, b) for b in branches)])
    rows = tree.starts[2:] - 1
    n = len(branches)
    return Prepared(tree, LogprobRows(rows.astype(np.int32), np.arange(n, dtype=np.int32), np.full(n, 5, np.int32)))


def test_one_state_many_questions_is_computed_once() -> None:
    core = make_core()
    state, branches = prompt(21, 1), [prompt(n, 50 + n) for n in (1, 2, 3, 9)]
    [outcome] = run(core, [tree_request(state, branches)])
    for branch, got in zip(branches, outcome.output.logprobs):
        assert got == pytest.approx(expected_logprob(np.concatenate([state, branch])), abs=1e-12)
    assert outcome.stats.computed_tokens == 21 + 15
    [again] = run(core, [tree_request(state, branches)])
    assert again.stats.cached_tokens == 20 and again.stats.computed_tokens == 1 + 15
    assert np.array_equal(again.output.logprobs, outcome.output.logprobs)


def test_a_fully_cached_trunk_is_an_empty_segment() -> None:
    core = make_core()
    state = prompt(16, 1)
    run(core, [tree_request(state, [prompt(2, 2)])])
    [outcome] = run(core, [tree_request(state, [prompt(2, 3), prompt(3, 4)])])
    assert outcome.stats.cached_tokens == 16
    assert outcome.output.logprobs[1] == pytest.approx(expected_logprob(np.concatenate([state, prompt(3, 4)])))


@pytest.mark.feature("B6")
def test_cold_shared_prefix_is_folded_into_one_step() -> None:
    rubric = prompt(50, 1)
    tails = [prompt(3 + i, 60 + i) for i in range(8)]
    items = [last_logprob(np.concatenate([rubric, tail])) for tail in tails]
    core = make_core()
    outcomes = run(core, items)
    for tail, outcome in zip(tails, outcomes):
        assert outcome.output.logprobs[0] == pytest.approx(expected_logprob(np.concatenate([rubric, tail])))
    assert core.stats.steps["oneshot"] == 1
    assert core.stats.prefill_tokens == 50 + sum(len(t) for t in tails)
    assert core.stats.folded_tokens == 50 * 7
    assert sum(outcome.stats.computed_tokens for outcome in outcomes) == core.stats.prefill_tokens
    unfolded = make_core(fold=False, cache=False, step_tokens=1024)
    apart = run(unfolded, items)
    assert unfolded.stats.prefill_tokens == sum(50 + len(t) for t in tails)
    for one, other in zip(outcomes, apart):
        assert one.output.logprobs[0] == other.output.logprobs[0]


def test_fold_shares_only_what_is_the_same_and_unread() -> None:
    core = make_core()
    base = prompt(24, 1)
    items = [base, base.copy(), np.concatenate([base[:20], prompt(9, 2)]), np.concatenate([base[:8], prompt(30, 3)])]
    outcomes = run(core, [last_logprob(tokens) for tokens in items])
    for tokens, outcome in zip(items, outcomes):
        assert outcome.output.logprobs[0] == pytest.approx(expected_logprob(tokens))


def test_folded_requests_publish_the_common_part_once() -> None:
    core = make_core()
    rubric = prompt(16, 1)
    run(core, [last_logprob(np.concatenate([rubric, prompt(6, 60 + i)])) for i in range(5)])
    assert core.pool.allocator.num_cached == 4


def test_fold_of_trees() -> None:
    core = make_core()
    rubric = prompt(30, 1)
    states = [np.concatenate([rubric, prompt(5, 10 + i)]) for i in range(3)]
    branches = [[prompt(4, 70 + i), prompt(2, 80 + i)] for i in range(3)]
    outcomes = run(core, [tree_request(s, b) for s, b in zip(states, branches)])
    assert core.stats.prefill_tokens == 30 + 3 * (5 + 6)
    for state, pair, outcome in zip(states, branches, outcomes):
        for branch, got in zip(pair, outcome.output.logprobs):
            assert got == pytest.approx(expected_logprob(np.concatenate([state, branch])))


# ------------------------------------------------------------------ grouping and budgets


@pytest.mark.feature("A27")
def test_requests_share_a_batch_only_where_head_and_options_agree() -> None:
    tokens = prompt(9, 1)
    row, zero, one = ids(8), ids(0), ids(5)
    same = Prepared(TokenTree.single(tokens), LogprobRows(row, zero, one))
    others = [
        Prepared(TokenTree.single(tokens), LogprobRows(row, zero, one, top=3)),
        Prepared(TokenTree.single(tokens), LogprobRows(row, zero, one, ranks=True)),
        Prepared(TokenTree.single(tokens), PooledRows(row, ids(0, 1), "last")),
        Prepared(TokenTree.single(tokens), PooledRows(row, ids(0, 1), "cls")),
        Prepared(TokenTree.single(tokens), HeadRows(row)),
        chat(tokens, 1),
    ]
    core = make_core()
    run(core, [same, same])
    assert core.stats.steps["oneshot"] == 1
    for other in others:
        core = make_core()
        run(core, [same, other, same])
        assert core.stats.steps["oneshot"] == 2
        assert len(core.executor.batches[0].readout.rows) == 2


@pytest.mark.feature("A27")
def test_memory_of_readouts_alone_can_stop_a_group() -> None:
    row_bytes = toy.VOCAB * 8
    core = make_core(logits_bytes=3 * row_bytes)
    run(core, [last_logprob(prompt(4, i)) for i in range(7)])
    assert [len(batch.readout.rows) for batch in core.executor.batches] == [3, 3, 1]


@pytest.mark.feature("A24")
@pytest.mark.feature("B2")
def test_the_budget_is_charged_with_uncached_tokens() -> None:
    shared = prompt(40, 1)
    core = make_core(step_tokens=64, running=4)
    run(core, [last_logprob(np.concatenate([shared, prompt(4, 2)]))])
    core.executor.batches.clear()
    run(core, [last_logprob(np.concatenate([shared, prompt(4, 20 + i)])) for i in range(10)])
    assert len(core.executor.batches) == 1, "ten prompts of 44 tokens fit a step of 64: 40 of each are cached"


@pytest.mark.fault(4)
def test_longer_than_any_step_is_refused_at_admission() -> None:
    core = make_core(step_tokens=64, running=4)
    with pytest.raises(RequestTooLarge, match=r"61 tokens.*at most 60.*max_step_tokens"):
        core.request(last_logprob(prompt(61, 1)), Collect())
    [outcome] = run(core, [last_logprob(prompt(60, 1))])
    assert outcome.output.logprobs[0] == pytest.approx(expected_logprob(prompt(60, 1)))


@pytest.mark.fault(54)
def test_a_request_that_can_never_fit_the_pool_is_refused() -> None:
    core = make_core(toy.ToyExecutor(num_blocks=4))
    with pytest.raises(RequestTooLarge, match="need 5 KV blocks, the pool has 4"):
        core.request(chat(prompt(10, 1), 8), Collect())
    [outcome] = run(core, [chat(prompt(10, 1), 7)])  # the last token is read, not written
    assert list(outcome.token_ids) == toy.generate(prompt(10, 1).tolist(), 7)


def test_queue_limits_refuse_at_once() -> None:
    core = make_core(queued=2)
    sink = Collect()
    core.lifecycle.post([core.request(last_logprob(prompt(4, i)), sink) for i in range(2)])
    with pytest.raises(QueueFull, match="max_queued_requests"):
        core.request(last_logprob(prompt(4, 9)), sink)
    assert core.snapshot()["rejected"] == {"queued_requests": 1}
    while core.step():
        pass
    core.request(last_logprob(prompt(4, 9)), sink)


# ------------------------------------------------------------------ Decode and Mixed


@pytest.mark.feature("A5")
def test_decode_rows_take_one_token_and_grow_block_by_block() -> None:
    core = make_core()
    prompts = [prompt(n, n) for n in (3, 4, 9)]
    outcomes = run(core, [chat(p, 12) for p in prompts])
    for tokens, outcome in zip(prompts, outcomes):
        assert list(outcome.token_ids) == toy.generate(tokens.tolist(), 12)
        assert outcome.stats.finish_reason == "length"
        assert outcome.stats.computed_tokens == len(tokens) + 11
    decodes = [batch for batch in core.executor.batches if isinstance(batch, DecodeBatch)]
    assert all(batch.num_tokens == 3 for batch in decodes)
    for batch in decodes:
        rows = batch.rows
        blocks = np.diff(rows.block_indptr)
        assert blocks.tolist() == [-(-(int(p) + 1) // 4) for p in rows.positions]


def test_stop_token_ends_the_text_and_is_not_part_of_it() -> None:
    tokens = prompt(6, 1)
    full = toy.generate(tokens.tolist(), 10)
    stop = full[4]
    core = make_core()
    [outcome] = run(core, [chat(tokens, 10, frozenset({stop}))])
    assert list(outcome.token_ids) == full[: full.index(stop)]
    assert outcome.stats.finish_reason == "stop"


@pytest.mark.feature("A21")
@pytest.mark.feature("A3")
def test_one_token_is_the_same_through_either_class_and_path() -> None:
    tokens = prompt(11, 1)
    [oneshot] = run(make_core(), [chat(tokens, 1)])
    assert oneshot.stats.execution_class == "oneshot"
    forced = make_core()
    forced.entry.force_class(ExecutionClass.DECODE)
    [decode] = run(forced, [chat(tokens, 1)])
    assert decode.stats.execution_class == "decode"
    assert oneshot.token_ids == decode.token_ids == tuple(toy.generate(tokens.tolist(), 1))
    inline = make_core()
    sink = Collect()
    request = inline.request(chat(tokens, 1), sink)
    inline.run_inline([request])
    assert sink.ends[id(request)][0].token_ids == oneshot.token_ids
    inline.close()


@pytest.mark.feature("A14")
@pytest.mark.feature("A6")
def test_mixed_steps_keep_chunks_decisions_and_rows_apart() -> None:
    core = make_core(chunk=8)
    sink = Collect()
    first = core.request(chat(prompt(4, 1), 20), sink)
    core.lifecycle.post([first])
    core.step()
    assert first.state is State.DECODE
    late = core.request(chat(prompt(30, 2), 5), sink)
    shot = core.request(last_logprob(prompt(10, 3)), sink)
    core.lifecycle.post([late, shot])
    while core.step():
        core.audit()
    mixed = [b for b in core.executor.batches if isinstance(b, MixedBatch) and b.decode_tokens]
    assert [b.prefill_tokens for b in mixed] == [8 + 10, 8, 8, 6]
    assert all(b.decode_tokens == 1 for b in mixed)
    assert core.stats.preemptions == 0
    assert list(sink.ends[id(first)][0].token_ids) == toy.generate(prompt(4, 1).tolist(), 20)
    assert list(sink.ends[id(late)][0].token_ids) == toy.generate(prompt(30, 2).tolist(), 5)
    assert sink.ends[id(shot)][0].output.logprobs[0] == pytest.approx(expected_logprob(prompt(10, 3)))


@pytest.mark.feature("A7")
@pytest.mark.parametrize("seed", range(8))
def test_every_step_keeps_its_accounts_apart_and_its_budget(seed: int) -> None:
    """Chats and decisions of random lengths: the stated cost of each side of a step is that of its rows."""
    rng = np.random.default_rng(seed)
    budget = int(rng.integers(40, 90))
    core = make_core(
        toy.ToyExecutor(num_blocks=60), step_tokens=budget, chunk=int(rng.integers(3, 20)), running=6, step_requests=8
    )
    block, sink, both = core.pool.block_size, Collect(), 0
    for _ in range(40):
        for _ in range(int(rng.integers(0, 4))):
            tokens = prompt(int(rng.integers(1, 30)), int(rng.integers(0, 1000)))
            prepared = chat(tokens, int(rng.integers(2, 9))) if rng.random() < 0.5 else last_logprob(tokens)
            core.lifecycle.post([core.request(prepared, sink)])
        core.step()
    while core.step():
        pass
    for batch in core.executor.batches:
        prefill = decode = 0
        if not isinstance(batch, DecodeBatch):
            prefill = len(batch.slices.token_ids)
        if not isinstance(batch, OneShotBatch):
            rows = batch.decode if isinstance(batch, MixedBatch) else batch.rows
            decode = len(rows.token_ids)
            assert (np.diff(rows.block_indptr) * block > rows.context_lens).all()  # its own token has a place too
        if isinstance(batch, MixedBatch):
            both += decode > 0 and prefill > 0
            assert (batch.prefill_tokens, batch.decode_tokens) == (prefill, decode)
            assert batch.num_tokens == prefill + decode
            assert batch.decode.block_indptr[-1] == len(batch.decode.block_ids)
        assert prefill + decode <= budget
    assert both > 0


@pytest.mark.feature("A15")
def test_oneshot_load_does_not_lower_decode_capacity() -> None:
    def capacity(shots: int) -> int:
        core = make_core(toy.ToyExecutor(num_blocks=24), running=64, step_tokens=512, chunk=64)
        sink = Collect()
        core.lifecycle.post([core.request(chat(prompt(8, i), 8), sink) for i in range(12)])
        most = 0
        for step in range(200):
            if shots:
                core.lifecycle.post(
                    [core.request(last_logprob(prompt(20, 1000 * step + i)), sink) for i in range(shots)]
                )
            if not core.step():
                break
            most = max(most, len(core.queues.running))
            core.audit()
            if all(r.state is State.FINISHED for r in core.queues.running) and not core.queues.decode:
                break
        return most

    assert capacity(0) == capacity(6)


@pytest.mark.feature("A15")
@pytest.mark.feature("A16")
def test_oneshot_rows_have_no_decode_state() -> None:
    core = make_core(cache=False)
    requests = [core.request(last_logprob(prompt(20, i)), Collect()) for i in range(1000)]
    core.lifecycle.post(requests)
    while core.step():
        pass
    assert core.stats.steps == {"oneshot": core.stats.steps["oneshot"], "mixed": 0, "decode": 0}
    assert core.pool.allocator.num_free == core.pool.num_blocks
    assert all(request.known is request.prepared.tree.token_ids for request in requests), "no room for more tokens"
    for batch in core.executor.batches:
        assert isinstance(batch, OneShotBatch) and batch.slices.write_slots is None


@pytest.mark.feature("D9")
def test_preempted_rows_end_with_the_same_text() -> None:
    prompts = [prompt(8, i) for i in range(6)]
    core = make_core(toy.ToyExecutor(num_blocks=10), running=6, chunk=16)
    outcomes = run(core, [chat(p, 20) for p in prompts])
    assert core.stats.preemptions > 0
    for tokens, outcome in zip(prompts, outcomes):
        assert list(outcome.token_ids) == toy.generate(tokens.tolist(), 20)


@pytest.mark.feature("C3")
def test_lifecycle_arithmetic() -> None:
    core = make_core()
    sink = Collect()
    request = core.request(chat(prompt(5, 1), 4), sink)
    assert (request.cached_len, request.device_len, request.max_device_len) == (0, 5, 9)
    core.lifecycle.post([request])
    core.step()
    assert (request.cached_len, request.device_len, len(request.output)) == (5, 6, 1)
    core.step()
    assert (request.cached_len, request.device_len, len(request.output)) == (6, 7, 2)


# ------------------------------------------------------------------ faults


@pytest.mark.feature("F13")
def test_a_failed_step_fails_its_rows_publishes_nothing_and_the_engine_goes_on() -> None:
    core = make_core()
    sink = Collect()
    request = core.request(last_logprob(prompt(20, 1)), sink)
    core.lifecycle.post([request])
    core.executor.fail_next = ValueError("device fell over")
    core.step()
    outcome, error = sink.ends[id(request)]
    assert outcome is None and isinstance(error, ExecutionError) and isinstance(error.__cause__, ValueError)
    core.audit()
    assert core.pool.allocator.num_free == core.pool.num_blocks
    [after] = run(core, [last_logprob(prompt(20, 1))])
    assert after.stats.cached_tokens == 0
    assert core.stats.failed_steps == 1 and core.healthy


def test_repeated_failures_are_unhealthy_until_a_step_succeeds() -> None:
    core = make_core()
    for i in range(3):
        core.executor.fail_next = RuntimeError("again")
        core.lifecycle.post([core.request(last_logprob(prompt(5, i)), Collect())])
        core.step()
    assert not core.healthy
    run(core, [last_logprob(prompt(5, 9))])
    assert core.healthy


def test_cancelling_gives_everything_back_from_any_state() -> None:
    for steps in range(6):
        core = make_core(chunk=8)
        sink = Collect()
        keep = core.request(chat(prompt(6, 1), 12), sink)
        gone = core.request(chat(prompt(20, 2), 12), sink)
        core.lifecycle.post([keep, gone])
        for _ in range(steps):
            core.step()
        core.cancel(gone)
        core.cancel(gone)
        while core.step():
            core.audit()
        core.audit()
        assert list(sink.ends[id(keep)][0].token_ids) == toy.generate(prompt(6, 1).tolist(), 12)
        assert core.pool.live_leases == 0


def test_the_engine_thread_serves_many_threads_and_closes() -> None:
    core = make_core()
    done = threading.Barrier(9)
    wrong: list[object] = []

    class Waiter(Collect):
        def __init__(self) -> None:
            super().__init__()
            self.event = threading.Event()

        def deliver(self, request, outcome, error) -> None:  # type: ignore[no-untyped-def]
            super().deliver(request, outcome, error)
            self.event.set()

    def work(seed: int) -> None:
        for i in range(20):
            sink = Waiter()
            tokens = prompt(5 + i, 100 * seed + i)
            request = core.request(last_logprob(tokens), sink)
            (core.run_inline if i % 2 else core.submit_many)([request])
            sink.event.wait(PATIENCE)
            outcome, error = sink.ends[id(request)]
            if error or abs(outcome.output.logprobs[0] - expected_logprob(tokens)) > 1e-12:
                wrong.append((seed, i, error))
        done.wait(PATIENCE)

    for seed in range(8):
        threading.Thread(target=work, args=(seed,), daemon=True).start()
    done.wait(PATIENCE)
    assert not wrong
    core.close()
    core.close()
    with pytest.raises(EngineClosed):
        core.request(last_logprob(prompt(4, 1)), Collect())
    assert core.executor.closed
