"""The stream of an event loop. The completion queue of the loop wakes the task that waits for the next chunk."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

from prelude.admission.prepared import Admitted
from prelude.api.text_streams import SubmittedStream
from prelude.errors import WrongUse
from prelude.results import Chunk
from prelude.runtime.core import Call, EngineCore
from prelude.runtime.handover import CompletionQueue

if TYPE_CHECKING:
    from typing_extensions import Self

# The values that a stream starts with.
Start: TypeAlias = "tuple[EngineCore, Admitted, CompletionQueue, Call]"


class AsyncTextStream(SubmittedStream):
    """Asynchronous iterator over the chunks of one text; also an asynchronous context manager.

    The request is submitted when the first chunk is asked for. Cancelling the task that waits for a chunk, ``aclose``
    and letting go of the stream all cancel it. One task reads at a time, in the loop in which it began: that is the
    one that is woken.
    """

    def __init__(self, start: Callable[[], Awaitable[Start]], hold_words: bool) -> None:
        self._start = start
        self._hold_words = hold_words
        self._wakes = _Waiter()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._reading = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        if self._reading:
            raise WrongUse("another task is waiting for this stream's next chunk")
        if self._closed:
            raise StopAsyncIteration
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise WrongUse("this stream began in another event loop, which gets its chunks; read it there")
        self._reading = True
        try:
            chunk = await self._next(loop)
        except BaseException:  # cancellation too: a stream that is not read any more holds nothing
            self.close()
            raise
        finally:
            self._reading = False
        self._closed = self._closed or chunk.finish_reason is not None
        return chunk

    async def _next(self, loop: asyncio.AbstractEventLoop) -> Chunk:
        sink = self._sink
        if sink is None:
            core, admitted, completions, call = await self._start()
            if self._closed:
                raise StopAsyncIteration
            wake = self._wakes.wake
            sink = self._submit(
                core, admitted, self._hold_words, call, lambda request: completions.put(wake), completions
            )
        while True:
            chunk = sink.take()
            if chunk is not None:
                return chunk
            self._wakes.future = waiter = loop.create_future()
            await waiter
            if self._closed:
                raise StopAsyncIteration

    def close(self) -> None:
        """Close as ``aclose`` does, which has nothing to wait for. Idempotent."""
        self._closed = True
        self._cancel()
        waiter, loop = self._wakes.future, self._loop
        if waiter is None or loop is None or waiter.done():
            return
        if loop is asyncio._get_running_loop():
            self._wakes.wake()
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed: no task waits there
                loop.call_soon_threadsafe(self._wakes.wake)

    async def aclose(self) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()


class _Waiter:
    """The task that waits for a chunk. It is woken in its loop."""

    future: asyncio.Future[None] | None = None

    def wake(self) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_result(None)
