"""Decide against brute force: label tries, mass, normalisation, and the shape of the tree."""

from __future__ import annotations

import enum
import json
import math
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from prelude.tokenizer import Tokenizer
from tokenizers import models, pre_tokenizers

from prelude.admission.labels import build_trie
from prelude.admission.preparer import Preparer
from prelude.admission.template import DecisionTemplate
from prelude.errors import InvalidRequest, PromptTooLong, RequestTooLarge, TemplateError
from prelude.readouts.batch import LogprobOutput
from prelude.tasks import Choice, Decide, Score, YesNo
from tests.admission import toys

STATE = "The quick brown fox"
LABELS = st.lists(st.text("New York,adB1", min_size=1, max_size=7), min_size=1, max_size=9, unique=True)


def encode(text: str) -> list[int]:
    return toys.plain_tokenizer().encode_array(text, False, parse_special=False).tolist()


def asked(question: str, labels: list[str]) -> list[int]:
    return encode(f"Question: {question}\nOptions: {', '.join(labels)}\nAnswer:")


def softmax(scores: list[float]) -> list[float]:
    top = max(scores)
    weights = [math.exp(score - top) for score in scores]
    return [weight / sum(weights) for weight in weights]


def expected(state: list[int], question: str, labels: list[str], norm: str) -> tuple[list[float], list[float], float]:
    """(joint logprobs, probabilities, mass), one label at a time."""
    prompt = asked(question, labels)
    ids = [encode(f" {label}") for label in labels]
    joint = [toys.joint(state + prompt, label) for label in ids]
    scores = joint
    if norm == "token":
        scores = [value / len(label) for value, label in zip(joint, ids)]
    elif norm == "unconditional":
        scores = [value - toys.joint(prompt, label) for value, label in zip(joint, ids)]
    disjoint = [
        index
        for index, label in enumerate(ids)
        if not any(other != label and label[: len(other)] == other for other in ids)
    ]
    return joint, softmax(scores), sum(math.exp(joint[index]) for index in disjoint)


