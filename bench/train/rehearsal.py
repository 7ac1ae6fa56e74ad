"""Accuracy on text that the training set aside, to choose by; the held-out sentences stay unseen."""

from __future__ import annotations

from collections import Counter

import torch
from tokenizers import Tokenizer

from . import phrases
from .batches import Rows, decision_batch, render
from .corpus import TEMPLATE, Corpus
from .network import Network


def set_aside(sentences: dict[str, list[str]], every: int = 40) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """(training, rehearsal)"""
    rest = {name: [text for at, text in enumerate(texts) if at % every] for name, texts in sentences.items()}
    return rest, {name: texts[::every] for name, texts in sentences.items()}


@torch.no_grad()
def rehearse(network: Network, corpus: Corpus, tokenizer: Tokenizer, batches: int = 16) -> dict[str, float]:
    """Share of right answers to the default questions: by language, and by kind of personal data."""
    right, asked = Counter(), Counter()
    for _ in range(batches):
        examples = [corpus.example(default=True) for _ in range(32)]
        rendered = [render(example, phrases.RUBRIC, False) for example in examples]
        batch = decision_batch(
            [Rows(tokenizer, 0, rest, parts) for _, rest, parts in rendered], tokenizer.encode(rendered[0][0]).ids
        )
        _, hidden = network(batch.prefix, batch.ids, batch.positions, batch.mask)
        for row, example in enumerate(examples):
            spots = (batch.label_targets[row] >= 0).nonzero().flatten().tolist()
            spots = [spot for spot in spots if batch.label_targets[row, spot] != 0]
            for question, spot in zip(example.questions, spots):
                names = {tokenizer.encode(TEMPLATE["label"].format(label=x)).ids[0]: x for x in question.labels}
                logits = network.logits(hidden[row, spot])
                answer = names[max(names, key=lambda token: float(logits[token]))]
                data = len(question.labels) == 2
                for key in ("data" if data else "language", (example.kind or "none") if data else example.language):
                    asked[key] += 1
                    right[key] += answer == question.answer
    return {key: round(right[key] / asked[key], 3) for key in sorted(asked)}
