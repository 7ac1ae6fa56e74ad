"""How far long work is: a ``run_many``, told to its caller or shown in a terminal; loading and simulating, shown."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from prelude.errors import InvalidRequest, is_interrupt, shown

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger("prelude.engine")

T = TypeVar("T")
Advance: TypeAlias = Callable[[int, int], object]  # (tasks that have ended, tasks of the call)
DELAY = 1.0
"""Seconds that work takes before a bar appears that the caller did not ask for."""
LINE_SECONDS = 30.0
"""Seconds between the lines of a bar outside a terminal."""


class Progress:
    """Counts the units of one call that have ended, well or not, and calls ``told``. An error of ``told`` is logged
    once, and ``told`` is called no more: a bar must not end the work it shows. Used by the caller's thread alone."""

    def __init__(self, told: Any, total: int | None, unit: str = "task", *, late: str | None = None) -> None:
        """``told``: a function of (done, total); True: a tqdm bar, from ``__enter__`` on; None or False: nothing.
        ``total``: None if it is not known. ``late``: if ``told`` is None, a bar of tqdm with this text before it is
        shown after ``DELAY`` seconds if it ``may_appear``, and leaves no line. ``InvalidRequest`` if ``told`` is
        another value, or (from ``__enter__``) tqdm is not there for True."""
        if told is not None and not isinstance(told, bool) and not callable(told):
            raise InvalidRequest(
                f"{shown(told)} is not a function of (done, total), True, False or None", field="progress"
            )
        self.done, self._total, self._unit, self._late = 0, total, unit, late
        self._bar: Any = None
        self._shown = told is True
        self._told: Callable[[int, Any], object] | None = told if callable(told) else None
        if told is None and late is not None and may_appear(total):
            self._began = time.time()  # tqdm's clock
            self._told = self._appear

    def __bool__(self) -> bool:
        return self._told is not None

    def advance(self, count: int) -> None:
        """Count ``count`` more units that have ended."""
        self.done += count
        if self._told is None or not count:
            return
        try:
            self._told(self.done, self._total)
        except BaseException as error:
            if is_interrupt(error):
                raise
            log.exception("progress= raised, and is called no more")
            self._told = None

    def __enter__(self) -> Self:
        if self._shown:
            self._bar = make_bar(self._total, self._unit)
            self._told = self._move
        return self

    def _move(self, done: int, total: int | None) -> None:
        self._bar.update(done - self._bar.n)

    def _appear(self, done: int, total: int | None) -> None:
        if time.time() - self._began < DELAY:
            return
        tqdm = tqdm_class()
        if tqdm is None:
            self._told = None
            return
        # A delay, however short, keeps tqdm from drawing the bar before it has a count and a rate.
        bar = tqdm(total=total, desc=self._late or None, unit=f" {self._unit}", delay=1e-9, leave=False)
        bar.start_t = bar.last_print_t = self._began
        self._bar, self._told = bar, self._move
        self._move(done, total)

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            with suppress(OSError, ValueError):  # the terminal is gone
                self._bar.close()


def tqdm_class() -> Any:
    """None if tqdm is not installed."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    return tqdm


def make_bar(total: int | None, unit: str) -> Any:
    tqdm = tqdm_class()
    if tqdm is None:
        raise InvalidRequest(
            "True shows a bar of tqdm, which is not installed: pip install tqdm, or give a function of (done, total)",
            field="progress",
        )
    shape: dict[str, Any] = {"unit": "B", "unit_scale": True} if unit == "B" else {"unit": f" {unit}"}
    if not in_terminal() and "ipykernel" not in sys.modules:
        shape.update(file=Lines(), ncols=0, miniters=1, mininterval=LINE_SECONDS, maxinterval=LINE_SECONDS)
    return tqdm(total=total, **shape)


class Lines:
    """Where a bar is written that no terminal shows: a line each time, without the carriage returns of a terminal."""

    def write(self, text: str) -> None:
        if text := text.strip():
            sys.stderr.write(text + "\n")

    def flush(self) -> None:
        sys.stderr.flush()


def watched(items: Iterable[T], label: str, unit: str, total: int | None = None) -> Iterator[T]:
    """The same items. If stderr is a terminal and tqdm is installed, a bar counts those that the caller is done
    with, from the first second on. ``total``: how many there are, if that is known."""
    if not in_terminal():
        yield from items
        return
    with Progress(None, total, unit, late=label) as progress:
        for item in items:
            yield item
            progress.advance(1)


def may_appear(total: int | None) -> bool:
    """Whether a bar that was not asked for helps: in a terminal, and not for one unit, which has ended by then."""
    return total != 1 and in_terminal()


def in_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # no stderr, or a closed one
        return False
