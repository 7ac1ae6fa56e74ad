"""Which replica probably has a prompt's prefix in its cache. Ray Serve's router and the simulator's fleet rank by it.

A text is known by its **chain**: a hash of its beginning up to each of the lengths in ``LENGTHS``. Two texts that
begin alike have equal hashes up to their last common length. A replica reports the hashes of texts whose prefix
``Engine.would_hit`` finds in its cache at that moment (``report``). A router has these reports, and the requests that
it sent after them (``Affinity``). Both are bounded, and both are hints: an answer never depends on them.

Loads are bounded as in consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam: arXiv 1608.01350): a
replica with more than ``1 + slack`` times the mean number of requests in flight takes no more for its prefixes' sake.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from hashlib import blake2b
from typing import Any, Generic, TypeVar

from prelude.api.base import EngineBase
from prelude.api.windows import leading_text
from prelude.records import dataclass
from prelude.tasks import Embed

K = TypeVar("K")  # a replica's name

LENGTHS = tuple(int(256 * 2 ** (step / 2)) for step in range(18))  # characters: 256, 362, 512, ... 92,681
MEMORY = 1 << 16  # hashes that a router remembers
KEPT_TEXTS = 256  # tasks that a replica keeps for its reports
KEPT_CHARS = 1 << 17  # a task with a longer text is not kept


def chain_of(text: str, salt: str | None = None) -> tuple[int, ...]:
    """Return hashes (63 bits) of the beginnings of ``text``; none of a text that is shorter than the first length."""
    found: list[int] = []
    state = blake2b(repr(salt).encode(), digest_size=8)
    at = 0
    for length in LENGTHS:
        if len(text) < length:
            break
        state.update(text[at:length].encode("utf-8", "surrogatepass"))
        at = length
        found.append(int.from_bytes(state.copy().digest(), "little") >> 1)
    return tuple(found)


def chain_of_task(task: Any) -> tuple[int, ...]:
    """Return the chain of the text that a task's prompt begins with; none if the task uses no cache."""
    if getattr(task, "cache", "auto") == "never":
        return ()
    return chain_of(leading_text(task), getattr(task, "salt", None))


@dataclass(slots=True)
class Kept:
    """A text that was served, and its token ids from the first report on."""

    chain: tuple[int, ...]
    chars: int
    task: Any


class Served:
    """The texts that a replica served of late. ``add`` and ``kept`` belong to one thread, ``report`` to any one."""

    def __init__(self) -> None:
        self._seen: OrderedDict[int, None] = OrderedDict()
        self._latest: OrderedDict[int, Kept] = OrderedDict()

    def add(self, task: Any) -> None:
        """Keep the first of tasks that begin alike, under the longest beginning that an earlier task had too."""
        if getattr(task, "cache", "auto") == "never":
            return
        text = leading_text(task)
        chain = chain_of(text, getattr(task, "salt", None)) if len(text) <= KEPT_CHARS else ()
        if not chain:
            return
        key = next((one for one in reversed(chain) if one in self._seen), chain[-1])
        for one in chain:
            self._seen[one] = None
            self._seen.move_to_end(one)
        while len(self._seen) > KEPT_TEXTS * len(LENGTHS):
            self._seen.popitem(last=False)
        if key not in self._latest:
            self._latest[key] = Kept(chain, len(text), task)
        self._latest.move_to_end(key)
        while len(self._latest) > KEPT_TEXTS:
            self._latest.popitem(last=False)

    def kept(self) -> list[Kept]:
        return list(self._latest.values())


def report(kept: Iterable[Kept], engine: EngineBase) -> list[int]:
    """The hashes of the beginnings that ``engine`` has in its cache: of each text the share that ``would_hit`` finds
    of its tokens. A text is tokenised once."""
    found: dict[int, None] = {}
    for one in kept:
        if not isinstance(one.task, Embed) or isinstance(one.task.prompt, str):
            explained = engine.explain(one.task)
            ids = explained.token_ids[: explained.segments[0][1]]
            one.task = Embed(ids, pooling="last", salt=getattr(one.task, "salt", None))  # of every kind of model
        share = engine.would_hit(one.task) / len(one.task.prompt)
        found.update(dict.fromkeys(have for have, chars in zip(one.chain, LENGTHS) if chars <= share * one.chars))
    return list(found)


