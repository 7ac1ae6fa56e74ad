"""StepResult x Plan -> outcomes. States advance and leases go back after a step here alone; ``recover`` does so after
a failed one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from prelude._native.core import KvPool
from prelude.admission.prepared import ExecutionClass, Outcome
from prelude.errors import ExecutionError, ExecutorLost, is_interrupt, own_error
from prelude.readouts.batch import StepResult, readouts_of
from prelude.records import dataclass, field
from prelude.scheduling.plan import Packed, Plan, lives
from prelude.scheduling.queues import Queues
from prelude.scheduling.request import Request, State


def finish(
    request: Request,
    queues: Queues,
    pool: KvPool,
    outcome: Outcome | None,
    error: BaseException | None,
) -> None:
    """Every end of a request: the lease is given back, the request leaves the queues, its end is delivered. Called
    once per request. Blocks that a step in flight still writes are given back when that step is over."""
    queues.discard(request)
    request.move(State.FINISHED)
    if not request.in_flight:
        request.give_back(pool)
    request.ending(request, outcome, error)


def end_with(request: Request, token: int) -> tuple[bool, str | None]:
    """The effect of a request's next token: (whether it is part of the text, why the text ends or None). The one home
    of this rule: a stop id ends the text, and is part of it with ``include_stop`` only; so does the token that fills
    its budget. Stop strings are found in the text (``prelude/streaming/text.py``), and end it like a stop id."""
    sampling = request.sampling
    if token in sampling.stop_ids:
        return sampling.include_stop, "stop"
    return True, "length" if len(request.output) + 1 >= request.max_new_tokens else None


@dataclass(slots=True, eq=False, repr=False)
class CompletedStep:
    """A step that succeeded. ``bad_rows``: of each output, the result of ``check_result``. ``void``: ids of Decode
    requests whose rows mean nothing, since the step they go on from failed."""

    plan: Plan
    packed: Packed
    result: StepResult
    bad_rows: Sequence[frozenset[int]]
    queues: Queues
    pool: KvPool
    vocab_size: int
    void: Collection[int] = ()
    num_rows: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_rows = len(self.plan.oneshot) + len(self.plan.prefill) + len(self.plan.decode)

    def postprocess(self) -> None:
        if self.plan.oneshot:
            self._oneshot()
        if self.plan.prefill:
            self._prefill()
        if self.packed.decode:
            self._decode()

    def _count(self, request: Request) -> None:
        """Note that a step that succeeded had a row of the request."""
        stats = request.stats
        stats.forward_ms += self.result.seconds * 1e3
        stats.batch_size_seen = max(stats.batch_size_seen, self.num_rows)
        request.failures = 0

    def _read(self, kind: int) -> tuple[Any, frozenset[int]]:
        """Return the output of OneShot rows, of prompts or of running rows, and its bad rows."""
        at = self.packed.outputs[kind]
        return self.result.outputs[at], self.bad_rows[at]

    def _fail(self, request: Request, error: BaseException) -> None:
        finish(request, self.queues, self.pool, None, error)

    def _outside(self, token: int) -> ExecutionError | None:
        if 0 <= token < self.vocab_size:
            return None
        return ExecutionError(f"the executor sampled token {token}, outside the vocabulary of {self.vocab_size}")

    def _oneshot(self) -> None:
        """Publish the prefixes of the rows and give their leases back; then tell their ends."""
        plan, packed, pool = self.plan, self.packed, self.pool
        output, bad = self._read(0)
        ids = output.sampled_ids
        drawn = None if ids is None else ids.tolist()
        count = len(plan.oneshot)
        row_ends = range(1, count + 1) if packed.row_ends is None else packed.row_ends.tolist()
        pair_ends = [0] * count if packed.pair_ends is None else packed.pair_ends.tolist()
        ended: list[tuple[Request, Outcome]] = []
        failed: list[tuple[Request, ExecutionError]] = []
        first = first_pair = 0
        for row, brought, last, last_pair in zip(plan.oneshot, packed.computed.tolist(), row_ends, pair_ends):
            request, part = row.request, (slice(first, last), slice(first_pair, last_pair))
            at, first, first_pair = first, last, last_pair
            stats = request.stats
            self._count(request)
            stats.computed_tokens, stats.chunks = brought, 1
            stats.queue_ms = (request.planned - request.arrived) * 1e3
            if bad and not bad.isdisjoint(range(at, last)):
                failed.append((request, _not_finite()))
                continue
            request.give_back(pool, row.skip + row.publish * pool.block_size if row.publish else 0)
            token_ids: tuple[int, ...] = ()
            if drawn is not None:
                token = drawn[at]
                if (outside := self._outside(token)) is not None:
                    failed.append((request, outside))
                    continue
                kept, stats.finish_reason = end_with(request, token)
                token_ids = (token,) if kept else ()
            request.move(State.FINISHED)
            ended.append((request, Outcome(output, token_ids, stats, part=part)))
        for request, outcome in ended:
            request.ending(request, outcome, None)
        for request, error in failed:
            self._fail(request, error)

    def _prefill(self) -> None:
        pool = self.pool
        for row in self.plan.prefill:
            request = row.request
            if lives(request, self.void):
                self._count(request)
            if request.id in self.void:
                continue
            request.cached_len = row.start + row.count
            # Also if the request ended meanwhile: other rows of this step may read the blocks that it promised.
            request.stats.computed_tokens += row.count
            request.stats.chunks += 1
            if request.cache != "never" and request.lease is not None:
                adopted = request.lease.num_shared * pool.block_size
                prompt = max(adopted, min(request.cached_len, request.prompt_tokens))
                always = request.cache == "always"
                pool.publish(request.lease, request.known[:prompt], request.salt, promoted=always)
        if self.packed.prefill:
            output, bad = self._read(1)
            for place, request in enumerate(self.packed.prefill):
                if not lives(request, self.void):
                    continue
                if not request.output:
                    request.stats.queue_ms = (request.planned - request.arrived) * 1e3
                request.move(State.DECODE)
                self._token(request, place, output, bad)

    def _decode(self) -> None:
        output, bad = self._read(2)
        for place, request in enumerate(self.packed.decode):
            if lives(request, self.void):
                self._count(request)
                request.stats.computed_tokens += 1
                request.cached_len = request.num_known
                self._token(request, place, output, bad)

    def _token(self, request: Request, row: int, output: Any, bad: frozenset[int]) -> None:
        """Add a token to a Decode request, which goes on, or ends by a stop token, its budget or the context."""
        if row in bad:
            self._fail(request, _not_finite())
            return
        token = int(output.sampled_ids[row])
        if (outside := self._outside(token)) is not None:
            self._fail(request, outside)
            return
        kept, reason = end_with(request, token)
        if kept:
            request.append(token)
        if request.timeline is not None:
            request.timeline.mark("append")
        if kept and request.sink.streams:
            try:
                if request.sink.token(request, token, output, row):
                    reason = "stop"
            except BaseException as raised:  # an error of a sink fails its own request alone
                self._fail(request, own_error(raised, "the request's own sink raised"))
                return
        if reason is not None:
            request.stats.finish_reason = reason
            outcome = Outcome(None, tuple(request.output), request.stats)
            finish(request, self.queues, self.pool, outcome, None)
            return
        try:
            request.choose_next()
        except BaseException as raised:
            self._fail(request, own_error(raised, "the request's allowed_tokens_fn failed"))


def _not_finite() -> ExecutionError:
    return ExecutionError("the model produced a value that is not finite (NaN or infinity) for this request")


_NO_ROWS: frozenset[int] = frozenset()


def check_result(packed: Packed, result: Any) -> list[frozenset[int]]:
    """Return each output's rows (items, for pooled ones) with a number that is not finite: those that the executor
    lists, and those that it missed. ``ExecutionError`` for a result of another batch."""
    if not isinstance(result, StepResult):
        raise ExecutionError(f"the executor returned a {type(result).__name__}, not a StepResult")
    readouts = readouts_of(packed.batch)
    if len(result.outputs) != len(readouts) or len(result.bad_rows) != len(readouts):
        raise ExecutionError(f"the executor returned {len(result.outputs)} outputs, the batch has {len(readouts)}")
    found = []
    for readout, output, listed in zip(readouts, result.outputs, result.bad_rows):
        if not readout.answers(output):
            raise ExecutionError(
                f"the executor answered {type(readout).__name__} of {len(readout.rows)} rows with a "
                f"{type(output).__name__} of another kind or shape"
            )
        rows = np.asarray(listed)
        if rows.size and (rows.min() < 0 or rows.max() >= readout.items):
            raise ExecutionError("the executor names bad rows that the batch does not have")
        missed = readout.not_finite(output)
        found.append(frozenset([*missed.tolist(), *rows.tolist()]) if len(missed) or rows.size else _NO_ROWS)
    return found


def out_of_memory(error: BaseException) -> bool:
    """Tell errors of the host's memory, and of a device's, whose error is torch's."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def recover(plan: Plan, error: BaseException, queues: Queues, pool: KvPool) -> list[Request]:
    """Handle a failed step; return the requests that run again. ``plan`` has no rows of requests that have ended.

    Decode rows    run again from the last token of a complete step: nothing of the failed step was postprocessed, and
                   the KV slots that it wrote are written again
    OneShot rows   fail with the cause, and nothing of them is published. Out of memory, they run again; so do those
                   of a step that Ctrl-C ended, for it is no fault of theirs

    A row runs again once: it fails with the cause if its next step fails too. Out of memory, half as many rows run at
    a time. After ``ExecutorLost`` no row runs again: the executor takes no step any more.
    """
    blameless = out_of_memory(error) or is_interrupt(error)
    again: list[Request] = []
    rows = [*(row.request for row in plan.prefill), *plan.decode]
    rows += [row.request for row in reversed(plan.oneshot)]  # each goes back in front of those that came after it
    for request in rows:
        request.failures += 1
        oneshot = request.execution_class is ExecutionClass.ONESHOT
        if isinstance(error, ExecutorLost) or request.failures > 1 or (oneshot and not blameless):
            finish(request, queues, pool, None, failure_of(error))
            continue
        again.append(request)
        request.stats.replays += 1
        if oneshot:
            _withdraw(request, queues, pool)
        else:
            _roll_back(request, pool)
    return again


def _withdraw(request: Request, queues: Queues, pool: KvPool) -> None:
    """Put a planned OneShot row back into its queue, as if it had not been planned."""
    request.give_back(pool)
    request.move(State.WAITING)
    queues.requeue(request)


def _roll_back(request: Request, pool: KvPool) -> None:
    """Return to the last postprocessed token; one whose chunk was promised, or followed a promise, to the prefix that
    the trie has; one with a recurrent state, whose last token is unknown, to the state that it went on from, or to
    its first token, in the blocks and the state entry that it has."""
    lease = request.lease
    request.staged_len = request.cached_len
    if lease is not None and (lease.promise >= 0 or lease.borrowed):
        pool.withdraw(lease)
        request.cached_len = request.staged_len = lease.num_shared * pool.block_size
    if lease is not None and lease.state_index >= 0:
        request.cached_len = request.staged_len = lease.base * pool.block_size
        if request.state is State.DECODE:
            request.move(State.WAITING)
            request.move(State.PREFILL)


def failure_of(error: BaseException, message: str = "the step of this request failed") -> ExecutionError:
    if isinstance(error, ExecutorLost):
        failure: ExecutionError = type(error)(f"{message}: {error}")
    else:
        failure = ExecutionError(f"{message}: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
