"""EngineCore: the engine's doors and its thread.

One writer at a time: queues, pool and requests are touched only by the holder of the baton. Callers on any
thread append to the inbox and wake the engine thread. A synchronous caller who finds the engine idle takes the
baton and runs the step itself: the same rule, the same code, no hop between threads.
"""

from __future__ import annotations

import atexit
import logging
import math
import threading
import time
from typing import Any

from prelude._native.core import all_fit, any_lives, begin_requests
from prelude.admission.classes import ExecutionClass
from prelude.admission.prepared import Outcome, Prepared
from prelude.errors import DeadlineExceeded, ExecutionError, RequestTooLarge
from prelude.options import NO_OPTIONS, RequestOptions
from prelude.runtime.forks import alive
from prelude.runtime.inbox import Places
from prelude.runtime.stats import EngineStats
from prelude.runtime.stepper import LoopFlush, Stepper
from prelude.scheduling.request import IDS, Request, Sink

log = logging.getLogger("prelude.engine")

_CLOSE_LOOKS = 0.05
_EXIT_SECONDS = 5.0  # how long the interpreter's exit waits for a step under way
_NO_MEMORY_SECONDS = 0.01  # before the engine thread tries again
_START = threading.Lock()


class EngineCore(Stepper):
    """The scheduler and its executor, without text. ``submit``, ``cancel``, ``run_inline`` and ``close`` may be
    called from any thread."""

    @property
    def healthy(self) -> bool:
        return self.failures_in_a_row < self.unhealthy_after and self.hanging == 0.0

    @property
    def hanging(self) -> float:
        """Seconds that the step under way has taken, where that is past the watchdog's limit; else 0."""
        began = self.step_began
        seconds = time.monotonic() - began if began else 0.0
        return seconds if self._watchdog is not None and seconds > self._watchdog.limit else 0.0

    @property
    def closed(self) -> bool:
        return self.inbox.closed

    # -------------------------------------------------------------- any thread

    def reserve(self, count: int) -> Places:
        """Places in the queue, before anything is tokenised; use it in a ``with`` block around ``request`` and
        ``submit_many``."""
        if self.forked:
            self.check_process()
        places = self.inbox.reserve(count)
        if places.left < count and self.events:
            self.events.emit("rejected", reason="queued_requests", count=count - places.left)
        return places

    def request(
        self,
        prepared: Prepared,
        sink: Sink,
        options: RequestOptions = NO_OPTIONS,
        places: Places | None = None,
        expires: float | None = None,
    ) -> Request:
        """``requests`` of one, with a place of its own where none is given; raises what was wrong with it."""
        moment = options.expires() if expires is None else expires
        if places is not None:
            [found] = self.requests([prepared], sink, options, places, moment)
        else:
            with self.inbox.reserve(1) as own:
                [found] = self.requests([prepared], sink, options, own, moment)
                own.posted()
        if isinstance(found, Exception):
            raise found
        return found

    def requests(
        self,
        prepared: list[Prepared],
        sink: Sink,
        options: RequestOptions,
        places: Places,
        expires: float,
        call: object = None,
        outbox: object = None,
    ) -> list[Request | Exception]:
        """Requests that the same was said of, each checked against everything that could keep it from ever being
        planned, or the error of one that was refused. They hold nothing but their ``places``. ``expires``: the moment
        of their deadline, on the monotonic clock."""
        self.check_process()
        now = time.perf_counter()
        found = begin_requests(
            Request,
            prepared,
            sink,
            options,
            self._classes,
            IDS,
            self._ended,
            call,
            outbox,
            expires,
            now,
        )
        in_time = expires == math.inf or self.clock() < expires
        if in_time and all_fit(found, ExecutionClass.ONESHOT, self._most_oneshot) and places.take_all(found):
            return list(found)
        return [self._place(request, places, in_time) for request in found]

    def _place(self, request: Request, places: Places, in_time: bool) -> Request | Exception:
        try:
            self._check_fits(request)
            if not in_time:
                self.inbox.refused("deadline")
                self.events.emit("rejected", request.options.request_id, reason="deadline", count=1)
                raise DeadlineExceeded(
                    f"the deadline of {request.options.deadline:g} s passed before the request was queued"
                )
            places.take(request)
        except Exception as error:
            return error
        return request

    @property
    def _classes(self) -> tuple[ExecutionClass, ExecutionClass]:
        """Of requests for at most one token, and for more."""
        if self.force_class is not None:
            return self.force_class, self.force_class
        return ExecutionClass.ONESHOT, ExecutionClass.DECODE

    @property
    def _most_oneshot(self) -> int:
        """Tokens that a OneShot request may have: a step's, beside running rows."""
        return self.budgets.step_tokens - self.budgets.running

    def submit(self, request: Request) -> None:
        """Puts a request in the inbox and wakes the engine thread."""
        self.submit_many([request])

    def submit_many(self, requests: list[Request], places: Places | None = None) -> None:
        """All in one planning step, as far as the budgets go: they arrive together."""
        self._post(requests, places)
        self._wake_thread()

    def _post(self, requests: list[Request], places: Places | None = None) -> None:
        self.inbox.enter(requests, self.live)
        if places is not None:
            places.posted()
        self.events.emit_accepted(requests)

    def cancel(self, request: Request) -> None:
        """Ends a request that nobody waits for any more, at the next step's begin. In any state, any number of
        times; one that has ended is left alone."""
        request.cancelled = True
        if not self.forked and request.id in self.live:
            self._cancels.append(request)
            self._wake.ring()  # a request without an engine thread is stepped by its own caller

    def abandon(self, request: Request) -> None:
        """``cancel`` under a name that says it may be called by a finaliser: it takes no lock."""
        self.cancel(request)

    def let_go(self) -> None:
        """Nothing can be submitted any more (the engine was garbage-collected): what is under way ends, then the
        threads do. Takes no lock."""
        if not self.forked:
            self.inbox.close()
            self._wake.ring()
            if self._thread is None and self._watchdog is not None:  # else the engine thread stops it when it ends
                self._watchdog.stop()

    def run_inline(self, requests: list[Request], places: Places | None = None) -> None:
        """The direct path: on an idle engine the caller runs the steps itself, else it waits like everybody."""
        if not self._baton.take():
            self.check_may_wait()
            self.submit_many(requests, places)
            return
        try:
            self._post(requests, places)
            while self.step() and any_lives(self.live, requests):
                pass
        finally:
            wanted, inbox = self._baton.release(), self.inbox
            left = not inbox.empty or not self.queues.empty or self._flights or self._broken is not None
            if wanted or left or inbox.closed:
                self._wake_thread()  # others', or left by an interrupt

    def check_may_wait(self) -> None:
        """``ExecutionError`` where this thread is in the middle of a step: it would wait for itself."""
        if self._baton.mine:
            raise ExecutionError("an event listener or a sink must not wait for the engine that calls it")

    def _wake_thread(self) -> None:
        if self._thread is None:
            self._start_thread()
        self._wake.ring()

    def _check_fits(self, request: Request) -> None:
        tree = request.prepared.tree
        most = self._most_oneshot
        if request.execution_class is ExecutionClass.ONESHOT and tree.num_tokens > most:
            raise RequestTooLarge(
                f"the request has {tree.num_tokens} tokens with all its branches, a step computes at most {most} "
                "beside running rows; ask fewer questions at a time or raise max_step_tokens"
            )
        if request.execution_class is ExecutionClass.DECODE:
            if self.limits.slot_bytes and not self.pool.num_slots:
                raise RequestTooLarge(
                    "a request for more than one token takes a recurrent slot, the executor has none; ask for one "
                    "token (max_tokens=1), or give it room for states"
                )
            blocks = -(-(request.max_device_len - 1) // self.pool.block_size)  # the last token is never written
            if blocks > self.pool.num_blocks:
                raise RequestTooLarge(
                    f"{request.max_device_len} tokens (prompt and max_tokens) need {blocks} KV blocks, the pool has "
                    f"{self.pool.num_blocks}; lower max_tokens or raise kv_blocks"
                )

    # -------------------------------------------------------------- the engine thread

    def _start_thread(self) -> None:
        with _START:
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="prelude-engine", daemon=True)
                try:
                    self._thread.start()
                except BaseException:  # no memory for a thread: the next call tries again
                    self._thread = None
                    raise

    def _loop(self) -> None:
        while True:
            try:
                self._wake.wait()
                if not self._baton.take_or_want():
                    continue  # the thread that has it rings when it is done
                if self._run_down():
                    return
            except MemoryError:  # not even enough to tell those who wait: `step` goes on where it stopped
                self._wake.ring()
                time.sleep(_NO_MEMORY_SECONDS)

    def _run_down(self) -> bool:
        """Steps until nothing is left to do, and gives the baton back. Whether the engine is closed then."""
        try:
            while self.step() and self._more():
                pass
            if self.closed and not self.live:
                self._finish_close()
                return True
            return False
        finally:
            self._baton.release()

    def _more(self) -> bool:
        """Whether another step has anything to do. Looked at before it is begun: whoever was told of the last one's
        ends waits for the interpreter's lock meanwhile."""
        return bool(
            self._flights
            or self._cancels
            or self._expiring
            or self._abort
            or self._broken is not None
            or not self.inbox.empty
            or not self.queues.empty
        )

    def _finish_close(self) -> None:
        if self._watchdog is not None:
            self._watchdog.stop()
        try:
            self.executor.close()
        finally:
            self.events.emit("closed")
            self._closed.set()

    def close(self, *, drain: bool = True, timeout: float = math.inf) -> None:
        """Stops taking requests; waits for what was taken (``drain``) or fails it with ``EngineClosed``. Any number
        of times, from any thread; a later ``drain=False`` cuts an earlier draining short. Gives up waiting for a step
        that hangs, or after ``timeout`` seconds: the engine thread is a daemon. In a forked child it does nothing."""
        if self.forked or self._closed.is_set():
            return
        self._abort = self._abort or not drain
        self.inbox.close()
        self._wake_thread()
        if self._baton.mine or threading.current_thread() is self._thread:
            return  # called back from a step: the loop closes when the step is over
        began = time.monotonic()
        while not self._closed.wait(_CLOSE_LOOKS):
            self._wake.ring()
            if self.hanging:
                log.error("closing without waiting for a step that has run for %.1f s", self.hanging)
                return
            if time.monotonic() - began > timeout:
                log.warning("closing was given up after %.1f s; %d requests are left", timeout, len(self.live))
                return

    # -------------------------------------------------------------- seen from outside

    def snapshot(self) -> dict[str, Any]:
        """The counters, with what is measured at the moment of asking."""
        stats = self.stats
        live = list(self.live.values())
        leases = [lease for lease in (request.lease for request in live) if lease is not None]
        allocator = self.pool.allocator
        stats.rejected = self.inbox.rejected
        stats.queued_requests, stats.queued_tokens = self.inbox.requests, self.inbox.tokens
        stats.running_requests = len(self.queues.running)
        stats.live_futures = len(live)
        stats.live_streams = sum(request.sink.streams for request in live)
        stats.evictions = self.pool.evictions
        stats.prefixes_not_kept = self.pool.unkept
        stats.callback_errors = self.events.errors
        stats.blocks_free, stats.blocks_used = allocator.num_free, allocator.num_used
        stats.blocks_cached = allocator.num_cached
        stats.slots_free, stats.slots_used = self.pool.free_slots, self.pool.num_slots - self.pool.free_slots
        stats.blocks_locked = len({block for lease in leases for block in lease.shared.tolist()})
        return {**stats.numbers(), "gc_pauses": self.gc_pauses.numbers()}

    def audit(self) -> None:
        """Every account against every other; raises with the numbers. For tests and debugging, between steps."""
        self.queues.audit()
        flying = [row.request for flight in self._flights for row in flight.plan.oneshot]
        holders = [*self.queues, *flying, *self._flights.lingering]
        self.pool.audit([request.lease for request in holders if request.lease is not None])
        self._flights.audit(self.queues)
        known = {request.id for request in [*self.queues, *self.inbox.items, *flying]}
        if known != self.live.keys():
            raise RuntimeError(f"{len(self.live)} requests are to be answered, {len(known)} are in the queues")
        counted = [r.queued_tokens for r in [*self.queues, *self.inbox.items] if r.queued_tokens >= 0]
        if len(counted) > self.inbox.requests or sum(counted) > self.inbox.tokens:
            raise RuntimeError(f"{len(counted)} requests wait, the inbox counts {self.inbox.requests}")


@atexit.register
def _at_exit() -> None:
    """Engines that were not closed: no thread of ours may be inside native code while the interpreter goes away."""
    for core in alive(EngineCore):
        if core.forked:
            continue
        if core._thread is not None:
            core.close(drain=False, timeout=_EXIT_SECONDS)
        if core._watchdog is not None:
            core._watchdog.stop(wait=_EXIT_SECONDS)


__all__ = ["EngineCore", "EngineStats", "LoopFlush", "Outcome"]
