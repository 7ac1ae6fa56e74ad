"""Work of an executor for itself while no request waits, such as recording graphs. Most executors have none."""

from __future__ import annotations

from collections.abc import Callable

from prelude.execution.executor import Executor
from prelude.runtime.sinks import log_failure


class IdleWork:
    """An executor may have ``wants_idle``, and ``idle(due)``, which does one piece, or leaves it as soon as ``due()``
    says that a step is, and says whether more is left. Nothing is done once the engine is closed."""

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
