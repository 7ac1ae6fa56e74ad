"""Very many requests through the simulator: small machines of random limits, random policies, workloads and callers
that cancel, one machine after the other, all accounts audited.

    python -m tests.simulate_many --requests 1000000 --seed 1 --json FILE

Every request ends, and ends once. None fails, except a request for which no step can be planned. All blocks are given
back. Where a policy states after how many tokens a request is overtaken no more, none is.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prelude.scheduling.policies import ShortestPrefillFirst
from prelude.simulation import Arrival, Fleet, machine
from prelude.simulation.workloads import bursts, cancelled, chat, chat_beside_decisions, rubrics

_DECODE = ("first_come_first_served", "prefill_first", "round_robin", "shortest_prefill_first")
_ENDS = {"finished", "cancelled", "expired", "refused"}  # refused: larger than the machine


@dataclass(slots=True)
class Tally:
    ends: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)  # steps, evictions, deferrals ...
    machines: int = 0
    bounded: int = 0  # machines whose policy stated a bound
    starvation: float = 0.0  # the largest share of such a bound

    @property
    def requests(self) -> int:
        return sum(self.ends.values())


def limits(rng: random.Random) -> dict[str, Any]:
    half_life = rng.choice([20, 1000, 30_000])
    policy = rng.choice([ShortestPrefillFirst(half_life), "shortest_prefill_first", "response_ratio",
                         "earliest_deadline", "first_come_first_served"])  # fmt: skip
    step, rows = rng.choice([1024, 2048, 8192]), rng.choice([1, 3, 16, 64])
    return {
        "max_length": 900, "kv_blocks": rng.choice([60, 90, 200, 1000, 5000]), "max_step_tokens": step,
        "group_tokens": rng.choice([128, 1024, 8192]), "max_step_requests": rows,
        "max_running": min(rows, rng.choice([1, 4, 32])), "chunk_tokens": rng.choice([16, 128, 1024]),
        "fold": rng.random() < 0.7, "defer_steps": rng.choice([0, 1, 8]), "defer_tokens": rng.choice([1, 64]),
        "prefix_cache": rng.random() < 0.9, "overlap": rng.random() < 0.3,
        "oneshot_share": rng.choice([0.1, 0.5, 1.0]), "policy": policy, "decode_policy": rng.choice(_DECODE),
        "reestimate": rng.random() < 0.9, "probation": rng.random() < 0.8,
    }  # fmt: skip


def arrivals(rng: random.Random, count: int, seed: int) -> Iterator[Arrival]:
    tenants = rng.choice([0, 0, 0, 20])
    shape: dict[str, Any] = {
        "rubrics": rng.choice([2, 20, 200]), "rubric_tokens": rng.choice([40, 200, 600]),
        "text_tokens": (2, rng.choice([20, 200])), "questions": rng.choice([(), (), (3, 5)]), "tenants": tenants,
    }  # fmt: skip
    rate = 10 ** rng.uniform(1.5, 3.5)
    talk: dict[str, Any] = {"system_tokens": 60, "turn_tokens": (5, 60), "max_tokens": (2, 30)}
    kind = rng.choice(["rubrics", "rubrics", "bursts", "bursts", "beside", "beside", "chat"])
    if kind == "rubrics":
        found = rubrics(rate, seed, requests=count, **shape)
    elif kind == "bursts":
        found = bursts(rate, seed, requests=count, **shape)
    elif kind == "beside":
        found = chat_beside_decisions(rate / 4, seed, requests=count, chats=rng.choice([0.05, 0.4]), **shape)
    else:
        found = chat(rate / 2, seed, requests=count, **talk)
    patience = 10 ** rng.uniform(-2.5, 0.5)
    late, urgent = rng.choice([0.0, 0.2]), rng.choice([0.0, 0.0, 0.0, 0.1])
    for arrival in cancelled(found, rng.choice([0.0, 0.05, 0.4]), patience, seed):
        changed: dict[str, Any] = {}
        if rng.random() < late:
            changed["deadline"] = rng.expovariate(1 / patience)
        if rng.random() < urgent:
            changed["priority"] = rng.randint(-2, 2)
        if rng.random() < 0.2:
            changed["cache"] = rng.choice(["always", "never"])
        if arrival.task == "generate":
            changed["max_tokens"] = min(arrival.max_tokens, 40)
        yield replace(arrival, **changed)


def _check_progress(steps: int, requests: int, where: str) -> None:
    """Some fifteen were the most that a machine took; more than a hundred, and they go round in circles."""
    if steps > 100 * requests:
        raise AssertionError(f"{steps} steps for {requests} requests: {where}")


def one_machine(seed: int, count: int, tally: Tally) -> None:
    """``AssertionError`` names the seed."""
    rng = random.Random(seed)
    chosen = limits(rng)
    fleet = Fleet(machine("cpu-default", **chosen), rng.choice([1, 1, 3]), seed=seed, audit=rng.choice([5, 100]))
    where = f"seed {seed}, {chosen}"
    for replica in fleet.replicas:
        replica.on_plan = lambda plan, replica=replica: _check_progress(replica.steps, count, where)
    report = fleet.run(arrivals(rng, count, seed))
    assert sum(report.ends.values()) == count and set(report.ends) <= _ENDS, f"{report.ends}: {where}"
    for replica in fleet.replicas:
        core, pool = replica.core, replica.core.pool
        assert core.queues.empty and not core.live and not core.inbox.requests, where
        assert pool.live_leases == 0 and pool.num_used == 0 and pool.prefix_counts()["promised"] == 0, where
    if report.starvation == report.starvation:
        assert report.starvation <= 1.0, f"overtaken {report.starvation:.2f} times as far as promised: {where}"
        tally.bounded += 1
        tally.starvation = max(tally.starvation, report.starvation)
    tally.machines += 1
    tally.ends.update(report.ends)
    for name in ("steps", "preemptions", "deferrals", "evictions"):
        tally.counts[name] += getattr(report, name)


def simulate_many(requests: int, seed: int, each: int = 1000, tell: bool = False) -> Tally:
    tally, began = Tally(), time.process_time()
    while tally.requests < requests:
        one_machine(seed * 1_000_000 + tally.machines, min(each, requests - tally.requests), tally)
        if tell and tally.machines % 20 == 0:
            print(f"{tally.requests:,} requests on {tally.machines} machines, {time.process_time() - began:.0f} s, "
                  f"{dict(tally.ends)}, {dict(tally.counts)}", flush=True)  # fmt: skip
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", metavar="FILE")
    chosen = parser.parse_args()
    began = time.process_time()
    tally = simulate_many(chosen.requests, chosen.seed, tell=True)
    result = {
        "command": f"python -m tests.simulate_many --requests {chosen.requests} --seed {chosen.seed}",
        "requests": tally.requests,
        "machines": tally.machines,
        "ends": dict(tally.ends),
        **tally.counts,
        "machines_with_a_stated_bound": tally.bounded,
        "largest_share_of_it": tally.starvation,
        "cpu_seconds": round(time.process_time() - began),
    }
    print(json.dumps(result, indent=1))
    if chosen.json:
        Path(chosen.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
