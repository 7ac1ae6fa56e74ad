"""Random mixes of everything, audited after every step: each request ends once, with its own sequence's numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prelude.errors import ExecutionError
from prelude.readouts.batch import DecodeBatch, MixedBatch, OneShotBatch
from prelude.scheduling.request import State
from tests import toy
from tests.scheduling.cores import Collect, chat, expected_logprob, last_logprob, prompt, tree_request
from tests.service import play, service_core

FAMILIES = [prompt(40, seed) for seed in (900, 901, 902)]

kinds = st.sampled_from(["shot", "tree", "chat"])
item = st.tuples(
    kinds,
    st.integers(0, 3),  # family of the prefix; 3 = none
    st.integers(0, 40),  # how much of it
    st.integers(1, 12),  # own tokens
    st.integers(0, 10**6),
    st.sampled_from(["auto", "always", "never"]),
    st.integers(0, 6),  # submitted after so many steps
    st.sampled_from([None, None, None, 0, 1, 3, 9]),  # cancelled so many steps after that
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    items=st.lists(item, min_size=1, max_size=24),
    num_blocks=st.integers(18, 60),
    fold=st.booleans(),
    cache=st.booleans(),
    running=st.integers(1, 6),
    chunk=st.integers(1, 16),
    failing=st.sets(st.integers(0, 30), max_size=2),
)
@pytest.mark.feature("D8")
@pytest.mark.feature("E14")
def test_every_request_ends_once_with_its_own_numbers(
    items, num_blocks, fold, cache, running, chunk, failing
) -> None:
    core = service_core(
        toy.ToyExecutor(num_blocks=num_blocks), fold=fold, cache=cache, running=running, chunk=chunk, step_tokens=128
    )
    sink = Collect()
    waiting = []
    for kind, family, shared, own, seed, mode, at, cancel in items:
        head = FAMILIES[family][:shared] if family < 3 else prompt(0, 0)
        tokens = np.concatenate([head, prompt(own, seed)])
        if kind == "chat":
            prepared = chat(tokens, 2 + seed % 9, cache=mode)
        elif kind == "tree":
            prepared = tree_request(tokens, [prompt(1 + seed % 3, seed + 1), prompt(2, seed + 2)])
        else:
            prepared = last_logprob(tokens, cache=mode)
        waiting.append((at, cancel, core.request(prepared, sink)))
    play(core, waiting, failing=failing)
    assert core.pool.live_leases == 0 and core.pool.allocator.num_used == 0
    for _, cancel, request in waiting:
        assert request.state is State.FINISHED
        outcome, error = sink.ends[request.id]
        if error is not None:
            assert cancel is not None or (failing and isinstance(error, ExecutionError))
            continue
        _check(request, outcome)


def _check(request, outcome) -> None:
    tree = request.prepared.tree
    if request.execution_class.value == "decode":
        assert list(outcome.token_ids) == toy.generate(tree.token_ids.tolist(), request.prepared.max_new_tokens)
        return
    trunk = tree.token_ids[: tree.trunk_tokens]
    branches = (
        [trunk]
        if len(tree.parents) == 1
        else [np.concatenate([trunk, tree.token_ids[a:b]]) for a, b in zip(tree.starts[1:-1], tree.starts[2:])]
    )
    for branch, got in zip(branches, outcome.output.logprobs):
        assert got == pytest.approx(expected_logprob(branch), abs=1e-12)


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
