"""``bench gpu_first`` over stages that run here: the results of the other stages are kept, also where one stage
fails."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prelude.cuda import driver
from prelude.tokenizer import Tokenizer

from bench.gpu import clients, first, stages
from bench.gpu.clients import texts_of
from bench.gpu.table import OWN, ROWS, table
from prelude import default_model
from tests.cuda import dry_faults

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
if kind in ("hang", "child"):
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
    made = first.FirstRun(
        tmp_path / options.pop("out", "out"),
        options.pop("seconds", 600.0),
        [sys.executable, str(tmp_path / "fake.py")],
        limits=options.pop("limits", 1.0),
    )
    if "earlier" in options:
        done = made.take(options.pop("earlier"))
        made.run([name for name in NAMES if name not in done])
    else:
        made.run(NAMES)
    return made


def run_limited(tmp_path: Path, at: str, kind: str, said: str, monkeypatch: pytest.MonkeyPatch) -> first.FirstRun:
    """A run whose stage ``at`` does not end and is ended, after it has said ``said``: on a busy machine it takes a
    while to begin."""
    monkeypatch.setattr(first, "GRACE", 0.2)
    for limit in (2.0, 10.0, 50.0):
        monkeypatch.setattr(first, "LIMITS", {**first.LIMITS, at: limit})
        made = run(tmp_path, {at: kind}, monkeypatch, out=f"within {limit}")
        if any(said in file.read_text("utf-8") for file in (made.out / "log.txt", made.results)):
            break
    return made


@pytest.mark.parametrize(
    ("kind", "how"),
    [("raise", "failed"), ("segv", "lost"), ("torn", "failed"), ("hang", "out of time"), ("silent", "done")],
)
@pytest.mark.parametrize("at", NAMES)
def test_one_stage_s_fault_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, how: str, at: str
) -> None:
    made = (
        run_limited(tmp_path, at, kind, f"output of {at}", monkeypatch)
        if kind == "hang"
        else run(tmp_path, {at: kind}, monkeypatch)
    )
    assert [end.how for end in made.ends] == [how if name == at else "done" for name in NAMES]
    found = first.read_results(made.results)
    told = {line["stage"] for line in found if line["key"].endswith(".ms")}
    assert told >= set(NAMES) - {at}
    assert [line["stage"] for line in found if line["key"] == "end"] == list(NAMES), "a torn line costs no other"
    text = (made.out / "table.md").read_text("utf-8")
    assert ("correctness not shown" in text) == (at == "correctness" and how != "done")
    assert ("| decode.ms (attention by key lists)" in text) == (at == "flashinfer" and how != "done")
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


def test_a_stage_ends_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = run_limited(tmp_path, "oneshot", "child", '"key": "child"', monkeypatch)
    [child] = [line["value"] for line in first.read_results(made.results) if line["key"] == "child"]
    assert ends(child), "a child of the stage goes on"


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
    assert "correctness not shown" not in (made.out / "table.md").read_text("utf-8")


def test_results_of_another_gpu_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = first.FirstRun(tmp_path / "earlier", 1.0, [])
    earlier.gpu = "H100"
    earlier.run([])
    earlier._tell(first.End("oneshot", "done"))
    for gpu, taken in (("H100", {"oneshot"}), (None, {"oneshot"}), ("H200", set())):
        later = first.FirstRun(tmp_path / f"on {gpu}", 1.0, [])
        later.gpu = gpu
        assert later.take(earlier.out) == taken
        assert later.results.exists() == bool(taken)


def main_over_fakes(tmp_path: Path, faults: dict[str, str], *options: str) -> subprocess.Popen[str]:
    (tmp_path / "fake_stages.py").write_text(FAKE, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "FAULTS": json.dumps(faults), "PYTHONPATH": path}
    command = [sys.executable, "-m", "bench", "gpu_first", "--out", str(tmp_path / "out")]
    more = ["--runner", "fake_stages", "--seconds", "6000", *options]
    return subprocess.Popen([*command, *more], stdout=subprocess.PIPE, text=True, cwd=ROOT, env=env)


def test_stages_that_are_named_run_again(tmp_path: Path) -> None:
    for only in (["--only", "versions,oneshot"], ["--only", "oneshot"]):
        with main_over_fakes(tmp_path, {}, *only, "--commit", "abc") as process:
            said, _ = process.communicate()
        assert process.returncode == 0 and "oneshot.ms" in said
    found = first.read_results(tmp_path / "out" / "results.jsonl")
    assert [line["stage"] for line in found if line["key"] == "end"] == ["versions", "oneshot", "oneshot"]
    figures = json.loads((tmp_path / "out" / "figures.json").read_text("utf-8"))
    assert figures["facts"]["commit"] == "abc" and "bench gpu_first" in figures["command"]
    assert {
        "measure": "oneshot.ms",
        "value": 2.0,
        "low": 1.0,
        "high": 3.0,
        "unit": "ms",
        "attention": "FlashInfer",
    } in figures["rows"]


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


@pytest.mark.skipif(sys.platform != "linux", reason="Linux ends a process with its parent")
def test_a_stage_ends_with_a_call_that_is_killed() -> None:
    stage = """
