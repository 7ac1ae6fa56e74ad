"""Rows in windows of bounded size, and the order within a window that brings equal beginnings together."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import numpy as np

from prelude.admission.snapshot import PROMPT_FIELDS
from prelude.errors import InvalidRequest, is_interrupt, own_error, shown
from prelude.records import dataclass, field
from prelude.tasks import TaskOf
from prelude.values.validation import integer

T = TypeVar("T")
R = TypeVar("R")

WINDOW_ROWS = 1024  # unless told otherwise
MAX_WINDOW_ROWS = 1 << 16
WINDOW_CHARS = 1 << 24  # a window ends early if its texts reach this, so that long rows take bounded memory


@dataclass(frozen=True, slots=True)
class Mapped(Generic[T, R]):
    """One row of ``engine.map``. ``index`` counts the rows from 0. ``error`` is ``None`` if there is a result."""

    index: int
    row: T
    result: R | None
    error: Exception | None

    def get(self) -> R:
        """Return the result; raises the row's error."""
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]


@dataclass(slots=True)
class Window(Generic[T]):
    """``tasks[i]`` is the task of ``rows[i]``, or the exception that making it raised. ``texts[i]``: by which it is
    sorted. ``first``: the index of ``rows[0]`` among all rows."""

    first: int
    rows: list[T] = field(default_factory=list)
    tasks: list[Any] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    chars: int = 0

    def add(self, row: T, make: Callable[[T], Any]) -> None:
        try:
            task = make(row)
            if not isinstance(task, TaskOf):
                raise InvalidRequest(f"{shown(task)} of row {self.first + len(self.rows)} is no task", field="task")
            text = leading_text(task)
        except Exception as error:
            task, text = error, ""
        except BaseException as error:
            if is_interrupt(error):
                raise
            task, text = own_error(error, "the function that makes a row's task raised"), ""
        self.rows.append(row)
        self.tasks.append(task)
        self.texts.append(text)
        self.chars += len(text)

    def full(self, size: int) -> bool:
        return len(self.rows) >= size or self.chars >= WINDOW_CHARS

    def grouped(self, descending: bool) -> list[int]:
        """The places of the tasks in the order of their texts: rows with an equal beginning are neighbours, so that
        the prefix cache has to keep one beginning at a time. Every second window runs the other way, and begins with
        the texts that the window before it ended with."""
        places = [at for at, task in enumerate(self.tasks) if isinstance(task, TaskOf)]
        places.sort(key=self.texts.__getitem__, reverse=descending)
        return places

    def mapped(self, at: int, results: Mapping[int, Any]) -> Mapped[T, Any]:
        found = results.get(at, self.tasks[at])
        error = found if isinstance(found, Exception) else None
        mapped: Mapped[T, Any] = Mapped(self.first + at, self.rows[at], found if error is None else None, error)
        return mapped


def window_size(given: Any) -> int:
    return integer(given, "window", 1, MAX_WINDOW_ROWS)


def leading_text(task: Any) -> str:
    """Return the text that a task's prompt begins with, for comparison alone."""
    return "\0".join([_text(getattr(task, name)) for name in PROMPT_FIELDS if hasattr(task, name)])


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, np.ndarray):
        return "".join(map(chr, value.ravel() & 0xFFFF))
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):  # admission refuses it, and says why
        return ""
