"""Stepper: one step, taken by the thread that holds the step lock; StepLoop: the threads that take them.

    take in -> plan -> pack -> submit -> wait -> postprocess

Queues, pool and requests are touched only by the thread that holds the step lock. Callers on any thread append to the
inbox and wake the engine thread. A synchronous caller that finds the engine idle takes the lock and steps itself.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from prelude._native.core import KvPool, StepLock
from prelude.errors import ExecutionError, is_interrupt, starting_thread
from prelude.execution.executor import Executor
from prelude.readouts.batch import ForwardBatch, StepResult
from prelude.records import dataclass, field
from prelude.runtime.events import Listeners
from prelude.runtime.failures import Failures, Watchdog
from prelude.runtime.handover import Inbox, Sinks, WakeEvent, log_failure
from prelude.runtime.lifecycle import InFlightStep, Lifecycle, StepsInFlight
from prelude.runtime.stats import EngineStats
from prelude.scheduling.cost import CostModel, Pacer, Work
from prelude.scheduling.plan import Plan, pack
from prelude.scheduling.planner import Budgets, plan_step
from prelude.scheduling.postprocess import CompletedStep, check_result
from prelude.scheduling.queues import Queues
from prelude.scheduling.request import Request

log = logging.getLogger("prelude.engine")


class PrefixWarnings:
    """Looks at plans; ``queues.not_kept`` counts. An engine warns twice at most: once for a prompt that is longer
    than the pool, once for a pool whose blocks are all in use or hold prefixes that were hit before."""

    def __init__(self, pool: KvPool, queues: Queues) -> None:
        self._pool, self._queues = pool, queues
        self.seen = 0  # of ``queues.not_kept``
        self._said: set[bool] = set()

    def look(self, plan: Plan) -> None:
        """Look at a plan that ``queues.not_kept`` has counted, before its rows run."""
        pool = self._pool
        self.seen = self._queues.not_kept
        room = pool.num_blocks * pool.block_size
        folded = {member for fold in plan.folds for member in fold.members[1:]}  # their leader keeps for them
        for at, row in enumerate(plan.oneshot):
            if at in folded or row.publish or row.request.cache == "never" or len(self._said) == 2:
                continue
            tokens = row.request.trunk
            longer = tokens // pool.block_size > pool.num_blocks
            if tokens // pool.block_size == row.skip // pool.block_size or longer in self._said:
                continue
            self._said.add(longer)
            why = "the prompt is longer" if longer else "its blocks are in use or hold prefixes that were hit before"
            log.warning(
                "a prompt of %d tokens is not kept in the prefix cache: the KV pool holds %d tokens, and %s; raise "
                "EngineConfig.kv_bytes or kv_blocks (said once; stats()['prefixes_not_kept'] goes on counting)",
                tokens,
                room,
                why,
            )


@dataclass(eq=False, repr=False)
class Stepper:
    """``began``: when the oldest step in flight, or the one that is submitted, began, on the monotonic clock; 0
    between steps. ``plan_hooks`` are called with each plan before its rows run."""

    executor: Executor
    pool: KvPool
    budgets: Budgets
    queues: Queues
    steps: StepsInFlight
    inbox: Inbox
    lifecycle: Lifecycle
    failures: Failures
    sinks: Sinks
    stats: EngineStats
    events: Listeners
    pacer: Pacer
    cost: CostModel
    watchdog: Watchdog | None = None
    began: float = 0.0
    plan_hooks: list[Callable[[Plan], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._prefix_warnings = PrefixWarnings(self.pool, self.queues)
        self._overlap, self._recurrent = self.steps.overlap, self.pool.num_running_states > 0
        self._vocab_size = self.executor.limits().vocab_size
        self._interrupt: BaseException | None = None  # Ctrl-C that ended a call of the executor in this step
        self._blocked = 0.0  # seconds of this step in the executor

    @property
    def busy(self) -> bool:
        """Whether requests wait or run."""
        return not self.failures.broken and bool(self.steps or not self.inbox.empty or not self.queues.empty)

    @property
    def has_work(self) -> bool:
        """Whether another step may do anything. Asked before it begins: a caller that was told of the last step's
        ends waits for the interpreter's lock meanwhile."""
        return self.busy or (self.lifecycle.pending and not self.failures.broken)

    def hung(self, began: float) -> None:
        """Fail the step that began then and has run for longer than it may. The watchdog calls it."""
        self.failures.hung(began)

    def step(self) -> bool:
        """One step; the caller holds the step lock. False when there was nothing to do. It never raises for the sake
        of a request or of an executor; an error of the engine's own closes the engine. Ctrl-C is raised: when every
        account is whole, if the executor was at work, else as such an error."""
        if self.failures.broken:
            self.failures.tell_all()
            return False
        try:
            went_on = self._step()
        except BaseException as error:
            self.failures.close(error)
            if is_interrupt(error):
                raise
            return False
        if self._interrupt is not None:
            interrupt, self._interrupt = self._interrupt, None
            raise interrupt
        return went_on

    def _step(self) -> bool:
        """Without overlap: plan, submit, wait, postprocess. With it: plan, submit, then wait for and postprocess the
        step before, which ran meanwhile; rows that it samples a token for are planned as if they went on. Some steps
        are postprocessed before the next is planned: one that comes first (penalties, part of a prompt), one that
        runs rows again for want of memory, one beside which a row would have to be preempted."""
        began, self._blocked = time.perf_counter(), 0.0
        self.lifecycle.take_in()
        steps, failures = self.steps, self.failures
        completed = submitted = False
        if steps and (failures.limit is not None or steps[-1].comes_first):
            completed = self._complete_all()
        if not self.queues.empty:
            plan = self.plan()
            if plan.postprocess_first:
                completed = self._complete_all()
                plan = self.plan()
            if plan.deferred or plan.preempted:
                self._note_waiting(plan)
            if not plan.empty:
                submitted = True
                self._submit(plan)
        if steps and (len(steps) > 1 or not submitted or not self._overlap):
            completed = True
            if not self._complete():
                self._complete_all()  # it has rows that went on from the step that failed
        self.stats.host_seconds += time.perf_counter() - began - self._blocked
        if self.lifecycle.expiring:
            self.lifecycle.forget_expiring()
        if self.sinks.to_wake:
            self.sinks.flush()
        if submitted or completed:
            return True
        if self.queues.empty:
            return False
        failures.stuck(plan)
        return True

    def blocked(self, seconds: float) -> None:
        """Count seconds of planning that were the executor's: copies of blocks, and the step before those copies."""
        self._blocked += seconds

    def plan(self) -> Plan:
        in_flight, limit = bool(self.steps), self.failures.limit
        return plan_step(self.queues, self.pool, self.budgets, self.pacer, limit, in_flight=in_flight)

    def _note_waiting(self, plan: Plan) -> None:
        self.stats.deferrals += len(plan.deferred)
        self.stats.preemptions += len(plan.preempted)
        self.events.emit_each("preempted", plan.preempted)

    # -------------------------------------------------------------- submit

    def _submit(self, plan: Plan) -> None:
        """Pack and submit. If that fails, the steps before it are postprocessed, then its own rows, and nothing
        is in flight."""
        began = time.perf_counter()
        for hook in self.plan_hooks:
            hook(plan)
        if self.queues.not_kept != self._prefix_warnings.seen:
            self._prefix_warnings.look(plan)
        requests = plan.requests()
        fresh = [request for request in requests if request.planned == 0.0]
        for request in fresh:
            self._planned(request, began)
        self.began = time.monotonic()
        if self.watchdog is not None and not self.watchdog.busy:
            self.watchdog.step_begins()
        if self.events.heard:
            self.events.emit_each("scheduled", fresh)
        try:
            packed = pack(plan, self.pool.block_size, self._recurrent)
            entered = time.perf_counter() if self._overlap else 0.0
            handle = self.executor.submit(packed.batch)
        except BaseException as error:
            self.began = time.monotonic() if self.steps else 0.0
            void: set[int] = set()
            self._complete_all(void)
            self._note_interrupt(error)
            self.failures.step_failed(plan.without(void), error)
            return
        if self._overlap:
            self._blocked += time.perf_counter() - entered
        self.steps.add(InFlightStep(plan, packed, began, requests, handle))

    def _planned(self, request: Request, now: float) -> None:
        """Note that a request runs for the first time: it waits no more."""
        self.inbox.leave(request)
        request.planned = now
        work = Work.prompt(request.num_known, request.stats.cached_tokens, request.logits_rows)
        request.stats.estimated_jct = self.cost.predict(work)
        if request.timeline is not None:
            request.timeline.mark("schedule", end=now)

    # -------------------------------------------------------------- complete

    def _complete_all(self, void: set[int] | None = None) -> bool:
        """Waits for and postprocesses all steps in flight; whether there were any. ``void`` gets the ids of Decode
        requests in steps that failed."""
        steps = self.steps
        completed = bool(steps)
        while steps:
            step = steps[0]
            if not self._complete() and void is not None:
                void.update([request.id for request in step.rows()])
        return completed

    def _complete(self) -> bool:
        """Wait for the oldest step in flight and postprocess it. Return whether it succeeded."""
        steps = self.steps
        step, succeeded = steps[0], False
        entered = time.perf_counter() if self._overlap else 0.0
        try:
            result = self.executor.wait(step.handle)
            bad_rows = check_result(step.packed, result)
        except BaseException as error:
            self._note_interrupt(error)
            steps.complete(step, failed=True)
            self.began = time.monotonic() if steps else 0.0  # the step behind it may hang as well
            self.failures.step_failed(step.plan.without(step.void), error)
        else:
            succeeded = True
            self._blocked += time.perf_counter() - entered if self._overlap else result.seconds
            steps.complete(step, failed=False)
            self.began = time.monotonic() if steps else 0.0
            for request in step.requests:
                if request.timeline is not None:
                    request.timeline.mark_run(step.began)
            self._postprocess(step, result, bad_rows)
            if self.failures.limit is not None:
                self.failures.step_succeeded()
        if steps.holding:
            steps.give_back_ended()
        if self.lifecycle.late:
            self.lifecycle.end_late()
        return succeeded

    def _note_interrupt(self, error: BaseException) -> None:
        if is_interrupt(error):
            self._interrupt = error

    def _postprocess(self, step: InFlightStep, result: StepResult, bad_rows: list[frozenset[int]]) -> None:
        plan, packed = step.plan, step.packed
        valid = self.steps.valid(step)
        if valid is not plan:
            self.stats.discarded_rows += len(plan.decode) - len(valid.decode)
        if valid is plan or not valid.empty:  # else it shows nothing that the step before has not shown
            self.failures.in_a_row = 0
        tokens = self._count(plan, packed.batch, result)
        if self.events.heard:
            self.events.emit_step(plan, tokens, result.seconds)
        first = [r for r in (row.request for row in valid.prefill) if not r.output] if self.events.heard else ()
        CompletedStep(
            plan, packed, result, bad_rows, self.queues, self.pool, self._vocab_size, step.void
        ).postprocess()
        for request in first:
            if request.output:
                self.events.emit("first_token", request.options.request_id)

    def _count(self, plan: Plan, batch: ForwardBatch, result: StepResult) -> int:
        """Count a step's rows, give its seconds to the pacer and the cost model. Return the tokens of its batch."""
        stats, tokens, decode, prefill = self.stats, batch.num_tokens, len(plan.decode), 0
        stats.steps[plan.kind] += 1
        stats.prefix_hit_tokens += sum([row.skip for row in plan.oneshot])
        for row in plan.prefill:
            prefill += row.count
            if not row.request.stats.chunks:
                stats.prefix_hit_tokens += row.start
        for fold in plan.folds:
            stats.folded_tokens += fold.tokens * (len(fold.members) - 1)
        stats.prefill_tokens += tokens - decode
        stats.decode_tokens += decode
        stats.lm_head_rows += result.lm_head_rows
        stats.eager_steps += result.eager
        stats.graph_replays += not result.eager
        stats.peak_activation_bytes = max(stats.peak_activation_bytes, result.peak_bytes)
        stats.forward_seconds += result.seconds
        self.pacer.measured(decode, tokens - prefill - decode, prefill, result.seconds)
        self.cost.observe(Work(tokens, result.attended_tokens, result.lm_head_rows), result.seconds)
        return tokens


