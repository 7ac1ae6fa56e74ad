"""StepResult x Plan -> outcomes. The one place where states advance and leases go back after a step."""

from __future__ import annotations

from prelude.admission.prepared import Outcome
from prelude.batch import HeadOutput, LogprobOutput, Output, PooledOutput, SampleOutput, StepResult
from prelude.errors import ExecutionError
from prelude.scheduling.check import bad_rows, readouts_of
from prelude.scheduling.lease import KvPool
from prelude.scheduling.pack import Packed, Share
from prelude.scheduling.plan import Plan
from prelude.scheduling.queues import Queues
from prelude.scheduling.request import Request, State


def output_slice(output: Output, share: Share) -> Output:
    """A request's own part of a batch output. Copies, so that one kept result does not keep a whole batch alive."""
    a, b = share.rows
    match output:
        case LogprobOutput():
            c, d = share.pairs
            return LogprobOutput(
                output.logprobs[c:d].copy(),
                None if output.ranks is None else output.ranks[c:d].copy(),
                None if output.top_ids is None else output.top_ids[a:b].copy(),
                None if output.top_logprobs is None else output.top_logprobs[a:b].copy(),
            )
        case PooledOutput():
            return PooledOutput(output.vectors[a:b].copy())
        case HeadOutput():
            return HeadOutput(output.logits[a:b].copy())
        case SampleOutput():
            return SampleOutput(
                output.token_ids[a:b].copy(),
                None if output.logprobs is None else output.logprobs[a:b].copy(),
                None if output.top_ids is None else output.top_ids[a:b].copy(),
                None if output.top_logprobs is None else output.top_logprobs[a:b].copy(),
            )


def finish(
    request: Request,
    queues: Queues,
    pool: KvPool,
    outcome: Outcome | None,
    error: BaseException | None,
) -> None:
    """The end of a request, whatever it is: lease back, out of the queues, delivered. Called once per request."""
    queues.discard(request)
    request.move(State.FINISHED)
    if request.lease is not None:
        pool.release(request.lease)
        request.lease = None
    request.ending(request, outcome, error)


def settle(plan: Plan, packed: Packed, result: StepResult, queues: Queues, pool: KvPool, vocab_size: int) -> None:
    forward_ms = result.seconds * 1e3
    batch_size = len(plan.oneshot) + len(plan.prefill) + len(plan.decode)
    for request in plan.requests():
        request.stats.forward_ms += forward_ms
        request.stats.batch_size_seen = max(request.stats.batch_size_seen, batch_size)
        request.failures = 0
    _settle_oneshot(plan, packed, result, queues, pool, vocab_size)
    _settle_prefill(plan, packed, result, queues, pool, vocab_size)
    if packed.decode:
        bad = _bad_rows(packed, result, packed.outputs[2])
        for share in packed.decode:
            share.request.cached_len = share.request.staged_len = share.request.num_known
            share.request.stats.computed_tokens += 1
            _settle_token(share, result.outputs[packed.outputs[2]], bad, queues, pool, vocab_size)


def _bad_rows(packed: Packed, result: StepResult, output: int) -> frozenset[int]:
    return bad_rows(readouts_of(packed)[output], result.outputs[output], result.bad_rows[output])


def _not_finite(share: Share, bad: frozenset[int]) -> ExecutionError | None:
    if bad and any(row in bad for row in range(*share.rows)):
        return ExecutionError("the model produced a value that is not finite (NaN or infinity) for this request")
    return None


