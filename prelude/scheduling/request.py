"""Request: the mutable state of an admitted task, from the queue to its outcome."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Protocol, TypeAlias

from prelude._native.core import Record, State, begin_request
from prelude.admission.classes import ExecutionClass, classify
from prelude.admission.prepared import Outcome, Prepared
from prelude.batch import SampleOutput
from prelude.options import NO_OPTIONS, RequestOptions
from prelude.readouts.sampling import History, SamplingState, make_sampling_state
from prelude.scheduling.lease import Lease


class Sink(Protocol):
    """Where a request's tokens and its end go. Called by the holder of the step lock; must not raise.

    ``streams`` asks for ``token`` after every sampled token; it returns True to end the text there (a stop string,
    say). ``deliver`` is called once, last.
    """

    streams: bool

    def token(self, request: Request, token_id: int, output: SampleOutput, row: int) -> bool: ...

    def deliver(self, request: Request, outcome: Outcome | None, error: BaseException | None) -> None: ...


Ending: TypeAlias = "Callable[[Request, Outcome | None, BaseException | None], None]"

IDS = itertools.count(1)


class Request(Record):
    """``id`` is ours and unique; ``order`` is the order of arrival, once the request has left the inbox. ``failures``
    counts failed steps since the last postprocessed one. ``ending`` is called once, by ``finish``.

    ``queued_at``: tokens the engine had served when the request joined its queue, the policies' clock. ``deferred``:
    steps it has waited behind a leader that fills its prefix. ``account``: where its queue counts its tenant's
    tokens. ``trunk`` tokens are common to all its branches; the first ``unread`` of them are only attended
    to (-1 for Decode requests).

    ``known`` tokens are the prompt and the sampled tokens; ``cached_len`` of them have their KV in the pool.

    ``staged_len`` counts tokens in flight as well (staged >= cached): planning moves it ahead, postprocessing moves
    ``cached_len`` up to it. Of a Decode request ``in_flight`` steps are not postprocessed, which draw ``ahead``
    tokens for it; both stay 0 where steps do not overlap.
    """

    __slots__ = ()

    def __init__(
        self,
        prepared: Prepared,
        sink: Sink,
        execution_class: ExecutionClass | None = None,
        options: RequestOptions = NO_OPTIONS,
    ) -> None:
        kind = execution_class or classify(prepared)
        begin_request(self, prepared, sink, options, kind, next(IDS), time.perf_counter())
        self.ending = sink.deliver

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
        if self.history is not None and self.history.weighs:
            self.history.add(token_id)

    def sampling_state(self, row: int) -> SamplingState:
        """This request as a row that is about to be sampled."""
        sampling = self.sampling
        if sampling is None:
            raise RuntimeError("a Decode request has no sampling settings")
        edits = sampling.edits
        if self.history is None and edits is not None and edits.follows:
            self.history = History.of(edits, self.prepared.tree.token_ids)
            for token_id in self.output if edits.weighs else ():
                self.history.add(token_id)
        state: SamplingState = make_sampling_state(row, sampling, len(self.output) + self.ahead, self.history)
        return state

    def choose_next(self) -> None:
        """Asks the caller's ``allowed_tokens_fn``, where there is one, for the ids that may come next. Raises its
        errors, and ``InvalidRequest`` for ids that cannot be sampled from."""
        sampling, history = self.sampling, self.history
        if history is not None and sampling is not None and history.choose is not None:
            history.allowed = history.choose(self.output, len(self.output) < sampling.min_tokens)

    @property
    def ends_ahead(self) -> bool:
        """Whether it ends with the tokens that steps in flight are sampling, by their number alone."""
        return len(self.output) + self.ahead >= self.max_new_tokens


__all__ = ["IDS", "Ending", "Request", "Sink", "State"]
