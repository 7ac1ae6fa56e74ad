"""Every error a caller can meet, by who has to act.

``PreludeError``
├── ``InvalidRequest`` (also a ``ValueError``): the request; raised at admission, before it holds anything
│   ├── ``PromptTooLong``
│   ├── ``RequestTooLarge``      could never fit this engine's budgets or pool
│   ├── ``UnknownParameter``     (also a ``TypeError``): a misspelt or refused keyword
│   └── ``TemplateError``        chat or decision template: missing, malformed, over its bounds
├── ``ConfigError`` (also a ``ValueError``): an ``EngineConfig`` that contradicts itself or the model
├── ``DeviceUnavailable`` (also a ``RuntimeError``): the device asked for cannot be used here; says what is missing
├── ``ModelError`` (also a ``ValueError``): the model directory; raised while loading
│   ├── ``UnsupportedModel``     a feature we do not have, named
│   ├── ``CheckpointError``      a weight file or index that is not what it says
│   └── ``InsufficientMemory``   needed and available bytes, before anything is allocated
├── ``TraceError`` (also a ``ValueError``): a trace that cannot be simulated; names the line and the field
├── ``Overloaded``: the queue; try later
│   └── ``QueueFull``
├── ``DeadlineExceeded`` (also a ``TimeoutError``)
├── ``EngineClosed``: submit after close, or closed while waiting
│   └── ``EngineForked``         used in a process that was forked after the engine was made
├── ``TokenizerError`` (also a ``ValueError``): a tokenizer file, or what it makes of a text; its subclasses are in
│   ``prelude.tokenizer.errors``
├── ``RequestCancelled``: cancelled by its caller, told to whoever else waits for it
└── ``ExecutionError``: a step failed; carries its cause, fails its own rows only

Messages name the field, the value seen, the limit and the way out. No validation is an ``assert``:
everything here still raises under ``python -O``.
"""

from __future__ import annotations

from typing import Any

from prelude.root_error import PreludeError as PreludeError

_SHOWN = 80


def shown(value: Any) -> str:
    """``value`` for a message: its repr, cut so that a hostile input cannot flood a log."""
    try:
        text = repr(value[:_SHOWN]) if isinstance(value, (str, bytes, list, tuple)) else repr(value)
    except Exception:  # a repr is user code too
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


class InvalidRequest(PreludeError, ValueError):
    """A request that cannot be served as it is.

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
    """The request could never be planned: a need exceeds a whole budget of this engine."""


class UnknownParameter(InvalidRequest, TypeError):
    """A keyword that does not exist here; the message names the nearest one, or what to do instead."""


class TemplateError(InvalidRequest):
    """A chat or decision template that is missing, malformed or past its bounds."""


class ConfigError(PreludeError, ValueError):
    """Engine limits that are out of range or contradict each other; raised when the engine is made."""


class TraceError(PreludeError, ValueError):
    """A trace that cannot be simulated, or a workload out of range; names the line and the field."""


class DeviceUnavailable(PreludeError, RuntimeError):
    """The device asked for cannot be used here. ``missing`` lists what is not there, each with the way out."""

    def __init__(self, message: str, *, missing: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.missing = missing


class ModelError(PreludeError, ValueError):
    """A model directory that cannot be loaded."""


class UnsupportedModel(ModelError):
    """The directory asks for a feature that is not implemented; the message names it."""


class CheckpointError(ModelError):
    """A weight file, shard or index that is malformed; the message names file and tensor."""


class InsufficientMemory(ModelError):
    """Weights or pool would not fit. ``needed`` and ``available`` are bytes."""

    def __init__(self, message: str, *, needed: int, available: int) -> None:
        super().__init__(message)
        self.needed = needed
        self.available = available


class Overloaded(PreludeError):
    """The engine refuses work for now; nothing of the request was kept."""


class QueueFull(Overloaded):
    """``max_queued_requests`` or ``max_queued_tokens`` is reached."""


class DeadlineExceeded(PreludeError, TimeoutError):
    """The request's deadline passed before its result was ready."""


class EngineClosed(PreludeError):
    """The engine is closed, or closed before the request finished."""


class EngineForked(EngineClosed):
    """This process was forked from the one that has the engine: its threads and locks did not come along."""


class RequestCancelled(PreludeError):
    """The request was cancelled by its caller."""


class ExecutionError(PreludeError):
    """A step failed; raised for the rows of that step, with the original error as ``__cause__``."""
