"""StepResult x Plan -> outcomes. The one place where states advance and leases go back after a step."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from prelude._native.core import end_with, postprocess_group, postprocess_running
from prelude.admission.prepared import Outcome
from prelude.batch import Output, StepResult
from prelude.errors import ExecutionError, own_error
from prelude.scheduling.lease import KvPool
from prelude.scheduling.pack import Packed
from prelude.scheduling.plan import Plan, lives
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


def postprocess(
    plan: Plan,
    packed: Packed,
    result: StepResult,
    bad_rows: Sequence[frozenset[int]],
    queues: Queues,
    pool: KvPool,
    vocab_size: int,
    void: Collection[int] = (),
) -> None:
    """``bad_rows``: of each output, the result of ``check_result``. ``void``: ids of Decode requests whose rows mean
    nothing, since the step they go on from failed."""
    if plan.oneshot:
        requests, outcomes, failed = postprocess_group(pool, plan, packed, result, bad_rows, vocab_size)
        for request, outcome in zip(requests, outcomes):
            request.ending(request, outcome, None)
        if failed:
            finish_bad(failed, queues, pool, vocab_size)
    if not plan.prefill and not plan.decode:
        return
    batch_size, forward_ms = len(plan.oneshot) + len(plan.prefill) + len(plan.decode), result.seconds * 1e3
    for row in plan.prefill:
        request = row.request
        if not lives(request, void):
            continue
        request.stats.forward_ms += forward_ms
        request.stats.batch_size_seen = max(request.stats.batch_size_seen, batch_size)
        request.failures = 0
    _postprocess_prefill(plan, packed, result, bad_rows, queues, pool, vocab_size, void)
    if packed.decode:
        output = result.outputs[packed.outputs[2]]
        bad = bad_rows[packed.outputs[2]]
        more, failed_choices = postprocess_running(
            packed.decode, output.sampled_ids, bad, void, vocab_size, forward_ms, batch_size
        )
        for place in more:
            _postprocess_token(packed.decode[place], place, output, bad, queues, pool, vocab_size)
        for place, raised in failed_choices:
            finish(packed.decode[place], queues, pool, None, _no_choice(raised))


def _not_finite() -> ExecutionError:
    return ExecutionError("the model produced a value that is not finite (NaN or infinity) for this request")


def finish_bad(failed: list[tuple[Request, int | None]], queues: Queues, pool: KvPool, vocab_size: int) -> None:
    """OneShot requests whose numbers are none (``None``), or that drew a token outside the vocabulary."""
    for request, token in failed:
        finish(request, queues, pool, None, _not_finite() if token is None else _out_of_vocabulary(token, vocab_size))


def _out_of_vocabulary(token: int, vocab_size: int) -> ExecutionError:
    return ExecutionError(f"the executor sampled token {token}, outside the vocabulary of {vocab_size}")


def _postprocess_prefill(
    plan: Plan,
    packed: Packed,
    result: StepResult,
    bad_rows: Sequence[frozenset[int]],
    queues: Queues,
    pool: KvPool,
    vocab_size: int,
    void: Collection[int],
) -> None:
    for row in plan.prefill:
        request = row.request
        if request.id in void:
            continue
        request.cached_len = row.start + row.count
        # Also where the request ended meanwhile: other rows of this step may read the blocks that it promised.
        request.stats.computed_tokens += row.count
        request.stats.chunks += 1
        if request.cache != "never" and request.lease is not None:
            adopted = request.lease.num_shared * pool.block_size
            prompt = max(adopted, min(request.cached_len, request.prompt_tokens))
            pool.publish(request.lease, request.known[:prompt], request.salt, promoted=request.cache == "always")
    if packed.prefill:
        output = result.outputs[packed.outputs[1]]
        bad = bad_rows[packed.outputs[1]]
        for place, request in enumerate(packed.prefill):
            if not lives(request, void):
                continue
            if not request.output:
                request.stats.queue_ms = (request.planned - request.arrived) * 1e3
            request.move(State.DECODE)
            _postprocess_token(request, place, output, bad, queues, pool, vocab_size)


def _postprocess_token(
    request: Request,
    row: int,
    output: Output,
    bad: frozenset[int],
    queues: Queues,
    pool: KvPool,
    vocab_size: int,
) -> None:
    """One more token for a Decode request: goes on, or ends by a stop token, its budget or the context."""
    drawn = output.sampled_ids
    if row in bad or drawn is None:
        error = _not_finite() if row in bad else ExecutionError("a Decode row came back without a token")
        finish(request, queues, pool, None, error)
        return
    token = int(drawn[row])
    if not 0 <= token < vocab_size:
        finish(request, queues, pool, None, _out_of_vocabulary(token, vocab_size))
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
            finish(request, queues, pool, None, own_error(raised, "the request's own sink raised"))
            return
    if reason is not None:
        request.stats.finish_reason = reason
        finish(request, queues, pool, Outcome(None, tuple(request.output), request.stats), None)
        return
    try:
        request.choose_next()
    except BaseException as raised:
        finish(request, queues, pool, None, _no_choice(raised))


def _no_choice(raised: BaseException) -> ExecutionError:
    return own_error(raised, "the request's allowed_tokens_fn failed")
