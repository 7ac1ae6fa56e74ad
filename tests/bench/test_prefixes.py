"""The curve of ``bench prefixes``: throughput and latency against the share of a prompt that was seen before."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.common import Report
from bench.engine import prefixes
from prelude import Engine, EngineConfig
from tests.checkpoints import make_checkpoint


@pytest.mark.feature("B11")
def test_the_curve_has_throughput_and_latency_of_every_share(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On a small random model."""
    made: list[Engine] = []
    computed: list[list[int]] = []
    path = make_checkpoint(tmp_path / "model")

    def kept(**limits: Any) -> Engine:
        made.append(Engine.from_pretrained(path, config=EngineConfig().changed(kv_bytes=1 << 22, **limits)))
        return made[-1]

    class Watched(Report):
        def add(self, load: str, measure: str, *rest: Any, **more: Any) -> None:
            super().add(load, measure, *rest, **more)
            if measure == "one request alone":
                computed.append([engine.stats()["prefill_tokens"] for engine in made])

    monkeypatch.setattr(prefixes, "engine_with", kept)
    report = Watched("reuse")
    prefixes.reuse(report, 1, count=4, length=64)
    rows = {(row.load, row.measure): row for row in report.rows}
    shares = (0, 25, 50, 75, 90, 95)
    for share in shares:
        for measure, unit in (("requests", "1/s"), ("against sharing off", "x"), ("one request alone", "ms")):
            row = rows[f"{share} % reuse", measure]
            assert row.unit == unit and 0 < row.low <= row.value <= row.high
    on, off = zip(*computed)
    spent = np.diff((0, *on)).tolist()
    assert spent == sorted(spent, reverse=True) and spent[-1] < spent[0] / 2, "more reuse, less to compute"
    assert len({b - a for a, b in pairwise(off)}) == 1, "without sharing every share costs the same"
