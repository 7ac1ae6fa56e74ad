"""The two sides of a step: rank 0 sends the batch and computes its part, the others receive it and compute theirs."""

from __future__ import annotations

import logging
from typing import Protocol

from prelude.cpu.executor import Finished
from prelude.errors import EngineClosed, RankLost
from prelude.execution.dump import decoded, encoded
from prelude.execution.executor import ExecutorLimits
from prelude.parallel.group import RankGroup
from prelude.readouts.batch import ForwardBatch, StepResult

log = logging.getLogger("prelude.engine")

PULSE = b""
"""Says that rank 0 lives."""
CLOSE = b"close"
PULSE_SECONDS = 2.0


class Rank(Protocol):
    """An executor over one rank's part: ``RankExecutor`` or ``DeviceRank``."""

    def limits(self) -> ExecutorLimits: ...

    def resolved(self, batch: ForwardBatch) -> ForwardBatch:
        """``batch`` as every rank can compute it: with the tokens that its decode rows name and this rank drew in the
        step before. ``ValueError`` if fewer were drawn."""
        ...

    def submit(self, batch: ForwardBatch) -> Finished:
        """Computes it."""
        ...

    def wait(self, handle: Finished) -> StepResult: ...

    def lose(self, batch: ForwardBatch) -> None:
        """Note that a step was not run: it drew nothing."""
        ...

    def close(self) -> None: ...


class LeadExecutor:
    """Lead from rank 0. No step runs after ``lost``. Any error after a batch was sent is one: the ranks are then at
    different places of the step."""

    def __init__(self, inner: Rank, ranks: RankGroup) -> None:
        self._inner = inner
        self._ranks = ranks
        self._closed = False

    @property
    def lost(self) -> RankLost | None:
        return self._ranks.lost

    @property
    def pulse_seconds(self) -> float:
        """Call ``pulse`` after so long without a step, so that the other ranks' time limit does not pass."""
        return min(PULSE_SECONDS, self._ranks.limit / 4)

    def pulse(self) -> None:
        """Say to the other ranks that this one lives, and find out whether they live."""
        if self.lost is None and not self._closed:
            try:
                self._ranks.send(PULSE)
            except RankLost as lost:
                log.error("%s", lost)

    def limits(self) -> ExecutorLimits:
        return self._inner.limits()

    def submit(self, batch: ForwardBatch) -> Finished:
        if self._closed:
            raise EngineClosed("the executor is closed")
        if self.lost is not None:
            return self._refused()
        try:
            known = self._inner.resolved(batch)
            message = encoded(known)
        except Exception as error:  # nothing was sent: the ranks are if they were
            self._inner.lose(batch)
            return Finished(None, error)
        try:
            self._ranks.send(message)
            done = self._inner.submit(known)
        except RankLost:
            return self._refused()
        if done.error is not None and self.lost is None:
            self._ranks.lose(done.error, "computing a step")
        return done if self.lost is None else self._refused()

    def _refused(self) -> Finished:
        """Make an error for each step: one that is raised again and again would keep all of its frames."""
        return Finished(None, RankLost(str(self.lost)))

    def wait(self, handle: Finished) -> StepResult:
        return self._inner.wait(handle)

    def close(self) -> None:
        """End the other ranks, and refuse further steps."""
        if self._closed:
            return
        self._closed = True
        if self.lost is None:
            try:
                self._ranks.send(CLOSE)
            except RankLost as lost:
                log.warning("%s", lost)
        self._inner.close()
        self._ranks.leave()


def serve(inner: Rank, ranks: RankGroup) -> int:
    """Compute rank 0's batches until it closes; returns how many. ``RankLost`` if it, or another rank, ends in
    another way."""
    steps = 0
    try:
        while (message := ranks.receive()) != CLOSE:
            if message == PULSE:
                continue
            done = inner.submit(decoded(message))
            if done.error is not None:
                raise done.error
            steps += 1
        return steps
    except RankLost:
        raise
    except Exception as error:
        raise ranks.lose(error, "computing a step") from error
    finally:
        inner.close()
        ranks.leave()
