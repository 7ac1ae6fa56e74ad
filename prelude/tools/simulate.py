"""``prelude simulate``: see docs/SIMULATOR.md."""

from __future__ import annotations

import argparse
import inspect
import json
import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from prelude.bulk.files import check_apart
from prelude.errors import ConfigError
from prelude.simulation import compare, plots
from prelude.simulation.compare import ABLATIONS, BASELINE, AtRate, Settings
from prelude.simulation.costs import MACHINES, Machine, RooflineCost, machine
from prelude.simulation.fleet import ClosedLoop, Failure, Source, failures
from prelude.simulation.report import Report, seconds_text, table
from prelude.simulation.routing import ROUTERS
from prelude.simulation.traces import Arrival, read_trace, write_trace
from prelude.simulation.workloads import WORKLOADS, cancelled, rubrics
from prelude.terminal.command_line import check_target, writing
from prelude.terminal.progress import watched
from prelude.values.config import EngineConfig, ExpertConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("workload", help=f"one of {', '.join(WORKLOADS)}, or a trace file (.jsonl)")
    add("--rate", type=float, help="requests a second; by default 0.8 of the machine's capacity")
    add("--seed", type=int, default=0, help="of the workload's random draws (%(default)s)")
    add("--machine", default="h200-qwen3-4b", help=f"one of {', '.join(MACHINES)}")
    add("--policy", help="names, separated by commas; each is a row of the table")
    add(
        "--set",
        nargs="*",
        default=[],
        metavar="FIELD=VALUE",
        help="of EngineConfig: fold=false kv_blocks=4096; or reestimate=false, probation=false",
    )
    add("--option", nargs="*", default=[], metavar="NAME=VALUE", help="of the workload: users=200 together=50")
    add("--clients", type=int, help="a closed loop of so many clients instead of the trace's times")
    add("--think", type=float, default=0.0, help="seconds between a client's answer and its next request")
    add("--cancel", type=float, default=0.0, help="share of callers that cancel, after a second in the mean")
    add("--replicas", type=int, default=1, help="machines that serve the workload (%(default)s)")
    add("--routing", default="prefix-affine", help=f"names out of {', '.join(ROUTERS)}, separated by commas")
    add(
        "--failures",
        metavar="MEAN[,DOWN]",
        help="a replica lives MEAN seconds in the mean, and is away DOWN seconds (30); until the last arrival",
    )
    add(
        "--ablation",
        action="store_true",
        help="all mechanisms, each mechanism off in turn, and the baseline, with none",
    )
    add("--rates", help="a sweep: rates separated by commas")
    add(
        "--equal-p99",
        action="store_true",
        help="the rate that carries the P99 that the baseline has at --rate; by default at its highest rate",
    )
    add("--seeds", type=int, default=1, help="--equal-p99: the median of so many seeds, from --seed on")
    add("--audit", type=int, default=0, metavar="STEPS", help="check every account after so many steps")
    add("--json", metavar="FILE", help="write the reports")
    add("--plot", metavar="FILE", help="draw them (.png, .svg or .pdf); needs matplotlib")
    add("--write-trace", metavar="FILE", help="write the arrivals as a trace file and stop")


# Fields of EngineConfig that only an engine with a model, its texts and its clock reads.
_UNSEEN = frozenset(
    [
        "max_length",
        "kv_bytes",
        "host_kv_bytes",
        "host_kv_tokens",
        "attention",
        "default_cache",
        "deterministic",
        "max_prompt_chars",
        "max_questions",
        "max_labels",
        "max_top",
        "prepare_threads",
        "cost_model",
        "hang_seconds",
        "unhealthy_after",
    ]
)
_LEAST = {"skew": 0, "chats": 0, "tenants": 0}  # of workload options; others are positive
_MOST = {"skew": 16, "chats": 1}
_MOST_COUNT = 1 << 24


