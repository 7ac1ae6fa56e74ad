"""The life of a text, in the numbers of the textbooks: lengths, states, pages, the rows of each step."""

from __future__ import annotations

import numpy as np
import pytest
from prelude._native.core import KvPool

from prelude.admission.prepared import Prepared, TokenTree
from prelude.readouts.batch import (
    DecodeBatch,
    ForwardBatch,
    MixedBatch,
    OneShotBatch,
    Readout,
    SampleOutput,
    SampleRows,
)
from prelude.readouts.sampling import Sampling, SamplingState
from prelude.runtime.core import EngineCore
from prelude.scheduling.planner import Budgets
from prelude.scheduling.request import Request, State
from tests import toy
from tests.scheduling.cores import Collect, make_core


def text(prompt: list[int], count: int, stops: frozenset[int] = frozenset(), **options: object) -> Prepared:
    sampling = Sampling(0.0, 0, 1.0, 0.0, 0, stops, **options)  # type: ignore[arg-type]
    state = SamplingState(len(prompt) - 1, sampling)
    return Prepared(TokenTree.single(np.array(prompt, np.int32)), state, count, sampling)


class Scripted(toy.ToyExecutor):
    """Draws given tokens."""

    def __init__(self, *tokens: int, **options: int) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.script = list(tokens)

    def _read(self, readout: Readout, sequences: list[list[int]]) -> SampleOutput:
        assert isinstance(readout, SampleRows)
        return SampleOutput(np.array([self.script.pop(0) for _ in readout.rows], np.int32))


def start(core: EngineCore, *items: Prepared) -> tuple[Collect, list[Request]]:
    sink = Collect()
    requests = [core.request(item, sink) for item in items]
    core.lifecycle.post(requests)
    return sink, requests


def six(request: Request) -> tuple[list[int], int, int, int, int, int]:
    """Token ids, cached, staged and largest length, page-table entries, pages shared with the prefix cache."""
    lease = request.lease
    return (
        request.known[: request.num_known].tolist(),
        request.cached_len,
        request.staged_len,
        request.max_device_len,
        0 if lease is None else lease.num_blocks,
        0 if lease is None else len(lease.shared),
    )


