"""The overlap bench: that it runs the engine it says it does, on and off."""

from __future__ import annotations

import pytest

from bench.common import Report
from bench.engine import overlap


@pytest.mark.feature("H14")
def test_the_device_that_takes_no_cpu_runs_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[bool, overlap.Elsewhere]] = []
    make_core = overlap.make_core

    def noted(kind: type, executor: overlap.Elsewhere, config: overlap.EngineConfig) -> object:
        made.append((bool(config.overlap), executor))
        return make_core(kind, executor, config)

    monkeypatch.setattr(overlap, "make_core", noted)
    report = Report("", "")
    overlap.elsewhere(report, 0.0, repeats=1, count=3)
    assert [row.measure for row in report.rows] == ["a step, off", "a step, on"]
    assert [on for on, _ in made] == [False, True]
    assert [executor.steps for _, executor in made] == [2 * overlap.TOKENS] * 2, "a warm-up and one repeat"
    assert all(row.value > 0 for row in report.rows)
