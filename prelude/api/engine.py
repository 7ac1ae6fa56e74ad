"""AsyncEngine, and beside it (``prelude.api.sync``) its twin Engine: text in, results out, over one EngineCore.

The verbs are thin: each makes a task and runs it. ``run`` prepares the task once (on a thread of its own if
the text is long), submits its request, and turns the outcome into the caller's result in the caller's thread.
"""

from __future__ import annotations

import asyncio
import threading
from asyncio import get_running_loop
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from prelude.admission.prepared import Admitted
from prelude.admission.preparer import Preparer
from prelude.admission.snapshot import PROMPT_FIELDS, snapshot
from prelude.api.async_streams import AsyncTextStream
from prelude.api.base import Health, not_loaded
from prelude.api.call_steps import (
    PART_TASKS,
    TURN_PAIRS,
    TURN_RESULTS,
    first_error,
    parts,
    task_list,
)
from prelude.api.compound import adrive
from prelude.api.sync import Engine
from prelude.api.verbs import Ask, AskStream, AsyncVerbs, RequestKeywords
from prelude.api.windows import WINDOW_ROWS
from prelude.errors import ConfigError, EngineClosed, ExecutionError, shown, starting_thread
from prelude.results import Explanation
from prelude.runtime.core import Call, EngineCore, Options, finish_all, make_calls, mark_all
from prelude.runtime.events import Listener
from prelude.runtime.handover import CompletionQueue, Completions, LoopSink, Turn
from prelude.scheduling.request import Request
from prelude.tasks import Generate, R, Task, TaskOf
from prelude.terminal.progress import Advance, Progress
from prelude.values.config import EngineConfig
from prelude.values.options import RequestOptions
from prelude.values.validation import rough_size

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from prelude.api.mapping import ProgressCallback
    from prelude.api.windows import Mapped
    from prelude.fitting.fit import FitKeywords
    from prelude.fitting.question import FittedQuestion


T = TypeVar("T")
INLINE_CHARS = 4096  # more than this is prepared on threads, so that it cannot hold up the caller's loop
JOB_CHARS, JOB_TASKS = 1 << 16, 64  # of one job of a preparing thread
TASK_CHARS, QUESTION_CHARS, LABEL_CHARS = 64, 32, 16  # the cost of preparing one beside its text


