"""Entry: prepared tasks become requests, checked against everything that could keep one from ever being planned."""

from __future__ import annotations

import math

from prelude._native import core
from prelude.admission.classes import ExecutionClass
from prelude.admission.prepared import Prepared
from prelude.errors import DeadlineExceeded, RequestTooLarge
from prelude.execution.executor import ExecutorLimits
from prelude.options import NO_OPTIONS, RequestOptions
from prelude.runtime.events import Listeners
from prelude.runtime.forks import Forkable
from prelude.runtime.inbox import Inbox, Places
from prelude.runtime.lifecycle import Lifecycle
from prelude.scheduling.lease import KvPool
from prelude.scheduling.planner import Budgets
from prelude.scheduling.request import IDS, Request, Sink


class Entry(core.Entry):
    """Its methods may be called from any thread. ``reserve`` and ``requests`` are native (``_native/entry.pxi``)."""

    def __init__(
        self,
        inbox: Inbox,
        lifecycle: Lifecycle,
        events: Listeners,
        budgets: Budgets,
        pool: KvPool,
        limits: ExecutorLimits,
        owner: Forkable,
    ) -> None:
        classes = (ExecutionClass.ONESHOT, ExecutionClass.DECODE)
        most = budgets.step_tokens - budgets.running
        super().__init__(Request, classes, IDS, lifecycle.ended, inbox, events, owner, most)
        self._inbox = inbox
        self._lifecycle = lifecycle
        self._events = events
        self._pool = pool
        self._limits = limits
        self._owner = owner

    def force_class(self, kind: ExecutionClass) -> None:
        """For tests: every request has this class, and the same numbers."""
        self.classes = (kind, kind)

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
        self._owner.check_process()
        request = Request(prepared, sink, self.classes[prepared.max_new_tokens > 1], options)
        request.ending = self._lifecycle.ended
        request.expires = options.expires() if expires is None else expires
        if places is not None:
            self._place(request, places)
            return request
        with self._inbox.reserve(1) as own:
            self._place(request, own)
            own.posted()
        return request

    def placed(self, request: Request, places: Places) -> Request | Exception:
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
        most = self.most_oneshot
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
