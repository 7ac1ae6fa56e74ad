"""A forked child has the memory of an engine, none of its threads, and locks in an unknown state. A call there fails
at once, before any lock is touched."""

from __future__ import annotations

import os
import weakref
from typing import TypeVar

from prelude.errors import EngineForked


class Forkable:
    """``check_process`` raises in a child that was forked after this object was made."""

    def __init__(self) -> None:
        self.forked = False
        _ALIVE.add(self)

    def check_process(self) -> None:
        if self.forked:
            raise EngineForked(
                "this process was forked after the engine was made, and the engine's threads stayed behind; make an "
                "engine in the child, or start processes with the 'forkserver' or 'spawn' method"
            )


F = TypeVar("F", bound=Forkable)

_ALIVE: weakref.WeakSet[Forkable] = weakref.WeakSet()


def alive(kind: type[F]) -> list[F]:
    return [one for one in list(_ALIVE) if isinstance(one, kind)]


def _in_child() -> None:
    for forkable in list(_ALIVE):
        forkable.forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
