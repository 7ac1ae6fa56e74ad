"""AsyncEngine and its synchronous twin Engine: text in, results out, over one EngineCore.

The verbs are thin: each makes a task and runs it. ``run`` prepares the task once (on a thread of its own where
the text is long), submits what came of it, and turns the outcome into the caller's result in the caller's thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from prelude.admission.prepared import Admitted, Outcome
from prelude.admission.preparer import Preparer
from prelude.admission.snapshot import snapshot
from prelude.batch import SampleOutput
from prelude.chunks import AsyncSink, AsyncTextStream, Outbox, TextStream, watching
from prelude.config import EngineConfig
from prelude.core import EngineCore, LoopFlush
from prelude.errors import EngineClosed, InvalidRequest
from prelude.results import (
    Answers,
    Classification,
    Completion,
    Embedding,
    Explanation,
    LoglikelihoodResult,
    PromptLogprobsResult,
)
from prelude.scheduling.request import Request, Sink
from prelude.tasks import (
    Activation,
    Classify,
    Decide,
    Embed,
    Generate,
    LengthNorm,
    Loglikelihood,
    Pooling,
    Prompt,
    PromptLogprobs,
    Question,
    SamplingParams,
    Task,
)

# Text longer than this is tokenised on a preparing thread, so that it cannot hold up the caller's loop.
_INLINE_CHARS = 4096


@dataclass(frozen=True, slots=True)
class Health:
    """``ok`` is False after several failed steps in a row, or when the engine is closed."""

    ok: bool
    failed_steps_in_a_row: int
    last_error: str | None
    closed: bool


class _Base:
    """What both engines share: the parts, and everything that needs no waiting."""

    def __init__(self, core: EngineCore, preparer: Preparer, model_path: Path) -> None:
        self._core = core
        self._preparer = preparer
        self.model_path = model_path

    def explain(self, task: Task) -> Explanation:
        """What would run for ``task``: final text, ids, rows, labels. Runs nothing."""
        return self._preparer.explain(task)

    def stats(self) -> dict[str, Any]:
        """Counters since the engine was made."""
        preparer = self._preparer
        return {**asdict(self._core.stats), "tokenizer_calls": preparer.tokenizer_calls, **preparer.decode_states}

    def health(self) -> Health:
        core = self._core
        error = core.last_error
        return Health(
            core.healthy and not core.closed,
            core.failures_in_a_row,
            None if error is None else f"{type(error).__name__}: {error}",
            core.closed,
        )


def _result(admitted: Admitted, outcome: Outcome | None, error: BaseException | None) -> Any:
    if error is not None:
        raise error
    return admitted.finish(cast(Outcome, outcome))


def _request(core: EngineCore, admitted: Admitted, sink: Sink) -> Request:
    return core.request(admitted.prepared, watching(admitted, sink))


def _stream_task(prompt: Prompt, params: SamplingParams | None, options: dict[str, Any]) -> Generate:
    params = params or SamplingParams()
    if getattr(params, "prompt_logprobs", None) is not None:
        raise InvalidRequest("a stream has no place for them; use complete()", field="params.prompt_logprobs")
    return Generate(prompt, params, **options)


class _EndSink:
    """A sink that wants the end alone."""

    streams = False

    def token(self, request: Request, token_id: int, output: SampleOutput, row: int) -> bool:
        return False


# ------------------------------------------------------------------ synchronous


class _BlockingSink(_EndSink):
    """Collects the ends of a group of requests; ``wait`` returns when all have ended."""

    def __init__(self, count: int) -> None:
        self.ends: dict[int, tuple[Outcome | None, BaseException | None]] = {}
        self._left = count
        self._done = threading.Event()

    def deliver(self, request: Request, outcome: Outcome | None, error: BaseException | None) -> None:
        self.ends[id(request)] = (outcome, error)
        self._left -= 1
        if self._left == 0:
            self._done.set()

    def wait(self) -> None:
        if self._left:
            self._done.wait()


class Engine(_Base):
    """The synchronous engine. Any number of threads may call it; an idle engine runs the caller's step in the
    caller's own thread."""

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        config: EngineConfig | None = None,
    ) -> Engine:
        """Loads a model directory or a hub name; ``None`` is the model that ships with the package.

        Raises ``ModelError`` (bad directory, unsupported feature, not enough memory) or ``ConfigError``.
        """
        from prelude.loading import load

        parts = load(model, device=device, dtype=dtype, config=config or EngineConfig())
        return cls(parts.core, parts.preparer, parts.path)

    def run(self, task: Task) -> Any:
        """Runs one task. The result's type follows the task's."""
        return self.run_many([task])[0]

    def run_many(self, tasks: Sequence[Task], *, return_exceptions: bool = False) -> list[Any]:
        """Runs tasks together; results in the order of ``tasks``. A bad task fails alone: its error is in its place
        with ``return_exceptions``, else it is raised when the others have ended."""
        admitted: list[Admitted | Exception] = [_caught(self._preparer.prepare, task) for task in tasks]
        sink = _BlockingSink(0)
        requests: list[Request | Exception] = [
            item if isinstance(item, Exception) else _caught(_request, self._core, item, sink)
            for item in admitted
        ]
        live = [request for request in requests if isinstance(request, Request)]
        sink._left = len(live)
        if live:
            self._core.run_inline(live)
            sink.wait()
        results: list[Any] = []
        for item, request in zip(admitted, requests):
            if isinstance(request, Exception):
                results.append(request)
            else:
                results.append(_caught(_result, item, *sink.ends[id(request)]))
        return _raise_first(results, return_exceptions)

    def decide(self, state: Prompt, questions: Sequence[Question], **options: Any) -> Answers:
        return cast(Answers, self.run(Decide(state, questions, **options)))

    def classify(self, prompt: Prompt, **options: Any) -> Classification:
        return cast(Classification, self.run(Classify(prompt, **options)))

    def embed(self, prompt: Prompt, **options: Any) -> Embedding:
        return cast(Embedding, self.run(Embed(prompt, **options)))

    def loglikelihood(
        self, context: Prompt, continuation: str | Sequence[int], **options: Any
    ) -> LoglikelihoodResult:
        return cast(LoglikelihoodResult, self.run(Loglikelihood(context, continuation, **options)))

    def prompt_logprobs(self, prompt: Prompt, **options: Any) -> PromptLogprobsResult:
        return cast(PromptLogprobsResult, self.run(PromptLogprobs(prompt, **options)))

    def complete(self, prompt: Prompt, params: SamplingParams | None = None, **options: Any) -> Completion:
        return cast(Completion, self.run(Generate(prompt, params or SamplingParams(), **options)))

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, hold_words: bool = False, **options: Any
    ) -> TextStream:
        """Chunks of the text after ``prompt`` as they come; see ``AsyncEngine.generate``."""
        task = _stream_task(prompt, params, options)
        return TextStream(self._core, self._preparer.prepare(task), hold_words)

    def close(self, *, drain: bool = True) -> None:
        """Waits for what was submitted (or fails it with ``drain=False``) and gives everything back. Idempotent."""
        self._core.close(drain=drain)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _caught(function: Any, *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return error


def _raise_first(results: list[Any], return_exceptions: bool) -> list[Any]:
    if not return_exceptions:
        for result in results:
            if isinstance(result, Exception):
                raise result
    return results


# ------------------------------------------------------------------ asyncio


class _Outbox(LoopFlush):
    """Ends of requests on their way to one event loop: collected during a step, handed over by one wake-up."""

    def __init__(self, loop: asyncio.AbstractEventLoop, core: EngineCore) -> None:
        self._loop = loop
        self._core = core
        self._ends: deque[tuple[_GroupSink | AsyncSink, Request, Outcome | None, BaseException | None]] = deque()
        self._queued = False

    def put(
        self, sink: _GroupSink | AsyncSink, request: Request, outcome: Outcome | None, error: BaseException | None
    ) -> None:
        self._ends.append((sink, request, outcome, error))
        if not self._queued:
            self._queued = True
            self._core.on_step_end.append(self)

    def flush(self) -> None:
        self._queued = False
        try:
            self._loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:  # the loop is closed: nobody is waiting any more
            self._ends.clear()

    def _deliver(self) -> None:
        while self._ends:
            sink, request, outcome, error = self._ends.popleft()
            sink.end(request, outcome, error)


class _GroupSink(_EndSink):
    """The ends of a group of requests, and one future for all of them, in the loop that awaits it."""

    def __init__(self, outbox: _Outbox, future: asyncio.Future[None]) -> None:
        self._outbox = outbox
        self.future = future
        self.left = 0
        self.ends: dict[int, tuple[Outcome | None, BaseException | None]] = {}

    def deliver(self, request: Request, outcome: Outcome | None, error: BaseException | None) -> None:
        self._outbox.put(self, request, outcome, error)

    def end(self, request: Request, outcome: Outcome | None, error: BaseException | None) -> None:
        self.ends[id(request)] = (outcome, error)
        self.left -= 1
        if self.left == 0 and not self.future.done():
            self.future.set_result(None)


class AsyncEngine:
    """The engine inside an asyncio service. ``async with`` loads it off the loop and closes it at the end.

    Any number of loops and threads may use it at the same time. Cancelling an awaiting task gives back what its
    request holds.
    """

    def __init__(self, engine: Engine | None = None, **load: Any) -> None:
        self._engine = engine
        self._load = load
        self._pool: ThreadPoolExecutor | None = None
        self._outboxes: dict[int, _Outbox] = {}
        self._start_lock = threading.Lock()

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        config: EngineConfig | None = None,
    ) -> AsyncEngine:
        """As ``Engine.from_pretrained``; the loading itself happens in ``async with``, or in ``await start()``, on a
        thread, so that the loop goes on."""
        return cls(model=model, device=device, dtype=dtype, config=config)

    # -------------------------------------------------------------- lifecycle

    async def start(self) -> AsyncEngine:
        if self._engine is None:
            await asyncio.to_thread(self._start)
        return self

    def _start(self) -> None:
        with self._start_lock:
            if self._engine is None:
                self._engine = Engine.from_pretrained(self._load.pop("model"), **self._load)

    async def aclose(self, *, drain: bool = True) -> None:
        """Stops taking requests, waits for those under way (``drain``) or fails them, and frees the model."""
        if self._engine is not None:
            await asyncio.to_thread(self._engine.close, drain=drain)
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    async def __aenter__(self) -> AsyncEngine:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose(drain=kind is None)

    @property
    def engine(self) -> Engine:
        """The synchronous twin over the same core; it may be used from other threads meanwhile."""
        if self._engine is None:
            raise EngineClosed("the engine is not started: use `async with`, or `await engine.start()` first")
        return self._engine

    # -------------------------------------------------------------- running tasks

    async def run(self, task: Task) -> Any:
        """Runs one task. The result's type follows the task's."""
        return (await self.run_many([task]))[0]

    async def run_many(self, tasks: Sequence[Task], *, return_exceptions: bool = False) -> list[Any]:
        """Runs tasks together (one future, one wake-up); results in the order of ``tasks``."""
        if self._engine is None:
            await self.start()
        engine = self.engine
        tasks = [engine._preparer.snapshot(task) for task in tasks]
        admitted = await self._prepare(engine, tasks)
        loop = asyncio.get_running_loop()
        sink = _GroupSink(self._outbox(loop, engine._core), loop.create_future())
        requests: list[Request | Exception] = [
            item if isinstance(item, Exception) else _caught(_request, engine._core, item, sink)
            for item in admitted
        ]
        live = [request for request in requests if isinstance(request, Request)]
        if live:
            sink.left = len(live)
            engine._core.submit_many(live)
            try:
                await sink.future
            except asyncio.CancelledError:
                for waiting in live:
                    engine._core.cancel(waiting)
                raise
        results: list[Any] = []
        for item, request in zip(admitted, requests):
            if isinstance(request, Exception):
                results.append(request)
            else:
                results.append(_caught(_result, item, *sink.ends[id(request)]))
        return _raise_first(results, return_exceptions)

    async def _prepare(self, engine: Engine, tasks: Sequence[Task]) -> list[Any]:
        if sum(_text_size(task) for task in tasks) <= _INLINE_CHARS:
            return [_caught(engine._preparer.prepare, task) for task in tasks]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(engine._preparer.prepare_threads, "prelude-prepare")
        loop = asyncio.get_running_loop()
        futures = [loop.run_in_executor(self._pool, _caught, engine._preparer.prepare, task) for task in tasks]
        return list(await asyncio.gather(*futures))

    def _outbox(self, loop: asyncio.AbstractEventLoop, core: EngineCore) -> _Outbox:
        outbox = self._outboxes.get(id(loop))
        if outbox is None or outbox._loop is not loop:
            for key, other in list(self._outboxes.items()):
                if other._loop.is_closed():
                    del self._outboxes[key]
            outbox = self._outboxes[id(loop)] = _Outbox(loop, core)
        return outbox

    # -------------------------------------------------------------- the verbs

    async def decide(
        self, state: Prompt, questions: Sequence[Question], *, length_norm: LengthNorm = "none", **options: Any
    ) -> Answers:
        """Answers every question about ``state`` in one forward pass; the state is computed once."""
        return cast(Answers, await self.run(Decide(state, questions, length_norm=length_norm, **options)))

    async def classify(self, prompt: Prompt, *, activation: Activation = "default", **options: Any) -> Classification:
        """The model's own classification head."""
        return cast(Classification, await self.run(Classify(prompt, activation=activation, **options)))

    async def embed(
        self,
        prompt: Prompt,
        *,
        pooling: Pooling | None = None,
        dimensions: int | None = None,
        normalize: bool | None = True,
        **options: Any,
    ) -> Embedding:
        """A float32 vector ``[dimensions]``."""
        task = Embed(prompt, pooling=pooling, dimensions=dimensions, normalize=normalize, **options)
        return cast(Embedding, await self.run(task))

    async def loglikelihood(
        self, context: Prompt, continuation: str | Sequence[int] | npt.NDArray[np.integer[Any]], **options: Any
    ) -> LoglikelihoodResult:
        """Total and per-token logprob of ``continuation`` after ``context``."""
        return cast(LoglikelihoodResult, await self.run(Loglikelihood(context, continuation, **options)))

    async def prompt_logprobs(
        self, prompt: Prompt, *, top: int = 5, last: int | None = None, **options: Any
    ) -> PromptLogprobsResult:
        """Logprob, rank and the ``top`` alternatives of the prompt's tokens, or of its ``last`` ones."""
        return cast(PromptLogprobsResult, await self.run(PromptLogprobs(prompt, top=top, last=last, **options)))

    async def complete(self, prompt: Prompt, params: SamplingParams | None = None, **options: Any) -> Completion:
        """Text after ``prompt``."""
        return cast(Completion, await self.run(Generate(prompt, params or SamplingParams(), **options)))

    def generate(
        self, prompt: Prompt, params: SamplingParams | None = None, *, hold_words: bool = False, **options: Any
    ) -> AsyncTextStream:
        """``async for chunk in engine.generate(...)``: the text after ``prompt`` as it comes.

        All chunks' ``text`` is that of ``complete``; the last chunk, and no other, has ``finish_reason`` and
        ``stats``. ``hold_words`` ends chunks between words where it can. Leaving the loop early cancels the request.
        """
        task = _stream_task(prompt, params, options)
        return AsyncTextStream(partial(self._admit_stream, snapshot(task)), hold_words)

    async def _admit_stream(self, task: Generate) -> tuple[EngineCore, Admitted, Outbox]:
        if self._engine is None:
            await self.start()
        engine = self.engine
        [admitted] = await self._prepare(engine, [task])
        if isinstance(admitted, Exception):
            raise admitted
        return engine._core, admitted, self._outbox(asyncio.get_running_loop(), engine._core)

    # -------------------------------------------------------------- seen from outside

    def explain(self, task: Task) -> Explanation:
        """What would run for ``task``. Runs nothing."""
        return self.engine.explain(task)

    def stats(self) -> dict[str, Any]:
        """Counters since the engine was made."""
        return self.engine.stats()

    def health(self) -> Health:
        return self.engine.health()


def _text_size(task: Task) -> int:
    """Characters that are going to be tokenised, roughly; unknown shapes count 0 and fail in prepare."""
    prompt = getattr(task, "state", None) or getattr(task, "prompt", None) or getattr(task, "context", None)
    if isinstance(prompt, str):
        return len(prompt)
    if isinstance(prompt, list | tuple) and prompt and isinstance(prompt[0], dict):
        return sum(len(str(message.get("content", ""))) for message in prompt)
    return 0
