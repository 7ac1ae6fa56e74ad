"""CostModel learns the cost of steps from measured ones and predicts the seconds of a step or a request. Pacer says
how much OneShot work a step may carry beside running rows.

    seconds = constant + a * tokens + b * keys + c * lm_rows        each coefficient >= 0

``keys`` counts the key positions that queries read: a prompt of n uncached tokens behind m cached ones reads
n * m + n * (n + 1) / 2 of them, the quadratic term. Coefficients are never negative, so a longer cache hit never
predicts a longer time.

Fitting is recursive least squares in information form: the weighted sums of x x' and x y are kept, not the steps.
Before a step is added they fade by ``1 - 1/memory``, once there are as many as ``memory`` steps, so the model follows
a machine that changes and forgets no faster than that; sums stay bounded however long the engine runs. A step is
weighted by 1 / seconds, so small steps count as large ones do, and a slow step of a busy machine, however slow,
counts as one step.

Terms are scaled to typical sizes, so that the sums are of one magnitude.

Pacing. Every step with running rows earns OneShot work a little time, ``share / (1 - share)`` of the rows' own time.
A OneShot group spends the time that it adds to the step. While the account is positive a group may go: as many tokens
as it pays for, and always at least one request, however long, which then leaves a debt that later steps pay off. So
rows lose at most ``share`` of their pace, and the longest prompt still gets its turn.

Seconds here are those that executors report of their steps, so a simulator that reports the same plans the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

from prelude.errors import ConfigError, reason, shown
from prelude.execution.layout import prompt_keys
from prelude.records import dataclass
from prelude.tokenizer.backends.files import read_plain
from prelude.values.strict_json import parse

_TERMS = ("constant", "token", "key", "lm_row")
_SCALE = (1.0, 1e2, 1e5, 1e1)
_N = len(_TERMS)
_PLACES = ((0, 1, 2, 3, 10), (1, 4, 5, 6, 11), (2, 5, 7, 8, 12), (3, 6, 8, 9, 13))  # in the sums: of x x' and x y
_REFIT = 32  # the most steps between two solutions; fewer if these are half of all steps so far
_ALIKE = 1e-10  # a share of a term's own sum: with less of it left the sums do not tell it from the others
_MAX_BYTES = 1 << 20
_MOST_SECONDS = 1e6


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a step: tokens through the layers; (token, key) pairs that attention scores, the token's own
    included; rows that meet the vocabulary. ``context``: keys that lie in the KV pool and are read by at least one
    token, counted once for each sequence that reads them. A simulated machine's cost weighs them."""

    tokens: int
    keys: float = 0.0
    lm_rows: int = 0
    context: int = 0

    @classmethod
    def prompt(cls, tokens: int, cached: int = 0, lm_rows: int = 1) -> Work:
        """One prompt alone, ``cached`` tokens of it in the pool."""
        return cls(tokens - cached, prompt_keys(tokens - cached, cached), lm_rows, cached)


