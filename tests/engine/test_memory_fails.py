"""An allocation of Python's that fails, wherever it is: the call ends, and the engine goes on or is closed."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from prelude.errors import ExecutionError
from prelude.readouts.batch import OneShotBatch, StepResult
from tests import no_memory, toy
from tests.patience import PATIENCE
from tests.scheduling.cores import Collect, chat, last_logprob, post, prompt
from tests.service import service_core

pytest.importorskip("_testcapi", reason="this Python was built without its test module")


@pytest.mark.parametrize(("verb", "numbers"), [("complete", range(3, 380, 13)), ("run_many", range(5, 600, 31))])
def test_a_call_ends_and_the_next_is_served_or_the_engine_is_closed(
    verb: str, numbers: range, checkpoint: Path
) -> None:
    """``python -m tests.no_memory`` takes every number."""
    report = no_memory.run(checkpoint, verb, list(numbers))
    assert not report.faults, "\n".join(report.faults)
    assert report.ends["MemoryError"] > 3, report  # they did fail


def test_a_dozen_failures_in_a_row(checkpoint: Path) -> None:
    report = no_memory.run(checkpoint, "complete", list(range(100, 380, 56)), width=12)
    assert not report.faults, "\n".join(report.faults)


class Forgetful(Collect):
    """A sink that finds no memory the first ``times`` times it is told an end."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def deliver(self, *end: object) -> None:
        if self.times:
            self.times -= 1
            raise MemoryError("injected")
        super().deliver(*end)  # type: ignore[arg-type]


@pytest.mark.fault(59)
@pytest.mark.parametrize("times", [1, 2, 3, 5])
def test_an_end_that_could_not_be_told_is_told_later(times: int) -> None:
    core = service_core()
    sink = Forgetful(times)
    requests = [post(core, chat(prompt(6, i), 3), sink) for i in range(3)]
    for _ in range(50):
        with suppress(MemoryError):
            core.step()
    assert not core.live and set(sink.ends) == {request.id for request in requests}
    assert all(outcome is not None or isinstance(error, ExecutionError) for outcome, error in sink.ends.values())
    assert core.closed == (times > 1), "told of the failure once more, a sink that fails again is the engine's error"


class Blank(toy.ToyExecutor):
    """Answers without work: numpy's indexing by arrays ends the process where it finds no memory."""

    def wait(self, handle: OneShotBatch) -> StepResult:
        return StepResult((handle.readout.blank(),), (np.zeros(0, np.int32),), 1e-6)


@pytest.mark.fault(59)
def test_an_end_is_told_whichever_allocation_of_its_step_failed() -> None:
    """The counter is an integer that takes memory, as it is from the 257th end on: a caller waited for ever."""
    import _testcapi

    closed, core = 0, service_core(Blank())
    for n in range(400):
        if core.closed:
            closed, core = closed + 1, service_core(Blank())
        core.stats.finished, sink = 1 << 40, Collect()
        request = post(core, last_logprob(prompt(6, n % 7)), sink)
        _testcapi.set_nomemory(n, n + 1)
        try:
            core.step()
        except MemoryError:
            pass
        finally:
            _testcapi.remove_mem_hooks()
        while core.step():
            pass
        assert request.id in sink.ends and not core.live, n
    assert closed > 10, "allocations of the engine's own failed too"


def test_callers_of_the_engines_thread_are_told_in_spite_of_a_lack_of_memory() -> None:
    """Callers that wait are told, though the thread that has to tell them found no memory three times."""
    core = service_core()
    sink = Forgetful(3)
    told = threading.Event()
    deliver = sink.deliver
    sink.deliver = lambda *end: (deliver(*end), told.set())  # type: ignore[method-assign,assignment,func-returns-value]
    core.submit(core.request(chat(prompt(6, 1), 3), sink))
    assert told.wait(PATIENCE)
    core.close()
