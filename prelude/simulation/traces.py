"""Traces: requests with their tenants and times. A workload is a stream of arrivals in order of time; none is kept.

An arrival says its prompt as named parts, not as tokens:

    ("user-3", 14211)  ("post-17", 150)        parts of the same name have the same tokens, one the beginning of the
    ("rubric-0", 1000) (None, 40)              other if lengths differ; a part without a name is unique

``TokenSource`` makes real int32 arrays of them when a request is submitted, so the native trie matches the same
tokens as in an engine; they are freed with the request. Only parts with a name are kept, the last ones that were
used.

A trace file has one JSON object a line, in order of ``at``; fields that are left out have the defaults below:

    {"at": 0.25, "parts": [["rubric-0", 1000], [null, 40]], "questions": [12, 12], "tenant": "shop"}
    {"at": 0.31, "parts": [["talk-5", 310]], "task": "generate", "max_tokens": 64, "deadline": 2.0}
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from prelude.admission.prepared import Prepared, TokenTree
from prelude.errors import TraceError, shown
from prelude.readouts.batch import I32, LogprobRows, PooledRows
from prelude.readouts.sampling import Sampling
from prelude.records import dataclass, fields
from prelude.tasks import CacheMode
from prelude.values.options import RequestOptions
from prelude.values.strict_json import loads

Part: TypeAlias = "tuple[str | None, int]"
TaskName: TypeAlias = Literal["decide", "embed", "generate"]

_MASK = (1 << 31) - 1
MAX_TOKENS = 1 << 24  # of one arrival
MAX_LABELS = 1 << 20  # likewise
MAX_SECONDS = 1e9
_KEPT_TOKENS = 16 << 20  # of named parts: 64 MB


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a trace. Times are seconds since the trace began."""

    at: float
    parts: tuple[Part, ...]  # (name, tokens) from the front of the prompt
    task: TaskName = "decide"
    questions: tuple[int, ...] = ()  # "decide": tokens of each question that follows the prompt; none: one, in parts
    labels: int = 2  # "decide": labels of each question
    max_tokens: int = 0  # "generate": tokens of output
    tenant: str | None = None  # tenants that wait get equal shares
    user: str | None = None  # a name for the fairness index alone; the tenant if there is none
    priority: int = 0
    deadline: float | None = None  # seconds after ``at``
    cancel_after: float | None = None  # the caller cancels, seconds after ``at``
    cache: CacheMode = "auto"
    id: str | None = None

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt with its questions."""
        return sum(length for _, length in self.parts) + sum(self.questions)

    def options(self) -> RequestOptions:
        return RequestOptions(priority=self.priority, deadline=self.deadline, request_id=self.id, tenant=self.tenant)


class TokenSource:
    """Token ids of parts. Names become 62 bits of hash, the nameless a count; both stand in the first two tokens of a
    part, so two parts differ from the first block on, and the rest counts upwards from there."""

    def __init__(self) -> None:
        self._named: OrderedDict[str, I32] = OrderedDict()
        self._kept = 0
        self._next = count(1)

    def part(self, name: str | None, length: int) -> I32:
        if name is None:
            return _tokens(_spread(next(self._next)), length)
        known = self._named.get(name)
        if known is None or len(known) < length:
            key = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")
            self._kept += length - (0 if known is None else len(known))
            known = self._named[name] = _tokens(key >> 3, length)
        self._named.move_to_end(name)
        while self._kept > _KEPT_TOKENS and len(self._named) > 1:
            self._kept -= len(self._named.popitem(last=False)[1])
        return known[:length]

    def prepared(self, arrival: Arrival) -> Prepared:
        pieces = [self.part(name, length) for name, length in arrival.parts]
        trunk = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        if arrival.task == "generate":
            sampling = Sampling(0.0, 0, 1.0, 0.0, 0, frozenset())
            return Prepared(TokenTree.single(trunk), None, arrival.max_tokens, sampling, arrival.cache)
        if arrival.task == "embed":
            last = np.array([len(trunk) - 1], dtype=np.int32)
            read = PooledRows(last, np.array([0, 1], dtype=np.int32))
            return Prepared(TokenTree.single(trunk), read, cache=arrival.cache)
        if not arrival.questions:
            return Prepared(
                TokenTree.single(trunk),
                _labels(np.array([len(trunk) - 1], dtype=np.int32), arrival.labels),
                cache=arrival.cache,
            )
        segments = [(-1, trunk), *((0, self.part(None, length)) for length in arrival.questions)]
        ends = len(trunk) + np.cumsum(arrival.questions) - 1
        return Prepared(
            TokenTree.build(segments), _labels(ends.astype(np.int32), arrival.labels), cache=arrival.cache
        )


def _spread(number: int) -> int:
    """62 bits that no name has (bit 61 is set, names have 61), distinct for distinct numbers."""
    return 1 << 61 | (number >> 31) << 31 | (number * 2654435761 & _MASK)


def _tokens(key: int, length: int) -> I32:
    first = key & _MASK
    tokens = np.arange(first, first + length, dtype=np.int64)
    tokens &= _MASK
    if length > 1:
        tokens[1] = key >> 31
    return tokens.astype(np.int32)


def _labels(rows: I32, labels: int) -> LogprobRows:
    n = len(rows)
    return LogprobRows(
        rows,
        np.repeat(np.arange(n, dtype=np.int32), labels),
        np.tile(np.arange(labels, dtype=np.int32), n),
    )


# ------------------------------------------------------------------ files


def write_trace(arrivals: Iterable[Arrival], path: str | Path) -> int:
    """Returns how many lines were written."""
    defaults = {field.name: field.default for field in fields(Arrival)}
    written = 0
    with open(path, "w", encoding="utf-8") as file:
        for arrival in arrivals:
            line = {name: getattr(arrival, name) for name in defaults if getattr(arrival, name) != defaults[name]}
            file.write(json.dumps(line) + "\n")
            written += 1
    return written


def read_trace(path: str | Path) -> Iterator[Arrival]:
    """Line by line. ``TraceError`` names the line that is not an arrival, or says that the file has none."""
    before = -1.0
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                arrival = _arrival(loads(line))
            except (TypeError, ValueError) as error:
                raise TraceError(f"{path}, line {number}: {error}") from None
            if arrival.at < before:
                raise TraceError(
                    f"{path}, line {number}: at={arrival.at} comes before {before}; sort the trace by at"
                )
            before = arrival.at
            yield arrival
    if before < 0:
        raise TraceError(f"{path}: it has no arrivals; write one JSON object a line, as --write-trace does")


def _arrival(line: Any) -> Arrival:
    if not isinstance(line, dict):
        raise ValueError(f"a line is a JSON object, this is a {type(line).__name__}")
    parts = line.get("parts")
    if not isinstance(parts, list) or not parts:
        raise ValueError(f"parts={parts!r} is not a list of [name, tokens]")
    for part in parts:
        if not (isinstance(part, list) and len(part) == 2 and isinstance(part[0], str | None)):
            raise ValueError(f"parts has {part!r}, not [name or null, tokens]")
        if part[0] is not None:
            _text("parts", part[0])
        _whole("parts", part[1], 1)
    questions = line.get("questions", [])
    if not isinstance(questions, list):
        raise ValueError(f"questions={questions!r} is not a list of token counts")
    for tokens in questions:
        _whole("questions", tokens, 1)
    if sum(tokens for _, tokens in parts) + sum(questions) > MAX_TOKENS:
        raise ValueError(f"parts and questions have more than {MAX_TOKENS} tokens together")
    given = {**line, "parts": tuple((name, tokens) for name, tokens in parts), "questions": tuple(questions)}
    known = {field.name for field in fields(Arrival)}
    if unknown := sorted(given.keys() - known):
        raise ValueError(f"{unknown[0]!r} is no field of an arrival; the fields are {', '.join(sorted(known))}")
    if "at" not in given:
        raise ValueError("at is missing")
    arrival = Arrival(**given)
    _seconds("at", arrival.at)
    for name in ("deadline", "cancel_after"):
        if getattr(arrival, name) is not None:
            _seconds(name, getattr(arrival, name))
    if arrival.task not in ("decide", "embed", "generate"):
        raise ValueError(f"task={arrival.task!r} is not 'decide', 'embed' or 'generate'")
    if arrival.cache not in ("auto", "always", "never"):
        raise ValueError(f"cache={arrival.cache!r} is not 'auto', 'always' or 'never'")
    _whole("labels", arrival.labels, 1)
    if arrival.labels * max(1, len(arrival.questions)) > MAX_LABELS:
        raise ValueError(f"labels={arrival.labels} a question: the limit is {MAX_LABELS} in all")
    if arrival.user is not None:
        _text("user", arrival.user)
    _whole("max_tokens", arrival.max_tokens, 1 if arrival.task == "generate" else 0)
    arrival.options()
    return arrival


def _whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value:
        raise ValueError(f"{name}: {shown(value)} is not an integer of at least {least}")
    if value > MAX_TOKENS:
        raise ValueError(f"{name}: {shown(value)} is too much; the limit is {MAX_TOKENS}")


def _seconds(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_SECONDS:
        raise ValueError(f"{name}={shown(value)} is not a number of seconds from 0 to {MAX_SECONDS:g}")


def _text(name: str, value: Any) -> None:
    try:
        value.encode()
    except (AttributeError, UnicodeEncodeError):
        raise ValueError(f"{name}: {shown(value)} is no text") from None
