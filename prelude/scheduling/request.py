"""Request: the mutable state of an admitted task, from the queue to its outcome."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from enum import Enum
from typing import Protocol, TypeAlias

import numpy as np

from prelude._native.core import Record
from prelude.admission.classes import ExecutionClass, classify
from prelude.admission.prepared import Outcome, Prepared
from prelude.batch import SampleOutput
from prelude.options import NO_OPTIONS, RequestOptions
from prelude.readouts.sampling import History, SamplingState
from prelude.results import RequestStats
from prelude.scheduling.lease import Lease


class State(str, Enum):
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


_LEGAL = {
    State.WAITING: {State.PREFILL, State.FINISHED},
    State.PREFILL: {State.DECODE, State.WAITING, State.FINISHED},
    State.DECODE: {State.WAITING, State.FINISHED},
    State.FINISHED: set(),
}


class Sink(Protocol):
    """Where a request's tokens and its end go. Called by the holder of the baton; must not raise.

    ``streams`` asks for ``token`` after every sampled token; it returns True to end the text there (a stop string,
    say). ``deliver`` is called once, last.
    """

    streams: bool

    def token(self, request: Request, token_id: int, output: SampleOutput, row: int) -> bool: ...

    def deliver(self, request: Request, outcome: Outcome | None, error: BaseException | None) -> None: ...


Ending: TypeAlias = "Callable[[Request, Outcome | None, BaseException | None], None]"

IDS = itertools.count(1)


class Request(Record):
    """``id`` is ours and unique; ``order`` says who came first, once the request has left the inbox. ``failures``
    counts failed steps since the last settled one. ``ending`` is called once, by ``finish``.

    ``queued_at``: tokens the engine had served when the request joined its line, the policies' clock. ``deferred``:
    steps it has waited behind a leader that fills its prefix. ``account``: where its line counts its tenant's
    tokens. ``trunk`` tokens are common to all its branches; the first ``unread`` of them are only attended
    to (-1 for Decode requests).

    ``known`` tokens are the prompt and what was sampled; ``cached_len`` of them have their KV in the pool.

    ``staged_len`` counts tokens in flight as well (staged >= cached): planning moves it ahead, settling moves
    ``cached_len`` up to it. Of a Decode request ``in_flight`` steps are not settled, which draw ``ahead`` tokens for
    it; both stay 0 where steps do not overlap.
    """

    __slots__ = ()

    def __init__(
        self,
        prepared: Prepared,
        sink: Sink,
        execution_class: ExecutionClass | None = None,
        options: RequestOptions = NO_OPTIONS,
    ) -> None:
        self.id = next(IDS)
        self.order = 0
        self.given = prepared
        self.sink = sink
        self.options = options
        self.expires = math.inf  # on the monotonic clock
        self.ending = sink.deliver
        self.queued_tokens = -1  # what the inbox counts for it; -1: nothing
        self.execution_class = execution_class or classify(prepared)
        self.state = State.WAITING
        self.arrived = time.perf_counter()
        self.queued_at = 0
        self.turn = 0  # who had come when its last chunk was planned
        tree, readout = prepared.tree, prepared.readout
        rows = prepared.rows
        read = int(rows[0]) if len(rows) else -1
        self.sampling = prepared.sampling
        self.max_new_tokens = prepared.max_new_tokens
        self.key = None if readout is None else readout.key
        self.num_known = tree.num_tokens
        trunk = tree.trunk_tokens
        unread = trunk - 1 if read < 0 else min(trunk, read)
        self.known = tree.token_ids
        self.output = ()
        if self.execution_class is ExecutionClass.DECODE:
            unread = -1
            self.output = []
            self.known = np.empty(tree.num_tokens + prepared.max_new_tokens, dtype=np.int32)
            self.known[: tree.num_tokens] = tree.token_ids
        self.bind(
            tree.token_ids,
            tree.positions,
            tree.starts,
            tree.parents,
            readout,
            prepared.first,
            read,
            len(rows),
            unread,
            0 if readout is None else readout.logits_rows,
            prepared.salt,
            prepared.cache,
        )
        stats = self.stats = RequestStats()
        stats.execution_class = self.execution_class.value
        stats.prompt_tokens = tree.num_tokens
        stats.truncated_tokens = prepared.truncated_tokens
        stats.tokenize_ms = prepared.tokenize_ms
        stats.request_id = options.request_id

    @property
    def prepared(self) -> Prepared:
        if self.given is None:
            self.given = self.alike.prepared(self.known)
        prepared: Prepared = self.given
        return prepared

    @property
    def held(self) -> Lease:
        """The lease of a planned request."""
        if self.lease is None:
            raise RuntimeError("a planned request holds no lease")
        return self.lease

    # The names of the request's lengths in the field's textbooks.
    @property
    def device_len(self) -> int:
        return self.num_known

    @property
    def max_device_len(self) -> int:
        return self.prompt_tokens + self.max_new_tokens

    @property
    def extend_len(self) -> int:
        return self.num_known - self.cached_len

    def append(self, token_id: int) -> None:
        if not self.output:
            self.first_token = time.perf_counter()
        self.known[self.num_known] = token_id
        self.num_known += 1
        self.output.append(token_id)
        if self.history is not None:
            self.history.add(token_id)

    def sampling_state(self, row: int) -> SamplingState:
        """This request as a row that is about to be sampled."""
        sampling = self.sampling
        if sampling is None:
            raise RuntimeError("a Decode request has no sampling settings")
        edits = sampling.edits
        if self.history is None and edits is not None and edits.follows:
            self.history = History.of(edits, self.prepared.tree.token_ids)
            for token_id in self.output:
                self.history.add(token_id)
        return SamplingState(row, sampling, len(self.output) + self.ahead, self.history)

    def choose_next(self) -> None:
        """Asks the caller's ``allowed_tokens_fn``, where there is one, for the ids that may come next. Raises what it
        raises, and ``InvalidRequest`` for what cannot be drawn from."""
        sampling, history = self.sampling, self.history
        if history is None or sampling is None or sampling.edits is None or sampling.edits.choose is None:
            return
        history.allowed = sampling.edits.choose(self.output, len(self.output) < sampling.min_tokens)

    @property
    def ends_ahead(self) -> bool:
        """Whether it ends, whatever they are, with the tokens that steps in flight are drawing."""
        return len(self.output) + self.ahead >= self.max_new_tokens

    def move(self, state: State) -> None:
        """The one place where a request's state changes."""
        if state not in _LEGAL[self.state]:
            raise RuntimeError(f"illegal transition {self.state.value} -> {state.value}")
        self.state = state
