"""Queues: requests that run, and a WaitingQueue of each class, in the order in which a policy has them planned.

    append ──▶ arrivals: by order of arrival ──▶ columns ──policy──▶ in_order()
                                              only when not all of them fit the step

While everything that waits fits into one step, its order does not matter: nothing is matched, ranked or copied.
Owned by the holder of the step lock; any thread may read the counts.

Accounts count the tokens served to each (priority, tenant), for start-time fair queueing. A tenant that was away
starts level with the others of its priority, not ahead of them: its account is at least at ``now``, where the request
that was served last began. When no request waits, all accounts are level (the clock of a fair queue jumps to the last
finish as it falls idle).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from prelude._native.core import KvPool
from prelude.admission.prepared import ExecutionClass
from prelude.records import dataclass, field
from prelude.scheduling.policies import FirstComeFirstServed, ShortestPrefillFirst, by_arrival, composed
from prelude.scheduling.request import Account, Request, State
from prelude.values.options import RequestOptions
from prelude.values.policy import Policy, WaitingColumns, ranked

_KEPT = 1024


class Accounts:
    """Accounts by name, and for each priority where its request that was served last began (``now``) and its furthest
    account (``latest``). Those with waiting requests keep their number, an index into ``served()``."""

    def __init__(self) -> None:
        self.accounts: dict[tuple[int, str | None], Account] = {}
        self.now: dict[int, int] = {}
        self.latest: dict[int, int] = {}
        self.busy = 0  # accounts with a waiting request
        self._limit = _KEPT
        self._by_number: list[Account | None] = []
        self._free: list[int] = []  # numbers that no account has

    def served(self) -> list[int]:
        """Return the tokens served, by number."""
        return [0 if account is None else account.served for account in self._by_number]

    def join(self, options: RequestOptions) -> Account:
        """Count one more waiting request of this priority and tenant; the other methods take its account."""
        name = (options.priority, options.tenant)
        account = self.accounts.get(name) or self._open(name)
        if account.waiting == 0:
            account.served = max(account.served, self.now.get(options.priority, 0))
            self.busy += 1
        account.waiting += 1
        return account

    def leave(self, account: Account) -> None:
        """Count one waiting request less."""
        account.waiting -= 1
        if account.waiting == 0:
            self.busy -= 1
            if self.busy == 0:
                self.now.update(self.latest)

    def serve(self, account: Account, tokens: int) -> None:
        """Charge a request of so many tokens."""
        priority = account.priority
        self.now[priority] = max(account.served, self.now.get(priority, 0))
        account.served += tokens
        self.latest[priority] = max(account.served, self.latest.get(priority, 0))
        self.leave(account)

    def take_back(self, options: RequestOptions, tokens: int) -> Account:
        """Take back a served request that is in the queue again."""
        account = self.join(options)
        account.served -= tokens
        return account

    def _open(self, name: tuple[int, str | None]) -> Account:
        if len(self.accounts) >= self._limit:
            self._trim()
        if self._free:
            number = self._free.pop()
        else:
            number = len(self._by_number)
            self._by_number.append(None)
        account = self.accounts[name] = self._by_number[number] = Account(name, number)
        return account

    def _trim(self) -> None:
        """Forget accounts that would start where they are anyway: level with ``now``, or behind it.

        New names begin at ``now`` and so never move it. If nearly every request has a name of its own and the line
        is never empty, ``now`` is moved here, to where half of those that are away have come: else all would be kept.
        """
        self._forget_level()
        away: dict[int, list[int]] = {}
        for account in self.accounts.values():
            if account.waiting == 0:
                away.setdefault(account.priority, []).append(account.served)
        if sum(map(len, away.values())) > _KEPT // 2:
            for priority, served in away.items():
                self.now[priority] = sorted(served)[len(served) // 2]
            self._forget_level()
        self._limit = max(_KEPT, 2 * len(self.accounts))
        kept = {account.priority for account in self.accounts.values()}
        for table in (self.now, self.latest):
            for priority in [p for p in table if p not in kept]:
                del table[priority]

    def _forget_level(self) -> None:
        for account in list(self.accounts.values()):
            if account.waiting == 0 and account.served <= self.now.get(account.priority, 0):
                del self.accounts[account.name]
                self._by_number[account.number] = None
                self._free.append(account.number)


_FIRST = 256
_TABLE = np.dtype(
    [(name, np.float64) for name in ("work", "tokens", "arrived", "expires")]
    + [(name, np.int64) for name in ("order", "priority", "account", "group")]
)

Rows = npt.NDArray[np.intp]


class Columns:
    """The waiting requests as a table, so that a policy ranks ten thousand of them in a few array operations.

    row      0    1    2    3    4  ...          a request keeps its row until it leaves
    request   r1   -    r3   r4   -               '-': left; rows are not used again before _make_room()
    work      20   .    7    900  .
    """

    def __init__(self) -> None:
        self.count = 0  # of requests in the table
        self._first_order = 0
        self._rows: dict[int, int] = {}  # by request.order
        self.requests: list[Request | None] = []  # by row; None: it has left
        self._hold(np.zeros(_FIRST, _TABLE))

    def _hold(self, table: npt.NDArray[Any]) -> None:
        self._table, self.work, self.group = table, table["work"], table["group"]
        self.alive = np.zeros(len(table), dtype=bool)

    def __len__(self) -> int:
        return self.count

    def __contains__(self, request: Request) -> bool:
        return request.order in self._rows

    def add(self, request: Request, work: float, account: int, group: int) -> None:
        if len(self.requests) == len(self.alive):
            self._make_room()
        if not self.requests:
            self._first_order = request.order
        row = self._rows[request.order] = len(self.requests)
        self.count += 1
        self.requests.append(request)
        self.alive[row] = True
        times = (request.num_known, request.queued_at, request.expires)
        order = request.order - self._first_order  # arrivals may be past 64 bits
        self._table[row] = (work, *times, order, request.options.priority, account, group)

    def remove(self, request: Request) -> bool:
        """Return False if the request has no row."""
        row = self._rows.pop(request.order, None)
        if row is None:
            return False
        self.requests[row] = None
        self.alive[row] = False
        self.count -= 1
        if self.count == 0:
            self.requests.clear()
        return True

    def request(self, row: int) -> Request | None:
        """``None`` if it has left."""
        return self.requests[row] if row < len(self.requests) else None

    def match(self, pool: KvPool, first: int) -> bool:
        """Set the work of the rows from ``first`` on: their tokens that ``pool`` does not have now. Return whether
        that changed one."""
        rows = slice(first, len(self.requests))
        work = self._table["tokens"][rows] - pool.cached_tokens(self.requests[rows])
        changed = bool((work != self.work[rows])[self.alive[rows]].any())
        self.work[rows] = work
        return changed

    def rows(self) -> Rows:
        """Return the rows of all that wait."""
        return np.flatnonzero(self.alive[: len(self.requests)])

    def waiting(self, rows: Rows, served: Sequence[int]) -> WaitingColumns:
        """``served``: tokens by account."""
        some = self._table[rows]
        own = {name: some[name] for name in ("work", "tokens", "arrived", "order", "priority", "account", "expires")}
        return WaitingColumns(**own, served=np.asarray(served, dtype=np.float64)[some["account"]])

    def _make_room(self) -> None:
        """Close the gaps, or double if there are few. Rows change: no caller keeps them across an ``add``."""
        kept = self.rows()
        table = np.zeros(len(self.alive) * (1 if len(kept) < len(self.requests) // 2 else 2), _TABLE)
        table[: len(kept)] = self._table[kept]
        self._hold(table)
        self.alive[: len(kept)] = True
        self.requests = [self.requests[row] for row in kept.tolist()]
        self._rows = {r.order: row for row, r in enumerate(self.requests) if r is not None}


_FEW = 1024  # how many places of the order are worked out at first
_NO_ROWS: Rows = np.zeros(0, dtype=np.intp)


class WaitingQueue:
    """``arrivals`` has all that wait, by order of arrival; ``groups``: of each key that requests may share a batch
    by, its number and how many wait. ``tokens`` and ``logits_rows`` are those of all together. ``unranked`` have no
    row in the policy's columns."""

    def __init__(self, policy: Policy, pool: KvPool | None) -> None:
        """``pool`` is asked for the cached tokens of each request if the policy reads them."""
        self.arrivals: OrderedDict[int, Request] = OrderedDict()
        self.groups: dict[Any, list[int]] = {}
        self.unranked: list[Request] = []
        self.tokens = self.logits_rows = 0
        self._next_group = 0
        self.accounts = Accounts()
        self.policy = composed(policy)
        self._by_arrival = by_arrival(policy)
        self._pool = pool if self.policy.estimates else None
        self._matched_at = 0  # the pool's count of changes
        self.match_again = True  # False: a request is matched once, when it is first ranked
        self.columns = Columns()
        self._lacking: dict[Any, Request] | None = None  # by the next block; None after a change
        self._order: Rows = _NO_ROWS  # valid while not _changed
        self._whole = True  # the order reaches to the end
        self._changed = False
        self._ordered_at = 0.0

    # -------------------------------------------------------------- in and out

    def append(self, request: Request, now: int) -> None:
        """``now``: tokens served so far."""
        request.queued_at = now
        request.account = self.accounts.join(request.options)
        self.arrivals[request.order] = request
        self._count(request)

    def push_front(self, request: Request) -> None:
        """Put it back to where it was taken from: it counts as having waited since it first came."""
        request.account = self.accounts.take_back(request.options, max(1, request.num_known))
        self.arrivals[request.order] = request
        self.arrivals.move_to_end(request.order, last=False)
        self._count(request)

    def _count(self, request: Request) -> None:
        group = self.groups.get(request.key)
        if group is None:
            group = self.groups[request.key] = [self._next_group, 0]
            self._next_group += 1
        group[1] += 1
        self.tokens += request.num_known
        self.logits_rows += request.logits_rows
        self.unranked.append(request)

    def remove(self, request: Request) -> None:
        """Remove it from the queue without having been served."""
        self.accounts.leave(_account(request))
        self._leave(request)

    def serve(self, request: Request) -> None:
        self.accounts.serve(_account(request), max(1, request.num_known))
        self._leave(request)

    def _leave(self, request: Request) -> None:
        self._lacking = None
        del self.arrivals[request.order]
        self.tokens -= request.num_known
        self.logits_rows -= request.logits_rows
        group = self.groups[request.key]
        group[1] -= 1
        if group[1] == 0:
            del self.groups[request.key]
        if self.columns.count and self.columns.remove(request) and self.accounts.busy > 1:
            self._changed = True  # turns of a tenant's requests depend on the tokens that it was served
        if len(self.unranked) > 2 * len(self.arrivals) + _FEW:  # most of them left without ever being ranked
            self.unranked = [r for r in self.unranked if r.order in self.arrivals]
        elif not self.arrivals:
            self.unranked.clear()

    # -------------------------------------------------------------- looking

    def __iter__(self) -> Iterator[Request]:
        """Yield in order of arrival; one that was taken back comes before later ones."""
        return iter(self.arrivals.values())

    def __len__(self) -> int:
        return len(self.arrivals)

    def oldest(self) -> tuple[int, int]:
        """Return the first rank of those that wait. The queue is not empty."""
        if self.accounts.busy == 1:
            return next(iter(self.arrivals.values())).rank
        return min(request.rank for request in self.arrivals.values())

    def fits(self, tokens: int, rows: int, logits_rows: int) -> bool:
        """Return whether all that wait fit one batch of so much, without counting on the cache."""
        alike = len(self.groups) <= 1 and len(self.arrivals) <= rows
        return alike and self.tokens <= tokens and self.logits_rows <= logits_rows

    def in_order(self, now: int, *, one_group: bool = False) -> Iterator[Request]:
        """Yield by the policy at ``now`` tokens served. ``one_group``: those alone that may share a batch with the
        first one. Requests may be served while this is iterated; nothing may be added."""
        if self._by_arrival and self.accounts.busy <= 1 and (len(self.groups) <= 1 or not one_group):
            yield from self._in_order_of_arrival()
            return
        self._match()
        group: int | None = None
        given: set[int] = set()
        for whole in (False, True):
            rows = self._ordered_rows(now, whole)
            if one_group and group is None and len(rows):
                group = int(self.columns.group[rows[0]])
            if group is not None and len(self.groups) > 1:
                rows = rows[self.columns.group[rows] == group]
            for at in range(0, len(rows), _FEW):
                for row in rows[at : at + _FEW].tolist():
                    request = self.columns.request(row)
                    if request is not None and request.order not in given:
                        given.add(request.order)
                        yield request
            if self._whole:
                return

    def _in_order_of_arrival(self) -> Iterator[Request]:
        passed = 0  # given, and still here
        while True:
            some = list(islice(self.arrivals.values(), passed, passed + _FEW))
            yield from some
            if len(some) < _FEW:
                return
            passed += sum(request.order in self.arrivals for request in some)

    def peer(self, request: Request, cached: int) -> Request | None:
        """Return one that waits for the same block behind as many cached tokens."""
        if self._pool is None:
            return None
        if self._lacking is None:
            self._lacking = self._pool.lacking(self.columns.requests)
        found: Request | None = self._lacking.get(self._pool.next_block(request, cached))
        return None if found is request else found

    def _match(self) -> None:
        """Give new requests a row, and each request the tokens that it lacks now."""
        self._lacking = None
        new = 0
        for request in self.unranked:
            if request.order in self.arrivals and request not in self.columns:
                request.match_anew()
                account = _account(request).number
                self.columns.add(request, request.num_known, account, self.groups[request.key][0])
                new += 1
        self.unranked.clear()
        self._changed |= new > 0
        changes = 0 if self._pool is None else self._pool.prefix_changes
        if self._pool is not None and (new or changes != self._matched_at):
            first = 0 if self.match_again else len(self.columns.requests) - new
            self._changed |= self.columns.match(self._pool, first)
        self._matched_at = changes

    def _ordered_rows(self, now: int, whole: bool) -> Rows:
        columns = self.columns
        if not self._changed and (self.policy.timeless or now == self._ordered_at):
            left = self._order[columns.alive[self._order]]
            if self._whole or (not whole and len(left) >= _FEW // 2):
                self._order = left
                return left
        rows = columns.rows()
        waiting = columns.waiting(rows, self.accounts.served())
        index = ranked(self.policy, waiting, now, None if whole else _FEW)
        self._order = rows[index]
        self._whole = len(index) == len(rows)
        self._changed = False
        self._ordered_at = now
        return self._order


def _account(request: Request) -> Account:
    if request.account is None:
        raise RuntimeError("the request is in no waiting queue")
    account: Account = request.account
    return account


@dataclass(frozen=True, slots=True)
class Policies:
    """The orders of OneShot requests, and of Decode requests that wait for their prompt."""

    oneshot: Policy = field(default_factory=ShortestPrefillFirst)
    decode: Policy = field(default_factory=FirstComeFirstServed)


class Queues:
    """``oneshot`` and ``decode`` wait; ``running`` hold a row: highest priority first, then oldest.

    The first of ``running`` is never preempted, and its blocks fit the pool alone: under any load,
    it moves on, so no two requests can push each other out for ever.

    ``served`` counts the tokens of all plans so far: the clock of policies. ``not_kept`` counts the OneShot prompts
    without a block that was kept, for want of room.
    """

    def __init__(self, policies: Policies | None, pool: KvPool | None) -> None:
        """``pool`` is asked how much of a prompt is cached, for policies that read it."""
        policies = policies or Policies()
        self.oneshot = WaitingQueue(policies.oneshot, pool)
        self.decode = WaitingQueue(policies.decode, pool)
        self.served = self.not_kept = 0
        self.running: list[Request] = []
        self.arrivals = 0

    @property
    def empty(self) -> bool:
        return not (self.running or self.oneshot.arrivals or self.decode.arrivals)

    def add(self, request: Request) -> None:
        self.arrivals += 1
        request.order = self.arrivals
        self._waiting(request).append(request, self.served)

    def start(self, request: Request) -> None:
        """Move a request from waiting to running."""
        self.decode.serve(request)
        at = len(self.running)
        while at and self.running[at - 1].rank > request.rank:
            at -= 1
        self.running.insert(at, request)

    def requeue(self, request: Request) -> None:
        """Put a request that gave back its place in a step in front of all that arrived later."""
        if request.execution_class is ExecutionClass.DECODE:
            self.running.remove(request)
        self._waiting(request).push_front(request)

    def discard(self, request: Request) -> None:
        """Remove a request from the queue that its state names; OneShot rows in a step are in no queue."""
        if request.state is State.WAITING:
            self._waiting(request).remove(request)
        elif request.execution_class is ExecutionClass.DECODE and request.state is not State.FINISHED:
            self.running.remove(request)

    def _waiting(self, request: Request) -> WaitingQueue:
        return self.oneshot if request.execution_class is ExecutionClass.ONESHOT else self.decode

    @property
    def num_waiting(self) -> int:
        return len(self.oneshot) + len(self.decode)

    def __iter__(self) -> Iterator[Request]:
        yield from self.running
        yield from self.decode
        yield from self.oneshot

    def __len__(self) -> int:
        return self.num_waiting + len(self.running)

    def audit(self) -> None:
        """Check counts against contents; raise with the numbers."""
        for queue in (self.oneshot, self.decode):
            waiting = list(queue)
            known, rows = sum([r.num_known for r in waiting]), sum([r.logits_rows for r in waiting])
            groups, accounts = queue.groups.values(), queue.accounts.accounts.values()
            counted = sum([count for _, count in groups]), sum([account.waiting for account in accounts])
            sums = (known, rows, len(waiting), len(waiting))
            if sums != (queue.tokens, queue.logits_rows, *counted) or {r.state for r in waiting} - {State.WAITING}:
                raise RuntimeError(f"of {sums} that wait one is in another state, or those are not the queue's sums")
        if any(r.state not in (State.PREFILL, State.DECODE) or r.lease is None for r in self.running):
            raise RuntimeError("a running request holds no lease or is in no running state")
        if any(a.rank > b.rank for a, b in zip(self.running, self.running[1:])):
            raise RuntimeError("running requests are out of order")
