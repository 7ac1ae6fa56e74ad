"""The common parts of the service's tests: a toy engine behind the real front, and an executor that goes wrong."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from prelude._native.core import KvPool

from prelude import AsyncEngine, Engine, EngineConfig
from prelude.admission.prepared import Admitted, Outcome, Prepared
from prelude.errors import ExecutorLost
from prelude.readouts.batch import ForwardBatch, LogprobOutput, SampleOutput, StepResult
from prelude.runtime.core import EngineCore
from prelude.scheduling.planner import Budgets
from prelude.scheduling.request import Request
from tests import toy
from tests.patience import PATIENCE


@dataclass
class Fault:
    """At call number ``at`` of ``site`` ("submit" or "wait"), ``times`` calls long: ``kind`` is "raise", "memory",
    "device memory", "lost", "cancel", "delay", "hang" (until ``over`` is set), or, of the result, "outputs", "rows",
    "nan", "token", "type". ``only`` chooses batches."""

    kind: str
    site: str = "wait"
    at: int = 0
    times: int = 1
    seconds: float = 0.0
    only: Callable[[ForwardBatch], bool] = lambda batch: True
    over: threading.Event = field(default_factory=threading.Event)
    given_up: bool = False  # it hung for as long as patience has it


class FaultyExecutor(toy.ToyExecutor):
    def __init__(self, *faults: Fault, **sizes: Any) -> None:
        super().__init__(**sizes)
        self.faults = list(faults)
        self.calls = {"submit": 0, "wait": 0}
        self.errors = 0

    def submit(self, batch: ForwardBatch) -> Any:
        self._before("submit", batch)
        return super().submit(batch)

    def wait(self, handle: Any) -> StepResult:
        due = self._before("wait", handle)
        result = super().wait(handle)
        for fault in due:
            result = spoiled(result, fault.kind)
        return result

    def _before(self, site: str, batch: ForwardBatch) -> list[Fault]:
        call, self.calls[site] = self.calls[site], self.calls[site] + 1
        due = [f for f in self.faults if f.site == site and f.at <= call < f.at + f.times and f.only(batch)]
        for fault in due:
            self.errors += 1
            match fault.kind:
                case "raise" | "memory" | "device memory" | "lost" | "cancel" if site == "wait":
                    self.lose(batch)
            match fault.kind:
                case "raise":
                    raise RuntimeError("injected")
                case "memory":
                    raise MemoryError("injected")
                case "device memory":
                    raise type("OutOfMemoryError", (RuntimeError,), {})("injected")  # as torch names its own
                case "lost":
                    raise ExecutorLost("injected")
                case "cancel":
                    raise asyncio.CancelledError
                case "delay":
                    time.sleep(fault.seconds)
                case "hang":
                    fault.given_up = not fault.over.wait(PATIENCE)
        return due


def spoiled(result: StepResult, kind: str) -> StepResult:
    first = result.outputs[0]
    match kind:
        case "outputs":
            return replace(result, outputs=(), bad_rows=())
        case "type":
            return "not a result"  # type: ignore[return-value]
        case "rows" if isinstance(first, LogprobOutput):
            first = replace(first, logprobs=first.logprobs[:-1])
        case "rows" if isinstance(first, SampleOutput):
            first = replace(first, token_ids=first.token_ids[:-1])
        case "nan" if isinstance(first, LogprobOutput):
            logprobs = first.logprobs.copy()
            logprobs[0] = np.nan
            first = replace(first, logprobs=logprobs)
        case "places" | "below":
            place = len(result.bad_rows) + 999 if kind == "places" else -1
            return replace(result, bad_rows=(np.array([place], dtype=np.int32), *result.bad_rows[1:]))
        case "nan":
            return replace(result, bad_rows=(np.array([0], dtype=np.int32), *result.bad_rows[1:]))
        case "token" if isinstance(first, SampleOutput):
            token_ids = first.token_ids.copy()
            token_ids[0] = toy.VOCAB
            first = replace(first, token_ids=token_ids)
    return replace(result, outputs=(first, *result.outputs[1:]))


class Pool(KvPool):
    """One whose methods a test can replace: an extension type's cannot be."""


