"""Which replica a request goes to. A router sees its requests and their results, the replicas that have died, and the
prompt. It never reads a replica's state, which on other machines it could not see either.

``PowerOfTwo`` is Ray Serve's default. ``Reported`` has the ranking of ``prelude.ray.PrefixAffineRouter``
(``prelude.integrations.affinity``), without the replicas' reports: a prefix that was sent counts as cached for
``TRUST`` seconds.
``PrefixAffine`` is consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam: arXiv 1608.01350): a
prefix has its own order of replicas and goes to the first of them that carries at most ``1 + slack`` times the mean
load, so one prefix that everybody asks for spreads, and a replica more or less moves few prefixes.
"""

from __future__ import annotations

import heapq
import random
from bisect import bisect_left, insort
from collections.abc import Callable
from hashlib import blake2b
from typing import Protocol

from prelude.errors import ConfigError
from prelude.integrations.affinity import Affinity
from prelude.simulation.traces import Arrival

_POINTS = 32  # of each replica on the ring
_SLACK = 0.25  # of the mean load, that a replica may have above it for its prefixes' sake
TRUST = 3600.0  # seconds for which ``Reported`` takes a prefix that it sent as cached


class Loads:
    """Tokens and requests sent to each replica and not answered yet; the least loaded one in O(log n). ``up``: the
    numbers of the replicas that live."""

    def __init__(self, count: int) -> None:
        self.tokens = [0] * count
        self.requests = [0] * count
        self.total = 0
        self.in_flight = 0  # requests, as ``total`` of tokens
        self.now = 0.0
        self.up = list(range(count))
        self._alive = [True] * count
        self._heap = [(0, number) for number in range(count)]

    def add(self, replica: int, tokens: int) -> None:
        """Count a request of so many tokens that was sent, or one that has ended if ``tokens`` is negative."""
        self.tokens[replica] += tokens
        change = 1 if tokens > 0 else -1
        self.requests[replica] += change
        self.in_flight += change
        self.total += tokens
        heapq.heappush(self._heap, (self.tokens[replica], replica))

    def alive(self, replica: int) -> bool:
        return self._alive[replica]

    def lose(self, replica: int) -> None:
        """Remove a replica that has died, with all that was sent to it."""
        self.total -= self.tokens[replica]
        self.in_flight -= self.requests[replica]
        self.tokens[replica] = self.requests[replica] = 0
        self._alive[replica] = False
        self.up.remove(replica)

    def regain(self, replica: int) -> None:
        self._alive[replica] = True
        insort(self.up, replica)
        heapq.heappush(self._heap, (0, replica))

    def least(self) -> int:
        """Ties go to the lowest number."""
        while self._heap[0][0] != self.tokens[self._heap[0][1]] or not self._alive[self._heap[0][1]]:
            heapq.heappop(self._heap)
        return self._heap[0][1]


class Router(Protocol):
    """One of ``loads.up`` for each arrival. ``lost``: a replica has died and its cache with it."""

    def route(self, arrival: Arrival, loads: Loads) -> int: ...

    def lost(self, replica: int, loads: Loads) -> None: ...


class Forgetful:
    """A router that knows nothing of the caches."""

    def __init__(self, count: int, seed: int) -> None:
        self._rng = random.Random(f"router {seed}")

    def lost(self, replica: int, loads: Loads) -> None:
        pass


class Random(Forgetful):
    def route(self, arrival: Arrival, loads: Loads) -> int:
        return loads.up[self._rng.randrange(len(loads.up))]


class RoundRobin(Forgetful):
    def __init__(self, count: int, seed: int) -> None:
        self._next = seed

    def route(self, arrival: Arrival, loads: Loads) -> int:
        self._next += 1
        return loads.up[(self._next - 1) % len(loads.up)]


class PowerOfTwo(Forgetful):
    """Takes of two random replicas the one with fewer requests in flight: Ray Serve's
    ``PowerOfTwoChoicesRequestRouter``."""

    def route(self, arrival: Arrival, loads: Loads) -> int:
        if len(loads.up) == 1:
            return loads.up[0]
        one, other = self._rng.sample(loads.up, 2)
        return (
            min(one, other, key=loads.requests.__getitem__) if loads.requests[one] != loads.requests[other] else one
        )


class Reported:
    """The ranking of ``PrefixAffineRouter``: by the names of the prompt's first parts."""

    def __init__(self, count: int, seed: int) -> None:
        self._affinity: Affinity[int] = Affinity(trust=TRUST)
        self._rng = random.Random(f"router {seed}")

    def route(self, arrival: Arrival, loads: Loads) -> int:
        chain = _chain(arrival)
        groups = self._affinity.ranked(chain, loads.up, loads.requests.__getitem__, loads.now, loads.in_flight)
        best = groups[0]
        if len(groups) == 1:  # no prefix: the shorter queue of two, as Serve's own
            best = best if len(best) < 2 else self._rng.sample(best, 2)
        chosen = min(best, key=loads.requests.__getitem__)
        self._affinity.sent(chain, chosen, loads.now)
        return chosen

    def lost(self, replica: int, loads: Loads) -> None:
        self._affinity.keep(set(loads.up))


def _chain(arrival: Arrival) -> tuple[int, ...]:
    """Return a hash of the parts up to each named one, as ``prelude.integrations.affinity`` has of a text."""
    found: list[int] = []
    known = ""
    for name, _ in arrival.parts:
        if name is None or arrival.cache == "never":
            break
        known += f"{name}\0"
        found.append(_hash(known))
    return tuple(found)


class LeastLoaded(Forgetful):
    def route(self, arrival: Arrival, loads: Loads) -> int:
        return loads.least()


class PrefixAffine(Forgetful):
    """Routes by the name of the prompt's first part; a prompt without one goes to the least loaded replica."""

    def __init__(self, count: int, seed: int) -> None:
        self._count = count
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
        bound = (1 + _SLACK) * (loads.total + tokens) / len(loads.up)
        seen: set[int] = set()
        for step in range(len(self._owners)):
            owner = self._owners[(start + step) % len(self._owners)]
            if (
                owner not in seen
                and loads.alive(owner)
                and (loads.tokens[owner] == 0 or loads.tokens[owner] + tokens <= bound)
            ):
                return owner
            seen.add(owner)
            if len(seen) == self._count:
                break
        return loads.least()


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


ROUTERS: dict[str, Callable[[int, int], Router]] = {
    "random": Random,
    "round-robin": RoundRobin,
    "power-of-two": PowerOfTwo,
    "least-loaded": LeastLoaded,
    "prefix-affine": PrefixAffine,
    "prefix-reported": Reported,
}


def router(name: str, count: int, seed: int) -> Router:
    if name not in ROUTERS:
        raise ConfigError(f"router={name!r} is not one of {', '.join(ROUTERS)}")
    return ROUTERS[name](count, seed)
