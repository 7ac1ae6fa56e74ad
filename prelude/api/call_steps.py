"""The steps of a call that has more tasks than a turn, or an error. Both engines share them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prelude.errors import InvalidRequest, PreludeError, shown
from prelude.runtime.core import Options, make_calls
from prelude.values.options import merge_options

# A call of more tasks is as many calls as it takes, each begun in a turn of its own.
PART_TASKS = 512
TURN_RESULTS, TURN_PAIRS = 64, 1 << 13  # made before the loop gets its turn; of more pairs, on a thread


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


def parts(tasks: Sequence[Any], options: Options, keywords: Mapping[str, Any]) -> Iterator[tuple[Any, Options]]:
    """Yield ``PART_TASKS`` tasks at a time, and their options as they are at that time."""
    began = time.monotonic()
    each: list[Any] = []  # of each task; else one is of all tasks, and every part shares it
    if isinstance(options, Sequence):
        each = [call.options for call in make_calls(len(tasks), options, keywords)]
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
