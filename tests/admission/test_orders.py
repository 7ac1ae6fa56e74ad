"""Orders of options: means over shifts against brute force, the same bits in every order, and the cost of a shift."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from prelude.admission.labels import build_trie
from prelude.admission.orders import split, spread
from prelude.admission.preparer import Preparer
from prelude.admission.template import DecisionTemplate
from prelude.errors import InvalidRequest, RequestTooLarge, TemplateError
from prelude.tasks import Choice, Decide, Noul, Score, YesNo
from tests.admission import toys
from tests.admission.test_decide import encode, softmax

STATE = "The quick brown fox"
LABELS = ["English", "New York", "yes", "French", "New Delhi"]
DESCRIBED = {"English": "one", "New York": None, "yes": "three", "French": {"x": 4}, "New Delhi": ""}
BASE = encode(f"{STATE}\n\n")


def listed(labels: list[str], described: dict[str, Any] | None = None) -> str:
    if described is None:
        return " " + ", ".join(labels)
    notes = {label: '{"x": 4}' if isinstance(note, dict) else note for label, note in described.items()}
    return "".join([f"\n- {label}: {notes[label]}" if notes[label] else f"\n- {label}" for label in labels])


def shift_logprobs(question: str, labels: list[str], start: int, described: Any = None) -> dict[str, float]:
    """The joint logprob of each label behind one shift, one token at a time."""
    order = labels[start:] + labels[:start]
    prompt = encode(f"Question: {question}\nOptions:{listed(order, described)}\nAnswer:")
    return {label: toys.joint(BASE + prompt, encode(f" {label}")) for label in labels}


def mean_over(question: str, labels: list[str], starts: Any, described: Any = None) -> dict[str, float]:
    reads = [shift_logprobs(question, labels, start, described) for start in starts]
    return {label: sum(read[label] for read in reads) / len(reads) for label in labels}


def test_the_characters_of_every_shift_are_bounded_before_tokenising() -> None:
    question = Choice("Which?", [f"{at}" + "x" * 40 for at in range(100)])
    preparer = toys.make(max_positions=1024)
    with pytest.raises(RequestTooLarge, match="checked before tokenising"):
        toys.run(preparer, Decide(STATE, [question], orders="all"))


def test_orders_that_read_alike() -> None:
    preparer = toys.make(max_positions=1024)
    answer = toys.run(preparer, Decide(STATE, [Choice("Which?", ["x", "x, x"])], orders="all"))[0]
    assert sum(answer.probabilities.values()) == pytest.approx(1)


@pytest.mark.parametrize("described", [None, DESCRIBED])
@pytest.mark.parametrize("orders", ["sorted", 1, 2, 3, "all", 99, range(1, 3), range(3, 9)])
def test_scores_are_means_over_the_shifts_of_the_sorted_options(orders: Any, described: Any) -> None:
    ordered = sorted(LABELS)
    starts = {"sorted": (0,), "all": spread(5)}.get(orders) if isinstance(orders, str) else None
    if starts is None:
        starts = spread(5)[:orders] if isinstance(orders, int) else spread(5)[orders.start : orders.stop]
    expected = mean_over("Which?", ordered, starts, described)
    preparer = toys.make(max_positions=1024)
    questions = [YesNo("Polite?"), Choice("Which?", described or LABELS)]
    for asked in (questions[1:],) if orders == range(3, 9) else (questions, questions[1:]):
        answer = toys.run(preparer, Decide(STATE, asked, orders=orders))[-1]
        assert list(answer.probabilities) == list(answer.labels) == LABELS, "in the caller's order"
        for label, share in zip(ordered, softmax([expected[label] for label in ordered])):
            assert answer.logprobs[label] == pytest.approx(expected[label], abs=1e-9)
            assert answer.probabilities[label] == pytest.approx(share, abs=1e-9)
        assert answer.label == max(expected, key=expected.__getitem__) == LABELS[answer.index]


def test_both_orders_of_a_noul_and_one_of_a_score(preparer: Preparer) -> None:
    noul, score = toys.run(preparer, Decide(STATE, [Noul("Polite?"), Score("How?", ["low", "high"])], orders="all"))
    expected = mean_over("Polite?", ["yes", "no"], (0, 1))
    assert noul.labels == ("yes", "no") and noul.logprobs == pytest.approx(expected)
    assert noul.probability == noul.probabilities["yes"]
    for orders in ("given", range(1, 2)):
        asked = [Score("How?", ["low", "high"])]
        assert score == toys.run(preparer, Decide(STATE, asked, orders=orders))[0], (
            "a score is in every order the same"
        )


@pytest.mark.parametrize("norm", ["none", "token", "unconditional"])
@pytest.mark.parametrize("mass", [True, False])
def test_means_under_every_norm(norm: Any, mass: bool) -> None:
    preparer = toys.make(max_positions=1024)
    ordered = sorted(LABELS)
    reads = []
    for start in spread(5):
        order = ordered[start:] + ordered[:start]
        alone = encode(f"Question: Which?\nOptions:{listed(order)}\nAnswer:")
        joint = shift_logprobs("Which?", ordered, start)
        ids = {label: encode(f" {label}") for label in ordered}
        if norm == "token":
            joint = {label: value / len(ids[label]) for label, value in joint.items()}
        elif norm == "unconditional":
            joint = {label: value - toys.joint(alone, ids[label]) for label, value in joint.items()}
        reads.append(joint)
    scores = [sum(read[label] for read in reads) / 5 for label in LABELS]
    answer = toys.run(preparer, Decide(STATE, [Choice("Which?", LABELS)], orders="all", length_norm=norm, mass=mass))[
        0
    ]
    np.testing.assert_allclose(list(answer.probabilities.values()), softmax(scores), atol=1e-9)
    assert math.isnan(answer.mass) is not mass


LETTERED = DecisionTemplate(
    question="{question}{labels}\nBest:",
    described="\n{letter}. {label} - {description}",
    undescribed="\n{letter}. {label}",
    letters=True,
)


def lettered(starts: Any) -> dict[str, float]:
    """The mean logprob of each label: in every shift that of the letter in its place."""
    ordered = sorted(LABELS)
    reads: dict[str, list[float]] = {label: [] for label in ordered}
    for start in starts:
        order = ordered[start:] + ordered[:start]
        lines = "".join([f"\n{letter}. {label}" for letter, label in zip("ABCDE", order)])
        prompt = BASE + encode(f"Which?{lines}\nBest:")
        for letter, label in zip("ABCDE", order):
            reads[label].append(toys.joint(prompt, encode(f" {letter}")))
    return {label: math.fsum(values) / len(values) for label, values in reads.items()}


@pytest.mark.feature("G20")
@pytest.mark.parametrize("orders", ["given", "sorted", 2, "all", range(1, 2), range(2, 4)])
def test_letters_name_the_label_in_their_place_of_each_shift(orders: Any) -> None:
    starts = {"given": (0,), "sorted": (0,), 2: spread(5)[:2], "all": spread(5)}.get(orders)
    expected = lettered(spread(5)[orders.start : orders.stop] if starts is None else starts)
    preparer = toys.make(max_positions=1024)
    found = set()
    for order in [sorted(LABELS)] if orders == "given" else list(itertools.permutations(LABELS))[::17]:
        for mass in (True, False):
            task = Decide(STATE, [Choice("Which?", list(order))], template=LETTERED, orders=orders, mass=mass)
            answer = toys.run(preparer, task)[0]
            assert answer.labels == tuple(order) and list(answer.probabilities) == list(order)
            for label, share in zip(expected, softmax(list(expected.values()))):
                assert answer.probabilities[label] == pytest.approx(share, abs=1e-9)
                assert not mass or answer.logprobs[label] == pytest.approx(expected[label], abs=1e-9)
            assert answer.label == max(expected, key=expected.__getitem__)
            found.add(tuple([answer.probabilities[label] for label in LABELS]))
    assert len(found) == 1, "the caller's order changes no bit"


@pytest.mark.feature("G20")
@pytest.mark.parametrize("orders", ["sorted", 2, "all"])
@pytest.mark.parametrize("described", [False, True])
def test_no_order_changes_a_bit(orders: Any, described: bool) -> None:
    preparer = toys.make(max_positions=1024)
    found = set()
    tokens = set()
    for order in itertools.islice(itertools.permutations(LABELS), 0, 120, 7):
        labels: Any = {label: DESCRIBED[label] for label in order} if described else list(order)
        task = Decide(STATE, [Choice("Which?", labels)], orders=orders)
        answer = toys.run(preparer, task)[0]
        assert answer.labels == order and answer.label == order[answer.index]
        found.add(
            (answer.label, answer.mass, answer.confidence, *[answer.probabilities[name] for name in sorted(order)])
        )
        tokens.add(tuple(preparer.explain(task).token_ids.tolist()))
    assert len(found) == len(tokens) == 1
    given = {
        tuple(preparer.explain(Decide(STATE, [Choice("Which?", list(order))])).token_ids.tolist())
        for order in itertools.permutations(LABELS[:3])
    }
    assert len(given) == 6, "as they were given, each order is another text"


@pytest.mark.feature("G20")
@pytest.mark.parametrize("orders", ["sorted", 2, "all"])
def test_labels_that_differ_in_case_alone_have_an_order_of_their_own(orders: Any) -> None:
    preparer = toys.make(max_positions=1024)
    texts, found = set(), set()
    for order in itertools.permutations(["yes", "Yes", "YES", "no"]):
        task = Decide(STATE, [Choice("Which?", list(order))], orders=orders)
        answer = toys.run(preparer, task)[0]
        found.add((answer.label, *[answer.probabilities[name] for name in sorted(order)]))
        texts.add(tuple(preparer.explain(task).token_ids.tolist()))
    assert len(found) == len(texts) == 1


def test_of_equal_options_the_first_sorted_one_wins(preparer: Preparer) -> None:
    even = np.full(toys.LIMITS.vocab_size, -math.log(toys.LIMITS.vocab_size))
    for labels in itertools.permutations(["yes", "no", "English"]):
        admitted = preparer.prepare(Decide(STATE, [Choice("Q", list(labels))], orders="all"))
        answer = toys.finish(admitted, toys.outputs(admitted, lambda _: even))[0]
        assert answer.label == "English" == labels[answer.index]


def test_a_shift_costs_the_tokens_of_its_options_and_labels() -> None:
    """State and question once; the options, the rest of the question and the labels once for each shift."""
    preparer = toys.make(max_positions=2048)
    long = "Which of these is it, after all that was said and done?"

    def tokens(**options: Any) -> int:
        asked = [Choice(long, LABELS), YesNo("Polite?")]
        return len(preparer.explain(Decide(STATE * 5, asked, **options)).token_ids)

    once, five = tokens(orders="sorted"), tokens(orders=5)
    tail = len(encode(f"{listed(sorted(LABELS))}\nAnswer:"))
    trie = build_trie([encode(f" {label}") for label in LABELS], LABELS, "labels")
    labels = sum(len(ids) for _, ids in trie.segments)
    noul = len(encode(" yes, no\nAnswer:"))
    assert once < five <= once + 4 * (tail + labels) + noul


def test_a_template_that_lists_no_labels_is_shown_once(preparer: Preparer) -> None:
    template = DecisionTemplate(question="{question} ")
    one = preparer.explain(Decide(STATE, [Choice("Which?", LABELS)], template=template, orders="all"))
    assert (
        one.token_ids.tolist()
        == preparer.explain(Decide(STATE, [Choice("Which?", sorted(LABELS))], template=template)).token_ids.tolist()
    )
    with pytest.raises(TemplateError, match=r"begins with the labels.*put text before \{labels\}"):
        preparer.prepare(
            Decide(
                STATE,
                [Choice("Which?", ["a", "b"])],
                template=DecisionTemplate(question="{labels} {question}"),
                orders=2,
            )
        )


def test_shifts_in_a_chat_template_and_after_cuts() -> None:
    chatty = toys.make(chat=toys.chat, max_positions=200)
    answers = set()
    for labels in itertools.permutations(["yes", "no", "English"]):
        task = Decide("x " * 30, [Choice("Which? " * 80, list(labels))], orders="all", truncation="tail")
        prepared = chatty.prepare(task).prepared
        assert prepared.truncated_tokens > 0 and prepared.tree.depth <= 200
        answers.add(tuple(sorted(toys.run(chatty, task)[0].probabilities.items())))
    assert len(answers) == 1


def test_shifts_that_do_not_exist_or_do_not_fit(preparer: Preparer) -> None:
    with pytest.raises(InvalidRequest, match=r"orders: range\(5, 9\) has none of the 5 shifts of questions\[0\]"):
        preparer.prepare(Decide(STATE, [Choice("Which?", LABELS)], orders=range(5, 9)))
    many = [f"label {i}" for i in range(200)]
    with pytest.raises(RequestTooLarge, match="questions"):
        toys.make(max_positions=4096).prepare(Decide(STATE, [Choice("Which?", many)], orders="all"))


@pytest.mark.parametrize(
    ("rows", "common", "rests"),
    [
        ([[1, 2]], [1, 2], []), ([[1, 2, 3], [1, 2, 4]], [1, 2], [[3], [4]]),
        ([[1, 2, 3], [1, 2]], [1], [[2, 3], [2]]),
        ([[1, 2], [1, 2], [1, 2]], [1], [[2], [2], [2]]),
        ([[1, 2, 3], [1, 2, 3], [1, 4, 3]], [1], [[2, 3], [2, 3], [4, 3]]),
    ],
)  # fmt: skip
def test_rows_are_their_common_beginning_and_a_rest_of_each(rows: Any, common: Any, rests: Any) -> None:
    found, others = split([np.array(row, np.int32) for row in rows])
    assert found.tolist() == common and [row.tolist() for row in others] == rests
    with pytest.raises(TemplateError, match="begins with the labels") as caught:
        split([np.array(row, np.int32) for row in ([5, 1], [6, 1])])
    assert caught.value.field == "template"
