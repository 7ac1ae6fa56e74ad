"""Examples and documents as tensors.

A row is a state followed by its questions. Every question is a branch: it sees the state and
itself, its positions continue the state's, exactly as an engine computes several questions on
one state. The rows of a batch share their rubric, which is computed once.

    prefix      rubric + "\\n\\nText:"                                  [1, P]
    row         text + "\\n\\n" | question 1 + label | question 2 + label [N, T]
    segment     0                | 1                  | 2
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from .corpus import END, TEMPLATE, Corpus, Example

IGNORE = -100
SPLIT = "\x00"


@dataclass
class Batch:
    prefix: Tensor | None
    ids: Tensor
    positions: Tensor
    mask: Tensor | None
    text_targets: Tensor
    label_targets: Tensor


def render(
    example: Example, rubric: str, bare: bool, style: dict[str, str] = TEMPLATE
) -> tuple[str, str, list[tuple[str, str]]]:
    """Shared prefix, the rest of the state, and (question part, label part) of each question."""
    state = example.text if bare else f"{rubric}\n\nText:{SPLIT} {example.text}".lstrip("\n")
    prefix, _, rest = style["state"].format(state=state).rpartition(SPLIT)
    parts = [(question.asked(style), style["label"].format(label=question.answer)) for question in example.questions]
    return prefix, rest, parts


class Rows:
    """Token ids of one example, before padding."""

    def __init__(self, tokenizer: Tokenizer, end: int, rest: str, parts: list[tuple[str, str]]) -> None:
        self.ids = tokenizer.encode(rest).ids
        state = len(self.ids)
        self.segments, self.positions = [0] * state, list(range(state))
        # Each position's target is the token after it; a state's last position has none.
        self.text = [*self.ids[1:], IGNORE]
        self.label = [IGNORE] * state
        for number, (question, label) in enumerate(parts, 1):
            asked, answer = tokenizer.encode(question).ids, [*tokenizer.encode(label).ids, end]
            branch = [*asked, *answer[:-1]]
            self.ids += branch
            self.segments += [number] * len(branch)
            self.positions += range(state, state + len(branch))
            self.text += [IGNORE] * len(branch)
            self.label += [IGNORE] * (len(asked) - 1) + answer


def decision_batch(rows: list[Rows], prefix: list[int]) -> Batch:
    width, shared = max(len(row.ids) for row in rows), len(prefix)

    def padded(name: str, fill: int) -> Tensor:
        return torch.tensor([getattr(row, name) + [fill] * (width - len(getattr(row, name))) for row in rows])

    segments = padded("segments", -1)
    mine, theirs = segments[:, :, None], segments[:, None, :]
    seen = ((theirs == 0) | (theirs == mine)) & torch.ones(width, width, dtype=torch.bool).tril()
    mask = torch.cat([torch.ones(len(rows), width, shared, dtype=torch.bool), seen], 2)[:, None]
    return Batch(
        prefix=torch.tensor([prefix]) if prefix else None,
        ids=padded("ids", 0),
        positions=padded("positions", 0) + shared,
        mask=mask,
        text_targets=padded("text", IGNORE),
        label_targets=padded("label", IGNORE),
    )


def decision_batches(corpus: Corpus, tokenizer: Tokenizer, tokens: int) -> Iterator[Batch]:
    """Batches of about ``tokens`` row tokens; rows of like length together."""
    end, rng = tokenizer.token_to_id(END), corpus.rng
    while True:
        rubric, default = corpus.rubric()
        bare = not rubric and rng.random() < corpus.bare
        style = TEMPLATE if default else rng.choice(corpus.styles)
        least = rng.randint(300, 2500) if rng.random() < 0.06 else None
        examples = [corpus.example(default, least) for _ in range(24 if least else 128)]
        rendered = [render(example, rubric, bare, style) for example in examples]
        prefix = tokenizer.encode(rendered[0][0]).ids if rendered[0][0] else []
        rows = [Rows(tokenizer, end, rest, parts) for _, rest, parts in rendered]
        rows = sorted((row for row in rows if len(row.ids) + len(prefix) <= 2048), key=lambda row: len(row.ids))
        group: list[Rows] = []
        groups = [group]
        for row in rows:
            if group and (len(group) + 1) * len(row.ids) > tokens:
                group = []
                groups.append(group)
            group.append(row)
        # A last group of a row or two would weigh as much as a full one.
        groups = [group for group in groups if sum(len(row.ids) for row in group) > tokens // 4] or groups
        rng.shuffle(groups)
        yield from (decision_batch(group, prefix) for group in groups)


def document_batches(corpus: Corpus, tokenizer: Tokenizer, tokens: int) -> Iterator[Batch]:
    """Documents one after another, cut into rows of 256 tokens, now and then of 2,048."""
    end, stream = tokenizer.token_to_id(END), []
    count = 0
    while True:
        width = 2048 if count % 8 == 7 else 256
        count += 1
        rows = max(1, tokens // width)
        while len(stream) < rows * width + 1:
            stream += [*tokenizer.encode(corpus.document()).ids, end]
        ids = torch.tensor(stream[: rows * width]).view(rows, width)
        targets = torch.tensor(stream[1 : rows * width + 1]).view(rows, width)
        del stream[: rows * width]
        positions = torch.arange(width).expand(rows, width)
        yield Batch(None, ids, positions, None, targets, torch.full_like(targets, IGNORE))
