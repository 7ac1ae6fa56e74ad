"""Typed questions: descriptions, levels, structured text, names, confidence, and their text as a model reads it."""

from __future__ import annotations

import itertools
import json
import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prelude.tokenizer import Tokenizer

from prelude.admission.preparer import Preparer
from prelude.admission.snapshot import snapshot
from prelude.admission.template import DecisionTemplate
from prelude.api.engine import text_size
from prelude.errors import InvalidRequest, PromptTooLong, RequestTooLarge, TemplateError
from prelude.results import Answer
from prelude.tasks import Choice, Decide, Noul, Score, YesNo
from tests.admission import toys
from tests.admission.test_decide import encode

STATE = "The quick brown fox"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text('aé"\\n{'),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("kö", max_size=3), inner, max_size=4),
    max_leaves=12,
)


def said(preparer: Preparer, question: Any, **options: Any) -> str:
    """The question as the model reads it."""
    explained = preparer.explain(Decide(STATE, [question], **options))
    text = preparer.tokenizer.decode(explained.token_ids[: explained.segments[0][1]].tolist())
    return text.removeprefix(f"{STATE}\n\n")


@pytest.mark.parametrize(
    "question, text",
    [
        (Choice("Which?", ["a", "b"]), "Question: Which?\nOptions: a, b\nAnswer:"),
        (Choice("Which?", {"a": None, "b": ""}), "Question: Which?\nOptions: a, b\nAnswer:"),
        (Choice("Which?", {"a": "one", "b": None}), "Question: Which?\nOptions:\n- a: one\n- b\nAnswer:"),
        (Choice("Q", {"a": {"is": ["é"]}, "b": None}), 'Question: Q\nOptions:\n- a: {"is": ["é"]}\n- b\nAnswer:'),
        (Choice(None, ["a", "b"]), "Question: Choose the best option.\nOptions: a, b\nAnswer:"),
        (Choice(["Route it.", "Pick."], ["a", "b"]), 'Question: ["Route it.", "Pick."]\nOptions: a, b\nAnswer:'),
        (Noul("Is it?"), "Question: Is it?\nOptions: yes, no\nAnswer:"),
        (Noul("Is it?", {}), "Question: Is it?\nOptions: yes, no\nAnswer:"),
        (Noul("Is it?", {"false": "else"}), "Question: Is it?\nOptions:\n- yes\n- no: else\nAnswer:"),
        (Noul(None, {"true": "so"}), "Question: Answer yes or no.\nOptions:\n- yes: so\n- no\nAnswer:"),
        (Score("How?", 3), "Question: How?\nOptions: 1, 2, 3\nAnswer:"),
        (Score("How?", ["low", {"x": 1}]), 'Question: How?\nOptions:\n- 0: low\n- 1: {"x": 1}\nAnswer:'),
        (Score(None, ["a", "b"]), "Question: Rate it on the given scale.\nOptions:\n- 0: a\n- 1: b\nAnswer:"),
    ],
    ids=repr,
)  # fmt: skip
def test_the_text_of_a_question(preparer: Preparer, question: Any, text: str) -> None:
    assert said(preparer, question) == text


def test_a_template_of_ones_own_describes_labels_in_its_way(preparer: Preparer) -> None:
    template = DecisionTemplate(
        question="{labels}? {question}",
        described="<{label}|{description}>",
        undescribed="<{label}>",
        yes="ja",
        no="nein",
    )
    assert said(preparer, Choice("Q", {"a": "one", "b": None}), template=template) == "<a|one><b>? Q"
    assert said(preparer, Noul("Q", {"true": "so"}), template=template) == "<ja|so><nein>? Q"
    hidden = DecisionTemplate(yes_no="{question}")
    with pytest.raises(TemplateError, match=r"template: its part for a noul has no \{labels\}"):
        preparer.prepare(Decide(STATE, [Noul("Q", {"true": "so"})], template=hidden))
    with pytest.raises(TemplateError, match=r"described: \{description\} is missing"):
        DecisionTemplate(described="{label}")


@given(JSON)
@settings(max_examples=100, deadline=None)
def test_structured_text_is_json_in_the_order_it_was_given(value: Any) -> None:
    if not isinstance(value, dict | list) or not value:
        value = {"value": value}
    written = json.dumps(value, ensure_ascii=False)
    preparer = toys.make(max_positions=4096)
    ids = [preparer.explain(Decide({"v": v}, [Noul(v)])).token_ids.tolist() for v in (value, json.loads(written))]
    assert ids[0] == ids[1]
    assert ids[0] == preparer.explain(Decide(f'{{"v": {written}}}', [Noul(written)])).token_ids.tolist()


