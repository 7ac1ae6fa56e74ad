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

from prelude.config import EngineConfig
from prelude.errors import ConfigError
from prelude.simulation import compare, plots
from prelude.simulation.compare import ABLATIONS, TODAY, AtRate, Settings
from prelude.simulation.costs import RooflineCost
from prelude.simulation.fleet import ClosedLoop, Source
from prelude.simulation.machines import MACHINES, Machine, machine
from prelude.simulation.report import Report, seconds_text, table
from prelude.simulation.routing import ROUTERS
from prelude.simulation.traces import Arrival, read_trace, write_trace
from prelude.simulation.workloads import WORKLOADS, cancelled


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("workload", help=f"one of {', '.join(WORKLOADS)}, or a trace file (.jsonl)")
    add("--rate", type=float, default=None, help="requests a second; by default 0.8 of the machine's capacity")
    add("--seed", type=int, default=0)
    add("--machine", default="h200-qwen3-4b", help=f"one of {', '.join(MACHINES)}")
    add("--policy", default=None, help="names, separated by commas; each is a row of the table")
    add(
        "--set",
        nargs="*",
        default=[],
        metavar="FIELD=VALUE",
        help="of EngineConfig: fold=false kv_blocks=4096; or reestimate=false, probation=false",
    )
    add("--option", nargs="*", default=[], metavar="NAME=VALUE", help="of the workload: users=200 together=50")
    add("--clients", type=int, default=None, help="a closed loop of so many clients instead of the trace's times")
    add("--think", type=float, default=0.0, help="seconds between a client's answer and its next request")
    add("--cancel", type=float, default=0.0, help="share of callers who go away, after a second in the mean")
    add("--replicas", type=int, default=1)
    add("--routing", default="prefix-affine", help=f"names out of {', '.join(ROUTERS)}, separated by commas")
    add("--ablation", action="store_true", help="all of it, then each mechanism off in turn, then today's")
    add("--rates", default=None, help="a sweep: rates separated by commas")
    add(
        "--equal-p99",
        action="store_true",
        help="the rate that carries the P99 which today's has at --rate; by default at what it carries at most",
    )
    add("--seeds", type=int, default=1, help="--equal-p99: the median of so many seeds, from --seed on")
    add("--audit", type=int, default=0, metavar="STEPS", help="check every account after so many steps")
    add("--json", default=None, metavar="FILE", help="write the reports")
    add("--plot", default=None, metavar="FILE", help="draw them; needs matplotlib")
    add("--write-trace", default=None, metavar="FILE", help="write the arrivals as a trace file and stop")


def main(chosen: argparse.Namespace) -> int:
    engine = machine(chosen.machine, **_settings(chosen.set))
    options = _options(chosen)
    if chosen.write_trace:
        written = write_trace(_arrivals(chosen, options, chosen.rate or 1.0), chosen.write_trace)
        print(f"{written} arrivals in {chosen.write_trace}")
        return 0
    at_rate: AtRate = lambda rate, seed: _arrivals(chosen, options, rate, seed)  # noqa: E731
    rate = chosen.rate
    if rate is None and chosen.equal_p99 and not _is_file(chosen):
        rate = compare.capacity(engine.configured(**TODAY), at_rate)
    if rate is None:
        rate = 1.0 if _is_file(chosen) else 0.8 * compare.capacity(engine, at_rate)
    began = time.perf_counter()
    title = _title(chosen, rate)
    if chosen.rates:
        return _sweep(chosen, engine, at_rate, title)
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
    )
    _show(reports, title)
    total = sum(sum(report.ends.values()) for report in reports)
    print(f"{total:,} requests simulated in {time.perf_counter() - began:.1f} s")
    note = engine.cost.note() if isinstance(engine.cost, RooflineCost) else None
    if note is not None:
        print(f"on {engine.name} {note}")
    if chosen.plot:
        plots.bars(reports, chosen.plot, title)
    _write(chosen, [report.json() for report in reports], rate, note)
    return 0