def main(chosen: argparse.Namespace) -> int:
    _check(chosen)
    engine = machine(chosen.machine, **_settings(chosen.set))
    options = _options(chosen)
    if chosen.write_trace:
        with writing(chosen.write_trace):
            written = write_trace(_arrivals(chosen, options, chosen.rate or 1.0), chosen.write_trace)
        print(f"{written} arrivals in {chosen.write_trace}")
        return 0
    at_rate: AtRate = lambda rate, seed: _arrivals(chosen, options, rate, seed)  # noqa: E731
    rate = chosen.rate
    if rate is None and chosen.equal_p99 and not _is_file(chosen):
        rate = compare.capacity(engine.configured(**BASELINE), at_rate)
    if chosen.rates:
        return _sweep(chosen, engine, at_rate)
    if rate is None:
        rate = 1.0 if _is_file(chosen) else 0.8 * compare.capacity(engine, at_rate)
    began = time.perf_counter()
    title = _title(chosen, rate)
    if chosen.equal_p99:
        return _equal(chosen, engine, at_rate, rate)
    reports = compare.run(
        engine,
        partial(_source, chosen, options, rate),
        _variants(chosen),
        replicas=chosen.replicas,
        routing=chosen.routing.split(","),
        seed=chosen.seed,
        audit=chosen.audit,
        failures=_failures(chosen, options, rate),
        done=_said,
    )
    print(table(reports, title))
    for report in reports:
        if report.retried:
            print(f"{report.label}: {report.retried:,} requests were asked again after a failure")
    total = sum(sum(report.ends.values()) for report in reports)
    print(f"{total:,} requests simulated in {time.perf_counter() - began:.1f} s")
    note = engine.cost.note() if isinstance(engine.cost, RooflineCost) else None
    if note is not None:
        print(f"on {engine.name} {note}")
    if chosen.plot:
        with writing(chosen.plot):
            plots.dots(reports, chosen.plot, title)
    _write(chosen, [report.json() for report in reports], rate, note)
    return 0


def _check(chosen: argparse.Namespace) -> None:
    """Options that exclude each other, shares out of range, and a figure that could not be drawn."""
    check_target("--plot", chosen.plot, figure=True)
    files = {"--json": chosen.json, "--plot": chosen.plot, "--write-trace": chosen.write_trace}
    check_apart({**files, "the trace": chosen.workload if _is_file(chosen) else None})
    for option, given, beside in (
        ("--option", chosen.option and _is_file(chosen), "workloads, not for a trace file"),
        ("--think", chosen.think and chosen.clients is None, "--clients alone"),
        ("--seeds", chosen.seeds != 1 and not chosen.equal_p99, "--equal-p99 alone"),
    ):
        if given:
            raise ConfigError(f"{option} is for {beside}; leave it out")
    if chosen.seed < 0 or not 0 <= chosen.think < math.inf:
        raise ConfigError("--seed and --think take numbers from 0 on")
    if chosen.rate is not None:
        _number(f"{chosen.rate:g}")
    if not 0 <= chosen.cancel <= 1:
        raise ConfigError(f"--cancel {chosen.cancel}: a share of the callers, from 0 to 1")
    together = [("--ablation", "--policy"), ("--rates", "--clients")]
    together += [("--equal-p99", other) for other in ("--rates", "--clients", "--replicas", "--policy", "--ablation")]
    said = {
        "--ablation": chosen.ablation,
        "--policy": chosen.policy,
        "--rates": chosen.rates,
        "--clients": chosen.clients is not None,
        "--equal-p99": chosen.equal_p99,
        "--replicas": chosen.replicas != 1,
    }
    for one, other in together:
        if said[one] and said[other]:
            raise ConfigError(f"{one} takes no {other}; give one of them")
    if chosen.rates and "," in chosen.routing:
        raise ConfigError(f"--routing {chosen.routing}: --rates takes one")


