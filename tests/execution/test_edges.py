"""Inputs and numbers at their limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from prelude.cpu.executor import CpuExecutor
from prelude.cpu.hidden_rows import best, log_normalisers, logprobs_of
from prelude.errors import EngineClosed
from prelude.execution.executor import Executor
from prelude.execution.layout import PendingTokens
from prelude.models.arrays import Array
from prelude.models.packed import PackedLinear
from prelude.readouts.batch import DecodeBatch, LogprobRows, MixedBatch, OneShotBatch, PooledRows, SampleOutput
from tests.checkpoints import save_model
from tests.execution.helpers import (
    Model,
    Segment,
    all_logprobs,
    decode_rows,
    ends,
    hidden,
    i32,
    last_logprobs,
    prompts,
    random_ids,
    run,
    sampling,
    slices,
    slots,
)


def test_raw_logits_are_those_of_the_whole_vocabulary(model: Model) -> None:
    executor = model.executor(logits_chunk_rows=4)
    s = prompts(*[random_ids(i, 3 + i) for i in range(6)])
    rows, vocab = ends(s), model.config.vocab_size
    every = all_logprobs(rows, vocab)
    logprobs = run(executor, OneShotBatch(s, every)).outputs[0].logprobs.reshape(len(rows), vocab)
    raw = run(executor, OneShotBatch(s, replace(every, raw=True)))
    logits = raw.outputs[0].logprobs.reshape(len(rows), vocab)
    normalised = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert np.abs(normalised - logprobs).max() < 1e-5 and raw.lm_head_rows == 0
    assert np.abs(logits - logprobs).max() > 0.1


def test_rows_that_name_tokens_get_those_of_the_step_before() -> None:
    pending, rows = PendingTokens(), decode_rows([-2, 5], [1, 1], [[0], [1]])
    pending.keep((SampleOutput(i32([7, 9])),))
    mixed = pending.resolved(MixedBatch(prompts(random_ids(0, 3)), (), rows, None))
    alone = pending.resolved(DecodeBatch(rows, sampling([0, 1])))
    assert isinstance(mixed, MixedBatch) and isinstance(alone, DecodeBatch)
    for found in (alone.rows, mixed.decode):
        assert found.token_ids.tolist() == [9, 5] and found.token_ids.dtype == np.int32


@pytest.mark.feature("A9")
def test_only_the_three_variants(model: Model) -> None:
    executor = model.executor()
    assert isinstance(executor, Executor)
    batch = OneShotBatch(prompts(random_ids(0, 3)), sampling([2]))
    for other in (None, {}, batch.slices, SimpleNamespace(slices=batch.slices, readout=batch.readout)):
        with pytest.raises(TypeError, match="OneShotBatch"):
            executor.submit(other)  # type: ignore[arg-type]
    names = {*OneShotBatch.__dataclass_fields__, *type(batch.slices).__dataclass_fields__}
    assert not {"block_ids", "block_indptr", "max_tokens"} & names


@pytest.mark.fault(58)
def test_a_failed_step_leaves_nothing_behind(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = model.executor()
    good = OneShotBatch(prompts(random_ids(0, 9)), sampling([8]))
    expected = run(executor, good).outputs[0].token_ids
    bad = replace(good, slices=replace(good.slices, token_ids=i32([10**6] * 9)))
    handles = [executor.submit(bad), executor.submit(good)]
    with pytest.raises(IndexError):
        executor.wait(handles[0])
    assert executor.wait(handles[1]).outputs[0].token_ids == expected
    with monkeypatch.context() as patch:
        patch.setattr(executor.decoder, "logits", lambda normed: (_ for _ in ()).throw(MemoryError("no room")))
        handle = executor.submit(good)
    with pytest.raises(MemoryError, match="no room"):
        executor.wait(handle)
    assert run(executor, good).outputs[0].token_ids == expected
    executor.close()
    with pytest.raises(EngineClosed):
        executor.submit(good)


@pytest.mark.fault(58)
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_poisoned_block_fails_its_own_rows(model: Model, deterministic: bool) -> None:
    """NaN in the pool: in a context, in a decode row, and in freed memory behind a row's last token."""
    executor = model.executor(deterministic=deterministic)
    fill = slices([Segment(random_ids(i, 32), write=[2 * i, 2 * i + 1]) for i in range(4)])
    run(executor, OneShotBatch(fill, sampling(ends(fill))))
    part = [Segment(random_ids(9, 5), context=32, blocks=[2 * i, 2 * i + 1]) for i in range(3)]
    part += [Segment(random_ids(8, 20)), Segment(random_ids(7, 3), 1), Segment(random_ids(7, 3), 2)]
    s, vocab = slices(part), executor.config.vocab_size
    rows = decode_rows([3, 4, 5], [20, 32, 3], [[0, 1], [2, 3, 8], [6]])
    clean = run(executor, MixedBatch(s, (all_logprobs(ends(s)),), rows, sampling(range(3), top=vocab)))
    for block in (2, 3):
        executor.pool.tensor[:, :, slots([block])] = float("nan")
    executor.pool.tensor[:, :, slots([0, 1])[21:]] = float("nan")  # root 0 still reads it, decode row 0 does not
    executor.pool.tensor[:, :, slots([6])[4:]] = float("nan")
    result = run(executor, MixedBatch(s, (all_logprobs(ends(s)),), rows, sampling(range(3), top=vocab)))
    assert result.bad_rows[0].tolist() == [0, 1, 4] and result.bad_rows[1].tolist() == [1]
    for now, before in zip(np.split(result.outputs[0].logprobs, 6), np.split(clean.outputs[0].logprobs, 6)):
        assert np.isnan(now).all() or np.array_equal(now, before)
    assert np.isnan(result.outputs[0].logprobs).sum() == 3 * vocab
    for row in (0, 2):
        assert np.array_equal(result.outputs[1].top_logprobs[row], clean.outputs[1].top_logprobs[row])


