"""``prelude simulate``: its printed lines, files and figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prelude.records import replace
from prelude.simulation import Arrival, ClosedLoop, LinearCost, Machine, compare, machine, simulate
from prelude.simulation.compare import ABLATIONS, BASELINE
from prelude.simulation.fleet import failures
from prelude.simulation.traces import read_trace
from prelude.simulation.workloads import cancelled, chat_beside_decisions, rubrics
from prelude.tools.cli import main

# Half of the rubrics fit the pool.
SMALL = ["--set", "kv_blocks=1024", "--option", "requests=150", "rubrics=32", "skew=0"]


def ran(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    target = tmp_path / "new" / "folders" / "found.json"
    assert main(["simulate", "rubrics", *SMALL, "--json", str(target), *arguments]) == 0
    found: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
    return found


def drawn(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000


def test_the_rate_at_an_equal_p99_is_one_that_has_it_and_a_higher_one_has_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    [found] = ran(tmp_path, "--equal-p99", "--rate", "60", "--plot", str(tmp_path / "rates.png"))["reports"]
    assert drawn(tmp_path / "rates.png")
    assert f"{found['ratio']:.2f} times" in capsys.readouterr().out
    chosen = machine("h200-qwen3-4b", kv_blocks=1024)

    def trace(rate: float, seed: int) -> Any:
        return rubrics(rate, seed, requests=150, rubrics=32, skew=0)

    assert compare.p99(chosen.configured(**BASELINE), trace, 60) == found["bound"]
    assert compare.p99(chosen, trace, found["our_rate"]) <= found["bound"]
    assert compare.p99(chosen, trace, 1.05 * found["our_rate"]) > found["bound"]
    assert found["ratio"] == pytest.approx(found["our_rate"] / 60)


ASKED = {"requests": 150, "rubrics": 32, "skew": 0}


def test_reports_are_those_of_the_arrivals_that_the_arguments_say(tmp_path: Path) -> None:
    chosen = machine("h200-qwen3-4b", kv_blocks=1024)
    asked = list(rubrics(40.0, 5, **ASKED))
    gone = failures(2, 2.0, asked[-1].at, 1.0, 5)
    for options, source, own in (
        (["--clients", "4", "--think", "0.5"], lambda: ClosedLoop(asked, 4, 0.5), {}),
        (["--replicas", "2", "--routing", "random", "--failures", "2,1"], lambda: asked, {"failures": gone}),
        (["--replicas", "2", "--routing", "random"], lambda: cancelled(asked, 0.5, 1.0, 5), {}),
    ):
        cancel = [] if own or "--clients" in options else ["--cancel", "0.5"]
        found = ran(tmp_path, "--rate", "40", "--seed", "5", "--set", "kv_blocks=1024", *options, *cancel)
        assert {name: found[name] for name in ("workload", "machine", "seed", "rate")} == {
            "workload": "rubrics", "machine": "h200-qwen3-4b", "seed": 5, "rate": 40
        }  # fmt: skip
        if "--replicas" in options:
            own = {"replicas": 2, "routing": "random", "seed": 5, **own}
        for label, settings in (("all mechanisms", {}), ("baseline", BASELINE)):
            expected = simulate(chosen.configured(**settings), source(), **own).json()
            assert {**expected, "label": label} in found["reports"]


def test_options_at_their_bounds_are_taken(tmp_path: Path) -> None:
    trace = str(tmp_path / "trace.jsonl")
    for options in ({"skew": 16, "tenants": 0, "text_tokens": (5, 5)}, {"questions": (3, 1), "requests": 1}):
        said = [f"{name}={json.dumps(value)}" for name, value in options.items()]
        assert main(["simulate", "rubrics", "--option", *said, "--rate", "9", "--write-trace", trace]) == 0
        assert list(read_trace(trace)) == list(rubrics(9.0, **options))
    assert main(["simulate", "chat-and-decisions", "--option", "chats=1", "--write-trace", trace]) == 0
    assert list(read_trace(trace)) == list(chat_beside_decisions(1.0, chats=1))


def test_the_search_for_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A P99 of a second for each request a second, and of half a second with folding."""
    asked: list[float] = []

    def p99(of: Machine, trace: Any, rate: float, seeds: Any) -> float:
        asked.append(rate)
        return rate / 2 if of.config.expert.fold else rate

    def trace(rate: float, seed: int) -> list[Arrival]:
        return [Arrival(0.0, ((None, 10),)), Arrival(99.0, ((None, 5),))]

    chosen = machine("h200-qwen3-4b", fold=False)
    second = replace(chosen, cost=LinearCost(0.0, 1.0, 0.0))
    assert compare.capacity(second, trace) == pytest.approx(2 / 15), "all at once"
    assert (
        compare.p99(second, lambda rate, seed: [Arrival(0.0, ((None, (30, 10, 20)[seed]),))], 1.0, range(3)) == 20.0
    )
    monkeypatch.setattr(compare, "p99", p99)
    for bound, start, least, most in (
        (7.0, 1.0, 6.86, 7.0), (7.0, 90.0, 6.86, 7.0), (99.0, 1.0, 16.0, 16.0),
        (0.01, 1.0, 0.0, 0.0), (1 / 16, 1.0, 1 / 16, 1 / 16), (1.0, 1.0, 1.0, 1.0),
    ):  # fmt: skip
        asked.clear()
        assert least <= compare.most_rate(chosen, trace, bound, start) <= most
        assert len(asked) < 16 and min(asked) >= start / 16 and max(asked) <= 16 * start
    assert compare.most_rate(chosen, trace, 99.0, 1.0, limit=4.0) == 4.0
    folds = machine("h200-qwen3-4b")
    found = compare.equal_p99(folds, trace, 3.0, base=("apart", {"fold": False}), ours=("folded", {}))
    assert (found.bound, found.base, found.base_rate, found.ours) == (3.0, "apart", 3.0, "folded")
    assert 5.88 <= found.our_rate <= 6.0 and found.ratio == found.our_rate / 3


