"""How many threads a step uses: as many as have a processor to themselves.

Threads that share the work of an operation wait for each other at its end. If other processes keep one of them
from running, the others wait for as long as the system's scheduler takes, at every operation: two threads are then
slower than one, and by far. So while steps run, the time that each of their threads waited for a processor is read
from Linux (``/proc/self/task/ID/schedstat``, which counts it):

    a thread waited for more than ``_SHARED`` of a window  ->  the next operations run without so many threads; if
                                                               all threads had settled, not before ``_SURE`` windows
    none waited for the first of ``_PAUSE``                ->  as many run as the last attempt with all threads left
    nor is that attempt less than ``pause`` seconds ago    ->  all threads are tried again; each time that a thread
                                                               waits before ``_SETTLED`` windows of all threads
                                                               without waiting, ``pause`` is twice as long

Waiting with fewer than all threads leaves ``pause`` as it is: it says nothing of whether all would run.

After a pause the system may wake two threads of a step on one processor, though another one is idle, and move one of
them some milliseconds later. So a step wakes threads that sleep while they may not run on its own processor
(``places.hpp``). A moment that happens all the same is no other process: hence
``_SURE`` windows, one after the other.

The count never passes the engine's own (``EngineConfig(threads=)``, ``OMP_NUM_THREADS``), the processors that the
process may run on, nor the quota of its control groups. If the system counts no waiting, those bounds are all there
is.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prelude._native import cpu
from prelude._native.cpu import ThreadPlaces
from prelude.models.memory import processors

_WINDOW = 0.02  # seconds over which waiting is summed up
_SHARED = 0.25  # of a window; a thread that wakes for a moment, as a caller's own does, takes far less
_PAUSE = (0.25, 30.0)  # seconds until all threads are tried again: at first, and at most

_SURE = 3  # windows; two of them may see one such moment, since it begins within a window
_SETTLED = 10  # windows; a process that works for a moment each second does not keep steps from their threads
_LONG = 0.0001  # seconds of a pause; behind shorter ones the threads do not sleep yet (kPoll in thread_pool.cpp)
_STALE = 1.0  # seconds after which waiting that was read before a step says nothing of it
_ALL = 1 << 30

Waited = Callable[[int], list[float]]


@contextmanager
def given(threads: int | None) -> Iterator[None]:
    """Inside the block the kernels of the calling thread run in so many threads; ``None`` changes nothing."""
    before = cpu.give_threads(0)
    cpu.give_threads(threads or before)
    try:
        yield
    finally:
        cpu.give_threads(before)


class Own:
    """The values of one thread that runs steps: its own step, and the threads that work for it."""

    def __init__(self) -> None:
        self.most = 0  # the most threads of the step
        self.given = 0  # the thread's own number of threads outside of the step
        self.began = 0.0  # the step, or the last look inside it
        self.busy = 0.0  # seconds of steps since ``before`` was read
        self.read = -math.inf  # when that was
        self.before: list[float] = []
        self.team = Team()


class Local(threading.local):
    """``own``: of the thread that reads it."""

    def __init__(self) -> None:
        self.own = Own()


class Team:
    """The threads that share the operations of the thread that made this, by the files that count their waiting, and
    the processors that they may run on."""

    def __init__(self) -> None:
        self.size = 0
        self._files: list[int] = []
        self.others = ThreadPlaces(())  # all but the thread that made this

    def waited(self, size: int) -> list[float]:
        """Return seconds that each of the ``size`` threads has waited for a processor, ever; empty if that is not
        counted."""
        self.open(size)
        try:
            return [int(os.pread(file, 64, 0).split()[1]) / 1e9 for file in self._files[:size]]
        except (OSError, IndexError, ValueError):  # a system that counts otherwise
            self.close()
            return []

    def open(self, size: int) -> None:
        """So many threads are known from here on. A step of fewer leaves the others known."""
        if self.size >= size:
            return
        self.close()
        self.size = size
        threads = cpu.thread_ids(size)
        self.others = ThreadPlaces([thread for thread in threads if thread != threading.get_native_id()])
        for thread in threads:
            try:
                self._files.append(os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY | os.O_CLOEXEC))
            except OSError:  # a system that does not count
                return

    def close(self, close: Callable[[int], None] = os.close) -> None:
        while self._files:
            close(self._files.pop())
        self.others.give_back()
        self.size = 0

    __del__ = close


class Governor:
    """Holds the thread count for the length of a step, in the step's own thread alone, and gives it back as it was.
    Its measurements belong to the process: every engine uses the same processors."""

    def __init__(self, waited: Waited | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.allowed = _ALL
        self._local = Local()
        self._waited = waited or (lambda size: self._local.own.team.waited(size))
        self._clock = clock
        self._bound = processors()
        self._pause = _PAUSE[0]  # from an attempt with all threads that failed to the next one
        self._free = _SETTLED  # windows of all threads without waiting since they were tried
        self._held = 0  # windows in which one of all threads waited, up to now without one between them
        self._left = _ALL  # threads that did not wait when that attempt failed
        self._retry = 0.0  # when all are tried next
        self._quiet = 0.0  # when the last waiting was long enough ago to run more threads
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._local = Local()  # the files of a forked child are its parent's

    def of(self, threads: int | None) -> Governor:
        """Take the threads of an engine's step; ``None``: those of the calling thread's kernels."""
        self._local.own.most = min(threads or cpu.threads(), self._bound)
        return self

    def __enter__(self) -> None:
        own = self._local.own
        now = self._clock()
        if now - own.read > _STALE:
            own.read, own.busy, own.before = now, 0.0, []
        if now - own.began > _LONG:
            own.team.open(own.most)
            own.team.others.keep_off()
        own.began = now
        cpu.in_step(True)
        own.given = cpu.give_threads(min(own.most, self.allowed))

    def __exit__(self, *_: object) -> None:
        try:
            self.look()
        finally:
            cpu.in_step(False)
            cpu.give_threads(self._local.own.given)

    def look(self) -> None:
        """Between two operations of a step. A look at the clock, but for once in a window."""
        own, now = self._local.own, self._clock()
        own.busy += now - own.began
        own.team.others.give_back()
        own.began = now
        if own.before and own.busy < _WINDOW:
            return
        size = cpu.threads()
        waits = self._waited(size)
        if len(waits) == len(own.before):
            held_up = sum(after - before > _SHARED * own.busy for before, after in zip(own.before, waits))
            self._learn(held_up, size, now)
            cpu.give_threads(min(own.most, self.allowed))
        own.before, own.busy, own.read = waits, 0.0, now

    def _learn(self, held_up: int, size: int, now: float) -> None:
        if held_up:
            self._quiet = now + _PAUSE[0]
            if size == 1:
                return
            self._held += 1
            if self.allowed == _ALL and self._free >= _SETTLED and self._held < _SURE:
                return
            left = max(1, size - held_up)
            if self.allowed == _ALL:
                early = self._free < _SETTLED
                self._pause = min(2 * self._pause, _PAUSE[1]) if early else _PAUSE[0]
                self._left, self._retry = left, now + self._pause
            self.allowed = left
            self._held = 0
        elif self.allowed == _ALL:
            self._free += 1
            self._held = 0
        elif size == self.allowed and now >= self._quiet:
            if now >= self._retry:
                self.allowed, self._free = _ALL, 0
            else:
                self.allowed = self._left


GOVERNOR = Governor()
