"""RequestOptions: labels and limits of one request, beside its task. None of them is part of a cache key."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from prelude.errors import InvalidRequest, shown
from prelude.records import dataclass, replace
from prelude.tasks import strict_keywords
from prelude.values.validation import flag, integer, number

MAX_LABEL = 256
MAX_PRIORITY = (1 << 31) - 1
MAX_DEADLINE = 1e9  # seconds: thirty years


@strict_keywords
@dataclass(frozen=True, slots=True)
class RequestOptions:
    """Options of one request. A value that is out of range raises ``InvalidRequest``.

    ``priority``    a higher one goes strictly first; within one priority tenants share, then the policy orders
    ``deadline``    seconds from the call after which the request ends with ``DeadlineExceeded``, in every state. It
                    is checked between steps. ``None``: no limit
    ``request_id``  a label for statistics, events and logs: 1 to 256 printable characters. Two requests may have the
                    same label; it is never a key
    ``tenant``      a label of 1 to 256 printable characters: within a priority, waiting tenants are served equal
                    numbers of tokens
    ``trace``       record the request's timeline (``stats.timeline``)
    """

    priority: int = 0
    deadline: float | None = None
    request_id: str | None = None
    tenant: str | None = None
    trace: bool = False

    def __post_init__(self) -> None:
        priority = integer(self.priority, "priority", -MAX_PRIORITY, MAX_PRIORITY)
        object.__setattr__(self, "priority", priority)
        if self.deadline is not None:
            deadline = number(self.deadline, "deadline", 0.0, MAX_DEADLINE, "seconds from now, None for no limit")
            object.__setattr__(self, "deadline", deadline)
        _check_label("request_id", self.request_id)
        _check_label("tenant", self.tenant)
        object.__setattr__(self, "trace", flag(self.trace, "trace"))

    def expires(self) -> float:
        """Return the moment on the monotonic clock, counted from now; infinity without a deadline."""
        return math.inf if self.deadline is None else time.monotonic() + self.deadline

    def after(self, seconds: float) -> RequestOptions:
        """Return the same options as of a call ``seconds`` later: the deadline is that much nearer."""
        return self if self.deadline is None else replace(self, deadline=max(0.0, self.deadline - seconds))


def _check_label(field: str, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, str):
        raise InvalidRequest(f"{shown(value)} is not a string", field=field)
    if not 1 <= len(value) <= MAX_LABEL:
        raise InvalidRequest(f"{len(value)} characters; it takes 1 to {MAX_LABEL}", field=field)
    if not value.isprintable():
        raise InvalidRequest(f"{shown(value)} has characters that cannot be printed in a log", field=field)


NO_OPTIONS = RequestOptions()


def merge_options(options: Any, keywords: Mapping[str, Any], field: str = "options") -> RequestOptions:
    """``options``, or ``RequestOptions`` of the keywords. ``InvalidRequest`` if both are given."""
    if keywords:
        if options is not None:
            raise InvalidRequest("give either options= or single keywords, not both", field=field)
        return RequestOptions(**keywords)
    if options is None:
        return NO_OPTIONS
    if not isinstance(options, RequestOptions):
        raise InvalidRequest(f"{shown(options)} is not RequestOptions", field=field)
    return options
