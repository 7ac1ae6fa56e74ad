"""StepLoop: the step lock, and the engine thread that takes steps while there is work.

Queues, pool and requests are touched only by the thread that holds the step lock. Callers on any thread append to the
inbox and wake the engine thread. A synchronous caller that finds the engine idle takes the lock and steps itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from prelude._native.core import StepLock, WakeEvent
from prelude.errors import ExecutionError, starting_thread
from prelude.execution.executor import Executor
from prelude.runtime.delivery import log_failure
from prelude.runtime.stepper import Stepper


class IdleWork:
    """Work of an executor between steps, such as recording graphs. An executor may have ``wants_idle``, and
    ``idle(due)``, which does one piece, or leaves it as soon as ``due()`` says that a step is, and says whether more
    is left. Nothing is done once the engine is closed."""

    def __init__(self, executor: Executor, due: Callable[[], bool], closed: Callable[[], bool]) -> None:
        self._executor = executor
        self._due = due
        self._closed = closed
        self._idle: Callable[[Callable[[], bool]], bool] | None = getattr(executor, "idle", None)
        self.works = self._idle is not None

    @property
    def wanted(self) -> bool:
        return self._idle is not None and not self._closed() and bool(self._executor.wants_idle)  # type: ignore[attr-defined]

    def do(self) -> bool:
        """Do one piece; the caller holds the step lock. Return whether more is left."""
        if self._idle is None or self._closed():
            return False
        try:
            return self._idle(self._due)
        except Exception as error:  # no request's: the executor goes on without it
            self._idle = None
            log_failure("the executor's own work between steps failed", error)
            return False


_NO_MEMORY_SECONDS = 0.01  # before the engine thread tries again


class StepLoop:
    """``close_when_idle`` is asked after the last step there is work for; True ends the thread."""

    def __init__(self, stepper: Stepper, lock: StepLock, close_when_idle: Callable[[], bool]) -> None:
        self.lock = lock
        self.thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._stepper = stepper
        self._close_when_idle = close_when_idle
        self.idle = IdleWork(stepper.executor, lambda: stepper.has_work, lambda: stepper.closed)
        self._wake = WakeEvent()

    def wake(self) -> None:
        """Starts the engine thread if there is none, and wakes it."""
        self.start()
        self._wake.set()

    def wake_to_end(self) -> None:
        """As ``wake``, of a closed engine. If the thread cannot be started, the caller takes the last steps."""
        try:
            self.wake()
        except ExecutionError:
            if self.lock.try_acquire():
                self._step_until_idle()

    def wake_if_started(self) -> None:
        """Wake the thread. Takes no lock: a finaliser may call it."""
        self._wake.set()

    def start(self) -> None:
        """``ExecutionError`` or ``MemoryError`` if the engine thread cannot be started; the next call tries again."""
        if self.thread is not None:
            return
        with self._starting:
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="prelude-engine", daemon=True)
                try:
                    with starting_thread():
                        self.thread.start()
                except BaseException:
                    self.thread = None
                    raise

    def _run(self) -> None:
        while True:
            try:
                self._wake.wait()
                if not self.lock.try_acquire_or_request():
                    continue  # the thread that holds it wakes this one when it releases it
                if self._step_until_idle():
                    return
            except MemoryError:  # not even enough to tell the callers that the engine failed: the next step goes on
                self._wake.set()
                time.sleep(_NO_MEMORY_SECONDS)

    def _step_until_idle(self) -> bool:
        """Step until nothing is left to do, and release the lock. Return whether the engine is closed then."""
        try:
            stepper = self._stepper
            while (stepper.step() and stepper.has_work) or self._idle_work():
                pass
            return self._close_when_idle()
        finally:
            self.lock.release()

    def _idle_work(self) -> bool:
        """Do a piece of the executor's own work if no step is due. Return whether to look for both again."""
        return self.idle.wanted and (self._stepper.has_work or self.idle.do() or self._stepper.has_work)