class AsyncEngine(AsyncVerbs):
    """The engine inside an asyncio service. ``async with`` loads it off the loop and closes it at the end.

    Any number of loops and threads may use it at the same time. Cancelling an awaiting task gives back the
    resources of its request.
    """

    def __init__(self, engine: Engine | None = None, **load: Any) -> None:
        if engine is not None and not isinstance(engine, Engine):
            raise not_loaded("AsyncEngine", engine)
        self._engine = engine
        self._load = load
        self._pool: ThreadPoolExecutor | None = None
        self._loops: dict[int, tuple[CompletionQueue, Turn]] = {}
        self._start_lock = threading.Lock()
        self._closed = False

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        config: EngineConfig | None = None,
        revision: str | None = None,
        follow_links: bool = False,
    ) -> AsyncEngine:
        """As ``Engine.from_pretrained``; the loading itself happens in ``async with``, or in ``await start()``, on a
        thread, so that the loop goes on."""
        return cls(
            model=model, device=device, dtype=dtype, config=config, revision=revision, follow_links=follow_links
        )

    # -------------------------------------------------------------- lifecycle

    async def start(self) -> AsyncEngine:
        if self._closed:
            raise EngineClosed("the engine is closed; make a new one")
        if self._engine is None:
            with starting_thread():
                await asyncio.to_thread(self._start)
        return self

    def _start(self) -> None:
        with self._start_lock:
            if self._engine is None:
                load = dict(self._load)
                self._engine = Engine.from_pretrained(load.pop("model", None), **load)
        if self._closed:  # while it was loading, when there was nothing to close yet
            self._engine.close()
            raise EngineClosed("the engine was closed while it was loading; make a new one")

    async def aclose(self, *, drain: bool = True) -> None:
        """Stops taking requests, waits for those under way (``drain``) or fails them with ``EngineClosed``, and frees
        the model. Any number of times, from any loop; a later ``drain=False`` cuts an earlier draining short."""
        self._closed = True
        if self._engine is not None:
            try:
                with starting_thread():
                    await asyncio.to_thread(self._engine.close, drain=drain)
            except ExecutionError:  # no thread: the loop waits, and everything is given back
                self._engine.close(drain=drain)
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

    def __repr__(self) -> str:
        if self._engine is None:
            return f"<AsyncEngine {shown(str(self._load.get('model') or 'the packaged model'))}, not started>"
        return f"<AsyncEngine {self._engine._said()}{', closed' if self._closed else ''}>"

    # -------------------------------------------------------------- running tasks

    async def run(
        self, task: TaskOf[R], options: RequestOptions | None = None, **keywords: Unpack[RequestKeywords]
    ) -> R:
        """Runs one task. The result's type follows the task's. ``options``, or its fields as keywords (``priority``,
        ``deadline``, ``request_id``, ``tenant``, ``trace``), speak of this one request."""
        if self._engine is None:
            await self.start()
        [result] = await self._run_all((task,), options, keywords, None)
        if isinstance(result, Exception):
            raise result
        found: R = result
        return found

    @overload
    async def run_many(
        self,
        tasks: Iterable[TaskOf[R]],
        options: Options = None,
        *,
        return_exceptions: Literal[False] = False,
        progress: bool | Advance | None = None,
        **keywords: Unpack[RequestKeywords],
    ) -> list[R]: ...

    @overload
    async def run_many(
        self,
        tasks: Iterable[TaskOf[R]],
        options: Options = None,
        *,
        return_exceptions: bool,
        progress: bool | Advance | None = None,
        **keywords: Unpack[RequestKeywords],
    ) -> list[R | Exception]: ...

    async def run_many(
        self,
        tasks: Iterable[TaskOf[Any]],
        options: Options = None,
        *,
        return_exceptions: bool = False,
        progress: bool | Advance | None = None,
        **keywords: Unpack[RequestKeywords],
    ) -> list[Any]:
        """Runs tasks together (one future and one wake-up for some hundreds); results in the order of ``tasks``.
        ``options`` is one for all, or one each. When the queue is full, those that find no place have ``QueueFull``,
        at once. ``progress(done, total)`` is called in this loop as tasks end. True shows a tqdm bar, False none, and
        None one in a terminal, after a second."""
        if self._engine is None:
            await self.start()
        given = task_list(tasks)
        with Progress(progress, len(given), late="") as told:
            if len(given) > PART_TASKS:
                results = await self._run_parts(list(given), options, keywords, told)
            else:
                results = await self._run_all(given, options, keywords, told)
        return first_error(results, return_exceptions)

    def map(
        self,
        task: Callable[[T], TaskOf[R]],
        rows: Iterable[T] | AsyncIterable[T],
        *,
        window: int = WINDOW_ROWS,
        ordered: bool = True,
        progress: bool | ProgressCallback | None = None,
        **keywords: Unpack[RequestKeywords],
    ) -> AsyncIterator[Mapped[T, R]]:
        """Run ``Engine.map`` for ``async for``. ``rows`` may be an asynchronous iterable. Two windows are in memory:
        one runs while the rows of the window before it are being used."""
        from prelude.api.mapping import RowBar, checked, length, map_rows

        size, options = checked(task, rows, window, keywords, ("__iter__", "__aiter__"))
        return map_rows(self.run_many, task, rows, size, ordered, RowBar(progress, length(rows)), options)

    async def fit(
        self,
        texts: Sequence[str],
        labels: Sequence[Any],
        *,
        name: str,
        progress: bool | ProgressCallback | None = None,
        **keywords: Unpack[FitKeywords],
    ) -> FittedQuestion:
        """Run ``Engine.fit``: the vectors are computed as rows of ``map``, and the regression on a thread."""
        from prelude.fitting.fit import Fit

        if self._engine is None:
            await self.start()
        fit = Fit(*self.engine._fit_parts(), texts, labels, name, keywords)
        embedded = [one async for one in self.map(fit.task, fit.missing, progress=progress)]
        with starting_thread():
            return await asyncio.to_thread(fit.fitted, embedded)

    async def _run_all(
        self, tasks: Sequence[Any], options: Options, keywords: Mapping[str, Any], progress: Progress | None
    ) -> list[Any]:
        """``run_many`` of the tasks that one turn of the loop may begin with; errors are results."""
        engine, loop = self._engine or self.engine, get_running_loop()
        core, preparer = engine._core, engine._preparer
        completions, turn = self._ways(loop, engine)
        calls = make_calls(len(tasks), options, keywords)
        mark_all(calls, "prompt")
        with core.reserve(len(tasks)) as places:
            mark_all(calls, "accept")
            room = places.left
            given = tasks if room == len(tasks) else tasks[:room]
            if sum(map(text_size, given)) > INLINE_CHARS:
                admitted = await self._prepare(preparer, [preparer.snapshot(task) for task in given])
            else:
                admitted = preparer.prepare_all(given)
            admitted += [core.inbox.full() for _ in tasks[room:]]
            mark_all(calls, "tokenise")
            sink = LoopSink(completions, len(tasks), progress)
            requests = core.requests(admitted, calls, sink, completions)
            live = [one for one in requests if isinstance(one, Request)]
            sink.expected = len(live)
            if live:
                sink.ends.update(core.post(live, places))  # of those that are refused
                turn.posted()
        if progress is not None:
            progress.advance(len(tasks) - len(live) + len(sink.ends))
        try:
            if len(sink.ends) < len(live):
                await sink.future
        except BaseException:  # cancelled, or the loop went away and closed this coroutine
            for one in live:
                core.cancel(one)
            raise
        readouts = [None if isinstance(item, Exception) else item.prepared.readout for item in admitted]
        sizes = [0 if readout is None else readout.result_size for readout in readouts]
        if len(sizes) <= TURN_RESULTS and sum(sizes) <= TURN_PAIRS:
            return finish_all(admitted, calls, requests, sink.ends)
        return await self._finish(admitted, calls, requests, sink.ends, sizes)

    async def _finish(
        self,
        admitted: list[Admitted | Exception],
        calls: Sequence[Call],
        requests: list[Request | Exception],
        ends: Completions,
        sizes: list[int],
    ) -> list[Any]:
        """``finish_all``; the loop gets its turn in between, and large results are made on a thread. ``sizes``: pairs
        of a token and its logprob of each result."""
        results: list[Any] = []
        at = 0
        while at < len(requests):
            end, pairs = at + 1, sizes[at]
            while end < min(at + TURN_RESULTS, len(requests)) and pairs + sizes[end] <= TURN_PAIRS:
                pairs += sizes[end]
                end += 1
            part = slice(at, end)
            given = (admitted[part], calls[part], requests[part], ends)
            with starting_thread():
                results += await asyncio.to_thread(finish_all, *given) if pairs > TURN_PAIRS else finish_all(*given)
            await asyncio.sleep(0)
            at = end
        return results

    async def _run_parts(
        self, tasks: list[Any], options: Options, keywords: Mapping[str, Any], progress: Progress
    ) -> list[Any]:
        """``run_many`` of more tasks than a turn of the loop may begin with; errors are results."""
        running: list[asyncio.Task[list[Any]]] = []
        try:
            for part, said in parts(tasks, options, keywords):
                running.append(asyncio.create_task(self._run_all(part, said, {}, progress)))
                await asyncio.sleep(0)
            return [result for results in await asyncio.gather(*running) for result in results]
        except BaseException:
            for one in running:
                one.cancel()
            raise

    async def warmup(self, *, freeze_gc: bool = False) -> None:
        """Run ``Engine.warmup`` on a thread."""
        if self._engine is None:
            await self.start()
        with starting_thread():
            await asyncio.to_thread(self.engine.warmup, freeze_gc=freeze_gc)

    async def _prepare(self, preparer: Preparer, tasks: Sequence[Any]) -> list[Admitted | Exception]:
        if self._pool is None:
            with self._start_lock:
                if self._pool is None:
                    self._pool = ThreadPoolExecutor(preparer.context.config.expert.prepare_threads, "prelude-prepare")
        loop = asyncio.get_running_loop()
        pool, jobs = self._pool, []
        try:
            with starting_thread():
                for job in batches(tasks):
                    jobs.append(loop.run_in_executor(pool, preparer.prepare_all, job))
        except ExecutionError:
            self._pool = None  # a job that got no thread stays in its queue
            pool.shutdown(wait=False)
            raise
        return [item for items in await asyncio.gather(*jobs) for item in items]

    def _ways(self, loop: asyncio.AbstractEventLoop, engine: Engine) -> tuple[CompletionQueue, Turn]:
        """Make the ways from a loop to the engine and back."""
        ways = self._loops.get(id(loop))
        if ways is None or ways[0].loop is not loop:
            self._loops = {key: known for key, known in self._loops.items() if not known[0].loop.is_closed()}
            ways = CompletionQueue(loop, engine.core.sinks), Turn(loop, engine.core.loop.wake_if_started)
            self._loops[id(loop)] = ways
        return ways

    # -------------------------------------------------------------- verbs

    async def _answer(self, ask: Ask[R]) -> R:
        if isinstance(ask.work, TaskOf):
            return await self.run(ask.work, ask.options)
        if self._engine is None:
            await self.start()  # the first step may ask the model which recipe it was trained with
        result: R = await adrive(ask.work, ask.options, self.run_many)
        return result

    def _stream(self, ask: AskStream) -> AsyncTextStream:
        return AsyncTextStream(partial(self._admit_stream, snapshot(ask.task), ask.options), ask.hold_words)

    async def _admit_stream(
        self, task: Generate, options: RequestOptions | None
    ) -> tuple[EngineCore, Admitted, CompletionQueue, Call]:
        if self._engine is None:
            await self.start()
        engine = self.engine
        [call] = make_calls(1, options, {})
        call.mark("prompt")
        with engine.core.reserve(1) as places:  # so that no more are being tokenised than may wait
            if not places.left:
                raise engine.core.inbox.full()
            call.mark("accept")
            if text_size(task) > INLINE_CHARS:
                [admitted] = await self._prepare(engine.preparer, [task])
            else:
                [admitted] = engine.preparer.prepare_all([task])
        if isinstance(admitted, Exception):
            raise admitted
        call.mark("tokenise")
        return engine.core, admitted, self._ways(asyncio.get_running_loop(), engine)[0], call

    # -------------------------------------------------------------- seen from outside

    def _model_parts(self) -> tuple[Preparer, Path]:
        return self.engine._model_parts()

    def explain(self, task: Task) -> Explanation:
        return self.engine.explain(task)

    def stats(self) -> dict[str, Any]:
        return self.engine.stats()

    def health(self) -> Health:
        return self.engine.health()

    def on_event(self, listener: Listener) -> Callable[[], None]:
        return self.engine.on_event(listener)


