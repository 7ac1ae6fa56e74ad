"""The steps of a call that both engines share: tasks to requests, ends to results."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from prelude._native.core import Ends
from prelude.admission.messages import rough_size
from prelude.admission.prepared import Admitted, Outcome
from prelude.admission.snapshot import PROMPT_FIELDS
from prelude.call import Call, Options, make_calls
from prelude.errors import InvalidRequest, PreludeError, shown
from prelude.options import merge_options
from prelude.runtime.core import EngineCore
from prelude.runtime.inbox import Places
from prelude.scheduling.request import Request, Sink
from prelude.streams import timed_finish, watching
from prelude.tasks import Task

# More than this is prepared on threads, so that it cannot hold up the caller's loop.
INLINE_CHARS = 4096
JOB_CHARS, JOB_TASKS = 1 << 16, 64  # of one job of a preparing thread
# A call of more tasks is as many calls as it takes, each begun in a turn of its own.
PART_TASKS = 512
TURN_RESULTS, TURN_PAIRS = 64, 1 << 13  # made before the loop gets its turn; of more pairs, on a thread
TASK_CHARS, QUESTION_CHARS, LABEL_CHARS = 64, 32, 32  # what preparing one costs beside its text


def make_requests(
    core: EngineCore,
    admitted: Sequence[Any],
    calls: Sequence[Call],
    sink: Sink,
    places: Places,
    group: object = None,
    outbox: object = None,
) -> list[Request | Exception]:
    """The request of each admitted task, or the error of one that was not admitted or has no place. Neighbours that
    share a call become requests together."""
    found: list[Request | Exception] = []
    at, count = 0, len(admitted)
    while at < count:
        if isinstance(admitted[at], Exception):
            found.append(admitted[at])
            at += 1
            continue
        call, end = calls[at], at + 1
        while end < count and calls[end] is call and not isinstance(admitted[end], Exception):
            end += 1
        prepared = [item.prepared for item in admitted[at:end]]
        found += core.requests(prepared, sink, call.options, places, call.expires, group, outbox)
        at = end
    for item, call, request in zip(admitted, calls, found):
        if isinstance(request, Request):
            if item.watched:
                request.sink = watching(item, sink)
            if call.timeline is not None:
                request.timeline = call.timeline
    return found


def finish_all(
    admitted: Sequence[Any], calls: Sequence[Call], requests: Sequence[Request | Exception], ends: Ends
) -> list[Any]:
    """The caller's results, in order; errors are values. Runs in the caller's thread, or in its loop."""
    outcomes = ends.outcomes_of(requests) if isinstance(requests, list) else None
    if outcomes is not None:
        return [_finish(item, call, outcome) for item, call, outcome in zip(admitted, calls, outcomes)]
    results: list[Any] = []
    for item, call, request in zip(admitted, calls, requests):
        if not isinstance(request, Request):
            results.append(request)
            continue
        outcome, error = ends[request.id]
        results.append(error if outcome is None else _finish(item, call, outcome))
    return results


def _finish(admitted: Admitted, call: Call, outcome: Outcome) -> Any:
    try:
        return admitted.finish(outcome) if call.timeline is None else timed_finish(admitted, call.timeline, outcome)
    except Exception as error:
        return error


def first_error(results: list[Any], return_exceptions: bool) -> list[Any]:
    """``results``; or the first error among them is raised, with the place of its task where there are several."""
    if not return_exceptions:
        for at, result in enumerate(results):
            if isinstance(result, Exception):
                raise result if len(results) == 1 else name_task(result, at)
    return results


def name_task(error: Exception, at: int) -> Exception:
    """``error`` with ``tasks[at]`` before its message. Requests of one failed step may share an error: it is named
    once."""
    if isinstance(error, PreludeError) and error.args and not hasattr(error, "task_index"):
        error.args = (f"tasks[{at}]: {error.args[0]}", *error.args[1:])
        error.task_index = at  # type: ignore[attr-defined]
    return error


def batches(tasks: Iterable[Task], sizes: Iterable[int]) -> list[list[Task]]:
    """Runs of tasks of about ``JOB_CHARS`` or ``JOB_TASKS`` each: one job of a preparing thread."""
    runs: list[list[Task]] = []
    total = JOB_CHARS
    for task, size in zip(tasks, sizes):
        if total >= JOB_CHARS or len(runs[-1]) >= JOB_TASKS:
            runs.append([])
            total = 0
        runs[-1].append(task)
        total += size
    return runs


def parts(tasks: Sequence[Any], options: Options, keywords: Mapping[str, Any]) -> Iterator[tuple[Any, Options]]:
    """``PART_TASKS`` tasks at a time, and their options as they are when it is their turn."""
    began = time.monotonic()
    if isinstance(options, Sequence):
        all_options = [call.options for call in make_calls(len(tasks), options, keywords)]
    else:
        all_options = [merge_options(options, keywords)]
    for at in range(0, len(tasks), PART_TASKS):
        passed = time.monotonic() - began
        if isinstance(options, Sequence):
            yield tasks[at : at + PART_TASKS], [one.after(passed) for one in all_options[at : at + PART_TASKS]]
        else:
            yield tasks[at : at + PART_TASKS], all_options[0].after(passed)


def result_size(admitted: Any) -> int:
    """Pairs of a token and its logprob that ``finish`` is going to make."""
    readout = None if isinstance(admitted, Exception) else admitted.prepared.readout
    return 0 if readout is None else int(readout.result_size)


def task_list(tasks: Any) -> Sequence[Any]:
    """Any iterable of tasks as a sequence."""
    if isinstance(tasks, list | tuple):
        return tasks
    try:
        return list(tasks)
    except TypeError:
        raise InvalidRequest(f"{shown(tasks)} is not a list of tasks", field="tasks") from None


def text_size(task: Any) -> int:
    """What preparing is going to look at, roughly, in characters (or ids); unknown shapes fail there."""
    size = TASK_CHARS
    for name in PROMPT_FIELDS:
        size += _size(getattr(task, name, None))
    questions = getattr(task, "questions", None)
    if isinstance(questions, Mapping):
        questions = tuple(questions.values())
    for question in questions if isinstance(questions, list | tuple) else ():
        labels = getattr(question, "labels", None)
        size += QUESTION_CHARS + _size(getattr(question, "question", None)) + LABEL_CHARS * _length(labels)
        for described in (labels, getattr(question, "criteria", None), getattr(question, "levels", None)):
            if isinstance(described, Mapping) or (described is not labels and described is not None):
                size += _size(described)
    return size


def _size(value: Any) -> int:
    listed = isinstance(value, list | tuple) and value and isinstance(value[0], Mapping | list | tuple | str)
    return rough_size(value, JOB_CHARS) if listed or isinstance(value, Mapping) else _length(value)


def _length(value: Any) -> int:
    try:
        return len(value)
    except TypeError:
        return 0
