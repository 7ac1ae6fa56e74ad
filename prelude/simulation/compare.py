"""The same trace under different engines: policies, the effect of each mechanism, the rate that a policy carries.

``BASELINE`` is the baseline: first come, first served, and a prefix cache that is asked when a request is scheduled.
Every request computes the tokens that the cache does not have by then. All of them are kept, and the least recently
used block is evicted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from prelude.errors import TraceError
from prelude.records import dataclass, replace
from prelude.simulation.costs import Machine
from prelude.simulation.fleet import Failure, Fleet, Source
from prelude.simulation.report import Report
from prelude.simulation.traces import Arrival

Settings: TypeAlias = "Mapping[str, Any]"  # fields of EngineConfig, reestimate, probation
Trace: TypeAlias = "Callable[[], Source | Iterable[Arrival]]"  # the same arrivals at every call
AtRate: TypeAlias = "Callable[[float, int], Iterable[Arrival]]"  # rate, seed

BASELINE: Settings = {"policy": "first_come_first_served", "fold": False, "defer_steps": 0, "probation": False}
ABLATIONS: Mapping[str, Settings] = {
    "all mechanisms": {},
    "without attach": {"prefix_cache": False},
    "without fold": {"fold": False},
    "without defer": {"defer_steps": 0},
    "without fold and defer": {"fold": False, "defer_steps": 0},
    "without re-estimation": {"reestimate": False},
    "without probation": {"probation": False},
    "steps filled up": {"group_tokens": 1 << 30},
    "first come, first served": {"policy": "first_come_first_served"},
    "baseline": BASELINE,
}
_RATIO = 1.02  # how close the search comes to the rate


def run(
    machine: Machine,
    trace: Trace,
    variants: Mapping[str, Settings],
    *,
    replicas: int = 1,
    routing: Sequence[str] = ("prefix-affine",),
    seed: int = 0,
    audit: int = 0,
    failures: Sequence[Failure] = (),
    done: Callable[[Report], None] | None = None,
) -> list[Report]:
    """A report for each variant (and routing, if there are several), labelled with its name; ``done`` gets each
    as soon as it is there."""
    reports = []
    for name, settings in variants.items():
        for way in routing:
            made = machine.configured(**settings)
            fleet = Fleet(made, replicas, routing=way, seed=seed, audit=audit, failures=failures)
            label = f"{name}, {way}" if len(routing) > 1 else name
            reports.append(replace(fleet.run(trace()), label=label))
            if done is not None:
                done(reports[-1])
    return reports


@dataclass(frozen=True, slots=True)
class Sweep:
    """Reports of one variant by rate."""

    label: str
    rates: tuple[float, ...]
    reports: tuple[Report, ...]


def sweep(
    machine: Machine, trace: AtRate, rates: Sequence[float], variants: Mapping[str, Settings], **options: Any
) -> list[Sweep]:
    """``options``: of ``run``; one routing."""
    return [
        Sweep(
            name,
            tuple(rates),
            tuple(run(machine, partial(trace, r, 0), {name: settings}, **options)[0] for r in rates),
        )
        for name, settings in variants.items()
    ]


def p99(machine: Machine, trace: AtRate, rate: float, seeds: Sequence[int] = (0,)) -> float:
    """Seconds; the median of the seeds' P99. ``TraceError`` if no request finishes."""
    found = sorted(Fleet(machine).run(trace(rate, seed)).latency.p99 for seed in seeds)
    if math.isnan(sum(found)):
        raise TraceError(f"no request finishes at {rate:.4g}/s, so that there is no P99; compare at another rate")
    return found[len(found) // 2]


def most_rate(
    machine: Machine, trace: AtRate, bound: float, start: float, seeds: Sequence[int] = (0,), limit: float = 16.0
) -> float:
    """The highest rate with a P99 of at most ``bound`` seconds, to 2 %: doubling or halving from ``start``, then
    bisection, taking it that P99 grows with the rate. At most ``limit * start``: a trace that ends has a P99 at any
    rate. 0 if even ``start / limit`` is too much."""
    low, high = 0.0, math.inf
    rate = start
    while True:
        if p99(machine, trace, rate, seeds) <= bound:
            low = rate
        else:
            high = rate
        if low and high <= low * _RATIO:
            return low
        if high == math.inf:
            if low >= limit * start:
                return low
            rate = 2 * low
        elif low == 0.0:
            if high <= start / limit:
                return 0.0
            rate = high / 2
        else:
            rate = math.sqrt(low * high)


@dataclass(frozen=True, slots=True)
class EqualP99:
    """``ratio``: how much more a machine takes with ``ours`` than with ``base``, both at a P99 of ``bound``."""

    bound: float  # seconds: the P99 of ``base`` at ``base_rate``
    base: str
    base_rate: float
    ours: str
    our_rate: float

    @property
    def ratio(self) -> float:
        return self.our_rate / self.base_rate


def equal_p99(
    machine: Machine,
    trace: AtRate,
    base_rate: float,
    base: tuple[str, Settings] = ("baseline", BASELINE),
    ours: tuple[str, Settings] = ("all mechanisms", {}),
    seeds: Sequence[int] = (0,),
) -> EqualP99:
    """Return the P99 of ``base`` at ``base_rate``, and the rate that ``ours`` carries at that P99."""
    bound = p99(machine.configured(**base[1]), trace, base_rate, seeds)
    found = most_rate(machine.configured(**ours[1]), trace, bound, base_rate, seeds)
    return EqualP99(bound, base[0], base_rate, ours[0], found)


def capacity(machine: Machine, trace: AtRate) -> float:
    """Requests a second when all arrive at once: the most that the machine carries for long."""
    everything = (replace(arrival, at=0.0) for arrival in trace(1.0, 0))
    return Fleet(machine).run(everything).throughput
