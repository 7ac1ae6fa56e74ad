"""Re-estimation before each step: exact against matching all requests anew, and its use."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prelude.scheduling.policies import FirstComeFirstServed, ShortestPrefillFirst
from prelude.scheduling.queues import Policies
from prelude.scheduling.request import State
from tests import toy
from tests.scheduling.cores import Collect, chat, last_logprob, post, prompt
from tests.service import is_empty, play, run_steps, service_core

FAMILIES = [prompt(48, seed) for seed in (61, 62, 63)]


def naive_work(core: Any, request: Any) -> int:
    pool = core.pool
    limit = request.reusable // pool.block_size
    known = request.known[: request.num_known]
    if limit <= 0 or not pool.caching:
        return int(request.num_known)
    blocks = min(limit, pool.would_hit(known, request.prepared.salt))
    return int(request.num_known - blocks * pool.block_size)


def check_columns(core: Any) -> int:
    """Every ranked request's work is that of a fresh match, once it was asked for."""
    ranked = 0
    for line in (core.queues.oneshot, core.queues.decode):
        next(line.in_order(core.queues.served), None)
        for request in line:
            if request in line.columns:
                row = line.columns._rows[request.order]
                assert line.columns.work[row] == naive_work(core, request)
                ranked += 1
    return ranked


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    items=st.lists(
        st.tuples(
            *(st.sampled_from(["shot", "chat"]), st.integers(0, 2), st.integers(0, 48), st.integers(1, 9)),
            *(st.sampled_from(["auto", "auto", "always", "never"]), st.integers(0, 8)),
            st.sampled_from([None, None, 1, 3]),
        ),
        min_size=4,
        max_size=40,
    ),
    blocks=st.integers(24, 50),
    fold=st.booleans(),
    failing=st.sampled_from([-1, 1, 3]),
)
@pytest.mark.feature("G4")
def test_every_estimate_is_that_of_a_fresh_match(items: list[Any], blocks: int, fold: bool, failing: int) -> None:
    """With prefixes published, evicted, promised and broken, and requests cancelled and preempted meanwhile."""
    core = service_core(
        toy.ToyExecutor(num_blocks=blocks),
        step_tokens=70,
        running=2,
        chunk=16,
        fold=fold,
        policies=Policies(ShortestPrefillFirst(), ShortestPrefillFirst()),
    )
    sink = Collect()
    waiting = []
    for i, (kind, family, shared, own, cache, at, cancel) in enumerate(items):
        tokens = np.concatenate([FAMILIES[family][:shared], prompt(own, i)])
        item = chat(tokens, 4, cache=cache) if kind == "chat" else last_logprob(tokens, cache=cache)
        waiting.append((at, cancel, core.request(item, sink)))
    play(core, waiting, failing={failing}, after_step=check_columns)
    assert all(request.state is State.FINISHED for _, _, request in waiting)
    assert is_empty(core)


class NeverLooksAgain(ShortestPrefillFirst):
    """Shortest first by the length at arrival, without a look at the cache."""

    estimates = False  # type: ignore[misc]


@pytest.mark.feature("G4")
def test_figure_5_as_a_golden_schedule() -> None:
    """PrefillOnly, figure 5. A runs; B begins with A's prefix and is longer than C and E. Once A has run, B has the
    least left to do and jumps ahead; any order that does not see it lets C take A's blocks first."""
    seen = {}
    policies = (ShortestPrefillFirst(math.inf), NeverLooksAgain(math.inf), FirstComeFirstServed())
    for name, policy in zip(("continuous", "static", "arrival"), policies):
        core = service_core(
            toy.ToyExecutor(num_blocks=40), step_tokens=160, running=1, policies=Policies(policy), fold=False
        )
        sink = Collect()
        shared = prompt(100, 1)
        a = post(core, last_logprob(np.concatenate([shared, prompt(4, 2)])), sink)
        core.step()
        c = post(core, last_logprob(prompt(90, 3)), sink)
        b = post(core, last_logprob(np.concatenate([shared, prompt(20, 4)])), sink)
        e = post(core, last_logprob(prompt(95, 5)), sink)
        run_steps(core)
        names = {a.id: "A", b.id: "B", c.id: "C", e.id: "E"}
        seen[name] = ("".join(names[i] for i in sink.ends), core.stats.prefix_hit_tokens)
    assert seen["continuous"] == ("ABCE", 100)
    assert seen["static"][0] == "ACEB" and seen["arrival"][0] == "ACBE"
    assert max(seen["static"][1], seen["arrival"][1]) < 100


@pytest.mark.feature("G12")
def test_every_step_sees_the_blocks_that_the_step_before_it_published() -> None:
    """Five requests, each the last one's prompt and more: after each step the next one's work is the rest."""
    core = service_core(toy.ToyExecutor(num_blocks=256), step_requests=1, running=1, fold=False)
    sink = Collect()
    parts = prompt(200, 9)
    ends = [40, 80, 120, 160, 196]
    requests = [post(core, last_logprob(parts[:n]), sink) for n in ends]
    run_steps(core, 50)
    assert list(sink.ends) == [r.id for r in requests]
    assert [b.num_tokens for b in core.executor.batches] == [40, 40, 40, 40, 36]