def _variants(chosen: argparse.Namespace) -> Mapping[str, Settings]:
    if chosen.ablation:
        return ABLATIONS
    if chosen.policy:
        return {name: {"policy": name} for name in chosen.policy.split(",")}
    return {"all of it": {}, "today's": TODAY}


def _sweep(chosen: argparse.Namespace, engine: Machine, trace: AtRate, title: str) -> int:
    rates = [_number(text) for text in chosen.rates.split(",")]
    sweeps = compare.sweep(engine, trace, rates, _variants(chosen))
    for number, rate in enumerate(rates):
        _show([sweep.reports[number] for sweep in sweeps], f"{chosen.workload} at {rate:g}/s on {engine.name}")
    if chosen.plot:
        plots.curves(sweeps, chosen.plot, title)
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
            raise ConfigError(f"{chosen.workload!r} is neither one of {', '.join(WORKLOADS)} nor a trace file")
        arrivals = (replace(arrival, at=arrival.at / rate) for arrival in read_trace(path))
    else:
        arrivals = WORKLOADS[chosen.workload](rate, seed, **options)
    return cancelled(arrivals, chosen.cancel, 1.0, seed) if chosen.cancel else arrivals


def _source(chosen: argparse.Namespace, options: Mapping[str, Any], rate: float) -> Source | Iterable[Arrival]:
    arrivals = _arrivals(chosen, options, rate)
    return arrivals if chosen.clients is None else ClosedLoop(arrivals, chosen.clients, chosen.think)


def _options(chosen: argparse.Namespace) -> dict[str, Any]:
    if _is_file(chosen):
        return {}
    signature = inspect.signature(WORKLOADS[chosen.workload])
    open_ended = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    options = dict(_pair(text) for text in chosen.option)
    for name in options:
        if name not in signature.parameters and not open_ended:
            known = [p.name for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY]
            raise ConfigError(f"{chosen.workload} has no option {name!r}; it takes {', '.join(known)}")
    return options


def _settings(texts: Sequence[str]) -> dict[str, Any]:
    settings = dict(_pair(text) for text in texts)
    known = {field.name for field in fields(EngineConfig)} | {"reestimate", "probation"}
    for name in settings:
        if name not in known:
            raise ConfigError(f"EngineConfig has no field {name!r}")
    return settings


def _pair(text: str) -> tuple[str, Any]:
    name, found, value = text.partition("=")
    if not found:
        raise ConfigError(f"{text!r} is not NAME=VALUE")
    try:
        parsed = json.loads(value)
    except ValueError:
        parsed = value
    return name, tuple(parsed) if isinstance(parsed, list) else parsed


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ConfigError(f"{text!r} is not a positive rate")
    return value


# ------------------------------------------------------------------ results


def _title(chosen: argparse.Namespace, rate: float) -> str:
    how = f"{chosen.clients} clients" if chosen.clients else f"{rate:.4g}/s"
    fleet = f", {chosen.replicas} replicas" if chosen.replicas > 1 else ""
    return f"{chosen.workload}, {how}, on {chosen.machine}{fleet}, seed {chosen.seed}"


def _show(reports: Sequence[Report], title: str) -> None:
    print(table(reports, title))


def _write(
    chosen: argparse.Namespace, reports: Sequence[Mapping[str, Any]], rate: float | None, note: str | None = None
) -> None:
    if chosen.json:
        target = Path(chosen.json)
        target.parent.mkdir(parents=True, exist_ok=True)
        facts = {"workload": chosen.workload, "machine": chosen.machine, "seed": chosen.seed, "rate": rate}
        if note is not None:
            facts["roofline"] = note
        command = "prelude simulate " + " ".join(sys.argv[2:])
        target.write_text(json.dumps({"command": command, **facts, "reports": list(reports)}, indent=1) + "\n")
