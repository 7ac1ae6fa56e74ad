"""A short run of ``python -m tests.simulate_many``."""

from __future__ import annotations

import pytest

from tests.simulate_many import Tally, one_machine, simulate_many


@pytest.mark.long
@pytest.mark.feature("B8")
@pytest.mark.feature("N6")
def test_requests_on_random_machines_end_once_and_none_is_overtaken_too_far() -> None:
    tally = simulate_many(6000, seed=3, each=300)
    assert tally.requests == 6000 and tally.machines == 20
    assert tally.ends["finished"] > 4000 and tally.ends["cancelled"] > 100 and tally.ends["expired"] > 50
    assert tally.counts["evictions"] and tally.counts["deferrals"] and tally.counts["preemptions"]
    assert tally.bounded and 0 < tally.starvation <= 1


@pytest.mark.long
@pytest.mark.feature("F9")
@pytest.mark.feature("D8")
@pytest.mark.parametrize("seed", [1_000_078, 1_000_175])
def test_machines_whose_prompts_once_took_turns_for_ever(seed: int) -> None:
    one_machine(seed, 1000, Tally())