class Affinity(Generic[K]):
    """A router's memory. Not for several threads at once."""

    def __init__(self, *, slack: float = 0.25, least_load: int = 8, trust: float = 30.0) -> None:
        """``least_load``: requests in flight up to which a replica keeps its prefixes with any mean of the others.
        ``trust``: seconds after which a request that was sent counts no more and reports alone do."""
        self._slack, self._least_load, self._trust = slack, least_load, trust
        self._until: OrderedDict[int, dict[K, float]] = OrderedDict()  # replicas with a beginning, and until when
        self._reports: dict[K, frozenset[int]] = {}
        self._homes: dict[K, int] = {}  # beginnings that were first sent to a replica

    def ranked(
        self,
        chain: Sequence[int],
        replicas: Sequence[K],
        load: Callable[[K], int],
        now: float,
        total: int | None = None,
    ) -> list[list[K]]:
        """``replicas`` in groups, the best first: those with the longest beginning of the text, then those with a
        shorter one, each within its bound of ``load`` (requests in flight). For a text that none has: the replica
        that had it first, or else the one with the fewest beginnings. Then all. The groups may repeat a replica.
        ``total``: the sum of the loads, if it is known."""
        if not replicas:
            return []
        if total is None:
            total = sum(map(load, replicas))
        bound = max(self._least_load, math.ceil((1 + self._slack) * (total + 1) / len(replicas)))
        groups: list[list[K]] = []
        seen: set[K] = set()
        home: list[K] = []  # where the text's beginning was, though it is not believed to be there any more
        for one in reversed(chain):
            holders = self._until.get(one)
            if holders is None:
                continue
            home = home or [name for name in holders if load(name) < bound][:1]
            group = [
                name for name, until in holders.items() if until > now and name not in seen and load(name) < bound
            ]
            if group:
                groups.append(group)
                seen.update(group)
        if chain and not groups:
            groups.append(
                home or [min(replicas, key=lambda one: (load(one) >= bound, self._homes.get(one, 0), load(one)))]
            )
        groups.append(list(replicas))
        return groups

    def sent(self, chain: Sequence[int], replica: K, now: float) -> None:
        """Count a request that was sent, or is about to be sent."""
        new = False
        for one in chain:
            holders = self._until.get(one)
            if holders is None:
                holders = self._until[one] = {}
                new = True
            self._until.move_to_end(one)
            holders[replica] = max(holders.get(replica, 0.0), now + self._trust)
        if new:
            self._homes[replica] = self._homes.get(replica, 0) + 1
        self._forget_oldest()

    def reported(self, replica: K, hashes: Collection[int]) -> None:
        """Set the content of a replica's cache, in the place of its last report."""
        found, before = frozenset(hashes), self._reports.get(replica, frozenset())
        self._reports[replica] = found
        for one in before - found:
            if one in self._until and replica in self._until[one]:
                self._until[one][replica] = 0.0
        for one in found - before:
            self._until.setdefault(one, {})[replica] = math.inf
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        while len(self._until) > MEMORY:
            self._until.popitem(last=False)

    def keep(self, replicas: Collection[K]) -> None:
        """Forget all other replicas: their caches are gone."""
        gone = {name for holders in self._until.values() for name in holders} - set(replicas)
        for one in list(self._until) if gone else ():
            holders = self._until[one]
            for replica in gone & holders.keys():
                del holders[replica]
            if not holders:
                del self._until[one]
        self._reports = {name: found for name, found in self._reports.items() if name in replicas}
        self._homes = {name: count for name, count in self._homes.items() if name in replicas}
