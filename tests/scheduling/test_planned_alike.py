"""The native plan of OneShot requests against a planner of a few lines of Python: equal rows, in equal order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prelude._native.core import KvPool

from prelude.admission.prepared import Prepared, TokenTree
from prelude.readouts.batch import LogprobRows
from prelude.runtime.core import EngineCore
from prelude.scheduling.planner import Budgets
from prelude.scheduling.policies import FirstComeFirstServed, ShortestPrefillFirst
from prelude.scheduling.queues import Policies
from prelude.values.options import RequestOptions
from prelude.values.policy import Policy
from tests import toy
from tests.scheduling.cores import Collect
from tests.scheduling.test_engine_core import ids, prompt

BLOCK = 4
CHUNK_ROWS = 2


@dataclass
class Asked:
    name: str
    tokens: list[int]
    cache: str
    ranks: bool  # requests with and without ranks have different keys
    rows: int
    priority: int
    arrived: int = 0
    order: int = 0


@dataclass
class PlainPlanner:
    """Without folds, deferral, tenants, retries and running rows; the pool has room for everything."""

    budgets: Budgets
    group_tokens: int
    policy: Policy
    cached: set[tuple[int, ...]] = field(default_factory=set)
    waiting: list[Asked] = field(default_factory=list)
    served: int = 0
    arrivals: int = 0

    def add(self, asked: list[Asked]) -> None:
        for one in asked:
            self.arrivals += 1
            one.arrived, one.order = self.served, self.arrivals
            self.waiting.append(one)

    def skip(self, one: Asked) -> int:
        blocks = 0 if one.cache == "never" else (len(one.tokens) - one.rows) // BLOCK
        while blocks and tuple(one.tokens[: blocks * BLOCK]) not in self.cached:
            blocks -= 1
        return blocks * BLOCK

    def ordered(self) -> list[Asked]:
        row_bytes, waiting = self.budgets.vocab_size * 8, self.waiting
        if (
            sum(len(one.tokens) for one in waiting) <= min(self.budgets.step_tokens, self.group_tokens)
            and len(waiting) <= self.budgets.step_requests
            and len({one.ranks for one in waiting}) == 1
            and sum(one.rows for one in waiting) * row_bytes <= self.budgets.logits_bytes
        ):
            return list(waiting)

        def key(one: Asked) -> tuple[float, ...]:
            if isinstance(self.policy, FirstComeFirstServed):
                return (-one.priority, one.order)
            work = max(1.0, len(one.tokens) - self.skip(one))
            return (-one.priority, self.policy.half_life * float(np.log2(work)) + one.arrived, one.order)  # type: ignore[attr-defined]

        found = sorted(waiting, key=key)
        return [one for one in found if one.ranks == found[0].ranks]

    def plan(self) -> list[tuple[str, int, int]]:
        rows: list[tuple[str, int, int]] = []
        left, left_bytes, withheld = self.budgets.step_tokens, self.budgets.logits_bytes, 0
        taken = []
        for one in self.ordered():
            skip = self.skip(one)
            logits = min(one.rows, CHUNK_ROWS) * self.budgets.vocab_size * 8
            if len(one.tokens) - skip > left or len(rows) == self.budgets.step_requests or logits > left_bytes:
                break
            left, left_bytes = left - (len(one.tokens) - skip), left_bytes - logits
            if not rows:
                withheld = max(0, left - self.group_tokens)
                left -= withheld
            publish = 0 if one.cache == "never" else len(one.tokens) // BLOCK - skip // BLOCK
            rows.append((one.name, skip, publish))
            taken.append(one)
        self.served += self.budgets.step_tokens - left - withheld
        for one in taken:
            self.waiting.remove(one)
            if one.cache != "never":
                self.cached.update(tuple(one.tokens[:at]) for at in range(BLOCK, len(one.tokens) + 1, BLOCK))
        return rows


def prepared(one: Asked) -> Prepared:
    """The last ``rows`` tokens of the prompt are read."""
    tokens, count = np.array(one.tokens, np.int32), one.rows
    rows = np.arange(len(tokens) - count, len(tokens), dtype=np.int32)
    readout = LogprobRows(rows, np.arange(count, dtype=np.int32), np.full(count, 5, np.int32), ranks=one.ranks)
    return Prepared(TokenTree.single(ids(*tokens)), readout, cache=one.cache)  # type: ignore[arg-type]


ASKED = st.tuples(
    st.integers(0, 3),  # which prefix it begins with; 0: none
    st.integers(1, 24),  # tokens of the prefix
    st.integers(3, 24),  # tokens of its own
    st.integers(0, 2),  # which seed these have, so that some prompts are equal
    st.sampled_from(["auto", "auto", "never"]),
    st.booleans(),
    st.integers(1, 3),
    st.sampled_from([0, 0, 0, 1]),
)


@pytest.mark.feature("A24")
@settings(deadline=None, max_examples=75)
@given(
    turns=st.lists(st.lists(ASKED, max_size=9), min_size=1, max_size=6),
    step_tokens=st.sampled_from([64, 96, 256]),
    group_tokens=st.sampled_from([24, 64, 1 << 31]),
    step_requests=st.integers(2, 8),
    logits_rows=st.integers(2, 9),
    policy=st.sampled_from([ShortestPrefillFirst(), ShortestPrefillFirst(half_life=32.0), FirstComeFirstServed()]),
    one_key=st.booleans(),
)
def test_plans_are_those_of_a_planner_in_python(
    turns: list[list[Any]],
    step_tokens: int,
    group_tokens: int,
    step_requests: int,
    logits_rows: int,
    policy: Policy,
    one_key: bool,
) -> None:
    executor = toy.ToyExecutor(num_blocks=4096, block_size=BLOCK)
    budgets = Budgets(
        step_tokens,
        step_requests,
        4,
        8,
        logits_rows * toy.VOCAB * 8,
        toy.VOCAB,
        CHUNK_ROWS,
        False,
        group_tokens=group_tokens,
    )
    pool = KvPool(executor.num_blocks, BLOCK)
    limits: Any = {"max_queued_requests": 1 << 20, "max_queued_tokens": 1 << 31, "unhealthy_after": 3}
    core = EngineCore(executor, pool, budgets, policies=Policies(policy), **limits)
    plain, found, sink = PlainPlanner(budgets, group_tokens, policy), list[Any](), Collect()
    core.stepper.plan_hooks.append(
        lambda plan: found.append([(row.request.options.request_id, row.skip, row.publish) for row in plan.oneshot])
    )

    def step() -> None:
        core.step()
        planned = plain.plan()
        assert found == [planned] * bool(planned) and core.queues.served == plain.served
        found.clear()

    count = 0
    for turn in turns:
        asked = []
        for which, shared, own, seed, cache, ranks, rows, priority in turn:
            count += 1
            tokens = [*(prompt(24, 100 + which)[:shared] if which else ()), *prompt(own, seed)]
            asked.append(Asked(f"r{count}", [int(t) for t in tokens], cache, ranks and not one_key, rows, priority))
        requests = [
            core.request(prepared(one), sink, RequestOptions(request_id=one.name, priority=one.priority))
            for one in asked
        ]
        core.lifecycle.post(requests)
        plain.add(asked)
        step()
    while plain.waiting:
        step()
    core.audit()
    assert len(sink.ends) == count and core.queues.empty and all(error is None for _, error in sink.ends.values())
