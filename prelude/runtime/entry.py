"""Entry: prepared tasks become requests, checked against everything that could keep one from ever being planned."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from prelude._native.core import begin_requests
from prelude.admission.classes import ExecutionClass
from prelude.admission.prepared import Prepared
from prelude.errors import DeadlineExceeded, RequestTooLarge
from prelude.execution.executor import ExecutorLimits
from prelude.options import NO_OPTIONS, RequestOptions
from prelude.runtime.events import Listeners
from prelude.runtime.inbox import Inbox, Places
from prelude.runtime.lifecycle import Lifecycle
from prelude.scheduling.lease import KvPool
from prelude.scheduling.planner import Budgets
from prelude.scheduling.request import IDS, Request, Sink


class Entry:
    """Its methods may be called from any thread. ``check_process`` raises in a forked child."""

    def __init__(
        self,
        inbox: Inbox,
        lifecycle: Lifecycle,
        events: Listeners,
        budgets: Budgets,
        pool: KvPool,
        limits: ExecutorLimits,
        check_process: Callable[[], None],
    ) -> None:
        self._inbox = inbox
        self._lifecycle = lifecycle
        self._events = events
        self._pool = pool
        self._limits = limits
        self._check_process = check_process
        self._classes = (ExecutionClass.ONESHOT, ExecutionClass.DECODE)  # of at most one new token, and of more
        self._most_oneshot = budgets.step_tokens - budgets.running  # tokens of a OneShot request, beside running rows

    def force_class(self, kind: ExecutionClass) -> None:
        """For tests: every request has this class, and the same numbers."""
        self._classes = (kind, kind)

    def reserve(self, count: int) -> Places:
        """Places in the queue, before anything is tokenised; use it in a ``with`` block around ``request`` and
        ``submit_many``."""
        self._check_process()
        places = self._inbox.reserve(count)
        if places.left < count and self._events:
            self._events.emit("rejected", reason="queued_requests", count=count - places.left)
        return places

    def request(
        self,
        prepared: Prepared,
        sink: Sink,
        options: RequestOptions = NO_OPTIONS,
        places: Places | None = None,
        expires: float | None = None,
    ) -> Request:
        """One request, with a place of its own where none is given; raises the error of a bad one. ``expires``: the
        moment of its deadline, on the monotonic clock."""
        self._check_process()
        request = Request(prepared, sink, self._classes[prepared.max_new_tokens > 1], options)
        request.ending = self._lifecycle.ended
        request.expires = options.expires() if expires is None else expires
        if places is not None:
            self._place(request, places)
            return request
        with self._inbox.reserve(1) as own:
            self._place(request, own)
            own.posted()
        return request

    def requests(
        self,
        admitted: Sequence[Any],
        calls: Sequence[Any],
        sink: Sink,
        places: Places,
        watching: Callable[[Any, Sink], Sink],
        groups: list[Any] | None = None,
        outbox: object = None,
    ) -> list[Request | Exception]:
        """The request of each admitted task, checked against everything that could keep it from ever being planned;
        or the error of one that was not admitted, or is refused. They hold nothing but their ``places``. ``calls``:
        of each task its options, deadline and timeline. ``groups``: of each task the call of an event loop that it
        belongs to. ``watching(admitted, sink)``: the sink of a task whose text is followed."""
        found = begin_requests(
            Request,
            admitted,
            calls,
            sink,
            self._classes,
            IDS,
            self._lifecycle.ended,
            watching,
            groups,
            outbox,
            time.perf_counter(),
        )
        if places.take_all(found, ExecutionClass.ONESHOT, self._most_oneshot):
            return found
        return [self._placed(one, places) if isinstance(one, Request) else one for one in found]

    def _placed(self, request: Request, places: Places) -> Request | Exception:
        try:
            self._place(request, places)
        except Exception as error:
            return error
        return request

    def _place(self, request: Request, places: Places) -> None:
        self._check_fits(request)
        if request.expires < math.inf and self._lifecycle.clock() >= request.expires:
            self._inbox.refused("deadline")
            self._events.emit("rejected", request.options.request_id, reason="deadline", count=1)
            raise DeadlineExceeded(
                f"the deadline of {request.options.deadline:g} s passed before the request was queued"
            )
        places.take(request)

    def _check_fits(self, request: Request) -> None:
        tree = request.prepared.tree
        most = self._most_oneshot
        if request.execution_class is ExecutionClass.ONESHOT and tree.num_tokens > most:
            raise RequestTooLarge(
                f"the request has {tree.num_tokens} tokens with all its branches, a step computes at most {most} "
                "beside running rows; ask fewer questions at a time or raise max_step_tokens"
            )
        if request.execution_class is ExecutionClass.DECODE:
            if self._limits.bytes_per_state and not self._pool.num_running_states:
                raise RequestTooLarge(
                    "a request for more than one token takes a recurrent state, the executor has room for none; ask "
                    "for one token (max_tokens=1), or give it room for states"
                )
            blocks = -(-(request.max_device_len - 1) // self._pool.block_size)  # the last token is never written
            if blocks > self._pool.num_blocks:
                raise RequestTooLarge(
                    f"{request.max_device_len} tokens (prompt and max_tokens) need {blocks} KV blocks, the pool has "
                    f"{self._pool.num_blocks}; lower max_tokens or raise kv_blocks"
                )
