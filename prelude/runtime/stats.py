"""EngineStats: counters since the engine was made."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

from prelude.admission.prepared import ExecutionClass
from prelude.records import dataclass, field


def _counter(text: str, value: float = 0) -> Any:
    """A number that only grows, with its help text for metrics."""
    return field(default=value, metadata={"counter": text})


def _gauge(text: str) -> Any:
    return field(default=0, metadata={"gauge": text})


@dataclass(slots=True)
class EngineStats:
    """Read without stopping the engine; each is exact, a set of them may be a step apart.

    An admitted request has ended or is in the queues: ``requests`` = ``finished`` + ``failed`` + ``cancelled`` +
    ``expired`` + waiting and running requests. ``rejected`` requests were never admitted.
    """

    steps: dict[str, int] = field(default_factory=lambda: {"oneshot": 0, "mixed": 0, "decode": 0})
    prefill_tokens: int = _counter("prompt tokens computed")
    decode_tokens: int = _counter("tokens computed for running chats")
    prefix_hit_tokens: int = _counter("prompt tokens read from the prefix cache")
    folded_tokens: int = _counter("prompt tokens shared within a step")
    lm_head_rows: int = _counter("rows that met the vocabulary")
    eager_steps: int = 0
    graph_replays: int = 0
    peak_activation_bytes: int = _gauge("most activation bytes of one step")
    forward_seconds: float = _counter("seconds in forwards", 0.0)
    finished: int = _counter("requests that were answered")
    requests: dict[str, int] = field(default_factory=lambda: {c.value: 0 for c in ExecutionClass})
    failed: int = _counter("requests that ended with an error")
    cancelled: int = _counter("requests that their callers cancelled")
    expired: int = _counter("requests whose deadline passed")
    rejected: dict[str, int] = field(default_factory=dict)
    failed_steps: int = _counter("steps that raised")
    eager_reasons: dict[str, int] = field(default_factory=dict)  # why steps found no recorded graph, on a GPU
    discarded_rows: int = _counter("decode rows of requests that had ended")
    replays: int = _counter("rows that ran again after a failed step")
    hangs: int = _counter("steps that passed the watchdog's limit")
    preemptions: int = _counter("chats that gave their blocks back to be computed again")
    deferrals: int = 0
    evictions: int = _counter("cached blocks that were evicted")
    prefixes_not_kept: int = 0  # OneShot prompts without a block that entered the prefix cache, for want of room
    host_seconds: float = _counter("seconds of steps outside forwards", 0.0)
    tokenizer_calls: int = _counter("encode calls")
    queued_requests: int = _gauge("requests that wait")
    queued_tokens: int = _gauge("tokens that wait")
    running_requests: int = _gauge("chats that hold a row")
    live_futures: int = _gauge("requests whose result a caller awaits")
    live_streams: int = _gauge("streams under way")
    decode_state_objects: int = 0  # made so far: one a Decode request, none for OneShot
    streaming_objects: int = 0
    loop_wakeups: int = _counter("wake-ups of callers' event loops")
    callback_errors: int = _counter("event listeners that raised")
    blocks_free: int = _gauge("free KV blocks")
    blocks_used: int = _gauge("KV blocks that requests hold")
    blocks_cached: int = _gauge("KV blocks of the prefix cache")
    blocks_locked: int = _gauge("cached KV blocks that requests read now")
    states_free: int = _gauge("free entries for recurrent states")
    states_used: int = _gauge("recurrent states that requests hold")
    prefix_states: int = _gauge("cached prefixes with a recurrent state")
    host_kv_blocks: int = _gauge("KV blocks in host memory")
    host_kv_hits: int = _counter("prompts for which KV blocks came back from host memory")
    host_kv_copied_out: int = _counter("KV blocks copied to host memory")
    host_kv_copied_in: int = _counter("KV blocks copied back from host memory")
    host_kv_evictions: int = _counter("KV blocks that were evicted in host memory")
    host_kv_failed: int = _counter("copies between KV pool and host memory that failed")


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
