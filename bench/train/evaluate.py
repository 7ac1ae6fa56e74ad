"""Accuracies on the held-out sentences, with plain transformers: ``python -m bench.train.evaluate``."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bench.command_line import options_parser
from prelude.default_model import path

from . import DATA


@dataclass
class Result:
    language: float
    """Share of the sentences whose language is right."""
    personal_data: float
    """Share that is right among the sentences whose ``personal_data`` is true or false."""
    counts: dict[str, list[int]] = field(default_factory=dict)
    """Language → [sentences, right language, asked for personal data, right]."""
    wrong: list[str] = field(default_factory=list)

    def table(self) -> str:
        lines = [f"{'language':12} {'sentences':>9} {'right':>6}   {'asked':>6} {'right':>6}"]
        lines += [
            f"{name:12} {total:9} {right:6}   {asked:6} {found:6}"
            for name, (total, right, asked, found) in self.counts.items()
        ]
        lines.append(f"language {self.language:.2%}   personal data {self.personal_data:.2%}")
        return "\n".join(lines)


def held_out(file: Path | None = None) -> list[dict[str, Any]]:
    lines = (file or DATA / "heldout.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def label_logprobs(
    model: Any, tokenizer: Any, prompts: list[list[int]], labels: list[str], template: dict[str, str], batch: int
) -> torch.Tensor:
    """[prompts, labels]: log-probability of every label after every prompt."""
    pieces = [tokenizer.encode(template["label"].format(label=label), add_special_tokens=False) for label in labels]
    out = torch.empty(len(prompts), len(labels))
    # One row per prompt and label where labels have several tokens; else one row per prompt.
    single = all(len(piece) == 1 for piece in pieces)
    work = [(row, 0) for row in range(len(prompts))]
    if not single:
        work = [(row, column) for row in range(len(prompts)) for column in range(len(labels))]
    work.sort(key=lambda item: len(prompts[item[0]]) + len(pieces[item[1]]))
    for start in range(0, len(work), batch):
        chunk = work[start : start + batch]
        rows = [prompts[row] + pieces[column][:-1] for row, column in chunk]
        width = max(map(len, rows))
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        seen = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
        with torch.inference_mode():
            logprobs = model(input_ids=ids, attention_mask=seen).logits.float().log_softmax(-1)
        for at, (row, column) in enumerate(chunk):
            if single:
                out[row] = logprobs[at, len(prompts[row]) - 1, [piece[0] for piece in pieces]]
            else:
                first = len(prompts[row]) - 1
                steps = range(first, first + len(pieces[column]))
                out[row, column] = sum(logprobs[at, step, token] for step, token in zip(steps, pieces[column]))
    return out


def evaluate(
    directory: Path | None = None,
    rows: list[dict[str, Any]] | None = None,
    dtype: torch.dtype = torch.float32,
    batch: int = 16,
) -> Result:
    """Both decisions on every held-out sentence, with the demo's rubric and the default template.

    The rubric, the questions and the sentences are the package's own; ``directory`` has the model.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    directory = directory or path()
    template = json.loads((directory / "decision_template.json").read_text(encoding="utf-8"))
    demo = json.loads((path() / "demo.json").read_text(encoding="utf-8"))
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()
    rows = held_out() if rows is None else rows
    result = Result(0.0, 0.0)
    for question in demo["questions"]:
        asked = template["question"].format(question=question["question"], labels=", ".join(question["labels"]))
        after = tokenizer.encode(asked, add_special_tokens=False)
        prompts = []
        for row in rows:
            state = template["state"].format(state=demo["state"].format(rubric=demo["rubric"], text=row["text"]))
            prompts.append(tokenizer.encode(state, add_special_tokens=False) + after)
        scores = label_logprobs(model, tokenizer, prompts, question["labels"], template, batch)
        for row, best in zip(rows, scores.argmax(-1).tolist()):
            answer = question["labels"][best]
            counts = result.counts.setdefault(row["language"], [0, 0, 0, 0])
            if question["key"] == "language":
                right = answer == row["language"]
                counts[0] += 1
                counts[1] += right
            elif row["personal_data"] is not None:
                right = answer == ("yes" if row["personal_data"] else "no")
                counts[2] += 1
                counts[3] += right
            else:
                continue
            if not right:
                result.wrong.append(f"{question['key']}: {answer!r} for {row['language']}: {row['text'][:160]}")
    total = Counter()
    for sentences, right, asked_rows, found in result.counts.values():
        total.update(sentences=sentences, right=right, asked=asked_rows, found=found)
    result.language = total["right"] / total["sentences"]
    result.personal_data = total["found"] / max(1, total["asked"])
    return result


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("directory", nargs="?", type=Path, default=path())
    parser.add_argument("--rows", type=Path, default=DATA / "heldout.jsonl")
    parser.add_argument("--wrong", action="store_true", help="print every wrong answer")
    options = parser.parse_args()
    result = evaluate(options.directory, held_out(options.rows))
    print(result.table())
    if options.wrong:
        print(*result.wrong, sep="\n")


if __name__ == "__main__":
    main()
