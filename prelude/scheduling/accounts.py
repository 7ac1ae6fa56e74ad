"""Accounts: tokens served to each (priority, tenant), for start-time fair queueing.

A tenant that was away starts level with the others of its priority, not ahead of them: its account is at least at
``now``, where the request that was served last began. When no request waits, all accounts are level (the clock of a
fair queue jumps to the last finish as it falls idle).
"""

from __future__ import annotations

from prelude.records import dataclass
from prelude.values.options import RequestOptions

_KEPT = 1024


@dataclass(slots=True, eq=False)
class Account:
    """Tokens ``served`` to one (priority, tenant), and how many of its requests wait. ``number``: its index among the
    accounts."""

    name: tuple[int, str | None]
    number: int
    served: int = 0
    waiting: int = 0

    @property
    def priority(self) -> int:
        return self.name[0]


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