def batches(tasks: Iterable[Task]) -> list[list[Task]]:
    """Yield runs of tasks of about ``JOB_CHARS`` or ``JOB_TASKS`` each: one job of a preparing thread."""
    runs: list[list[Task]] = []
    total = JOB_CHARS
    for task in tasks:
        if total >= JOB_CHARS or len(runs[-1]) >= JOB_TASKS:
            runs.append([])
            total = 0
        runs[-1].append(task)
        total += text_size(task)
    return runs


def text_size(task: Any) -> int:
    """Return about the number of characters (or ids) that preparing reads. Unknown shapes fail there."""
    size = TASK_CHARS + sum([_size(getattr(task, name, None), 0) for name in PROMPT_FIELDS])
    questions = getattr(task, "questions", ())
    if not isinstance(questions, (list, tuple)):
        questions = tuple(questions.values()) if isinstance(questions, Mapping) else ()
    for question in questions:
        size += QUESTION_CHARS
        for name in ("question", "labels", "criteria", "levels"):
            size += _size(getattr(question, name, None), LABEL_CHARS)
    return size


def _size(value: Any, each: int) -> int:
    if value is None or isinstance(value, str):
        return len(value or "")
    listed = isinstance(value, (list, tuple)) and value and isinstance(value[0], (str, list, tuple, Mapping))
    try:
        length = len(value)
    except TypeError:
        return 0
    return each * length + (rough_size(value, JOB_CHARS) if listed or isinstance(value, Mapping) else length)


class Engines:
    """Both kinds of engine over the given one, which its caller closes."""

    def __init__(self, engine: Engine | AsyncEngine) -> None:
        if not isinstance(engine, Engine | AsyncEngine):
            raise ConfigError(f"{shown(engine)} is not an Engine or an AsyncEngine")
        self._given = engine
        self.awaited = engine if isinstance(engine, AsyncEngine) else AsyncEngine(engine)

    @property
    def sync(self) -> Engine:
        return self._given.engine if isinstance(self._given, AsyncEngine) else self._given


__all__ = ["AsyncEngine", "Engine", "Engines"]
