"""Overlap: the next step is planned and packed while this one runs. On or off, everybody gets the same numbers."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from prelude import Engine, EngineConfig, Generate, Loglikelihood, SamplingParams
from prelude.readouts.batch import ForwardBatch, StepResult
from tests import toy
from tests.engine.test_faults import HANG_SECONDS
from tests.patience import PATIENCE, shown, until
from tests.scheduling.cores import Collect, chat, check, expected_logprob, last_logprob, post, prompt, submit
from tests.scheduling.test_shared_prefixes import tails
from tests.service import Fault, FaultyExecutor, is_empty, run_steps, service_core


class OverlappedExecutor(toy.ToyExecutor):
    """A device that runs beside the host, in virtual time: a step takes ``latency`` from when the one before it is
    done, and every submission finds the host ``work`` later."""

    def __init__(self, latency: float, work: float, **sizes: Any) -> None:
        super().__init__(**sizes)
        self.latency, self.work = latency, work
        self.host = self.free = 0.0
        self.order: list[str] = []

    def submit(self, batch: ForwardBatch) -> Any:
        super().submit(batch)
        self.host += self.work
        self.free = max(self.free, self.host) + self.latency
        self.order.append("submit")
        return super().wait(batch), self.free  # computed now: later writes must not be seen

    def wait(self, handle: Any) -> StepResult:
        result, done = handle
        self.host = max(self.host, done)
        self.order.append("wait")
        return replace(result, seconds=self.latency)


def decisions(core: Any, count: int = 20) -> tuple[Collect, list[Any]]:
    sink = Collect()
    return sink, [post(core, last_logprob(prompt(30, i)), sink) for i in range(count)]


@pytest.mark.feature("H13")
@pytest.mark.feature("H14")
@pytest.mark.parametrize("latency,work", [(5.0, 3.0), (3.0, 5.0), (4.0, 4.0)])
@pytest.mark.parametrize("kind", ["oneshot", "decode"])
def test_a_step_takes_the_longer_of_device_and_host_not_their_sum(kind: str, latency: float, work: float) -> None:
    taken, numbers = {}, {}
    for overlap in (True, False):
        executor = OverlappedExecutor(latency, work, num_blocks=512)
        core = service_core(executor, step_tokens=64, running=6, chunk=64, overlap=overlap)
        sink = Collect()
        items = [last_logprob(prompt(30, i)) if kind == "oneshot" else chat(prompt(9, i), 10) for i in range(20)]
        requests = submit(core, items[: 20 if kind == "oneshot" else 6], sink)
        run_steps(core)
        check(sink, requests)
        assert len(executor.batches) == 10 and core.stats.discarded_rows == 0
        taken[overlap] = executor.host
        numbers[overlap] = [repr(sink.ends[r.id][0].output) + repr(sink.ends[r.id][0].token_ids) for r in requests]
    assert taken[False] == 10 * (latency + work)
    assert taken[True] <= 10 * max(latency, work) + latency + work
    assert numbers[True] == numbers[False]


@pytest.mark.feature("H13")
def test_a_request_waits_for_a_prefix_that_a_step_in_flight_computes() -> None:
    executor = OverlappedExecutor(2, 1, num_blocks=512)
    core = service_core(executor, step_tokens=1024, overlap=True)
    sink = Collect()
    first, *others = tails(5, 12, prompt(400, 8))
    leader = post(core, last_logprob(first), sink)
    core.step()
    peers = [post(core, last_logprob(tokens), sink) for tokens in others]
    run_steps(core)
    check(sink, [leader, *peers])
    assert core.stats.prefill_tokens == 400 + 5 * 12
    assert [r.stats.deferred_ticks for r in peers] == [1] * 4


@pytest.mark.parametrize(
    "site,kind",
    [("submit", "raise"), ("submit", "memory"), *(("wait", kind) for kind in ("raise", "memory", "outputs", "nan"))],
)
def test_a_step_that_fails_beside_another_takes_its_own_rows_alone(site: str, kind: str) -> None:
    executor = FaultyExecutor(Fault(kind, site=site, at=2), num_blocks=256)
    core = service_core(executor, step_tokens=64, overlap=True)
    sink, requests = decisions(core, 14)
    chats = [post(core, chat(prompt(9, i), 4), sink) for i in range(2)]
    run_steps(core)
    ended = [r for r in requests if sink.ends[r.id][1] is None]
    check(sink, [*ended, *chats])
    assert len(requests) - len(ended) <= (0 if kind == "memory" else 2)
    assert is_empty(core) and not core.steps


def test_rows_of_two_readouts_that_ran_out_of_memory_run_again_apart() -> None:
    core = service_core(FaultyExecutor(Fault("memory", times=2), num_blocks=256), overlap=True)
    sink, requests = decisions(core, 8)
    core.step()
    for i in range(7):
        item = last_logprob(prompt(9, 50 + i))
        requests.append(post(core, replace(item, readout=replace(item.readout, ranks=True)), sink))
    run_steps(core)
    check(sink, requests)
    assert [sink.ends[r.id][0].output.ranks is not None for r in requests] == [False] * 8 + [True] * 7
    assert core.stats.failed_steps == 2 and is_empty(core)


def test_a_caller_that_steps_itself_gets_its_answer_and_leaves_nothing_in_flight() -> None:
    core = service_core(OverlappedExecutor(1, 1, num_blocks=64), step_tokens=64, overlap=True)
    sink = Collect()
    for i in range(5):
        request = core.request(last_logprob(prompt(8, i)), sink)
        core.run_inline([request])
        assert sink.ends[request.id][0].output.logprobs[0] == pytest.approx(expected_logprob(prompt(8, i)))
    assert is_empty(core) and not core.steps
    core.close()


def test_closing_lands_the_steps_in_flight() -> None:
    for drain in (True, False):
        core = service_core(OverlappedExecutor(1, 1, num_blocks=256), step_tokens=64, overlap=True)
        sink, requests = decisions(core, 30)
        core.loop.wake()
        core.close(drain=drain)
        assert core.stopped.is_set() and len(sink.ends) == len(requests) and not core.steps


@pytest.mark.feature("H14")
def test_a_real_model_gives_the_same_bits_with_overlap_on_and_off() -> None:
    draw = np.random.default_rng(2)
    tasks = [Loglikelihood(draw.integers(10, 400, int(n)).tolist(), [7, 8]) for n in draw.integers(5, 90, 40)]
    greedy = SamplingParams(max_tokens=5, temperature=0, ignore_eos=True)
    tasks += [Generate(draw.integers(10, 400, 20).tolist(), greedy) for _ in range(4)]
    for i, stop in enumerate((["e"], [" a", "th"], [], ["o", "i"])):
        drawn = SamplingParams(max_tokens=24, temperature=1.1, top_p=0.95, seed=i, stop=stop, logprobs=2)
        tasks.append(Generate("Two boats lay at the quay while the rain fell on the roofs " * (i + 1), drawn))
    penalised = Generate("one more", SamplingParams(max_tokens=9, seed=3, presence_penalty=0.7, min_tokens=4))
    seen, told = {}, {}
    for overlap in (True, False):
        config = EngineConfig(deterministic=True, overlap=overlap, max_length=256, max_step_tokens=512)
        with Engine.from_pretrained(None, config=config) as engine:
            results = [*engine.run_many(tasks), engine.run(penalised)]
            seen[overlap] = [getattr(r, "token_logprobs", getattr(r, "token_ids", None)) for r in results]
            told[overlap] = [repr((r.text, r.logprobs, r.stats.finish_reason)) for r in results[40:]]
            assert (engine.stats()["discarded_rows"] > 0) == overlap
    assert told[True] == told[False] and sum("'stop'" in one for one in told[True]) > 1
    for one, other in zip(seen[True], seen[False]):
        assert np.array_equal(one, other)


@pytest.mark.feature("H13")
def test_the_watchdog_sees_a_step_that_hangs_behind_one_that_failed() -> None:
    class Device(toy.ToyExecutor):
        waits = 0
        over = threading.Event()

        def wait(self, handle: Any) -> StepResult:
            self.waits += 1
            if self.waits == 2:
                self.lose(handle)
                raise RuntimeError("the device is lost")
            if self.waits == 3:
                self.over.wait(2 * PATIENCE)
            return super().wait(handle)

    limits = iter(HANG_SECONDS)

    def sees_it() -> bool:
        device = Device(num_blocks=256)
        core = service_core(device, chunk=64, overlap=True, hang_seconds=next(limits))
        sink = Collect()
        for i in range(2):
            post(core, chat(prompt(9, i), 6), sink)
        thread = threading.Thread(target=lambda: [core.step() for _ in range(4)], daemon=True)
        thread.start()
        try:
            until(lambda: len(sink.ends) == 2)
            assert all("hangs" in str(error) for _, error in sink.ends.values()) and not core.healthy
            return core.stats.hangs == 1 and device.waits == 3
        finally:
            device.over.set()
            thread.join()
            device.over.clear()

    assert shown(sees_it, len(HANG_SECONDS))


@pytest.mark.feature("H13")
@pytest.mark.parametrize("faults", [[Fault("raise", at=1)], [Fault("raise", at=1), Fault("raise", "submit", at=2)]])
def test_a_step_behind_one_that_failed_is_neither_a_success_nor_a_failure_of_its_rows(faults: list[Fault]) -> None:
    core = service_core(FaultyExecutor(*faults, num_blocks=256), chunk=64, overlap=True)
    sink = Collect()
    chats = [post(core, chat(prompt(9, i), 9), sink) for i in range(2)]
    for _ in range(3):
        core.step()
    assert core.failures.in_a_row == core.stats.failed_steps == 1
    run_steps(core)
    check(sink, chats)
    assert core.failures.in_a_row == 0 and is_empty(core)


@pytest.mark.feature("H13")
def test_a_step_behind_one_that_failed_keeps_the_rows_that_do_not_depend_on_it() -> None:
    core = service_core(FaultyExecutor(Fault("raise", at=1), num_blocks=256), chunk=64, overlap=True)
    core.pacer.share = 1.0
    sink = Collect()
    chats = [post(core, chat(prompt(9, i), 9), sink) for i in range(2)]
    core.step()
    core.step()
    shot = post(core, last_logprob(prompt(12, 7)), sink)
    late = post(core, chat(prompt(9, 8), 9), sink)
    core.step()  # waits for the step that fails; theirs is behind it
    core.audit()
    assert shot.id in sink.ends and late.stats.replays == 0 and len(late.output) == 1
    assert [r.stats.replays for r in chats] == [1, 1] and not core.steps
    run_steps(core)
    check(sink, [*chats, shot, late])
    assert core.stats.failed_steps == 1 and is_empty(core)
