"""``prelude demo``: one typed decision, the same one in another order, and two questions that the packaged model
knows."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from prelude.errors import InvalidRequest
from prelude.terminal.command_line import add_model
from prelude.terminal.tables import shortened, shown_width, text_table

if TYPE_CHECKING:
    from prelude.api.engine import Engine
    from prelude.results import Answer, Answers
    from prelude.tasks import Orders

BAR = 24  # places of a probability of 1
SHOWN_TEXTS = 10
_TICKET = {
    "subject": "Invoice 4471",
    "body": "I was charged twice in March, and the refund that I was promised has not arrived. Please fix it today.",
}
_FORM = (
    "\nThe packaged model has two million parameters and never learnt such questions: the figures above show the\n"
    "form of an answer, and a mass near 0 says that the labels did not fit. The questions that it knows follow.\n"
    "--model DIR_OR_HUB_NAME takes a model of your own."
)
_KNOWS = (
    "\nIt knows these two questions, in this wording. It answers any other question too, with confidence and\n"
    'wrongly: "Is the text free of personal data?" as if it were the question above. Its completions make no sense.'
)


def add_arguments(demo: argparse.ArgumentParser) -> None:
    add_model(demo)


def main(chosen: argparse.Namespace) -> int:
    from prelude import Engine, EngineConfig
    from prelude.default_model import path as default_path

    script = json.loads((default_path() / "demo.json").read_text(encoding="utf-8"))
    began = time.perf_counter()
    config = EngineConfig(deterministic=True)
    load = Engine.from_pretrained(chosen.model, revision=chosen.revision, dtype=chosen.dtype, config=config)
    with load as engine:
        loaded = time.perf_counter()
        _show_ticket(engine)
        if chosen.model is None:
            print(_FORM)
        for show in (_show_known, _show_vectors):
            try:
                show(engine, script)
            except InvalidRequest as error:
                print(f"\nLeft out: {error}")
        if chosen.model is None:
            print(_KNOWS)
        took = time.perf_counter() - loaded
        _show_account(engine, str(chosen.model or Path(default_path()).name), loaded - began, took)
    return 0


def _questions(turned: bool = False) -> dict[str, Any]:
    """Three questions by name; ``turned``: with other names, in another order, and so are the options."""
    from prelude import Choice, Noul, Score

    teams = {"Billing": "payments, invoices, refunds", "Support": "bugs and outages", "Sales": "prices and upgrades"}
    refund = Noul("Is the customer asking for money back?")
    anger = Score("How frustrated is the customer?", ["calm", "annoyed", "very angry"])
    if turned:
        return {"c": anger, "b": Choice("Which team?", dict(reversed(teams.items()))), "a": refund}
    return {"refund": refund, "team": Choice("Which team?", teams), "anger": anger}


# ------------------------------------------------------------------ one request


def _show_ticket(engine: Engine) -> None:
    questions, orders = _questions(), _orders(engine)
    answers = engine.decide(_TICKET, questions, orders=orders)
    print(f"One ticket, three typed questions, one pass over the ticket\n\n{json.dumps(_TICKET)}\n")
    shown_in = ", shown in all cyclic orders" if orders == "all" else ""
    notes = ["yes or no", f"options with descriptions{shown_in}", "levels, lowest first"]
    for (name, question), answer, note in zip(questions.items(), answers, notes):
        print(f"{name}: {question.question}  ({note})")
        print("\n".join(_bars(question, answer)), end="\n\n")
    if orders != "all":
        return
    again = engine.decide(_TICKET, _questions(turned=True), orders=orders)
    same = _numbers(answers) == _numbers([again["a"], again["b"], again["c"]])
    print(
        "The same request with its questions renamed and reordered and its options in another order:\n"
        f"{'all' if same else 'NOT all'} {len(_numbers(answers))} probabilities have the same bits."
    )


def _orders(engine: Engine) -> Orders:
    """ "given" for a head that takes no others."""
    from prelude import Decide

    try:
        engine.explain(Decide(_TICKET, _questions(), orders="all"))
    except InvalidRequest as error:
        return "given" if error.field == "orders" else "all"
    return "all"


def _bars(question: Any, answer: Answer) -> list[str]:
    names = [str(level) for level in question.levels] if answer.kind == "score" else list(answer.labels)
    width = max(map(shown_width, names))
    lines = []
    for name, share in zip(names, answer.probabilities.values()):
        space = " " * (width - shown_width(name))
        lines.append(f"  {name}{space}  {'█' * round(BAR * share):{BAR}}  {share:.3f}")
    said = [f"mass {answer.mass:.3f}"] if answer.mass == answer.mass else []  # a head that reads options has none
    if answer.confidence is not None:
        said.insert(0, f"confidence {answer.confidence:.3f}")
    if answer.expected is not None:
        said.insert(0, f"score {answer.expected:.2f}")
    return [*lines, f"  {', '.join(said)}"]


def _numbers(answers: Any) -> list[float]:
    return [answer.probabilities[label] for answer in answers for label in sorted(answer.labels)]


# ------------------------------------------------------------------ the packaged model's two questions


def _show_known(engine: Engine, script: dict[str, Any]) -> None:
    """Texts under the shared rubric, all at once: the rubric is computed once."""
    from prelude import Choice, Decide

    questions = [Choice(question["question"], question["labels"]) for question in script["questions"]]
    texts = script["texts"][: 3 * SHOWN_TEXTS : 3]
    states = [script["state"].format(rubric=script["rubric"], text=text) for text in texts]
    decisions: list[Answers] = engine.run_many([Decide(state, questions) for state in states])
    header = ["text"]
    for question in script["questions"]:
        header += [question["key"].replace("_", " "), "p"]
    rows = []
    for text, answers in zip(texts, decisions):
        row = [text]
        for answer in answers:
            row += [answer.label, f"{answer.probability:.3f}"]
        rows.append(row)
    asked = " / ".join(question["question"] for question in script["questions"])
    title = f"{asked}  (one rubric, {len(decisions)} texts)"
    width = get_terminal_size().columns
    print()
    print(text_table(rows, header=header, right=range(2, len(header), 2), title=title, elastic=0, width=width))


def _show_vectors(engine: Engine, script: dict[str, Any]) -> None:
    named = engine.model_info.pooling is not None
    vectors = [engine.embed(text, pooling=None if named else "mean") for text in script["texts"][: 3 * 4 : 3]]
    near = " ".join(f"{float(vectors[0] @ other):+.2f}" for other in vectors[1:])
    print(f"\nEmbeddings  {len(vectors[0])} dimensions; cosine of text 1 with texts 2 to 4: {near}")


def _show_account(engine: Engine, model: str, load_s: float, run_s: float) -> None:
    stats = engine.stats()
    computed = stats["prefill_tokens"] + stats["decode_tokens"]
    folded, cached = stats["folded_tokens"], stats["prefix_hit_tokens"]
    rows = {
        "model": shortened(model, 60),
        "requests": ", ".join(f"{count} {name}" for name, count in stats["requests"].items()),
        "steps": ", ".join(f"{count} {name}" for name, count in stats["steps"].items()),
        "tokens computed": f"{computed}",
        "tokens reused": f"{folded + cached} ({folded} shared within a step, {cached} from the prefix cache)",
        "milliseconds": f"{load_s * 1e3:.0f} loading, {run_s * 1e3:.0f} for all of the above, "
        f"{stats['forward_seconds'] * 1e3:.0f} in the model",
    }
    print()
    print(text_table(list(rows.items()), title="Counters"))