class CostModel:
    """Has no lock: the engine's stepping thread observes; others may predict, by a moment's coefficients."""

    def __init__(self, memory: int = 512, coefficients: Mapping[str, float] | None = None) -> None:
        """``coefficients``: seconds by term (``constant``, ``token``, ``key``, ``lm_row``), of an earlier fit; it
        counts as ``memory / 4`` steps until real ones outweigh it."""
        if memory < 8:
            raise ConfigError(f"memory={memory} steps do not hold a model of {_N} terms; it takes 8 or more")
        self.memory = memory
        self.steps = 0  # measured so far
        self._seconds: tuple[float, ...] = (0.0,) * _N  # by term
        self._sums = [0.0] * (_N * (_N + 3) // 2)  # weighted: of x x', its upper triangle; then of x y
        self._unfitted = 0
        if coefficients is not None:
            self._start_from(coefficients)

    # -------------------------------------------------------------- learning

    def observe(self, work: Work, seconds: float) -> None:
        """Learn from a measured step. Values that cannot be a time (zero, not a number) are ignored."""
        if not 0.0 < seconds < math.inf:
            return
        self._add(work, seconds, 1.0)
        if self._unfitted >= min(self.steps // 2, _REFIT):
            self._unfitted = 0
            self._seconds = _solution(self._sums)

    def _add(self, work: Work, seconds: float, weight: float) -> None:
        """Add a step that is taken as it is; it counts as ``weight`` of them."""
        x, y, z = work.tokens / _SCALE[1], work.keys / _SCALE[2], work.lm_rows / _SCALE[3]
        keep = 1.0 if self.steps < self.memory else 1.0 - 1.0 / self.memory
        w = weight / seconds
        wx, wy, wz = w * x, w * y, w * z
        squares = (w, wx, wy, wz, wx * x, wx * y, wx * z, wy * y, wy * z, wz * z)
        new = (*squares, w * seconds, wx * seconds, wy * seconds, wz * seconds)
        self._sums = [keep * old + more for old, more in zip(self._sums, new)]
        self.steps += 1
        self._unfitted += 1

    # -------------------------------------------------------------- asking

    def predict(self, work: Work) -> float:
        """Return seconds of a step with this work; 0 before anything was measured."""
        constant, token, key, row = self._seconds
        return constant + token * work.tokens + key * work.keys + row * work.lm_rows

    def seconds(self) -> tuple[float, ...]:
        """Return the coefficients, by term."""
        return self._seconds

    @property
    def coefficients(self) -> dict[str, float]:
        """Seconds by term."""
        return dict(zip(_TERMS, self._seconds))

    @property
    def curvature(self) -> float:
        """Seconds of a key over seconds of a token, for ``ShortestPrefillFirst`` and ``ResponseRatio``."""
        _, token, key, _ = self._seconds
        return key / token if token > 0 else 0.0

    # -------------------------------------------------------------- keeping

    def save(self, path: str | Path) -> None:
        """Write as JSON the coefficients, in seconds, and how many steps they come from."""
        text = json.dumps({"prelude_cost_model": 1, "steps": self.steps, "seconds": self.coefficients}, indent=1)
        Path(path).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path, memory: int = 512) -> CostModel:
        """Read a file. ``ConfigError`` if it is not a cost model."""
        try:
            data = parse(read_plain(path, _MAX_BYTES), str(path), ConfigError)
        except OSError as error:
            raise ConfigError(f"{path} cannot be read as a cost model: {reason(error)}") from error
        if (
            not isinstance(data, dict)
            or data.get("prelude_cost_model") != 1
            or not isinstance(data.get("seconds"), dict)
        ):
            raise ConfigError(f"{path} is not a cost model; CostModel.save writes one")
        try:
            return cls(memory, data["seconds"])
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    def _start_from(self, coefficients: Mapping[str, float]) -> None:
        for name in _TERMS:
            value = coefficients.get(name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST_SECONDS:
                raise ConfigError(
                    f"cost model: {name}={shown(value)} is not a number of seconds from 0 to {_MOST_SECONDS:g}"
                )
        self._seconds = tuple(float(coefficients[name]) for name in _TERMS)
        if any(self._seconds):
            known = [Work(1), Work(64, 2e3, 8), Work(512, 1.3e5, 64), Work(512, 1e6, 1), Work(4096, 8e6, 16)]
            for work in known:
                if (seconds := self.predict(work)) > 0.0:
                    self._add(work, seconds, self.memory / 4 / len(known))
            self.steps, self._unfitted = _REFIT, 0


def _solution(sums: Sequence[float]) -> tuple[float, ...]:
    """The best of all subsets of terms whose own solution is not negative: exact for the few terms there are, and
    without the choice of a start. All zero if no subset has a solution."""
    table = [[sums[at] for at in row] for row in _PLACES]
    best, least = [0.0] * _N, 0.0
    for count in (_N, *range(1, _N)):
        for terms in combinations(range(_N), count):
            found = _solved(table, terms)
            if found is None or min(found) < 0.0:
                continue
            residual = -sum([x * y for x, y in zip(found, sums[-_N:])])  # up to a constant
            if residual < least * (1 + 1e-12):
                best, least = found, residual
        if count == _N and least < 0.0:  # no subset does better than all terms together
            break
    return tuple([x / scale for x, scale in zip(best, _SCALE)])


def _solved(table: Sequence[Sequence[float]], terms: tuple[int, ...]) -> list[float] | None:
    """The solution with all other terms at 0, by elimination; None if the sums do not tell these terms apart."""
    rows = [[*[table[i][j] for j in terms], table[i][_N]] for i in terms]
    for k, row in enumerate(rows):
        if not row[k] > _ALIKE * table[terms[k]][terms[k]]:
            return None
        for other in rows[k + 1 :]:
            factor = other[k] / row[k]
            other[k:] = [below - factor * above for below, above in zip(other[k:], row[k:])]
    found = [0.0] * _N
    for k, row in reversed(list(enumerate(rows))):
        rest = sum([row[j] * found[terms[j]] for j in range(k + 1, len(terms))])
        found[terms[k]] = (row[-1] - rest) / row[k]
    return found


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
    """About the seconds of a step on a quiet machine. A lower measurement has eight times the weight of a higher one:
    others' load must not look like a slow pace that leaves time for more work."""
    return _blend(old, new, _WEIGHT if new < old else _WEIGHT / 8)
