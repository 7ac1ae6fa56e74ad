"""What one rendering of a chat template may use, and what it has left.

Strings and lists are charged before they are made where one operation can make a large one out of small
ones; a container is weighed with all that is in it, each time it is in it, before it is walked through.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from .errors import ChatTemplateError


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one rendering may use."""

    max_output: int = 8_000_000  # characters
    max_work: int = 100_000_000  # characters of all strings made on the way
    max_steps: int = 2_000_000
    max_seconds: float = 5.0
    max_range: int = 100_000
    max_template: int = 1_000_000  # characters


class Rendering:
    """What a rendering in progress has left; one thread's own."""

    __slots__ = ("bounds", "deadline", "steps", "work")

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.steps = bounds.max_steps
        self.work = bounds.max_work
        self.deadline = time.monotonic() + bounds.max_seconds

    def tick(self) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise ChatTemplateError(f"the chat template takes more than {self.bounds.max_steps} steps")
        if not self.steps & 63:
            self.look_at_clock()

    def charge(self, characters: int) -> None:
        """Account for a string or list about to be made."""
        if characters > self.bounds.max_output:
            raise ChatTemplateError(
                f"the chat template makes a string or list of {characters} characters or items; "
                f"the limit is {self.bounds.max_output}"
            )
        self.work -= characters
        if self.work < 0:
            raise ChatTemplateError(f"the chat template makes more than {self.bounds.max_work} characters in all")
        if characters > 4096:
            self.look_at_clock()

    def look_at_clock(self) -> None:
        if time.monotonic() > self.deadline:
            raise ChatTemplateError(f"the chat template takes longer than {self.bounds.max_seconds} seconds")


ACTIVE: ContextVar[Rendering] = ContextVar("rendering")

MAX_BITS = 1 << 16  # of a number
WIDE = re.compile(r"\d{7,}")  # a field width no template has


def weigh(value: Any) -> None:
    """Charge for all that is in a container, each time it is in it: a few small lists can nest to billions."""
    rendering = ACTIVE.get()
    limit, size, open_items = rendering.bounds.max_output, 0, [iter((value,))]
    while open_items:
        for item in open_items[-1]:
            size += 8
            if isinstance(item, str):
                size += len(item)
            elif isinstance(item, dict):
                open_items.append(itertools.chain(item.keys(), item.values()))
            elif isinstance(item, (list, tuple)):
                open_items.append(iter(item))
            if size > limit or len(open_items) > 400:
                raise ChatTemplateError(
                    f"the chat template works on a value of more than {limit} characters and items"
                )
            if isinstance(item, (list, tuple, dict)):
                break
        else:
            open_items.pop()
    rendering.charge(size)


def bounded_numbers(values: Iterable[Any], limit: int) -> None:
    for value in values:
        if isinstance(value, int) and abs(value) > limit:
            raise ChatTemplateError(f"the chat template uses the number {value!r:.40}; the limit is {limit}")


def format_size(template: str, values: Iterable[Any], fields: int) -> int:
    if WIDE.search(template):
        raise ChatTemplateError("the chat template formats with a field width past all bounds")
    longest = max((len(v) if isinstance(v, str) else 40 for v in values), default=0)
    return len(template) + fields * longest
