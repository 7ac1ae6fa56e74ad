"""Entry: prepared tasks become requests, checked against everything that could keep one from ever being planned."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from prelude._native.core import all_fit, begin_requests
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
        self.force_class: ExecutionClass | None = None  # for tests: the other path must give the same numbers
        self._inbox = inbox
        self._lifecycle = lifecycle
        self._events = events
        self._budgets = budgets
        self._pool = pool
        self._limits = limits
        self._check_process = check_process

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
        """``requests`` of one, with a place of its own where none is given; raises what was wrong with it."""
        moment = options.expires() if expires is None else expires
        if places is not None:
            [found] = self.requests([prepared], sink, options, places, moment)
        else:
            with self._inbox.reserve(1) as own:
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
        self._check_process()
        now = time.perf_counter()
        found = begin_requests(
            Request,
            prepared,
            sink,
            options,
            self._classes,
            IDS,
            self._lifecycle.ended,
            call,
            outbox,
            expires,
            now,
        )
        in_time = expires == math.inf or self._lifecycle.clock() < expires
        if in_time and all_fit(found, ExecutionClass.ONESHOT, self._most_oneshot) and places.take_all(found):
            return list(found)
        return [self._place(request, places, in_time) for request in found]

    def _place(self, request: Request, places: Places, in_time: bool) -> Request | Exception:
        try:
            self._check_fits(request)
            if not in_time:
                self._inbox.refused("deadline")
                self._events.emit("rejected", request.options.request_id, reason="deadline", count=1)
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
        return self._budgets.step_tokens - self._budgets.running

    def _check_fits(self, request: Request) -> None:
        tree = request.prepared.tree
        most = self._most_oneshot
        if request.execution_class is ExecutionClass.ONESHOT and tree.num_tokens > most:
            raise RequestTooLarge(
                f"the request has {tree.num_tokens} tokens with all its branches, a step computes at most {most} "
                "beside running rows; ask fewer questions at a time or raise max_step_tokens"
            )
        if request.execution_class is ExecutionClass.DECODE:
            if self._limits.slot_bytes and not self._pool.num_slots:
                raise RequestTooLarge(
                    "a request for more than one token takes a recurrent slot, the executor has none; ask for one "
                    "token (max_tokens=1), or give it room for states"
                )
            blocks = -(-(request.max_device_len - 1) // self._pool.block_size)  # the last token is never written
            if blocks > self._pool.num_blocks:
                raise RequestTooLarge(
                    f"{request.max_device_len} tokens (prompt and max_tokens) need {blocks} KV blocks, the pool has "
                    f"{self._pool.num_blocks}; lower max_tokens or raise kv_blocks"
                )