@pytest.mark.feature("C1")
@pytest.mark.feature("C2")
@pytest.mark.feature("C3")
@pytest.mark.feature("C7")
@pytest.mark.feature("H1")
def test_the_golden_lifecycle() -> None:
    core = make_core(Scripted(42, 73, 9))
    prompt = [11, 12, 13, 14, 15]
    sink, [request] = start(core, text(prompt, 3))
    assert (request.cached_len, request.device_len, request.extend_len) == (0, 5, 5)
    assert six(request) == (prompt, 0, 0, 8, 0, 0) and request.state is State.WAITING
    core.step()
    assert (request.cached_len, request.device_len, request.output, request.extend_len) == (5, 6, [42], 1)
    assert six(request) == ([*prompt, 42], 5, 5, 8, 2, 1) and request.state is State.DECODE
    core.step()
    assert (request.cached_len, request.device_len, request.output, request.extend_len) == (6, 7, [42, 73], 1)
    assert six(request) == ([*prompt, 42, 73], 6, 6, 8, 2, 1), "the full page of the prompt is in the cache"
    core.step()
    [(outcome, error)] = sink.ends.values()
    assert error is None and outcome is not None and outcome.token_ids == (42, 73, 9)
    assert request.state is State.FINISHED and request.lease is None
    # One step after the other: last token, its position, its page and slot, the pages before it.
    prefill, first, second = core.executor.batches  # type: ignore[attr-defined]
    assert isinstance(prefill, MixedBatch) and prefill.slices.token_ids.tolist() == prompt
    assert isinstance(first, DecodeBatch) and isinstance(second, DecodeBatch)
    for batch, token, position in ((first, 42, 5), (second, 73, 6)):
        assert batch.rows.token_ids.tolist() == [token] and batch.rows.positions.tolist() == [position]
        table = batch.rows.block_ids.tolist()
        assert batch.rows.write_slots.tolist() == [table[position // 4] * 4 + position % 4]
        assert batch.readout.steps.tolist() == [position - 4]


@pytest.mark.feature("A5")
@pytest.mark.feature("C10")
def test_decode_steps_bring_one_token_a_row_and_tables_grow_page_by_page() -> None:
    core = make_core(running=3)
    _, requests = start(core, *(text([7 + i] * (3 + i), 20) for i in range(3)))
    grown: dict[int, list[int]] = {id(r): [] for r in requests}
    while core.step():
        batch = core.executor.batches[-1]  # type: ignore[attr-defined]
        core.audit()
        if not isinstance(batch, DecodeBatch):
            continue
        assert batch.num_tokens == batch.rows.num_rows == len(batch.readout.rows) <= 3
        sizes = np.diff(batch.rows.block_indptr)
        assert np.array_equal(sizes, batch.rows.context_lens // 4 + 1), "covers the written token, and no more"
        for request, size in zip([r for r in requests if r.state is State.DECODE], sizes.tolist()):
            grown[id(request)].append(size)
    for sizes in grown.values():
        steps = np.diff(sizes)
        assert set(steps.tolist()) <= {0, 1} and np.diff(np.flatnonzero(steps)).tolist() in ([4] * 3, [4] * 4)


@pytest.mark.feature("C10")
def test_a_position_is_a_page_and_an_offset() -> None:
    """Pages of 16: token 42 lies in logical page 2 at offset 10, wherever that page is."""
    core = make_core(toy.ToyExecutor(num_blocks=32, block_size=16))
    _, [other, request] = start(core, text([1] * 20, 40), text([2] * 42, 3))
    while request.num_known < 44:
        core.step()
    batch = core.executor.batches[-1]  # type: ignore[attr-defined]
    assert isinstance(batch, DecodeBatch) and batch.rows.positions[1] == 42
    table = batch.rows.block_ids[batch.rows.block_indptr[1] :]
    assert len(table) == 3 and batch.rows.write_slots[1] == table[2] * 16 + 10
    assert not set(table.tolist()) & set(batch.rows.block_ids[: batch.rows.block_indptr[1]].tolist())
    assert other.state is State.DECODE


@pytest.mark.feature("C4")
@pytest.mark.feature("H4")
def test_a_text_ends_by_its_budget_the_context_or_a_stop_token() -> None:
    prompt = [5, 6, 7]
    for count in (2, 5):
        core = make_core(Scripted(*range(10, 20)))
        sink, _ = start(core, text(prompt, count))
        while core.step():
            pass
        [(outcome, _)] = sink.ends.values()
        assert outcome is not None and outcome.stats.finish_reason == "length"
        assert outcome.token_ids == tuple(range(10, 10 + count))
    for include in (False, True):
        core = make_core(Scripted(10, 11, 12, 13))
        sink, [request] = start(core, text(prompt, 9, frozenset({12, 50}), include_stop=include))
        while core.step():
            pass
        [(outcome, _)] = sink.ends.values()
        assert outcome is not None and outcome.stats.finish_reason == "stop"
        assert outcome.token_ids == ((10, 11, 12) if include else (10, 11))
        assert request.device_len < request.max_device_len == 12


@pytest.mark.feature("C4")
@pytest.mark.feature("H4")
def test_a_sink_may_end_the_text_and_so_may_cancelling() -> None:
    class Three(Collect):
        streams = True

        def token(self, request: Request, token_id: int, output: SampleOutput, row: int) -> bool:
            return len(request.output) == 3

    core = make_core()
    sink = Three()
    request = core.request(text([5, 6, 7], 9), sink)
    core.lifecycle.post([request])
    while core.step():
        core.audit()
    [(outcome, _)] = sink.ends.values()
    assert outcome is not None and len(outcome.token_ids) == 3 and outcome.stats.finish_reason == "stop"
    sink2, [cancelled] = start(core, text([5, 6, 7], 9))
    core.step()
    core.cancel(cancelled)
    core.step()
    [(nothing, error)] = sink2.ends.values()
    assert nothing is None and error is not None and cancelled.state is State.FINISHED
    core.audit()
    assert core.pool.live_leases == 0


@pytest.mark.feature("C5")
@pytest.mark.feature("C6")
@pytest.mark.feature("H6")
def test_the_batch_of_a_step_equals_an_oracle() -> None:
    """Ids and positions of every batch, from each request's own tokens and lengths at that moment."""
    core = make_core(running=4, chunk=8)
    shared = list(range(30, 42))
    sinks, requests = start(core, text([*shared, 1, 2], 6), text([3] * 5, 9))
    for step in range(40):
        before = {id(r): (r.cached_len, r.state, r.known[: r.num_known].copy()) for r in requests}
        if step == 2:
            late_sink, late = start(core, text([*shared, 5, 6, 7, 8, 9, 10, 11], 4))
            requests += late
            before.update({id(r): (r.cached_len, r.state, r.known[: r.num_known].copy()) for r in late})
        if not core.step():
            break
        batch = core.executor.batches[-1]  # type: ignore[attr-defined]
        slices, rows = (batch.slices, batch.decode) if isinstance(batch, MixedBatch) else (None, batch.rows)
        running = [r for r in requests if before[id(r)][1] is State.DECODE]
        known = [before[id(r)][2] for r in running]
        assert rows.token_ids.tolist() == [int(k[-1]) for k in known]
        assert rows.positions.tolist() == rows.context_lens.tolist() == [len(k) - 1 for k in known]
        if slices is None:
            continue
        chunks = [r for r in requests if before[id(r)][1] is not State.DECODE and r.cached_len > before[id(r)][0]]
        assert slices.num_segments == len(chunks)
        for segment, request in enumerate(chunks):
            a, b = slices.starts[segment : segment + 2].tolist()
            # A prompt that begins with cached pages starts behind them.
            start_at = int(slices.context_lens[segment])
            ids = before[id(request)][2]
            assert slices.token_ids[a:b].tolist() == ids[start_at : start_at + b - a].tolist()
            assert slices.positions[a:b].tolist() == list(range(start_at, start_at + b - a))
            assert start_at in (before[id(request)][0], request.stats.cached_tokens)
            assert int(np.diff(slices.context_indptr)[segment]) >= -(-start_at // 4)
    assert late[0].stats.cached_tokens == 12 and len(sinks.ends) == 2 and len(late_sink.ends) == 1


@pytest.mark.feature("C8")
@pytest.mark.feature("C12")
def test_a_chunk_in_flight_is_staged_and_a_half_prompt_never_sampled() -> None:
    core = make_core(chunk=8, step_tokens=12, running=4)
    executor = core.executor
    _, [request] = start(core, text([9] * 30, 3))
    seen: list[tuple[int, int]] = []
    submit = executor.submit

    def submitting(batch: ForwardBatch) -> object:
        seen.append((request.cached_len, request.staged_len))
        if isinstance(batch, MixedBatch):
            done = request.staged_len == 30
            assert (len(batch.readouts) == 1) == done and (request.state is State.PREFILL)
            assert request.staged_len - request.cached_len == batch.slices.num_tokens
        return submit(batch)

    executor.submit = submitting  # type: ignore[method-assign]
    while core.step():
        assert request.staged_len >= request.cached_len
        assert not request.output or request.cached_len >= 30
    assert seen == [(0, 12), (12, 24), (24, 30), (30, 31), (31, 32)]
    assert request.stats.chunks == 3


@pytest.mark.feature("C13")
def test_states_and_their_order() -> None:
    core = make_core()
    _, [request] = start(core, text([9] * 5, 2))
    states = []
    move = Request.move

    class Watched(Request):
        __slots__ = ()

        def move(self, state: State) -> None:
            states.append(state.value)
            move(self, state)

    request.__class__ = Watched
    while core.step():
        pass
    assert states == ["prefill", "decode", "finished"]
    for wrong in State:
        with pytest.raises(RuntimeError, match="illegal transition finished"):
            request.move(wrong)


@pytest.mark.feature("C13")
@pytest.mark.parametrize("left", State)
@pytest.mark.parametrize("entered", State)
def test_every_transition_that_is_not_of_the_table_raises(left: State, entered: State) -> None:
    """Of the sixteen, seven are legal: forward, to the end from anywhere, and back to waiting by preemption."""
    legal = {
        ("waiting", "prefill"),
        ("prefill", "decode"),
        ("prefill", "waiting"),
        ("decode", "waiting"),
        ("waiting", "finished"),
        ("prefill", "finished"),
        ("decode", "finished"),
    }
    request = make_core().request(text([9] * 5, 2), Collect())
    way = {"prefill": ["prefill"], "decode": ["prefill", "decode"], "finished": ["finished"]}
    for passed in way.get(left.value, []):
        request.move(State(passed))
    with pytest.raises(AttributeError):
        request.state = entered  # type: ignore[misc]
    if (left.value, entered.value) in legal:
        request.move(entered)
        assert request.state is entered
        return
    with pytest.raises(RuntimeError, match=f"illegal transition {left.value} -> {entered.value}"):
        request.move(entered)
    assert request.state is left


class Constant(toy.ToyExecutor):
    """Draws token 1, at no cost."""

    def wait(self, handle: ForwardBatch) -> object:
        self.batches.clear()
        outputs = []
        if isinstance(handle, OneShotBatch | MixedBatch):
            readouts = [handle.readout] if isinstance(handle, OneShotBatch) else [*handle.readouts]
            if isinstance(handle, MixedBatch) and handle.decode_readout is not None:
                readouts.append(handle.decode_readout)
        else:
            readouts = [handle.readout]
        for readout in readouts:
            outputs.append(SampleOutput(np.ones(len(readout.rows), np.int32)))
        no_rows = np.zeros(0, np.int32)
        return toy.StepResult(tuple(outputs), tuple(no_rows for _ in outputs), 1e-6)


@pytest.mark.long
@pytest.mark.feature("C9")
def test_a_hundred_thousand_texts_leave_nothing() -> None:
    executor = Constant(num_blocks=1024)
    pool = KvPool(executor.num_blocks, executor.block_size, prefix_cache=False)
    budgets = Budgets(1 << 14, 4096, 256, 1 << 13, 1 << 30, toy.VOCAB, 64, True)
    core = EngineCore(
        executor, pool, budgets, max_queued_requests=1 << 20, max_queued_tokens=1 << 31, unhealthy_after=3
    )
    ended = 0

    class Count(Collect):
        def deliver(self, request: Request, outcome: object, error: BaseException | None) -> None:
            nonlocal ended
            ended += error is None

    items, sink = [text([i, i + 1, i + 2], 2) for i in range(50)], Count()
    for _ in range(100):
        core.lifecycle.post([core.request(items[i % 50], sink) for i in range(1000)])
        while core.step():
            pass
    core.audit()
    assert ended == 100_000 and pool.live_leases == 0 and core.queues.empty
    assert pool.allocator.num_free == 1024 and pool.allocator.num_used == 0


@pytest.mark.feature("C13")
def test_a_requests_state_and_lease_cannot_be_assigned() -> None:
    core = make_core()
    request = core.request(text([5] * 9, 2), Collect())
    for name, value in (("state", State.FINISHED), ("lease", None)):
        with pytest.raises(AttributeError):
            setattr(request, name, value)
    first, second = (core.pool.attach(request.known, 0, 8, growable=True) for _ in range(2))
    request.hold(first)
    with pytest.raises(RuntimeError, match=f"request {request.id} holds a lease and is given another"):
        request.hold(second)
    request.give_back(core.pool)
    assert first.released and request.lease is None
    request.give_back(core.pool)  # it holds none: nothing happens
