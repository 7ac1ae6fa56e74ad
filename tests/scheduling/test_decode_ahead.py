"""A decode step is submitted before the one it goes on from is waited for: the submitted rows, the dropped rows, the
time that blocks are held, and tokens that are the same as without it."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import pytest

from prelude.admission.prepared import Prepared, TokenTree
from prelude.errors import DeadlineExceeded, ExecutionError, RequestCancelled
from prelude.readouts.batch import DecodeBatch, DecodeRows, MixedBatch
from prelude.readouts.sampling import RowEdits, Sampling, SamplingState
from prelude.scheduling.request import Request
from prelude.values.options import RequestOptions
from tests import toy
from tests.scheduling.cores import Collect, chat, check, post, prompt, text
from tests.scheduling.test_overlap import OverlappedExecutor
from tests.service import Fault, FaultyExecutor, is_empty, run_steps, service_core


def rows_of(batch: Any) -> DecodeRows:
    return batch.rows if isinstance(batch, DecodeBatch) else batch.decode


def named(core: Any) -> list[list[int]]:
    """The token ids of every step's decode rows."""
    steps = [batch for batch in core.executor.batches if isinstance(batch, DecodeBatch | MixedBatch)]
    return [rows_of(batch).token_ids.tolist() for batch in steps]


def stopping(tokens: np.ndarray, at: int, count: int = 30) -> Prepared:
    """A chat whose token number ``at`` ends it."""
    drawn = toy.generate(tokens.tolist(), at + 1)
    assert drawn[at] not in drawn[:at]
    return chat(tokens, count, frozenset([drawn[at]]))


def dated(core: Any, prepared: Prepared, sink: Collect, expires: float | None) -> Request:
    """A request with a deadline on the core's own clock."""
    options = RequestOptions(deadline=expires)
    return core.request(prepared, sink, options, expires=math.inf if expires is None else expires)


# ------------------------------------------------------------------ time, and submitted rows
@pytest.mark.feature("H13")
@pytest.mark.feature("H14")
def test_the_next_step_names_tokens_that_are_still_being_drawn() -> None:
    for overlap in (True, False):
        executor = OverlappedExecutor(1, 1, num_blocks=256)
        core = service_core(executor, chunk=64, overlap=overlap)
        sink = Collect()
        requests = [post(core, chat(prompt(9, i), 4), sink) for i in range(3)]
        run_steps(core)
        check(sink, requests)
        if overlap:
            assert executor.order == ["submit", "submit", "wait", "submit", "wait", "submit", "wait", "wait"]
            assert named(core) == [[], [-1, -2, -3], [-1, -2, -3], [-1, -2, -3]]
        else:
            assert executor.order == ["submit", "wait"] * 4
            assert min(map(min, named(core)[1:])) >= 0


@pytest.mark.feature("H13")
def test_places_count_through_all_that_a_mixed_step_draws() -> None:
    """Decisions that draw a token, prompts that end and running rows: one step, one after another."""
    core = service_core(OverlappedExecutor(1, 1, num_blocks=256), chunk=64, overlap=True)
    sink = Collect()
    first = post(core, chat(prompt(9, 0), 9), sink)
    core.step()
    core.step()
    sampling = Sampling(0.0, 0, 1.0, 0.0, 0, frozenset())
    drawn = Prepared(TokenTree.single(prompt(7, 5)), SamplingState(6, sampling), 1, sampling)
    shots = [post(core, drawn, sink) for _ in range(2)]
    second = post(core, chat(prompt(9, 1), 9), sink)
    core.pacer.share = 1.0
    core.step()
    mixed = core.executor.batches[-1]
    assert isinstance(mixed, MixedBatch) and [len(r.rows) for r in mixed.readouts] == [2, 1]
    core.step()
    assert named(core)[-1] == [-4, -3], "the running row's behind the two decisions' and the prompt's"
    run_steps(core)
    check(sink, [first, second])
    best = toy.next_token(prompt(7, 5).tolist())
    assert [sink.ends[r.id][0].output.token_ids.tolist() for r in shots] == [[best]] * 2