import time
from bench.gpu import stages
stages.end_with_the_parent()
print("begun", flush=True)
time.sleep(600)"""
    parent = f"""
import subprocess, sys
process = subprocess.Popen([sys.executable, "-c", {stage!r}])
print(process.pid, flush=True)
process.wait()"""
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert process.stdout.readline() == "begun\n"
        process.kill()
        process.stdout.read()  # its end comes when the stage has ended too
    assert ends(pid)


def test_a_stage_for_own_kernels_is_not_done_where_none_passed(tmp_path: Path) -> None:
    """Another call would leave it out."""
    with pytest.raises(LookupError, match="left out"):
        stages.part(stages.Stage(f"oneshot{OWN}", tmp_path / "none.jsonl"), f"oneshot{OWN}")


def test_a_stage_begins_only_with_time_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = run(tmp_path, {}, monkeypatch, seconds=-1.0)
    assert [end.how for end in made.ends] == ["not begun"] * len(NAMES)
    assert [line["stage"] for line in first.read_results(made.results) if line["key"] == "end"] == list(NAMES)


def test_correctness_and_the_table_come_before_all_that_may_hang() -> None:
    order = list(first.LIMITS)
    rows = ["oneshot", "throughput", "decode", "questions", "deterministic", "ready"]
    assert order[:10] == ["versions", "flashinfer", "correctness", *rows, "own_trial"]
    assert order[10:13] == [f"{name}{OWN}" for name in ("correctness", "oneshot", "decode")]
    assert sum(first.LIMITS[name] for name in order[:13]) <= 3 * 540, "what 30 minutes of a device have room for"
    assert set(stages.STAGES) == set(order)


def test_a_stage_is_begun_only_where_half_of_its_limit_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first, "LIMITS", {**first.LIMITS, "oneshot": 2000.0})
    made = run(tmp_path, {}, monkeypatch, seconds=900.0)
    assert {end.stage: end.how for end in made.ends} == {
        "versions": "done", "flashinfer": "done", "correctness": "done", "oneshot": "not begun", "decode": "done"
    }  # fmt: skip


def test_the_time_before_the_first_stage_counts_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[float] = []

    class Run(first.FirstRun):
        def run(self, stages: Sequence[str]) -> None:
            made.append(self.until - time.monotonic())
            (self.out / "table.md").write_text("", encoding="utf-8")

    monkeypatch.setattr(first, "FirstRun", Run)
    monkeypatch.setattr(sys, "argv", ["gpu_first", "--out", str(tmp_path), "--began", str(time.time() - 100)])
    first.main()
    assert 300 < made[0] <= 420


def test_the_table_has_its_rows_first_and_says_what_was_not_shown() -> None:
    def figure(stage: str, key: str, **more: Any) -> dict[str, Any]:
        return {"stage": stage, "key": key, "value": 1.5, "values": [1.0, 2.0], "unit": "ms", **more}

    key = ROWS[0][1]
    lines: list[dict[str, Any]] = [
        {"stage": "versions", "key": "device.name", "value": "NVIDIA H100 80GB HBM3"},
        {"stage": "oneshot", "key": "attention", "value": "PRELUDE_ATTENTION=keys"},
        {"stage": "correctness", "key": "end", "how": "out of time"},
        {"stage": "correctness", "key": "end", "how": "done"},  # of a later call
        figure("oneshot", key.format(""), floor=0.4),
        figure(f"oneshot{OWN}", key.format(OWN)),
        {"stage": "tests", "key": "tests.one", "ok": False, "alone": False},
        {"stage": "tests", "key": "tests.one", "ok": True, "alone": True},
    ]
    text = table(lines).splitlines()
    assert text[0] == "NVIDIA H100 80GB HBM3, PRELUDE_ATTENTION=keys in oneshot"
    assert text[4] == f"| {ROWS[0][0]} | 1.5 | 1 to 2 | ms | 0.4 |  |  |"
    assert text[5].startswith(f"| {ROWS[0][0]}, own kernels (correctness not shown) | 1.5 |")
    assert text[6] == f"| {ROWS[1][0]} | not measured | | | | | |"
    assert "1 checks passed, 0 failed" in text, "a test that failed in company only has passed"


@pytest.mark.skipif(not driver.missing(), reason="there is a GPU here")
def test_the_stage_of_tests_reads_the_name_and_the_end_of_each(tmp_path: Path) -> None:
    """Without a GPU every one of them is skipped, which the stage has to see."""
    stages.tests(stages.Stage("tests", tmp_path / "results.jsonl"))
    lines = first.read_results(tmp_path / "results.jsonl")
    assert lines[0]["key"] == "tests.collected" and lines[0]["value"] == len(lines) - 1 > 10
    assert all(line["ok"] is None and "error" not in line for line in lines[1:]), lines


def test_a_stage_that_hangs_leaves_its_place_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import time\nfrom bench.gpu import stages\ndef waits_for_ever(stage): time.sleep(600)\n"
    code += "stages.STAGES['versions'] = waits_for_ever\nprint('begun', flush=True)\nstages.main()"
    runner, text = [sys.executable, "-c", code], ""
    for limit in (5.0, 20.0, 60.0):  # on a busy machine it takes a while to begin
        monkeypatch.setattr(first, "LIMITS", {"versions": limit})
        made = first.FirstRun(tmp_path / f"{limit}", 600.0, runner)
        made.run(["versions"])
        text = (made.out / "log.txt").read_text("utf-8")
        if "begun" in text:
            break
    assert [end.how for end in made.ends] == ["out of time"] and "waits_for_ever" in text


def test_a_stage_ends_well_whatever_libraries_do_when_they_are_unloaded() -> None:
    code = "import atexit, os, threading, time\nfrom bench.gpu import stages\natexit.register(os.abort)\n"
    code += "threading.Thread(target=time.sleep, args=(600,)).start()\nprint('said')\nstages.leave(0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert (done.returncode, done.stdout) == (0, "said\n")


def test_single_operations_are_timed_while_the_device_is_at_work() -> None:
    """The graph that is timed is enqueued while another one runs: an idle device would show the host's time."""
    said: list[str] = []

    class Mark:
        def __init__(self) -> None:
            said.append("mark")

        def wait(self) -> None:
            said.append("wait")

        def seconds_since(self, earlier: Any) -> float:
            return 2e-5

    graph = SimpleNamespace(launch=lambda: said.append("launch"), close=lambda: said.append("close"))
    device = SimpleNamespace(scope=contextlib.nullcontext, capture=lambda work: graph, mark=Mark)
    assert stages.timed_in_graph(device, lambda i: None, 2) == pytest.approx([1.0, 1.0])
    assert said == [*["launch", "mark", "launch", "mark", "wait"] * 2, "close"]


