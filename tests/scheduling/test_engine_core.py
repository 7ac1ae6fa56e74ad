"""The loop over real queues, pool and packing, with the toy model: every row must see its own sequence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import prelude._native.core
import prelude._native.cpu
import pytest
from prelude._native.core import KvPool

import prelude.scheduling
from prelude.admission.prepared import Prepared, TokenTree
from prelude.errors import RequestTooLarge
from prelude.readouts.batch import DecodeBatch, HeadRows, LogprobRows, MixedBatch, OneShotBatch, PooledRows, Readout
from prelude.scheduling.plan import pack
from prelude.scheduling.planner import Budgets, plan_step
from prelude.scheduling.policies import policy_named
from prelude.scheduling.postprocess import CompletedStep, check_result
from prelude.scheduling.queues import Queues
from prelude.scheduling.request import Request, State
from tests import toy
from tests.scheduling.cores import Collect, chat, expected_logprob, ids, last_logprob, prompt, run, tree_request
from tests.service import service_core


# ------------------------------------------------------------------ OneShot
@pytest.mark.feature("A17")
def test_oneshot_rows_see_their_own_sequences() -> None:
    core = service_core()
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
    core = service_core()
    shared = prompt(16, 1)
    a, b = np.concatenate([shared, prompt(3, 2)]), np.concatenate([shared, prompt(5, 3)])
    [first] = run(core, [last_logprob(a)])
    [second] = run(core, [last_logprob(b)])
    assert (first.stats.cached_tokens, first.stats.computed_tokens) == (0, 19)
    assert (second.stats.cached_tokens, second.stats.computed_tokens) == (16, 5)
    assert second.output.logprobs[0] == pytest.approx(expected_logprob(b), abs=1e-12)
    slices = core.executor.batches[1].slices
    assert slices.context_lens.tolist() == [16]
    assert core.pool.attach(shared, 0, 16, growable=False).shared.tolist() == slices.context_blocks.tolist()


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

    core = service_core()
    run(core, [asked(first)])
    [warm] = run(core, [asked(second)])
    assert (warm.stats.cached_tokens, warm.stats.computed_tokens) == (16, 5)
    [cold] = run(service_core(), [asked(second)])
    assert repr(warm.output) == repr(cold.output)


@pytest.mark.feature("B5")
def test_an_exact_duplicate_still_computes_its_last_token() -> None:
    core = service_core()
    for n in (16, 17, 20):
        tokens = prompt(n, n)
        [cold] = run(core, [last_logprob(tokens)])
        [warm] = run(core, [last_logprob(tokens)])
        assert warm.stats.cached_tokens == (n - 1) // 4 * 4
        assert warm.output.logprobs[0] == cold.output.logprobs[0]


@pytest.mark.feature("A12")
@pytest.mark.feature("A23")
def test_oneshot_leaves_nothing_but_the_cache() -> None:
    core = service_core()
    run(core, [last_logprob(prompt(30, i)) for i in range(5)])
    assert core.pool.num_used == 0 and core.pool.num_cached == 5 * 7
    assert core.pool.live_leases == 0 and core.queues.empty


# ------------------------------------------------------------------ trees and folds
def test_one_state_many_questions_is_computed_once() -> None:
    core = service_core()
    state, branches = prompt(21, 1), [prompt(n, 50 + n) for n in (1, 2, 3, 9)]
    [outcome] = run(core, [tree_request(state, branches)])
    for branch, got in zip(branches, outcome.output.logprobs):
        assert got == pytest.approx(expected_logprob(np.concatenate([state, branch])), abs=1e-12)
    assert outcome.stats.computed_tokens == 21 + 15
    [again] = run(core, [tree_request(state, branches)])
    assert again.stats.cached_tokens == 20 and again.stats.computed_tokens == 1 + 15
    assert np.array_equal(again.output.logprobs, outcome.output.logprobs)


def test_a_fully_cached_trunk_is_an_empty_segment() -> None:
    core = service_core()
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
    core = service_core()
    outcomes = run(core, items)
    for tail, outcome in zip(tails, outcomes):
        assert outcome.output.logprobs[0] == pytest.approx(expected_logprob(np.concatenate([rubric, tail])))
    assert core.stats.steps["oneshot"] == 1
    assert core.stats.prefill_tokens == 50 + sum(len(t) for t in tails)
    assert core.stats.folded_tokens == 50 * 7
    assert sum(outcome.stats.computed_tokens for outcome in outcomes) == core.stats.prefill_tokens
    unfolded = service_core(fold=False, cache=False, step_tokens=1024)
    apart = run(unfolded, items)
    assert unfolded.stats.prefill_tokens == sum(50 + len(t) for t in tails)
    for one, other in zip(outcomes, apart):
        assert one.output.logprobs[0] == other.output.logprobs[0]


def test_equal_ends_behind_other_cached_prefixes_stay_apart() -> None:
    core, prompts = service_core(), [np.concatenate([prompt(16, n), prompt(3, 9)]) for n in (1, 2)]
    run(core, [last_logprob(tokens[:17]) for tokens in prompts])
    for tokens, outcome in zip(prompts, run(core, [last_logprob(tokens) for tokens in prompts])):
        assert outcome.stats.cached_tokens == 16
        assert outcome.output.logprobs[0] == pytest.approx(expected_logprob(tokens))


# ------------------------------------------------------------------ grouping and budgets
@pytest.mark.fault(4)
def test_longer_than_any_step_is_refused_at_admission() -> None:
    core = service_core(step_tokens=64, running=4)
    with pytest.raises(RequestTooLarge, match=r"61 tokens.*at most 60.*max_step_tokens"):
        core.request(last_logprob(prompt(61, 1)), Collect())
    [outcome] = run(core, [last_logprob(prompt(60, 1))])
    assert outcome.output.logprobs[0] == pytest.approx(expected_logprob(prompt(60, 1)))


@pytest.mark.fault(54)
def test_a_request_that_can_never_fit_the_pool_is_refused() -> None:
    core = service_core(toy.ToyExecutor(num_blocks=4))
    with pytest.raises(RequestTooLarge, match="need 5 KV blocks, the pool has 4"):
        core.request(chat(prompt(10, 1), 8), Collect())
    [outcome] = run(core, [chat(prompt(10, 1), 7)])  # the last token is read, not written
    assert list(outcome.token_ids) == toy.generate(prompt(10, 1).tolist(), 7)


@pytest.mark.feature("H7")
def test_the_four_jobs_by_hand() -> None:
    executor, pool, queues, sink = toy.ToyExecutor(), KvPool(64, 4), Queues(None, None), Collect()
    budgets = Budgets(64, 16, 4, 8, 1 << 30, toy.VOCAB, 64)
    text, decision = (Request(one, sink) for one in (chat(prompt(10, 1), 3), last_logprob(prompt(7, 2))))
    for request in (text, decision):  # 1: the queues hold state; nothing is computed
        queues.add(request)
    assert queues.num_waiting == 2 and not executor.batches

    kinds = []
    while not queues.empty:
        plan = plan_step(queues, pool, budgets)  # 2: work is chosen; the executor has not heard of it
        before = [text.cached_len, len(text.output)]
        assert len(executor.batches) == len(kinds)
        packed = pack(plan, pool.block_size)  # 3: inputs are made; no request and no account changes
        batch = packed.batch
        assert isinstance(batch, OneShotBatch | DecodeBatch | MixedBatch)
        kinds.append(type(batch).__name__)
        result = executor.wait(executor.submit(batch))
        assert [text.cached_len, len(text.output)] == before

        bad = check_result(packed, result)
        CompletedStep(
            plan, packed, result, bad, queues, pool, toy.VOCAB
        ).postprocess()  # 4: states advance; ends are told
        assert len(text.output) == before[1] + 1
    assert kinds == ["MixedBatch", "DecodeBatch", "DecodeBatch"]
    assert list(sink.ends[text.id][0].token_ids) == toy.generate(prompt(10, 1).tolist(), 3)  # type: ignore[union-attr]
    outcome = sink.ends[decision.id][0]
    assert outcome is not None and outcome.output.logprobs[0] == pytest.approx(expected_logprob(prompt(7, 2)))  # type: ignore[union-attr]
    assert text.state is decision.state is State.FINISHED
    assert pool.live_leases == 0 and pool.num_used == 0


@pytest.mark.feature("N10")
@pytest.mark.feature("Q8")
def test_policy_is_python_and_the_path_of_a_token_is_compiled() -> None:
    for compiled in (prelude._native.core, prelude._native.cpu):
        assert Path(compiled.__file__).suffix in (".so", ".pyd")
    [folder] = prelude.scheduling.__path__
    assert not [path for path in Path(folder).rglob("*") if path.suffix in (".so", ".pyd", ".pyx")]
    assert type(policy_named("round_robin")).__module__ == "prelude.scheduling.policies"
    for hot in (KvPool, Request.__bases__[0]):
        assert hot.__module__.startswith("prelude._native")
