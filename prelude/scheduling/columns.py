"""The waiting requests as columns, so that a policy ranks ten thousand of them in a few array operations.

row      0    1    2    3    4  ...          a request keeps its row until it leaves
request   r1   -    r3   r4   -               '-': left; rows are not used again before compact()
work      20   .    7    900  .
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from prelude.scheduling.policies import WaitingColumns
from prelude.scheduling.request import Request

_FIRST = 256
_FLOATS = ("work", "tokens", "arrived", "expires")
_INTS = ("order", "priority", "account", "group")

Rows = npt.NDArray[np.intp]


class Columns:
    def __init__(self) -> None:
        self.count = 0  # of requests in the columns
        self._used = 0
        self._first_order = 0
        self._rows: dict[int, int] = {}  # by request.order
        self._requests: list[Request | None] = []
        self.alive = np.zeros(_FIRST, dtype=bool)
        self._columns: dict[str, npt.NDArray[Any]] = {name: np.zeros(_FIRST) for name in _FLOATS}
        self._columns.update((name, np.zeros(_FIRST, dtype=np.int64)) for name in _INTS)
        self.work, self.group = self._columns["work"], self._columns["group"]

    def __len__(self) -> int:
        return self.count

    def __contains__(self, request: Request) -> bool:
        return request.order in self._rows

    def add(self, request: Request, work: float, account: int, group: int) -> None:
        if self._used == len(self.alive):
            self._make_room()
        if self._used == 0:
            self._first_order = request.order
        row = self._used
        self._used += 1
        self.count += 1
        self._rows[request.order] = row
        self._requests.append(request)
        self.alive[row] = True
        columns = self._columns
        self.work[row] = work
        columns["tokens"][row] = request.num_known
        columns["arrived"][row] = request.queued_at
        columns["expires"][row] = request.expires
        columns["order"][row] = request.order - self._first_order  # arrivals may be past 64 bits
        columns["priority"][row] = request.options.priority
        columns["account"][row] = account
        self.group[row] = group

    def remove(self, request: Request) -> bool:
        """Return False if the request has no row."""
        row = self._rows.pop(request.order, None)
        if row is None:
            return False
        self._requests[row] = None
        self.alive[row] = False
        self.count -= 1
        if self.count == 0:
            self._used = 0
            self._requests.clear()
        return True

    def set_work(self, request: Request, work: float) -> None:
        self.work[self._rows[request.order]] = work

    def request(self, row: int) -> Request | None:
        """``None`` if it has left."""
        return self._requests[row] if row < len(self._requests) else None

    def rows(self) -> Rows:
        """Return the rows of all that wait."""
        return np.flatnonzero(self.alive[: self._used])

    def waiting(self, rows: Rows, served: Sequence[int]) -> WaitingColumns:
        """``served``: tokens by account."""
        columns = self._columns
        account = columns["account"][rows]
        return WaitingColumns(
            self.work[rows],
            columns["tokens"][rows],
            columns["arrived"][rows],
            columns["order"][rows],
            columns["priority"][rows],
            account,
            np.asarray(served, dtype=np.float64)[account],
            columns["expires"][rows],
        )

    def _make_room(self) -> None:
        """Close the gaps, or double if there are few. Rows change: no caller keeps them across an ``add``."""
        kept = self.rows()
        size = len(self.alive) if len(kept) < self._used // 2 else 2 * len(self.alive)
        for name, old in self._columns.items():
            new = np.zeros(size, dtype=old.dtype)
            new[: len(kept)] = old[kept]
            self._columns[name] = new
        self.work, self.group = self._columns["work"], self._columns["group"]
        self._requests = [self._requests[row] for row in kept.tolist()]
        self._rows = {r.order: row for row, r in enumerate(self._requests) if r is not None}
        self._used = len(kept)
        self.alive = np.zeros(size, dtype=bool)
        self.alive[: self._used] = True
