"""The engine as a service sees it: latencies, rates, start-up, and the gain of batching, streams and chunks.

    python -m bench serving [NAME ...] [--model DIR] [--device auto] [--repeats 5] [--quick] [--json FILE]
    python -m bench serving decode_128in_32out_c4 --requests 400
    python -m bench serving oneshot_512in_1out_sweep --in-flight 1,16,128
    python -m bench serving open_128in_32out --rate 20
    python -m bench serving oneshot_128in_1out_c1 --loopback

No HTTP is in these figures: the load runs on an event loop in the engine's own process. Servers are measured through
HTTP: to compare with them, --loopback sends the same load through examples/fastapi_service.py on 127.0.0.1.
Prompts are fresh random ids for every request and repeat, in process with cache="never": nothing is read from the
prefix cache. Every number is the median of the repeats with the lowest and the highest. --raw keeps every request.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from bench.command_line import command_line, options_parser
from bench.common import Report, add_outputs, machine_facts, three, use_threads
from bench.serving.compare import COMPARISONS, Bench
from bench.serving.load import PRESETS, SHAPES, Client, InProcess, Shape, judged, measure

IN_PROCESS = "no HTTP is in these figures: the load runs in the engine's own process"
LOOPBACK = "through HTTP on 127.0.0.1 and examples/fastapi_service.py, server and client on one machine"
NAMES = ("startup", *SHAPES, *COMPARISONS)
START = """
import json, sys, time
t0 = time.perf_counter()
from prelude import Engine, SamplingParams
Engine
t1 = time.perf_counter()
engine = Engine.from_pretrained(json.loads(sys.argv[1]), device=sys.argv[2], dtype=sys.argv[3])
t2 = time.perf_counter()
engine.complete("The harbour", SamplingParams(max_tokens=1, temperature=0))
t3 = time.perf_counter()
print(json.dumps([t1 - t0, t2 - t1, t3 - t2, t3 - t0]))
"""


@dataclass(slots=True)
class ServingReport(Report):
    http: str = IN_PROCESS
    loads: dict[str, Any] = field(default_factory=dict)
    slo: list[dict[str, Any]] = field(default_factory=list)


def installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


def say(text: str) -> None:
    """Progress, on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K  {text}", end="", file=sys.stderr, flush=True)


# ------------------------------------------------------------------ parts


def start_up(bench: Bench) -> None:
    """Seconds in a new process: import, load (with torch's own import), first answer."""
    runs = []
    for repeat in range(bench.repeats):
        say(f"startup: run {repeat + 1} of {bench.repeats}")
        command = [sys.executable, "-c", START, json.dumps(bench.model), bench.device, bench.dtype]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
        runs.append(json.loads(done.stdout))
    for name, values in zip(("import", "load", "first answer", "altogether"), zip(*runs)):
        bench.report.add("startup", name, three(values), "s")


async def loads(report: ServingReport, shapes: list[Shape], client: Client, vocabulary: int, repeats: int) -> None:
    for shape in shapes:
        report.loads[shape.name] = {"shape": asdict(shape), **await measure(client, shape, vocabulary, repeats, say)}


def drop_samples(report: ServingReport) -> None:
    """The numbers of each run stay, the times of each request go: they are hundreds of kilobytes."""
    for load in report.loads.values():
        for run in load["runs"]:
            del run["samples_ms"]


def judge(report: ServingReport, presets: list[str]) -> None:
    for name, load in report.loads.items():
        for preset in presets:
            verdict = judged(preset, load["over_runs"])
            if verdict is not None:
                report.slo.append({"load": name, "preset": preset, "pass": verdict[0], "why": verdict[1]})


def show(report: ServingReport, presets: list[str]) -> None:
    say("")
    print(f"\n{report.title}\n  {report.http}")
    print("  " + ", ".join(f"{key} {value}" for key, value in report.facts.items()))
    if report.loads:
        times = [f"{name} P50 / P95 / P99" for name in ("TTFT ms", "TPOT ms", "end to end ms")]
        head = f"{'requests a minute':>28}  {'in tok/s':>9}  {'out tok/s':>9}"
        print(f"\n  {'load':<24}" + "".join(f"{title:>33}" for title in times) + head)
    for name, load in report.loads.items():
        numbers = load["over_runs"]
        cells = ""
        for kind in ("ttft", "tpot", "e2e"):
            percentiles = [numbers.get(f"{kind}_p{p}_ms") for p in (50, 95, 99)]
            cells += f"{' / '.join('-' if one is None else format(one['median'], '.2f') for one in percentiles):>33}"
        rpm = numbers["requests_per_minute"]
        spread = f"{rpm['median']:.0f} [{rpm['low']:.0f} .. {rpm['high']:.0f}]"
        rates = [numbers[f"{way}_tokens_per_second"]["median"] for way in ("input", "output")]
        print(f"  {name:<24}{cells}{spread:>28}  {rates[0]:>9.0f}  {rates[1]:>9.0f}")
    for preset in presets if report.slo else ():
        print(f"\n  {preset}: {PRESETS[preset]} (worst of the runs)")
        for line in report.slo:
            if line["preset"] == preset:
                print(f"    {'PASS' if line['pass'] else 'FAIL'}  {line['load']:<24}  {line['why']}")
    if report.rows:
        report.show()


