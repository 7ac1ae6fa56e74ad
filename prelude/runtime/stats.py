"""EngineStats: counters since the engine was made, and how a step is counted."""

from __future__ import annotations

import gc
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from prelude._native.core import skipped
from prelude.admission.classes import ExecutionClass
from prelude.batch import DecodeBatch, OneShotBatch, StepResult
from prelude.scheduling.pack import Packed
from prelude.scheduling.plan import Plan


@dataclass(slots=True)
class EngineStats:
    """Read without stopping the engine; each is exact, a set of them may be a step apart.

    What came in has ended or is in the queues: ``requests`` = ``finished`` + ``failed`` + ``cancelled`` + ``expired``
    + what waits or runs. ``rejected`` never came in.
    """

    requests: dict[str, int] = field(default_factory=lambda: {c.value: 0 for c in ExecutionClass})
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=lambda: {"oneshot": 0, "mixed": 0, "decode": 0})
    failed_steps: int = 0
    discarded_rows: int = 0  # decode rows that were run before it was known that their request had ended
    replays: int = 0  # rows that ran again after a failed step
    hangs: int = 0  # steps that passed the watchdog's limit
    prefill_tokens: int = 0
    decode_tokens: int = 0
    prefix_hit_tokens: int = 0
    folded_tokens: int = 0  # tokens that were not computed again because rows of one step shared them
    lm_head_rows: int = 0
    preemptions: int = 0
    deferrals: int = 0
    evictions: int = 0  # cached blocks that gave way to others
    eager_steps: int = 0
    graph_replays: int = 0
    peak_activation_bytes: int = 0
    forward_seconds: float = 0.0
    host_seconds: float = 0.0
    tokenizer_calls: int = 0
    queued_requests: int = 0  # waiting, being tokenised or on their way: what max_queued_requests counts
    queued_tokens: int = 0
    running_requests: int = 0
    live_futures: int = 0  # requests whose end somebody waits for
    live_streams: int = 0
    decode_state_objects: int = 0  # made so far: one a Decode request, none for OneShot
    streaming_objects: int = 0
    loop_wakeups: int = 0
    callback_errors: int = 0
    blocks_free: int = 0
    blocks_used: int = 0
    blocks_cached: int = 0
    blocks_locked: int = 0  # cached ones that a request reads now

    def count_step(self, plan: Plan, packed: Packed, result: StepResult, tokens: int) -> None:
        """``tokens``: of its batch."""
        batch = packed.batch
        if isinstance(batch, OneShotBatch):
            self.steps["oneshot"] += 1
            self.prefill_tokens += tokens
        elif isinstance(batch, DecodeBatch):
            self.steps["decode"] += 1
            self.decode_tokens += tokens
        else:
            self.steps["mixed"] += 1
            self.prefill_tokens += batch.prefill_tokens
            self.decode_tokens += batch.decode_tokens
        for fold in plan.folds:
            self.folded_tokens += fold.tokens * (len(fold.members) - 1)
        if plan.oneshot:
            self.prefix_hit_tokens += skipped(plan.oneshot)
        for row in plan.prefill:
            if not row.request.stats.chunks and not row.request.output:
                self.prefix_hit_tokens += row.start
        self.lm_head_rows += result.lm_head_rows
        if result.eager:
            self.eager_steps += 1
        else:
            self.graph_replays += 1
        if result.peak_bytes > self.peak_activation_bytes:
            self.peak_activation_bytes = result.peak_bytes
        self.forward_seconds += result.seconds


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
