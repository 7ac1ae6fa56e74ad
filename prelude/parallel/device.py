"""The CUDA executor over one rank's part of a model: the ranks' GPUs add their parts by NCCL within each step."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from prelude.cpu.executor import Finished
from prelude.errors import RankLost, starting_thread
from prelude.execution.executor import ExecutorLimits
from prelude.execution.layout import PendingTokens
from prelude.parallel.group import RankGroup
from prelude.readouts.batch import ForwardBatch, StepResult

if TYPE_CHECKING:
    from prelude.cuda.executor import CudaExecutor


class DeviceRank:
    """A step has ended by the time ``submit`` returns, so the ranks' steps do not overlap on the host. NCCL gives
    each rank the same bits of the hidden states, and the vocabulary is whole on each. Each GPU searches its own
    products, so the ranks' LM heads may round differently and draw different tokens if two are nearly equal.
    Decode rows therefore get the tokens of rank 0."""

    def __init__(self, inner: CudaExecutor, ranks: RankGroup, limit: TimeLimit) -> None:
        """``limit`` becomes the executor's own."""
        self._inner = inner
        self._ranks = ranks
        self._limit = limit
        self._drawn = PendingTokens()

    def limits(self) -> ExecutorLimits:
        """Bytes are those of this rank."""
        return self._inner.limits()

    def resolved(self, batch: ForwardBatch) -> ForwardBatch:
        return self._drawn.resolved(batch)

    def lose(self, batch: ForwardBatch) -> None:
        self._drawn.lose(batch)

    def submit(self, batch: ForwardBatch) -> Finished:
        with self._limit.of("a step", self._ranks.limit):
            try:
                result = self._inner.wait(self._inner.submit(batch))
                self._drawn.keep(result.outputs)
                done = Finished(result, None)
            except Exception as error:
                self._drawn.lose(batch)
                done = Finished(None, error)
        if self._ranks.lost is None:
            return done
        return Finished(None, RankLost(str(self._ranks.lost)))  # numbers of sums that were ended are nonsense

    def wait(self, handle: Finished) -> StepResult:
        return handle.get()

    def close(self) -> None:
        self._limit.end()
        self._inner.close()


class TimeLimit:
    """A thread that ends the group if work of the GPU takes longer than its limit. A kernel of NCCL waits for the
    other ranks without a limit of its own; leaving the group ends it. ``end`` ends the thread."""

    def __init__(self, ranks: RankGroup) -> None:
        self._ranks = ranks
        self._changed = threading.Condition()
        self._works = 0  # begun and ended ones: odd while one runs
        self._doing, self._seconds = "", 0.0
        self._ended = False
        with starting_thread():
            threading.Thread(target=self._watch, name="prelude-rank-limit", daemon=True).start()

    @contextmanager
    def of(self, doing: str, seconds: float) -> Iterator[None]:
        """Surround the work ``doing``, which is no part of another one."""
        self._doing, self._seconds = doing, seconds  # nothing runs: the thread does not read them
        self._count()
        try:
            yield
        finally:
            self._count()

    def _count(self) -> None:
        with self._changed:
            self._works += 1
            self._changed.notify()

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()

    def _watch(self) -> None:
        with self._changed:
            seen = -1

            def changed() -> bool:
                return self._ended or self._works != seen

            while not self._ended:
                seen = self._works
                if not self._changed.wait_for(changed, self._seconds if seen % 2 else None):
                    reason = TimeoutError(f"{self._doing} did not end within {self._seconds:g} s")
                    self._ranks.lose(reason, "waiting for the GPU")
                    return
