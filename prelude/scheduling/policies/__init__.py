"""Orders of waiting requests: objects that read the requests as columns. The contract is in ``base``, its use in
docs/PLANNING.md."""

from prelude.scheduling.policies.layers import FairTenants, Priority, by_arrival, composed
from prelude.scheduling.policies.orders import (
    POLICIES,
    EarliestDeadline,
    FirstComeFirstServed,
    PrefillFirst,
    ResponseRatio,
    RoundRobin,
    ShortestPrefillFirst,
    StaticBatches,
    policy_named,
)
from prelude.values.policy import Keys, Policy, WaitingColumns, ranked

__all__ = [
    "POLICIES",
    "EarliestDeadline",
    "FairTenants",
    "FirstComeFirstServed",
    "Keys",
    "Policy",
    "PrefillFirst",
    "Priority",
    "ResponseRatio",
    "RoundRobin",
    "ShortestPrefillFirst",
    "StaticBatches",
    "WaitingColumns",
    "by_arrival",
    "composed",
    "policy_named",
    "ranked",
]
