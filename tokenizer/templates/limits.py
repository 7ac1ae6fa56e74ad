"""The bounds of one rendering of a chat template, and the rest of them.

Every operation is weighed by its arguments and charged before it runs, in units of work (roughly 50 ns: one for a
node of the syntax tree each time it may run, more for an operation that reads or makes long strings or large
containers) and in bytes of every value made, whether or not it has been freed since. Both depend on the template and
its arguments alone, so a rendering that passes once passes on a loaded machine too. The processor time of the thread
is read every ``STRIDE`` units; it is the last resort against a machine on which a unit takes far longer.
"""

from __future__ import annotations

import itertools
import time
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import ChatTemplateError
from .marks import Marked

STRIDE = 50_000  # units of work between two looks at the clock
MAX_BITS = 1 << 11  # of a number: an operation on one, or its text, takes a few units of work
MAX_DEPTH = 400  # of a value that is printed, compared or made to JSON
CALL = 12  # units of work: a call of a function, a filter or a test
NAMED_CALL = 60  # units of work more if jinja2 looks the filter or test up while rendering (``map``, ``select``)
OBJECT = 64  # bytes: a small object and the reference to it
PIECE = 128  # bytes: a short marked string and the reference to it
SPAN = 144  # bytes: one span of a marked string


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of one rendering. All are counts, except ``max_seconds``: processor time of the rendering thread."""

    max_output: int = 8_000_000  # characters of one string, items of one list
    max_work: int = 40_000_000  # units
    max_memory: int = 160_000_000  # bytes of all values made
    max_seconds: float = 5.0
    max_range: int = 100_000
    max_template: int = 200_000  # characters of the source
    max_nodes: int = 10_000  # nodes of the source's syntax tree


class Rendering:
    """The rest of the bounds of a rendering in progress; one thread's own."""

    __slots__ = ("bounds", "look", "memory", "started", "work")

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.work = bounds.max_work
        self.memory = bounds.max_memory
        self.look = max(self.work - STRIDE, 0)
        self.started = time.thread_time()

    def spend(self, units: int) -> None:
        """Charge for an operation about to run."""
        self.work -= units
        if self.work < self.look:
            self.look_at_clock()

    def take(self, size: int) -> None:
        """Charge for a value of ``size`` bytes about to be made."""
        self.memory -= size
        self.work -= 1 + (size >> 6)
        if self.memory < 0:
            raise ChatTemplateError(
                f"the chat template makes values of more than {self.bounds.max_memory} bytes (Bounds.max_memory)"
            )
        if self.work < self.look:
            self.look_at_clock()

    def take_text(self, length: int, wide: bool, spans: int = 0) -> None:
        """Charge for a string of ``length`` characters; ``wide``: not all of them are ASCII."""
        if length > self.bounds.max_output:
            self.refuse_size(length)
        self.take(OBJECT + (length << 2 if wide else length) + spans * SPAN)

    def take_copy(self, length: int, *of: str) -> None:
        """Charge for a string of ``length`` characters that is made of those ``of`` others."""
        wide, spans = False, 0
        for text in of:
            wide = wide or not text.isascii()
            if type(text) is Marked and text.marks:
                spans += len(text.marks)
        self.take_text(length, wide, spans)

    def take_items(self, count: int, size: int = 8) -> None:
        """Charge for a list of ``count`` items of ``size`` bytes."""
        if count > self.bounds.max_output:
            self.refuse_size(count)
        self.take(OBJECT + count * size)

    def refuse_size(self, length: int) -> None:
        raise ChatTemplateError(
            f"the chat template makes a string or list of {length} characters or items; "
            f"the limit is {self.bounds.max_output} (Bounds.max_output)"
        )

    def look_at_clock(self) -> None:
        if self.work < 0:
            raise ChatTemplateError(
                f"the chat template takes more than {self.bounds.max_work} units of work (Bounds.max_work)"
            )
        if time.thread_time() - self.started > self.bounds.max_seconds:
            raise ChatTemplateError(
                f"the chat template takes more than {self.bounds.max_seconds} seconds of processor time "
                f"(Bounds.max_seconds)"
            )
        self.look = max(self.work - STRIDE, 0)


ACTIVE: ContextVar[Rendering] = ContextVar("rendering")


def checked_bits(value: int) -> int:
    """``value``, which an argument or a constant of the template is."""
    if value.bit_length() > MAX_BITS:
        raise ChatTemplateError(f"a number of {value.bit_length()} bits; the limit in chat templates is {MAX_BITS}")
    return value


class Measure(NamedTuple):
    """How large a value is, with everything in it counted each time that it is in it."""

    items: int
    depths: int  # the sum of the depths of all items
    narrow: int  # characters of strings that are ASCII
    wide: int  # characters of the others
    copied: int  # characters times the depth that they are at


def measure(value: Any) -> Measure:
    """Walk through a value, charging for each item before it looks at the next one: small containers can nest to
    billions of items."""
    rendering = ACTIVE.get()
    items = depths = narrow = wide = copied = paid = 0
    limit = rendering.bounds.max_output
    open_items = [iter((value,))]
    while open_items:
        for item in open_items[-1]:
            items += 1
            depth = len(open_items)
            depths += depth
            if isinstance(item, str):
                length = len(item)
                copied += length * depth
                if item.isascii():
                    narrow += length
                else:
                    wide += length
            elif isinstance(item, int):
                length = item.bit_length() // 3  # at least as many digits
                copied += length * depth
                narrow += length
            elif isinstance(item, dict):
                open_items.append(itertools.chain(item.keys(), item.values()))
            elif isinstance(item, (list, tuple)):
                open_items.append(iter(item))
            if items - paid >= 1024:
                rendering.spend((items - paid) * 8)
                paid = items
            if items + narrow + wide > limit or len(open_items) > MAX_DEPTH:
                raise ChatTemplateError(
                    f"the chat template works on a value of more than {limit} characters and items, or one nested "
                    f"deeper than {MAX_DEPTH}"
                )
            if len(open_items) != depth:
                break
        else:
            open_items.pop()
    rendering.spend((items - paid) * 8)
    return Measure(items, depths, narrow, wide, copied)
