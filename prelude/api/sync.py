"""Engine: the synchronous engine. An idle one runs its caller's steps in the caller's own thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from prelude.api.base import EngineBase
from prelude.api.call_steps import first_error, task_list
from prelude.api.compound import drive
from prelude.api.text_streams import TextStream
from prelude.api.verbs import Ask, AskStream, RequestKeywords, Verbs
from prelude.api.windows import WINDOW_ROWS
from prelude.runtime.core import Options, finish_all, make_calls, mark_all
from prelude.runtime.handover import BlockingSink
from prelude.scheduling.request import Request
from prelude.tasks import R, TaskOf
from prelude.terminal.progress import Advance, Progress, may_appear
from prelude.values.config import EngineConfig
from prelude.values.options import RequestOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from prelude.api.mapping import ProgressCallback
    from prelude.api.windows import Mapped
    from prelude.fitting.fit import FitKeywords
    from prelude.fitting.question import FittedQuestion


T = TypeVar("T")


class Engine(Verbs, EngineBase):
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
        revision: str | None = None,
        follow_links: bool = False,
    ) -> Engine:
        """Loads a model directory or a hub name; ``None`` is the model that ships with the package.

        ``model``: a path, or a hub name, which has the form ``org/name``. ``revision``: commit, tag or branch of a
        hub name; with it ``model`` is a hub name even if a folder of that name exists. ``follow_links``: symbolic
        links in the directory may lead out of it; set it for directories whose links you made yourself.

        Raises ``ModelError`` (bad directory, unsupported feature, not enough memory) or ``ConfigError``.
        """
        from prelude.loading.open import load

        parts = load(
            model,
            device=device,
            dtype=dtype,
            config=config or EngineConfig(),
            revision=revision,
            follow_links=follow_links,
        )
        return cls(parts.core, parts.preparer, parts.path)

    def run(self, task: TaskOf[R], options: RequestOptions | None = None, **keywords: Unpack[RequestKeywords]) -> R:
        """Runs one task. The result's type follows the task's. ``options``, or its fields as keywords (``priority``,
        ``deadline``, ``request_id``, ``tenant``, ``trace``), speak of this one request."""
        [result] = self._run_all([task], options, keywords)
        if isinstance(result, Exception):
            raise result
        found: R = result
        return found

    @overload
    def run_many(
        self,
        tasks: Iterable[TaskOf[R]],
        options: Options = None,
        *,
        return_exceptions: Literal[False] = False,
        progress: bool | Advance | None = None,
        **keywords: Unpack[RequestKeywords],
    ) -> list[R]: ...

    @overload
    def run_many(
        self,
        tasks: Iterable[TaskOf[R]],
        options: Options = None,
        *,
        return_exceptions: bool,
        progress: bool | Advance | None = None,
        **keywords: Unpack[RequestKeywords],
    ) -> list[R | Exception]: ...

    def run_many(
        self,
        tasks: Iterable[TaskOf[Any]],
        options: Options = None,
        *,
        return_exceptions: bool = False,
        progress: bool | Advance | None = None,
        **keywords: Unpack[RequestKeywords],
    ) -> list[Any]:
        """Runs tasks together; results in the order of ``tasks``. A bad task fails alone: its error is in its place
        with ``return_exceptions``, else it is raised when the others have ended, with ``tasks[i]`` before its
        message. ``options`` is one for all, or one each. ``progress(done, total)`` is called in this thread as tasks
        end. True shows a tqdm bar, False none, and None one in a terminal, after a second."""
        given = task_list(tasks)
        if progress is False or (progress is None and not may_appear(len(given))):
            return first_error(self._run_all(given, options, keywords), return_exceptions)
        with Progress(progress, len(given), late="") as told:
            return first_error(self._run_all(given, options, keywords, told), return_exceptions)

    def map(
        self,
        task: Callable[[T], TaskOf[R]],
        rows: Iterable[T],
        *,
        window: int = WINDOW_ROWS,
        ordered: bool = True,
        progress: bool | ProgressCallback | None = None,
        **keywords: Unpack[RequestKeywords],
    ) -> Iterator[Mapped[T, R]]:
        """Runs ``task(row)`` for each row of any iterable, and yields ``Mapped(index, row, result, error)``.

        The rows are read ``window`` at a time, and no more than one window is in memory. Within a window, tasks whose
        texts begin alike run one after another, so that a shared beginning is computed once. An error of ``task`` or
        of a request is that row's ``error``. The map waits if the queue is full. An error of ``rows`` is raised
        after the rows before it; ``EngineClosed`` ends the map. ``ordered=False`` yields a window's rows in the order
        in which they ran. ``progress(done, total)`` is called after each window, and ``total`` is ``None`` for rows
        without a length; True shows a tqdm bar. A ``deadline`` counts from the start of the row's window.
        """
        from prelude.api.mapping import RowBar, checked, length, map_rows_now

        size, options = checked(task, rows, window, keywords, ("__iter__",))
        return map_rows_now(self.run_many, task, rows, size, ordered, RowBar(progress, length(rows)), options)

    def fit(
        self,
        texts: Sequence[str],
        labels: Sequence[Any],
        *,
        name: str,
        progress: bool | ProgressCallback | None = None,
        **keywords: Unpack[FitKeywords],
    ) -> FittedQuestion:
        """A question that is answered as these rows are: a logistic regression on the vector that ``embed`` gives for
        a text with this ``prompt_name`` and ``pooling``. ``decide`` takes it as a question.

        ``labels``: names of a ``kind`` "choice" (the usual one), True and False of a "noul", numbers of levels of a
        "score"; at least 2 rows each. ``question`` is its text, which stands in the answers. Strength and calibration
        are found by cross-validation, and so is ``report``. ``class_weights``: how much a row of each label counts;
        "balanced" lets all labels count alike. ``keep`` (0.95): the share of rows like these for which
        ``answer.in_scope`` is True. Equal arguments, ``seed`` (0) among them, give equal bits. Vectors are computed
        once: a later fit of this engine finds those that it needs. ``progress`` is as in ``map``.

        Raises ``InvalidRequest`` that names the rows for labels that say nothing, or two things."""
        from prelude.fitting.fit import Fit

        fit = Fit(*self._fit_parts(), texts, labels, name, keywords)
        return fit.fitted(list(self.map(fit.task, fit.missing, progress=progress)))

    def _run_all(
        self, tasks: Sequence[Any], options: Options, keywords: Mapping[str, Any], progress: Progress | None = None
    ) -> list[Any]:
        """``run_many`` with errors as results."""
        core, count = self._core, len(tasks)
        calls = make_calls(count, options, keywords)
        mark_all(calls, "prompt")
        sink = BlockingSink(progress)
        with core.reserve(count) as places:
            room = places.left
            mark_all(calls, "accept")
            admitted = self._preparer.prepare_all(tasks if room == count else tasks[:room])
            if room < count:
                admitted.extend([core.inbox.full() for _ in calls[room:]])
            mark_all(calls, "tokenise")
            requests = core.requests(admitted, calls, sink)
            live = [one for one in requests if isinstance(one, Request)]
            sink.expected = len(live)
            if progress is not None:
                progress.advance(count - len(live))
            if live:
                try:
                    sink.ends.update(core.run_inline(live, places, sink.report))  # of those that are refused
                    sink.wait()
                except BaseException:  # Ctrl-C: the caller does not wait for these any more
                    for one in live:
                        core.cancel(one)
                    raise
        return finish_all(admitted, calls, requests, sink.ends)

    def _run_each(self, tasks: Sequence[Any]) -> None:
        self.run_many(tasks, return_exceptions=True, progress=False)

    def _answer(self, ask: Ask[R]) -> R:
        if isinstance(ask.work, TaskOf):
            return self.run(ask.work, ask.options)
        result: R = drive(ask.work, ask.options, self.run_many)
        return result

    def _stream(self, ask: AskStream) -> TextStream:
        [call] = make_calls(1, ask.options, {})
        call.mark("prompt")
        with self._core.reserve(1) as places:
            if not places.left:
                raise self._core.inbox.full()
            call.mark("accept")
            admitted = self._preparer.prepare(ask.task)
            call.mark("tokenise")
        return TextStream(self._core, admitted, ask.hold_words, call)

    def close(self, *, drain: bool = True) -> None:
        """Waits for submitted requests (or fails them with ``drain=False``) and gives everything back. Idempotent."""
        self._core.close(drain=drain)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
