"""The stages of a request one after the other, and the state that one stage leaves to the next."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from prelude.admission.prepared import ExecutionClass
from prelude.readouts.batch import DecodeBatch, MixedBatch, OneShotBatch
from prelude.scheduling.request import State
from tests import toy
from tests.scheduling.cores import Collect, chat, expected_logprob, last_logprob, post, prompt, text
from tests.service import is_empty, run_steps, service_core


def chunk_of(batch: Any) -> list[int]:
    return list(batch.slices.token_ids)


@pytest.mark.feature("N5")
def test_every_stage_takes_up_the_result_of_the_one_before_it() -> None:
    """Two chats over a known prefix of two blocks, one place to run in, at most 16 tokens a step."""
    executor = toy.ToyExecutor(num_blocks=32, block_size=5)
    core = service_core(executor, running=1, step_tokens=16, fold=False)
    allocator, trie = core.pool.allocator, core.pool.trie
    known = prompt(10, 1)
    sink = Collect()
    post(core, last_logprob(np.concatenate([known, prompt(1, 9)])), sink)
    run_steps(core)
    executor.batches.clear()
    first_own, second_own = prompt(19, 2), prompt(3, 3)
    first = post(core, chat(np.concatenate([known, first_own]), 4), sink)
    second = post(core, chat(np.concatenate([known, second_own]), 2), sink)

    # The queue, in the order of coming: the first takes the one place, though the second is shorter.
    core.step()
    assert first.state is State.PREFILL and second.state is State.WAITING
    # The look-up: the two known blocks are read, and computing begins behind them.
    assert executor.batches[0].slices.context_lens.tolist() == [10]
    # Blocks: those of the prompt that was not known, none for tokens that do not exist yet.
    assert allocator.num_used == 2 + 4  # 29 tokens
    # Chunks: 16 of the 19 tokens, then the other 3.
    assert chunk_of(executor.batches[0]) == first_own[:16].tolist()
    core.step()
    assert chunk_of(executor.batches[1]) == first_own[16:].tolist() and first.state is State.DECODE
    # The trie has its prompt now, for others to read while its text goes on.
    assert trie.would_hit(np.concatenate([known, first_own])) == 5
    # Decode: a token a step, each batch one row, until the last.
    for _ in range(3):
        core.step()
    assert [type(batch) for batch in executor.batches[2:5]] == [DecodeBatch] * 3
    assert first.state is State.FINISHED and text(sink, first) == toy.generate([*known, *first_own], 4)
    # Its place is the second one's, which reads the same two blocks.
    assert trie.would_hit(np.concatenate([known, first_own])) == 5
    assert second.id not in sink.ends
    core.step()
    assert second.state is not State.WAITING and executor.batches[-1].slices.context_lens.tolist() == [10]
    # An end is delivered once, and nothing is kept.
    run_steps(core)
    assert text(sink, second) == toy.generate([*known, *second_own], 2)
    assert set(sink.ends) >= {first.id, second.id} and is_empty(core)


@pytest.mark.feature("Q3")
@pytest.mark.parametrize("count", [2, 3, 9])
def test_the_limits_of_a_request_are_checked_for_it_alone_when_it_comes(count: int) -> None:
    """One prompt four times: as a score, as a chat of one token, as a longer chat, as a score again. The longer chat
    alone has blocks after its step and a place among those that run; the same prompt gives the others neither."""
    executor = toy.ToyExecutor(num_blocks=64, block_size=4)
    core = service_core(executor, running=4, chunk=64, cache=False, fold=False)
    sink = Collect()
    tokens = prompt(13, 5)
    score, one, many, again = (
        post(core, prepared, sink)
        for prepared in (last_logprob(tokens), chat(tokens, 1), chat(tokens, count), last_logprob(tokens))
    )
    assert [r.execution_class for r in (score, one, again)] == [ExecutionClass.ONESHOT] * 3
    assert many.execution_class is ExecutionClass.DECODE
    core.step()
    [batch] = executor.batches
    assert isinstance(batch, MixedBatch) and batch.slices.num_segments == 3
    assert set(sink.ends) == {score.id, again.id}, "one step is all they take part in"
    assert core.pool.allocator.num_used == 4, "blocks for the 13 tokens of the chat and for no others"
    core.step()
    assert one.id in sink.ends and core.pool.allocator.num_used == (4 if count > 2 else 0)
    assert list(core.queues.running) == [many] or many.id in sink.ends
    run_steps(core)
    assert all(isinstance(later, DecodeBatch) for later in executor.batches[2:])
    assert text(sink, many) == toy.generate(tokens.tolist(), count) and text(sink, one) == text(sink, many)[:1]
    assert sink.ends[score.id][0].output.logprobs[0] == pytest.approx(expected_logprob(tokens), abs=1e-12)


@pytest.mark.feature("Q3")
def test_where_chats_hold_every_block_scores_still_run() -> None:
    """A pool that one chat fills: another chat has to wait for it, a score does not."""
    executor = toy.ToyExecutor(num_blocks=4, block_size=4)
    core = service_core(executor, running=4, chunk=64, cache=False, fold=False)
    sink = Collect()
    holder = post(core, chat(prompt(14, 1), 2), sink)
    core.step()
    assert core.pool.allocator.num_used == 4 and holder.id not in sink.ends
    waiting, score = post(core, chat(prompt(9, 2), 2), sink), post(core, last_logprob(prompt(30, 3)), sink)
    core.step()
    assert score.id in sink.ends and waiting.state is State.WAITING
    assert any(isinstance(batch, MixedBatch | OneShotBatch) for batch in executor.batches[1:])
    run_steps(core)
    assert text(sink, waiting) == toy.generate(prompt(9, 2).tolist(), 2)
