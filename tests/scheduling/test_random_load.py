"""Random mixes of everything, audited after every step: each request ends once, with its own sequence's numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prelude.errors import ExecutionError
from prelude.scheduling.request import State
from tests import toy
from tests.scheduling.cores import (
    Collect,
    chat,
    expected_logprob,
    last_logprob,
    make_core,
    prompt,
    tree_request,
)
from tests.service import play

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
    core = make_core(
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
        outcome, error = sink.ends[id(request)]
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
