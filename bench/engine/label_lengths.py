"""Accuracy and calibration of the forms of ``length_norm``: python -m bench label_lengths --model DIR [--json FILE]

Each model answers the questions of ``label_lengths.json``: six sets of labels of unequal lengths, 88 texts that were
written by hand for this comparison. Four ways to weigh the labels are compared:

    none              the joint logprob of a label's tokens
    token             that, divided by their number
    unconditional     that, less the label's logprob without the state
    first-divergence  the joint logprob of the tokens up to the first that no other label shares

The packaged model (``--model packaged``) was trained on one question with labels of unequal lengths, the language of
a text. It answers that question about eight held-out sentences of each language, and about their first 12 characters.

``length_norm`` has the first three; the fourth asks for labels that were cut there. Every model is asked through the
plain template and, where it has a chat template, through that as well. The options stand in the question's text, so
that all four see one prompt. Nothing is timed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prelude.tokenizer import Tokenizer

from bench.command_line import options_parser
from bench.common import Report, add_outputs
from bench.train import DATA
from prelude import Choice, Decide, DecisionTemplate, Engine, default_model
from prelude.results import Answer

SETS = Path(__file__).with_suffix(".json")
PLAIN = DecisionTemplate(question="Question: {question}\nAnswer:")
CHAT = DecisionTemplate(question="{question}", label="{label}", chat=True)
NORMS = ("none", "token", "unconditional", "first-divergence")
BINS = 10
PACKAGED, SENTENCES, CHARACTERS = "packaged", 8, 12


def cut(tokenizer: Tokenizer, template: DecisionTemplate, labels: Sequence[str]) -> list[str]:
    """Each label up to its first token that no other label has there; a text that has these tokens by itself."""
    space = template.label.partition("{")[0]

    def ids_of(label: str) -> list[int]:
        return tokenizer.encode(space + label, add_special_tokens=False).ids

    found = []
    for label in labels:
        ids, others = ids_of(label), [ids_of(other) for other in labels if other != label]
        for size in range(1, len(ids) + 1):
            text = tokenizer.decode(ids[:size]).removeprefix(space)
            if text and ids_of(text) == ids[:size] and all(other[:size] != ids[:size] for other in others):
                break
        found.append(text)
    return found


def answers(
    engine: Engine, tokenizer: Tokenizer, template: DecisionTemplate, asked: Any, norm: str
) -> list[tuple[Answer, int]]:
    """The answer about each text, and the number of the right label."""
    labels = list(asked["texts"])
    texts = [(text, number) for number, label in enumerate(labels) for text in asked["texts"][label]]
    given = cut(tokenizer, template, labels) if norm == "first-divergence" else labels
    question = Choice(f"{asked['question']}\nOptions: {', '.join(labels)}", given)
    length_norm: Any = "none" if norm == "first-divergence" else norm
    tasks = [Decide(text, [question], template=template, length_norm=length_norm) for text, _ in texts]
    return [(found[0], number) for found, (_, number) in zip(engine.run_many(tasks, progress=False), texts)]


def figures(rows: Sequence[tuple[Answer, int]]) -> dict[str, float]:
    """``accuracy``; ``ece``: expected calibration error over 10 bins; ``nll``: mean of -ln p of the right label."""
    bins: list[list[tuple[float, bool]]] = [[] for _ in range(BINS)]
    loss = 0.0
    for answer, right in rows:
        probabilities = [float(p) for p in answer.probabilities.values()]
        chosen = max(range(len(probabilities)), key=probabilities.__getitem__)
        bins[min(int(probabilities[chosen] * BINS), BINS - 1)].append((probabilities[chosen], chosen == right))
        loss -= math.log(max(probabilities[right], 1e-30))
    ece = sum(abs(sum(p for p, _ in one) - sum(hit for _, hit in one)) for one in bins) / len(rows)
    hits = sum(hit for one in bins for _, hit in one)
    return {"accuracy": round(hits / len(rows), 3), "ece": round(ece, 3), "nll": round(loss / len(rows), 3)}


def packaged_sets() -> dict[str, Any]:
    """The questions that the packaged model was trained on, in the form of ``label_lengths.json``."""
    script = json.loads((default_model.path() / "demo.json").read_text(encoding="utf-8"))
    asked = script["questions"][0]
    lines = (DATA / "heldout.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]

    def texts(characters: int | None) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {label: [] for label in asked["labels"]}
        for row in rows:
            if len(found[row["language"]]) < SENTENCES:
                state = script["state"].format(rubric=script["rubric"], text=row["text"][:characters])
                found[row["language"]].append(state)
        return found

    return {
        "sentences": {"question": asked["question"], "texts": texts(None)},
        "fragments": {"question": asked["question"], "texts": texts(CHARACTERS)},
    }


def measure(report: Report, model: str) -> None:
    packaged = model == PACKAGED
    sets = packaged_sets() if packaged else json.loads(SETS.read_text(encoding="utf-8"))
    folder = default_model.path() if packaged else Path(model)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    templates = {"plain": PLAIN}
    chat = folder / "tokenizer_config.json"
    has_chat = (folder / "chat_template.jinja").exists() or "chat_template" in chat.read_text(encoding="utf-8")
    if has_chat and not packaged:  # the packaged model was trained on the plain form
        templates["chat"] = CHAT
    with Engine.from_pretrained(folder) as engine:
        for form, template in templates.items():
            for norm in NORMS:
                found = {name: answers(engine, tokenizer, template, asked, norm) for name, asked in sets.items()}
                every = [row for rows in found.values() for row in rows]
                for measure, value in figures(every).items():
                    report.add(f"{Path(model).name}, {form}, {norm}", measure, (value, value, value), "")


def main() -> int:
    parser = options_parser(__doc__)
    parser.add_argument("--model", nargs="+", required=True, help="directories of checkpoints")
    add_outputs(parser, plot=False)
    chosen = parser.parse_args()
    report = Report("Norms of labels of unequal lengths")
    for model in chosen.model:
        measure(report, model)
    report.finish(chosen)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
