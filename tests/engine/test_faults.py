"""Executors that go wrong: the requests that fail, those that run again, and an answer for every caller."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import numpy as np
import pytest

from prelude.errors import EngineClosed, ExecutionError, ExecutorLost, RequestCancelled
from prelude.readouts.batch import DecodeBatch, MixedBatch, OneShotBatch
from tests import toy
from tests.patience import shown, until
from tests.scheduling.cores import Collect, chat, expected_logprob, generated, last_logprob, prompt, submit, text
from tests.service import Fault, FaultyExecutor, is_empty, run_steps, service_core, toy_service

HANG_SECONDS = (0.2, 1.0, 5.0)  # to be tried in turn: a step that does not hang may take long for no fault of its own

SITES = ["submit", "wait"]
RAISES = ["raise", "cancel"]


# ------------------------------------------------------------------ steps that raise
@pytest.mark.fault(58)
@pytest.mark.feature("F13")
@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("kind", RAISES)
@pytest.mark.parametrize("at", [0, 1, 3, 6])
def test_chats_replay_from_their_last_settled_token(site: str, kind: str, at: int) -> None:
    core = service_core(FaultyExecutor(Fault(kind, site, at)))
    sink = Collect()
    requests = submit(core, [chat(prompt(6, i), 9) for i in range(4)], sink)
    run_steps(core)
    assert [text(sink, r) for r in requests] == [generated(i, 9) for i in range(4)]
    assert core.stats.failed_steps == 1 and core.stats.replays >= 4 and core.healthy
    assert is_empty(core)


@pytest.mark.fault(58)
@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("kind", RAISES)
def test_oneshot_rows_fail_with_the_cause_and_chats_beside_them_do_not(site: str, kind: str) -> None:
    shots = Fault(kind, site, 0, 99, only=lambda batch: not isinstance(batch, DecodeBatch) and _has_oneshot(batch))
    core = service_core(FaultyExecutor(shots))
    sink = Collect()
    [talk] = submit(core, [chat(prompt(6, 1), 12)], sink)
    core.step()
    [shot] = submit(core, [last_logprob(prompt(9, 2))], sink)
    run_steps(core)
    _, error = sink.ends[shot.id]
    assert isinstance(error, ExecutionError) and error.__cause__ is not None
    assert text(sink, talk) == generated(1, 12)
    assert core.pool.would_hit(prompt(9, 2)) == 0, "nothing of a failed step is published"
    assert is_empty(core)


def _has_oneshot(batch: Any) -> bool:
    readouts = batch.readouts if isinstance(batch, MixedBatch) else (batch.readout,)
    return any(type(readout).__name__ == "LogprobRows" for readout in readouts)


@pytest.mark.fault(58)
def test_rows_whose_next_step_fails_too_fail_and_the_engine_goes_on() -> None:
    core = service_core(FaultyExecutor(Fault("raise", "wait", 2, 2)))
    sink = Collect()
    requests = submit(core, [chat(prompt(6, i), 9) for i in range(4)], sink)
    for _ in range(4):
        core.step()
    [after] = submit(core, [chat(prompt(6, 5), 9)], sink)
    run_steps(core)
    assert all(isinstance(sink.ends[request.id][1], ExecutionError) for request in requests)
    assert text(sink, after) == generated(5, 9)
    assert core.healthy and core.stats.failed_steps == 2 and is_empty(core)


@pytest.mark.fault(58)
def test_when_every_step_fails_every_caller_is_told_and_the_engine_recovers_by_itself() -> None:
    core = service_core(FaultyExecutor(Fault("raise", "wait", 0, 5)), unhealthy=5)
    heard: list[tuple[str, dict[str, Any]]] = []
    core.events.add(lambda event: heard.append((event.name, event.data)))
    sink = Collect()
    requests = submit(core, [chat(prompt(6, i), 9) for i in range(16)], sink)
    run_steps(core)
    assert len(sink.ends) == len(requests) and all(isinstance(e, ExecutionError) for _, e in sink.ends.values())
    assert not core.healthy and ("unhealthy", {"failures": 5, "error": "RuntimeError"}) in heard and is_empty(core)
    said = {str(error) for _, error in sink.ends.values()}
    begins = ("the step of this request failed", "the engine failed 5 steps in a row")
    assert said == {f"{begin}: RuntimeError: injected" for begin in begins}
    [after] = submit(core, [chat(prompt(6, 1), 3)], sink)
    run_steps(core)
    assert text(sink, after) == generated(1, 3) and core.healthy
    for began in (1.0, 1.0, 2.0):
        core.stepper.hung(began)
    hung = [data for name, data in heard if name == "hung"]
    assert len(hung) == core.stats.hangs == 2 and all(data["seconds"] > 0 for data in hung), "once for each"


@pytest.mark.fault(58)
def test_a_failed_step_is_told_with_its_numbers(caplog: pytest.LogCaptureFixture) -> None:
    core, heard = service_core(FaultyExecutor(Fault("raise", "wait", 0))), list[Any]()
    core.events.add(lambda event: heard.append((event.name, event.data)) if event.name == "step_failed" else None)
    for i in range(18):
        submit(core, [last_logprob(prompt(5, i))], Collect(), **({"request_id": f"r{i}"} if i else {}))
    core.step()
    [record] = [
        vars(one) for one in caplog.records if one.getMessage().startswith("a step failed: RuntimeError: inj")
    ]
    assert record["event"] == "step_failed" and record["request_ids"] == [f"r{i}" for i in range(1, 17)]
    assert record["failures_in_a_row"] == 1 and record["exc_info"][0] is RuntimeError
    assert heard == [("step_failed", {"kind": "oneshot", "rows": 18, "error": "RuntimeError"})]
    assert core.failures.last_error == "RuntimeError: injected"


@pytest.mark.fault(58)
@pytest.mark.parametrize("site", SITES)
def test_when_the_executor_is_lost_rows_and_requests_that_wait_end_at_once(site: str) -> None:
    core = service_core(FaultyExecutor(Fault("lost", site, 1)), step_requests=3)
    sink = Collect()
    talk = submit(core, [chat(prompt(6, 1), 9)], sink)
    core.step()
    requests = talk + submit(core, [last_logprob(prompt(5, i)) for i in range(5)], sink)
    core.step()
    errors = [sink.ends[request.id][1] for request in requests]
    assert all(isinstance(error, ExecutorLost) for error in errors)
    assert str(errors[-1]) == "the engine has ended: injected"
    assert not core.healthy and core.stats.replays == 0 and is_empty(core)


@pytest.mark.fault(58)
@pytest.mark.parametrize("overlap", [False, True])
def test_an_error_of_the_engines_own_closes_it_and_every_caller_is_told(
    overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object) -> None:
        raise RuntimeError("injected")

    async def main() -> None:
        core = service_core(overlap=overlap)
        service = toy_service(core)
        sink = Collect()
        running = submit(core, [chat(prompt(6, i), 90) for i in range(6)], sink)
        core.step()
        core.step()
        monkeypatch.setattr(core.queues, "start", fails)
        with pytest.raises(ExecutionError, match="the engine failed: RuntimeError: injected"):
            await service.run(chat(prompt(6, 7), 9))  # type: ignore[arg-type]
        assert all("the engine failed" in str(sink.ends[request.id][1]) for request in running)
        health = service.engine.health()
        assert not health.ok and health.closed and "of the engine's own: RuntimeError: injected" in str(health.reason)
        with pytest.raises(EngineClosed, match="RuntimeError: injected"):
            service.engine.run(chat(prompt(6, 8), 9))  # type: ignore[arg-type]
        await service.aclose()
        assert core.stopped.is_set() and not core.live

    asyncio.run(main())


def test_a_cancel_while_its_request_is_on_its_way_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    core, sink = service_core(), Collect()
    [request] = submit(core, [last_logprob(prompt(5, 1))], sink)
    core.cancel(request)
    with monkeypatch.context() as late:
        late.setattr(core.inbox, "take", list)  # the request comes after the step that reads of its cancel
        core.step()
    core.step()
    assert isinstance(sink.ends[request.id][1], RequestCancelled) and request.state.name == "FINISHED"
    assert is_empty(core)


def test_requests_that_could_not_be_posted_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*arguments: object) -> None:
        raise MemoryError

    core = service_core()
    monkeypatch.setattr(core.inbox, "post", no_memory)
    with pytest.raises(MemoryError):
        submit(core, [last_logprob(prompt(5, 1))], Collect())
    assert not core.live and core.inbox.requests == core.inbox.tokens == 0


# ------------------------------------------------------------------ answers of the wrong kind
@pytest.mark.fault(58)
@pytest.mark.parametrize("kind", ["outputs", "rows", "type", "places", "below"])
def test_an_answer_of_the_wrong_shape_fails_its_step(kind: str) -> None:
    core = service_core(FaultyExecutor(Fault(kind), Fault(kind, at=2)))
    sink = Collect()
    shots = submit(core, [last_logprob(prompt(5, i)) for i in range(3)], sink)
    core.step()
    assert all(isinstance(sink.ends[r.id][1], ExecutionError) for r in shots)
    [after, talk] = submit(core, [last_logprob(prompt(5, 1)), chat(prompt(6, 1), 8)], sink)
    run_steps(core)
    assert sink.ends[after.id][0].output.logprobs[0] == pytest.approx(expected_logprob(prompt(5, 1)))
    assert text(sink, talk) == generated(1, 8) and is_empty(core)


@pytest.mark.fault(58)
@pytest.mark.parametrize("kind", ["nan", "token"])
def test_a_bad_row_fails_its_request_by_name_and_no_other(kind: str) -> None:
    word = {"nan": "not finite", "token": "outside the vocabulary"}[kind]
    core = service_core(FaultyExecutor(Fault(kind, at=3)))
    sink = Collect()
    requests = submit(core, [chat(prompt(6, i), 8) for i in range(4)], sink)
    run_steps(core)
    ends = [sink.ends[r.id] for r in requests]
    [failed] = [error for _, error in ends if error is not None]
    assert isinstance(failed, ExecutionError) and word in str(failed)
    assert [text(sink, r) for r in requests[1:]] == [generated(i, 8) for i in range(1, 4)]
    assert core.stats.failed_steps == 0 and is_empty(core)


@pytest.mark.fault(58)
def test_a_number_that_the_executor_did_not_list_as_bad_is_found() -> None:
    core = service_core(FaultyExecutor(Fault("nan")))
    sink = Collect()
    requests = submit(core, [last_logprob(prompt(5, i)) for i in range(3)], sink)
    run_steps(core)
    assert "not finite" in str(sink.ends[requests[0].id][1])
    assert all(sink.ends[r.id][1] is None for r in requests[1:])
    assert core.pool.would_hit(prompt(5, 0)) == 0


# ------------------------------------------------------------------ memory
@pytest.mark.fault(59)
@pytest.mark.parametrize("site, kind", [("submit", "memory"), ("wait", "memory"), ("wait", "device memory")])
def test_out_of_memory_shrinks_the_batch_and_tries_once_more(site: str, kind: str) -> None:
    fault = Fault(kind, site, 0, 99, only=lambda one: isinstance(one, OneShotBatch) and len(one.readout.rows) > 4)
    core = service_core(FaultyExecutor(fault))
    sink = Collect()
    requests = submit(core, [last_logprob(prompt(5, i)) for i in range(8)], sink)
    run_steps(core)
    for i, request in enumerate(requests):
        outcome, error = sink.ends[request.id]
        assert error is None and outcome.output.logprobs[0] == pytest.approx(expected_logprob(prompt(5, i)))
    assert [len(b.readout.rows) for b in core.executor.batches][-2:] == [4, 4]
    assert list(sink.ends) == [r.id for r in requests], "they run again in the order in which they came"
    assert core.stats.failed_steps == 1 and is_empty(core)


@pytest.mark.fault(59)
def test_out_of_memory_twice_fails_the_batch_and_no_other_request() -> None:
    core = service_core(FaultyExecutor(Fault("memory", "wait", 0, 2)))
    sink = Collect()
    requests = submit(core, [last_logprob(prompt(5, i)) for i in range(2)], sink)
    run_steps(core)
    ends = [sink.ends[r.id][1] for r in requests]
    assert isinstance(ends[0], ExecutionError) and isinstance(ends[0].__cause__, MemoryError)
    assert ends[1] is None, "the second of the two halves runs when memory is back"
    assert is_empty(core)


def test_work_between_steps_that_fails_is_not_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    class Idle(FaultyExecutor):
        wants_idle, tried = True, 0

        def idle(self, due: Any) -> bool:
            self.tried += 1
            raise RuntimeError("no graph")

    executor = Idle(Fault("raise", "submit", 99))
    core = service_core(executor)
    sink = Collect()
    for turn in range(1, 3):
        core.submit(core.request(last_logprob(prompt(5, turn)), sink))
        until(partial(lambda count: len(sink.ends) == count and executor.tried, turn))
    core.close()
    assert executor.tried == 1 and core.healthy
    assert "RuntimeError: no graph" in caplog.text, "with its traceback"


# ------------------------------------------------------------------ a step that hangs
@pytest.mark.fault(58)
def test_the_watchdog_answers_every_caller_while_a_step_hangs() -> None:
    limits = iter(HANG_SECONDS)

    def answers_and_goes_on() -> bool:
        hanging = Fault("hang", "wait", 1)
        executor = FaultyExecutor(hanging)
        core = service_core(executor, hang_seconds=next(limits))
        sink = Collect()
        core.submit(core.request(chat(prompt(6, 1), 9), sink))
        until(lambda: len(executor.batches) == 2)
        core.submit(core.request(last_logprob(prompt(5, 2)), sink))
        until(lambda: len(sink.ends) == 2)
        assert not hanging.given_up, "told while the step still hangs"
        assert all("hangs" in str(error) for _, error in sink.ends.values())
        assert core.hanging > 0 and not core.healthy
        hanging.over.set()
        until(lambda: not core.stepper.began)
        again = core.request(last_logprob(prompt(5, 2)), sink)
        core.submit(again)
        until(lambda: again.id in sink.ends)
        goes_on = sink.ends[again.id][1] is None and core.healthy and core.stats.hangs == 1
        core.close()
        assert is_empty(core)
        stats = core.stats
        ends = (stats.finished, stats.failed, stats.cancelled)
        assert not goes_on or ends == (1, 2, 0), "the end of a step that hung is no second end of its requests"
        return goes_on

    assert shown(answers_and_goes_on, len(HANG_SECONDS))


@pytest.mark.fault(58)
def test_closing_does_not_wait_for_a_step_that_hangs() -> None:
    hanging = Fault("hang", "wait", 0)
    core = service_core(FaultyExecutor(hanging), hang_seconds=0.1)
    core.submit(core.request(last_logprob(prompt(5, 2)), Collect()))
    until(lambda: core.stepper.began)
    core.close()
    assert not hanging.given_up
    hanging.over.set()


# ------------------------------------------------------------------ other people's code
@pytest.mark.fault(61)
def test_listeners_and_sinks_that_raise_never_reach_the_loop() -> None:
    class Rude(Collect):
        streams = True

        def token(self, request, token_id, output, row) -> bool:  # type: ignore[no-untyped-def]
            if len(request.output) == 3:
                raise ValueError("mine")
            return False

        def deliver(self, request, outcome, error) -> None:  # type: ignore[no-untyped-def]
            if outcome is not None:
                raise ValueError("mine too")
            super().deliver(request, outcome, error)

    core = service_core()
    core.events.add(lambda event: 1 // 0)
    rude, polite = Rude(), Collect()
    [bad, worse] = submit(core, [chat(prompt(6, 1), 8), chat(prompt(6, 3), 2)], rude)
    [good] = submit(core, [chat(prompt(6, 2), 8)], polite)
    run_steps(core)
    assert str(rude.ends[bad.id][1].__cause__) == "mine" and str(rude.ends[worse.id][1].__cause__) == "mine too"
    assert text(polite, good) == generated(2, 8)
    assert core.healthy and core.stats.failed_steps == 0
    assert core.snapshot()["callback_errors"] > 5 and is_empty(core)


@pytest.mark.fault(61)
@pytest.mark.parametrize("kind", [asyncio.CancelledError, SystemExit, KeyboardInterrupt])
def test_a_listener_that_raises_no_ordinary_error_fails_no_request(kind: type[BaseException]) -> None:
    def rude(event: Any) -> None:
        if event.name in ("finished", "scheduled", "first_token"):
            raise kind

    core = service_core()
    core.events.add(rude)
    sink = Collect()
    requests = [core.request(item, sink) for item in (chat(prompt(6, 1), 8), last_logprob(prompt(5, 2)))]
    core.submit_many(requests)
    until(lambda: len(sink.ends) == 2)
    assert text(sink, requests[0]) == generated(1, 8) and sink.ends[requests[1].id][1] is None
    assert core.healthy and core.stats.failed_steps == 0
    core.close()
    assert is_empty(core)


@pytest.mark.fault(60)
def test_ctrl_c_in_the_thread_that_runs_a_step_fails_no_other_request() -> None:
    class Interrupted(toy.ToyExecutor):
        def wait(self, handle: Any) -> Any:
            if len(self.batches) == 2:
                self.batches.append(handle)
                raise KeyboardInterrupt
            return super().wait(handle)

    core = service_core(Interrupted())
    mine, other = Collect(), Collect()
    neighbours = submit(core, [chat(prompt(6, 1), 6), last_logprob(prompt(5, 3))], other)
    own = core.request(chat(prompt(6, 2), 6), mine)
    with pytest.raises(KeyboardInterrupt):
        core.run_inline([own])
    core.cancel(own)
    until(lambda: len(other.ends) == 2)
    assert text(other, neighbours[0]) == generated(1, 6)
    assert other.ends[neighbours[1].id][1] is None
    core.close()
    assert is_empty(core)


@pytest.mark.fault(58)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_faults_at_every_call_site_leave_clean_accounts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    threads = set(threading.enumerate())
    kinds = ["raise", "cancel", "memory", "outputs", "rows", "type", "nan", "token"]
    faults = [
        Fault(kind, "wait" if kind in kinds[3:] else str(rng.choice(SITES)), int(rng.integers(0, 200)))
        for kind in rng.choice(kinds, 60)
    ]
    core = service_core(FaultyExecutor(*faults, num_blocks=40), running=6, unhealthy=6)
    sink = Collect()
    wanted = {}
    for i in range(120):
        kind = rng.integers(0, 2)
        [request] = submit(core, [chat(prompt(6, i), 7) if kind else last_logprob(prompt(7, i))], sink)
        wanted[request.id] = (kind, i)
        if rng.integers(0, 3) == 0:
            core.step()
            core.audit()
    run_steps(core)
    assert sink.ends.keys() == wanted.keys() and is_empty(core)
    for key, (kind, i) in wanted.items():
        outcome, error = sink.ends[key]
        if error is not None:
            assert isinstance(error, ExecutionError)
        elif kind:
            assert list(outcome.token_ids) == generated(i, 7)
        else:
            assert outcome.output.logprobs[0] == pytest.approx(expected_logprob(prompt(7, i)))
    assert sum(error is None for _, error in sink.ends.values()) > 60
    assert len(set(threading.enumerate()) - threads) < 50