def _variants(chosen: argparse.Namespace) -> Mapping[str, Settings]:
    if chosen.ablation:
        return ABLATIONS
    if chosen.policy:
        return {name: {"policy": name} for name in chosen.policy.split(",")}
    return {"all mechanisms": {}, "baseline": BASELINE}


def _sweep(chosen: argparse.Namespace, engine: Machine, trace: AtRate) -> int:
    rates = [_number(text) for text in chosen.rates.split(",")]
    options = {
        "replicas": chosen.replicas,
        "routing": [chosen.routing],
        "seed": chosen.seed,
        "audit": chosen.audit,
        "done": _said,
    }
    sweeps = compare.sweep(engine, trace, rates, _variants(chosen), **options)
    for number, rate in enumerate(rates):
        reports = [sweep.reports[number] for sweep in sweeps]
        print(table(reports, f"{chosen.workload} at {rate:g}/s on {engine.name}"))
    if chosen.plot:
        with writing(chosen.plot):
            plots.curves(sweeps, chosen.plot, _title(chosen, None))
    _write(
        chosen, [{"label": s.label, "rates": s.rates, "reports": [r.json() for r in s.reports]} for s in sweeps], None
    )
    return 0


def _equal(chosen: argparse.Namespace, engine: Machine, trace: AtRate, rate: float) -> int:
    if chosen.seeds < 1:
        raise ConfigError(f"--seeds {chosen.seeds}: at least one")
    found = compare.equal_p99(engine, trace, rate, seeds=range(chosen.seeds))
    print(
        f"{chosen.workload} on {engine.name}, P99 of {seconds_text(found.bound)}: {found.base} carries "
        f"{found.base_rate:.4g}/s, {found.ours} {found.our_rate:.4g}/s: {found.ratio:.2f} times"
    )
    if chosen.plot:
        with writing(chosen.plot):
            plots.rates(found, chosen.plot, f"{chosen.workload} on {engine.name}")
    _write(chosen, [{**asdict(found), "ratio": found.ratio}], rate)
    return 0


# ------------------------------------------------------------------ arrivals


def _is_file(chosen: argparse.Namespace) -> bool:
    return chosen.workload not in WORKLOADS


def _arrivals(
    chosen: argparse.Namespace, options: Mapping[str, Any], rate: float, seed: int | None = None
) -> Iterable[Arrival]:
    """A trace file is played ``rate`` times as fast as it says."""
    seed = chosen.seed if seed is None else chosen.seed + seed
    arrivals: Iterable[Arrival]
    if _is_file(chosen):
        path = Path(chosen.workload)
        if not path.is_file():
            missing = "is no file" if path.exists() else "there is no such file"
            raise ConfigError(f"{chosen.workload}: {missing}, and it is no workload: {', '.join(WORKLOADS)}")
        arrivals = (replace(arrival, at=arrival.at / rate) for arrival in read_trace(path))
    else:
        arrivals = WORKLOADS[chosen.workload](rate, seed, **options)
    arrivals = watched(arrivals, chosen.workload, "requests")
    return cancelled(arrivals, chosen.cancel, 1.0, seed) if chosen.cancel else arrivals


def _said(report: Report) -> None:
    """A line on stderr for each finished run, before the table of all."""
    latency = report.latency
    found = f"mean {seconds_text(latency.mean)}, P99 {seconds_text(latency.p99)}"
    print(f"{report.label}: {found}, {sum(report.ends.values()):,} requests", file=sys.stderr, flush=True)


def _failures(chosen: argparse.Namespace, options: Mapping[str, Any], rate: float) -> list[Failure]:
    if chosen.failures is None:
        return []
    mean, _, down = chosen.failures.partition(",")
    last = max((arrival.at for arrival in _arrivals(chosen, options, rate)), default=0.0)
    return failures(chosen.replicas, _number(mean), last, _number(down or "30"), chosen.seed)


