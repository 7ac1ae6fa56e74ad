"""The bench compares before it times, and stops at a planted difference."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACES = ["encode", "encode without special tokens", "decode", "stream"]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.tokenizer", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)


@pytest.fixture
def tokenizer_file(json_of: Any, tmp_path: Path) -> str:
    (tmp_path / "tokenizer.json").write_text(json_of("template"), encoding="utf-8")
    return str(tmp_path / "tokenizer.json")


@pytest.mark.slow
@pytest.mark.feature("J6")
@pytest.mark.parametrize("place", PLACES)
def test_a_planted_fault_stops_it(tokenizer_file: str, place: str) -> None:
    done = bench("--tokenizer", tokenizer_file, "--quick", "--plant-fault", place)
    assert done.returncode == 1
    assert "nothing is timed" in done.stderr and place in done.stderr
    assert not done.stdout


@pytest.mark.slow
@pytest.mark.feature("J6")
@pytest.mark.feature("J9")
@pytest.mark.feature("K3")
def test_without_a_fault_it_says_equal_and_gives_a_table(tokenizer_file: str, tmp_path: Path) -> None:
    done = bench("--tokenizer", tokenizer_file, "--quick", "--json", str(tmp_path / "table.json"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("equal to HF")
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    measures = {(row["load"].split(" (")[0], row["measure"]) for row in rows}
    assert {("tiny", "encode to a list"), ("the file", "load"), ("empty text", "encode to a list")} <= measures
    assert {("long_unique", "decode"), ("random_4K", "encode to an array")} <= measures
