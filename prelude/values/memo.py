"""A bounded cache that needs no lock: least-recently-used in two generations.

young   entries that were used lately; when it is full it becomes the old one
old     the generation before; a hit moves the entry back to the young one
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Generic, TypeVar

_READER_BYTES = 300  # of a reader of an entry: its key, its entry and their places in a dict

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Memo(Generic[K, V]):
    """Keeps at most ``capacity`` alive, half of it in each generation, in units of the entries' weights. An entry
    that is heavier than half of it is not kept. Only single dict operations are used: threads that race lose an
    entry at worst and compute it again.

    ``get_for`` and ``put_for`` keep one value for all readers, and find it for those alone that put it themselves:
    each computes it once, as if the others were not there. A reader is a string or None."""

    def __init__(self, capacity: int) -> None:
        self._half = capacity // 2
        self._young: dict[object, tuple[V, int, int]] = {}
        self._old: dict[object, tuple[V, int, int]] = {}
        self._held = self._before = self._serial = 0

    @property
    def weight(self) -> int:
        return self._held + self._before

    def get(self, key: K) -> V | None:
        entry = self._find(key)
        return None if entry is None else entry[0]

    def put(self, key: K, value: V, weight: int = 1) -> None:
        self._keep(key, (value, weight, 0))

    def get_for(self, key: K, reader: str | None) -> V | None:
        entry = self._find(key)
        return None if entry is None or self._find((reader, entry[2])) is None else entry[0]

    def put_for(self, key: K, reader: str | None, value: V, weight: int) -> V:
        """Return the value that is kept: that of another reader, or this one."""
        entry = self._find(key)
        if entry is None:
            self._serial += 1
            entry = (value, weight, self._serial)
            if not self._keep(key, entry):
                return value
        own = _READER_BYTES + (0 if reader is None else 4 * len(reader))
        self._keep((reader, entry[2]), (entry[0], own, 0))
        return entry[0]

    def _find(self, key: object) -> tuple[V, int, int] | None:
        entry = self._young.get(key)
        if entry is None:
            entry = self._old.get(key)
            if entry is not None:
                self._keep(key, entry)
        return entry

    def _keep(self, key: object, entry: tuple[V, int, int]) -> bool:
        weight = entry[1]
        if weight > self._half:
            return False
        if self._held + weight > self._half:
            self._old, self._young, self._before, self._held = self._young, {}, self._held, 0
        self._held += weight
        self._young[key] = entry
        return True

    def __len__(self) -> int:
        return len(self._young) + len(self._old)


class RequestMemo(dict[Any, Any]):
    """A ``Memo`` of one request, which is its only reader and drops it at its end."""

    def get_for(self, key: Any, reader: str | None) -> Any:
        return self.get(key)

    def put_for(self, key: Any, reader: str | None, value: V, weight: int) -> V:
        self[key] = value
        return value
