"""The orders themselves. ``layers`` puts priorities and tenants around them.

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

from prelude._native.core import prompt_keys
from prelude.errors import ConfigError
from prelude.records import dataclass
from prelude.values.arrays import F64
from prelude.values.policy import Keys, Policy, WaitingColumns


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
        _share("curvature", self.curvature)

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
        _share("curvature", self.curvature)

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
class RoundRobin(_Usual):
    """For Decode requests: a prompt that had a chunk goes behind all that wait, so a short one is through after one
    round of chunks, however many long ones came before it."""

    takes_turns: ClassVar[bool] = True

    def keys(self, waiting: WaitingColumns, now: float) -> Keys:
        return (waiting.order,)


@dataclass(frozen=True, slots=True)
class StaticBatches(_Usual):
    """For Decode requests: a batch runs until all of it has ended, then the next one starts. A baseline for
    continuous batching; not for use."""

    whole_prompts: ClassVar[bool] = True
    refills: ClassVar[bool] = False

    def keys(self, waiting: WaitingColumns, now: float) -> Keys:
        return (waiting.order,)


def effort(waiting: WaitingColumns, curvature: float) -> F64:
    """Return tokens left, and the keys that they read as so many tokens more. At least 1."""
    work = waiting.work
    if curvature:
        cached = waiting.tokens - work
        work = work + curvature * prompt_keys(work, cached)
    return np.maximum(work, 1.0)


def _share(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ConfigError(f"{name}={value!r} is not a finite number of at least 0")


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