# ------------------------------------------------------------------ rows that ended
@pytest.mark.feature("H13")
def test_a_request_that_ended_is_told_at_once_and_its_extra_row_thrown_away() -> None:
    core = service_core(OverlappedExecutor(2, 1, num_blocks=256), chunk=64, overlap=True)
    sink = Collect()
    ending = post(core, stopping(prompt(9, 1), 3), sink)
    going = post(core, chat(prompt(9, 2), 12), sink)
    while ending.id not in sink.ends:
        core.step()
        core.audit()
    assert text(sink, ending) == toy.generate(prompt(9, 1).tolist(), 3)
    assert len(rows_of(core.steps[0].packed.batch).token_ids) == 2, "its row is under way"
    assert ending.lease is not None and not ending.lease.released, "the row writes its blocks"
    stats = repr(ending.stats)
    core.step()
    core.audit()
    assert ending.lease is None and not core.steps.ended
    assert repr(ending.stats) == stats and core.stats.discarded_rows == 1
    run_steps(core)
    check(sink, [going])
    assert is_empty(core) and core.stats.discarded_rows == 1


@pytest.mark.feature("H13")
def test_a_budget_that_ends_with_the_token_in_flight_is_known_ahead() -> None:
    core = service_core(OverlappedExecutor(2, 1, num_blocks=256), chunk=64, overlap=True)
    sink = Collect()
    requests = [post(core, chat(prompt(9, n), n), sink) for n in (2, 3, 5, 9)]
    run_steps(core)
    check(sink, requests)
    assert core.stats.discarded_rows == 0
    assert core.stats.decode_tokens == sum((2, 3, 5, 9)) - 4


@pytest.mark.feature("H13")
@pytest.mark.parametrize("how", ["cancel", "deadline"])
def test_a_request_cancelled_or_late_in_flight_ends_at_once_and_holds_its_blocks_until_it_lands(how: str) -> None:
    now = [0.0]
    core = service_core(OverlappedExecutor(2, 1, num_blocks=64), chunk=64, overlap=True, clock=lambda: now[0])
    sink = Collect()
    chats = [
        dated(core, chat(prompt(9, i), 30), sink, 5.0 if i < 2 and how == "deadline" else None) for i in range(3)
    ]
    core.lifecycle.post(chats)
    for _ in range(3):
        core.step()
    held = chats[0].lease
    if how == "cancel":
        for request in chats[:2]:
            core.cancel(request)
    now[0] = 10.0 if how == "deadline" else 0.0
    core.lifecycle.take_in()
    core.audit()
    wanted = RequestCancelled if how == "cancel" else DeadlineExceeded
    assert [type(sink.ends[r.id][1]) for r in chats[:2]] == [wanted] * 2
    assert not held.released and len(core.steps.ended) == 2
    run_steps(core)
    assert held.released and is_empty(core)
    check(sink, chats[2:])


@pytest.mark.feature("H13")
def test_a_leader_that_is_cancelled_in_flight_leaves_its_blocks_to_its_peers() -> None:
    """Rows of one step stand on each other's promises; the promise is kept though the leader's text is cancelled."""
    core = service_core(OverlappedExecutor(2, 1, num_blocks=256), step_tokens=512, chunk=256, overlap=True)
    sink = Collect()
    head = prompt(40, 9)
    chats = [post(core, chat(np.concatenate([head, prompt(5, i)]), 8), sink) for i in range(3)]
    core.step()
    assert core.executor.batches[0].num_tokens == 40 + 3 * 5
    core.cancel(chats[0])
    run_steps(core)
    check(sink, chats[1:])
    assert core.stats.prefill_tokens == 40 + 3 * 5 and is_empty(core)


@pytest.mark.feature("H13")
def test_a_sink_that_ends_its_text_or_raises_ends_it_one_row_late() -> None:
    class Ends(Collect):
        streams = True

        def token(self, request: Any, token_id: int, output: Any, row: int) -> bool:
            if request is chats[1] and len(request.output) == 4:
                raise ValueError("not mine")
            return request is chats[0] and len(request.output) == 3

    core = service_core(OverlappedExecutor(2, 1, num_blocks=256), chunk=64, overlap=True)
    sink = Ends()
    chats: list[Request] = []
    chats += [post(core, chat(prompt(9, i), 12), sink) for i in range(3)]
    run_steps(core)
    assert text(sink, chats[0]) == toy.generate(prompt(9, 0).tolist(), 3)
    assert isinstance(sink.ends[chats[1].id][1], ExecutionError)
    check(sink, chats[2:])
    assert core.stats.discarded_rows == 2 and is_empty(core)


# ------------------------------------------------------------------ steps that are postprocessed first
def penalised(tokens: np.ndarray, count: int) -> Prepared:
    nothing = np.zeros(0, dtype=np.int32)
    edits = RowEdits(1.3, 0.0, 0.0, nothing, nothing.astype(np.float32), nothing, nothing, nothing)
    sampling = Sampling(0.0, 0, 1.0, 0.0, 0, frozenset(), edits)
    return Prepared(TokenTree.single(tokens), SamplingState(len(tokens) - 1, sampling), count, sampling)


