"""The CUDA executor over one rank's part of a model: the ranks' GPUs add their parts by NCCL within each step."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from prelude.batch import ForwardBatch, StepResult
from prelude.errors import RankLost
from prelude.execution.cpu import Finished
from prelude.execution.executor import ExecutorLimits
from prelude.execution.parallel.group import RankGroup

if TYPE_CHECKING:
    from prelude.cuda.executor import CudaExecutor


class DeviceRank:
    """A step has ended by the time ``submit`` returns, so the ranks' steps do not overlap on the host. All ranks
    compute the same logits and draw the same tokens, because NCCL gives each the same bits and the vocabulary is
    whole on each."""

    def __init__(self, inner: CudaExecutor, ranks: RankGroup) -> None:
        self._inner = inner
        self._ranks = ranks
        self._limit = TimeLimit(ranks)

    def limits(self) -> ExecutorLimits:
        """Bytes are those of this rank."""
        return self._inner.limits()

    def resolved(self, batch: ForwardBatch) -> ForwardBatch:
        """Each rank's GPU has the tokens that the step before drew."""
        return batch

    def lose(self, batch: ForwardBatch) -> None:
        """A step that was not run drew nothing: the next step may not name its tokens."""

    def submit(self, batch: ForwardBatch) -> Finished:
        with self._limit.of_a_step():
            try:
                done = Finished(self._inner.wait(self._inner.submit(batch)), None)
            except Exception as error:
                done = Finished(None, error)
        if self._ranks.lost is None:
            return done
        return Finished(None, RankLost(str(self._ranks.lost)))  # numbers of sums that were ended are nonsense

    def wait(self, handle: Finished) -> StepResult:
        if handle.error is not None:
            raise handle.error
        if handle.result is None:
            raise RuntimeError("the step has neither a result nor an error")
        return handle.result

    def close(self) -> None:
        self._limit.end()
        self._inner.close()


class TimeLimit:
    """A thread that ends the group where a step takes longer than the group's limit. A kernel of NCCL waits for the
    other ranks without a limit of its own; leaving the group ends it."""

    def __init__(self, ranks: RankGroup) -> None:
        self._ranks = ranks
        self._changed = threading.Condition()
        self._steps = 0  # begun and ended ones: odd while a step runs
        self._ended = False
        threading.Thread(target=self._watch, name="prelude-rank-limit", daemon=True).start()

    @contextmanager
    def of_a_step(self) -> Iterator[None]:
        self._count()
        try:
            yield
        finally:
            self._count()

    def _count(self) -> None:
        with self._changed:
            self._steps += 1
            self._changed.notify()

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()

    def _watch(self) -> None:
        with self._changed:
            seen = -1

            def changed() -> bool:
                return self._ended or self._steps != seen

            while not self._ended:
                seen = self._steps
                if not self._changed.wait_for(changed, self._ranks.limit if seen % 2 else None):
                    reason = TimeoutError(f"a step did not end within {self._ranks.limit:g} s")
                    self._ranks.lose(reason, "waiting for the GPU")
                    return


__all__ = ["DeviceRank", "TimeLimit"]
