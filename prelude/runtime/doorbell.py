"""Doorbell: wakes one sleeping thread. Ringing takes no lock of ours and may happen inside a finaliser."""

from __future__ import annotations

from queue import Empty, SimpleQueue


class Doorbell:
    """``ring`` after the work is in its place; ``wait`` returns once for any number of rings before it."""

    def __init__(self) -> None:
        self._rung = False
        self._queue: SimpleQueue[None] = SimpleQueue()

    def ring(self) -> None:
        if not self._rung:  # two threads at once may both see False: the thread wakes twice, which is harmless
            self._rung = True
            self._queue.put(None)

    def wait(self, timeout: float | None = None) -> bool:
        try:
            self._queue.get(timeout=timeout)
        except Empty:
            return False
        self._rung = False  # before the work is looked at: what comes from here on rings again
        return True
