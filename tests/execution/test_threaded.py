"""Steps in a thread of their own, and tokens that are named before they are seen."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest

from prelude.errors import EngineClosed
from prelude.execution.executor import num_sampled
from prelude.execution.layout import PendingTokens
from prelude.execution.threaded import ThreadedExecutor
from prelude.readouts.batch import DecodeBatch, MixedBatch, OneShotBatch, SampleOutput
from tests.execution.helpers import Model, all_logprobs, decode_rows, ends, prompts, random_ids, run, sampling, slices
from tests.execution.helpers import Segment as Part
from tests.patience import PATIENCE
from tests.toy import ToyExecutor


def last_token(seed: int) -> OneShotBatch:
    s = prompts(random_ids(seed, 9))
    return OneShotBatch(s, sampling(ends(s)))


class Slow(ToyExecutor):
    """Runs when ``go`` is set, and writes down the thread of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[tuple[Any, int]] = []
        self.go = threading.Event()

    def wait(self, handle: Any) -> Any:
        assert self.go.wait(PATIENCE)
        self.ran.append((handle, threading.get_ident()))
        return super().wait(handle)


@pytest.mark.feature("H13")
def test_steps_run_in_order_in_one_thread_while_the_caller_goes_on() -> None:
    inner = Slow()
    executor = ThreadedExecutor(inner)
    batches = [last_token(i) for i in range(5)]
    steps = [executor.submit(batch) for batch in batches]
    assert not inner.ran, "no step was waited for"
    inner.go.set()
    found = [executor.wait(step) for step in reversed(steps)]
    assert [batch for batch, _ in inner.ran] == batches
    assert len({thread for _, thread in inner.ran} - {threading.get_ident()}) == 1
    assert executor.wait(steps[0]) is found[-1], "as often as one likes"
    executor.close()
    assert inner.closed


@pytest.mark.feature("H13")
def test_an_error_of_a_step_is_raised_to_its_waiter_and_the_next_one_runs() -> None:
    inner = ToyExecutor()
    inner.fail_next = MemoryError("injected")
    executor = ThreadedExecutor(inner)
    failed, fine = executor.submit(last_token(1)), executor.submit(last_token(2))
    for _ in range(2):
        with pytest.raises(MemoryError, match="injected"):
            executor.wait(failed)
    assert isinstance(executor.wait(fine).outputs[0], SampleOutput)
    with pytest.raises(TypeError, match="OneShotBatch, DecodeBatch and MixedBatch, not str"):
        executor.submit("a batch")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="did not come from submit"):
        executor.wait("a handle")  # type: ignore[arg-type]
    executor.close()


def test_closing_runs_the_submitted_steps_and_refuses_the_rest() -> None:
    inner = Slow()
    executor = ThreadedExecutor(inner)
    steps = [executor.submit(last_token(i)) for i in range(3)]
    inner.go.set()
    executor.close()
    executor.close()
    assert len(inner.ran) == 3 and all(executor.wait(step).outputs for step in steps)
    with pytest.raises(EngineClosed):
        executor.submit(last_token(9))


@pytest.mark.feature("H13")
def test_a_decode_row_names_a_token_that_the_step_before_draws(model: Model) -> None:
    """By its place among all that the step draws; a step that draws nothing leaves the names as they are."""
    executor, reference = model.executor(), model.executor()
    tables = [[1, 2], [3, 4]]
    ids = [random_ids(7, 11), random_ids(8, 5)]
    s = slices([Part(x, write=table) for x, table in zip(ids, tables)])
    fill = OneShotBatch(s, sampling(ends(s)))
    tokens = run(reference, fill).outputs[0].token_ids
    run(executor, fill)
    quiet = prompts(random_ids(9, 4))
    run(executor, OneShotBatch(quiet, all_logprobs(ends(quiet))))
    for length in range(4):
        lengths = [11 + length, 5 + length]
        named = DecodeBatch(decode_rows([-1, -2], lengths, tables), sampling([0, 1]))
        known = DecodeBatch(decode_rows(tokens.tolist(), lengths, tables), sampling([0, 1]))
        tokens = run(reference, known).outputs[0].token_ids
        assert run(executor, named).outputs[0].token_ids.tolist() == tokens.tolist()
    with pytest.raises(ValueError, match="token id -3: the step before drew 2 tokens"):
        run(executor, DecodeBatch(decode_rows([-3], [15], tables[:1]), sampling([0])))


@pytest.mark.feature("H13")
def test_names_behind_a_step_that_failed_are_taken_and_mean_nothing(model: Model) -> None:
    executor = model.executor(num_blocks=8)
    s = prompts(random_ids(1, 5))
    beyond = MixedBatch(s, (sampling(ends(s)),), decode_rows([1], [5], [[7000]]), sampling([0]))
    with pytest.raises((IndexError, RuntimeError, ValueError)):
        run(executor, beyond)
    assert num_sampled(beyond) == 2
    rows = decode_rows([-1, -2, 3], [0, 0, 0], [[1], [2], [3]])
    result = run(executor, DecodeBatch(rows, sampling([0, 1, 2])))
    alone = run(executor, DecodeBatch(decode_rows([3], [0], [[4]]), sampling([0])))
    assert result.outputs[0].token_ids[2] == alone.outputs[0].token_ids[0], "its neighbours are not drawn into it"


def test_ids_are_left_alone_where_none_is_named() -> None:
    drawn, ids = PendingTokens(), np.array([4, 0, 9])
    assert drawn.resolve(ids) is ids
    with pytest.raises(ValueError, match="drew 0 tokens"):
        drawn.resolve(np.array([3, -1]))
    drawn.keep((SampleOutput(np.array([7, 8], np.int32)), SampleOutput(np.array([9], np.int32))))
    assert drawn.resolve(np.array([-3, 2, -1])).tolist() == [9, 2, 7]
    assert ids.tolist() == [4, 0, 9]


def test_one_that_is_dropped_takes_its_thread_and_its_executor_along() -> None:
    before = set(threading.enumerate())
    inner = ToyExecutor()
    executor = ThreadedExecutor(inner)
    executor.wait(executor.submit(last_token(1)))
    (thread,) = set(threading.enumerate()) - before
    known = weakref.ref(inner)
    del executor, inner
    gc.collect()
    thread.join(PATIENCE)
    assert not thread.is_alive() and known() is None
