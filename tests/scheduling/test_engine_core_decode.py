"""The engine's core over the toy model: Decode and Mixed steps, faults, cancellation, threads."""

from __future__ import annotations

import numpy as np
import pytest

from prelude.readouts.batch import DecodeBatch, MixedBatch, OneShotBatch
from prelude.scheduling.request import State
from tests import toy
from tests.scheduling.cores import Collect, chat, expected_logprob, last_logprob, make_core, prompt

# ------------------------------------------------------------------ Decode and Mixed


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