@pytest.mark.parametrize(
    "state, text",
    [
        ({"b": 1, "a": [True, None]}, '{"b": 1, "a": [true, null]}'),
        (["one", {"two": 2}], '["one", {"two": 2}]'),
        ([{"id": 1}], '[{"id": 1}]'),
        ([], "[]"),
        ([[1, 2]], "[[1, 2]]"),
        ({"role": "user", "content": "x"}, '{"role": "user", "content": "x"}'),
        ([{"role": "user", "content": "x"}], "user: x"),
    ],
)
def test_a_state_of_any_shape(preparer: Preparer, state: Any, text: str) -> None:
    explained = preparer.explain(Decide(state, [YesNo("Is it?")]))
    assert explained.text.startswith(f"{text}\n\nQuestion:")


@pytest.mark.parametrize(
    "question, match",
    [
        (Noul(), r"questions\[0\].question: it is None, and no criteria ask instead"),
        (Noul(None, {"true": None}), r"questions\[0\].question: it is None"),
        (Noul("Is it?", {"yes": "x"}), r'questions\[0\].criteria: .* is not a mapping with "true"'),
        (Noul("Is it?", ["x"]), r"questions\[0\].criteria: "),  # type: ignore[arg-type]
        (Noul("Is it?", {"true": 5}), r"questions\[0\].criteria.true: 5 is of type int; give a string, an object"),  # type: ignore[dict-item]
        (Noul({"a": {1: 2}}), r"questions\[0\].question.a: the key 1 is not a string"),
        (Noul({"a": [{2}]}), r"questions\[0\].question.a\[0\]: \{2\} is of type set, which JSON does not have"),
        (Noul([float("nan")]), r"questions\[0\].question: .*finite"),
        (Noul(["\ud800"]), r"questions\[0\].question: a lone surrogate"),
        (Choice("Q", {"a": 1, "b": None}), r"questions\[0\].labels\[0\]: 1 is of type int"),  # type: ignore[dict-item]
        (Choice("Q", {"a": "x", 2: None}), r"questions\[0\].labels\[1\]: 2 is not a string"),  # type: ignore[dict-item]
        (Score("Q", ["x", None]), r"questions\[0\].levels\[1\]: it is None; give"),  # type: ignore[list-item]
        (Score("Q", {"0": "x", "1": "y"}), r"questions\[0\].levels: .* is not an integer"),  # type: ignore[arg-type]
    ],
    ids=repr,
)
def test_a_value_that_is_no_question_names_its_part(preparer: Preparer, question: Any, match: str) -> None:
    for asked in ([question], [question, YesNo("Well?")]):
        with pytest.raises(InvalidRequest, match=f"^{match}"):
            preparer.prepare(Decide(STATE, asked))


@pytest.mark.fault(10)
def test_labels_of_equal_ids_are_refused() -> None:
    """A tokenizer that lower-cases gives both labels the same ids; their descriptions make no difference."""
    preparer = toys.make(lower_casing())
    match = r"questions\[0\].labels\[1\]: labels 'Yes' and 'yes' are the same tokens"
    with pytest.raises(InvalidRequest, match=match):
        preparer.prepare(Decide(STATE, [Choice("Q", {"Yes": "one", "yes": "two"})]))


def lower_casing() -> Tokenizer:
    data = json.loads(toys.plain_tokenizer().to_str())
    return Tokenizer.from_str(json.dumps({**data, "normalizer": {"type": "Lowercase"}}))


def test_structures_without_end_are_refused(preparer: Preparer) -> None:
    deep: Any = "x"
    for _ in range(100):
        deep = [deep]
    circle: list[Any] = []
    circle.append(circle)
    for value in (deep, circle, [["x"] * 40_000]):
        for task in (
            Decide(value, [YesNo("Is it?")]),
            Decide(STATE, [Noul(value)]),
            Decide(STATE, [Choice("Q", {"a": value, "b": None})]),
        ):
            for one in (task, snapshot(task)):
                with pytest.raises(RequestTooLarge, match=r"nested deeper than 64|more than 32768 values"):
                    preparer.prepare(one)


