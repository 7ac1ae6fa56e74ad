"""Layers around an order: priority classes, then tenants, then the order itself.

    Priority(FairTenants(ShortestPrefillFirst()))

        priority 5                       strictly before everything below
        priority 0   tenant a  ▢▢▢▢      the tenant that was served the fewest tokens goes first; within one, the
                     tenant b  ▢▢▢▢▢     inner order

A layer adds a key in front of its inner policy's keys, so layers compose in any nesting; ``composed`` gives the one
that RequestOptions promises. If no request has a priority or a tenant the layers cost one comparison.
"""

from __future__ import annotations

import numpy as np

from prelude.records import dataclass
from prelude.scheduling.policies.orders import FirstComeFirstServed, PrefillFirst, RoundRobin, StaticBatches
from prelude.values.policy import Key, Keys, Policy, WaitingColumns


@dataclass(frozen=True, slots=True)
class _Layer:
    inner: Policy

    @property
    def timeless(self) -> bool:
        return self.inner.timeless

    @property
    def estimates(self) -> bool:
        return self.inner.estimates

    @property
    def whole_prompts(self) -> bool:
        return self.inner.whole_prompts

    @property
    def refills(self) -> bool:
        return self.inner.refills

    @property
    def takes_turns(self) -> bool:
        return self.inner.takes_turns


@dataclass(frozen=True, slots=True)
class Priority(_Layer):
    """Higher priorities first, strictly."""

    def keys(self, waiting: WaitingColumns, now: float) -> Keys:
        return (-waiting.priority, *self.inner.keys(waiting, now))


@dataclass(frozen=True, slots=True)
class FairTenants(_Layer):
    """Equal tokens for all tenants that wait (start-time fair queueing): a request's turn is the tokens that its
    tenant was served, plus those of the requests before it within the tenant. ``WaitingColumns.served`` has the first
    part: a tenant that was away starts level with the others, not ahead of them."""

    def keys(self, waiting: WaitingColumns, now: float) -> Keys:
        inner = self.inner.keys(waiting, now)
        account = waiting.account
        if len(account) == 0 or not (account != account[0]).any():
            return inner
        return (_turns(waiting, inner), *inner)


def _turns(waiting: WaitingColumns, inner: Keys) -> Key:
    """[N]: tokens served to the account when the request's turn comes, were its account's requests taken in order."""
    at = np.lexsort((waiting.order, *reversed(inner), waiting.account))
    tokens = np.maximum(waiting.tokens[at], 1.0)
    before = np.cumsum(tokens) - tokens
    account = waiting.account[at]
    first = np.concatenate(([True], account[1:] != account[:-1]))
    group = np.cumsum(first) - 1
    turns = np.empty(len(at))
    turns[at] = waiting.served[at] + before - before[first][group]
    return turns


def by_arrival(policy: Policy) -> bool:
    """Whether, with one priority and one tenant, arrival is the order."""
    while isinstance(policy, _Layer | PrefillFirst):
        policy = policy.inner if isinstance(policy, _Layer) else policy.order
    return isinstance(policy, FirstComeFirstServed | RoundRobin | StaticBatches)


def composed(policy: Policy) -> Policy:
    """Priorities, then tenants, then ``policy``; one that is a ``Priority`` already is taken as it is."""
    return policy if isinstance(policy, Priority) else Priority(FairTenants(policy))