def _settle_oneshot(
    plan: Plan, packed: Packed, result: StepResult, queues: Queues, pool: KvPool, vocab_size: int
) -> None:
    if not plan.oneshot:
        return
    bad = _bad_rows(packed, result, packed.outputs[0])
    output = result.outputs[packed.outputs[0]]
    sampled = output.token_ids.tolist() if isinstance(output, SampleOutput) else []
    for row, share, computed in zip(plan.oneshot, packed.oneshot, packed.computed):
        request = row.request
        stats = request.stats
        stats.computed_tokens = computed
        stats.chunks = 1
        stats.queue_ms = (request.planned - request.arrived) * 1e3
        error = _not_finite(share, bad)
        if error is None and row.publish and request.lease is not None:
            end = row.skip + row.publish * pool.block_size
            tree = request.prepared.tree
            promoted = request.prepared.cache == "always"
            pool.publish(request.lease, tree.token_ids[:end], request.prepared.salt, promoted=promoted)
        if error is not None:
            finish(request, queues, pool, None, error)
            continue
        tokens: tuple[int, ...] = ()
        if sampled:
            token = sampled[share.rows[0]]
            if not 0 <= token < vocab_size:
                finish(request, queues, pool, None, _out_of_vocabulary(token, vocab_size))
                continue
            tokens, stats.finish_reason = _one_token(request, token)
        finish(request, queues, pool, Outcome(output_slice(output, share), tokens, stats), None)


def _one_token(request: Request, token: int) -> tuple[tuple[int, ...], str]:
    sampling = request.prepared.sampling
    if sampling is not None and token in sampling.stop_ids:
        return ((token,) if sampling.include_stop else ()), "stop"
    return (token,), "length"


def _out_of_vocabulary(token: int, vocab_size: int) -> ExecutionError:
    return ExecutionError(f"the executor sampled token {token}, outside the vocabulary of {vocab_size}")


def _settle_prefill(
    plan: Plan, packed: Packed, result: StepResult, queues: Queues, pool: KvPool, vocab_size: int
) -> None:
    for row in plan.prefill:
        request = row.request
        request.cached_len = request.staged_len = row.start + row.count
        request.stats.computed_tokens += row.count
        request.stats.chunks += 1
        if request.prepared.cache != "never" and request.lease is not None:
            adopted = len(request.lease.shared) * pool.block_size
            prompt = max(adopted, min(request.cached_len, request.prepared.tree.num_tokens))
            pool.publish(
                request.lease,
                request.known[:prompt],
                request.prepared.salt,
                promoted=request.prepared.cache == "always",
            )
    if packed.prefill:
        bad = _bad_rows(packed, result, packed.outputs[1])
        for share in packed.prefill:
            request = share.request
            if not request.output:
                request.stats.queue_ms = (request.planned - request.arrived) * 1e3
            request.move(State.DECODE)
            _settle_token(share, result.outputs[packed.outputs[1]], bad, queues, pool, vocab_size)


def _settle_token(
    share: Share, output: Output, bad: frozenset[int], queues: Queues, pool: KvPool, vocab_size: int
) -> None:
    """One more token for a Decode request: goes on, or ends by a stop token, its budget or the context."""
    request = share.request
    error = _not_finite(share, bad)
    if error is not None or not isinstance(output, SampleOutput):
        finish(request, queues, pool, None, error or ExecutionError("a Decode row came back without a token"))
        return
    token = int(output.token_ids[share.rows[0]])
    if not 0 <= token < vocab_size:
        finish(request, queues, pool, None, _out_of_vocabulary(token, vocab_size))
        return
    sampling = request.prepared.sampling
    stop = sampling is not None and token in sampling.stop_ids
    kept = not stop or (sampling is not None and sampling.include_stop)
    if kept:
        request.append(token)
    if request.timeline is not None:
        request.timeline.mark("append")
    if kept and request.sink.streams:
        try:
            stop = request.sink.token(request, token, output, share.rows[0]) or stop
        except Exception as raised:  # what a sink does is its own request's business
            failure = ExecutionError(f"the request's own sink raised {type(raised).__name__}: {raised}")
            failure.__cause__ = raised
            finish(request, queues, pool, None, failure)
            return
    if stop:
        request.stats.finish_reason = "stop"
    elif len(request.output) >= request.prepared.max_new_tokens:
        request.stats.finish_reason = "length"
    if request.stats.finish_reason:
        finish(request, queues, pool, Outcome(None, tuple(request.output), request.stats), None)