def test_without_a_rate_the_base_rate_is_the_capacity_of_the_baseline(tmp_path: Path) -> None:
    [found] = ran(tmp_path, "--equal-p99", "--seeds", "2")["reports"]
    baseline = machine("h200-qwen3-4b", kv_blocks=1024).configured(**BASELINE)
    most = compare.capacity(baseline, lambda rate, seed: rubrics(rate, seed, requests=150, rubrics=32, skew=0))
    assert found["base_rate"] == most


@pytest.mark.feature("F21")
def test_the_report_names_the_bound_of_each_phase(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran(tmp_path, "--rate", "300")
    said = capsys.readouterr().out
    assert "ms) waits for arithmetic" in said and "ms) for memory" in said
    assert json.loads((tmp_path / "new" / "folders" / "found.json").read_text(encoding="utf-8"))["roofline"] in said


def test_every_mechanism_is_switched_off_in_turn_and_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    reports = ran(tmp_path, "--rate", "300", "--ablation", "--plot", str(tmp_path / "bars.png"))["reports"]
    by_label = {report["label"]: report for report in reports}
    assert list(by_label) == list(ABLATIONS) and drawn(tmp_path / "bars.png")
    assert by_label["without attach"]["hit_rate"] == 0 < by_label["all mechanisms"]["hit_rate"]
    assert by_label["without fold"]["folded_rate"] == 0
    assert by_label["all mechanisms"]["latency"]["mean"] < by_label["baseline"]["latency"]["mean"]


def test_a_missing_matplotlib_is_said_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("prelude.terminal.command_line.find_spec", lambda name: None)
    assert main(["simulate", "rubrics", *SMALL, "--plot", str(tmp_path / "figure.png")]) == 2
    printed = capsys.readouterr()
    assert "--plot needs matplotlib" in printed.err and not printed.out


def test_a_sweep_over_rates_is_drawn_as_curves(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    sweeps = ran(tmp_path, "--rates", "50,200", "--plot", str(tmp_path / "curves.png"))["reports"]
    assert [sweep["rates"] for sweep in sweeps] == [[50, 200], [50, 200]] and drawn(tmp_path / "curves.png")
    for sweep in sweeps:
        slow, fast = (report["latency"]["mean"] for report in sweep["reports"])
        assert slow < fast


def test_without_probation_whatever_is_computed_pushes_the_rubrics_out(tmp_path: Path) -> None:
    """Texts of their own, as long as a rubric: kept on probation they give way to each other alone."""
    options = ("--rate", "20", "--option", "requests=150", "rubrics=8", "skew=0", "text_tokens=[900,1000]")
    kept = ran(tmp_path, *options)["reports"][0]
    lost = ran(tmp_path, *options, "--set", "kv_blocks=1024", "probation=false")["reports"][0]
    assert kept["hit_rate"] > lost["hit_rate"] + 0.05


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--plot", "figure.foo"], "has to end in one of .png, .svg, .pdf"),
        (["--plot", "no/such/folder/figure.png"], "there is no folder"),
        (["--seeds", "0", "--equal-p99", "--rate", "10"], "at least one"),
        (["--think", "1"], "--think is for --clients alone"), (["--seeds", "2"], "--seeds is for --equal-p99 alone"),
        (["--seed", "-1"], "--seed and --think take numbers from 0 on"),
        (["--json", "x.png", "--plot", "./x.png"], "--json and --plot are one file"),
        (["--set", "nothing=1"], "no field"), (["--set", "policy"], "'policy' is not NAME=VALUE"),
        (["--option", "users=9"], "rubrics has no option 'users'; it takes requests, "),
        (["--rate", "20", "--failures", "often"], "'often' is not a positive rate"),
        (["--rate", "20", "--failures", "9,never"], "'never' is not a positive rate"),
        (["--rates", "0"], "positive rate"), (["--rates", "5", "--clients", "2"], "--rates takes no --clients"),
        (["--rates", "5", "--routing", "random,prefix-affine"], "--rates takes one"),
        (["--ablation", "--policy", "first_come_first_served"], "--ablation takes no --policy"),
        (["--equal-p99", "--replicas", "2"], "--equal-p99 takes no --replicas"), (["--rate", "0"], "positive rate"),
        (["--rate", "nan"], "positive rate"), (["--cancel", "nan"], "--cancel nan: a share"),
        (["--cancel", "2"], "--cancel 2"), (["--cancel=-1"], "--cancel -1"),
        (["--set", "max_length=5"], "max_length changes nothing"),
        (["--set", "kv_bytes=5"], "kv_bytes changes nothing"),
        (["--option", "requests=abc"], "requests='abc': it takes an integer from 1"),
        (["--option", "rubrics=0"], "rubrics=0: it takes an integer from 1"),
        (["--option", "skew=nan"], "skew='nan': it takes a number"),
        (["--option", "skew=NaN"], "skew=nan: it takes a number"),
        (["--option", "text_tokens=[5]"], "text_tokens=(5,): it takes [least, most]"),
        (["--option", "text_tokens=[9,5]"], "text_tokens=(9, 5): it takes [least, most]"),
        (["--option", "skew=16.5"], "skew=16.5: it takes a number from 0 to 16"),
        (["--option", "skew=true"], "skew=True: it takes a number"),
        (["--option", "requests=true"], "requests=True: it takes an integer from 1 to 16777216"),
        (["--option", "requests=16777217"], "requests=16777217: it takes an integer from 1 to 16777216"),
        (["--option", "tenants=-1"], "tenants=-1: it takes an integer from 0 to 16777216"),
        (["--option", "text_tokens=5"], "text_tokens=5: it takes [least, most]"),
        (["--think", "inf", "--clients", "2"], "--seed and --think take numbers from 0 on"),
        (["--think=-1", "--clients", "2"], "--seed and --think take numbers from 0 on"),
        (["--rate", "1e-7"], "'1e-07' is not a positive rate"), (["--rate", "2e9"], "'2e+09' is not a positive rate"),
        (["--option", "questions=[0]"], "questions=(0,): it takes a list of integers"),
        (["--option", "requests=10", "--rate", "5", "--json", "/dev/null/x"], "/dev/null"),
        (["--option", "requests=10", "--rate", "5", "--write-trace", "/dev/null/x"], "/dev/null/x"),
    ],
)  # fmt: skip
def test_arguments_that_make_no_sense_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["simulate", "rubrics", *SMALL, *arguments]) != 0
    assert said in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("option", ["--write-trace", "--json"])
