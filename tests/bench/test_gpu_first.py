"""``bench gpu_first`` over stages that run here: the results of the other stages are kept, also where one stage
fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from bench.gpu import first
from bench.gpu.table import ROWS

ROOT = Path(__file__).resolve().parents[2]
FAKE = """
import json, os, signal, subprocess, sys, time
name, results = sys.argv[1], sys.argv[3]
def tell(key, **values):
    with open(results, "a") as file:
        file.write(json.dumps({"stage": name, "key": key, **values}) + "\\n")
kind = json.loads(os.environ["FAULTS"]).get(name)
os.makedirs(os.path.join(os.environ["PRELUDE_CACHE"], "cuda"), exist_ok=True)
open(os.path.join(os.environ["PRELUDE_CACHE"], "cuda", "matmuls-one.json"), "a").write(name + " ")
print("output of", name)
if kind != "silent":
    attention = {"keys": "key lists", None: "FlashInfer"}[os.environ.get("PRELUDE_ATTENTION")]
    tell(name + ".ms", values=[2.0, 1.0, 3.0], value=2.0, unit="ms", attention=attention)
if kind == "raise": raise RuntimeError("a fault")
if kind == "segv": os.kill(os.getpid(), signal.SIGSEGV)
if kind == "torn":
    open(results, "a").write('{"stage": "to'); os._exit(1)
if kind == "child":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    tell("child", value=child.pid)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
"""
NAMES = ("versions", "flashinfer", "correctness", "oneshot", "decode")


def run(tmp_path: Path, faults: dict[str, str], monkeypatch: pytest.MonkeyPatch, **options: Any) -> first.FirstRun:
    (tmp_path / "fake.py").write_text(FAKE, encoding="utf-8")
    monkeypatch.setenv("FAULTS", json.dumps(faults))
    out, runner = tmp_path / options.get("out", "out"), [sys.executable, str(tmp_path / "fake.py")]
    made = first.FirstRun(out, options.get("seconds", 600.0), runner)
    done = made.take(options["earlier"]) if "earlier" in options else ()
    made.run([name for name in NAMES if name not in done])
    return made


@pytest.mark.parametrize(
    ("kind", "how"), [("raise", "failed"), ("segv", "lost"), ("torn", "failed"), ("silent", "failed")]
)
def test_a_fault_costs_no_other_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, how: str) -> None:
    """A stage that ends well without a result has failed: another call does not leave it out."""
    at = "oneshot"
    made = run(tmp_path, {at: kind}, monkeypatch)
    assert [end.how for end in made.ends] == [how if name == at else "done" for name in NAMES]
    found = first.read_results(made.results)
    assert {line["stage"] for line in found if line["key"].endswith(".ms")} >= set(NAMES) - {at}
    assert [line["stage"] for line in found if line["key"] == "end"] == list(NAMES), "a torn line costs no other"
    assert "output of decode" in (made.out / "log.txt").read_text("utf-8")
    assert not made.cache.exists()


def ends(process: int) -> bool:
    """Whether a process that was killed is gone before long, or waits for its parent's look at it."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{process}/stat").read_text("utf-8").rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def test_a_second_call_goes_on_from_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = run(tmp_path, {"oneshot": "segv"}, monkeypatch)
    with tarfile.open(earlier.out / "cache.tgz") as packed:
        assert packed.getnames() == ["matmuls-one.json"]
    made = run(tmp_path, {}, monkeypatch, out="second", earlier=earlier.out)
    assert [end.stage for end in made.ends] == ["oneshot"]
    with tarfile.open(made.out / "cache.tgz") as packed:
        kept = packed.extractfile("matmuls-one.json")
        assert kept is not None and kept.read() == b"versions flashinfer correctness oneshot decode oneshot "
    assert first.ended_well(first.read_results(made.results)) == set(NAMES)


def main_over_fakes(tmp_path: Path, faults: dict[str, str], *options: str) -> subprocess.Popen[str]:
    (tmp_path / "fake_stages.py").write_text(FAKE, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "FAULTS": json.dumps(faults), "PYTHONPATH": path}
    command = [sys.executable, "-m", "bench", "gpu_first", "--out", str(tmp_path / "out")]
    more = ["--runner", "fake_stages", "--seconds", "6000", *options]
    return subprocess.Popen([*command, *more], stdout=subprocess.PIPE, text=True, cwd=ROOT, env=env)


def test_a_call_that_is_ended_ends_its_stage(tmp_path: Path) -> None:
    with main_over_fakes(tmp_path, {"oneshot": "child"}, "--only", "oneshot", "--limits", "0.1") as process:
        results = tmp_path / "out" / "results.jsonl"
        end = time.monotonic() + 120
        while not any(line["key"] == "child" for line in first.read_results(results)):
            assert time.monotonic() < end
            time.sleep(0.1)
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    [child] = [line["value"] for line in first.read_results(results) if line["key"] == "child"]
    assert ends(child)


def test_a_wheel_of_other_sources_does_not_run(tmp_path: Path) -> None:
    """A hash of the names and bytes of native sources stands in the pack, and the commit."""
    base = [sys.executable, "-m", "bench", "gpu_first"]
    said = subprocess.run([*base, "--print-sources"], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert said.strip() == first.sources_hash() and first.sources_hash(tmp_path) != first.sources_hash()
    (tmp_path / "_native").mkdir()
    before = first.sources_hash(tmp_path)
    (tmp_path / "_native" / "one.hpp").write_text("int x;\n", encoding="utf-8")
    assert first.sources_hash(tmp_path) != before
    wrong = {"--sources": "other native sources"} | ({"--commit": "is at"} if first.commit_here() else {})
    for option, error in wrong.items():
        done = subprocess.run([*base, option, "0" * 40], capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 2 and error in done.stderr


def test_the_real_stages_over_a_simulated_device(tmp_path: Path) -> None:
    """Stages as they run on a GPU, over a small model; one of them is broken by a wrong number."""
    stages = "versions,oneshot,deterministic,decode"
    command = [sys.executable, "-m", "bench", "gpu_first", "--out", str(tmp_path), "--only", stages]
    more = ["--runner", "tests.cuda.dry_run", "--repeats", "1", "--limits", "10", "--seconds", "6000"]
    environment = {**os.environ, "PRELUDE_DRY_FAULT": "decode"}
    done = subprocess.run([*command, *more], capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 1, done.stderr
    found = first.read_results(tmp_path / "results.jsonl")
    ends = {line["stage"]: line["how"] for line in found if line["key"] == "end"}
    assert ends == {"versions": "done", "oneshot": "done", "deterministic": "done", "decode": "failed"}
    keys = {line["key"] for line in found}
    assert {"version.torch", ROWS[0][1], ROWS[2][1], ROWS[4][1]} <= keys
    assert any("an error of 9" in str(line.get("error")) for line in found)
