"""The errors of a request, by the place in its body; and any error as an HTTP status with a body."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeAlias

from prelude.errors import (
    DeadlineExceeded,
    EngineClosed,
    InvalidRequest,
    Overloaded,
    PreludeError,
    PromptTooLong,
    RequestTooLarge,
    short,
    shown,
)

Loc: TypeAlias = tuple[Any, ...]  # keys as the body has them, and indices
MAX_ERRORS = 100
MAX_ERROR_BYTES = 48 << 10
_PART = re.compile(r"questions\[(\d+)\](?:\.(question|labels|criteria|levels)(?:\[(\d+)\]|\.(true|false))?)?")


class SystemOneError(InvalidRequest):
    """A request that cannot be answered as it stands. ``errors`` is a list of ``{"loc": [...], "msg", "type"}``, with
    ``loc`` from "body" down to the value; ``status`` is the HTTP status that a service would give, and ``error_type``
    is there if the fault is not of the body's shape."""

    def __init__(self, errors: Sequence[dict[str, Any]], *, status: int = 422, error_type: str | None = None) -> None:
        self.errors = list(errors)
        self.status = status
        self.error_type = error_type
        first = self.errors[0]
        more = f" (and {len(self.errors) - 1} more)" if len(self.errors) > 1 else ""
        super().__init__(first["msg"] + more, field=".".join(map(str, first["loc"][1:])) or None)

    def __reduce__(self) -> Any:
        return _again, (self.errors, self.status, self.error_type)

    @property
    def body(self) -> dict[str, Any]:
        if self.error_type is None:
            return {"detail": self.errors}
        return {"detail": {"error_type": self.error_type, "message": str(self), "loc": self.errors[0]["loc"]}}


def _again(errors: list[dict[str, Any]], status: int, error_type: str | None) -> SystemOneError:
    return SystemOneError(errors, status=status, error_type=error_type)


def fault(loc: Loc, message: str, kind: str) -> dict[str, Any]:
    """One of a body's errors. Its names are cut: an answer does not grow with the names of a request."""
    return {"loc": ["body", *map(_part, loc)], "msg": message, "type": kind}


def _part(part: Any) -> str | int:
    if isinstance(part, str):
        return short(part)
    return part if type(part) is int and 0 <= part < 1 << 32 else shown(part)


def located(error: InvalidRequest, names: Sequence[str], questions: Sequence[dict[str, Any]]) -> SystemOneError:
    """Give an error of the engine's admission the place in the body that its ``field`` stands for. ``names`` and
    ``questions``: of the body, in their order."""
    if isinstance(error, SystemOneError):
        return error
    loc: Loc = ()
    if error.field is not None:
        found = _PART.match(error.field)
        if found is not None:
            at = int(found[1])
            loc = ("questions", names[at], *_inside(found, questions[at]))
        elif error.field == "questions":
            loc = ("questions",)
        elif error.field.startswith("state"):
            loc = ("state", *place_in(error.field))
    return placed(error, loc)


def placed(error: InvalidRequest, loc: Loc) -> SystemOneError:
    """Make an error of the engine's admission at the place ``loc`` of the body."""
    message = str(error).removeprefix(f"{error.field}: ") if loc else str(error)  # a keyword of SystemOne is named
    if isinstance(error, PromptTooLong | RequestTooLarge):
        return SystemOneError([fault(loc, message, "too_long")], status=413, error_type="request_too_large")
    return SystemOneError([fault(loc, message, "value_error")])


_STEP = re.compile(r"\[(\d+)\]|\.(\w+)|[\[.].*")


def place_in(field: str | None) -> Loc:
    """The way to a value that a ``field`` such as ``"state[1].content[0]"`` names, as far as its steps are indices
    and plain keys."""
    found: list[str | int] = []
    for step in _STEP.finditer(field or ""):
        if step[1] is None and step[2] is None:
            break
        found.append(step[2] if step[1] is None else int(step[1]))
    return tuple(found)


def _inside(found: re.Match[str], question: dict[str, Any]) -> Loc:
    part, index, side = found[2], found[3], found[4]
    if part is None:
        return (question["type"],)
    if part == "question":
        return question["type"], "instructions"
    inside: Loc = ()
    if side is not None:
        inside = (side,)
    elif index is not None:
        inside = (list(question["criteria"])[int(index)] if part == "labels" else int(index),)
    return (question["type"], "criteria", *inside)


# The first class that fits decides; an error that is not listed is the service's own: 500.
_STATUS: tuple[tuple[type[Exception], int, str], ...] = (
    (PromptTooLong, 413, "request_too_large"),
    (RequestTooLarge, 413, "request_too_large"),
    (InvalidRequest, 422, "invalid_request"),
    (Overloaded, 429, "rate_limit_error"),
    (DeadlineExceeded, 504, "timeout_error"),
    (EngineClosed, 503, "unavailable"),
    (PreludeError, 500, "internal_error"),
)


def problem(error: Exception) -> tuple[int, dict[str, Any]]:
    """Return the HTTP status and body of an error. Of an error that is not Prelude's own the body says nothing."""
    if isinstance(error, SystemOneError):
        return error.status, error.body
    for kind, status, name in _STATUS:
        if isinstance(error, kind):
            return status, {"detail": {"error_type": name, "message": str(error)}}
    return 500, {"detail": {"error_type": "internal_error", "message": "the request failed inside the service"}}
