"""Embed and Classify: one row of hidden states, or all of them, through a head that is a readout."""

from __future__ import annotations

from typing import Any

import numpy as np

from prelude.admission import checks
from prelude.admission.facts import Facts, admitted
from prelude.admission.prepared import Admitted, Outcome, TokenTree
from prelude.admission.prompts import encode_prompt
from prelude.admission.tokenization import Use
from prelude.batch import F32, HeadOutput, HeadRows, PooledOutput, PooledRows
from prelude.errors import InvalidRequest
from prelude.results import Classification, Embedding
from prelude.tasks import Classify, Embed

POOLINGS = ("last", "cls", "mean")
ACTIVATIONS = ("default", "none", "sigmoid", "softmax")


def prepare_embed(facts: Facts, use: Use, task: Embed) -> Admitted:
    pooling = task.pooling if task.pooling is not None else facts.default_pooling
    if pooling is None:
        raise InvalidRequest(
            "the model directory does not say how its vectors are pooled (it has no 1_Pooling/config.json), and a "
            'guess would be silently wrong; name it: pooling="last", "cls" or "mean"',
            field="pooling",
        )
    checks.one_of(pooling, "pooling", POOLINGS)
    hidden = facts.limits.hidden_size
    dimensions = hidden if task.dimensions is None else checks.integer(task.dimensions, "dimensions", 1, hidden)
    wanted: Any = task.normalize
    normalize = facts.normalize_default if wanted is None else checks.flag(wanted, "normalize")
    prompt = encode_prompt(facts, use, task.prompt, field="prompt", truncation=task.truncation, room=facts.max_length)
    n = len(prompt.token_ids)
    rows = np.arange(n) if pooling == "mean" else np.array([0 if pooling == "cls" else n - 1])
    readout = PooledRows(rows.astype(np.int32), np.array([0, len(rows)], dtype=np.int32), pooling)

    def finish(outcome: Outcome) -> Embedding:
        output = outcome.output
        if not isinstance(output, PooledOutput):
            raise TypeError(f"an embedding needs PooledOutput, got {type(output).__name__}")
        vector = output.vectors[0, :dimensions]
        return Embedding.of(unit(vector) if normalize else vector.copy(), outcome.stats)

    return admitted(facts, use, task, TokenTree.single(prompt.token_ids), readout, finish, truncated=prompt.truncated)


def unit(vector: F32) -> F32:
    """``vector`` at length 1, float32. The zero vector stays zero: it has no direction."""
    wide = vector.astype(np.float64)
    length = float(np.sqrt(wide @ wide))
    return (wide / length).astype(np.float32) if length > 0 else np.zeros_like(vector)


def prepare_classify(facts: Facts, use: Use, task: Classify) -> Admitted:
    count = facts.limits.num_labels
    if count == 0:
        raise InvalidRequest(
            "this model has no classification head; ask it with decide(state, [Choice(...)]), which reads the "
            "probabilities of any labels"
        )
    activation = checks.one_of(task.activation, "activation", ACTIVATIONS)
    if activation == "default":
        activation = "sigmoid" if count == 1 else "softmax"
    labels = facts.labels if len(facts.labels) == count else tuple(f"LABEL_{i}" for i in range(count))
    prompt = encode_prompt(facts, use, task.prompt, field="prompt", truncation=task.truncation, room=facts.max_length)
    readout = HeadRows(np.array([len(prompt.token_ids) - 1], dtype=np.int32))

    def finish(outcome: Outcome) -> Classification:
        output = outcome.output
        if not isinstance(output, HeadOutput):
            raise TypeError(f"a classification needs HeadOutput, got {type(output).__name__}")
        logits = np.array(output.logits[0], dtype=np.float32)
        best = labels[int(np.argmax(logits))]
        return Classification(logits, activate(logits, activation), labels, best, outcome.stats)

    return admitted(facts, use, task, TokenTree.single(prompt.token_ids), readout, finish, truncated=prompt.truncated)


def activate(logits: F32, activation: str) -> F32:
    """Stable for logits of any size."""
    wide = logits.astype(np.float64)
    if activation == "softmax":
        wide = np.exp(wide - wide.max())
        wide /= wide.sum()
    elif activation == "sigmoid":
        small = np.exp(-np.abs(wide))
        wide = np.where(wide >= 0, 1.0, small) / (1.0 + small)
    return wide.astype(np.float32)