@given(st.lists(LABELS, min_size=1, max_size=3), st.sampled_from(["none", "token", "unconditional"]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_decisions_equal_brute_force(label_sets: list[list[str]], norm: Any, as_ids: bool) -> None:
    preparer = toys.make()
    questions = [Choice(f"Which {index}?", labels) for index, labels in enumerate(label_sets)]
    state = encode(f"{STATE}\n\n")
    given_state: Any = encode(STATE) if as_ids else STATE
    if as_ids:
        state = encode(STATE) + encode("\n\n")
    answers = toys.run(preparer, Decide(given_state, questions, length_norm=norm))
    for question, answer in zip(questions, answers):
        labels = list(question.labels)
        joint, shares, mass = expected(state, question.question, labels, norm)
        assert list(answer.logprobs) == labels
        np.testing.assert_allclose(list(answer.logprobs.values()), joint, atol=1e-9)
        np.testing.assert_allclose(list(answer.probabilities.values()), shares, atol=1e-9)
        assert answer.mass == pytest.approx(min(1.0, mass), abs=1e-9)
        assert 0 < answer.mass <= 1 and sum(answer.probabilities.values()) == pytest.approx(1, abs=1e-6)
        assert answer.label == labels[answer.index] and answer.probability == max(answer.probabilities.values())


@pytest.mark.fault(14)
def test_a_label_that_begins_another_is_counted_once() -> None:
    answer = toys.run(toys.make(), Decide(STATE, [Choice("Which?", ["New", "New York", "New York and"])]))[0]
    assert answer.mass == pytest.approx(math.exp(answer.logprobs["New"]))
    assert answer.logprobs["New"] > answer.logprobs["New York"] > answer.logprobs["New York and"]


@pytest.mark.fault(14)
def test_a_label_has_the_same_tokens_whatever_it_follows(preparer: Preparer) -> None:
    """ " yes" and "yes" are different tokens: the template's label part decides, not the context."""
    plain = preparer.explain(Decide(STATE, [YesNo("Polite?")])).labels[0]
    assert plain == (("yes", tuple(encode(" yes"))), ("no", tuple(encode(" no"))))
    bare = DecisionTemplate(question="{question} ", label="{label}")
    assert preparer.explain(Decide(STATE, [YesNo("Polite?")], template=bare)).labels[0][0][1] == tuple(encode("yes"))


@pytest.mark.fault(10)
def test_label_lists_of_every_size(preparer: Preparer) -> None:
    one = toys.run(preparer, Decide(STATE, [Choice("Which?", ["English"])]))[0]
    assert one.probabilities == {"English": 1.0} and one.mass == pytest.approx(math.exp(one.logprobs["English"]))
    for labels, match in (
        ([f"l{index}" for index in range(100_000)], "100000 labels; it takes 1 to 4096 .EngineConfig.max_labels"),
        (["a", "b", "a"], r"labels\[2\]: 'a' is given twice, first as label 0"),
        ({"a", "b"}, "not a list of labels"),
    ):
        with pytest.raises(InvalidRequest, match=match):
            preparer.prepare(Decide(STATE, [Choice("Which?", labels)]))  # type: ignore[arg-type]


@pytest.mark.fault(10)
def test_labels_without_tokens_or_with_the_same() -> None:
    with pytest.raises(InvalidRequest, match=r"labels\[1\]: label 'x' tokenises to nothing"):
        build_trie([(5,), ()], ["a", "x"], "labels")
    with pytest.raises(InvalidRequest, match=r"labels 'a' and 'x' are the same tokens"):
        build_trie([(5, 6), (5, 6)], ["a", "x"], "labels")


@pytest.mark.fault(10)
def test_a_question_of_which_no_token_is_left() -> None:
    words = tokenizers.Tokenizer(models.WordLevel({"yes": 0, "no": 1, "a": 2, "?": 3}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    preparer = toys.make(Tokenizer.from_str(words.to_str()))
    template = DecisionTemplate(state="{state}", question="{question}")
    preparer.prepare(Decide("a a", [YesNo("a?")], template=template))
    with pytest.raises(InvalidRequest, match=r"^questions\[0\].question: the question tokenises to nothing"):
        preparer.prepare(Decide("a a", [YesNo(" ")], template=template))


@pytest.mark.fault(10)
def test_many_labels_share_their_edges() -> None:
    labels = [f"{a}{b}{c}" for a in "abcdefghij" for b in "abcdefghij" for c in "abcdefghij"]
    template = DecisionTemplate(question="{question}:")
    prepared = toys.make().prepare(Decide(STATE, [Choice("Which?", labels)], template=template)).prepared
    edges = len(prepared.readout.targets)  # type: ignore[union-attr]
    tokens = sum(len(encode(f" {label}")) for label in labels)
    assert edges < tokens / 2
    assert len(np.unique(np.stack([prepared.readout.target_rows, prepared.readout.targets]), axis=1).T) == edges  # type: ignore[union-attr]


def test_the_state_is_one_trunk_and_is_tokenised_once(preparer: Preparer) -> None:
    questions = [YesNo(f"Is it number {index}?") for index in range(10)]
    state = encode(f"{STATE}\n\n")
    before = preparer.tokenizer_calls
    prepared = preparer.prepare(Decide(STATE, questions)).prepared
    assert prepared.tree.token_ids[: prepared.tree.trunk_tokens].tolist() == state
    assert prepared.tree.parents.tolist() == [-1] + [0] * 10
    branches = sum(len(asked(question.question, ["yes", "no"])) for question in questions)
    assert prepared.tree.num_tokens == len(state) + branches
    first = preparer.tokenizer_calls - before
    preparer.prepare(Decide(f"{STATE} again", questions))
    assert preparer.tokenizer_calls - before == first + 1


def test_the_same_state_has_the_same_ids_whatever_is_asked(preparer: Preparer) -> None:
    one = preparer.prepare(Decide(STATE, [YesNo("Polite?")])).prepared.tree
    two = preparer.prepare(Decide(STATE, [Choice("Which?", ["English", "French"]), Score("Clear?")])).prepared.tree
    assert one.token_ids[: two.trunk_tokens].tolist() == two.token_ids[: two.trunk_tokens].tolist()


@pytest.mark.fault(15)
@pytest.mark.parametrize(
    "questions",
    [None, [], YesNo("x"), "x", ["x"], [None], [YesNo(None)], [YesNo(5)], [YesNo("")], {YesNo("x")},
     [YesNo("x")] * 4097, iter([YesNo("x")])],
)  # fmt: skip
def test_a_value_that_is_not_a_list_of_questions(preparer: Preparer, questions: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^questions"):
        preparer.prepare(Decide(STATE, questions))


# ------------------------------------------------------------------ numbers
def answers_for(logprobs: list[float], norm: Any = "none") -> Any:
    question = Choice("Which?", ["English", "French", "German"])
    admitted = toys.make().prepare(Decide(STATE, [question], length_norm=norm))
    targets = len(admitted.prepared.readout.targets)  # type: ignore[union-attr]
    values = np.resize(np.array(logprobs), targets)
    return toys.finish(admitted, LogprobOutput(values, None, None, None))[0]


@pytest.mark.fault(78)
@pytest.mark.fault(75)
@pytest.mark.parametrize("norm", ["none", "token", "unconditional"])
@pytest.mark.parametrize(
    "logprobs", [[-1e3], [-1e3, -5.0], [-1e4, -1.0], [0.0], [-math.inf], [-math.inf, -1.0], [-3e38]]
)
def test_extreme_logprobs_stay_finite(norm: Any, logprobs: list[float]) -> None:
    with np.errstate(all="raise", under="ignore"):
        answer = answers_for(logprobs, norm)
    assert all(math.isfinite(value) and value <= 0 for value in answer.logprobs.values())
    assert sum(answer.probabilities.values()) == pytest.approx(1, abs=1e-6)
    assert 0 <= answer.mass <= 1


# ------------------------------------------------------------------ size
@pytest.mark.fault(3)
@pytest.mark.parametrize("mode", ["head", "tail", "middle"])
@pytest.mark.parametrize("ids", [False, True])
def test_only_the_state_is_cut(mode: Any, ids: bool) -> None:
    words = "one two three four five six seven eight nine ten " * 3
    state: Any = encode(words) if ids else words.rstrip()
    body = encode(words.rstrip()) if not ids else encode(words)
    questions = [Choice("Which?", ["New York", "New Delhi"]), YesNo("Polite?")]
    ends = [asked("Which?", ["New York", "New Delhi"]), asked("Polite?", ["yes", "no"])]
    deepest = max(len(ends[0]) + 1, len(ends[1]))  # "New" is fed, the rest of the label is not
    room = 11
    preparer = toys.make(max_length=deepest + room, max_prompt_chars=1000)
    prepared = preparer.prepare(Decide(state, questions, truncation=mode)).prepared
    tail = encode("\n\n")
    keep = room - len(tail)
    middle = body[: (keep + 1) // 2] + body[len(body) - keep // 2 :]
    cut = {"head": body[-keep:], "tail": body[:keep], "middle": middle}[mode]
    assert prepared.tree.token_ids[: prepared.tree.trunk_tokens].tolist() == cut + tail
    assert prepared.tree.depth == deepest + room
    assert prepared.truncated_tokens == len(body) - keep
    with pytest.raises(PromptTooLong, match=r"state: .* of the longest question and label"):
        preparer.prepare(Decide(state, questions))
    for few in (1, len(tail)):
        with pytest.raises(PromptTooLong, match=r"leaves no room"):
            toys.make(max_length=deepest + few, max_prompt_chars=1000).prepare(
                Decide(state, questions, truncation=mode)
            )


@pytest.mark.fault(4)
def test_the_tree_has_to_fit_one_step() -> None:
    preparer = toys.make(max_length=64, max_step_tokens=128, max_running=64, max_prompt_chars=10_000)
    questions = [YesNo(f"Is it {index}?") for index in range(40)]
    with pytest.raises(
        RequestTooLarge, match=r"questions: the 40 questions have .* about 3 of these .* ask them in several calls"
    ):
        preparer.prepare(Decide("x", questions))
    questions = questions[: 50 // len(asked("Is it 1?", ["yes", "no"]))]
    with pytest.raises(RequestTooLarge, match=r"state: .* one step computes at most 64"):
        preparer.prepare(Decide([5] * 30, questions))
    for norm in ("none", "unconditional"):
        some: Any = questions if norm == "none" else questions[:1]
        prepared = preparer.prepare(Decide([5] * 60, some, truncation="tail", length_norm=norm)).prepared  # type: ignore[arg-type]
        assert prepared.tree.num_tokens == 64


@pytest.mark.parametrize("norm", ["none", "unconditional"])
@pytest.mark.parametrize(
    ("state", "count", "template"),
    [("", 1, "{state}"), ("", 2, "{state}"), ("Hi.", 1, "{state} "), ("Hi.", 2, "{state} ")],
)
def test_a_tree_of_exactly_the_limits_is_taken(norm: Any, state: str, count: int, template: str) -> None:
    questions = [YesNo("Polite?"), Choice("Which?", ["New York and New Delhi", "York"])][-count:]
    task = Decide(state, questions, template=DecisionTemplate(template, chat=state != ""), length_norm=norm)

    def made(length: int, step: int) -> Any:
        limits = {"max_length": length, "max_running": 8, "max_step_tokens": step + 8}
        return toys.make(chat=toys.chat, **limits).prepare(task).prepared.tree

    tree = made(200, 200)
    assert made(tree.depth, tree.num_tokens).num_tokens == tree.num_tokens
    with pytest.raises(PromptTooLong):
        made(tree.depth - 1, tree.num_tokens)
    with pytest.raises(RequestTooLarge if tree.num_tokens > tree.depth else PromptTooLong):
        made(tree.depth, tree.num_tokens - 1)


@pytest.mark.fault(3)
def test_the_deepest_label_counts_for_the_length(preparer: Preparer) -> None:
    questions = [Choice("Which?", ["New York and New Delhi", "York"]), YesNo("Well?")]
    label = len(encode(" New York and New Delhi")) - 1
    deepest = len(asked("Which?", ["New York and New Delhi", "York"])) + label
    fits = toys.make(max_length=deepest + 10)
    room = 10 - len(encode("\n\n"))
    assert fits.prepare(Decide([5] * room, questions)).prepared.tree.depth == deepest + 10
    with pytest.raises(PromptTooLong):
        fits.prepare(Decide([5] * (room + 1), questions))


@pytest.mark.fault(3)
@pytest.mark.parametrize("truncation", ["error", "tail"])
def test_the_token_that_an_empty_state_begins_with_counts_for_the_length(truncation: Any) -> None:
    template = DecisionTemplate(state="{state}")
    questions = [YesNo("Polite?"), YesNo("Well?")]
    deepest = max(len(asked("Polite?", ["yes", "no"])), len(asked("Well?", ["yes", "no"])))
    task = Decide("", questions, template=template, truncation=truncation)
    prepared = toys.make(max_length=deepest + 1).prepare(task).prepared
    assert prepared.tree.depth == deepest + 1
    with pytest.raises(PromptTooLong):
        toys.make(max_length=deepest).prepare(task)


class Verdict(str, enum.Enum):
    GOOD = "good"
    BAD = "bad"


@pytest.mark.parametrize("norm", ["none", "token"])
def test_attributes_of_a_callers_strings_never_reach_another(norm: Any) -> None:
    class Marked(str):
        owner = ""

    preparer, question = toys.make(), Marked("Well?")
    labels = [Marked("good"), Marked("bad")]
    for text in (question, *labels):
        text.owner = "somebody"
    for first in (Choice("Fine?", list(Verdict)), Choice(question, labels), Score(question), YesNo(question)):
        toys.run(preparer, Decide(STATE, [first], length_norm=norm))
    for asks in ("Fine?", "Well?"):
        [answer] = toys.run(preparer, Decide(STATE, [Choice(asks, ["good", "bad"])], length_norm=norm))
        kept = [answer.label, *answer.labels, *answer.probabilities, *answer.logprobs]
        assert {type(text) for text in kept} == {str} and set(kept) == {"good", "bad"}


@pytest.mark.fault(5)
def test_questions_are_bounded_together_before_tokenising(preparer: Preparer) -> None:
    questions = [YesNo("x" * 4000 + str(index)) for index in range(40)]
    for _ in range(2):  # whether the questions are known or not
        with pytest.raises(RequestTooLarge, match=r"questions: questions and labels have more than .* characters"):
            preparer.prepare(Decide("x", questions))
        assert preparer.tokenizer_calls < 300
        for question in questions:
            with pytest.raises(InvalidRequest):
                preparer.prepare(Decide("x", [question]))


# ------------------------------------------------------------------ templates
def test_a_template_is_data_beside_the_model(tmp_path: Any) -> None:
    path = tmp_path / "decision_template.json"
    data = {"state": "<{state}>\n", "question": "Q: {question} {{x}} ({labels})\nA:", "label": " {label}.",
            "yes_no": "Is it so that {question}", "yes": "ja", "no": "nein", "separator": "|"}  # fmt: skip
    path.write_text(json.dumps(data), encoding="utf-8")
    template = DecisionTemplate.from_file(path)
    preparer = toys.make(template=template)
    shown = preparer.explain(Decide("s {question}", [Choice("q {labels}?", ["a", "b"]), YesNo("it is")]))
    texts = [
        toys.plain_tokenizer().decode(shown.token_ids[a:b].tolist()) for a, b, above in shown.segments if above < 1
    ]
    assert texts == ["<s {question}>\n", "Q: q {labels}? {{x}} (a|b)\nA:", "Is it so that it is"]
    assert [label for label, _ in shown.labels[1]] == ["ja", "nein"]
    assert shown.labels[0][0] == ("a", tuple(encode(" a.")))


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{", "not usable JSON|nested too deeply"),
        ('{"state": 5}', "template.state: 5 is not a string"),
        ('{"state": "x"}', "{state} is missing"),
        ('{"state": "{state}{state}"}', "stands twice"),
        ('{"state": "{state} {question}"}', "does not belong"),
        ('{"label": "x"}', "{label} is missing"),
        ("[" * 100_000, "not usable JSON|nested too deeply"),
        ('{"state": "{state.__class__}"}', "{state} is missing"),
        ('{"state": "{state[0]} {0}"}', "{state} is missing"),
        ('{"state": "{state!r:>99999999}"}', "{state} is missing"),
        ('{"state": "{state:{label}}"}', "{label} does not belong"),
        ('{"state": "{{state}{state}}"}', "stands twice"),
        ('{"state": "\\ud800{state}"}', "template.state: .* has a surrogate"),
    ],
)
def test_malformed_template_files(tmp_path: Any, text: str, match: str) -> None:
    path = tmp_path / "decision_template.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TemplateError, match=match):
        DecisionTemplate.from_file(path)
    with pytest.raises(TemplateError):
        DecisionTemplate.from_file(tmp_path / "none.json")
    with pytest.raises(TemplateError, match=r"is not a DecisionTemplate"):
        toys.make().prepare(Decide("x", [YesNo("x")], template="{state}"))


def test_braces_that_are_no_placeholder_are_text() -> None:
    """Nothing of a template is a format string: no attribute is looked up and no width is obeyed."""
    more = "{state.__class__.__mro__} {state!r:>99999999} {0} %s {"
    shown = toys.make(template=DecisionTemplate(state="{state}" + more)).explain(Decide("s", [YesNo("q")]))
    assert shown.text.startswith("s" + more)


@pytest.mark.fault(37)
def test_the_longest_separator_of_the_most_labels_is_refused_for_its_tokens() -> None:
    preparer = toys.make(template=DecisionTemplate(separator="x" * 1024))
    with pytest.raises(PromptTooLong, match=r"in its labels.*ask about fewer"):
        preparer.prepare(Decide("s", [Choice("Which?", [str(i) for i in range(4000)])]))


def test_through_the_chat_template() -> None:
    question = Choice("Which?", ["a", "b"])
    shown = toys.make(chat=toys.chat).explain(Decide(STATE, [question, YesNo("Polite?")]))
    turn = f"{toys.START}user\n{STATE}\n\n"
    end = f"{toys.STOP}\n{toys.START}assistant\n"
    texts = [toys.plain_tokenizer().decode(shown.token_ids[a:b].tolist(), False) for a, b, _ in shown.segments]
    assert texts == [
        turn,
        f"Question: Which?\nAnswer with exactly one of: a, b{end}",
        f"Question: Polite?\nAnswer with exactly one of: yes, no{end}",
    ]
    assert shown.labels[0][0] == ("a", tuple(encode("a")))
    joined = toys.plain_tokenizer().encode(texts[0]).ids + toys.plain_tokenizer().encode(texts[1]).ids
    assert shown.token_ids[: shown.segments[1][1]].tolist() == joined


def test_a_chat_template_that_strips_its_messages() -> None:
    template = DecisionTemplate(question="{question} ", chat=True)
    begins = DecisionTemplate(state="\n{state}\n\n", question="{question} ", chat=True)
    for one in (template, begins):
        found = toys.make(chat=toys.stripping_chat, template=one).explain(Decide("hi", [YesNo("Polite?")]))
        assert found.text == f"{toys.START}user\nhi\n\nPolite?{toys.STOP}\n{toys.START}assistant\n"
    shown = toys.make(chat=toys.stripping_chat, template=template).explain(Decide("  \n hi", [YesNo("Polite?")]))
    assert shown.text == f"{toys.START}user\nhi\n\nPolite?{toys.STOP}\n{toys.START}assistant\n"
    kept = toys.make(chat=toys.chat, template=template).explain(Decide("  hi", [YesNo("Polite?")]))
    assert kept.text == f"{toys.START}user\n  hi\n\nPolite? {toys.STOP}\n{toys.START}assistant\n"


def test_a_template_that_needs_a_chat_template_says_so(preparer: Preparer) -> None:
    with pytest.raises(TemplateError, match=r"use one with chat=False"):
        preparer.prepare(Decide("x", [YesNo("x")], template=DecisionTemplate(chat=True)))


def test_labels_of_very_different_lengths_are_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    even, uneven = Choice("even", ["a b", "e"]), Choice("uneven", ["one two three four five six", "seven"])

    preparer = toys.make()

    def warned(*questions: Choice, norm: Any = "none") -> int:
        caplog.clear()
        preparer.prepare(Decide(STATE, questions, length_norm=norm))
        return len([record for record in caplog.records if "favours the short ones" in record.message])

    with caplog.at_level("WARNING", "prelude.engine"):
        assert warned(even) == 0
        assert warned(uneven, norm="token") == 0 == warned(uneven, norm="unconditional")
        assert warned(uneven) == 1 and "'seven'" in caplog.text and "'one two" in caplog.text
        assert warned(uneven) == 0, "the same labels are warned about once"
