"""Accounts: tokens served to each (priority, tenant), for start-time fair queueing.

A tenant that was away starts level with the others of its priority, not ahead of them: its account is at least at
``now``, where the request that was served last began. When nobody waits any more all are level (the clock of a fair
queue jumps to the last finish as it falls idle).
"""

from __future__ import annotations

from typing import TypeAlias

from prelude.options import RequestOptions

_KEPT = 1024

Name: TypeAlias = "tuple[int, str | None]"


class Account:
    __slots__ = ("name", "number", "priority", "served", "waiting")

    def __init__(self, name: Name, number: int) -> None:
        self.name = name
        self.priority = name[0]
        self.number = number
        self.served = 0
        self.waiting = 0


class Accounts:
    """Those with waiting requests keep their number, an index into ``served()``."""

    def __init__(self) -> None:
        self._accounts: dict[Name, Account] = {}
        self._now: dict[int, int] = {}
        self._latest: dict[int, int] = {}  # the furthest account of each priority
        self._limit = _KEPT
        self.busy = 0  # accounts with a waiting request
        self._by_number: list[Account | None] = []
        self._free: list[int] = []  # numbers that nobody has

    def join(self, options: RequestOptions, count: int = 1) -> Account:
        """``count`` more requests of this priority and tenant wait; their account is what the other methods take."""
        name = (options.priority, options.tenant)
        account = self._accounts.get(name)
        if account is None:
            account = self._open(name)
        if account.waiting == 0:
            account.served = max(account.served, self._now.get(options.priority, 0))
            self.busy += 1
        account.waiting += count
        return account

    def leave(self, account: Account, count: int = 1) -> None:
        account.waiting -= count
        if account.waiting == 0:
            self.busy -= 1
            if self.busy == 0:
                self._now.update(self._latest)

    def serve(self, account: Account, tokens: int, count: int = 1, last: int | None = None) -> None:
        """``count`` requests one after the other, of ``tokens`` together, of which the ``last`` has so many."""
        priority = account.priority
        began = account.served + tokens - (tokens if last is None else last)
        if began > self._now.get(priority, 0):
            self._now[priority] = began
        account.served += tokens
        if account.served > self._latest.get(priority, 0):
            self._latest[priority] = account.served
        self.leave(account, count)

    def take_back(self, options: RequestOptions, tokens: int) -> Account:
        """A served request is back in the line."""
        account = self.join(options)
        account.served -= tokens
        return account

    def served(self) -> list[int]:
        """By number."""
        return [0 if account is None else account.served for account in self._by_number]

    def _open(self, name: Name) -> Account:
        if len(self._accounts) >= self._limit:
            self._trim()
        if self._free:
            number = self._free.pop()
        else:
            number = len(self._by_number)
            self._by_number.append(None)
        account = self._accounts[name] = self._by_number[number] = Account(name, number)
        return account

    def _trim(self) -> None:
        """Forgets accounts that would start where they are anyway: level with ``now``, or behind it.

        New names begin at ``now`` and so never move it. Where nearly every request has a name of its own and the line
        is never empty, ``now`` is moved here, to where half of those that are away have come: else all would be kept.
        """
        self._forget_level()
        away: dict[int, list[int]] = {}
        for account in self._accounts.values():
            if account.waiting == 0:
                away.setdefault(account.priority, []).append(account.served)
        if sum(map(len, away.values())) > _KEPT // 2:
            for priority, served in away.items():
                self._now[priority] = sorted(served)[len(served) // 2]
            self._forget_level()
        self._limit = max(_KEPT, 2 * len(self._accounts))
        kept = {account.priority for account in self._accounts.values()}
        for table in (self._now, self._latest):
            for priority in [p for p in table if p not in kept]:
                del table[priority]

    def _forget_level(self) -> None:
        for account in list(self._accounts.values()):
            if account.waiting == 0 and account.served <= self._now.get(account.priority, 0):
                del self._accounts[account.name]
                self._by_number[account.number] = None
                self._free.append(account.number)
