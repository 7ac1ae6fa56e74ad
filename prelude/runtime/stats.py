"""EngineStats: counters since the engine was made, and how a step is counted."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

from prelude.admission.prepared import ExecutionClass
from prelude.readouts.batch import ForwardBatch, StepResult
from prelude.records import dataclass, field
from prelude.scheduling.cost import CostModel, Work
from prelude.scheduling.pacing import Pacer
from prelude.scheduling.plan import Plan


@dataclass(slots=True)
class EngineStats:
    """Read without stopping the engine; each is exact, a set of them may be a step apart.

    An admitted request has ended or is in the queues: ``requests`` = ``finished`` + ``failed`` + ``cancelled`` +
    ``expired`` + waiting and running requests. ``rejected`` requests were never admitted.
    """

    steps: dict[str, int] = field(default_factory=lambda: {"oneshot": 0, "mixed": 0, "decode": 0})
    prefill_tokens: int = 0
    decode_tokens: int = 0
    prefix_hit_tokens: int = 0
    folded_tokens: int = 0  # not computed again because rows of one step shared them
    lm_head_rows: int = 0
    eager_steps: int = 0
    graph_replays: int = 0
    peak_activation_bytes: int = 0
    forward_seconds: float = 0.0
    finished: int = 0  # requests that ended well
    requests: dict[str, int] = field(default_factory=lambda: {c.value: 0 for c in ExecutionClass})
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    failed_steps: int = 0
    eager_reasons: dict[str, int] = field(default_factory=dict)  # why steps found no recorded graph, on a GPU
    discarded_rows: int = 0  # decode rows that were run before it was known that their request had ended
    replays: int = 0  # rows that ran again after a failed step
    hangs: int = 0  # steps that passed the watchdog's limit
    preemptions: int = 0
    deferrals: int = 0
    evictions: int = 0  # cached blocks that gave way to others
    prefixes_not_kept: int = 0  # OneShot prompts without a block that entered the prefix cache, for want of room
    host_seconds: float = 0.0
    tokenizer_calls: int = 0
    queued_requests: int = 0  # waiting, being tokenised or on their way: the count that max_queued_requests bounds
    queued_tokens: int = 0
    running_requests: int = 0
    live_futures: int = 0  # requests whose end a caller waits for
    live_streams: int = 0
    decode_state_objects: int = 0  # made so far: one a Decode request, none for OneShot
    streaming_objects: int = 0
    loop_wakeups: int = 0
    callback_errors: int = 0
    blocks_free: int = 0
    blocks_used: int = 0
    blocks_cached: int = 0
    blocks_locked: int = 0  # cached ones that a request reads now
    states_free: int = 0  # for states of a recurrent model
    states_used: int = 0
    prefix_states: int = 0  # cached prefixes that have a state
    host_kv_blocks: int = 0  # kept in host memory
    host_kv_hits: int = 0  # prompts for which blocks came back from there
    host_kv_copied_out: int = 0  # blocks
    host_kv_copied_in: int = 0
    host_kv_evictions: int = 0  # blocks that gave way to others there; those that were dropped do not count
    host_kv_failed: int = 0  # copies that failed, each of any number of blocks

    def count_step(self, plan: Plan, batch: ForwardBatch, result: StepResult, pacer: Pacer, cost: CostModel) -> int:
        """Count a step's rows, give its seconds to the pacer and the cost model. Return the tokens of its batch."""
        tokens, decode = batch.num_tokens, len(plan.decode)
        prefill = sum([row.count for row in plan.prefill])
        self.steps[plan.kind] += 1
        self.prefix_hit_tokens += sum([row.skip for row in plan.oneshot])
        for row in plan.prefill:
            if not row.request.stats.chunks and not row.request.output:
                self.prefix_hit_tokens += row.start
        for fold in plan.folds:
            self.folded_tokens += fold.tokens * (len(fold.members) - 1)
        self.prefill_tokens += tokens - decode
        self.decode_tokens += decode
        self.lm_head_rows += result.lm_head_rows
        self.eager_steps += result.eager
        self.graph_replays += not result.eager
        self.peak_activation_bytes = max(self.peak_activation_bytes, result.peak_bytes)
        self.forward_seconds += result.seconds
        pacer.measured(decode, tokens - prefill - decode, prefill, result.seconds)
        cost.observe(Work(tokens, result.attended_tokens, result.lm_head_rows), result.seconds)
        return tokens


class GcPauses:
    """The process's garbage collections since the first engine was made, or the last ``warmup(freeze_gc=True)``: how
    many, how long. One per process."""

    _lock = threading.Lock()
    _shared: GcPauses | None = None

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.longest = 0.0
        self._began = 0.0

    @classmethod
    def shared(cls) -> GcPauses:
        if cls._shared is None:  # a forked child may have a lock that a thread held which is not there
            with cls._lock:
                if cls._shared is None:
                    cls._shared = cls()
                    gc.callbacks.append(cls._shared._heard)
        return cls._shared

    def reset(self) -> None:
        self.count = 0
        self.seconds = self.longest = 0.0

    def _heard(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        elif self._began:
            took = time.perf_counter() - self._began
            self.count += 1
            self.seconds += took
            self.longest = max(self.longest, took)

    def numbers(self) -> dict[str, Any]:
        return {"count": self.count, "total_ms": self.seconds * 1e3, "longest_ms": self.longest * 1e3}
