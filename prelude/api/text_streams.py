"""From the tokens of a step to the caller that reads them: sinks on the engine's side, an iterator on the caller's.

The engine's thread appends to a deque and wakes the reader once when there is text; the text that
arrives before the next read becomes one chunk. A stream is closed by ``close``/``aclose``, by cancelling the task
that waits for it, or by letting go of it: each of these cancels the request.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from prelude.admission.prepared import Admitted, Outcome
from prelude.readouts.batch import SampleOutput
from prelude.results import Chunk, Completion, SampledLogprob
from prelude.runtime.core import Call, EngineCore
from prelude.runtime.handover import CompletionQueue
from prelude.scheduling.request import Request
from prelude.scheduling.timeline import Timeline

if TYPE_CHECKING:
    from typing_extensions import Self


class StreamSink:
    """The engine's end of a stream. ``notify`` is called at most once between two calls of ``take``."""

    streams = True

    def __init__(self, admitted: Admitted, hold_words: bool, notify: Callable[[Request], None]) -> None:
        self._admitted = admitted
        self._reader = admitted.reader(hold_words) if admitted.reader else None
        self._notify = notify
        self.timeline: Timeline | None = None
        self._ready = 0.0  # when the first token of the next chunk was, of a stream that is traced
        self._told = False
        self._tokens: deque[tuple[str, int, SampledLogprob | None]] = deque()
        self._tail = ""
        self._outcome: Outcome | None = None
        self._error: BaseException | None = None
        self._ended = False
        self._given = 0  # code points in earlier chunks
        self._early: list[tuple[str, int, SampledLogprob | None]] = []  # taken without any text yet
        self._wants_logprobs = (
            admitted.prepared.sampling is not None and admitted.prepared.sampling.logprobs is not None
        )
        self.abandoned = False

    # ---- the engine's thread

    def token(self, request: Request, token_id: int, output: SampleOutput, row: int) -> bool:
        if self.abandoned or self._reader is None:
            return False  # the cancel that comes with it ends the request, before the next step
        text, logprob, stop = self._reader.token(token_id, output, row)
        if self.timeline is not None:
            self.timeline.mark("detokenise")
            self._ready = self._ready or time.perf_counter()
        self._tokens.append((text, token_id, logprob))
        if text and not stop:  # the end wakes the reader anyway
            self._tell(request)
        return stop

    def deliver(self, request: Request, outcome: Outcome | None, error: BaseException | None) -> None:
        if self._reader is not None:
            began = time.perf_counter()
            if outcome is None:
                self._reader.close()
            else:
                self._tail = self._reader.finish(outcome.stats)
            if self.timeline is not None:
                self.timeline.mark("detokenise", began)
                self._ready = self._ready or time.perf_counter()
        self._outcome, self._error = outcome, error
        self._ended = True
        self._tell(request)

    def _tell(self, request: Request) -> None:
        if not self._told:
            self._told = True
            self._notify(request)

    # ---- the reader's thread

    def take(self) -> Chunk | None:
        """Return the text since the last call, as one chunk; None if there is no text yet. Raises the request's
        error, after the text before it was taken."""
        self._told = False  # before the text is read: text that comes later wakes the reader again
        ended = self._ended
        taken, self._early = self._early, []
        while self._tokens:
            taken.append(self._tokens.popleft())
        text = "".join([part for part, _, _ in taken])
        if not ended or (self._error is not None and text):
            if text:
                return self._chunk(text, taken)
            self._early = taken
            return None
        if self._error is not None:
            raise self._error
        return self._last(text + self._tail, taken)

    @property
    def ended(self) -> bool:
        return self._ended

    def _chunk(self, text: str, taken: list[tuple[str, int, SampledLogprob | None]]) -> Chunk:
        logprobs = tuple([lp for _, _, lp in taken if lp is not None]) if self._wants_logprobs else None
        chunk = Chunk(text, tuple([token_id for _, token_id, _ in taken]), self._given, logprobs)
        self._given += len(text)
        if self.timeline is not None:
            ready, self._ready = self._ready, 0.0
            self.timeline.add("stream", ready or time.perf_counter(), time.perf_counter())
        return chunk

    def _last(self, text: str, taken: list[tuple[str, int, SampledLogprob | None]]) -> Chunk:
        outcome = self._outcome
        if outcome is None:
            raise RuntimeError("a request ended with neither outcome nor error")
        if self._reader is not None:
            chunk = self._chunk(text, taken)
            reason = outcome.stats.finish_reason
            if self.timeline is not None:
                outcome.stats.timeline = self.timeline.close()
            return Chunk(chunk.text, chunk.token_ids, chunk.offset, chunk.logprobs, reason, outcome.stats)
        # One step, one token: nothing to read along.
        done: Completion = self._admitted.result(outcome, self.timeline)
        return Chunk(done.text, done.token_ids, 0, done.logprobs, done.finish_reason, done.stats)


class SubmittedStream:
    """The request of a stream. Letting go of the stream cancels it."""

    _core: EngineCore
    _request: Request
    _sink: StreamSink | None = None

    def _submit(
        self,
        core: EngineCore,
        admitted: Admitted,
        hold_words: bool,
        call: Call,
        notify: Callable[[Request], None],
        completions: CompletionQueue | None = None,
    ) -> StreamSink:
        sink = StreamSink(admitted, hold_words, notify)
        request = core.request(admitted.prepared, sink, call.options, expires=call.expires)
        request.timeline = sink.timeline = call.timeline
        request.completions = completions
        self._core, self._request, self._sink = core, request, sink
        core.submit(request)
        return sink

    def _cancel(self) -> None:
        """Also from a finaliser. No lock may be taken here: the garbage collector may have come in while this very
        thread holds it. While the request lives the engine is stepping, so it needs no waking."""
        sink = self._sink
        if sink is not None and not sink.ended and not sink.abandoned:
            sink.abandoned = True
            self._core.cancel(self._request)

    def __del__(self) -> None:
        self._cancel()


class TextStream(SubmittedStream):
    """Iterates over the chunks of one text; also a context manager. ``close`` cancels the rest."""

    def __init__(self, core: EngineCore, admitted: Admitted, hold_words: bool, call: Call) -> None:
        some = self._some = threading.Event()
        self._closed = False
        self._chunks = self._submit(core, admitted, hold_words, call, lambda request: some.set())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        while not self._closed:
            self._some.clear()
            try:
                chunk = self._chunks.take()
                if chunk is None:
                    self._core.check_may_wait()
                    self._some.wait()
                    continue
            except BaseException:
                self.close()
                raise
            self._closed = chunk.finish_reason is not None
            return chunk
        raise StopIteration

    def close(self) -> None:
        """Idempotent."""
        self._closed = True
        self._cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
