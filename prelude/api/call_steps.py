"""The steps of a call that both engines share: tasks to requests, ends to results."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from prelude.admission.messages import rough_size
from prelude.admission.prepared import Admitted, Outcome
from prelude.admission.snapshot import PROMPT_FIELDS
from prelude.errors import InvalidRequest, PreludeError, shown
from prelude.runtime.core import PLAIN, Call
from prelude.runtime.handover import Completions
from prelude.scheduling.request import Request
from prelude.scheduling.timeline import Timeline
from prelude.tasks import Task
from prelude.values.options import RequestOptions, merge_options

Options: TypeAlias = RequestOptions | Sequence[RequestOptions] | None

# More than this is prepared on threads, so that it cannot hold up the caller's loop.
INLINE_CHARS = 4096
JOB_CHARS, JOB_TASKS = 1 << 16, 64  # of one job of a preparing thread
# A call of more tasks is as many calls as it takes, each begun in a turn of its own.
PART_TASKS = 512
TURN_RESULTS, TURN_PAIRS = 64, 1 << 13  # made before the loop gets its turn; of more pairs, on a thread
TASK_CHARS, QUESTION_CHARS, LABEL_CHARS = 64, 32, 16  # the cost of preparing one beside its text


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


def _call(options: RequestOptions) -> Call:
    return Call(options, options.expires(), Timeline() if options.trace else None)


def mark_all(timelines: list[Timeline], name: str) -> None:
    for timeline in timelines:
        timeline.mark(name)


def timed_finish(admitted: Admitted, timeline: Timeline | None, outcome: Outcome) -> Any:
    """Return the caller's result, with its timeline. Runs in the caller's thread."""
    if timeline is None:
        return admitted.finish(outcome)
    began = time.perf_counter()
    result = admitted.finish(outcome)
    timeline.mark("detokenise", began)
    timeline.mark("stream")
    outcome.stats.timeline = timeline.close()
    return result


def finish_all(
    admitted: Sequence[Any], calls: Sequence[Call], requests: list[Request | Exception], ends: Completions
) -> list[Any]:
    """Return the caller's results, in order; errors are values. Runs in the caller's thread, or in its loop."""
    results: list[Any] = []
    for item, call, request in zip(admitted, calls, requests):
        if not isinstance(request, Request):
            results.append(request)
            continue
        outcome, error = ends[request.id]
        try:
            results.append(error if outcome is None else timed_finish(item, call.timeline, outcome))
        except Exception as raised:
            results.append(raised)
    return results


def result_sizes(admitted: Sequence[Any]) -> list[int]:
    """Return for each admitted task how many pairs of a token and its logprob its result has; 0 for an error."""
    readouts = [None if isinstance(item, BaseException) else item.prepared.readout for item in admitted]
    return [0 if readout is None else readout.result_size for readout in readouts]


def first_error(results: list[Any], return_exceptions: bool) -> list[Any]:
    """Return ``results``, or raise the first error among them, with its task's place if there are several tasks."""
    if not return_exceptions:
        for at, result in enumerate(results):
            if isinstance(result, Exception):
                raise result if len(results) == 1 else name_task(result, at)
    return results


def name_task(error: Exception, at: int) -> Exception:
    """Put ``tasks[at]`` before the message of ``error``. Requests of one failed step may share an error: it is named
    once."""
    if isinstance(error, PreludeError) and error.args and not hasattr(error, "task_index"):
        error.args = (f"tasks[{at}]: {error.args[0]}", *error.args[1:])
        error.task_index = at  # type: ignore[attr-defined]
    return error


def batches(tasks: Iterable[Task]) -> list[list[Task]]:
    """Yield runs of tasks of about ``JOB_CHARS`` or ``JOB_TASKS`` each: one job of a preparing thread."""
    runs: list[list[Task]] = []
    total = JOB_CHARS
    for task in tasks:
        if total >= JOB_CHARS or len(runs[-1]) >= JOB_TASKS:
            runs.append([])
            total = 0
        runs[-1].append(task)
        total += text_size(task)
    return runs


def parts(tasks: Sequence[Any], options: Options, keywords: Mapping[str, Any]) -> Iterator[tuple[Any, Options]]:
    """Yield ``PART_TASKS`` tasks at a time, and their options as they are at that time."""
    began = time.monotonic()
    each: list[Any] = []  # of each task; else one is of all tasks, and every part shares it
    if isinstance(options, Sequence):
        each = [call.options for call in make_calls(len(tasks), options, keywords)[0]]
    shared = None if isinstance(options, Sequence) else merge_options(options, keywords)
    for at in range(0, len(tasks), PART_TASKS):
        passed = time.monotonic() - began
        part = slice(at, at + PART_TASKS)
        yield tasks[part], [one.after(passed) for one in each[part]] if shared is None else shared.after(passed)


def task_list(tasks: Any) -> Sequence[Any]:
    """Return any iterable of tasks as a sequence."""
    if isinstance(tasks, (list, tuple)):
        return tasks
    try:
        return list(tasks)
    except TypeError:
        raise InvalidRequest(f"{shown(tasks)} is not a list of tasks", field="tasks") from None


def text_size(task: Any) -> int:
    """Return about the number of characters (or ids) that preparing reads. Unknown shapes fail there."""
    size = TASK_CHARS + sum([_size(getattr(task, name, None), 0) for name in PROMPT_FIELDS])
    questions = getattr(task, "questions", ())
    if not isinstance(questions, (list, tuple)):
        questions = tuple(questions.values()) if isinstance(questions, Mapping) else ()
    for question in questions:
        size += QUESTION_CHARS
        for name in ("question", "labels", "criteria", "levels"):
            size += _size(getattr(question, name, None), LABEL_CHARS)
    return size


def _size(value: Any, each: int) -> int:
    if value is None or isinstance(value, str):
        return len(value or "")
    listed = isinstance(value, (list, tuple)) and value and isinstance(value[0], (str, list, tuple, Mapping))
    try:
        length = len(value)
    except TypeError:
        return 0
    return each * length + (rough_size(value, JOB_CHARS) if listed or isinstance(value, Mapping) else length)