def test_a_poisoned_token_fails_its_own_readouts(model: Model) -> None:
    executor = model.executor()
    executor.weights.embeddings.tokens[7] = float("nan")  # untied: the head is another weight
    s = prompts(i32([1, 2, 3]), i32([4, 7, 5]), i32([5, 6]))
    assert run(executor, OneShotBatch(s, PooledRows(ends(s), i32([0, 1, 2, 3])))).bad_rows[0].tolist() == [1]
    assert run(executor, OneShotBatch(s, sampling(ends(s), 1.0))).bad_rows[0].tolist() == [1]
    assert run(executor, OneShotBatch(s, PooledRows(i32(range(8)), s.starts, "mean"))).bad_rows[0].tolist() == [1]


# ------------------------------------------------------------------ numbers
@pytest.mark.fault(75)
@pytest.mark.fault(78)
def test_extreme_logits() -> None:
    rows = [
        [1e4, -1e4, 0, 1e4], [-1e4, -1e4, -1e4, -1e4], [0, -float("inf"), -1e3, 1e-40], [3e38, -3e38, 0, 0],
        [1e4, 1e4 - 1, 1e4 - 1000, 0],
    ]  # fmt: skip
    logits = torch.tensor(rows, dtype=torch.float32)
    every = np.repeat(np.arange(5), 4), np.tile(np.arange(4), 5)
    ours = logprobs_of(logits.numpy(), *log_normalisers(logits.numpy()), *every).reshape(5, 4)
    theirs = logits.double().log_softmax(-1).numpy()
    assert (ours <= 0).all() and not np.isnan(ours).any()
    finite = np.isfinite(theirs)
    error = np.abs(ours[finite] - theirs[finite]) / np.maximum(1, np.abs(theirs[finite]))
    assert error.max() < 1e-6
    assert np.abs(np.exp(ours).sum(axis=1) - 1).max() < 1e-6
    assert ours[2, 2] == pytest.approx(-1000 - np.log(2))  # far below the range of exp, finite as a logprob


def change_head(executor: CpuExecutor, change: Callable[[Array], object]) -> None:
    """Applies ``change`` to the values of the LM head's weight."""
    head = executor.weights.lm_head
    assert head is not None
    weight = head.gather(np.arange(head.outputs))
    change(weight)
    head.words[:] = PackedLinear(weight, None, head.packing).words


@pytest.mark.fault(75)
def test_probabilities_of_a_sharp_model(model: Model) -> None:
    executor = model.executor()
    change_head(executor, lambda weight: np.multiply(weight, 1e4, out=weight))
    result = run(executor, OneShotBatch(prompts(random_ids(0, 12)), all_logprobs(np.arange(12), top=211)))
    logprobs = result.outputs[0].logprobs.reshape(12, -1)
    assert logprobs.max() == 0.0 and logprobs.min() < -1e4 and np.isfinite(logprobs).all()
    assert np.abs(np.exp(logprobs).sum(axis=1) - 1).max() < 1e-6
    assert result.outputs[0].top_logprobs.max() <= 0


@pytest.mark.fault(75)
def test_ties_go_to_the_smaller_id() -> None:
    logits = torch.zeros(3, 50)
    logits[1, 20:] = 1.0
    logits[2, [5, 30, 31, 48]] = torch.tensor([1.0, 2.0, 1.0, 1.0])
    ids, _ = best(logits.numpy(), 3)
    assert ids.tolist() == [[0, 1, 2], [20, 21, 22], [30, 5, 31]]


