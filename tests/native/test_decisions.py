"""Keys of questions, and which questions hold nothing that may change."""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from prelude import Engine
from prelude.admission.decision import question_key
from prelude.admission.snapshot import snapshot
from prelude.api.call_steps import text_size
from prelude.runtime.delivery import BlockingSink
from prelude.scheduling.request import Request
from prelude.tasks import Choice, Decide, Noul, Score


class Text(str):
    pass


@pytest.fixture(scope="module")
def decider() -> Iterator[Engine]:
    with Engine.from_pretrained(device="cpu") as engine:
        yield engine


def key(*questions: Any, **fields: Any) -> Any:
    task = Decide("state", questions, **fields)
    return question_key(task, task.questions)


def test_equal_questions_have_equal_keys_whatever_holds_them() -> None:
    assert key(Choice("Q", ["a", "b"])) == key(Choice("Q", ("a", "b")))
    assert key(Noul("Q")) == key(Noul("Q")) and key(Score("Q", ["low", "high"])) == key(Score("Q", ("low", "high")))


def test_other_questions_have_other_keys() -> None:
    keys = [
        key(Choice("Q", ("a", "b"))),
        key(Choice("Q", ("b", "a"))),
        key(Choice("Q", {"a": None, "b": None})),
        key(Choice(None, ("a", "b"))),
        key(Noul("Q")),
        key(Noul("Q", {"true": "t"})),
        key(Noul("Q", {"false": "t"})),
        key(Score("Q", 5)),
        key(Score("Q", 4)),
        key(Score("Q", ("low", "high"))),
        key(Noul("Q"), Noul("Q")),
        key(Noul("Q"), mass=False),
        key(Noul("Q"), length_norm="token"),
        key(Noul("Q"), orders=2),
    ]
    assert None not in keys and len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    "question",
    [
        Choice(Text("Q"), ("a", "b")),
        Choice("Q", ("a", Text("b"))),
        Choice("Q", ()),
        Choice("Q", {"a": {"b": 1}}),
        Choice("Q", OrderedDict(a=None)),
        Noul(None),
        Noul("Q", {"true": 1}),
        Noul("Q", {"maybe": "x"}),
        Score("Q", True),
        Score("Q", ()),
        SimpleNamespace(question="Q", labels=("a",)),
        None,
    ],
)
def test_values_that_equal_others_or_may_change_have_no_key(question: Any) -> None:
    assert key(question) is None


def test_a_decision_of_plain_questions_is_its_own_copy() -> None:
    plain = Decide("state", (Choice("Which?", ("a", "bb")), Noul("Is it?"), Score("How?", 5)))
    assert snapshot(plain) is plain
    labels = ["a", "bb"]
    listed = Decide("state", (Choice("Which?", labels), Noul("Is it?"), Score("How?", 5)))
    assert text_size(plain) == text_size(listed)
    copied = snapshot(listed)
    labels.append("c")
    assert copied.questions[0].labels == ("a", "bb")  # type: ignore[index,union-attr]


def test_a_request_alone_leaves_no_reference_cycle(decider: Engine) -> None:
    decider.decide("a state", [Noul("Is it?")])
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(20):
            decider.decide("a state", [Noul("Is it?")])
        gc.collect()
        left = [one for one in gc.garbage if isinstance(one, Request | BlockingSink)]
        assert not left, "engines of other tests may be among the garbage"
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
