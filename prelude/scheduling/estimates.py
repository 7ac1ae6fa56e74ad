"""Estimates: how much of each waiting request's prompt the prefix cache has, kept up to date by the trie's events.

A request is matched when it is first ranked, and again only when the trie says that its answer may have changed: the
node where its match ended is gone, or the block that it lacked is ready. So the cost follows the number of changes,
not the number of waiting requests.

It also knows the requests that wait for the same block: a prefix is worth keeping if other requests wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, TypeAlias

from prelude.scheduling.lease import KvPool
from prelude.scheduling.request import Request


class Estimates(Protocol):
    """The prefix cache's share of each waiting request. Requests are known from ``watch`` to ``forget``."""

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
        watch, blocks = pool.trie.watch(known, request.salt, limit)
        self.watched[watch] = request
        self._watches[request.id] = watch
        self._register(watch, request, blocks * pool.block_size)
        return int(blocks * pool.block_size)

    def forget(self, request: Request) -> None:
        watch = self._watches.pop(request.id, -1)
        if watch >= 0:
            del self.watched[watch]
            self._leave(watch)
            self._pool.trie.unwatch(watch)

    def moved(self) -> Iterator[tuple[Request, int]]:
        pool = self._pool
        if not self.watched:
            return
        for watch in pool.trie.moved().tolist():
            request = self.watched[watch]
            known = request.known[: request.num_known]
            limit = request.reusable // pool.block_size
            cached = pool.trie.rewatch(watch, known, request.salt, limit) * pool.block_size
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
