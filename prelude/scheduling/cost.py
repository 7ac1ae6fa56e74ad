"""CostModel: the expected seconds of a step or a request, learnt from measured steps.

    seconds = constant + a * tokens + b * keys + c * lm_rows        each coefficient >= 0

``keys`` counts the key positions that queries read: a prompt of n uncached tokens behind m cached ones reads
n * m + n * (n + 1) / 2 of them, the quadratic term. Coefficients are never negative, so a longer cache hit never
predicts a longer time.

Fitting is recursive least squares in information form: the weighted sums of x x' and x y are kept, not the steps.
Before a step is added they fade by ``1 - 1/memory``, once there are as many as ``memory`` steps, so the model follows
a machine that changes and forgets no faster than that; sums stay bounded however long the engine runs. A step is
weighted by 1 / seconds, so small steps count as large ones do. A slow step of a busy machine has a bounded effect on
the model: past the first few steps a step counts as at most four times its prediction.

The sums and their solution are in ``_native/include/prelude/cost_fit.hpp``; no torch, no NumPy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol, TypeAlias

from prelude._native.core import CostFit, KvPool
from prelude.errors import ConfigError, reason, shown
from prelude.records import dataclass
from prelude.scheduling.request import Request
from prelude.tokenizer.backends.files import read_plain
from prelude.values.strict_json import parse

_TERMS = ("constant", "token", "key", "lm_row")
_N = len(_TERMS)
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
    def prompt(cls, tokens: int, cached: int = 0) -> Work:
        """One prompt alone, ``cached`` tokens of it in the pool."""
        new = tokens - cached
        return cls(new, new * cached + new * (new + 1) // 2, 1, cached)


class CostModel:
    """Has no lock: the engine's stepping thread observes; others may predict, by a moment's coefficients."""

    def __init__(self, memory: int = 512, coefficients: Mapping[str, float] | None = None) -> None:
        """``coefficients``: seconds by term (``constant``, ``token``, ``key``, ``lm_row``), of an earlier fit; it
        counts as ``memory / 4`` steps until real ones outweigh it."""
        if memory < 8:
            raise ConfigError(f"memory={memory} steps do not hold a model of {_N} terms; it takes 8 or more")
        self.memory = memory
        self.fit = CostFit(memory)
        if coefficients is not None:
            self._start_from(coefficients)

    @property
    def steps(self) -> int:
        """Measured so far."""
        return self.fit.steps

    # -------------------------------------------------------------- learning

    def observe(self, work: Work, seconds: float) -> None:
        """Learn from a measured step. Values that cannot be a time (zero, not a number) are ignored."""
        self.fit.observe(work.tokens, work.keys, work.lm_rows, seconds)

    # -------------------------------------------------------------- asking

    def predict(self, work: Work) -> float:
        """Return seconds of a step with this work; 0 before anything was measured."""
        return self.fit.predict(work.tokens, work.keys, work.lm_rows)

    def seconds(self) -> tuple[float, ...]:
        """Return the coefficients, by term."""
        return self.fit.seconds()

    @property
    def coefficients(self) -> dict[str, float]:
        """Seconds by term."""
        return dict(zip(_TERMS, self.fit.seconds()))

    @property
    def curvature(self) -> float:
        """Seconds of a key over seconds of a token, for ``ShortestPrefillFirst`` and ``ResponseRatio``."""
        _, token, key, _ = self.fit.seconds()
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
        constant, token, key, row = (float(coefficients[name]) for name in _TERMS)
        learnt = any((constant, token, key, row))
        if learnt:
            known = [Work(1), Work(64, 2e3, 8), Work(512, 1.3e5, 64), Work(512, 1e6, 1), Work(4096, 8e6, 16)]
            weight = self.memory / 4 / len(known)
            self.fit.start_from(constant, token, key, row, False)
            for work, seconds in [(work, self.predict(work)) for work in known]:
                self.fit.add(work.tokens, work.keys, work.lm_rows, seconds, weight)
        self.fit.start_from(constant, token, key, row, learnt)


class Estimates(Protocol):
    """The prefix cache's share of each waiting request. Requests are known from ``watch`` to ``forget``.

    A request is matched when it is first ranked, and again only when the trie says that its answer may have changed:
    the node where its match ended is gone, or the block that it lacked is ready. So the cost follows the number of
    changes, not the number of waiting requests. Requests that wait for the same block are known too: a prefix is
    worth keeping if other requests wait for it.
    """

    def watch(self, request: Request) -> int:
        """Return tokens of its prompt that need not be computed now."""

    def forget(self, request: Request) -> None: ...

    def moved(self) -> Iterator[tuple[Request, int]]:
        """Requests whose answer changed since it was asked for, with the new one."""

    def peer(self, request: Request, cached: int) -> Request | None:
        """Another one that waits, with as many tokens cached and the same tokens in the block that comes next."""


_Place: TypeAlias = "tuple[int, int, bytes]"  # salt, tokens cached, the tokens of the block that is lacked


class PoolEstimates:
    """Take events of a pool's trie. At most one object of a pool at a time: events are read once."""

    def __init__(self, pool: KvPool) -> None:
        self._pool = pool
        self.watched: dict[int, Request] = {}  # by watch
        self._watches: dict[int, int] = {}  # by request id
        self._places: dict[int, _Place] = {}  # by watch
        self._peers: dict[_Place, dict[int, Request]] = {}  # by watch

    def watch(self, request: Request) -> int:
        pool = self._pool
        limit = request.reusable // pool.block_size
        if not pool.caching or limit <= 0:
            return 0
        known = request.known[: request.num_known]
        watch, blocks = pool.watch(known, request.salt, limit)
        self.watched[watch] = request
        self._watches[request.id] = watch
        self._register(watch, request, blocks * pool.block_size)
        return int(blocks * pool.block_size)

    def forget(self, request: Request) -> None:
        watch = self._watches.pop(request.id, -1)
        if watch >= 0:
            del self.watched[watch]
            self._leave(watch)
            self._pool.unwatch(watch)

    def moved(self) -> Iterator[tuple[Request, int]]:
        pool = self._pool
        if not self.watched:
            return
        for watch in pool.moved().tolist():
            request = self.watched[watch]
            known = request.known[: request.num_known]
            limit = request.reusable // pool.block_size
            cached = pool.rewatch(watch, known, request.salt, limit) * pool.block_size
            self._leave(watch)
            self._register(watch, request, cached)
            yield request, cached

    def peer(self, request: Request, cached: int) -> Request | None:
        others = self._peers.get(self._place(request, cached))
        return next(iter(others.values())) if others else None

    def _place(self, request: Request, cached: int) -> _Place:
        lacked = request.known[cached : cached + self._pool.block_size]
        return (request.salt, cached, lacked.tobytes())

    def _register(self, watch: int, request: Request, cached: int) -> None:
        place = self._places[watch] = self._place(request, cached)
        self._peers.setdefault(place, {})[watch] = request

    def _leave(self, watch: int) -> None:
        place = self._places.pop(watch)
        others = self._peers[place]
        del others[watch]
        if not others:
            del self._peers[place]