class IdleWork:
    """Work of an executor between steps, such as recording graphs. An executor may have ``wants_idle``, and
    ``idle(due)``, which does one piece, or leaves it as soon as ``due()`` says that a step is, and says whether more
    is left. Nothing is done once the engine is closed."""

    def __init__(self, executor: Executor, due: Callable[[], bool], closed: Callable[[], bool]) -> None:
        self._executor = executor
        self._due = due
        self._closed = closed
        self._idle: Callable[[Callable[[], bool]], bool] | None = getattr(executor, "idle", None)

    @property
    def wanted(self) -> bool:
        return self._idle is not None and not self._closed() and bool(self._executor.wants_idle)  # type: ignore[attr-defined]

    def do(self) -> bool:
        """Do one piece; the caller holds the step lock. Return whether more is left."""
        if self._idle is None:
            return False
        try:
            return self._idle(self._due)
        except Exception as error:  # no request's: the executor goes on without it
            self._idle = None
            log_failure("the executor's own work between steps failed", error)
            return False


_NO_MEMORY_SECONDS = 0.01  # before the engine thread tries again


class StepLoop:
    """``close_when_idle`` is asked after the last step there is work for; True ends the thread."""

    def __init__(self, stepper: Stepper, lock: StepLock, close_when_idle: Callable[[], bool]) -> None:
        self.lock = lock
        self.thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._stepper = stepper
        self._close_when_idle = close_when_idle
        self.idle = IdleWork(stepper.executor, lambda: stepper.has_work, lambda: stepper.inbox.closed)
        self._wake = WakeEvent()

    def wake(self) -> None:
        """Starts the engine thread if there is none, and wakes it."""
        self.start()
        self._wake.set()

    def wake_to_end(self) -> None:
        """As ``wake``, of a closed engine. If the thread cannot be started, the caller takes the last steps."""
        try:
            self.wake()
        except ExecutionError:
            if self.lock.try_acquire():
                self._step_until_idle()

    def wake_if_started(self) -> None:
        """Wake the thread. Takes no lock: a finaliser may call it."""
        self._wake.set()

    def start(self) -> None:
        """``ExecutionError`` or ``MemoryError`` if the engine thread cannot be started; the next call tries again."""
        if self.thread is not None:
            return
        with self._starting:
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="prelude-engine", daemon=True)
                try:
                    with starting_thread():
                        self.thread.start()
                except BaseException:
                    self.thread = None
                    raise

    def _run(self) -> None:
        while True:
            try:
                self._wake.wait()
                if not self.lock.try_acquire_or_request():
                    continue  # the thread that holds it wakes this one when it releases it
                if self._step_until_idle():
                    return
            except MemoryError:  # not even enough to tell the callers that the engine failed: the next step goes on
                self._wake.set()
                time.sleep(_NO_MEMORY_SECONDS)

    def _step_until_idle(self) -> bool:
        """Step until nothing is left to do, and release the lock. Return whether the engine is closed then."""
        try:
            stepper = self._stepper
            while (stepper.step() and stepper.has_work) or self._idle_work():
                pass
            return self._close_when_idle()
        finally:
            self.lock.release()

    def _idle_work(self) -> bool:
        """Do a piece of the executor's own work if no step is due. Return whether to look for both again."""
        return self.idle.wanted and (self._stepper.has_work or self.idle.do() or self._stepper.has_work)
