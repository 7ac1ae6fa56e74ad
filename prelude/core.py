"""EngineCore: the loop. drain -> plan -> pack -> submit -> wait -> settle, by whoever holds the baton.

One writer at a time: queues, pool and requests are touched only by the holder of the baton. Callers on any
thread append to the inbox (a deque: its append and popleft are atomic) and wake the engine thread. A
synchronous caller who finds the engine idle takes the baton and runs the step itself: the same rule, the same
code, no hop between threads.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass, field

from prelude.admission.classes import ExecutionClass
from prelude.admission.prepared import Outcome, Prepared
from prelude.batch import DecodeBatch, MixedBatch, OneShotBatch, StepResult
from prelude.errors import EngineClosed, ExecutionError, QueueFull, RequestTooLarge
from prelude.execution.executor import Executor
from prelude.scheduling.lease import KvPool
from prelude.scheduling.pack import Packed, pack
from prelude.scheduling.plan import Plan
from prelude.scheduling.planner import Budgets, plan_step
from prelude.scheduling.queues import Queues
from prelude.scheduling.request import Request, Sink, State
from prelude.scheduling.settle import fail_step, finish, settle

log = logging.getLogger("prelude.engine")


@dataclass(slots=True)
class EngineStats:
    """Counters since the engine was made. Read without stopping it; each is exact, a set of them may be a step
    apart."""

    requests: dict[str, int] = field(default_factory=lambda: {c.value: 0 for c in ExecutionClass})
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=lambda: {"oneshot": 0, "mixed": 0, "decode": 0})
    failed_steps: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    prefix_hit_tokens: int = 0
    folded_tokens: int = 0  # tokens that were not computed again because rows of one step shared them
    lm_head_rows: int = 0
    preemptions: int = 0
    deferrals: int = 0
    eager_steps: int = 0
    graph_replays: int = 0
    peak_activation_bytes: int = 0
    forward_seconds: float = 0.0
    host_seconds: float = 0.0
    tokenizer_calls: int = 0
    queued_requests: int = 0
    queued_tokens: int = 0
    blocks_free: int = 0
    blocks_used: int = 0
    blocks_cached: int = 0


class EngineCore:
    """The scheduler and its executor, without text. ``submit``, ``cancel``, ``run_inline`` and ``close`` may be
    called from any thread."""

    def __init__(
        self,
        executor: Executor,
        pool: KvPool,
        budgets: Budgets,
        *,
        max_queued_requests: int,
        max_queued_tokens: int,
        unhealthy_after: int,
    ) -> None:
        self.executor = executor
        self.pool = pool
        self.budgets = budgets
        self.limits = executor.limits()
        self.queues = Queues()
        self.stats = EngineStats()
        self.max_queued_requests = max_queued_requests
        self.max_queued_tokens = max_queued_tokens
        self.unhealthy_after = unhealthy_after
        self.failures_in_a_row = 0
        self.last_error: BaseException | None = None
        self.force_class: ExecutionClass | None = None  # for tests: the other path must give the same numbers
        self._inbox: deque[Request] = deque()
        self._inbox_tokens = 0
        self._cancels: deque[Request] = deque()
        self._baton = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._abort = False
        self._closed = threading.Event()
        self.on_step_end: deque[LoopFlush] = deque()

    @property
    def healthy(self) -> bool:
        return self.failures_in_a_row < self.unhealthy_after

    @property
    def closed(self) -> bool:
        return self._closing

    # -------------------------------------------------------------- any thread

    def request(self, prepared: Prepared, sink: Sink) -> Request:
        """A request, checked against everything that could keep it from ever being planned. Holds nothing."""
        if self._closing:
            raise EngineClosed("the engine is closed; make a new one")
        request = Request(prepared, sink, self.force_class)
        self._check_fits(request)
        if len(self._inbox) + self.queues.num_waiting >= self.max_queued_requests:
            self._reject("queued_requests", f"{self.max_queued_requests} requests are waiting (max_queued_requests)")
        if self._inbox_tokens + self.queues.waiting_tokens + request.num_known > self.max_queued_tokens:
            self._reject("queued_tokens", f"{self.max_queued_tokens} tokens are waiting (max_queued_tokens)")
        return request

    def submit(self, request: Request) -> None:
        """Puts a request in the inbox and wakes the engine thread."""
        self.submit_many([request])

    def submit_many(self, requests: list[Request]) -> None:
        """All in one planning step, as far as the budgets go: they arrive together."""
        self._post(requests)
        self._wake_thread()

    def _post(self, requests: list[Request]) -> None:
        # Callers on several threads may lose an update of the token count; it is set right whenever the inbox
        # has been emptied, so the limit is off by one step's arrivals at most.
        self._inbox_tokens += sum(request.num_known for request in requests)
        self._inbox.extend(requests)

    def cancel(self, request: Request) -> None:
        self._cancels.append(request)
        self._wake.set()

    def abandon(self, request: Request) -> None:
        """``cancel`` for finalisers: takes no lock, so it may run inside one. It wakes nobody, which is not needed
        while a request lives: the engine is stepping, and looks here before each step."""
        self._cancels.append(request)

    def run_inline(self, requests: list[Request]) -> None:
        """The direct path: on an idle engine the caller runs the steps itself, else it waits like everybody."""
        if self._baton.acquire(blocking=False):
            try:
                self._post(requests)
                while any(request.state is not State.FINISHED for request in requests):
                    if not self.step():
                        break
            finally:
                self._baton.release()
            if self._inbox or not self.queues.empty:
                self._wake_thread()
            return
        self.submit_many(requests)

    def _wake_thread(self) -> None:
        if self._thread is None:
            self._start_thread()
        self._wake.set()

    def _reject(self, reason: str, text: str) -> None:
        self.stats.rejected[reason] = self.stats.rejected.get(reason, 0) + 1
        raise QueueFull(f"{text}; try again later or raise the limit")

    def _check_fits(self, request: Request) -> None:
        tree = request.prepared.tree
        most = self.budgets.step_tokens - self.budgets.running
        if request.execution_class is ExecutionClass.ONESHOT and tree.num_tokens > most:
            raise RequestTooLarge(
                f"the request has {tree.num_tokens} tokens with all its branches, a step computes at most {most} "
                "beside running rows; ask fewer questions at a time or raise max_step_tokens"
            )
        if request.execution_class is ExecutionClass.DECODE:
            blocks = -(-request.max_device_len // self.pool.block_size)
            if blocks > self.pool.num_blocks:
                raise RequestTooLarge(
                    f"{request.max_device_len} tokens (prompt and max_tokens) need {blocks} KV blocks, the pool has "
                    f"{self.pool.num_blocks}; lower max_tokens or raise kv_blocks"
                )

    # -------------------------------------------------------------- the engine thread

    def _start_thread(self) -> None:
        with _START:
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="prelude-engine", daemon=True)
                self._thread.start()

    def _loop(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._closing and not self._inbox and self.queues.empty:
                break
            with self._baton:
                while self.step():
                    pass
        self._closed.set()

    def close(self, *, drain: bool = True) -> None:
        """Stops taking requests; waits for what was taken (``drain``) or fails it with ``EngineClosed``."""
        if self._closing:
            return
        self._closing = True
        self._abort = not drain
        if self._thread is None:
            with self._baton:
                while self.step():
                    pass
        if self._thread is not None and self._thread is not threading.current_thread():
            self._wake.set()
            while not self._closed.wait(0.05):
                self._wake.set()
        self.executor.close()

    # -------------------------------------------------------------- one step; the baton is held

    def step(self) -> bool:
        """One turn. False when there was nothing to do. Never raises: what goes wrong outside a batch ends every
        request with the error rather than leave anybody waiting."""
        try:
            return self._step()
        except Exception as error:
            log.exception("the engine's own step failed")
            self._abandon(error)
            return False

    def _step(self) -> bool:
        began = time.perf_counter()
        self._drain_inbox()
        if self._abort:
            for request in list(self.queues):
                finish(request, self.queues, self.pool, None, EngineClosed("the engine was closed"))
        if self.queues.empty:
            self._flush()
            return False
        plan = plan_step(self.queues, self.pool, self.budgets)
        if plan.empty:
            self._flush()
            return self._stuck(plan)
        result = self._execute(plan)
        self._account(plan, result, time.perf_counter() - began)
        self._flush()
        return True

    def _execute(self, plan: Plan) -> StepResult | None:
        now = time.perf_counter()
        for request in plan.requests():
            if not request.planned:
                request.planned = now
        try:
            packed = pack(plan, self.pool.block_size)
            result = self.executor.wait(self.executor.submit(packed.batch))
            check_result(packed, result)
        except Exception as error:
            log.exception("step failed: %s", plan)
            self.last_error = error
            self.failures_in_a_row += 1
            self.stats.failed_steps += 1
            fail_step(plan, error, self.queues, self.pool)
            return None
        self.failures_in_a_row = 0
        self._count(plan, packed, result)
        settle(plan, packed, result, self.queues, self.pool, self.limits.vocab_size)
        return result

    def _drain_inbox(self) -> None:
        while self._inbox:
            request = self._inbox.popleft()
            self.queues.add(request)
            self.stats.requests[request.execution_class.value] += 1
        self._inbox_tokens = 0
        while self._cancels:
            request = self._cancels.popleft()
            if request.state is not State.FINISHED:
                self.stats.cancelled += 1
                finish(request, self.queues, self.pool, None, EngineClosed("cancelled"))

    def _stuck(self, plan: Plan) -> bool:
        """Nothing could be planned although requests wait. Preemption alone is progress; anything else is a bug that
        must not hang its callers: the oldest request fails, and the engine goes on."""
        if plan.preempted:
            return True
        request = min(self.queues, key=lambda r: r.arrived)
        finish(request, self.queues, self.pool, None, ExecutionError("the request could not be planned"))
        log.error("unplannable request of %d tokens failed", request.num_known)
        self._flush()
        return True

    def _abandon(self, error: Exception) -> None:
        self.last_error = error
        self.failures_in_a_row = self.unhealthy_after
        requests = list(self.queues)
        self.queues = Queues()
        for request in requests:
            if request.lease is not None and not request.lease.released:
                self.pool.release(request.lease)
            request.lease = None
            request.state = State.FINISHED
            failure = ExecutionError(f"the engine failed: {type(error).__name__}: {error}")
            failure.__cause__ = error
            request.sink.deliver(request, None, failure)
        self._flush()

    def _count(self, plan: Plan, packed: Packed, result: StepResult) -> None:
        stats = self.stats
        match packed.batch:
            case OneShotBatch(slices=slices):
                stats.steps["oneshot"] += 1
                stats.prefill_tokens += slices.num_tokens
            case DecodeBatch() as batch:
                stats.steps["decode"] += 1
                stats.decode_tokens += batch.num_tokens
            case MixedBatch() as batch:
                stats.steps["mixed"] += 1
                stats.prefill_tokens += batch.prefill_tokens
                stats.decode_tokens += batch.decode_tokens
        stats.folded_tokens += sum(fold.tokens * (len(fold.members) - 1) for fold in plan.folds)
        stats.prefix_hit_tokens += sum(row.skip for row in plan.oneshot)
        stats.lm_head_rows += result.lm_head_rows
        stats.preemptions += len(plan.preempted)
        stats.eager_steps += result.eager
        stats.graph_replays += not result.eager
        stats.peak_activation_bytes = max(stats.peak_activation_bytes, result.peak_bytes)
        stats.forward_seconds += result.seconds

    def _account(self, plan: Plan, result: StepResult | None, seconds: float) -> None:
        stats = self.stats
        for request in plan.requests():
            if request.state is State.FINISHED:
                stats.finished += result is not None
                stats.failed += result is None
        stats.host_seconds += seconds - (result.seconds if result else 0.0)

    def _flush(self) -> None:
        """Publishes counters and hands finished requests to their loops: one wake-up of a loop per step."""
        stats = self.stats
        stats.queued_requests = self.queues.num_waiting + len(self._inbox)
        stats.queued_tokens = self.queues.waiting_tokens + self._inbox_tokens
        allocator = self.pool.allocator
        stats.blocks_free, stats.blocks_used = allocator.num_free, allocator.num_used
        stats.blocks_cached = allocator.num_cached
        while self.on_step_end:
            self.on_step_end.popleft().flush()

    def audit(self) -> None:
        """Every account against every other; raises with the numbers. For tests and debugging, between steps."""
        leases = [request.lease for request in self.queues if request.lease is not None]
        self.pool.audit(leases)


class LoopFlush:
    """Something to be flushed once at the end of a step."""

    def flush(self) -> None:
        raise NotImplementedError


_START = threading.Lock()


def check_result(packed: Packed, result: StepResult) -> None:
    """An executor that answers with the wrong shapes fails its step, not somebody else's rows."""
    expected = 1
    if isinstance(packed.batch, MixedBatch):
        expected = len(packed.batch.readouts) + (packed.batch.decode_readout is not None)
    if len(result.outputs) != expected or len(result.bad_rows) != expected:
        raise ExecutionError(f"the executor returned {len(result.outputs)} outputs, the batch has {expected}")


__all__ = ["EngineCore", "EngineStats", "Outcome"]