def service_core(
    executor: toy.ToyExecutor | None = None,
    *,
    step_tokens: int = 256,
    step_requests: int = 64,
    running: int = 4,
    chunk: int = 8,
    cache: bool = True,
    logits_bytes: int = 1 << 30,
    queued: int = 1 << 20,
    queued_tokens: int = 1 << 31,
    unhealthy: int = 8,
    fold: bool = True,
    defer_steps: int = 8,
    defer_tokens: int = 4,
    overlap: bool = False,
    **options: Any,
) -> EngineCore:
    executor = executor or toy.ToyExecutor()
    limits = executor.limits()
    pool = Pool(
        limits.num_blocks,
        limits.block_size,
        prefix_cache=cache and (limits.prefix_states > 0 or not limits.bytes_per_state),
        running_states=limits.running_states,
        prefix_states=limits.prefix_states,
    )
    budgets = Budgets(
        step_tokens,
        step_requests,
        running,
        chunk,
        logits_bytes,
        toy.VOCAB,
        64,
        fold,
        defer_steps,
        defer_tokens,
        overlap=overlap,
    )
    return EngineCore(
        executor,
        pool,
        budgets,
        max_queued_requests=queued,
        max_queued_tokens=queued_tokens,
        unhealthy_after=unhealthy,
        overlap=overlap,
        **options,
    )


class ToyPreparer:
    """Tasks are ``Prepared`` already; results are outcomes."""

    context = SimpleNamespace(config=EngineConfig())
    tokenizer_calls = 0
    kept_bytes = 0
    decode_states: dict[str, int] = {}  # noqa: RUF012

    def __init__(self, delay: float = 0.0) -> None:
        self.delay = delay

    def snapshot(self, task: Any) -> Any:
        return task

    def prepare(self, task: Prepared) -> Admitted:
        if self.delay:
            time.sleep(self.delay)
        return Admitted(task, lambda outcome: outcome)

    def prepare_all(self, tasks: Any) -> list[Any]:
        found: list[Any] = []
        for task in tasks:
            try:
                found.append(self.prepare(task))
            except Exception as error:
                found.append(error)
        return found


def toy_service(core: EngineCore | None = None, *, delay: float = 0.0) -> AsyncEngine:
    return AsyncEngine(Engine(core or service_core(), ToyPreparer(delay), Path()))  # type: ignore[arg-type]


def run_steps(core: EngineCore, most: int = 10_000) -> int:
    """Until there is nothing to do, audited after every step."""
    for steps in range(most):
        moved = core.step()
        core.audit()
        if not moved:
            return steps
    raise AssertionError("no end")


def play(
    core: EngineCore,
    arrivals: Sequence[tuple[int, int | None, Request]],
    *,
    failing: Collection[int] = (),
    after_step: Callable[[EngineCore], object] = lambda core: None,
    most: int = 3000,
) -> int:
    """Requests that come before step ``at`` and, where ``cancel`` is given, are cancelled so many steps later; the
    executor fails in the steps ``failing``. Audited after every step, until nothing moves; how many steps it took."""
    last = max(at + (cancel or 0) for at, cancel, _ in arrivals)
    for step in range(most):
        for at, cancel, request in arrivals:
            if at == step:
                core.lifecycle.post([request])
            if cancel is not None and at + cancel == step:
                core.cancel(request)
        if step in failing:
            core.executor.fail_next = RuntimeError("injected")  # type: ignore[attr-defined]
        moved = core.step()
        core.audit()
        after_step(core)
        if not moved and step >= last:
            return step + 1
    raise AssertionError("no end")


def is_empty(core: EngineCore) -> bool:
    return (
        not core.live
        and core.queues.empty
        and core.pool.live_leases == 0
        and core.pool.num_used == 0
        and core.inbox.requests == core.inbox.tokens == core.stepper.began == 0
    )


__all__ = [
    "Fault", "FaultyExecutor", "Outcome", "ToyPreparer", "is_empty", "play", "run_steps", "service_core",
    "toy_service",
]  # fmt: skip
