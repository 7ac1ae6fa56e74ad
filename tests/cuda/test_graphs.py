"""Recorded steps on the simulated device: fixed arguments, changing ones, when a shape is recorded, the counts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from prelude.cuda.graphs import GraphPolicy

from prelude import EngineConfig
from prelude.readouts.batch import DecodeBatch, LogprobRows, MixedBatch, OneShotBatch, PooledRows
from prelude.runtime.assembly import make_core
from prelude.runtime.core import EngineCore
from tests.cuda.conftest import on_device
from tests.cuda.plans import BLOCKS, random_edits
from tests.cuda.test_parity import same
from tests.execution.helpers import (
    BLOCK,
    VOCAB,
    Model,
    Segment,
    all_logprobs,
    decode_rows,
    ends,
    prompts,
    random_ids,
    run,
    sampling,
    slices,
)
from tests.scheduling.cores import Collect, chat

ONCE = GraphPolicy(at_once=True)


def NEVER() -> bool:
    return False


def is_eager(executor: Any, reference: Any, batch: Any) -> bool:
    """Whether no graph was replayed for a step, whose numbers are right."""
    result = run(executor, batch)
    same(result, run(reference, batch), 1e-4)
    return bool(result.eager)


def until(done: Callable[[], bool]) -> None:
    """Gives the engine's thread, which records behind the caller, 5 seconds."""
    for _ in range(500):
        if done():
            return
        time.sleep(0.01)
    raise AssertionError("it does not come")


def last_token(*ids: np.ndarray) -> OneShotBatch:
    s = prompts(*ids)
    return OneShotBatch(s, sampling(ends(s)))


@pytest.mark.feature("A29")
def test_a_shape_is_recorded_when_the_engine_is_idle_and_replayed_from_then_on(model: Model) -> None:
    """Never on a request's path: steps of a shape run eagerly until then, and say why."""
    executor, reference = on_device(model, policy=GraphPolicy()), model.executor()
    eager = []
    for n in (60, 57, 61, 58):  # one bucket
        eager.append(is_eager(executor, reference, last_token(random_ids(n, n))))
        if n == 57:
            assert executor.graphs.captures == 0 and not executor.idle(NEVER)
    assert eager == [True, True, False, False]
    graphs = executor.graphs
    assert (graphs.eager, graphs.replays, graphs.captures, graphs.failures) == (2, 2, 1, 0)
    assert executor.eager_reasons == {"not recorded yet": 2} and not executor.idle(NEVER)


@pytest.mark.feature("A29")
def test_the_engine_records_the_wanted_graphs_when_no_request_waits(model: Model) -> None:
    executor = on_device(model, policy=GraphPolicy(), num_blocks=64)
    core = make_core(EngineCore, executor, EngineConfig(max_length=256, max_step_tokens=512))
    for seed in range(2):
        core.run_inline([core.request(chat(random_ids(seed, 20), 3), Collect())])
        until(lambda: executor.graphs.captures == 2 and not executor.wants_idle)
    assert (executor.graphs.eager, executor.graphs.replays) == (3, 3)
    assert core.snapshot()["eager_reasons"] == {"not recorded yet": 3}
    core.close()


def test_a_recording_is_left_when_a_step_is_due(model: Model) -> None:
    """In front of any layer of its two runs and of its capture. The tokens of the step before stay, and the shape is
    recorded later, without another run if it had been run."""
    executor, reference = on_device(model, policy=GraphPolicy()), model.executor(num_blocks=BLOCKS)
    device: Any = executor.device
    fill = OneShotBatch(slices([Segment(random_ids(0, 20), write=[4, 5])]), sampling([19]))
    tokens = [int(run(e, fill).outputs[0].token_ids[0]) for e in (executor, reference)]
    layers = len(model.config.spec.layers) - 1
    for looks in (0, 1, layers + 1, 2 * layers + 1):
        left = iter([False] * looks)
        assert executor.idle(lambda left=left: next(left, True)) and not executor.graphs.captures
    runs = device.calls.count("embed_norm")
    assert not executor.idle(NEVER) and executor.graphs.captures == 1
    assert device.calls.count("embed_norm") == runs
    decode = [DecodeBatch(decode_rows([t], [20], [[4, 5]]), sampling([0])) for t in (-1, tokens[1])]
    same(run(executor, decode[0]), run(reference, decode[1]), 1e-4)