@pytest.mark.feature("G18")
def test_a_named_question_is_found_by_its_name_and_the_model_never_sees_it(preparer: Preparer) -> None:
    questions = {
        "ticket-1": Noul("Is it?"),
        "with space": Choice("Which?", ["a", "b"]),
        "질문 🎯": Score("How?", ["x", "y"]),
    }
    task = Decide(STATE, questions)
    plain = Decide(STATE, list(questions.values()))
    assert preparer.explain(task).token_ids.tolist() == preparer.explain(plain).token_ids.tolist()
    answers = toys.run(preparer, task)
    assert answers.names == tuple(questions) and list(answers.named) == list(questions)
    assert answers["with space"] == answers[1] == toys.run(preparer, plain)[1]
    assert pickle.loads(pickle.dumps(answers)).named == answers.named
    assert answers[:2] == tuple(answers)[:2]
    with pytest.raises(KeyError):
        answers["other"]
    with pytest.raises(TypeError, match="no names"):
        toys.run(preparer, plain)["with space"]
    for name in ("", 5):
        with pytest.raises(InvalidRequest, match=r"^questions: the name .* is not a string of 1 or more"):
            preparer.prepare(Decide(STATE, {name: YesNo("Is it?")}))  # type: ignore[dict-item]
    with pytest.raises(InvalidRequest, match="0 questions"):
        preparer.prepare(Decide(STATE, {}))


@pytest.mark.feature("G13")
@pytest.mark.feature("G18")
def test_answers_by_kind(preparer: Preparer) -> None:
    noul, choice, one, levels = toys.run(
        preparer,
        Decide(
            STATE,
            [Noul("Is it?"), Choice("Which?", {"a": "x", "b": None}), Score("How?", 4), Score("How?", list("wxyz"))],
        ),
    )
    assert noul.kind == "noul" and noul.confidence is None and noul.probability == noul.probabilities["yes"]
    assert (
        choice.kind == "choice"
        and choice.labels == ("a", "b")
        and choice.probability == max(choice.probabilities.values())
    )
    top = max(choice.probabilities.values())
    assert choice.confidence == pytest.approx((top - 0.5) / 0.5)
    assert one.labels == ("1", "2", "3", "4") and one.expected == pytest.approx(
        sum(i * p for i, p in enumerate(one.probabilities.values(), 1))
    )
    assert levels.labels == ("0", "1", "2", "3") and levels.expected == pytest.approx(
        sum(i * p for i, p in enumerate(levels.probabilities.values()))
    )
    shares = list(levels.probabilities.values())
    mode = shares.index(max(shares))
    assert levels.confidence == pytest.approx(max(0, 1 - sum(p * abs(i - mode) for i, p in enumerate(shares)) / 1.0))


def confidence(kind: str, shares: list[float]) -> float | None:
    labels = tuple(map(str, range(len(shares))))
    return Answer("0", 0, labels, dict(zip(labels, shares)), {}, 1.0, shares[0], kind=kind).confidence


def test_confidence_is_the_reference_and_stays_within_its_bounds() -> None:
    assert confidence("choice", [0.1, 0.7, 0.2]) == pytest.approx((0.7 - 1 / 3) / (2 / 3))
    assert confidence("score", [0.1, 0.7, 0.2]) == pytest.approx(1 - 0.3 / (2 / 3))
    assert confidence("score", [0.5, 0, 0.5]) == 0, "far apart: below 0 before it is cut"
    for kind in ("choice", "score"):
        assert confidence(kind, [1.0]) == 1 and confidence(kind, [0.5, 0.5]) == 0
        for n in range(2, 11):
            assert all(confidence(kind, [float(i == top) for i in range(n)]) == 1 for top in range(n))
    assert all(confidence("choice", [1 / n] * n) == pytest.approx(0, abs=1e-12) for n in range(2, 11))


def test_the_first_of_equal_labels_wins(preparer: Preparer) -> None:
    even = np.full(toys.LIMITS.vocab_size, -math.log(toys.LIMITS.vocab_size))
    for labels in itertools.permutations(["yes", "no", "English"]):
        admitted = preparer.prepare(Decide(STATE, [Choice("Q", list(labels))]))
        assert toys.finish(admitted, toys.outputs(admitted, lambda _: even))[0].label == labels[0]


def test_questions_that_may_change_are_copied() -> None:
    labels: dict[str, Any] = {"a": {"x": ["one"]}, "b": None}
    levels: list[Any] = ["low", {"y": 1}]
    instructions: dict[str, Any] = {"task": ["do"]}
    task = Decide(
        {"s": ["t"]},
        {"c": Choice(instructions, labels), "s": Score("How?", levels), "n": Noul("Is it?", labels["a"])},
    )
    copied: Any = snapshot(task)
    labels["a"]["x"].append("two")
    labels["c"] = None
    levels[1]["y"] = 2
    instructions["task"].append("more")
    assert copied.questions["c"] == Choice({"task": ["do"]}, {"a": {"x": ["one"]}, "b": None})
    assert copied.questions["s"].levels == ["low", {"y": 1}]
    same = Choice("Which?", ("a", "b"))
    assert snapshot(Decide("s", (same,))).questions[0] is same


