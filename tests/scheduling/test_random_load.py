"""Random mixes of everything, audited after every step: each request ends once, with its own sequence's numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prelude.admission.prepared import Prepared
from prelude.errors import DeadlineExceeded, ExecutionError, RequestCancelled
from prelude.readouts.batch import DecodeBatch, MixedBatch, OneShotBatch
from prelude.scheduling.request import Request, State
from prelude.values.options import RequestOptions
from tests import toy
from tests.scheduling.cores import Collect, chat, last_logprob, prompt, tree_request
from tests.scheduling.test_decode_ahead import penalised
from tests.service import is_empty, play, service_core

FAMILIES = [*(prompt(40, seed) for seed in (900, 901, 902)), prompt(0, 0)]
STOPS = frozenset(range(0, 97, 4))

item = st.tuples(
    st.sampled_from(["shot", "tree", "chat", "chat", "stops", "penalised"]),
    st.integers(0, 3),  # family of the prefix; 3 = none
    st.integers(0, 40),  # how much of it
    st.integers(1, 12),  # own tokens
    st.integers(2, 10),  # tokens to draw
    st.sampled_from(["auto", "auto", "always", "never"]),
    st.integers(0, 6),  # comes after so many steps
    st.sampled_from([None, None, None, 0, 1, 2, 4, 9]),  # is cancelled so many steps after that
)


def branches_of(seed: int) -> list[np.ndarray]:
    return [prompt(1 + seed % 3, seed + 1), prompt(2, seed + 2)]


def made(seed: int, kind: str, tokens: np.ndarray, count: int, cache: str) -> Prepared:
    match kind:
        case "shot":
            return last_logprob(tokens, cache=cache)
        case "tree":
            return tree_request(tokens, branches_of(seed))
        case "penalised":
            return penalised(tokens, count)
        case _:
            return chat(tokens, count, STOPS if kind == "stops" else frozenset(), cache=cache)


@settings(max_examples=65, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    items=st.lists(item, min_size=1, max_size=24),
    num_blocks=st.integers(18, 80),
    chunk=st.integers(1, 40),
    running=st.integers(1, 6),
    defer_steps=st.integers(0, 8),
    fold=st.booleans(),
    cache=st.booleans(),
    deadlines=st.booleans(),
    failing=st.sets(st.integers(0, 30), max_size=3),
)
@pytest.mark.parametrize("overlap", [False, True], ids=["", "overlap"])
@pytest.mark.feature("D8")
@pytest.mark.feature("E14")
@pytest.mark.feature("H13")
@pytest.mark.fault(52)
def test_every_request_ends_once_with_its_own_numbers(
    overlap: bool, items: list[Any], deadlines: bool, failing: set[int], num_blocks: int, **options: Any
) -> None:
    """Some stop early, are cancelled, come too late or fail, over a small pool."""
    now = [0.0]
    core = service_core(
        toy.ToyExecutor(num_blocks=num_blocks), step_tokens=96, overlap=overlap, unhealthy=100, clock=lambda: now[0],
        **options,
    )  # fmt: skip

    def tick(core: Any) -> None:
        now[0] += 1.0

    sink = Collect()
    arrivals = []
    for seed, (kind, family, shared, own, count, mode, at, cancel) in enumerate(items):
        tokens = np.concatenate([FAMILIES[family][:shared], prompt(own, seed)])
        deadline = 3.0 + seed if deadlines and seed % 3 == 0 else None
        prepared, when = made(seed, kind, tokens, count, mode), RequestOptions(deadline=deadline)
        arrivals.append((at, cancel, core.request(prepared, sink, when, expires=deadline or math.inf)))
    play(core, arrivals, failing=failing, after_step=tick)
    assert is_empty(core) and not core.steps and not core.steps.ended and core.pool.prefix_counts()["promised"] == 0
    assert core.failures.last_error is None or core.failures.last_error.endswith(": injected")
    for seed, ((kind, *_), (_, cancel, request)) in enumerate(zip(items, arrivals)):
        assert request.state is State.FINISHED and request.ahead == request.in_flight == 0
        assert request.stats.deferred_ticks <= core.budgets.defer_steps
        outcome, error = sink.ends[request.id]
        match error:
            case None:
                check_end(seed, kind, request, outcome)
            case DeadlineExceeded():
                assert deadlines
            case RequestCancelled():
                assert cancel is not None
            case _:
                assert isinstance(error, ExecutionError) and failing


def check_end(seed: int, kind: str, request: Request, outcome: Any) -> None:
    tokens = request.prepared.tree.token_ids.tolist()
    if kind in ("shot", "tree"):
        trunk = tokens[: request.prepared.tree.trunk_tokens]
        ends = [branch.tolist() for branch in branches_of(seed)] if kind == "tree" else [[]]
        expected = [toy.logprobs_of(trunk + end)[5] for end in ends]
        assert outcome.output.logprobs == pytest.approx(expected, abs=1e-12)
        return
    drawn = toy.generate(tokens, request.max_new_tokens)
    stop = next((i for i, token in enumerate(drawn) if token in STOPS), None) if kind == "stops" else None
    assert list(outcome.token_ids) == drawn[:stop]


@pytest.mark.feature("A7")
@pytest.mark.parametrize("seed", range(8))
def test_every_step_keeps_its_accounts_apart_and_its_budget(seed: int) -> None:
    """Chats and decisions of random lengths: the stated cost of each side of a step is that of its rows."""
    rng = np.random.default_rng(seed)
    budget = int(rng.integers(40, 90))
    core = service_core(
        toy.ToyExecutor(num_blocks=60), step_tokens=budget, chunk=int(rng.integers(3, 20)), running=6, step_requests=8
    )
    block, sink, both = core.pool.block_size, Collect(), 0
    for _ in range(40):
        for _ in range(int(rng.integers(0, 4))):
            tokens = prompt(int(rng.integers(1, 30)), int(rng.integers(0, 1000)))
            prepared = chat(tokens, int(rng.integers(2, 9))) if rng.random() < 0.5 else last_logprob(tokens)
            core.lifecycle.post([core.request(prepared, sink)])
        core.step()
    while core.step():
        pass
    for batch in core.executor.batches:
        prefill = decode = 0
        if not isinstance(batch, DecodeBatch):
            prefill = len(batch.slices.token_ids)
        if not isinstance(batch, OneShotBatch):
            rows = batch.decode if isinstance(batch, MixedBatch) else batch.rows
            decode = len(rows.token_ids)
            assert (np.diff(rows.block_indptr) * block > rows.context_lens).all()  # its own token has a place too
        if isinstance(batch, MixedBatch):
            both += decode > 0 and prefill > 0
            assert (batch.prefill_tokens, batch.decode_tokens) == (prefill, decode)
            assert batch.num_tokens == prefill + decode
            assert batch.decode.block_indptr[-1] == len(batch.decode.block_ids)
        assert prefill + decode <= budget
    assert both > 0
