"""Which replica a request goes to. A router sees what it sent and what came back, and the prompt; never a replica's
inside, which on other machines it could not see either.

``PrefixAffine`` is consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam: arXiv 1608.01350): a
prefix has its own order of replicas and goes to the first of them that carries at most ``1 + slack`` times the mean
load, so one prefix that everybody asks for spreads, and a replica more or less moves few prefixes.
"""

from __future__ import annotations

import heapq
import random
from bisect import bisect_left
from collections.abc import Callable
from hashlib import blake2b
from typing import Protocol

from prelude.errors import ConfigError
from prelude.simulation.traces import Arrival

_POINTS = 32  # of each replica on the ring


class Loads:
    """Tokens sent to each replica and not answered yet; the least loaded one in O(log n)."""

    def __init__(self, count: int) -> None:
        self.tokens = [0] * count
        self.total = 0
        self._heap = [(0, number) for number in range(count)]

    def add(self, replica: int, tokens: int) -> None:
        self.tokens[replica] += tokens
        self.total += tokens
        heapq.heappush(self._heap, (self.tokens[replica], replica))

    def least(self) -> int:
        """Ties go to the lowest number."""
        while self._heap[0][0] != self.tokens[self._heap[0][1]]:
            heapq.heappop(self._heap)
        return self._heap[0][1]


class Router(Protocol):
    def route(self, arrival: Arrival, loads: Loads) -> int: ...


class Random:
    def __init__(self, count: int, seed: int = 0) -> None:
        self._count = count
        self._rng = random.Random(f"router {seed}")

    def route(self, arrival: Arrival, loads: Loads) -> int:
        return self._rng.randrange(self._count)


class LeastLoaded:
    def __init__(self, count: int, seed: int = 0) -> None:
        pass

    def route(self, arrival: Arrival, loads: Loads) -> int:
        return loads.least()


class PrefixAffine:
    """By the name of the prompt's first part; a prompt without one goes to the least loaded replica."""

    def __init__(self, count: int, seed: int = 0, *, slack: float = 0.25) -> None:
        self._count = count
        self._slack = slack
        ring = sorted(
            (_hash(f"{seed} {number} {point}"), number) for number in range(count) for point in range(_POINTS)
        )
        self._points = [point for point, _ in ring]
        self._owners = [number for _, number in ring]
        self._orders: dict[str, int] = {}  # where on the ring a prefix begins

    def route(self, arrival: Arrival, loads: Loads) -> int:
        name, _ = arrival.parts[0]
        if name is None:
            return loads.least()
        start = self._orders.get(name)
        if start is None:
            start = self._orders[name] = bisect_left(self._points, _hash(name)) % len(self._points)
        tokens = arrival.prompt_tokens
        bound = (1 + self._slack) * (loads.total + tokens) / self._count
        seen: set[int] = set()
        for step in range(len(self._owners)):
            owner = self._owners[(start + step) % len(self._owners)]
            if owner not in seen and (loads.tokens[owner] == 0 or loads.tokens[owner] + tokens <= bound):
                return owner
            seen.add(owner)
            if len(seen) == self._count:
                break
        return loads.least()


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


ROUTERS: dict[str, Callable[[int, int], Router]] = {
    "random": Random,
    "least-loaded": LeastLoaded,
    "prefix-affine": PrefixAffine,
}


def router(name: str, count: int, seed: int = 0) -> Router:
    if name not in ROUTERS:
        raise ConfigError(f"router={name!r} is not one of {', '.join(ROUTERS)}")
    return ROUTERS[name](count, seed)
