"""How far long work is: a ``run_many``, told to its caller; loading and simulating, shown in a terminal."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

from prelude.errors import InvalidRequest, shown

log = logging.getLogger("prelude.engine")

T = TypeVar("T")
Advance: TypeAlias = Callable[[int, int], object]  # (tasks that have ended, tasks of the call)


class Progress:
    """Counts the tasks of one call that have ended, well or not, and tells ``told``. What ``told`` raises is logged
    once, and then it is told no more: a bar must not end the work it shows. Used by the caller's thread alone."""

    def __init__(self, told: Any, total: int) -> None:
        """``told``: a function of (done, total); True: a tqdm bar; None or False: nothing. ``InvalidRequest``
        where it is something else, or tqdm is not there."""
        self._done, self._total = 0, total
        self._bar: Any = None
        if told is True:
            self._bar = make_bar(total)
            told = mover(self._bar)
        elif told is None or told is False:
            told = None
        elif not callable(told):
            raise InvalidRequest(f"{shown(told)} is not a function of (done, total), True or None", field="progress")
        self._told: Advance | None = told

    def __bool__(self) -> bool:
        return self._told is not None

    def advance(self, count: int) -> None:
        """``count`` more tasks have ended."""
        self._done += count
        if self._told is None or not count:
            return
        try:
            self._told(self._done, self._total)
        except Exception:
            log.exception("progress= raised, and is told no more")
            self._told = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()


def mover(bar: Any) -> Advance:
    """What moves a bar of tqdm to a count."""
    return lambda done, total: bar.update(done - bar.n)


def make_bar(total: int) -> Any:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise InvalidRequest(
            "True shows a bar of tqdm, which is not installed: pip install tqdm, or give a function of (done, total)",
            field="progress",
        ) from None
    return tqdm(total=total, unit="task")


def watched(items: Iterable[T], what: str, unit: str, total: int | None = None) -> Iterator[T]:
    """The same items. Where stderr is a terminal and tqdm is installed, a bar counts those that the caller is done
    with, from the first second on. ``total``: how many there are, where that is known."""
    if not _in_terminal() or find_spec("tqdm") is None:
        yield from items
        return
    from tqdm.auto import tqdm

    bar = tqdm(total=total, desc=what, unit=f" {unit}", delay=1, leave=False)
    progress = Progress(mover(bar), total or 0)
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