def equal_rows(weight: Array) -> None:
    weight[100:110] = weight[100].copy()


@pytest.mark.fault(75)
def test_ranks_and_greedy_under_ties(model: Model) -> None:
    executor = model.executor()
    change_head(executor, equal_rows)
    result = run(executor, OneShotBatch(prompts(random_ids(0, 5)), all_logprobs(np.array([4]), ranks=True, top=211)))
    ranks = result.outputs[0].ranks
    assert np.array_equal(ranks[100:110], ranks[100] + np.arange(10))
    assert sorted(ranks.tolist()) == list(range(1, 212))
    assert np.array_equal(np.argsort(ranks), result.outputs[0].top_ids[0])


@pytest.mark.fault(77)
def test_denormal_and_signed_zero_weights(model: Model) -> None:
    executor, clean = model.executor(deterministic=True), model.executor(deterministic=True)
    executor.weights.embeddings.tokens[3] = -0.0
    clean.weights.embeddings.tokens[3] = 0.0
    executor.weights.embeddings.tokens[4] = 1e-42
    s = prompts(i32([3, 5, 3]), i32([4, 5]))
    rows = hidden(executor, s, np.arange(5))
    assert np.isfinite(rows).all()
    assert np.array_equal(rows[:3], hidden(clean, s, np.arange(5))[:3])


# ------------------------------------------------------------------ lengths
@pytest.mark.fault(76)
@pytest.mark.parametrize("deterministic", [False, True])
def test_lengths_at_the_limits(tmp_path_factory: pytest.TempPathFactory, deterministic: bool) -> None:
    short = Model(save_model(tmp_path_factory.mktemp("short"), max_position_embeddings=96, num_hidden_layers=2))
    executor = short.executor(num_blocks=8, deterministic=deterministic)
    ids = random_ids(0, 96)
    whole = short.logprobs(ids)
    assert np.abs(last_logprobs(executor, prompts(ids), np.arange(96)) - whole).max() < 1e-4
    assert np.abs(last_logprobs(executor, prompts(ids[:1]))[0] - whole[0]).max() < 1e-4
    for done in (15, 16, 17, 95):  # the last block short of one, exactly full, one over, and the last position
        table = [5, 0, 3, 7, 1, 6][: done // 16 + 1]
        fill = slices([Segment(ids[:done], write=table)])
        run(executor, OneShotBatch(fill, sampling([done - 1])))
        rows = decode_rows([ids[done]], [done], [table])
        result = run(executor, DecodeBatch(rows, sampling([0], top=211))).outputs[0]
        assert np.abs(result.top_logprobs[0] - whole[done][result.top_ids[0]]).max() < 1e-4
    over = slices([Segment(ids, write=[5, 0, 3, 7, 1, 6]), Segment(random_ids(1, 1), 0)])
    with pytest.raises(IndexError, match="position 96"):
        run(executor, OneShotBatch(over, sampling([96])))
    table_too_short = replace(decode_rows([1], [31], [[0, 1]]), context_lens=i32([32]))
    with pytest.raises(ValueError, match=r"33 tokens (do not lie )?in 2 blocks"):
        run(executor, DecodeBatch(table_too_short, sampling([0])))


# ------------------------------------------------------------------ heads
def test_bfloat16_against_float32(model: Model) -> None:
    s = prompts(random_ids(0, 90), random_ids(1, 4))
    rows = np.arange(94)
    exact, rounded = (
        last_logprobs(model.executor(), s, rows),
        last_logprobs(model.executor(dtype="bfloat16"), s, rows),
    )
    assert np.abs(exact - rounded).max() < 0.03 * np.abs(exact).max()
    assert (
        model.executor(dtype="bfloat16").limits().kv_bytes_per_token * 2
        == model.executor().limits().kv_bytes_per_token
    )


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_other_dtypes_are_refused(model: Model, dtype: Any) -> None:
    with pytest.raises(ValueError, match="float32 or bfloat16"):
        model.executor(dtype=dtype)


def test_logprob_pairs_in_any_order(model: Model) -> None:
    """Pairs need not be sorted, rows may repeat, and a row may have no pair."""
    executor, s = model.executor(logits_chunk_rows=2), prompts(random_ids(0, 20))
    table = last_logprobs(executor, s, np.arange(20))
    rows, at, targets = i32([19, 3, 3, 7, 11]), i32([4, 0, 2, 0, 1]), i32([5, 6, 7, 8, 210])
    result = run(executor, OneShotBatch(s, LogprobRows(rows, at, targets)))
    assert np.allclose(result.outputs[0].logprobs, table[rows[at], targets], atol=1e-5)
    assert result.outputs[0].ranks is None and result.lm_head_rows == 4, "row 3 is read once"
