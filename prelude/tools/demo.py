"""``prelude demo``: typed decisions, a decision fitted on labelled rows, a ranking, and how long they took."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from prelude import default_model
from prelude.api.sync import Engine
from prelude.errors import InvalidRequest
from prelude.models.names import PACKAGES, is_there
from prelude.tasks import Choice, Decide, Embed, Noul, Score
from prelude.terminal.command_line import add_model
from prelude.terminal.tables import shortened
from prelude.values.config import EngineConfig

DECIDES, EMBEDS = "sparrow-general", "all-MiniLM-L6-v2"
_TICKET = "I was charged twice in March. Please refund one of the payments today!"
_KNOWN = "Please call Anna Schmidt on 06 42 17 88 90 about her invoice."
_QUERY = "Where is my parcel?"


def add_arguments(demo: argparse.ArgumentParser) -> None:
    add_model(demo)


def main(chosen: argparse.Namespace) -> int:
    rows = json.loads((default_model.path() / "demo_rows.json").read_text(encoding="utf-8"))
    named = chosen.model is not None or chosen.revision is not None
    there = [name for name in (EMBEDS, DECIDES) if not named and is_there(name)]
    deciding = DECIDES if DECIDES in there else chosen.model
    with ExitStack() as stack:

        def opened(name: str | None) -> Engine:
            config = EngineConfig(deterministic=True)
            load = Engine.from_pretrained(name, revision=chosen.revision, dtype=chosen.dtype, config=config)
            return stack.enter_context(load)

        times: dict[str, float] = {}
        with _timed(times, "loading"):
            engine = opened(deciding)
            other = opened(EMBEDS) if EMBEDS in there else engine
        for show, of in ((_decisions, engine), (_fitted, other), (_ranking, other)):
            try:
                show(of, rows, times)
            except InvalidRequest as error:
                print(f"Left out: {error}")
        print("Milliseconds: " + ", ".join([f"{seconds * 1e3:.1f} {name}" for name, seconds in times.items()]) + ".")
    if chosen.model is None:
        for name in (DECIDES, EMBEDS):
            if name not in there:
                print(f"{name} does this better: {PACKAGES[name].command}")
    return 0


@contextmanager
def _timed(times: dict[str, float], name: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    times[name] = time.perf_counter() - began


def _is_packaged(engine: Engine) -> bool:
    return engine.model_info.path == default_model.path()


def _name(engine: Engine) -> str:
    path = engine.model_info.path
    known = {Path(one.path).parts[-2:]: name for name, one in PACKAGES.items()}
    return "the packaged model" if _is_packaged(engine) else known.get(path.parts[-2:], shortened(path.name, 40))


def _decisions(engine: Engine, rows: Any, times: dict[str, float]) -> None:
    teams = {"Billing": "payments, invoices, refunds", "Support": "bugs and outages", "Sales": "prices and upgrades"}
    text: str = _TICKET
    asked: dict[str, Any] = {
        "team": Choice("Which team?", teams),
        "wish": Choice("What does the customer want?", ["refund", "information", "cancellation"]),
        "urgency": Score("How urgent is it?", ["not urgent", "soon", "now"]),
    }
    if _is_packaged(engine):  # it knows these two questions and no other
        text = _KNOWN
        asked = {"language": Choice("Which language is it?", ["English", "French", "German"])}
        asked["personal"] = Noul("Does it contain personal data?")
    with _timed(times, f"{len(asked)} decisions"):
        answers = engine.decide(text, asked)
    print(f'Typed decisions of {_name(engine)}: "{text}"')
    for name, answer in answers.named.items():
        question = asked[name]
        labels: Any = question.levels if isinstance(question, Score) else answer.labels
        shares = [f"{label} {share:.2f}" for label, share in zip(labels, answer.probabilities.values())]
        print(f"  {question.question:43} {', '.join(shares)}")


def _fitted(engine: Engine, rows: dict[str, list[str]], times: dict[str, float]) -> None:
    pairs = [(text, label) for label, texts in rows.items() for text in texts]
    texts, labels = zip(*pairs[::2])
    with _timed(times, f"fit of {len(texts)} rows"):
        team = engine.fit(texts, labels, name="team", pooling=_pooling(engine), progress=False)
    others = pairs[1::2]
    with _timed(times, f"{len(others)} decisions of it"):
        answers = engine.run_many([Decide(text, [team]) for text, _ in others], progress=False)
    right = sum([answer[0].label == label for answer, (_, label) in zip(answers, others)])
    said = f"A decision fitted on {len(texts)} labelled rows, vectors of {_name(engine)}"
    print(f"{said}: {right} of {len(others)} others")
    good_for = ". Its vectors tell languages apart, and not topics" if _is_packaged(engine) else ""
    print(f"  are answered rightly; by chance {len(others) // len(rows)} would be{good_for}.")
    for text in ("The parcel was left in the rain.", "Who won the match last night?"):
        [answer] = engine.decide(text, [team])
        said = (
            f"{answer.label} {answer.probability:.2f}" if answer.in_scope else "out of scope: like no row of the fit"
        )
        print(f"  {text:43} {said}")


def _ranking(engine: Engine, rows: dict[str, list[str]], times: dict[str, float]) -> None:
    texts = [text for part in rows.values() for text in part]
    pooling: Any = _pooling(engine)
    with _timed(times, f"{len(texts)} vectors"):
        query, *vectors = engine.run_many([Embed(text, pooling=pooling) for text in (_QUERY, *texts)], progress=False)
    cosines = [float(query @ vector) for vector in vectors]
    print(f'The nearest of {len(texts)} texts to "{_QUERY}"')
    for at in sorted(range(len(texts)), key=cosines.__getitem__, reverse=True)[:3]:
        print(f"  {texts[at]:43} {cosines[at]:.2f}")


def _pooling(engine: Engine) -> Any:
    return "mean" if engine.model_info.pooling is None else None
