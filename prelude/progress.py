"""How far long work is: a ``run_many``, told to its caller; loading and simulating, shown in a terminal."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from prelude.errors import InvalidRequest, shown

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger("prelude.engine")

T = TypeVar("T")
Advance: TypeAlias = Callable[[int, int], object]  # (tasks that have ended, tasks of the call)


class Progress:
    """Counts the units of one call that have ended, well or not, and calls ``told``. An error of ``told`` is logged
    once, and ``told`` is called no more: a bar must not end the work it shows. Used by the caller's thread alone."""

    def __init__(self, told: Any, total: int | None, unit: str = "task", done: int = 0) -> None:
        """``told``: a function of (done, total); True: a tqdm bar, from ``__enter__`` on; None or False: nothing.
        ``total``: None where it is not known. ``done``: units that ended before. ``InvalidRequest`` where ``told``
        is something else, or (from ``__enter__``) tqdm is not there."""
        if told is not None and not isinstance(told, bool) and not callable(told):
            raise InvalidRequest(f"{shown(told)} is not a function of (done, total), True or None", field="progress")
        self.done, self._total, self._unit = done, total, unit
        self._bar: Any = None
        self._shown = told is True
        self._told: Callable[[int, Any], object] | None = told if callable(told) else None

    def __bool__(self) -> bool:
        return self._told is not None

    def advance(self, count: int) -> None:
        """``count`` more units have ended."""
        self.done += count
        if self._told is None or not count:
            return
        try:
            self._told(self.done, self._total)
        except Exception:
            log.exception("progress= raised, and is called no more")
            self._told = None

    def __enter__(self) -> Self:
        if self._shown:
            self._bar = make_bar(self._total, self._unit, self.done)
            self._told = mover(self._bar)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()


def mover(bar: Any) -> Callable[[int, Any], object]:
    """A function that moves a bar of tqdm to a count."""
    return lambda done, total: bar.update(done - bar.n)


def make_bar(total: int | None, unit: str, done: int) -> Any:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise InvalidRequest(
            "True shows a bar of tqdm, which is not installed: pip install tqdm, or give a function of (done, total)",
            field="progress",
        ) from None
    return tqdm(total=total, unit=f" {unit}", initial=done)


def watched(items: Iterable[T], what: str, unit: str, total: int | None = None) -> Iterator[T]:
    """The same items. Where stderr is a terminal and tqdm is installed, a bar counts those that the caller is done
    with, from the first second on. ``total``: how many there are, where that is known."""
    if not _in_terminal() or find_spec("tqdm") is None:
        yield from items
        return
    from tqdm.auto import tqdm

    bar = tqdm(total=total, desc=what, unit=f" {unit}", delay=1, leave=False)
    progress = Progress(mover(bar), total)
    try:
        for item in items:
            yield item
            progress.advance(1)
    finally:
        with suppress(OSError, ValueError):  # the terminal is gone
            bar.close()


def _in_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # no stderr, or a closed one
        return False