def test_rounds_are_measured_when_no_shape_is_recorded_any_more() -> None:
    graphs, seen = SimpleNamespace(captures=0), list[int]()
    engine: Any = SimpleNamespace(
        engine=SimpleNamespace(core=SimpleNamespace(executor=SimpleNamespace(graphs=graphs)))
    )

    async def one(number: int) -> None:
        seen.append(number)
        graphs.captures += max(0, 2 - number)

    asyncio.run(clients.settle(engine, one))
    assert seen == [0, 1, 2]


def test_no_prompt_of_the_chats_comes_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second would be read from the cache."""
    seeds: list[int] = []

    async def stream(engine: Any, seed: int, tokens: int, output: int, sampled: bool) -> list[float]:
        seeds.append(seed)
        return [0.0, 1.0]

    async def start() -> None: ...

    monkeypatch.setattr(clients, "stream_times", stream)
    engine: Any = SimpleNamespace(start=start, engine=SimpleNamespace(core=SimpleNamespace(executor=None)))
    asyncio.run(clients.chats(engine, 8, 2, 3, 2))
    assert len(seeds) == len(set(seeds)) == 3 * 4 * 3


@pytest.mark.parametrize("tokens", [12, 33, 128, 512])
def test_prompts_have_exactly_the_tokens_that_the_load_names(tokens: int) -> None:
    tokenizer = Tokenizer.from_file(str(default_model.path() / "tokenizer.json"))
    texts = texts_of(tokenizer, tokens, 20)
    assert {len(tokenizer.encode(text).ids) for text in texts} == {tokens} and len(set(texts)) == 20


def test_the_real_stages_over_a_simulated_device(tmp_path: Path) -> None:
    """Stages as they run on a GPU, one of them broken by a wrong number. ``tests.cuda.dry_run`` runs all."""
    stages = "versions,flashinfer,decode_sampled,operations"
    command = [sys.executable, "-m", "bench", "gpu_first", "--out", str(tmp_path), "--only", stages]
    more = ["--runner", "tests.cuda.dry_run", "--repeats", "1", "--limits", "10", "--seconds", "6000"]
    environment = {**os.environ, "PRELUDE_DRY_FAULT": "decode_sampled:wrong"}
    done = subprocess.run([*command, *more], capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 1, done.stderr
    found = first.read_results(tmp_path / "results.jsonl")
    ends = {line["stage"]: line["how"] for line in found if line["key"] == "end"}
    assert ends == {"versions": "done", "flashinfer": "done", "decode_sampled": "failed", "operations": "done"}
    keys = {line["key"] for line in found}
    assert {"version.torch", "decode_06b_128in_32out_c4_sampled.tpot_ms", "operations.gate_up.128"} <= keys
    assert any("an error of 9" in str(line.get("error")) for line in found)


def test_the_limits_of_a_dry_run_do_without_a_stages_first_result(tmp_path: Path) -> None:
    lines = [
        {"stage": "versions", "key": "version", "at": 10.0},
        {"stage": "versions", "key": "end", "at": 12.0},
        {"stage": "smoke", "key": "end", "at": 30.0},
        {"stage": "tests", "key": "tests.collected", "at": 34.0},
    ]
    results = tmp_path / "results.jsonl"
    results.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    seconds = dry_faults.first_results(results)
    assert seconds == {"versions": 60.0, "tests": 4.0}
    limits = dry_faults.limits_of({"smoke": "hang", "tests": "child", "decode": "segv"}, seconds)
    assert set(limits) == set(first.LIMITS)
    assert (limits["smoke"], limits["tests"], limits["decode"]) == (dry_faults.MOST, 18.0, 600.0)
    found, known = {"smoke": ["end: out of time"]}, {"smoke": ["end: done"]}
    assert list(dry_faults.wrongs(found, known, {"smoke": "hang"})), "a stage without a result is told"
