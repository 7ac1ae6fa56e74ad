"""The caller's settings of a request: its options, the moment of its deadline, its timeline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from prelude.errors import InvalidRequest
from prelude.records import dataclass
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
