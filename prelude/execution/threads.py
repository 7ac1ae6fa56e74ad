"""How many of torch's threads a step uses: as many as have a processor to themselves.

Threads that share the work of an operation wait for each other at its end. Where other processes keep one of them
from running, the others wait for as long as the system's scheduler takes, at every operation: two threads are then
slower than one, and by far. So while steps run, the time that each of their threads waited for a processor is read
from Linux (``/proc/self/task/ID/schedstat``, which counts it):

    a thread waited for more than ``_SHARED`` of a window  ->  the next operations run without so many threads; where
                                                               all threads had settled, not before ``_SURE`` windows
    none waited for the first of ``_PAUSE``                ->  as many run as the last attempt with all threads left
    nor is that attempt less than ``pause`` seconds ago    ->  all threads are tried again; each time that a thread
                                                               waits before ``_SETTLED`` windows of all threads
                                                               without waiting, ``pause`` is twice as long

Waiting with fewer than all threads leaves ``pause`` as it is: it says nothing of whether all would run.

After a pause the system may wake two threads of a step on one processor, though another one is idle, and move one of
them some milliseconds later (8 to 22 were measured). So a step after a long pause wakes its other threads while they
may not run on its own processor (``places.hpp``). A moment that happens all the same is no other process: hence
``_SURE`` windows, one after the other.

The count never passes torch's own (``torch.set_num_threads``, ``OMP_NUM_THREADS``), the processors that the process
may run on, nor the quota of its control groups. Where the system counts no waiting, those bounds are all there is.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

from prelude.models.kernels import ThreadPlaces, thread_ids, torch_symbol
from prelude.models.memory import control_groups, number_in, text_of

_WINDOW = 0.02  # seconds over which waiting is summed up
_SHARED = 0.25  # of a window; a thread that wakes for a moment, as a caller's own does, takes far less
_PAUSE = (0.25, 30.0)  # seconds until all threads are tried again: at first, and at most

_SURE = 3  # windows; two of them may see one such moment, since it begins within a window
_SETTLED = 10  # windows; a process that works for a moment each second does not keep steps from their threads
_LONG = 0.015  # seconds of a pause; behind shorter ones the system wakes threads on processors of their own
_STALE = 1.0  # seconds after which waiting that was read before a step says nothing of it
_ALL = 1 << 30

Waited = Callable[[int], list[float]]


def processors(root: str | Path = "/") -> int:
    """Processors that this process may use: its affinity, and the quotas of its control groups, rounded up."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for group, second in control_groups(Path(root), "cpu"):
        if second:
            quota, _, period = text_of(group / "cpu.max").strip().partition(" ")
        else:
            quota, period = (str(number_in(group / f"cpu.cfs_{name}_us") or "") for name in ("quota", "period"))
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            count = min(count, math.ceil(int(quota) / int(period)))
    return max(1, count)


_omp_threads = torch_symbol("omp_set_num_threads")
_mkl_threads = torch_symbol("MKL_Set_Num_Threads_Local")
_omp_pause = torch_symbol("omp_pause_resource_all")
_SOFT = 1  # keeps OpenMP's settings


class ThreadCount:
    """The thread count of the calling thread's operations: held, changed for a while, and given back."""

    def __init__(self) -> None:
        self._given = 0  # torch's thread count when it was held
        self._mkl: int | None = None  # MKL's local count then, where it was changed since

    def hold(self) -> int:
        self._given = torch.get_num_threads()
        return self._given

    def use(self, count: int) -> None:
        if _omp_threads is None or torch.get_num_threads() == count:
            return
        _omp_threads(count)
        if _mkl_threads is not None:
            before = _mkl_threads(count)
            if self._mkl is None:
                self._mkl = before

    def give_back(self) -> None:
        self.use(self._given)
        if self._mkl is not None:
            _mkl_threads(self._mkl)
            self._mkl = None


class Own(threading.local):
    """The values of one thread that runs steps: its own step, and the threads that work for it."""

    def __init__(self) -> None:
        self.most = 0  # the most threads of the step
        self.count = ThreadCount()
        self.began = 0.0  # the step, or the last look inside it
        self.busy = 0.0  # seconds of steps since ``before`` was read
        self.read = -math.inf  # when that was
        self.before: list[float] = []
        self.team = Team()


class Team:
    """The threads that share the operations of the thread that made this, by the files that count their waiting, and
    the processors that they may run on."""

    def __init__(self) -> None:
        self.size = 0
        self._files: list[int] = []
        self.others = ThreadPlaces(())  # all but the thread that made this

    def waited(self, size: int) -> list[float]:
        """Seconds that each of the ``size`` threads has waited for a processor, ever; empty where that is not
        counted."""
        if self.size != size:
            self._open(size)
        try:
            return [int(os.pread(file, 64, 0).split()[1]) / 1e9 for file in self._files]
        except (OSError, IndexError, ValueError):  # OpenMP has replaced a thread
            self.close()
            return []

    def _open(self, size: int) -> None:
        self.close()
        self.size = size
        threads = thread_ids(size)
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
    """Holds the thread count for the length of a step, in the step's own thread alone, and gives it back as it was:
    ``torch.set_num_threads`` would change it for threads that begin meanwhile. Its measurements belong to the
    process: every engine uses the same processors."""

    def __init__(self, waited: Waited | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.allowed = _ALL
        self._own = Own()
        self._waited = waited or (lambda size: self._own.team.waited(size))
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
        self._own = Own()  # the files of a forked child are its parent's

    def __enter__(self) -> None:
        own = self._own
        own.most = min(own.count.hold(), self._bound)
        now = self._clock()
        if now - own.read > _STALE:
            own.read, own.busy, own.before = now, 0.0, []
        if now - own.began > _LONG:
            own.team.others.keep_off()
        own.began = now
        own.count.use(min(own.most, self.allowed))

    def __exit__(self, *_: object) -> None:
        try:
            self.look()
        finally:
            self._own.team.others.give_back()
            self._own.count.give_back()

    def look(self) -> None:
        """Between two operations of a step. A look at the clock, but for once in a window."""
        own, now = self._own, self._clock()
        own.busy += now - own.began
        own.began = now
        if own.before and own.busy < _WINDOW:
            return
        size = torch.get_num_threads()
        waits = self._waited(size)
        if len(waits) == len(own.before):
            held_up = sum(after - before > _SHARED * own.busy for before, after in zip(own.before, waits))
            self._learn(held_up, size, now)
            own.count.use(min(own.most, self.allowed))
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


def _before_fork() -> None:
    """The thread that forks ends its OpenMP threads; its next operation makes new ones. libgomp does not notice a
    fork: in the child that thread would wait for threads that are not there, for ever."""
    if _omp_pause is not None:
        _omp_pause(_SOFT)


def _in_child() -> None:
    if _omp_pause is None:  # libgomp before GCC 9
        ThreadCount().use(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_in_child)
