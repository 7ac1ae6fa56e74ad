"""Coroutines without an event loop: a synchronous call runs what an asynchronous one does. No engine enters."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


def at_once(call: Callable[..., T]) -> Callable[..., Coroutine[Any, Any, T]]:
    """Return ``call`` as an asynchronous function, which waits for nothing."""

    async def waited(*args: Any, **keywords: Any) -> T:
        return call(*args, **keywords)

    return waited


def finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that waits for functions ``at_once`` and for its turn alone."""
    try:
        while True:
            coroutine.send(None)
    except StopIteration as end:
        found: T = end.value
        return found


def each(items: AsyncGenerator[T, None]) -> Iterator[T]:
    """Yield the items of an asynchronous generator of this kind."""

    async def following() -> tuple[T, ...]:
        async for item in items:
            return (item,)
        return ()

    try:
        while found := finished(following()):
            yield found[0]
    finally:
        finished(items.aclose())
