"""Prelude on a Ray of this machine: actors of Ray Data, and the routers of Ray Serve.

python -m bench fleet [--part data,kill,serve] [--rows 6000] [--repeats 3] [--json FILE]

data    rows a second of two actors with a thread each over those of one, runs in turn on one cluster. The actors are
        made in each run; the time is the one in which each of them has batches. Each needs a core for itself
kill    the same rows on two actors, one of which is killed (SIGKILL) in the middle: rows lost, doubled, different
serve   50 rubrics on 4 replicas: the share of requests, after the first of each rubric, whose rubric the replica had,
        and the share of prompt tokens from the caches; prefix-affine, power-of-two and round-robin. ``--clients`` ask
        at a time. The pool of a replica holds 15 rubrics
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")

from bench.command_line import options_parser
from bench.common import Report, add_outputs, machine_facts, three
from prelude import Choice, Decide, Engine, EngineConfig, ExpertConfig
from prelude.bulk.form import Form

FORM: dict[str, Any] = {
    "state": "{rubric}\n\nText: {text}",
    "questions": {"topic": {"question": "What is it about?", "labels": ["delivery", "billing", "other"]}},
}
SENTENCE = "the parcel bill arrived late and was paid twice by a customer who waits for an answer to the letter"
RUBRICS, REPLICAS, RUBRIC_WORDS = 50, 4, 400
BATCH_ROWS = 250


def words(seed: int, count: int) -> str:
    return " ".join(random.Random(seed).choices(SENTENCE.split(), k=count))


def table(rows: int) -> list[dict[str, Any]]:
    """Each row's text is its own, so that every actor computes every row."""
    return [{"id": at, "rubric": f"Rubric {at % 4}.", "text": words(at, 60)} for at in range(rows)]


# ------------------------------------------------------------------ Ray Data