@pytest.mark.feature("H13")
def test_penalties_are_counted_on_the_host_so_their_steps_are_without_overlap() -> None:
    core = service_core(OverlappedExecutor(2, 1, num_blocks=256), chunk=64, overlap=True)
    sink = Collect()
    ahead = post(core, chat(prompt(9, 0), 20), sink)
    counted = post(core, penalised(prompt(9, 1), 5), sink)
    run_steps(core)
    assert len(text(sink, counted)) == 5
    check(sink, [ahead])
    rows = named(core)
    assert all(min(ids) >= 0 for ids in rows if len(ids) == 2)
    assert sum(ids == [-1] for ids in rows) == 14, "alone again it is ahead"
    for batch in core.executor.batches[1:5]:
        edits = batch.readout.edits
        seen = edits.seen_ids[edits.seen_indptr[1] : edits.seen_indptr[2]]
        step = int(batch.readout.steps[1])
        assert set(seen.tolist()) == {*prompt(9, 1).tolist(), *text(sink, counted)[:step]}


@pytest.mark.feature("H13")
def test_half_a_prompt_is_settled_before_the_other_half_is_planned() -> None:
    core = service_core(OverlappedExecutor(1, 1, num_blocks=256), step_tokens=48, chunk=16, overlap=True)
    sink = Collect()
    running = post(core, chat(prompt(9, 0), 14), sink)
    core.step()
    core.step()
    late = post(core, chat(prompt(40, 1), 6), sink)
    run_steps(core)
    check(sink, [running, late])
    assert late.stats.chunks == 3
    halves = [i for i, batch in enumerate(core.executor.batches) if isinstance(batch, MixedBatch)][1:3]
    ids = named(core)
    assert [ids[i] for i in halves[:1]] == [[-1]], "the token before was in flight"
    assert all(ids[i + 1][0] >= 0 for i in halves), "they were not"


# ------------------------------------------------------------------ steps that fail
@pytest.mark.feature("H13")
@pytest.mark.parametrize("at", [0, 1, 2, 5])
@pytest.mark.parametrize(
    "site,kind", [("submit", "raise"), ("wait", "raise"), ("wait", "outputs"), ("wait", "memory")]
)
def test_rows_that_went_on_from_a_step_that_failed_are_run_again(site: str, kind: str, at: int) -> None:
    core = service_core(FaultyExecutor(Fault(kind, site=site, at=at), num_blocks=256), chunk=64, overlap=True)
    sink = Collect()
    requests = [post(core, chat(prompt(9, i), 9), sink) for i in range(4)]
    run_steps(core)
    check(sink, requests)
    assert core.stats.failed_steps == 1 and core.healthy and is_empty(core)
    assert core.stats.replays == 4, "each row once, not once more for the step that was in flight behind"


@pytest.mark.feature("H13")
def test_a_token_that_is_none_fails_its_request_alone() -> None:
    for kind in ("token", "nan"):
        core = service_core(FaultyExecutor(Fault(kind, at=2), num_blocks=256), chunk=64, overlap=True)
        sink = Collect()
        requests = [post(core, chat(prompt(9, i), 9), sink) for i in range(3)]
        run_steps(core)
        assert isinstance(sink.ends[requests[0].id][1], ExecutionError)
        check(sink, requests[1:])
        assert core.stats.discarded_rows == 1 and is_empty(core)


def test_ctrl_c_while_two_steps_are_in_flight_takes_every_request_back() -> None:
    class Interrupted(toy.ToyExecutor):
        left = 4

        def wait(self, handle: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
            return super().wait(handle)

    assert threading.current_thread() is threading.main_thread()
    core = service_core(Interrupted(num_blocks=256), chunk=64, overlap=True)
    sink = Collect()
    requests = [post(core, stopping(prompt(9, i), 5), sink) for i in range(1, 3)]
    with pytest.raises(KeyboardInterrupt):
        run_steps(core)
    core.audit()
    assert not core.steps and not core.steps.ended
    assert all(r.ahead == r.in_flight == 0 for r in requests)
    run_steps(core)
    for i, request in enumerate(requests, 1):
        assert text(sink, request) == toy.generate(prompt(9, i).tolist(), 5)
    assert is_empty(core)
