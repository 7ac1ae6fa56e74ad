"""The life of a text, in the numbers of the textbooks: lengths, states, pages, the rows of each step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from prelude.admission.prepared import Prepared, TokenTree
from prelude.readouts.batch import DecodeBatch, ForwardBatch, MixedBatch, Readout, SampleOutput, SampleRows
from prelude.readouts.sampling import Sampling, SamplingState
from prelude.runtime.core import EngineCore
from prelude.scheduling.request import Request, State
from prelude.simulation.costs import LinearCost
from prelude.simulation.replica import Clock, CostedExecutor
from tests import toy
from tests.scheduling.cores import Collect, chat, expected_logprob, last_logprob, post, prompt, submit
from tests.service import is_empty, service_core


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
    return sink, submit(core, items, sink)


def six(request: Request) -> tuple[list[int], int, int, int, int, int]:
    """Token ids, cached, staged and largest length, page-table entries, pages shared with the prefix cache."""
    lease = request.lease
    return (
        request.known[: request.num_known].tolist(), request.cached_len, request.staged_len, request.max_device_len,
        0 if lease is None else lease.num_blocks, 0 if lease is None else len(lease.shared),
    )  # fmt: skip


@pytest.mark.feature("C1")
@pytest.mark.feature("C2")
@pytest.mark.feature("C3")
@pytest.mark.feature("C7")
@pytest.mark.feature("H1")
def test_the_golden_lifecycle() -> None:
    core = service_core(Scripted(42, 73, 9))
    prompt = [11, 12, 13, 14, 15]
    sink, [request] = start(core, text(prompt, 3))
    assert six(request) == (prompt, 0, 0, 8, 0, 0) and request.state is State.WAITING
    core.step()
    assert six(request) == ([*prompt, 42], 5, 5, 8, 2, 1) and request.state is State.DECODE
    core.step()
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
    core = service_core(running=3)
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


@pytest.mark.feature("C2")
@pytest.mark.feature("C5")
@pytest.mark.feature("C6")
@pytest.mark.feature("H6")
def test_the_batch_of_a_step_equals_an_oracle() -> None:
    """Ids and positions of every batch, from each request's own tokens and lengths at that moment."""
    core = service_core(running=4, chunk=8)
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
    core = service_core(chunk=8, step_tokens=12, running=4)
    executor = core.executor
    _, [request] = start(core, text([9] * 30, 3))
    seen: list[tuple[int, int]] = []
    inner = executor.submit

    def submitting(batch: ForwardBatch) -> object:
        seen.append((request.cached_len, request.staged_len))
        if isinstance(batch, MixedBatch):
            done = request.staged_len == 30
            assert (len(batch.readouts) == 1) == done and (request.state is State.PREFILL)
            assert request.staged_len - request.cached_len == batch.slices.num_tokens
        return inner(batch)

    executor.submit = submitting  # type: ignore[method-assign]
    while core.step():
        assert request.staged_len >= request.cached_len
        assert not request.output or request.cached_len >= 30
    assert seen == [(0, 12), (12, 24), (24, 30), (30, 31), (31, 32)]
    assert request.stats.chunks == 3


@pytest.mark.feature("C13")
@pytest.mark.parametrize("left", State)
@pytest.mark.parametrize("entered", State)
def test_every_transition_that_is_not_of_the_table_raises(left: State, entered: State) -> None:
    """Of the sixteen, seven are legal: forward, to the end from anywhere, and back to waiting by preemption."""
    legal = {
        ("waiting", "prefill"), ("prefill", "decode"), ("prefill", "waiting"), ("decode", "waiting"),
        ("waiting", "finished"), ("prefill", "finished"), ("decode", "finished"),
    }  # fmt: skip
    request = service_core().request(text([9] * 5, 2), Collect())
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


@pytest.mark.long
@pytest.mark.feature("C9")
def test_a_hundred_thousand_texts_leave_nothing() -> None:
    executor: Any = CostedExecutor(LinearCost(1e-6, 0, 0), toy.ToyExecutor(num_blocks=1024).limits(), Clock())
    core = service_core(executor, step_tokens=1 << 14, step_requests=4096, running=256, chunk=1 << 13, cache=False)
    ended = 0

    class Count(Collect):
        def deliver(self, request: Request, outcome: object, error: BaseException | None) -> None:
            nonlocal ended
            ended += error is None

    items, sink = [text([i, i + 1, i + 2], 2) for i in range(50)], Count()
    for _ in range(100):
        submit(core, items * 20, sink)
        while core.step():
            pass
    assert ended == 100_000 and is_empty(core) and core.pool.num_free == 1024


@pytest.mark.feature("D1")
@pytest.mark.feature("D4")
@pytest.mark.parametrize("tokens,blocks", [(1, 1), (16, 1), (17, 2), (50, 4), (53, 4), (100, 7), (1500, 94)])
def test_a_sequence_has_the_blocks_that_its_tokens_fill_and_wastes_less_than_one(tokens: int, blocks: int) -> None:
    size = 16
    executor = toy.ToyExecutor(num_blocks=128, block_size=size)
    core = service_core(executor, step_tokens=4096, chunk=4096)
    sink = Collect()
    request = post(core, chat(prompt(tokens, 1), 40), sink)
    seen = []
    while core.step():
        if request.lease is not None:
            seen.append((request.cached_len, request.lease.num_blocks))
        core.audit()
    assert seen[0] == (tokens, blocks)
    assert len(seen) == 39, "one a step, until the last token, which is never written"
    for length, held in seen:
        assert 0 <= held * size - length < size
    assert is_empty(core)


@pytest.mark.feature("A14")
@pytest.mark.feature("A6")
def test_mixed_steps_keep_chunks_decisions_and_rows_apart() -> None:
    core = service_core(chunk=8)
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
    assert list(sink.ends[first.id][0].token_ids) == toy.generate(prompt(4, 1).tolist(), 20)
    assert list(sink.ends[late.id][0].token_ids) == toy.generate(prompt(30, 2).tolist(), 5)
    assert sink.ends[shot.id][0].output.logprobs[0] == pytest.approx(expected_logprob(prompt(10, 3)))
