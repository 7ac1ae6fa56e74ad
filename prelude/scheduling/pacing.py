"""Pacer: how much OneShot work a step may carry beside running rows.

Every step with running rows earns OneShot work a little time, ``share / (1 - share)`` of the rows' own time. A
OneShot group spends the time that it adds to the step. While the account is positive a group may go: as many tokens
as it pays for, and always at least one request, however long, which then leaves a debt that later steps pay off. So
rows lose at most ``share`` of their pace, and the longest prompt still gets its turn.

Seconds here are those that executors report of their steps, so a simulator that reports the same plans the same.
"""

from __future__ import annotations

_WEIGHT = 0.2  # of a new measurement
_SAVED_STEPS = 8  # an account holds at most the earnings of so many steps
_MOST_TOKENS = 1e15  # of an allowance: a few fast steps make the time of a token nearly nothing
_LOOK_AGAIN = 32  # steps until the rows' own pace is measured again


class Pacer:
    """``share``: of the running rows' pace that they may lose."""

    def __init__(self, share: float) -> None:
        self.share = share
        self._ratio = share / (1 - share) if share < 1 else 0.0
        self._alone: dict[int, float] = {}  # seconds of a step of running rows, by bit length of their number
        self._token = 0.0  # seconds of one more prompt token
        self._credit = 0.0
        self._mixed = 0

    def allowance(self, rows: int) -> int | None:
        """Tokens of OneShot work for a step beside ``rows``; ``None``: as many as fit. A positive number admits one
        request of any length."""
        if rows <= 0 or self.share >= 1:
            return None
        if rows.bit_length() not in self._alone or self._credit <= 0 or self._mixed >= _LOOK_AGAIN:
            return 0
        return max(1, int(min(self._credit / self._token, _MOST_TOKENS))) if self._token > 0 else None

    def measured(self, rows: int, oneshot_tokens: int, prefill_tokens: int, seconds: float) -> None:
        """Record the rows of a step: running rows, tokens of OneShot rows, tokens of Decode prompts."""
        tokens = oneshot_tokens + prefill_tokens
        if rows <= 0:
            if tokens:
                self._token = _blend(self._token, seconds / tokens, _WEIGHT)
            self._credit = max(0.0, self._credit)  # no running row waited
            return
        alone = self._alone.get(rows.bit_length(), 0.0)
        if tokens == 0:
            alone = self._alone[rows.bit_length()] = _quiet(alone, seconds)
            self._mixed = 0
            self._earn(alone)
            return
        longer = max(0.0, seconds - alone)
        self._token = _blend(self._token, longer / tokens, _WEIGHT)
        self._earn(alone)
        self._credit -= longer * oneshot_tokens / tokens
        self._mixed += oneshot_tokens > 0

    def _earn(self, seconds: float) -> None:
        self._credit = min(self._credit + self._ratio * seconds, _SAVED_STEPS * self._ratio * seconds)


def _blend(old: float, new: float, weight: float) -> float:
    """Return a moving average that one outlier (a busy machine) cannot carry away."""
    return new if old == 0.0 else old + weight * (min(new, 3 * old) - old)


def _quiet(old: float, new: float) -> float:
    """About the seconds of a step on a quiet machine. A lower measurement counts at once, a higher one slowly.
    Others' load must not look like a slow pace that leaves time for more work."""
    return _blend(old, new, _WEIGHT if new < old else _WEIGHT / 8)
