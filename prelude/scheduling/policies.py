"""Orders of waiting requests: objects that read the requests as columns. ``prelude.values.policy`` has the contract,
docs/PLANNING.md the use.

    Priority(FairTenants(ShortestPrefillFirst()))

        priority 5                       strictly before everything below
        priority 0   tenant a  ▢▢▢▢      the tenant that was served the fewest tokens goes first; within one, the
                     tenant b  ▢▢▢▢▢     inner order

A layer adds a key in front of its inner policy's keys, so layers compose in any nesting; ``composed`` gives the one
that RequestOptions promises. If no request has a priority or a tenant the layers cost one comparison.

Ageing in tokens served, so that shortest first starves no request:

    score = work / 2 ** (waited / half_life)       waited = tokens served since the request came

Both sides of a comparison wait the same tokens, so the order of two requests never changes while neither is matched
anew. A request of work W is overtaken by one of w only if that comes within half_life * log2(W / w) tokens served
after it, so by none after half_life * log2(W).

PrefillOnly (arXiv 2505.07203) has work - lambda * seconds waited. Long prompts that the cache does not have are then
far apart from each other before hits of theirs are far ahead of them. Here the ratio counts: prompts of about
one length go by arrival, and a cached prompt, a hundredth of the work, goes before them for a long time. So a cache
that is too small for all users still has hits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from prelude.errors import ConfigError
from prelude.execution.layout import prompt_keys
from prelude.records import dataclass
from prelude.values.arrays import F64
from prelude.values.policy import Key, Keys, Policy, WaitingColumns


class _Usual:
    """The properties of most orders; an order overrides those that differ."""

    __slots__ = ()

    timeless: ClassVar[bool] = True
    estimates: ClassVar[bool] = False
    whole_prompts: ClassVar[bool] = False
    refills: ClassVar[bool] = True
    takes_turns: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class FirstComeFirstServed(_Usual):
    def keys(self, waiting: WaitingColumns, now: float) -> Keys:
        return (waiting.order,)


@dataclass(frozen=True, slots=True)
class ShortestPrefillFirst(_Usual):
    """The least left to compute first, aged: the tokens left count half after every ``half_life`` tokens served.
    Infinity is pure shortest first: the best mean, and long requests starve under endless short ones. ``curvature``:
    seconds a key costs over seconds a token costs (``CostModel.curvature``); 0 counts tokens alone."""

    half_life: float = 200_000.0
    curvature: float = 0.0

    estimates: ClassVar[bool] = True

    def __post_init__(self) -> None:
        life = self.half_life
        if isinstance(life, bool) or not isinstance(life, int | float) or not life > 0:
            raise ConfigError(f"half_life={life!r} is not a positive number of tokens")
        _check_curvature(self.curvature)

    def keys(self, waiting: WaitingColumns, now: float) -> Keys:
        work = effort(waiting, self.curvature)
        return (work,) if self.half_life == math.inf else (self.half_life * np.log2(work) + waiting.arrived,)


@dataclass(frozen=True, slots=True)
class ResponseRatio(_Usual):
    """The highest (waited + work) / work first, in tokens served: short requests go early, and every one's turn comes
    as its wait grows (Brinch Hansen's highest response ratio next)."""

    curvature: float = 0.0

    timeless: ClassVar[bool] = False
    estimates: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_curvature(self.curvature)

    def keys(self, waiting: WaitingColumns, now: float) -> Keys:
        return ((waiting.arrived - now) / effort(waiting, self.curvature),)


@dataclass(frozen=True, slots=True)
class EarliestDeadline(_Usual):
    """The nearest deadline first; requests without one come last. Only which of two is earlier is looked at."""

    def keys(self, waiting: WaitingColumns, now: float) -> Keys:
        return (waiting.expires,)


@dataclass(frozen=True, slots=True)
class PrefillFirst:
    """For Decode requests: a new prompt runs whole in the next step that has room, however long the running rows'
    next token is delayed by it. The earliest first token; ``order`` says which prompt is first."""

    order: Policy = FirstComeFirstServed()

    whole_prompts: ClassVar[bool] = True
    refills: ClassVar[bool] = True
    takes_turns: ClassVar[bool] = False

    @property
    def timeless(self) -> bool:
        return self.order.timeless

    @property
    def estimates(self) -> bool:
        return self.order.estimates

    def keys(self, waiting: WaitingColumns, now: float) -> Keys:
        return self.order.keys(waiting, now)


@dataclass(frozen=True, slots=True)
class RoundRobin(FirstComeFirstServed):
    """For Decode requests: a prompt that had a chunk goes behind all that wait, so a short one is through after one
    round of chunks, however many long ones came before it."""

    takes_turns: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class StaticBatches(FirstComeFirstServed):
    """For Decode requests: a batch runs until all of it has ended, then the next one starts. A baseline for
    continuous batching; not for use."""

    whole_prompts: ClassVar[bool] = True
    refills: ClassVar[bool] = False


def effort(waiting: WaitingColumns, curvature: float) -> F64:
    """Return tokens left, and the keys that they read as so many tokens more. At least 1."""
    work = waiting.work
    if curvature:
        work = work + curvature * prompt_keys(work, waiting.tokens - work)
    return np.maximum(work, 1.0)


def _check_curvature(curvature: float) -> None:
    if isinstance(curvature, bool) or not isinstance(curvature, int | float) or not 0 <= curvature < float("inf"):
        raise ConfigError(f"curvature={curvature!r} is not a finite number of at least 0")


POLICIES: dict[str, Callable[[], Policy]] = {
    "first_come_first_served": FirstComeFirstServed,
    "shortest_prefill_first": ShortestPrefillFirst,
    "response_ratio": ResponseRatio,
    "earliest_deadline": EarliestDeadline,
    "prefill_first": PrefillFirst,
    "round_robin": RoundRobin,
    "static_batches": StaticBatches,
}


def policy_named(value: Any, field: str = "policy") -> Policy:
    """Return a policy from its name, or the object itself."""
    if isinstance(value, str) and value in POLICIES:
        return POLICIES[value]()
    if isinstance(value, Policy) and not isinstance(value, type):
        return value
    raise ConfigError(f"{field}={value!r} is neither a Policy nor one of {', '.join(POLICIES)}")


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
        if not (account != account[:1]).any():
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
    return isinstance(policy, FirstComeFirstServed)


def composed(policy: Policy) -> Policy:
    """Priorities, then tenants, then ``policy``; one that is a ``Priority`` already is taken as it is."""
    return policy if isinstance(policy, Priority) else Priority(FairTenants(policy))
