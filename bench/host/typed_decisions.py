"""The host's time of typed decisions, beside the same questions in their plain form; and of 255 described options.

    python -m bench typed_decisions [--json FILE] [--quick]

Three questions (a noul, a choice, a score) about a new state of 200 tokens, as in ``bench host_path``: every step is
answered with a constant, CPU time of this thread, microseconds a request, 10th percentile. ``plain`` has labels
without descriptions and questions without names; ``typed`` has both; ``systemone`` begins and ends with a body.

The options are asked of the packaged model, forward and all, in wall milliseconds: the same question again, whose ids
are kept, and a new question with the same 255 options, of which the question is encoded and the labels are not. The
two take turns.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

from bench.common import machine_facts, run_alone
from bench.host.path import TEXT, Bench
from prelude import Choice, Decide, Engine, EngineConfig, Noul, Score
from prelude.systemone import SystemOne

PLAIN = [
    Noul("Is the customer asking for money back?"),
    Choice("Which team?", ["Billing", "Technical", "Sales"]),
    Score("How frustrated is the customer?", 3),
]
TEAMS = {"Billing": "Payments, invoices, refunds", "Technical": "Bugs, outages", "Sales": None}
LEVELS = ["Calm", "Frustrated", "Very angry"]
TYPED = {
    "refund": PLAIN[0],
    "team": Choice("Which team?", TEAMS),
    "anger": Score("How frustrated is the customer?", LEVELS),
}
QUESTIONS = {
    "refund": {"type": "noul", "instructions": "Is the customer asking for money back?"},
    "team": {"type": "choice", "instructions": "Which team?", "criteria": TEAMS},
    "anger": {"type": "score", "instructions": "How frustrated is the customer?", "criteria": LEVELS},
}
OPTIONS = {f"Queue {index:03d}": f"Tickets routed to queue {index}" for index in range(255)}
STATE_WORDS = 150  # about 200 tokens


def states(bench: Bench, rows: int) -> list[str]:
    return [" ".join(bench.rng.choice(TEXT.split(), STATE_WORDS).tolist()) for _ in range(rows)]


def three_questions(bench: Bench, rows: int) -> None:
    engine = bench.engine(rows, 512)
    one = SystemOne(engine)
    load = f"three questions, batch {rows}"
    forms: tuple[tuple[str, Any, Any], ...] = (
        ("plain", lambda state: Decide(state, PLAIN), engine.run_many),
        ("typed", lambda state: Decide(state, TYPED), engine.run_many),
        ("systemone", lambda state: {"state": state, "questions": QUESTIONS}, one.answer_many),
    )
    reach = {1: 60.0, 64: 25.0}.get(rows)
    for key, make, run in forms:
        costs = bench.repeat(rows, lambda make=make: [make(state) for state in states(bench, rows)], run)  # type: ignore[misc]
        bench.add(f"{key}_b{rows}", load, key, costs, reach)
    engine.close()


def many_options(bench: Bench, quick: bool) -> None:
    """Turns of both, the ratio of the medians."""
    again, new = [], []
    with Engine.from_pretrained(dtype="float32", config=EngineConfig(kv_bytes=1 << 24)) as engine:
        ask = Choice("Which queue?", OPTIONS)
        engine.decide("warm", [ask])
        for index in range(4 if quick else 20):
            [state] = states(bench, 1)
            for times, question in ((again, ask), (new, Choice(f"Which queue is it, of {index}?", OPTIONS))):
                began = time.perf_counter()
                engine.decide(state, [question])
                times.append((time.perf_counter() - began) * 1e3)
    for key, times in (("the same question", again), ("a new question", new)):
        spread = (median(times), min(times), max(times))
        bench.report.add("255 described options", key, spread, "ms")
    bench.us["options_ratio"] = median(new) / median(again)
    bench.report.add(
        "255 described options", "ratio of medians", (bench.us["options_ratio"],) * 3, "x", reach="<= 1.3"
    )


def measured(quick: bool) -> Bench:
    bench = Bench(quick)
    bench.report.title = "Typed decisions"
    bench.report.facts |= machine_facts()
    for rows in (1, 64):
        three_questions(bench, rows)
    many_options(bench, quick)
    return bench


def main() -> None:
    run_alone(__doc__, measured, "typed_decisions_us")


if __name__ == "__main__":
    main()
