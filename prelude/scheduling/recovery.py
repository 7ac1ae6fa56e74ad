"""After a failed step: the requests that fail, and those that run again.

    Decode rows    run again from the last token of a complete step: nothing of the failed step was postprocessed, and
                   the KV slots that it wrote are written again
    OneShot rows   fail with the cause, and nothing of them is published. Out of memory, they run again; so do those
                   of a step that Ctrl-C ended, for it is no fault of theirs

A row runs again once: it fails with the cause if its next step fails too. Out of memory, half as many rows run at a
time. After ``ExecutorLost`` no row runs again: the executor takes no step any more.
"""

from __future__ import annotations

from prelude.admission.prepared import ExecutionClass
from prelude.errors import ExecutionError, ExecutorLost, is_interrupt
from prelude.scheduling.lease import KvPool
from prelude.scheduling.plan import Plan
from prelude.scheduling.postprocess import finish
from prelude.scheduling.queues import Queues
from prelude.scheduling.request import Request, State


def out_of_memory(error: BaseException) -> bool:
    """Tell errors of the host's memory, and of a device's, whose error is torch's."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def recover(plan: Plan, error: BaseException, queues: Queues, pool: KvPool) -> list[Request]:
    """Handle a failed step; return the requests that run again. ``plan`` has no rows of requests that have ended."""
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


__all__ = ["failure_of", "out_of_memory", "recover"]
