"""How many blocks a sequence has: as many as its tokens fill, and never one more."""

from __future__ import annotations

import pytest

from tests import toy
from tests.engine.test_faults import ById
from tests.engine.test_limits import post
from tests.scheduling.cores import chat, prompt
from tests.service import is_empty, service_core


@pytest.mark.feature("D1")
@pytest.mark.feature("D4")
@pytest.mark.parametrize("tokens,blocks", [(1, 1), (16, 1), (17, 2), (50, 4), (53, 4), (100, 7), (1500, 94)])
def test_a_sequence_has_the_blocks_that_its_tokens_fill_and_wastes_less_than_one(tokens: int, blocks: int) -> None:
    size = 16
    executor = toy.ToyExecutor(num_blocks=128, block_size=size)
    core = service_core(executor, step_tokens=4096, chunk=4096)
    sink = ById()
    request = post(core, chat(prompt(tokens, 1), 40), sink)
    seen = []
    while core.step():
        if request.lease is not None:
            seen.append((request.cached_len, request.lease.num_blocks))
        core.audit()
    assert seen[0] == (tokens, blocks)
    assert len(seen) == 39, "one a step, until the last token, which is never written"
    for length, held in seen:
        assert 0 <= held * size - length < size
    assert is_empty(core)
