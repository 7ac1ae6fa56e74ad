"""How far a ``run_many`` is, told to its caller while it runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeAlias

from prelude.errors import InvalidRequest, shown

log = logging.getLogger("prelude.engine")

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
            told = self._move_bar
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

    def _move_bar(self, done: int, total: int) -> None:
        self._bar.update(done - self._bar.n)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()


def make_bar(total: int) -> Any:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise InvalidRequest(
            "True shows a bar of tqdm, which is not installed: pip install tqdm, or give a function of (done, total)",
            field="progress",
        ) from None
    return tqdm(total=total, unit="task")
