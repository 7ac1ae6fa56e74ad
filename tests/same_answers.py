"""Random requests asked again with other names, in another order, with more and with fewer questions, and with their
options in another order: the bits of every answer are compared.

    python -m tests.same_answers --requests 10000 --seed 1 --json FILE

The packaged model in float32 with ``deterministic=True``. A request is a random state and one to five random
questions of all types, with descriptions and structured text. Each is answered alone; then its variants are answered
together with those of 15 other requests, cached prefixes and shared steps included:

    renamed     every question under another name
    reordered   the questions in another order
    extended    with one to three other questions among them
    reduced     one of its questions alone
    permuted    the options of every choice in another order (but with ``orders="given"``, where that is another text)

The exit status is 1 if a bit changed. ``sha256`` is of the answers to the requests alone: two commits that print the
same give the same bits.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from prelude import Engine, EngineConfig
from prelude.systemone import SystemOne

WORDS = """invoice refund harbour morning customer late angry quiet boat price upgrade bug ticket Rechnung heute gare
天气 письмо café urgent team sales billing crash login password train window second wrong account order"""
ORDERS: tuple[Any, ...] = ("given", "sorted", 2, 3, "all")
TOGETHER = 16
Request = dict[str, Any]


class Maker:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def words(self, most: int) -> str:
        return " ".join(self.rng.choices(WORDS.split(), k=self.rng.randint(1, most)))

    def text(self, most: int) -> Any:
        """A string, an object or an array."""
        kind = self.rng.random()
        if kind < 0.7:
            return self.words(most)
        if kind < 0.85:
            return {self.words(1): self.words(most), "n": self.rng.randint(0, 99)}
        return [self.words(most), {"x": self.words(2)}]

    def maybe(self, most: int) -> Any:
        return None if self.rng.random() < 0.4 else self.text(most)

    def question(self) -> Request:
        kind = self.rng.choice(("noul", "choice", "score"))
        if kind == "noul":
            criteria = {side: self.text(4) for side in ("true", "false") if self.rng.random() < 0.4}
            return {"type": kind, "instructions": self.text(8), "criteria": criteria or None}
        if kind == "choice":
            options = self.rng.sample(WORDS.split(), self.rng.randint(2, 6))
            return {
                "type": kind,
                "instructions": self.maybe(8),
                "criteria": {name: self.maybe(5) for name in options},
            }
        levels = [self.text(4) for _ in range(self.rng.randint(2, 10))]
        return {"type": kind, "instructions": self.maybe(8), "criteria": levels}

    def request(self) -> Request:
        questions = {f"q{index}": self.question() for index in range(self.rng.randint(1, 5))}
        return {"state": self.text(40), "questions": questions}

    def variants(self, request: Request, orders: Any) -> dict[str, tuple[Request, dict[str, str]]]:
        """By kind: another request, and its names of the questions that both have."""
        rng, asked = self.rng, request["questions"]
        same = {name: name for name in asked}
        renamed = {name: f"{self.words(2)} {index} ✓" for index, name in enumerate(asked)}
        mixed = list(asked)
        rng.shuffle(mixed)
        more = [*asked.items(), *((f"more {index}", self.question()) for index in range(rng.randint(1, 3)))]
        rng.shuffle(more)
        one = rng.choice(mixed)
        found = {
            "renamed": ({renamed[name]: question for name, question in asked.items()}, renamed),
            "reordered": ({name: asked[name] for name in mixed}, same),
            "extended": (dict(more), same),
            "reduced": ({one: asked[one]}, {one: one}),
        }
        if orders != "given":
            found["permuted"] = ({name: self.permuted(question) for name, question in asked.items()}, same)
        return {kind: ({**request, "questions": questions}, names) for kind, (questions, names) in found.items()}

    def permuted(self, question: Request) -> Request:
        if question["type"] != "choice":
            return question
        names = list(question["criteria"])
        self.rng.shuffle(names)
        return {**question, "criteria": {name: question["criteria"][name] for name in names}}


def compare(engine: Engine, requests: int, seed: int) -> dict[str, Any]:
    make = Maker(seed)
    services = {orders: SystemOne(engine, orders=orders) for orders in ORDERS}
    compared: Counter[str] = Counter()
    changed: Counter[str] = Counter()
    examples: list[Any] = []
    digest = hashlib.sha256()
    began = time.monotonic()
    for first in range(0, requests, TOGETHER):
        orders = make.rng.choice(ORDERS)
        service = services[orders]
        base = [make.request() for _ in range(min(TOGETHER, requests - first))]
        alone = [service.answer(request)["answers"] for request in base]
        digest.update(json.dumps(alone).encode())
        jobs = [
            (at, kind, *variant)
            for at, one in enumerate(base)
            for kind, variant in make.variants(one, orders).items()
        ]
        make.rng.shuffle(jobs)
        together = service.answer_many([request for _, _, request, _ in jobs])
        for (at, kind, _, names), body in zip(jobs, together):
            for name, other in names.items():
                compared[kind] += 1
                if body["answers"][other] != alone[at][name]:
                    changed[kind] += 1
                    examples.append({"kind": kind, "orders": str(orders), "name": name, "base": base[at]})
        if first // TOGETHER % 25 == 0:
            done = f"{first + len(base)} requests, {sum(compared.values())} answers compared"
            print(f"{done}, {time.monotonic() - began:.0f} s", flush=True)
    return {
        "requests": requests,
        "seed": seed,
        "sha256": digest.hexdigest(),
        "answers_compared": dict(sorted(compared.items())),
        "answers_changed": {kind: changed[kind] for kind in sorted(compared)},
        "examples": examples[:3],
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    logging.disable(logging.WARNING)  # of labels of different lengths, once for each set of them
    config = EngineConfig(deterministic=True, kv_bytes=1 << 25)
    with Engine.from_pretrained(dtype="float32", config=config) as engine:
        found = compare(engine, chosen.requests, chosen.seed)
        engine._core.audit()
    print(json.dumps({key: value for key, value in found.items() if key != "examples"}, indent=1))
    if chosen.json is not None:
        command = f"python -m tests.same_answers --requests {chosen.requests} --seed {chosen.seed}"
        chosen.json.write_text(
            json.dumps({"command": command, **found}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )
    return 1 if sum(found["answers_changed"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
