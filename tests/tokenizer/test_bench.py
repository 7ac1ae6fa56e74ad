"""The bench compares before it times, and stops at a planted difference."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.tokenizer import inputs

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


REFERENCE = {
    "tiny": 5,
    "short_english": 51,
    "short_chinese": 90,
    "medium_prose": 674,
    "code_snippet": 470,
    "mixed_multilingual": 641,
    "long_repeat": 2_025,
    "long_unique": 4_000,
    "very_long": 8_000,
    "chat_template": 212,
    "long_32K": 32_000,
    "long_64K": 64_000,
    "long_200K": 200_000,
    "long_code_16K": 16_000,
    "multi_turn_chat_8K": 21_370,
    "multi_turn_chat_32K": 85_480,
    "long_chinese_32K": 31_998,
}


@pytest.mark.feature("K1")
def test_the_reference_inputs_have_the_published_names_and_lengths() -> None:
    found = {name: len(text) for name, text in inputs(quick=False).items()}
    assert {name: found.get(name) for name in REFERENCE} == REFERENCE


@pytest.mark.feature("K4")
def test_some_inputs_leave_a_cache_nothing_to_remember() -> None:
    texts = inputs(quick=False)
    for name in ("long_unique", "long_200K_unique"):
        words = texts[name].split()
        assert len(set(words)) > 0.9 * len(words), name
    pieces = [texts["random_4K"][at : at + 6] for at in range(0, 4_000, 6)]
    assert len(set(pieces)) > 0.98 * len(pieces)


@pytest.mark.slow
@pytest.mark.feature("J6")
def test_among_peers_a_fault_of_ours_leaves_no_figures(tokenizer_file: str) -> None:
    command = [sys.executable, "-m", "bench.tokenizer_peers", "--tokenizer", tokenizer_file, "--quick"]
    command += ["--text", str(ROOT / "README.md")]

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *more], cwd=ROOT, capture_output=True, text=True, timeout=110)

    done = run("--plant-fault", "prelude")
    assert done.returncode == 1
    assert "no figures" in done.stderr and not done.stdout
    done = run()
    assert done.returncode == 0, done.stderr
    assert "geometric mean" in done.stdout and "never seen: README.md" in done.stdout


@pytest.mark.slow
@pytest.mark.feature("K2")
@pytest.mark.feature("K3")
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
@pytest.mark.timeout(300)
def test_the_core_is_timed_without_python_after_it_was_compared(tokenizer_file: str, tmp_path: Path) -> None:
    pytest.importorskip("pybind11", reason="the driver is built with pybind11")
    command = [sys.executable, "-m", "bench.tokenizer_native", "--tokenizer", tokenizer_file, "--quick"]
    command += ["--threads", "2", "--json", str(tmp_path / "table.json"), "--flags=-O0"]

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *more], cwd=ROOT, capture_output=True, text=True, timeout=140)

    done = run("--plant-fault")
    assert done.returncode == 1 and "nothing is timed" in done.stderr, done.stderr
    assert not (tmp_path / "table.json").exists()
    done = run()
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    of_one = {row["measure"]: row["value"] for row in rows if row["load"].startswith("medium_prose")}
    assert set(of_one) == {"one thread", "python", "boundary", "2 threads"}
    assert of_one["one thread"] > 0 and of_one["2 threads"] > 0
