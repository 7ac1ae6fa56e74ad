"""The serving benchmark: its arithmetic, its run, and the file that it keeps."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import transformers

from bench.engine.decisions import check
from bench.serving import service as serving
from bench.serving.compare import Bench
from bench.serving.load import SHAPES, Job, Sample, closed_loop, judged, make_jobs, open_loop, over_runs, summary


class Clockwork:
    """Answers after 10 ms; counts how many are in flight."""

    def __init__(self) -> None:
        self.running = self.most = 0

    async def send(self, job: Job, due: float) -> Sample:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.01)
        self.running -= 1
        total = time.perf_counter() - due
        return Sample(total / 2, total / 2 / 31, total, len(job.prompt), job.output_tokens)


def test_a_closed_loop_keeps_so_many_in_flight() -> None:
    client = Clockwork()
    jobs = make_jobs(SHAPES["decode_128in_32out_c4"][0], 20, 4096, 0)
    samples = asyncio.run(closed_loop(client, jobs, 4))
    assert len(samples) == 20 and client.most == 4


def test_an_open_loop_sends_when_it_is_due_whatever_has_been_answered() -> None:
    client = Clockwork()
    samples = asyncio.run(open_loop(client, make_jobs(SHAPES["open_128in_32out"][0], 30, 4096, 0), 2000, 0))
    assert len(samples) == 30 and client.most > 5


def test_no_two_prompts_begin_alike() -> None:
    shape = SHAPES["oneshot_512in_1out_sweep"][0]
    jobs = make_jobs(shape, 50, 4096, 0) + make_jobs(shape, 50, 4096, 1)
    assert len({tuple(job.prompt[:16]) for job in jobs}) == 100 and all(len(job.prompt) == 512 for job in jobs)


@pytest.mark.feature("L6")
def test_numbers_of_a_run_and_over_runs() -> None:
    samples = [Sample(0.01 * n, 0.002, 0.01 * n + 0.062, 128, 32) for n in range(1, 101)]
    run = summary(samples, 2.0)
    assert run["requests_per_minute"] == 3000 and run["input_tokens_per_second"] == 6400
    assert run["output_tokens_per_second"] == 1600 and run["tpot_p99_ms"] == pytest.approx(2)
    assert run["ttft_p50_ms"] == pytest.approx(505) and run["ttft_p95_ms"] == pytest.approx(950.5)
    assert len(run["samples_ms"]) == 100 and run["samples_ms"][0] == [10.0, 2.0, 72.0]
    slow = summary(samples, 4.0)
    assert over_runs([run, slow, slow])["requests_per_minute"] == {"median": 1500, "low": 1500, "high": 3000}
    oneshot = summary([Sample(0.01, None, 0.01, 128, 1)] * 3, 1.0)
    assert "tpot_p50_ms" not in oneshot


@pytest.mark.feature("M1")
@pytest.mark.feature("M2")
def test_presets_pass_and_fail() -> None:
    def numbers(ttft: float, tpot: float | None, wall: float) -> dict[str, dict[str, float]]:
        return over_runs([summary([Sample(ttft, tpot, ttft + 31 * (tpot or 0), 128, 32)] * 10, wall)])

    cases = [("interactive", 2.9, 0.29, 1, True), ("interactive", 3.1, 0.1, 1, False)]
    cases += [("interactive", 0.1, 0.31, 1, False), ("interactive", 0.1, None, 1, True)]
    cases += [("interactive_fast", 0.1, 0.09, 1, True), ("interactive_fast", 0.1, 0.11, 1, False)]
    for preset, ttft, tpot, wall, good in [*cases, ("bulk", 60, 5, 5, True), ("bulk", 0.1, 0.01, 10, False)]:
        verdict = judged(preset, numbers(ttft, tpot, wall))
        assert verdict is not None and verdict[0] is good, (preset, ttft, tpot, wall)
    assert judged("interactive_fast", numbers(0.1, None, 1)) is None


@pytest.mark.feature("L2")
@pytest.mark.feature("L5")
@pytest.mark.feature("Q1")
@pytest.mark.feature("Q16")
def test_the_bench_runs_and_keeps_every_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "raw.json"
    names = ["oneshot_128in_1out_c1", "oneshot_512in_1out_sweep", "decode_128in_32out_c4", "open_128in_32out"]
    options = "static gap beside collector naive --quick --repeats 1 --requests 3 --in-flight 2 --rate 50"
    serving.main([*names, *options.split(), "--raw", "--json", str(target), "--plot", str(tmp_path / "plot.png")])
    printed = capsys.readouterr().out
    assert "no HTTP is in these figures" in printed and "PASS" in printed
    kept = json.loads(target.read_text(encoding="utf-8"))
    assert kept["command"].startswith("python -m bench serving oneshot_128in_1out_c1") and kept["facts"]["torch"]
    assert kept["facts"]["cpu"] and kept["facts"]["cores"] == os.cpu_count()
    assert kept["facts"]["transformers"] == transformers.__version__
    assert "no HTTP" in kept["http"] and len(kept["slo"]) == 10
    assert list(kept["loads"])[1] == "oneshot_512in_1out_c2" and len(kept["loads"]) == 4
    for name, load in kept["loads"].items():
        assert len(load["runs"]) == 1 and all(len(run["samples_ms"]) == run["requests"] == 3 for run in load["runs"])
        numbers = load["over_runs"]
        kinds = ("ttft", "e2e") if "1out" in name else ("ttft", "tpot", "e2e")
        keys = [f"{kind}_p{p}_ms" for kind in kinds for p in (50, 95, 99)]
        keys += ["requests_per_minute", "input_tokens_per_second", "output_tokens_per_second"]
        for key in keys:
            assert 0 < numbers[key]["low"] <= numbers[key]["median"] <= numbers[key]["high"], (name, key)
    assert {row["load"].split("_")[0] for row in kept["rows"]} == {"static", "chat", "chats", "collector", "naive"}
    baseline = {row["measure"] for row in kept["rows"] if row["load"].startswith("naive")}
    assert baseline == {"naive / together", "naive", "together"}
    zero = {row["measure"].split()[0] for row in kept["rows"] if row["value"] <= 0}
    assert zero <= {"longest"}  # pause of the collector, if it did not run; gap of a chat that came in one chunk
    assert (tmp_path / "plot.png").stat().st_size > 1000


@pytest.mark.feature("L12")
def test_start_up_is_import_load_and_first_answer_of_a_new_process() -> None:
    report = serving.ServingReport("start", "none")
    serving.start_up(Bench(report, None, "cpu", "auto", 1, True, serving.say))
    seconds = {row.measure: row.value for row in report.rows}
    parts = [seconds[name] for name in ("import", "load", "first answer")]
    assert min(parts) > 0 and seconds["altogether"] == pytest.approx(sum(parts), abs=0.01)


@pytest.mark.feature("L11")
def test_no_time_is_reported_where_the_two_sides_answer_differently() -> None:
    row = SimpleNamespace(labels=["yes", "no"], logprobs={"yes": -0.5, "no": -1.0})
    check("same", lambda: [[row]], lambda: np.array([[-0.5, -1.0]]), 1e-4)
    with pytest.raises(SystemExit, match="results differ"):
        check("other", lambda: [[row]], lambda: np.array([[-0.5, -1.1]]), 1e-4)
