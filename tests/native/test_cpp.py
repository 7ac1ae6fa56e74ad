"""The C++ tests of the scheduling core, built and run under sanitizers by the command of docs/NATIVE.md."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("bash", "cmake", "ctest", "c++"))), reason="bash, cmake and a C++ compiler are needed"
)


def run_cpp(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(ROOT / "tests" / "native" / "run_cpp.sh"), *words]
    return subprocess.run(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.long
@pytest.mark.timeout(1800)  # building takes a minute of processor time, on a busy machine several of the clock's
def test_the_core_passes_under_sanitizers() -> None:
    done = run_cpp()
    assert done.returncode == 0, done.stdout[-8000:]
    sources = (ROOT / "_native" / "tests").glob("test_*.cpp")
    names = {source.stem for source in sources if not source.stem.startswith("test_cpu_")}
    assert all(f"{name} " in done.stdout for name in names)
    # Newer versions of ctest leave out the tests that failed where none did.
    assert re.search(rf"100% tests passed(, 0 tests failed)? out of {len(names)}\b", done.stdout)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.skipif(
    not all(map(shutil.which, ("qemu-aarch64-static", "aarch64-linux-gnu-g++"))),
    reason="qemu-aarch64-static and aarch64-linux-gnu-g++ are needed",
)
def test_the_kernels_of_arm_run_under_qemu() -> None:
    done = run_cpp("aarch64")
    assert done.returncode == 0, done.stdout[-8000:]
    assert "test_cpu_kernels " in done.stdout
    assert done.stdout.count("test_cpu_packed ") >= 2, "with the instruction for dot products and without it"


def test_a_failed_build_shows_its_output(tmp_path: Path) -> None:
    done = run_cpp(BUILD_DIR=str(tmp_path), CXX="/bin/false")
    assert done.returncode == 1
    assert "is not able to compile a simple test program" in done.stdout and "build of" in done.stdout
    assert (tmp_path / "cpp-address-undefined" / "output.txt").read_text(encoding="utf-8") in done.stdout
