"""A call on its way through an engine: what was said about it, when its clock started, and its timeline."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prelude._native.core import Ends, finish_all
from prelude.admission.messages import rough_size
from prelude.admission.prepared import Admitted, Alike, Outcome, finished, make_completion
from prelude.admission.snapshot import PROMPT_FIELDS
from prelude.errors import InvalidRequest, PreludeError, shown
from prelude.options import RequestOptions, merge_options
from prelude.runtime.core import EngineCore
from prelude.runtime.inbox import Places
from prelude.scheduling.request import Request, Sink
from prelude.streaming.chunks import timed_finish, watching
from prelude.tasks import Task
from prelude.timeline import Timeline

# More than this is prepared on threads, so that it cannot hold up the caller's loop.
INLINE_CHARS = 4096
JOB_CHARS, JOB_TASKS = 1 << 16, 64  # of one job of a preparing thread
# A call of more tasks is as many calls as it takes, each begun in a turn of its own.
PART_TASKS = 512
TURN_RESULTS, TURN_PAIRS = 64, 1 << 13  # made before the loop gets its turn; of more pairs, on a thread
TASK_CHARS, QUESTION_CHARS, LABEL_CHARS = 64, 32, 32  # what preparing one costs beside its text

Options = RequestOptions | Sequence[RequestOptions] | None


@dataclass(slots=True)
class Call:
    options: RequestOptions
    expires: float  # on the monotonic clock
    timeline: Timeline | None

    def mark(self, name: str) -> None:
        if self.timeline is not None:
            self.timeline.mark(name)


def mark_all(calls: Iterable[Call], name: str) -> None:
    """The same moment in the timeline of every call that has one."""
    for call in calls:
        call.mark(name)


def make_calls(count: int, options: Options, keywords: Mapping[str, Any]) -> list[Call]:
    """One a task: the same options for all, or one for each."""
    if isinstance(options, Sequence):
        if keywords or len(options) != count:
            raise InvalidRequest(f"{len(options)} for {count} tasks; give one for all or one each", field="options")
        each = [merge_options(one, {}, f"options[{at}]") for at, one in enumerate(options)]
        return [_call(one) for one in each]
    one = merge_options(options, keywords)
    return [_call(one) for _ in range(count)]


def _call(options: RequestOptions) -> Call:
    return Call(options, options.expires(), Timeline() if options.trace else None)


def make_request(
    core: EngineCore, admitted: Any, call: Call, sink: Sink, places: Places, outbox: object = None
) -> Request | Exception:
    """The request of an admitted task; the error of one that was not admitted, or has no place."""
    if isinstance(admitted, Exception):
        return admitted
    try:
        request = core.request(admitted.prepared, watching(admitted, sink), call.options, places, call.expires)
    except Exception as error:
        return error
    request.outbox = outbox
    request.timeline = call.timeline
    return request


def finish_alike(alike: Alike, requests: list[Request], ends: Ends) -> list[Any]:
    """``finish_call`` of all requests of a call, in order."""
    return finish_all(alike, requests, ends, make_completion, finished)


def plain_options(options: Options, keywords: Mapping[str, Any]) -> RequestOptions | None:
    """The options of a call whose requests all have the same and no timeline; ``None`` for any other."""
    if isinstance(options, Sequence):
        return None
    one = merge_options(options, keywords)
    return None if one.trace else one


def finish_call(admitted: Admitted, call: Call, outcome: Outcome | None, error: BaseException | None) -> Any:
    """The caller's result, or its error, as a value. Runs in the caller's thread."""
    if isinstance(error, Exception) or outcome is None:
        return error
    return caught(timed_finish, admitted, call.timeline, outcome)


def caught(function: Any, *args: Any) -> Any:
    try:
        return function(*args)
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
    readout = admitted.prepared.readout
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
    for question in questions if isinstance(questions, list | tuple) else ():
        labels = getattr(question, "labels", None)
        size += QUESTION_CHARS + _length(getattr(question, "question", None)) + LABEL_CHARS * _length(labels)
    return size


def _size(value: Any) -> int:
    if isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
        return rough_size(value, JOB_CHARS)
    return _length(value)


def _length(value: Any) -> int:
    try:
        return len(value)
    except TypeError:
        return 0