def test_the_size_of_typed_questions_counts_their_descriptions() -> None:
    long = "x" * 10_000
    for question in (
        Choice("Q", {"a": long}),
        Noul("Q", {"true": long}),
        Score("Q", ["low", long]),
        Noul({"a": [long]}),
    ):
        for questions in ([question], {"name": question}):
            assert text_size(Decide("s", questions)) > 10_000
    assert text_size(Decide({"a": {"b": long}}, [YesNo("Q")])) > 10_000
    assert text_size(Decide([["a", long]], [YesNo("Q")])) > 10_000


def test_characters_that_were_cut_are_reported() -> None:
    """A text past ``max_prompt_chars`` is cut before tokenising. The rest may fit; the answer says that the text was
    cut."""
    preparer = toys.make(max_prompt_chars=40)
    for task in (
        Decide("x" * 41, [YesNo("Is it?")], truncation="tail"),
        Decide({"k": "x" * 41}, [YesNo("Is it?")], truncation="tail"),
        Decide("x", [YesNo("Is it " * 9)], truncation="tail"),
        Decide("x", [Noul({"ask": "Is it " * 9})], truncation="tail"),
    ):
        for _ in range(2):
            assert preparer.prepare(task).prepared.truncated_tokens > 0
    assert preparer.prepare(Decide("x" * 40, [YesNo("Is it?")], truncation="tail")).prepared.truncated_tokens == 0


LONG = {"a": "red green " * 60, "b": "blue " * 4, "c": None, "d": {"is": "wet " * 100}}


@pytest.mark.parametrize("step", [None, 256])
def test_descriptions_that_pass_the_context_are_refused_with_the_way_out(step: Any) -> None:
    preparer = toys.make(max_length=128, **({} if step is None else {"max_step_tokens": step}))
    for question in (
        Choice("Which?", LONG),
        Noul("Is it?", {"true": "red green " * 100}),
        Score("How?", ["low", "high " * 200]),
    ):
        with pytest.raises(PromptTooLong) as caught:
            preparer.prepare(Decide("x", [YesNo("Is it?"), question]))
        assert caught.value.field == "questions[1]" and caught.value.limit == 128 < caught.value.tokens
        for part in ("most of it in its descriptions", "fewer options at a time", 'truncation="head"'):
            assert part in str(caught.value)


@pytest.mark.parametrize("orders", ["given", "all"])
def test_truncation_cuts_the_longest_descriptions_and_says_so(orders: Any) -> None:
    """To one length, the greatest that leaves the state its room; labels and short descriptions stay."""
    preparer = toys.make(max_length=256, max_step_tokens=2048)
    for truncation, state in (("tail", "x"), ("head", "x"), ("tail", "The quick brown fox " * 40)):
        task = Decide(state, [Choice("Which?", LONG)], truncation=truncation, orders=orders)
        said = preparer.explain(task)
        prepared = preparer.prepare(task).prepared
        assert prepared.truncated_tokens > 0 and prepared.tree.depth <= 256
        assert said.truncated_tokens == prepared.truncated_tokens
        notes = {label: json.dumps(note) if isinstance(note, dict) else note for label, note in LONG.items()}
        lengths = set()
        for label in "ad":
            [line] = [one for one in said.text.split("\n") if one.startswith(f"- {label}: ")][:1]
            note, whole = line.removeprefix(f"- {label}: "), str(notes[label])
            lengths.add(len(note))
            assert (whole.startswith if truncation == "tail" else whole.endswith)(note) and note != whole
        assert len(lengths) == 1 and f"\n- b: {notes['b']}" in said.text and "\n- c\n" in said.text
        most = lengths.pop()
        if len(state) == 1:  # one character more would not fit beside it
            cut = {
                label: note[: most + 1] if note and truncation == "tail" else note for label, note in notes.items()
            }
            room = 256 - len(encode(f"{state}\n\n"))
            depth = len(encode(said_alone(cut))) + 1
            assert truncation == "head" or orders == "all" or depth > room
        answer = toys.run(preparer, task)[0]
        assert list(answer.probabilities) == list("abcd") and math.fsum(
            answer.probabilities.values()
        ) == pytest.approx(1)
    many = Choice("Which?", {f"label {n}" * 9: "long " * 9 for n in range(20)})
    with pytest.raises(PromptTooLong, match="the limit is 256"):
        preparer.prepare(Decide("x", [many], truncation="tail"))


def said_alone(notes: Any) -> str:
    lines = "".join([f"\n- {label}: {note}" if note else f"\n- {label}" for label, note in notes.items()])
    return f"Question: Which?\nOptions:{lines}\nAnswer:"