def plot(report: ServingReport, path: str) -> None:
    """Throughput over the number in flight, and end-to-end latency of every load."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2))
    sweep = [load for name, load in report.loads.items() if name.startswith("oneshot_512in")]
    if sweep:
        rates = [load["over_runs"]["requests_per_minute"] for load in sweep]
        middle = [rate["median"] / 60 for rate in rates]
        errors = [[(r["median"] - r["low"]) / 60 for r in rates], [(r["high"] - r["median"]) / 60 for r in rates]]
        left.errorbar([load["shape"]["in_flight"] for load in sweep], middle, yerr=errors, marker="o", capsize=3)
    left.set(
        xlabel="in flight",
        ylabel="requests a second",
        title="Throughput: 512 tokens in, 1 out, median and range of runs",
        ylim=(0, None),
    )
    for place, percentile in enumerate((50, 95, 99)):
        values = [load["over_runs"][f"e2e_p{percentile}_ms"]["median"] for load in report.loads.values()]
        right.plot(values, [at + 0.26 * place for at in range(len(values))], "o", label=f"P{percentile}")
    right.set_yticks([at + 0.26 for at in range(len(report.loads))], list(report.loads))
    right.set(xlabel="end to end, ms (logarithmic)", xscale="log", title=f"Latency: {report.http.split(':')[0]}")
    right.invert_yaxis()
    right.grid(axis="x", color="#dddddd", linewidth=0.6)
    right.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


# ------------------------------------------------------------------ command line


def chosen_shapes(names: list[str], chosen: argparse.Namespace) -> list[Shape]:
    shapes = [shape for name in names if name in SHAPES for shape in SHAPES[name]]
    if chosen.in_flight:
        levels = [int(level) for level in chosen.in_flight.split(",")]
        swept = SHAPES["oneshot_512in_1out_sweep"]
        first = next((at for at, shape in enumerate(shapes) if shape in swept), len(shapes))
        mine = [replace(swept[0], name=f"oneshot_512in_1out_c{n}", in_flight=n) for n in levels]
        shapes = [*shapes[:first], *mine, *[shape for shape in shapes[first:] if shape not in swept]]
    requests = chosen.requests or (8 if chosen.quick else None)
    shapes = [replace(shape, requests=requests or shape.requests) for shape in shapes]
    return [replace(shape, rate=chosen.rate) if shape.rate else shape for shape in shapes]


async def run(chosen: argparse.Namespace, report: ServingReport) -> None:
    names = chosen.names or list(NAMES)
    repeats = chosen.repeats or (2 if chosen.quick else 5)
    bench = Bench(report, chosen.model, chosen.device, chosen.dtype, repeats, chosen.quick, say)
    shapes = chosen_shapes(names, chosen)
    if "startup" in names:
        start_up(bench)
    if shapes:
        async with bench.engine() as engine:
            vocabulary = engine.engine._preparer.tokenizer.get_vocab_size()
            report.facts["dtype"] = engine.engine._core.limits.dtype
            if not chosen.loopback:
                await loads(report, shapes, InProcess(engine), vocabulary, repeats)
    if shapes and chosen.loopback:
        from bench.serving.http_client import loopback

        report.http = LOOPBACK
        async with loopback(chosen.model) as client:
            await loads(report, shapes, client, vocabulary, repeats)
    judge(report, chosen.slo.split(","))
    for name in names if not chosen.loopback else ():
        if name in COMPARISONS:
            await COMPARISONS[name](bench)


def main(arguments: list[str] | None = None) -> None:
    parser = options_parser(__doc__)
    parser.add_argument("names", nargs="*", help=f"parts to run, all by default: {', '.join(NAMES)}")
    parser.add_argument("--model", help="a directory or a hub name; the packaged model by default")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16"))
    parser.add_argument("--threads", type=int, help="of a step")
    parser.add_argument("--requests", type=int, help="a run; by default the number of the shape's name")
    parser.add_argument("--repeats", type=int, help="runs of everything (5, with --quick 2)")
    parser.add_argument("--in-flight", help="levels of the sweep, comma separated")
    parser.add_argument("--rate", type=float, default=10.0, help="arrivals a second of the open loop")
    parser.add_argument("--slo", default=",".join(PRESETS), help="presets to judge by")
    parser.add_argument("--loopback", action="store_true", help="shapes through HTTP instead; no comparisons")
    parser.add_argument("--raw", action="store_true", help="keep the times of every request in the JSON")
    parser.add_argument("--quick", action="store_true", help="few requests, short texts: shows that it runs")
    add_outputs(parser)
    chosen = parser.parse_args(arguments)
    unknown = [*(set(chosen.names) - set(NAMES)), *(set(chosen.slo.split(",")) - set(PRESETS))]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(NAMES)}, and presets {', '.join(PRESETS)}")
    import torch

    if chosen.threads:
        use_threads(chosen.threads)
    given = sys.argv[1:] if arguments is None else arguments
    model = (chosen.model or "packaged").rstrip("/").split("/")[-1]
    facts: list[tuple[str, Any]] = [("torch", torch.__version__), ("transformers", installed("transformers"))]
    facts += [("model", model), ("threads", torch.get_num_threads())]
    report = ServingReport(
        "prelude as a service sees it",
        command_line("serving", given),
        facts=machine_facts([*facts, ("device", chosen.device)]),
    )
    asyncio.run(run(chosen, report))
    show(report, chosen.slo.split(","))
    if chosen.json:
        if not chosen.raw:
            drop_samples(report)
        report.write(chosen.json)
    if chosen.plot:
        plot(report, chosen.plot)


if __name__ == "__main__":
    main()