def test_a_request_that_comes_while_the_engine_records_is_due(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = on_device(model, policy=GraphPolicy(), num_blocks=64)
    sink, seen, look = Collect(), list[bool](), executor.idle

    def idle(due: Callable[[], bool]) -> bool:
        if not seen:
            seen.append(due())
            core.lifecycle.post([core.request(chat(random_ids(2, 9), 1), sink)])
            seen.append(due())
        return look(due)

    monkeypatch.setattr(executor, "idle", idle)
    core = make_core(EngineCore, executor, EngineConfig(max_length=256, max_step_tokens=512))
    core.run_inline([core.request(chat(random_ids(1, 20), 1), sink)])
    until(lambda: len(sink.ends) == 2)
    assert seen == [False, True]
    core.close()


@pytest.mark.parametrize("search", [False, True])
def test_no_matmul_is_searched_in_a_step_unless_that_is_asked_for(model: Model, search: bool) -> None:
    executor = on_device(model, policy=GraphPolicy(at_once=True, search=search))
    assert not run(executor, last_token(random_ids(1, 30))).eager
    device: Any = executor.device
    assert ("search" in device.calls) == search


@pytest.mark.long
@pytest.mark.feature("A29")
def test_warming_up_records_lone_prompts_and_decode_steps(model: Model) -> None:
    executor = on_device(model, policy=GraphPolicy())
    reference = model.executor(num_blocks=BLOCKS)
    count = executor.warm_up()
    assert count == executor.graphs.captures == len(executor.graphs) > 30
    s = prompts(random_ids(0, 200))
    asked = LogprobRows(ends(s), np.zeros(2, np.int32), np.int32([5, 9]))
    rows = decode_rows([5, 6, 7], [0, 3, 20], [[1], [2], [3, 4]])
    steps = [last_token(random_ids(1, 99)), OneShotBatch(s, asked), DecodeBatch(rows, sampling(range(3)))]
    assert not any(is_eager(executor, reference, batch) for batch in steps)
    assert executor.graphs.captures == count and not executor.eager_reasons


@pytest.mark.feature("A29")
def test_a_step_without_a_graph_runs_eagerly_and_is_counted(model: Model) -> None:
    executor, reference = on_device(model, policy=GraphPolicy(at_once=True, max_rows=64)), model.executor()
    large, small = last_token(random_ids(1, 300)), last_token(random_ids(2, 40))
    assert [is_eager(executor, reference, batch) for batch in (large, small) * 2] == [True, False] * 2
    assert (executor.graphs.eager, executor.graphs.replays) == (2, 2)


@pytest.mark.feature("A29")
def test_readouts_that_no_graph_has_are_read_behind_a_replayed_body(model: Model) -> None:
    """Ranks and best tokens, vectors, edits and logprobs of drawn tokens, two readouts: one recorded body for all."""
    executor, reference = on_device(model, policy=ONCE), model.executor(num_blocks=BLOCKS)
    rng = np.random.default_rng(3)
    s = prompts(random_ids(3, 30), random_ids(4, 28))
    rows = decode_rows([5, 7], [0, 3], [[1], [2]])
    edited = replace(sampling(ends(s)), edits=random_edits(rng, 2, VOCAB), logprobs=True, top=2)
    steps = [
        OneShotBatch(s, all_logprobs(ends(s), ranks=True, top=3)),
        OneShotBatch(s, PooledRows(ends(s), np.arange(3, dtype=np.int32))),
        OneShotBatch(s, edited),
        OneShotBatch(s, all_logprobs(ends(s), ranks=True, top=5)),
        MixedBatch(s, (all_logprobs(ends(s)), sampling(ends(s))), rows, sampling([0, 1])),
    ]
    assert not any(is_eager(executor, reference, batch) for batch in steps)
    assert (executor.graphs.replays, executor.graphs.captures, executor.graphs.eager) == (5, 2, 0)
    drawn = int(run(reference, steps[-1]).outputs[2].token_ids[1])
    for quiet in (all_logprobs(ends(s)), PooledRows(ends(s), np.arange(3, dtype=np.int32))):
        run(executor, OneShotBatch(s, quiet))  # draws nothing: the tokens of the step before stay
    following = [DecodeBatch(decode_rows([token], [4], [[2]]), sampling([0])) for token in (-4, drawn)]
    same(run(executor, following[0]), run(reference, following[1]), 1e-4)


def replays_decode(replayed: Any, eager: Any) -> None:
    """Every size up to 9, so that every bucket has padding: its rows write to the scratch block and nowhere else, and
    tokens are those of eager steps."""
    order = np.random.default_rng(0).permutation(BLOCKS)
    tables = [order[i * 6 : i * 6 + 6].tolist() for i in range(9)]
    ids = [random_ids(i, 5 + 8 * i) for i in range(9)]
    fill = slices([Segment(x, write=t) for x, t in zip(ids, tables)])
    for executor in (replayed, eager):
        run(executor, OneShotBatch(fill, sampling(ends(fill))))
    for count in range(9, 0, -1):
        rows = decode_rows(list(range(count)), [len(x) for x in ids[:count]], tables[:count])
        before = replayed.pool.clone()
        ours, theirs = (run(e, DecodeBatch(rows, sampling(range(count)))) for e in (replayed, eager))
        assert not ours.eager and theirs.eager
        assert ours.outputs[0].token_ids.tolist() == theirs.outputs[0].token_ids.tolist()
        changed = (before != replayed.pool).any(-1).any(-1).any(0).any(0).nonzero()[:, 0].tolist()
        assert set(changed) <= {*rows.write_slots.tolist(), *range(BLOCKS * BLOCK, (BLOCKS + 1) * BLOCK)}


@pytest.mark.feature("H10")
def test_decode_steps_replay_the_next_larger_bucket(model: Model) -> None:
    replayed, eager = on_device(model, policy=ONCE), on_device(model)
    replays_decode(replayed, eager)
    # Eager steps have fewer rows than replayed ones: the host's products may round those differently.
    kept = [executor.pool[:, :, : BLOCKS * BLOCK] for executor in (replayed, eager)]
    assert torch.allclose(*kept, rtol=0, atol=1e-5)


def test_a_launch_that_fails_takes_no_results_from_a_step_before(model: Model) -> None:
    """The steps behind it use the host areas in turn, as if it had not been."""
    executor, reference = on_device(model, policy=ONCE), model.executor()
    batches = [last_token(random_ids(i, 20)) for i in range(5)]
    run(executor, batches[4])
    device, replay = executor.device, executor.device.replay

    def breaks(*args: Any) -> None:
        raise RuntimeError("the launch failed")

    tickets = [executor.submit(batches[0])]
    device.replay = breaks
    failed = executor.submit(batches[1])
    device.replay = replay
    tickets += [executor.submit(batch) for batch in batches[2:4]]
    with pytest.raises(RuntimeError, match="the launch failed"):
        executor.wait(failed)
    for ticket, batch in reversed(list(zip(tickets, [batches[0], *batches[2:4]]))):
        same(executor.wait(ticket), run(reference, batch), 1e-4)


@pytest.mark.feature("H13")
def test_a_shape_that_cannot_be_recorded_stays_eager(model: Model, caplog: pytest.LogCaptureFixture) -> None:
    """It fails behind its runs of the step, which drew tokens of padding. Those that the next step names stay."""
    executor, reference = on_device(model, policy=ONCE), model.executor(num_blocks=BLOCKS)
    s = slices([Segment(random_ids(0, 20), write=[4, 5])])
    fill = MixedBatch(s, (sampling(ends(s)),), decode_rows([], [], [[]]), None)

    def decode(token: int, step: int) -> DecodeBatch:
        return DecodeBatch(decode_rows([token], [20 + step], [[4, 5]]), sampling([0]))

    def refuse(work: Callable[[], None], **options: Any) -> Any:
        work()
        raise torch.cuda.OutOfMemoryError("no memory for the graph")

    executor.device.capture = refuse
    tickets = [executor.submit(fill), *(executor.submit(decode(-1, step)) for step in range(3))]
    ours = [int(executor.wait(ticket).outputs[0].token_ids[0]) for ticket in tickets]
    theirs = [int(run(reference, fill).outputs[0].token_ids[0])]
    for step in range(3):
        theirs.append(int(run(reference, decode(theirs[-1], step)).outputs[0].token_ids[0]))
    assert ours == theirs
    assert (executor.graphs.failures, executor.graphs.eager) == (2, 4)
    assert executor.eager_reasons == {"could not be recorded: OutOfMemoryError": 4}
    assert sum("could not be recorded" in record.message for record in caplog.records) == 2


def test_the_least_recently_used_graph_goes(model: Model) -> None:
    executor, captures = on_device(model, policy=GraphPolicy(at_once=True, max_graphs=2)), []
    for length in (8, 40, 8, 72, 8, 40):
        run(executor, last_token(random_ids(0, length)))
        captures.append(executor.graphs.captures)
    assert captures == [1, 2, 2, 3, 3, 4] and len(executor.graphs) == 2


def test_results_not_fetched_survive_later_steps_and_the_end(model: Model) -> None:
    executor, reference = on_device(model), model.executor()
    batches = [last_token(random_ids(i, 5 + i)) for i in range(9)]
    tickets: list[Any] = [executor.submit(batch) for batch in batches]
    executor.close()
    assert all(ticket.ended.done() for ticket in tickets)
    for ticket, batch in reversed(list(zip(tickets, batches))):
        same(executor.wait(ticket), run(reference, batch), 1e-4)


@pytest.mark.long
def test_arrays_too_large_for_the_standing_areas(model: Model) -> None:
    """Logprobs of many pairs: such a step brings memory of its own, which lives until its copies have run. The next
    one may name its tokens."""
    executor, reference = on_device(model, policy=ONCE, step_tokens=4000), model.executor()
    s = prompts(*[random_ids(i, 1000) for i in range(4)])
    small = OneShotBatch(s, sampling(np.arange(60)))
    wide = MixedBatch(s, (all_logprobs(np.arange(3500)), sampling([999])), decode_rows([], [], [[]]), None)
    assert 8 * 3500 * VOCAB > 4 << 20
    drawn = int(run(reference, wide).outputs[1].token_ids[0])
    named = [DecodeBatch(decode_rows([token], [3], [[1]]), sampling([0])) for token in (-1, drawn)]
    tickets = [executor.submit(b) for b in (small, wide, named[0], small)]
    for ticket, batch in zip(tickets, (small, wide, named[1], small)):
        same(executor.wait(ticket), run(reference, batch), 2e-4)
