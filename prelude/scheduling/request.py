"""Request: the mutable state of an admitted task, from the queue to its outcome."""

from __future__ import annotations

import enum
import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from prelude._native.core import KvPool, Lease, Record
from prelude.admission.prepared import ExecutionClass, Outcome, Prepared, classify
from prelude.readouts.batch import I32, SampleOutput
from prelude.readouts.sampling import History, Sampling, SamplingState
from prelude.records import dataclass
from prelude.results import RequestStats
from prelude.values.options import NO_OPTIONS, RequestOptions

if TYPE_CHECKING:
    from prelude.scheduling.timeline import Timeline


class State(str, enum.Enum):
    """Where a request is. ``Request.move`` has the legal transitions."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Account:
    """Tokens ``served`` to one (priority, tenant), and how many of its requests wait. ``number``: its index among the
    accounts."""

    name: tuple[int, str | None]
    number: int
    served: int = 0
    waiting: int = 0

    @property
    def priority(self) -> int:
        return self.name[0]


class Sink(Protocol):
    """Where a request's tokens and its end go. Called by the holder of the step lock; must not raise.

    ``streams`` asks for ``token`` after every sampled token; it returns True to end the text there (a stop string,
    say). ``deliver`` is called once, last.
    """

    streams: bool

    def token(self, request: Request, token_id: int, output: SampleOutput, row: int) -> bool: ...

    def deliver(self, request: Request, outcome: Outcome | None, error: BaseException | None) -> None: ...


Ending: TypeAlias = "Callable[[Request, Outcome | None, BaseException | None], None]"

_IDS = itertools.count(1)


class Request(Record):
    """``id`` is ours and unique; ``order`` is the order of arrival, once the request has left the inbox. ``failures``
    counts failed steps since the last postprocessed one. ``ending`` is called once, by ``finish``.

    ``queued_at``: tokens the engine had served when the request joined its queue, the policies' clock. ``deferred``:
    steps it has waited behind a leader that fills its prefix. ``account``: where its queue counts its tenant's
    tokens. ``trunk`` tokens are common to all its branches; the first ``unread`` of them are only attended
    to (-1 for Decode requests).

    ``known`` tokens are the prompt and the sampled tokens, ``num_known`` of them; ``cached_len`` have their KV in
    the pool. Each token that is being sampled has an entry behind the known ones: -1 minus its place among the
    tokens that its step draws.

    ``staged_len`` counts tokens in flight as well (staged >= cached): planning moves it ahead, postprocessing moves
    ``cached_len`` up to it. Of a Decode request ``in_flight`` steps are not postprocessed, which draw ``ahead``
    tokens for it; both stay 0 if steps do not overlap.
    """

    __slots__ = (
        "_lease",
        "_state",
        "account",
        "ahead",
        "arrived",
        "cached_len",
        "cancelled",
        "completions",
        "deferred",
        "ending",
        "execution_class",
        "expires",
        "failures",
        "first_token",
        "history",
        "id",
        "in_flight",
        "key",
        "known",
        "max_new_tokens",
        "num_known",
        "options",
        "order",
        "output",
        "planned",
        "prepared",
        "queued_at",
        "sampling",
        "sink",
        "staged_len",
        "stats",
        "timeline",
        "turn",
    )

    def __init__(
        self,
        prepared: Prepared,
        sink: Sink,
        options: RequestOptions = NO_OPTIONS,
    ) -> None:
        self.id = next(_IDS)
        self.prepared, self.sink, self.options = prepared, sink, options
        self.execution_class = classify(prepared)
        self.ending: Ending = sink.deliver
        self._state = State.WAITING
        self._lease: Lease | None = None
        self.sampling: Sampling = prepared.sampling  # type: ignore[assignment]  # only rows that decode have and read it
        self.max_new_tokens = prepared.max_new_tokens
        tokens = prepared.tree.token_ids
        self.num_known = len(tokens)
        self.known: I32 = tokens
        self.output: Any = ()
        if self.execution_class is ExecutionClass.DECODE:
            self.output = []
            self.known = np.empty(len(tokens) + prepared.max_new_tokens, np.int32)
            self.known[: len(tokens)] = tokens
        self._read(prepared)
        self.stats = RequestStats(
            self.execution_class.value,
            self.num_known,
            truncated_tokens=prepared.truncated_tokens,
            tokenize_ms=prepared.tokenize_ms,
            request_id=options.request_id,
        )
        self.arrived, self.expires, self.planned, self.first_token = time.perf_counter(), math.inf, 0.0, 0.0
        self.order = self.queued_at = self.turn = 0
        self.cached_len = self.staged_len = self.ahead = self.in_flight = 0
        self.failures = self.deferred = 0
        self.cancelled = False
        self.account: Account | None = None
        self.history: History | None = None
        self.completions: Any = None
        self.timeline: Timeline | None = None

    def _read(self, prepared: Prepared) -> None:
        tree, readout = prepared.tree, prepared.readout
        self.key = None if readout is None else readout.key
        rows: Sequence[int] | I32 = () if readout is None else readout.rows
        count = len(rows)
        read = int(rows[0]) + prepared.first if count else -1
        unread = -1
        if self.execution_class is ExecutionClass.ONESHOT:
            trunk = tree.trunk_tokens
            unread = trunk - 1 if read < 0 else min(trunk, read)
        self.bind(
            tree.token_ids,
            tree.positions,
            tree.starts,
            tree.parents,
            readout,
            prepared.first,
            read,
            count,
            unread,
            0 if readout is None else readout.logits_rows,
            prepared.salt,
            prepared.cache,
        )

    @property
    def state(self) -> State:
        return self._state

    @property
    def lease(self) -> Lease | None:
        return self._lease

    def move(self, state: State) -> None:
        """Write a request's state, and no other function does:

        waiting -> prefill -> decode -> finished      waiting and prefill may end, prefill and decode may wait again
        """
        if state not in _MOVES[self._state]:
            raise RuntimeError(f"illegal transition {self._state.value} -> {state.value}")
        self._state = state

    def hold(self, lease: Lease) -> None:
        """Hold ``lease`` until ``give_back``."""
        if self._lease is not None:
            raise RuntimeError(f"request {self.id} holds a lease and is given another")
        self._lease = lease

    def give_back(self, pool: KvPool, computed: int = 0) -> None:
        """Give the lease back to its pool; no other function does. The pool keeps the first ``computed`` tokens of a
        OneShot row's prompt."""
        if self._lease is not None:
            pool.release(self._lease, self, computed)
            self._lease = None

    @property
    def reusable(self) -> int:
        """How many tokens the prefix cache may stand in for. A request that reads nothing still computes a token: it
        is there to warm the cache, and a step is never empty."""
        if self.cache == "never":
            return 0
        return self.num_known - 1 if self.unread < 0 else self.unread

    @property
    def held(self) -> Lease:
        """The lease of a planned request."""
        return self._lease  # type: ignore[return-value]

    @property
    def max_device_len(self) -> int:
        """Its tokens when it has all that it may generate."""
        return self.prompt_tokens + self.max_new_tokens

    @property
    def rank(self) -> tuple[int, int]:
        """Highest priority first, then oldest."""
        return (-self.options.priority, self.order)

    def append(self, token_id: int) -> None:
        if not self.output:
            self.first_token = time.perf_counter()
        self.known[self.num_known] = token_id
        self.num_known += 1
        self.output.append(token_id)
        if self.history is not None and self.history.weighs:
            self.history.add(token_id)

    def sampling_state(self, row: int) -> SamplingState:
        """This request as a row that is about to be sampled."""
        edits = self.sampling.edits
        if self.history is None and edits is not None and edits.follows:
            self.history = History.of(edits, self.prepared.tree.token_ids)
        return SamplingState(row, self.sampling, len(self.output) + self.ahead, self.history)

    def choose_next(self) -> None:
        """Asks the caller's ``allowed_tokens_fn``, if there is one, for the ids that may come next. Raises its
        errors, and ``InvalidRequest`` for ids that cannot be sampled from."""
        history = self.history
        if history is not None and history.choose is not None:
            history.allowed = history.choose(self.output, len(self.output) < self.sampling.min_tokens)

    @property
    def ends_ahead(self) -> bool:
        """Whether it ends with the tokens that steps in flight are sampling, by their number alone."""
        return len(self.output) + self.ahead >= self.max_new_tokens


_MOVES: dict[State, tuple[State, ...]] = {
    State.WAITING: (State.PREFILL, State.FINISHED),
    State.PREFILL: (State.DECODE, State.FINISHED, State.WAITING),
    State.DECODE: (State.WAITING, State.FINISHED),
    State.FINISHED: (),
}
