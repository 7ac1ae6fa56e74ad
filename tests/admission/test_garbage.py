"""A task with any values is prepared, or refused with a typed error that names the place. Nothing else happens."""

from __future__ import annotations

import random
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from prelude.admission.prepared import ExecutionClass, classify
from prelude.admission.preparer import Preparer
from prelude.admission.snapshot import snapshot
from prelude.admission.template import DecisionTemplate
from prelude.errors import InvalidRequest
from prelude.tasks import (
    Choice,
    Classify,
    Decide,
    Embed,
    Generate,
    Loglikelihood,
    PromptLogprobs,
    SamplingParams,
    Score,
    YesNo,
)
from tests.admission import toys


class Hostile:
    """Refuses to be compared, shown or measured."""

    def __repr__(self) -> str:
        raise RuntimeError("repr")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("eq")

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        raise RuntimeError("len")


GARBAGE: list[Any] = [
    None, True, False, -1, 0, 1, 2, 5, 1 << 31, 1 << 63, 1 << 70, -(1 << 70), 0.0, -0.0, 0.5, 1.0, 1e38,
    float("nan"), float("inf"), "", "x", "auto", "head", "last", "The quick brown fox", "a\ud800", "\x00", b"",
    b"bytes", [], (), {}, set(), [None], [[1]], [5, 6], (5, 6), [True], [1.5], ["x"], [{}],
    [{"role": "user", "content": "hi"}], [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
    [{"role": None}], [{"role": "user"}, 5], {"role": "user"}, np.array([5, 6]), np.array([]), np.array(5),
    np.array([[5]]), np.float32(0.5), np.int64(5), np.bool_(True), range(3), iter([5]), object(), Hostile(),
    [Hostile()], YesNo("Polite?"), [YesNo("Polite?")], [YesNo(None)], [Choice("q", None)],
    [Choice("q", ["a", "b"])], [Choice("q", [["a"]])], [Choice("q", [Hostile()])], [Choice(Hostile(), ["a"])],
    [Score("q", Hostile())], [Score("q", 3)], DecisionTemplate(), SamplingParams(),
    SamplingParams(max_tokens=0),
]  # fmt: skip
VALID: dict[str, list[Any]] = {
    "state": ["The quick brown fox", [5, 6]], "prompt": ["The quick brown fox", [5, 6]], "context": ["The quick"],
    "continuation": [" brown"], "questions": [[YesNo("Polite?"), Choice("Which?", ["a", "ab"])]], "template": [None],
    "pooling": ["mean"], "params": [SamplingParams(max_tokens=2)],
}  # fmt: skip


def garbled(rng: random.Random, kind: Any) -> Any:
    """A task with up to three fields of garbage, the others valid."""
    names = [field.name for field in fields(kind)]
    bad = set(rng.sample(names, min(len(names), rng.randint(0, 3))))
    values = {}
    for name in names:
        if name in bad:
            values[name] = rng.choice(GARBAGE)
        elif name in VALID:
            values[name] = rng.choice(VALID[name])
    if kind is Generate and rng.random() < 0.5:
        settings = rng.sample([field.name for field in fields(SamplingParams)], 2)
        values["params"] = SamplingParams(**{name: rng.choice(GARBAGE) for name in settings})
    return kind(**values)


@pytest.mark.fault(15)
@pytest.mark.parametrize("kind", [Decide, Embed, Classify, Loglikelihood, PromptLogprobs, Generate])
def test_garbage_is_refused_and_the_next_request_served(kind: Any) -> None:
    rng = random.Random(kind.__name__)
    preparer = toys.make(num_labels=2, chat=toys.chat, bos_id=1)
    served = refused = 0
    for _ in range(600):
        task = garbled(rng, kind)
        try:
            prepared = preparer.prepare(snapshot(task)).prepared
        except InvalidRequest as error:
            refused += 1
            assert len(str(error)) < 1000 and str(error)
        else:
            served += 1
            check(preparer, prepared)
    assert served > 20 and refused > 100
    assert preparer.prepare(Embed("x", pooling="last")).prepared.tree.num_tokens == 1


def check(preparer: Preparer, prepared: Any) -> None:
    """The invariants of every admitted request."""
    tree, readout = prepared.tree, prepared.readout
    assert 1 <= tree.num_tokens <= 8192 and tree.depth <= preparer.max_length
    assert tree.token_ids.min() >= 0 and tree.token_ids.max() < 420
    assert prepared.cache in ("auto", "always", "never") and 0 <= prepared.salt < 1 << 63
    if readout is not None:
        rows = prepared.rows
        assert rows.min() >= 0 and rows.max() < tree.num_tokens
    if classify(prepared) is ExecutionClass.DECODE:
        assert tree.num_tokens + prepared.max_new_tokens <= preparer.max_length
