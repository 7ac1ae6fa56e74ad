"""Policies by name, for EngineConfig."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prelude.errors import ConfigError
from prelude.scheduling.policies.orders import (
    EarliestDeadline,
    FirstComeFirstServed,
    PrefillFirst,
    ResponseRatio,
    RoundRobin,
    ShortestPrefillFirst,
    StaticBatches,
)
from prelude.values.policy import Policy

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
