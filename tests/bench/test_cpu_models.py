"""The ways in which peers are fed, the choice of the fastest one, and what a run over real shapes compares."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from bench.common import Report
from bench.engine.cpu_models import Run, fastest
from bench.engine.peers import fed

TEXTS = [[3] * count for count in (5, 1, 9, 2, 7)]


def run(options: dict[str, object] | None = None) -> Run:
    made = object.__new__(Run)
    made.report = Report("title", "command")
    made.options = argparse.Namespace(threads=2, rounds=2, loads=None, sides=None, **(options or {}))
    made.rates = {"vfmadd231ps": 100.0, "vpdpbusd": 400.0, "memory": 10.0}
    return made


def test_every_way_of_feeding_gives_a_row_a_text_in_their_order() -> None:
    batches: list[list[int]] = []

    def lengths(texts: list[list[int]]) -> np.ndarray:
        batches.append([len(ids) for ids in texts])
        return np.array([[len(ids)] for ids in texts])

    ways = fed({"graph": lengths}, len(TEXTS))
    assert list(ways) == ["graph, one by one", "graph, sorted fours", "graph, all at once"]
    for way in ways.values():
        assert way(TEXTS).tolist() == [[5], [1], [9], [2], [7]]
    assert batches == [[9], [7], [5], [2], [1], [9, 7, 5, 2], [1], [9, 7, 5, 2, 1]]
    assert list(fed({"graph": lengths}, 1)) == ["graph, alone"]


def test_the_fastest_way_meets_ours_and_the_row_names_it(tmp_path: Path) -> None:
    ways = {"slow": lambda: time.sleep(0.05), "quick": lambda: None}
    assert fastest(ways) == "quick"
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["BertModel"]}), encoding="utf-8")
    from safetensors.numpy import save_file

    save_file({"layer.0.weight": np.ones((8, 4), np.float32)}, tmp_path / "model.safetensors")

    def vectors(texts: list[list[int]]) -> np.ndarray:
        return np.ones((len(texts), 1))

    def late(texts: list[list[int]]) -> np.ndarray:
        time.sleep(0.05)
        return vectors(texts)

    measured = run()
    ours = {"prelude float32": vectors}
    peers = {"transformers": {"eager attention": late, "sdpa attention": vectors}}
    measured.measure("MiniLM-L6", "one text of 16 tokens", tmp_path, [16], 1, ours, peers)
    [found] = [row for row in measured.report.rows if row.measure == "transformers / prelude float32"]
    assert found.note == "sdpa attention, alone"
    floor = {row.measure: row.value for row in measured.report.rows if "prelude float32: floor" in row.measure}
    assert floor["prelude float32: floor by arithmetic"] == pytest.approx(1e-6 * 2 * 32 * 16 / 200)
    assert floor["prelude float32: floor by memory"] == pytest.approx(1e-6 * 32 * 4 / 10)


def test_no_time_is_reported_beside_other_answers(tmp_path: Path) -> None:
    def wrong(texts: list[list[int]]) -> np.ndarray:
        return np.zeros((len(texts), 1))

    ours = {"prelude float32": lambda texts: np.ones((len(texts), 1))}
    with pytest.raises(SystemExit, match=r"ONNX Runtime differs from prelude float32 by 1\.0; no time is reported"):
        run().measure("MiniLM-L6", "load", tmp_path, [4], 1, ours, {"ONNX Runtime": {"graph": wrong}})
