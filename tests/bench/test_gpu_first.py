"""``bench gpu_first`` over stages that run here: the results of the other stages are kept, also where one stage
fails."""

from __future__ import annotations

import contextlib
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
from prelude.tokenizer import Tokenizer

from bench.gpu import first, stages
from bench.gpu.clients import texts_of
from bench.gpu.table import ROWS, table
from prelude import default_model

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


def test_stages_that_are_named_run_again(tmp_path: Path) -> None:
    for only in (["--only", "versions,oneshot"], ["--only", "oneshot"]):
        with main_over_fakes(tmp_path, {}, *only) as process:
            said, _ = process.communicate()
        assert process.returncode == 0 and "oneshot.ms" in said
    found = first.read_results(tmp_path / "out" / "results.jsonl")
    assert [line["stage"] for line in found if line["key"] == "end"] == ["versions", "oneshot", "oneshot"]
    figures = json.loads((tmp_path / "out" / "figures.json").read_text("utf-8"))
    assert figures["facts"].get("commit", "") == first.commit_here() and "bench gpu_first" in figures["command"]
    [row] = [row for row in figures["rows"] if (row["load"], row["measure"]) == ("oneshot", "ms")]
    assert (row["value"], row["low"], row["high"], row["unit"]) == (2.0, 1.0, 3.0, "ms")


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


def test_the_table_has_its_rows_first_and_says_what_was_not_shown() -> None:
    """What fails of one model or path marks the figures of that one alone."""

    def figure(stage: str, key: str, **more: Any) -> dict[str, Any]:
        return {"stage": stage, "key": key, "value": 1.5, "values": [1.0, 2.0], "unit": "ms", **more}

    shown = {"eager": True, "captured": True, "deterministic": False, "06b": True}
    lines: list[dict[str, Any]] = [
        {"stage": "versions", "key": "device.name", "value": "NVIDIA H100 80GB HBM3"},
        {"stage": "oneshot", "key": "attention", "value": "PRELUDE_ATTENTION=keys"},
        *(figure("correctness", f"correctness_{name}.worst", ok=ok) for name, ok in shown.items()),
        *(figure("load", key, floor=0.4) for _, key in ROWS if not key.startswith("questions")),
        {"stage": "tests", "key": "tests.one", "ok": False},
        {"stage": "tests", "key": "tests.one", "ok": True},  # of a later call
    ]
    text = table(lines).splitlines()
    assert text[0] == "NVIDIA H100 80GB HBM3, PRELUDE_ATTENTION=keys in oneshot"
    assert text[4] == f"| {ROWS[0][0]} | 1.5 | 1 to 2 | ms | 0.4 |  |  |"
    marks = {name: " (correctness not shown)" if name.startswith("deterministic") else "" for name, _ in ROWS}
    cells = [line.split(" | ")[0] for line in text[4:10]]
    assert cells == [f"| {name}{marks[name]}" for name, _ in ROWS] and "not measured" in text[7]
    lines[5]["ok"] = None  # the 0.6B model: its figures alone are marked
    marked = [line.split(" | ")[0] for line in table(lines).splitlines()[4:10] if "not shown" in line]
    assert marked == [f"| {ROWS[i][0]} (correctness not shown)" for i in (0, 2, 4, 5)]
    assert "4 checks passed, 1 failed" in "\n".join(text)


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


@pytest.mark.parametrize(("found", "right"), [("0 errors", True), ("3 errors", False), (None, False)])
def test_a_tool_that_ends_without_a_verdict_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: str | None, right: bool
) -> None:
    tool = tmp_path / "compute-sanitizer"
    said = f"echo SUMMARY: {found}" if found else "exit 1"
    tool.write_text(f"#!/bin/sh\n{said}\n", encoding="utf-8")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    stage = stages.Stage("sanitize", tmp_path / "results.jsonl")
    with contextlib.nullcontext() if right else pytest.raises(RuntimeError, match="memcheck, racecheck, synccheck"):
        stages.sanitize(stage)
    assert [line["ok"] for line in first.read_results(stage.results)] == [right] * 3


def test_a_test_without_a_verdict_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One passes, one is skipped, one ends the process."""
    path = tmp_path / "test_some.py"
    path.write_text(
        "import os, pytest\ndef test_a(): pass\ndef test_b(): pytest.skip()\ndef test_c(): os._exit(3)\n"
        "def test_d(): pass\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(stages, "GPU_TESTS", str(path))
    monkeypatch.setattr(stages, "TEST_MARK", "not gpu")
    stage = stages.Stage("tests", tmp_path / "results.jsonl")
    with pytest.raises(RuntimeError, match="0 tests failed, 2 of 4 have no verdict"):
        stages.tests(stage)
    told = {line["key"]: line.get("ok") for line in first.read_results(stage.results)}
    assert told.pop("tests.collected") is None
    assert told == {"tests.test_a": True, "tests.test_b": None, "tests.test_c": False, "tests.test_d": False}


def test_a_stage_that_hangs_is_ended_and_leaves_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import time\nfrom bench.gpu import stages\ndef waits_for_ever(stage): time.sleep(600)\n"
    code += "stages.STAGES.update(versions=waits_for_ever, decode=lambda stage: stage.tell('one'))\n"
    code += "print('begun', flush=True)\nstages.main()"
    runner, text = [sys.executable, "-c", code], ""
    for limit in (5.0, 20.0, 60.0):  # on a busy machine it takes a while to begin
        monkeypatch.setattr(first, "LIMITS", {"versions": limit, "decode": 90.0})
        made = first.FirstRun(tmp_path / f"{limit}", 600.0, runner)
        made.run(["versions", "decode"])
        text = (made.out / "log.txt").read_text("utf-8")
        if "begun" in text:
            break
    assert [end.how for end in made.ends] == ["out of time", "done"] and "waits_for_ever" in text


@pytest.mark.parametrize("tokens", [12, 33, 128, 512])
def test_prompts_have_exactly_the_tokens_that_the_load_names(tokens: int) -> None:
    tokenizer = Tokenizer.from_file(str(default_model.path() / "tokenizer.json"))
    texts = texts_of(tokenizer, tokens, 20)
    assert {len(tokenizer.encode(text).ids) for text in texts} == {tokens} and len(set(texts)) == 20


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
