"""What waits, column by column, so that a policy ranks ten thousand requests in a few array operations.

slot      0    1    2    3    4  ...          a request keeps its slot until it leaves
request   r1   -    r3   r4   -               '-': left; slots are not used again before compact()
work      20   .    7    900  .
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from prelude.scheduling.policies import Waiting
from prelude.scheduling.request import Request

_FIRST = 256
_FLOATS = ("work", "tokens", "arrived", "expires")
_INTS = ("order", "priority", "account", "group")

Slots = npt.NDArray[np.intp]


class Columns:
    def __init__(self) -> None:
        self.count = 0  # of requests in the columns
        self._used = 0
        self._first_order = 0
        self._slots: dict[int, int] = {}  # by request.order
        self._requests: list[Request | None] = []
        self.alive = np.zeros(_FIRST, dtype=bool)
        self._columns: dict[str, npt.NDArray[Any]] = {name: np.zeros(_FIRST) for name in _FLOATS}
        self._columns.update((name, np.zeros(_FIRST, dtype=np.int64)) for name in _INTS)
        self.work, self.group = self._columns["work"], self._columns["group"]

    def __len__(self) -> int:
        return self.count

    def __contains__(self, request: Request) -> bool:
        return request.order in self._slots

    def add(self, request: Request, work: float, account: int, group: int) -> None:
        if self._used == len(self.alive):
            self._make_room()
        if self._used == 0:
            self._first_order = request.order
        slot = self._used
        self._used += 1
        self.count += 1
        self._slots[request.order] = slot
        self._requests.append(request)
        self.alive[slot] = True
        columns = self._columns
        self.work[slot] = work
        columns["tokens"][slot] = request.num_known
        columns["arrived"][slot] = request.queued_at
        columns["expires"][slot] = request.expires
        columns["order"][slot] = request.order - self._first_order  # arrivals may be past 64 bits
        columns["priority"][slot] = request.options.priority
        columns["account"][slot] = account
        self.group[slot] = group

    def remove(self, request: Request) -> bool:
        """False where the request has no slot."""
        slot = self._slots.pop(request.order, None)
        if slot is None:
            return False
        self._requests[slot] = None
        self.alive[slot] = False
        self.count -= 1
        if self.count == 0:
            self._used = 0
            self._requests.clear()
        return True

    def set_work(self, request: Request, work: float) -> None:
        self.work[self._slots[request.order]] = work

    def request(self, slot: int) -> Request | None:
        """``None``: it has left."""
        return self._requests[slot] if slot < len(self._requests) else None

    def slots(self) -> Slots:
        """Of all that wait."""
        return np.flatnonzero(self.alive[: self._used])

    def waiting(self, slots: Slots, served: Sequence[int]) -> Waiting:
        """``served``: by account."""
        columns = self._columns
        account = columns["account"][slots]
        return Waiting(
            self.work[slots],
            columns["tokens"][slots],
            columns["arrived"][slots],
            columns["order"][slots],
            columns["priority"][slots],
            account,
            np.asarray(served, dtype=np.float64)[account],
            columns["expires"][slots],
        )

    def _make_room(self) -> None:
        """Closes the gaps, or doubles where there are few. Slots change: nobody keeps them across an ``add``."""
        kept = self.slots()
        size = len(self.alive) if len(kept) < self._used // 2 else 2 * len(self.alive)
        for name, old in self._columns.items():
            new = np.zeros(size, dtype=old.dtype)
            new[: len(kept)] = old[kept]
            self._columns[name] = new
        self.work, self.group = self._columns["work"], self._columns["group"]
        self._requests = [self._requests[slot] for slot in kept.tolist()]
        self._slots = {r.order: slot for slot, r in enumerate(self._requests) if r is not None}
        self._used = len(kept)
        self.alive = np.zeros(size, dtype=bool)
        self.alive[: self._used] = True
