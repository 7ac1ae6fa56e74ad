"""Line: requests of one class that wait, and the order in which a policy would have them planned.

    append ──▶ arrivals: by order of arrival ──▶ columns ──policy──▶ in_order()
                                              only when not all of them fit the step

While everything that waits fits into one step, its order is nobody's business: nothing is matched, ranked or copied.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from itertools import islice

import numpy as np

from prelude._native.core import join_line, totals
from prelude.scheduling.accounts import Account, Accounts
from prelude.scheduling.columns import Columns, Slots
from prelude.scheduling.estimates import Estimates
from prelude.scheduling.ledger import LOGITS_BYTES, Ledger
from prelude.scheduling.policies import Policy, by_arrival, composed, ranked
from prelude.scheduling.request import Request

_FEW = 1024  # how many places of the order are worked out at first
_NO_SLOTS: Slots = np.zeros(0, dtype=np.intp)


class Line:
    def __init__(self, policy: Policy, estimates: Estimates | None = None) -> None:
        """``estimates``: what the prefix cache has of each request, where the policy wants to know."""
        self.policy = composed(policy)
        self._by_arrival = by_arrival(policy)
        self._estimates = estimates if self.policy.estimates else None
        self._accounts = Accounts()
        self.arrivals: OrderedDict[int, Request] = (
            OrderedDict()
        )  # all that wait, by order; this class alone writes it
        self._groups: dict[Hashable, list[int]] = {}  # readout key -> its number, how many wait
        self._group_numbers = 0
        self._columns = Columns()
        self._new: list[Request] = []  # not in the columns yet
        self._order: Slots = _NO_SLOTS  # valid while not _changed
        self._whole = True  # the order reaches to the end
        self._changed = False
        self._ordered_at = 0.0
        self._tokens = 0
        self._logits_rows = 0

    # -------------------------------------------------------------- in and out

    def append(self, request: Request, now: int = 0) -> None:
        """``now``: tokens served so far."""
        request.queued_at = now
        request.account = self._accounts.join(request.options)
        self.arrivals[request.order] = request
        self._join(request)

    def extend(self, requests: list[Request], tokens: int, logits_rows: int, now: int) -> None:
        """Requests with the same options and key, of so many tokens and rows of logits together."""
        account = self._accounts.join(requests[0].options, len(requests))
        join_line(requests, account, self.arrivals)
        self._group(requests[0].key)[1] += len(requests)
        self._tokens += tokens
        self._logits_rows += logits_rows
        self._new.extend(requests)

    def push_front(self, request: Request) -> None:
        """Back to where it was taken from: it counts as having waited since it first came."""
        request.account = self._accounts.take_back(request.options, max(1, request.num_known))
        self.arrivals[request.order] = request
        self.arrivals.move_to_end(request.order, last=False)
        self._join(request)

    def remove(self, request: Request) -> None:
        """Out of the line without having been served."""
        self._accounts.leave(_account(request))
        self._leave(request)

    def serve(self, request: Request) -> None:
        self._accounts.serve(_account(request), max(1, request.num_known))
        self._leave(request)

    def serve_all(self, requests: list[Request]) -> None:
        """Requests of one key that a step takes."""
        if not requests:
            return
        tokens, _, alike = totals(requests)
        count = len(requests)
        if alike and count == len(self.arrivals) and not self._columns.count:
            # All that wait go at once, and none was ever ranked.
            last = requests[-1]
            self._accounts.serve(_account(last), tokens, count, max(1, last.num_known))
            self.arrivals.clear()
            self._groups.clear()
            self._new.clear()
            self._tokens = self._logits_rows = 0
            return
        for request in requests:
            self.serve(request)

    def _group(self, key: Hashable) -> list[int]:
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = [self._group_numbers, 0]
            self._group_numbers += 1
        return group

    def _join(self, request: Request) -> None:
        self._group(request.key)[1] += 1
        self._tokens += request.num_known
        self._logits_rows += request.logits_rows
        self._new.append(request)

    def _leave(self, request: Request) -> None:
        del self.arrivals[request.order]
        self._tokens -= request.num_known
        self._logits_rows -= request.logits_rows
        group = self._groups[request.key]
        group[1] -= 1
        if group[1] == 0:
            del self._groups[request.key]
        if self._columns.remove(request):
            if self._accounts.busy > 1:
                self._changed = True  # turns of a tenant's requests depend on what it was served
            if self._estimates:
                self._estimates.forget(request)
        if len(self._new) > 2 * len(self.arrivals) + _FEW:  # most of them left without ever being ranked
            self._new = [r for r in self._new if r.order in self.arrivals]
        elif not self.arrivals:
            self._new.clear()
            self._tokens = self._logits_rows = 0  # also where a failed allocation has left them behind

    # -------------------------------------------------------------- looking

    def __iter__(self) -> Iterator[Request]:
        """In order of arrival; one that was taken back comes before what came later."""
        return iter(self.arrivals.values())

    def __len__(self) -> int:
        return len(self.arrivals)

    def __bool__(self) -> bool:
        return bool(self.arrivals)

    def fits(self, ledger: Ledger, vocab_size: int, group_tokens: int) -> bool:
        """Whether all of it goes into one batch of at most ``group_tokens``, whatever the cache has."""
        tokens = self._tokens
        return (
            tokens <= ledger.tokens
            and tokens <= group_tokens
            and len(self.arrivals) <= ledger.rows
            and len(self._groups) <= 1
            and self._logits_rows * vocab_size * LOGITS_BYTES <= ledger.logits_bytes
        )

    def oldest(self) -> tuple[int, int]:
        """(-priority, arrival) of the oldest request of the highest priority that waits. The line is not empty."""
        if self._accounts.busy == 1:
            request = next(iter(self.arrivals.values()))
            return (-request.options.priority, request.order)
        return min((-request.options.priority, request.order) for request in self.arrivals.values())

    def in_order(self, now: int, *, one_group: bool = False) -> Iterator[Request]:
        """As the policy has it at ``now`` tokens served. ``one_group``: those alone that may share a batch with the
        first one. Requests may be served while this is iterated; nothing may be added."""
        if self._by_arrival and self._accounts.busy <= 1 and (len(self._groups) <= 1 or not one_group):
            yield from self._in_order_of_arrival()
            return
        self._enter_new()
        group: int | None = None
        given: set[int] = set()
        for whole in (False, True):
            slots = self._slots(now, whole)
            if one_group and group is None and len(slots):
                group = int(self._columns.group[slots[0]])
            if group is not None and len(self._groups) > 1:
                slots = slots[self._columns.group[slots] == group]
            for at in range(0, len(slots), _FEW):
                for slot in slots[at : at + _FEW].tolist():
                    request = self._columns.request(slot)
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

    def look_again(self, request: Request, cached: int) -> None:
        """The prefix cache has ``cached`` tokens of it now."""
        if request in self._columns:
            self._columns.set_work(request, request.num_known - cached)
            self._changed = True

    def _enter_new(self) -> None:
        for request in self._new:
            if request.order in self.arrivals and request not in self._columns:
                cached = self._estimates.watch(request) if self._estimates else 0
                account = _account(request).number
                self._columns.add(request, request.num_known - cached, account, self._groups[request.key][0])
                self._changed = True
        self._new.clear()

    def _slots(self, now: int, whole: bool) -> Slots:
        columns = self._columns
        if not self._changed and (self.policy.timeless or now == self._ordered_at):
            left = self._order[columns.alive[self._order]]
            if self._whole or (not whole and len(left) >= _FEW // 2):
                self._order = left
                return left
        slots = columns.slots()
        waiting = columns.waiting(slots, self._accounts.served())
        index = ranked(self.policy, waiting, now, None if whole else _FEW)
        self._order = slots[index]
        self._whole = len(index) == len(slots)
        self._changed = False
        self._ordered_at = now
        return self._order


def _account(request: Request) -> Account:
    if request.account is None:
        raise RuntimeError("the request is in no line")
    account: Account = request.account
    return account
