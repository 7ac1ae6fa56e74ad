"""``engine.map``: a task for each row of any iterable, in bounded memory; a row's error is its value.

Rows are read in windows. A window's tasks run together by ``run_many``, as those of any caller do. In an event loop
one window runs while the rows of the window before it are being used.
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
    Sequence,
)
from typing import Any, TypeAlias, TypeVar

from prelude.api.compound import at_once, each
from prelude.api.windows import Mapped, Window, window_size
from prelude.errors import EngineClosed, InvalidRequest, QueueFull, shown
from prelude.terminal.progress import Progress
from prelude.values.options import RequestOptions, merge_options

T = TypeVar("T")
ProgressCallback: TypeAlias = Callable[[int, int | None], object]  # rows that ended, and all if known
RunMany: TypeAlias = Callable[..., Awaitable[list[Any]]]  # of an engine

FIRST_WAIT, LONGEST_WAIT = 0.01, 1.0  # seconds; for places in a queue that other callers have filled
PULLED = 64  # rows that are read from an iterable before the event loop gets its turn
RUNNING = 2  # windows of one asynchronous map


def checked(
    make: Any, rows: Any, window: int, keywords: Mapping[str, Any], iterable: Sequence[str]
) -> tuple[int, RequestOptions]:
    """Return the window's size and the options of every request; ``InvalidRequest`` names the argument."""
    if not callable(make):
        raise InvalidRequest(f"{shown(make)} is not a function from a row to its task", field="task")
    if not any(hasattr(rows, name) for name in iterable):
        raise InvalidRequest(f"{shown(rows)} cannot be iterated over", field="rows")
    return window_size(window), merge_options(None, keywords)


def map_rows_now(run_many: Callable[..., list[Any]], *given: Any) -> Iterator[Mapped[Any, Any]]:
    """Run ``map_rows`` of the same arguments without an event loop, a window at a time."""
    return each(map_rows(at_once(run_many), *given, pause=at_once(time.sleep), start=lambda one: one, most=1))


async def map_rows(
    run_many: RunMany,
    make: Callable[[T], Any],
    rows: Iterable[T] | AsyncIterable[T],
    size: int,
    ordered: bool,
    bar: RowBar,
    options: RequestOptions,
    *,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    start: Callable[[Any], Any] = asyncio.create_task,
    most: int = RUNNING,
) -> AsyncGenerator[Mapped[T, Any], None]:
    """Yield the rows of each window when it has run. ``most`` windows are in memory, each run by what ``start`` makes
    of it."""
    running: deque[Any] = deque()
    source = windows(make, rows, lambda: size)
    number, ended = 0, False
    failed: Exception | None = None
    try:
        with bar:
            while running or not ended:
                while not ended and len(running) < most:
                    try:
                        window = await anext(source)
                    except StopAsyncIteration:
                        ended = True
                    except Exception as error:  # of the caller's rows; the rows before it are answered first
                        failed, ended = error, True
                    else:
                        running.append(start(run_window(run_many, window, number % 2 == 1, options, pause)))
                        number += 1
                if not running:
                    break
                if not ordered and len(running) > 1:
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
        if running:
            await asyncio.gather(*running, return_exceptions=True)
        await source.aclose()


async def run_window(
    run_many: RunMany,
    window: Window[T],
    descending: bool,
    options: RequestOptions,
    pause: Callable[[float], Awaitable[None]],
) -> tuple[Window[T], dict[int, Any]]:
    """Return the window and the results of its tasks, by their places in it."""
    places = window.grouped(descending)
    results: dict[int, Any] = {}
    wait = FIRST_WAIT
    while places:
        tasks = [window.tasks[at] for at in places]
        found = await run_many(tasks, options, return_exceptions=True, progress=False)
        places = keep(places, found, results)
        if places:
            await pause(wait)
            wait = min(2 * wait, LONGEST_WAIT)
    return window, results


async def windows(
    make: Callable[[T], Any], rows: Iterable[T] | AsyncIterable[T], size: Callable[[], int]
) -> AsyncGenerator[Window[T], None]:
    """Yield windows of at most ``size()`` rows. An exception of ``rows`` is raised after the window of the rows
    before."""
    window: Window[T] = Window(0)
    failed: Exception | None = None
    try:
        async for row in rows if isinstance(rows, AsyncIterable) else with_turns(rows):
            window.add(row, make)
            if window.full(size()):
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


# ------------------------------------------------------------------ the bar


class RowBar(Progress):
    """Show rows, rows a second, the share of prompt tokens that the cache had, and the time that is left."""

    def __init__(self, told: bool | ProgressCallback | None, total: int | None, unit: str = "row") -> None:
        super().__init__(told, total, unit)
        self.rows = self.prompt_tokens = self.cached_tokens = 0

    def end_window(self, rows: int, results: Mapping[int, Any]) -> None:
        """Count a window of ``rows`` that has ended. ``results``: those of its tasks."""
        for result in results.values():
            stats = getattr(result, "stats", None)
            if stats is not None:
                self.prompt_tokens += stats.prompt_tokens
                self.cached_tokens += stats.cached_tokens
        self.rows += rows
        if self._bar is not None:
            self._bar.set_postfix_str(self.words(), refresh=False)
        self.advance(self.ended(rows))

    def words(self) -> str:
        return f"cache {self.hit_rate:.0%}"

    def ended(self, rows: int) -> int:
        return rows

    @property
    def hit_rate(self) -> float:
        """The share of prompt tokens that were taken from the prefix cache."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


def length(rows: Any) -> int | None:
    """Return the number of rows, if they tell it."""
    try:
        return len(rows)
    except TypeError:
        return None
