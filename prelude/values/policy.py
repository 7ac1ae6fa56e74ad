"""The contract of a policy: columns of the waiting requests in, sort keys out. No clock, no state, no request object.

Time is *tokens served*: how many tokens the engine has computed so far, an integer that a simulator has as well. So
the same queue, trie and ledger give the same plan, live or simulated.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from prelude.records import dataclass
from prelude.values.arrays import F64, I64

Key: TypeAlias = npt.NDArray[Any]
Keys: TypeAlias = tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class WaitingColumns:
    """N requests of one class that wait; all arrays are [N], in one arbitrary order."""

    work: F64  # tokens left to compute, without the tokens that the prefix cache has now
    tokens: F64  # tokens known, cached or not
    arrived: F64  # tokens the engine had served when the request came
    order: I64  # order of arrival; unique
    priority: I64  # higher goes first
    account: I64  # whose request it is: one number per (priority, tenant)
    served: F64  # tokens its account has been served so far
    expires: F64  # seconds on the monotonic clock, infinity without a deadline; compared with each other alone

    def __len__(self) -> int:
        return len(self.order)

    def take(self, index: npt.NDArray[np.intp]) -> WaitingColumns:
        return WaitingColumns(*(getattr(self, name)[index] for name in _COLUMNS))


_COLUMNS = ("work", "tokens", "arrived", "order", "priority", "account", "served", "expires")


@runtime_checkable
class Policy(Protocol):
    """``keys(waiting, now)``: arrays [N], the most significant first; smaller goes first, and requests equal in all
    of them goes in order of arrival. ``now`` counts tokens served. A pure function.

    ``timeless``: the order of two requests is the same at any ``now``, while neither is matched anew.
    ``estimates``: ``work`` matters, so waiting requests are matched against the prefix cache.
    ``whole_prompts``: prompts of Decode requests are not cut into chunks beside running rows.
    ``takes_turns``: chunks of prompts go round, those under way and those that wait alike.
    ``refills``: a place that becomes free is taken at once; else when all of them are free.
    """

    @property
    def timeless(self) -> bool: ...
    @property
    def estimates(self) -> bool: ...
    @property
    def whole_prompts(self) -> bool: ...
    @property
    def refills(self) -> bool: ...
    @property
    def takes_turns(self) -> bool: ...

    def keys(self, waiting: WaitingColumns, now: float) -> Keys: ...


def ranked(policy: Policy, waiting: WaitingColumns, now: float, least: int | None) -> npt.NDArray[np.intp]:
    """Return indices into ``waiting`` in the policy's order. With ``least``: its first part, so many or more."""
    keys = [key for key in policy.keys(waiting, now) if len(key) and (key != key[0]).any()]
    if len(keys) == 1 and least is not None and least < len(waiting) // 2:
        [key] = keys
        bound = np.partition(key, least)[least]
        first = np.flatnonzero(key <= bound)
        if len(first) <= 4 * least:
            return first[np.lexsort((waiting.order[first], key[first]))]
    return np.lexsort((waiting.order, *reversed(keys)))
