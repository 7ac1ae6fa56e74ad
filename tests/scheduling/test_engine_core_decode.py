"""The engine's core over the toy model: Decode and Mixed steps, faults, cancellation, threads."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from prelude.admission.prepared import ExecutionClass
from prelude.errors import EngineClosed, ExecutionError
from prelude.readouts.batch import DecodeBatch, MixedBatch, OneShotBatch
from prelude.scheduling.request import State
from tests import toy
from tests.patience import PATIENCE
from tests.scheduling.cores import Collect, chat, expected_logprob, last_logprob, make_core, prompt, run

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
