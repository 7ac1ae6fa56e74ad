"""A bounded cache that needs no lock."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Memo(Generic[K, V]):
    """Least-recently-used in two generations.

        young   entries that were used lately; when it is full it becomes the old one
        old     the generation before; a hit moves the entry back to the young one

    At most twice ``capacity`` stays alive, in units of ``weight(value)``. Only single dict operations are used, so
    threads that race lose an entry at worst and compute it again.
    """

    __slots__ = ("_capacity", "_held", "_old", "_weight", "_young")

    def __init__(self, capacity: int, weight: Callable[[V], int] = lambda _value: 1) -> None:
        self._capacity = capacity
        self._weight = weight
        self._held = 0
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        found = self._young.get(key)
        if found is None:
            found = self._old.get(key)
            if found is not None:
                self.put(key, found)
        return found

    def put(self, key: K, value: V) -> None:
        weight = self._weight(value)
        if weight > self._capacity:
            return
        if self._held + weight > self._capacity:
            self._old, self._young, self._held = self._young, {}, 0
        self._held += weight
        self._young[key] = value

    def __len__(self) -> int:
        return len(self._young) + len(self._old)
