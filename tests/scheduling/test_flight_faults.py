"""Faults around a step in flight: behind a failed one, and while one that could not be submitted waits."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest

from prelude.execution.threaded import ThreadedExecutor
from prelude.readouts.batch import StepResult
from tests import toy
from tests.engine.test_faults import HANG_SECONDS
from tests.patience import PATIENCE, shown, until
from tests.scheduling.cores import Collect, chat, last_logprob, post, prompt, text
from tests.service import is_empty, run_steps, service_core


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


def test_ctrl_c_while_a_step_that_could_not_be_submitted_waits_for_the_one_before() -> None:
    """Its rows go back into their queues with those in flight, and its promises to the trie are broken."""

    class Device(toy.ToyExecutor):
        armed = failed = False

        def submit(self, batch: Any) -> Any:
            if self.armed and not self.failed:
                self.failed = True
                raise MemoryError("injected")
            return super().submit(batch)

        def wait(self, handle: Any) -> StepResult:
            if self.failed and self.armed:
                self.armed = False
                raise KeyboardInterrupt
            return super().wait(handle)

    device = Device(num_blocks=256)
    core = service_core(device, chunk=64, overlap=True, fold=False)
    sink = Collect()
    rubric = prompt(24, 7)
    talk = post(core, chat(prompt(9, 1), 8), sink)
    core.step()
    core.step()
    scores = [post(core, last_logprob(np.concatenate([rubric, prompt(5, i)])), sink) for i in range(2)]
    late = post(core, chat(np.concatenate([rubric, prompt(4, 9)]), 3), sink)
    device.armed = True
    with pytest.raises(KeyboardInterrupt):
        run_steps(core)
    assert device.failed
    core.audit()
    run_steps(core)
    assert text(sink, talk) == toy.generate(prompt(9, 1).tolist(), 8)
    assert text(sink, late) == toy.generate([*rubric, *prompt(4, 9)], 3)
    assert all(sink.ends[score.id][1] is None for score in scores)
    assert core.healthy and is_empty(core)


def test_an_executor_beside_that_is_dropped_takes_its_thread_and_the_model_along() -> None:
    inner = toy.ToyExecutor()
    core = service_core(inner, overlap=True)
    core.stepper.executor = ThreadedExecutor(inner)
    sink = Collect()
    post(core, last_logprob(prompt(9, 1)), sink)
    run_steps(core)
    assert len(sink.ends) == 1
    thread, known = core.executor._thread, weakref.ref(inner)
    assert thread is not None and thread.is_alive()
    del core, inner, sink
    gc.collect()
    thread.join(PATIENCE)
    gc.collect()
    assert not thread.is_alive() and known() is None
