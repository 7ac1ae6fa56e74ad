"""The errors that Prelude raises on purpose. ``help()`` of this module shows their tree.

Messages name the field, the value, the limit and the way out. No validation is an ``assert``, so all of them are
raised under ``python -O`` too.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prelude.errors.root import PreludeError as PreludeError

_SHOWN = 80


def short(text: str) -> str:
    """``text``, cut to 80 characters: a name of a request inside an answer."""
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def shown(value: Any) -> str:
    """Return the repr of ``value`` for a message, cut to 80 characters so that input cannot fill a log."""
    try:
        text = repr(value[:_SHOWN]) if isinstance(value, (str, bytes, list, tuple)) else repr(value)
    except Exception:  # a repr may be the caller's code
        text = f"<{type(value).__name__}>"
    return short(text)


def reason(error: BaseException) -> str:
    """Return the reason of an error in words, without the path that the message around it names; never empty."""
    if isinstance(error, FileNotFoundError):
        return "there is no such file or directory"
    return str(getattr(error, "strerror", None) or error) or type(error).__name__


INTERRUPTS = (KeyboardInterrupt, SystemExit)  # made once: ``A | B`` in a handler needs memory each time


def is_interrupt(error: BaseException) -> bool:
    """Whether ``error`` is Ctrl-C, or an exit, in the main thread: it is not the fault of the code that it ended."""
    return isinstance(error, INTERRUPTS) and threading.current_thread() is threading.main_thread()


class InvalidRequest(PreludeError, ValueError):
    """A request that cannot be served as it stands.

    ``field`` is the dotted path of the argument (``"sampling.temperature"``, ``"questions[2].labels"``).
    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field


class PromptTooLong(InvalidRequest):
    """The prompt does not fit the context and ``truncation="error"``."""

    def __init__(self, message: str, *, tokens: int, limit: int, field: str | None = None) -> None:
        super().__init__(message, field=field)
        self.tokens = tokens
        self.limit = limit


class RequestTooLarge(InvalidRequest):
    """The request can never be planned: it needs more than a whole budget of this engine."""


class UnknownParameter(InvalidRequest, TypeError):
    """A keyword that does not exist; the message names the nearest one, or the alternative."""


class TemplateError(InvalidRequest):
    """A chat or decision template that is missing, malformed or past its bounds."""


class RecipeError(InvalidRequest):
    """A recipe that is malformed or unknown, or a model whose files do not say which one it was trained with."""


class ConfigError(PreludeError, ValueError):
    """Engine limits that are out of range or contradict each other; raised when the engine is made."""


class CalibrationError(PreludeError, ValueError):
    """Labelled data that no calibrator can be fitted to, a file that holds none, or an answer with other labels."""


class BulkError(PreludeError, ValueError):
    """A run over a file that cannot begin or go on: the form of the task, the input, the journal or the output."""


class TraceError(PreludeError, ValueError):
    """A trace that cannot be simulated, or a workload out of range; names the line and the field."""


class DeviceUnavailable(PreludeError, RuntimeError):
    """The device cannot be used. ``missing`` lists each missing part with the way out."""

    def __init__(self, message: str, *, missing: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.missing = missing


class WrongUse(PreludeError, TypeError, RuntimeError):
    """An object used in a way that it is not made for: two readers of one stream, an engine sent to another process,
    names of answers whose questions had none."""


class ModelError(PreludeError, ValueError):
    """A model directory that cannot be loaded."""


class UnsupportedModel(ModelError):
    """The directory asks for a feature that is not implemented; the message names it."""


class CheckpointError(ModelError):
    """A weight file, shard or index that is malformed; the message names file and tensor."""


class InsufficientMemory(ModelError):
    """Weights or pool do not fit into memory. ``needed`` and ``available`` are bytes."""

    def __init__(self, message: str, *, needed: int, available: int) -> None:
        super().__init__(message)
        self.needed = needed
        self.available = available


class Overloaded(PreludeError):
    """The engine refuses the request because of its load; the request holds nothing."""


class QueueFull(Overloaded):
    """``max_queued_requests`` or ``max_queued_tokens`` is reached."""


class DeadlineExceeded(PreludeError, TimeoutError):
    """The request's deadline passed before its result was ready."""


class EngineClosed(PreludeError):
    """The engine is closed, or closed before the request finished."""


class EngineForked(EngineClosed):
    """The process was forked from the one with the engine, whose threads and locks a fork does not copy."""


class RequestCancelled(PreludeError):
    """The request was cancelled by its caller."""


class ExecutionError(PreludeError):
    """A step failed; raised for the rows of that step, with the original error as ``__cause__``."""


def own_error(raised: BaseException, said: str) -> ExecutionError:
    """The error of a request or row whose own function raised: any exception, as an ``asyncio.CancelledError`` or
    ``GeneratorExit`` would be taken for the end of the code that called the function. ``said``: a clause about it."""
    error = ExecutionError(f"{said}: {type(raised).__name__}: {raised}")
    error.__cause__ = raised
    return error


@contextmanager
def starting_thread() -> Iterator[None]:
    """Guard the start of a thread: ``ExecutionError`` if the system allows no more threads."""
    try:
        yield
    except RuntimeError as error:
        if "new thread" not in str(error):  # Python's own words; a function that ran on the thread raises others
            raise
        raise ExecutionError(
            "no thread can be started: the process, its user or its container has as many as it may have; end others "
            "or raise the limit (ulimit -u, pids.max)"
        ) from error


class ExecutorLost(ExecutionError):
    """The executor runs no step any more. No request is the cause, and none is run again."""


class DeviceLost(ExecutorLost):
    """A call of the GPU's driver failed, other than for lack of memory. The error stays with the process: start it
    again. The driver's error is the ``__cause__``."""


class RankLost(ExecutorLost):
    """A process of a tensor-parallel model ended, hangs or failed in a step. The ranks that are left compute nothing
    any more; all of them have to be started again."""