def measured(rows: list[dict[str, Any]], replicas: int) -> tuple[float, float, float]:
    """Rows a second while every actor has batches, rows of a second of the actors' processor time, and the share of a
    core that an actor got. The actors note when each batch begins and ends, since batches reach the driver in
    groups."""
    import ray

    from prelude.ray import Scorer

    class Noted(Scorer):
        def __call__(self, batch: Any) -> Any:
            began, cpu = time.time(), time.process_time()
            found = super().__call__(batch)
            notes = {"actor": float(os.getpid()), "began": began, "ended": time.time()}
            for name, value in {**notes, "cpu": time.process_time() - cpu}.items():
                found = found.append_column(name, [[value] * found.num_rows])
            return found

    dataset = ray.data.from_items(rows, override_num_blocks=max(8, len(rows) // BATCH_ROWS)).map_batches(
        Noted,
        fn_constructor_args=[FORM],
        fn_constructor_kwargs={"threads": 1},
        compute=ray.data.ActorPoolStrategy(size=replicas),
        num_cpus=1,
        batch_format="pyarrow",
        batch_size=BATCH_ROWS,
    )
    batches: Counter[tuple[float, float, float, float]] = Counter()
    for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
        batches.update(zip(*(batch.column(name).to_pylist() for name in ("actor", "began", "ended", "cpu"))))
    assert sum(batches.values()) == len(rows)
    actors = {actor for actor, *_ in batches}
    assert len(actors) == replicas
    start = max(min(began for actor, began, *_ in batches if actor == one) for one in actors)
    stop = min(max(ended for actor, _, ended, _ in batches if actor == one) for one in actors)
    within = sum(
        count * max(0.0, min(ended, stop) - max(began, start)) / (ended - began)
        for (_, began, ended, _), count in batches.items()
    )
    cpu = sum(cpu for *_, cpu in batches)
    return within / (stop - start), len(rows) / cpu, cpu / sum(ended - began for _, began, ended, _ in batches)


def data(report: Report, rows: int, repeats: int) -> None:
    given = table(rows)
    pairs = []
    for number in range(repeats):
        pair = {count: measured(given, count) for count in ((1, 2) if number % 2 == 0 else (2, 1))}
        pairs.append((pair[1], pair[2]))
    report.add("data", "rows a second, one actor with a thread", three([one[0] for one, _ in pairs]), "/s")
    report.add("data", "rows a second, two", three([two[0] for _, two in pairs]), "/s")
    report.add("data", "two actors over one", three([two[0] / one[0] for one, two in pairs]), "x", ">= 1.9")
    shares = three([two[2] for _, two in pairs])
    report.add("data", "share of a core that each of two actors got", shares, "x")
    efforts = three([two[1] / one[1] for one, two in pairs])
    report.add("data", "rows of a second of processor time, two over one", efforts, "x")


def kill(report: Report, rows: int) -> None:
    import ray

    from prelude.ray import Scorer

    given = table(rows)
    with tempfile.TemporaryDirectory() as folder:

        class Killed(Scorer):
            calls = 0

            def __call__(self, batch: Any) -> Any:
                self.calls += 1
                found = super().__call__(batch)
                if self.calls == max(2, rows // 1000):
                    try:
                        os.close(os.open(Path(folder, "killed"), os.O_CREAT | os.O_EXCL))
                    except FileExistsError:
                        return found
                    os.kill(os.getpid(), signal.SIGKILL)
                return found

        dataset = ray.data.from_items(given, override_num_blocks=max(8, rows // 250))
        scored = dataset.map_batches(
            Killed,
            fn_constructor_args=[FORM],
            fn_constructor_kwargs={"threads": 1},
            compute=ray.data.ActorPoolStrategy(size=2),
            num_cpus=1,
            batch_format="pyarrow",
            batch_size=250,
        ).take_all()
        assert Path(folder, "killed").exists()
    by_id: dict[int, list[dict[str, Any]]] = {}
    for row in scored:
        by_id.setdefault(row["id"], []).append(row)
    form = Form(FORM)
    with Engine.from_pretrained(config=EngineConfig(deterministic=True)) as engine:
        plain = [{**one.row, "error": None, **form.values(one)} for one in engine.map(form.task, given)]
    lost, doubled = sum(row["id"] not in by_id for row in given), sum(len(found) > 1 for found in by_id.values())
    other = sum(by_id[row["id"]][0] != row for row in plain if row["id"] in by_id)
    for name, count in (("lost", lost), ("doubled", doubled), ("with other bits", other)):
        report.add("kill", f"rows {name}, of {rows:,}", (count,) * 3, "rows", "<= 0")


# ------------------------------------------------------------------ Ray Serve


def requests(seed: int, count: int) -> list[tuple[int, Decide]]:
    draw = random.Random(seed)
    question = Choice("What is it about?", ["delivery", "billing", "other"])
    found = []
    for at in range(count):
        rubric = draw.randrange(RUBRICS)
        found.append(
            (rubric, Decide(f"Rubric {rubric}. {words(rubric, RUBRIC_WORDS)}\n\n{words(10**6 + at, 20)}", [question]))
        )
    return found


def hit_rates(routing: str, count: int, clients: int, seed: int) -> tuple[float, float, float]:
    """Of requests, of tokens, and the median latency in ms."""
    from ray import serve

    from prelude.ray import deployment

    given = requests(seed, count)
    config = EngineConfig(max_length=2048, max_queued_requests=512, expert=ExpertConfig(kv_blocks=15 * 60))
    app = deployment(replicas=REPLICAS, config=config, routing=routing, stats_seconds=2.0)
    name = f"bench-{routing}-{seed}"  # a process keeps the router of an application by its name
    handle = serve.run(app, name=name, route_prefix=None)

    async def main() -> list[tuple[int, Any, float]]:
        done: list[tuple[int, Any, float]] = []
        ahead = iter(given)

        async def client() -> None:
            for rubric, task in ahead:
                began = time.perf_counter()
                answers = await handle.run.remote(task)
                done.append((rubric, answers.stats, time.perf_counter() - began))

        await asyncio.gather(*[client() for _ in range(clients)])
        return done

    done = asyncio.run(main())
    serve.delete(name)
    first: set[int] = set()
    hits = []
    for rubric, stats, _ in done:
        if rubric in first:
            hits.append(stats.cached_tokens > stats.prompt_tokens // 2)
        first.add(rubric)
    tokens = sum(stats.cached_tokens for _, stats, _ in done) / sum(stats.prompt_tokens for _, stats, _ in done)
    return 100 * statistics.mean(hits), 100 * tokens, 1000 * statistics.median(seconds for _, _, seconds in done)


def serving(report: Report, routings: list[str], count: int, clients: int, repeats: int) -> None:
    found: dict[str, list[tuple[float, float, float]]] = {}
    for seed in range(repeats):
        for routing in routings:
            found.setdefault(routing, []).append(hit_rates(routing, count, clients, seed))
    for routing, rates in found.items():
        report.add("serve", f"{routing}: requests whose prefix was there", three([one[0] for one in rates]), "%")
        report.add("serve", f"{routing}: prompt tokens from the cache", three([one[1] for one in rates]), "%")
        report.add("serve", f"{routing}: median latency", three([one[2] for one in rates]), "ms")
    for other in [one for one in routings if one != "prefix-affine" and "prefix-affine" in routings]:
        ratios = [a[0] / b[0] for a, b in zip(found["prefix-affine"], found[other])]
        report.add(
            "serve", f"hit rate of prefix-affine over {other}", three(ratios), "x", ">= 3" if "round" in other else ""
        )


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--part", default="data,kill,serve")
    parser.add_argument("--rows", type=int, default=6000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--routings", default="round-robin,prefix-affine,power-of-two")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=8)
    add_outputs(parser)
    chosen = parser.parse_args()
    import ray

    report = Report("More than one machine", facts={**machine_facts(), "ray": ray.__version__})
    parts = chosen.part.split(",")
    # Ray starts a worker for each CPU that it is told of. The actors of the data need three, the replicas eight.
    cpus = 8 if "serve" in parts else 3
    ray.init(num_cpus=cpus, include_dashboard=False, log_to_driver=False, object_store_memory=300 << 20)
    if "data" in parts:
        data(report, chosen.rows, chosen.repeats)
    if "kill" in parts:
        kill(report, chosen.rows)
    if "serve" in parts:
        serving(report, chosen.routings.split(","), chosen.requests, chosen.clients, chosen.repeats)
    ray.shutdown()
    report.finish(chosen)


if __name__ == "__main__":
    main()
