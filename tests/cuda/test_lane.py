"""Known steps: recorded programs whose readouts are recorded too, packed and read natively."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from prelude.cuda.graphs import GraphPolicy

from prelude.readouts.batch import LogprobRows, MixedBatch, OneShotBatch
from tests.cuda.conftest import on_device
from tests.cuda.test_parity import same
from tests.execution.helpers import Model, decode_rows, ends, i32, prompts, run, sampling


def test_rows_that_are_not_finite_are_named(model: Model) -> None:
    executor, reference = on_device(model, policy=GraphPolicy(at_once=True)), model.executor()
    s = prompts(i32(range(30)), i32(range(40)), i32(range(20)))
    asked = LogprobRows(ends(s), i32([0, 1, 2]), i32([5, 6, 7]))
    for batch in (
        OneShotBatch(s, sampling(ends(s))),
        OneShotBatch(s, asked),
        OneShotBatch(s, replace(asked, raw=True)),
    ):
        same(run(executor, batch), run(reference, batch), 1e-4)
        executor.device.close()
        with executor.device.scope():
            weights = executor.weights.embeddings
            kept = weights[25].clone()
            weights[25] = float("nan")  # a token of the first two prompts
            result = run(executor, batch)
            weights[25] = kept
        assert not result.eager and result.bad_rows[0].tolist() == [0, 1]


def test_a_row_of_joined_draws_that_is_not_finite_is_its_readouts(model: Model) -> None:
    executor = on_device(model, policy=GraphPolicy(at_once=True))
    s = prompts(i32(range(30)), i32([1, 2, 3]))
    rows = decode_rows([25, 4], [3, 20], [[1], [2, 4]])
    batch = MixedBatch(s, (LogprobRows(i32([32]), i32([0]), i32([7])), sampling([29, 32])), rows, sampling([0, 1]))
    run(executor, batch)
    with executor.device.scope():
        executor.device.close()
        executor.weights.embeddings[25] = float("nan")
        result = run(executor, batch)
    assert not result.eager and [bad.tolist() for bad in result.bad_rows] == [[], [0], [0]]
    assert [len(output.token_ids) for output in result.outputs[1:]] == [2, 2]


@pytest.mark.parametrize("value", [1, 0x7FFF_FFFE, 0xFFFF_FFFD])
def test_tickets_wrap_around(model: Model, value: int) -> None:
    executor, reference = on_device(model, policy=GraphPolicy(at_once=True)), model.executor()
    executor.staging.number = value
    for area in executor.staging.outputs.areas:
        area.array[:4].view(np.uint32)[0] = value
    batch = OneShotBatch(prompts(i32(range(30))), sampling([29]))
    for _ in range(5):
        ticket: Any = executor.submit(batch)
        assert not ticket.ended.done()
        same(executor.wait(ticket), run(reference, batch), 1e-4)
        assert ticket.ended.done()
