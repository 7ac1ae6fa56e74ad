"""The loop over real queues, pool and packing, with the toy model: every row must see its own sequence."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from prelude.admission.prepared import Prepared, TokenTree
from prelude.errors import RequestTooLarge
from prelude.readouts.batch import HeadRows, LogprobRows, OneShotBatch, PooledRows, Readout
from tests import toy
from tests.scheduling.cores import (
    Collect,
    chat,
    expected_logprob,
    ids,
    last_logprob,
    make_core,
    prompt,
    run,
    tree_request,
)

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
def test_an_exact_duplicate_still_computes_its_last_token() -> None:
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
    [text] = run(core, [chat(tokens, 3, cache="never")])
    assert list(text.token_ids) == list(toy.generate(tokens.tolist(), 3))
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


# ------------------------------------------------------------------ trees and folds


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


def test_fold_shares_only_tokens_that_are_the_same_and_unread() -> None:
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
