"""``engine.map``: a task for each row of any iterable, in bounded memory; a row's error is its value.

Rows are read in windows. A window's tasks run together by ``run_many``, as those of any caller do. The asynchronous
form runs one window while the rows of the window before it are being used.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
)
from typing import Any, TypeAlias, TypeVar

from prelude.api.bar import RowBar
from prelude.api.windows import Mapped, Window, window_size, windows
from prelude.errors import EngineClosed, InvalidRequest, QueueFull, shown
from prelude.values.options import RequestOptions, merge_options

T = TypeVar("T")
RunMany: TypeAlias = Callable[..., list[Any]]  # of an engine
RunManyAsync: TypeAlias = Callable[..., Awaitable[list[Any]]]

FIRST_WAIT, LONGEST_WAIT = 0.01, 1.0  # seconds; for places in a queue that other callers have filled
PULLED = 64  # rows that are read from an iterable before the event loop gets its turn
RUNNING = 2  # windows of one asynchronous map


def checked(make: Any, rows: Any, window: int, keywords: Mapping[str, Any]) -> tuple[int, RequestOptions]:
    """Return the window's size and the options of every request; ``InvalidRequest`` names the argument."""
    if not callable(make):
        raise InvalidRequest(f"{shown(make)} is not a function from a row to its task", field="task")
    if not hasattr(rows, "__iter__") and not hasattr(rows, "__aiter__"):
        raise InvalidRequest(f"{shown(rows)} cannot be iterated over", field="rows")
    return window_size(window), merge_options(None, keywords)


def map_rows(
    run_many: RunMany,
    make: Callable[[T], Any],
    rows: Iterable[T],
    size: int,
    ordered: bool,
    bar: RowBar,
    options: RequestOptions,
) -> Iterator[Mapped[T, Any]]:
    with bar:
        for number, window in enumerate(windows(make, rows, lambda: size)):
            results = run_places(run_many, window, window.grouped(descending=number % 2 == 1), options)
            bar.end_window(len(window.rows), results)
            yield from in_order(window, results, ordered)


def run_places(run_many: RunMany, window: Window[Any], places: list[int], options: RequestOptions) -> dict[int, Any]:
    """Return the results of the tasks at these ``places`` of the window."""
    results: dict[int, Any] = {}
    wait = FIRST_WAIT
    while places:
        tasks = [window.tasks[at] for at in places]
        found = run_many(tasks, options, return_exceptions=True, progress=False)
        places = keep(places, found, results)
        if places:
            time.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)
    return results


async def map_rows_async(
    run_many: RunManyAsync,
    make: Callable[[T], Any],
    rows: Iterable[T] | AsyncIterable[T],
    size: int,
    ordered: bool,
    bar: RowBar,
    options: RequestOptions,
) -> AsyncIterator[Mapped[T, Any]]:
    running: deque[asyncio.Task[tuple[Window[T], dict[int, Any]]]] = deque()
    source = windows_async(make, rows, size)
    number, ended = 0, False
    failed: Exception | None = None
    try:
        with bar:
            while running or not ended:
                while not ended and len(running) < RUNNING:
                    try:
                        window = await anext(source)
                    except StopAsyncIteration:
                        ended = True
                    except Exception as error:  # of the caller's rows; the rows before it are answered first
                        failed, ended = error, True
                    else:
                        running.append(asyncio.create_task(run_window(run_many, window, number % 2 == 1, options)))
                        number += 1
                if not running:
                    break
                if not ordered:
                    await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    running.rotate(-next(at for at, one in enumerate(running) if one.done()))
                window, results = await running.popleft()
                bar.end_window(len(window.rows), results)
                for mapped in in_order(window, results, ordered):
                    yield mapped
        if failed is not None:
            raise failed
    finally:
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await source.aclose()


async def run_window(
    run_many: RunManyAsync, window: Window[T], descending: bool, options: RequestOptions
) -> tuple[Window[T], dict[int, Any]]:
    places = window.grouped(descending)
    results: dict[int, Any] = {}
    wait = FIRST_WAIT
    while places:
        tasks = [window.tasks[at] for at in places]
        found = await run_many(tasks, options, return_exceptions=True, progress=False)
        places = keep(places, found, results)
        if places:
            await asyncio.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)
    return window, results


async def windows_async(
    make: Callable[[T], Any], rows: Iterable[T] | AsyncIterable[T], size: int
) -> AsyncGenerator[Window[T], None]:
    """Yield as ``windows`` does. The event loop gets its turn while the rows of an iterable are read."""
    window: Window[T] = Window(0)
    failed: Exception | None = None
    try:
        async for row in rows if isinstance(rows, AsyncIterable) else with_turns(rows):
            window.add(row, make)
            if window.full(size):
                yield window
                window = Window(window.first + len(window.rows))
    except Exception as error:
        failed = error
    if window.rows:
        yield window
    if failed is not None:
        raise failed


async def with_turns(rows: Iterable[T]) -> AsyncIterator[T]:
    for number, row in enumerate(rows, start=1):
        yield row
        if number % PULLED == 0:
            await asyncio.sleep(0)


def keep(places: list[int], found: list[Any], results: dict[int, Any]) -> list[int]:
    """Puts ``found`` into ``results``; returns the places whose tasks found the queue full. A closed engine
    ends the whole map."""
    again: list[int] = []
    for at, result in zip(places, found):
        if isinstance(result, QueueFull):
            again.append(at)
        elif isinstance(result, EngineClosed):
            raise result
        else:
            results[at] = result
    return again


def in_order(window: Window[T], results: Mapping[int, Any], ordered: bool) -> Iterator[Mapped[T, Any]]:
    """Yield rows in their order, or in the order in which they ran, those without a task first."""
    every = range(len(window.rows))
    for at in every if ordered else [*(at for at in every if at not in results), *results]:
        yield window.mapped(at, results)
