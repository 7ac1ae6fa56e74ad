"""The kept instruction counts belong to the operations there are, and the command counts the operations that it
names."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from bench.host import instructions

needs_tools = pytest.mark.skipif(
    not all(map(shutil.which, ("cmake", "valgrind", "c++"))), reason="cmake, valgrind and a C++ compiler are needed"
)


def test_a_dearer_operation_is_told() -> None:
    line, more = instructions.compare("insert 4096", instructions.Count(110.0, None), {"insert 4096": 100.0})
    assert more == pytest.approx(10) and "+10.00 %" in line
    assert instructions.compare("other", instructions.Count(110.0, None), {})[1] == 0


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the driver was built: building takes most of these tests' time."""
    folder = tmp_path_factory.mktemp("build")
    instructions.build(folder)
    return folder


@pytest.mark.long
@needs_tools
def test_counts_are_steady_and_the_kept_ones_are_of_these_operations(built: Path) -> None:
    driver, _ = instructions.build(built)
    listed = subprocess.run([driver, "--list"], check=True, capture_output=True, text=True).stdout.split()
    kept = json.loads(instructions.KEPT.read_text(encoding="utf-8"))["instructions"]
    assert set(kept) == {f"{name} {blocks}" for name in listed for blocks in instructions.POOLS}
    first, second = (instructions.count(driver, "allocate_evict_free", 4096, cache=False) for _ in range(2))
    assert first == second and first.instructions > 32
