"""A call of an event loop to the task that awaits it: it ends, fails, is cancelled, as a future does."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from prelude._native.core import Waiter

NAME = contextvars.ContextVar("NAME", default="nobody")


async def awaiting(waiter: Waiter, said: list[str]) -> str:
    try:
        await waiter
    except BaseException as error:
        said.append(f"{NAME.get()}: {type(error).__name__}")
        raise
    said.append(NAME.get())
    return NAME.get()


def run(main: Callable[[asyncio.AbstractEventLoop], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        await main(asyncio.get_running_loop())

    asyncio.run(whole())


def started(name: str, waiter: Waiter, said: list[str]) -> asyncio.Task[str]:
    NAME.set(name)
    return asyncio.ensure_future(awaiting(waiter, said))


def test_a_task_goes_on_in_its_own_context_in_the_turn_that_resolves_its_waiter() -> None:
    async def main(loop: asyncio.AbstractEventLoop) -> None:
        said: list[str] = []
        first, second = Waiter(loop), Waiter(loop)
        tasks = [started("first", first, said), started("second", second, said)]
        await asyncio.sleep(0)

        def resolve() -> None:
            second.resolve()
            first.resolve()
            first.resolve()  # once is all there is to it
            said.append("told")

        loop.call_soon(resolve)
        assert await asyncio.gather(*tasks) == ["first", "second"]
        assert said == ["second", "first", "told"] and first.done() and not first.cancelled()

    run(main)


def test_an_error_is_raised_where_the_waiter_is_awaited() -> None:
    async def main(loop: asyncio.AbstractEventLoop) -> None:
        said: list[str] = []
        early, late = Waiter(loop), Waiter(loop)
        early.fail(KeyError("early"))
        task = started("late", late, said)
        await asyncio.sleep(0)
        loop.call_soon(late.fail, ValueError("late"))
        with pytest.raises(ValueError, match="late"):
            await task
        with pytest.raises(KeyError):
            await early
        assert said == ["late: ValueError"] and isinstance(late.exception(), ValueError)

    run(main)


def test_a_cancelled_task_ends_in_another_turn_and_a_later_result_is_not_heard() -> None:
    async def main(loop: asyncio.AbstractEventLoop) -> None:
        said: list[str] = []
        waiter = Waiter(loop)
        task = started("task", waiter, said)
        await asyncio.sleep(0)
        assert task.cancel("enough") and not said and waiter.cancelled()
        loop.call_soon(waiter.resolve)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert said == ["task: CancelledError"] and not waiter.cancel()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(awaiting(Waiter(loop), said), 0.001)

    run(main)


def test_a_callback_that_raises_keeps_no_other_from_its_end() -> None:
    async def main(loop: asyncio.AbstractEventLoop) -> None:
        told: list[Any] = []
        loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
        waiter = Waiter(loop)

        def raising(error: BaseException) -> Callable[[Any], None]:
            def callback(waiter: Any) -> None:
                raise error

            return callback

        def gone(waiter: Any) -> None:
            told.append("removed")

        error, interrupt = ValueError(), KeyboardInterrupt()
        for callback in (raising(error), gone, raising(interrupt), lambda waiter: told.append("last")):
            waiter.add_done_callback(callback)
        assert waiter.remove_done_callback(gone) == 1
        with pytest.raises(KeyboardInterrupt):
            waiter.resolve()
        assert told == [error]
        await asyncio.sleep(0)
        waiter.add_done_callback(lambda waiter: told.append("after the end"))
        await asyncio.sleep(0)
        assert told == [error, "last", "after the end"]

    run(main)


def test_a_group_that_has_not_ended_has_no_result_and_is_awaited_once() -> None:
    async def main(loop: asyncio.AbstractEventLoop) -> None:
        waiter = Waiter(loop)
        with pytest.raises(asyncio.InvalidStateError):
            waiter.result()
        task = started("one", waiter, [])
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="awaited once"):
            await waiter
        loop.call_soon(waiter.resolve)
        await task
        assert waiter.get_loop() is loop

    run(main)
