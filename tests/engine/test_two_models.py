"""Engines of two models in one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from prelude import Embed, Engine
from tests.checkpoints import make_checkpoint

Make = Callable[..., Engine]


@pytest.mark.fault(65)
def test_equal_ids_of_two_models_never_meet_in_a_cache(tmp_path: Path, make_engine: Make) -> None:
    """The same tokens, one after the other through either: each engine computes them once, and has its own answer."""
    first, second = make_engine(), make_engine(make_checkpoint(tmp_path / "other", family="llama"))
    task = Embed([7 + i % 50 for i in range(64)], pooling="last")
    cold = [engine.run(task) for engine in (first, second)]
    warm = [engine.run(task) for engine in (first, second)]
    assert [one.stats.cached_tokens for one in cold] == [0, 0]
    assert all(one.stats.cached_tokens > 0 for one in warm)
    assert np.abs(cold[0] - cold[1]).max() > 1e-3
    for one, other in zip(cold, warm):
        assert np.asarray(other) == pytest.approx(np.asarray(one), abs=1e-5)
    assert first._core.pool is not second._core.pool
