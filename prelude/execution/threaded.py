"""An executor whose steps run in a thread of its own, in order, so that the engine can plan the next one meanwhile.

    engine thread   plan n+1, pack ─ submit ─ wait n ─ postprocess n ─ plan n+2 ...
                                       └──▶ queue          ▲
    its own thread  ... run n ─────────────▶ run n+1 ──────┴──▶ ...

It saves the time of the host between two steps, as far as the interpreter lock is free then; it costs
the way from thread to thread, twice a step.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from prelude.errors import EngineClosed, ExecutorLost, starting_thread
from prelude.execution.executor import Executor, ExecutorLimits
from prelude.readouts.batch import I32, ForwardBatch, StepResult, readouts_of
from prelude.records import dataclass

if TYPE_CHECKING:
    from prelude.execution.host_blocks import HostBlocks


class _Job:
    """A step, or a copy of blocks. ``lock`` is held until it has run."""

    __slots__ = ("error", "lock", "result", "work")

    def __init__(self, work: Callable[[], StepResult | None]) -> None:
        self.work = work
        self.result: StepResult | None = None
        self.error: BaseException | None = None
        self.lock = threading.Lock()
        self.lock.acquire()

    def run(self) -> None:
        try:
            self.result = self.work()
        except BaseException as error:  # ``wait`` raises it
            self.error = error
        self.lock.release()

    def wait(self) -> StepResult | None:
        with self.lock:
            pass
        if self.error is not None:
            raise self.error
        return self.result


class ThreadedHostBlocks:
    """Copies run among the steps, in order. Each is waited for, and with it the step before it. If Ctrl-C ends the
    wait, the copy is made all the same, before all later ones."""

    def __init__(self, inner: HostBlocks, ask: Callable[[_Job], None]) -> None:
        self._inner = inner
        self._ask = ask

    @property
    def nbytes(self) -> int:
        return self._inner.nbytes

    def copy_out(self, blocks: I32, entries: I32) -> None:
        self._run(lambda: self._inner.copy_out(blocks, entries))

    def copy_in(self, entries: I32, blocks: I32) -> None:
        self._run(lambda: self._inner.copy_in(entries, blocks))

    def _run(self, copy: Callable[[], None]) -> None:
        job = _Job(copy)
        self._ask(job)
        job.wait()


@dataclass(frozen=True, slots=True)
class Pulse:
    """``call`` is called in the executor's thread after ``seconds`` without a step, from the beginning on."""

    seconds: float
    call: Callable[[], None]


class ThreadedExecutor:
    """``inner`` computes in its ``submit``, or in its ``wait``; either runs in this executor's thread."""

    def __init__(self, inner: Executor, pulse: Pulse | None = None) -> None:
        self.inner = inner
        self._steps: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pulse = pulse
        self._closed = False
        if pulse is not None:
            self._start()

    @property
    def lost(self) -> ExecutorLost | None:
        """The error after which ``inner`` runs no step any more."""
        found: ExecutorLost | None = getattr(self.inner, "lost", None)
        return found

    def limits(self) -> ExecutorLimits:
        return self.inner.limits()

    @property
    def host_blocks(self) -> Callable[[int], ThreadedHostBlocks] | None:
        """Return ``inner``'s; None if it has none."""
        make = getattr(self.inner, "host_blocks", None)
        return None if make is None else lambda entries: ThreadedHostBlocks(make(entries), self._ask)

    def submit(self, batch: ForwardBatch) -> _Job:
        readouts_of(batch)  # of nothing but a batch
        inner = self.inner
        step = _Job(lambda: inner.wait(inner.submit(batch)))
        self._ask(step)
        return step

    def _ask(self, job: _Job) -> None:
        if self._closed:
            raise EngineClosed("the executor is closed")
        if self._thread is None:
            self._start()
        self._steps.put(job)

    def _start(self) -> None:
        thread = threading.Thread(
            target=_run, args=(self.inner, self._steps, self._pulse), name="prelude-executor", daemon=True
        )
        with starting_thread():
            thread.start()
        self._thread = thread
        weakref.finalize(self, self._steps.put, None).atexit = False  # dropped, not closed: the thread ends too

    def wait(self, handle: _Job) -> StepResult:
        if not isinstance(handle, _Job):
            raise TypeError("this handle did not come from submit")
        return handle.wait()  # type: ignore[return-value]

    def close(self) -> None:
        """Refuses further steps; submitted steps run first."""
        self._closed = True
        if self._thread is not None:
            self._steps.put(None)
            self._thread.join()
        self.inner.close()


def _run(inner: Executor, steps: SimpleQueue[_Job | None], pulse: Pulse | None) -> None:
    """The function of the thread. It has no reference to the executor, which can therefore be collected."""
    while (step := steps.get() if pulse is None else _next(steps, pulse)) is not None:
        step.run()
        del step  # a batch and its results are not kept until the next one comes
    if pulse is not None:
        inner.close()  # of an engine that was dropped and not closed: other processes wait for the end


def _next(steps: SimpleQueue[_Job | None], pulse: Pulse) -> _Job | None:
    while True:
        try:
            return steps.get(timeout=pulse.seconds)
        except Empty:
            pulse.call()
