"""After a failed step: the requests that fail, those that run again, and the size of their groups.

    Decode rows    run again from the last token of a complete step: nothing of the failed step was postprocessed, and
                   the KV slots that it wrote are written again. A quarter of the rows at a time, then a quarter of
                   those, until steps succeed or one row fails by itself, REPLAYS times: it fails with the cause
    OneShot rows   fail with the cause, and nothing of them is published; out of memory, they run once more, half as
                   many at a time

After ``ExecutorLost`` no row runs again: the executor takes no step any more.

Repeated failures of every step are the engine's affair (``unhealthy_after``), which bounds all of this.
"""

from __future__ import annotations

from prelude.admission.classes import ExecutionClass
from prelude.errors import ExecutionError, ExecutorLost
from prelude.scheduling.lease import KvPool
from prelude.scheduling.plan import Plan
from prelude.scheduling.postprocess import finish
from prelude.scheduling.queues import Queues
from prelude.scheduling.request import Request, State

REPLAYS = 2
_DIVIDE = 4


def out_of_memory(error: BaseException) -> bool:
    """Host or device; torch says it on CPU with a plain RuntimeError."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
    )


def recover(plan: Plan, error: BaseException, queues: Queues, pool: KvPool) -> int | None:
    """Handles a failed step. Returns how many of its rows the next step may have, ``None`` where none is left.
    ``plan`` has no rows of requests that have ended."""
    lack, lost = out_of_memory(error), isinstance(error, ExecutorLost)
    decode = [*(row.request for row in plan.prefill), *plan.decode]
    oneshot = [row.request for row in plan.oneshot]
    alone = len(decode) + len(oneshot) == 1
    again: list[Request] = []
    for request in [*decode, *reversed(oneshot)]:  # reversed: each goes back in front of those that came after it
        request.failures += 1
        if request.execution_class is ExecutionClass.ONESHOT:
            replay = lack and request.failures == 1
        else:
            replay = request.failures <= REPLAYS or not alone
        if not replay or lost:
            finish(request, queues, pool, None, failure_of(error))
            continue
        again.append(request)
        request.stats.replays += 1
        if request.execution_class is ExecutionClass.ONESHOT:
            withdraw(request, queues, pool)
        else:
            _roll_back(request, pool)
    if not again:
        return None
    divide = 2 if lack else _DIVIDE
    return max(1, len(again) // divide)


def withdraw(request: Request, queues: Queues, pool: KvPool) -> None:
    """A planned OneShot row back into its queue, as if it had not been planned."""
    request.give_back(pool)
    request.move(State.WAITING)
    queues.requeue(request)


def withdraw_all(plan: Plan, queues: Queues, pool: KvPool) -> None:
    """The step was interrupted from outside (Ctrl-C in the thread that ran it): no row failed, and all rows run
    again."""
    for row in reversed(plan.oneshot):
        if row.request.state is State.PREFILL:
            withdraw(row.request, queues, pool)
    for request in (*(chunk.request for chunk in plan.prefill), *plan.decode):
        if request.state is not State.FINISHED:
            _roll_back(request, pool)


def _roll_back(request: Request, pool: KvPool) -> None:
    """Back to the last postprocessed token; one whose chunk was promised, or followed a promise, to the prefix that
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


def suspects_left(queues: Queues) -> bool:
    return any(request.failures for request in queues)


def failure_of(error: BaseException, message: str = "the step of this request failed") -> ExecutionError:
    if isinstance(error, ExecutorLost):
        failure: ExecutionError = type(error)(f"{message}: {error}")
    else:
        failure = ExecutionError(f"{message}: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


__all__ = ["REPLAYS", "failure_of", "out_of_memory", "recover", "suspects_left", "withdraw_all"]
