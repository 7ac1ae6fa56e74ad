"""Entry: prepared tasks become requests, checked against everything that could keep one from ever being planned."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from prelude._native.core import KvPool
from prelude.admission.prepared import Admitted, ExecutionClass, Prepared
from prelude.errors import DeadlineExceeded, InvalidRequest, RequestTooLarge
from prelude.execution.executor import ExecutorLimits
from prelude.records import dataclass
from prelude.runtime.events import Listeners
from prelude.runtime.forks import Forkable
from prelude.runtime.inbox import Inbox, Reservation
from prelude.runtime.lifecycle import Lifecycle
from prelude.runtime.sinks import LoopFlush
from prelude.scheduling.planner import Budgets
from prelude.scheduling.request import Request, Sink
from prelude.scheduling.timeline import Timeline
from prelude.values.options import NO_OPTIONS, RequestOptions, merge_options

Options: TypeAlias = RequestOptions | Sequence[RequestOptions] | None


@dataclass(slots=True, eq=False)
class Call:
    options: RequestOptions
    expires: float  # on the monotonic clock
    timeline: Timeline | None

    def mark(self, name: str) -> None:
        if self.timeline is not None:
            self.timeline.mark(name)


def make_calls(count: int, options: Options, keywords: Mapping[str, Any]) -> tuple[list[Call], list[Timeline]]:
    """One a task: the same options for all, or one for each; and the timelines of those that have one. Tasks with the
    same options share a call, unless each has a timeline."""
    if options is None and not keywords:
        return [PLAIN] * count, []
    if isinstance(options, Sequence):
        if keywords or len(options) != count:
            raise InvalidRequest(f"{len(options)} for {count} tasks; give one for all or one each", field="options")
        calls = [_call(merge_options(one, {}, f"options[{at}]")) for at, one in enumerate(options)]
    else:
        one = merge_options(options, keywords)
        if not one.trace:
            return [_call(one)] * count, []
        calls = [_call(one) for _ in range(count)]
    return calls, [call.timeline for call in calls if call.timeline is not None]


def mark_all(timelines: list[Timeline], name: str) -> None:
    for timeline in timelines:
        timeline.mark(name)


PLAIN = Call(NO_OPTIONS, math.inf, None)  # of all calls without options


def _call(options: RequestOptions) -> Call:
    return Call(options, options.expires(), Timeline() if options.trace else None)


@dataclass(eq=False, repr=False)
class Entry:
    """Its methods may be called from any thread."""

    inbox: Inbox
    lifecycle: Lifecycle
    events: Listeners
    budgets: Budgets
    pool: KvPool
    limits: ExecutorLimits
    owner: Forkable

    def reserve(self, count: int) -> Reservation:
        """Places in the queue, before anything is tokenised; use it in a ``with`` block around ``requests`` and the
        posting of them."""
        self.owner.check_process()
        places = self.inbox.reserve(count)
        if places.left < count:
            self.events.emit("rejected", reason="queued_requests", count=count - places.left)
        return places

    def requests(
        self,
        admitted: Sequence[Admitted | Exception],
        calls: Sequence[Call],
        sink: Sink,
        places: Reservation,
        watching: Callable[[Admitted, Sink], Sink],
        completions: LoopFlush | None = None,
    ) -> list[Request | Exception]:
        """The request of each admitted task, or the error of one that was not admitted, or is refused. They hold
        nothing but their ``places``. ``calls``: of the task at the same place. ``watching``: the sink of a task
        whose text is followed. ``completions``: of the event loop that waits for them."""
        found: list[Request | Exception] = []
        for item, call in zip(admitted, calls):
            if isinstance(item, BaseException):
                found.append(item)
                continue
            try:
                own = watching(item, sink) if item.watched else sink
                request = self.request(item.prepared, own, call.options, places, call.expires)
            except Exception as error:
                found.append(error)
                continue
            request.completions, request.timeline = completions, call.timeline
            found.append(request)
        return found

    def request(
        self,
        prepared: Prepared,
        sink: Sink,
        options: RequestOptions = NO_OPTIONS,
        places: Reservation | None = None,
        expires: float | None = None,
    ) -> Request:
        """Make one request, with a place of its own if none is given; raise the error of a bad one. ``expires``: the
        moment of its deadline, on the monotonic clock."""
        request = Request(prepared, sink, options)
        request.ending = self.lifecycle.ended
        request.expires = options.expires() if expires is None else expires
        if places is not None:
            self._place(request, places)
            return request
        self.owner.check_process()
        with self.inbox.reserve(1) as own:
            self._place(request, own)
            own.posted()
        return request

    def _place(self, request: Request, places: Reservation) -> None:
        self._check_fits(request)
        if request.expires < math.inf and self.lifecycle.clock() >= request.expires:
            self.inbox.refused("deadline")
            self.events.emit("rejected", request.options.request_id, reason="deadline", count=1)
            raise DeadlineExceeded(
                f"the deadline of {request.options.deadline:g} s passed before the request was queued"
            )
        places.take(request)

    def _check_fits(self, request: Request) -> None:
        tree = request.prepared.tree
        most = self.budgets.step_tokens - self.budgets.running
        if request.execution_class is ExecutionClass.ONESHOT and tree.num_tokens > most:
            raise RequestTooLarge(
                f"the request has {tree.num_tokens} tokens with all its branches, a step computes at most {most} "
                "beside running rows; ask fewer questions at a time or raise max_step_tokens",
                field=None,
            )
        if request.execution_class is ExecutionClass.DECODE:
            if self.limits.bytes_per_state and not self.pool.num_running_states:
                raise RequestTooLarge(
                    "a request for more than one token takes a recurrent state, the executor has room for none; ask "
                    "for one token (max_tokens=1), or give it room for states",
                    field=None,
                )
            blocks = -(-(request.max_device_len - 1) // self.pool.block_size)  # the last token is never written
            if blocks > self.pool.num_blocks:
                raise RequestTooLarge(
                    f"{request.max_device_len} tokens (prompt and max_tokens) need {blocks} KV blocks, the pool has "
                    f"{self.pool.num_blocks}; lower max_tokens or raise kv_blocks",
                    field=None,
                )
