"""The orders themselves. ``layers`` puts priorities and tenants around them.

Ageing in tokens served, so that shortest first starves nobody:

    score = work - ageing * waited       waited = tokens served since the request came

Both sides of a comparison wait the same tokens, so the order of two requests never changes while neither is matched
anew, and a request of work W is overtaken only by those that come within W / ageing tokens served after it: that is
the bound after which it is first. PrefillOnly (arXiv 2505.07203) subtracts lambda * seconds waited in the same place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from prelude.errors import ConfigError
from prelude.scheduling.policies.base import F64, Keys, Policy, Waiting


class _Usual:
    """What most orders are; one says where it differs."""

    __slots__ = ()

    timeless: ClassVar[bool] = True
    estimates: ClassVar[bool] = False
    whole_prompts: ClassVar[bool] = False
    refills: ClassVar[bool] = True
    takes_turns: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class FirstComeFirstServed(_Usual):
    def keys(self, waiting: Waiting, now: float) -> Keys:
        return (waiting.order,)


@dataclass(frozen=True, slots=True)
class ShortestPrefillFirst(_Usual):
    """The least left to compute first, aged. ``ageing`` 0 is pure shortest first: the best mean, and long requests
    starve under endless short ones. ``curvature``: seconds a key costs over seconds a token costs
    (``CostModel.curvature``); 0 counts tokens alone."""

    ageing: float = 0.05
    curvature: float = 0.0

    estimates: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _share("ageing", self.ageing)
        _share("curvature", self.curvature)

    def keys(self, waiting: Waiting, now: float) -> Keys:
        return (effort(waiting, self.curvature) + self.ageing * waiting.arrived,)


@dataclass(frozen=True, slots=True)
class ResponseRatio(_Usual):
    """The highest (waited + work) / work first, in tokens served: short requests go early, and every one's turn comes
    as its wait grows (Brinch Hansen's highest response ratio next)."""

    curvature: float = 0.0

    timeless: ClassVar[bool] = False
    estimates: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _share("curvature", self.curvature)

    def keys(self, waiting: Waiting, now: float) -> Keys:
        return ((waiting.arrived - now) / effort(waiting, self.curvature),)


@dataclass(frozen=True, slots=True)
class EarliestDeadline(_Usual):
    """The nearest deadline first; requests without one come last. Only which of two is earlier is looked at."""

    def keys(self, waiting: Waiting, now: float) -> Keys:
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

    def keys(self, waiting: Waiting, now: float) -> Keys:
        return self.order.keys(waiting, now)


@dataclass(frozen=True, slots=True)
class RoundRobin(_Usual):
    """For Decode requests: a prompt that had a chunk goes behind all that wait, so a short one is through after one
    round of chunks, however many long ones came before it."""

    takes_turns: ClassVar[bool] = True

    def keys(self, waiting: Waiting, now: float) -> Keys:
        return (waiting.order,)


@dataclass(frozen=True, slots=True)
class StaticBatches(_Usual):
    """For Decode requests: a batch runs until all of it has ended, then the next one starts. What continuous batching
    is compared with; not for use."""

    whole_prompts: ClassVar[bool] = True
    refills: ClassVar[bool] = False

    def keys(self, waiting: Waiting, now: float) -> Keys:
        return (waiting.order,)


def effort(waiting: Waiting, curvature: float) -> F64:
    """Tokens left, and the keys that they read as so many tokens more. At least 1."""
    work = waiting.work
    if curvature:
        cached = waiting.tokens - work
        work = work + curvature * work * (cached + 0.5 * work)
    return np.maximum(work, 1.0)


def _share(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ConfigError(f"{name}={value!r} is not a finite number of at least 0")