def test_a_file_that_cannot_be_written_is_named(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "rubrics", *SMALL, option, "/dev/full"]) != 0
    assert "/dev/full: cannot be written: No space left on device" in capsys.readouterr().err


def test_a_sweep_has_the_replicas_it_was_told(tmp_path: Path) -> None:
    """Two replicas carry a rate at which one has a queue."""
    one, two = (
        ran(tmp_path, "--rates", "2000", "--replicas", count)["reports"][0]["reports"][0]["latency"]["mean"]
        for count in ("1", "2")
    )
    assert two < one


def test_options_of_the_workload_inside_are_checked_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "bursts", "--rate", "5", "--option", "requests=10", "rubrics=x"]) != 0
    assert "rubrics='x'" in capsys.readouterr().err
    assert main(["simulate", "bursts", "--rate", "5", "--option", "requests=10", "calm=0"]) != 0
    assert "calm=0: it takes a number above 0" in capsys.readouterr().err
    assert main(["simulate", "bursts", "--rate", "5", "--option", "requests=10", "rubrics=3", "skew=0"]) == 0


def test_a_table_of_no_finished_request_has_dashes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A trace without arrivals is refused; one of which no request finishes has dashes and no P99 to compare at."""
    trace = tmp_path / "trace.jsonl"
    trace.write_text("", encoding="utf-8")
    for more in ([], ["--rates", "1,2"], ["--equal-p99"], ["--write-trace", str(tmp_path / "copy.jsonl")]):
        assert main(["simulate", str(trace), *more]) == 2
        printed = capsys.readouterr()
        assert "trace.jsonl: it has no arrivals" in printed.err and not printed.out
    trace.write_text('{"at": 0, "parts": [["a", 10]], "deadline": 0}\n', encoding="utf-8")
    pytest.importorskip("matplotlib")
    for more in (["--rate", "1"], ["--rates", "1,2"]):
        assert main(["simulate", str(trace), *more, "--plot", str(tmp_path / "none.png")]) == 2
        printed = capsys.readouterr()
        assert "nan" not in printed.out and "no request finished" in printed.err
        assert not (tmp_path / "none.png").exists()
    assert main(["simulate", str(trace), "--equal-p99"]) == 2
    assert "no request finishes at 1/s" in capsys.readouterr().err


def test_policies_by_name_failures_and_a_trace_that_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--rate", "40", "--replicas", "2", "--failures", "2,1")
    one, two = ran(tmp_path, *options, "--policy", "first_come_first_served,response_ratio")["reports"]
    assert [one["label"], two["label"]] == ["first_come_first_served", "response_ratio"] and one != two
    assert sum(one["ends"].values()) == sum(two["ends"].values()) == 150 and one["retried"] > 0
    said = capsys.readouterr().out
    assert f"first_come_first_served: {one['retried']} requests were asked again after a failure" in said
    trace = tmp_path / "trace.jsonl"
    assert main(["simulate", "rubrics", *SMALL, "--rate", "40", "--write-trace", str(trace)]) == 0
    assert capsys.readouterr().out == f"150 arrivals in {trace}\n"
    lines = [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()]
    assert [line["at"] for line in lines] == [arrival.at for arrival in rubrics(40, requests=150, rubrics=32, skew=0)]