def _source(chosen: argparse.Namespace, options: Mapping[str, Any], rate: float) -> Source | Iterable[Arrival]:
    arrivals = _arrivals(chosen, options, rate)
    return arrivals if chosen.clients is None else ClosedLoop(arrivals, chosen.clients, chosen.think)


def _options(chosen: argparse.Namespace) -> dict[str, Any]:
    if _is_file(chosen):
        return {}
    parameters = dict(inspect.signature(WORKLOADS[chosen.workload]).parameters)
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        parameters = {**inspect.signature(rubrics).parameters, **parameters}
    known = {p.name: p.default for p in parameters.values() if p.kind is p.KEYWORD_ONLY}
    options = dict(_pair(text) for text in chosen.option)
    for name, value in options.items():
        if name not in known:
            raise ConfigError(f"{chosen.workload} has no option {name!r}; it takes {', '.join(known)}")
        _check_option(name, value, known[name])
    return options


def _check_option(name: str, value: Any, default: Any) -> None:
    """It is of its default's kind, and in a range that makes sense."""
    least, most = _LEAST.get(name, 1), _MOST.get(name, _MOST_COUNT)
    if isinstance(default, tuple):
        counts = value if isinstance(value, tuple) else ()
        whole = all(_is_count(count, 1, most) for count in counts)
        if isinstance(value, tuple) and whole and (not default or (len(value) == 2 and value[0] <= value[1])):
            return
        takes = "[least, most]" if default else "a list"
        raise ConfigError(f"{name}={value!r}: it takes {takes} of integers from 1 to {most}")
    if isinstance(default, int):
        if not _is_count(value, least, most):
            raise ConfigError(f"{name}={value!r}: it takes an integer from {least} to {most}")
    elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise ConfigError(f"{name}={value!r}: it takes a number from 0 to {most}")
    elif value == 0 and name not in _LEAST:
        raise ConfigError(f"{name}={value!r}: it takes a number above 0")


def _is_count(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _settings(texts: Sequence[str]) -> dict[str, Any]:
    settings = dict(_pair(text) for text in texts)
    known = {field.name for kind in (EngineConfig, ExpertConfig) for field in fields(kind)} - {"expert"}
    known |= {"reestimate", "probation"}
    for name in settings:
        if name not in known:
            raise ConfigError(f"EngineConfig has no field {name!r}")
        if name in _UNSEEN:
            raise ConfigError(f"{name} changes nothing in a simulation: the trace and the machine say it")
    return settings


def _pair(text: str) -> tuple[str, Any]:
    name, found, value = text.partition("=")
    if not found:
        raise ConfigError(f"{text!r} is not NAME=VALUE")
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        parsed = value
    return name, tuple(parsed) if isinstance(parsed, list) else parsed


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 1e-6 <= value <= 1e9:
        raise ConfigError(f"{text!r} is not a positive rate, from 1e-6 to 1e9")
    return value


# ------------------------------------------------------------------ results


def _title(chosen: argparse.Namespace, rate: float | None) -> str:
    how = f"{chosen.clients} clients, " if chosen.clients else "" if rate is None else f"{rate:.4g}/s, "
    fleet = f", {chosen.replicas} replicas" if chosen.replicas > 1 else ""
    return f"{chosen.workload}, {how}on {chosen.machine}{fleet}, seed {chosen.seed}"


def _write(
    chosen: argparse.Namespace, reports: Sequence[Mapping[str, Any]], rate: float | None, note: str | None = None
) -> None:
    if chosen.json:
        target = Path(chosen.json)
        facts = {"workload": chosen.workload, "machine": chosen.machine, "seed": chosen.seed, "rate": rate}
        if note is not None:
            facts["roofline"] = note
        command = "prelude simulate " + " ".join(sys.argv[2:])
        with writing(chosen.json):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(
                json.dumps({"command": command, **facts, "reports": list(reports)}, indent=1) + "\n", encoding="utf-8"
            )
