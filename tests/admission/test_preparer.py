"""Prepared once, owned by the request, the same from any thread, and cheap."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import numpy as np
import pytest

from prelude.admission.preparer import Preparer, salt_number
from prelude.admission.snapshot import snapshot
from prelude.errors import InvalidRequest
from prelude.tasks import (
    Choice,
    Classify,
    Decide,
    Embed,
    Generate,
    Guard,
    Loglikelihood,
    PromptLogprobs,
    SamplingParams,
    Score,
    YesNo,
)
from prelude.values.memo import Memo
from tests.admission import toys

TASKS: list[Any] = [
    Decide("The quick", [Choice("Which?", ["New York", "York"]), YesNo("Polite?"), Score("Clear?")]),
    Decide([5, 6, 7], [YesNo("Polite?")], length_norm="unconditional"),
    Embed("The quick", pooling="mean"),
    Classify("The quick"),
    Loglikelihood("The quick", " brown"),
    PromptLogprobs("The quick brown", last=2),
    Generate("The quick", SamplingParams(seed=5)),
    Generate([{"role": "user", "content": "hi"}], SamplingParams(seed=5, max_tokens=1)),
]


def same(a: Any, b: Any) -> bool:
    """Deep equality of prepared values, arrays included."""
    if isinstance(a, np.ndarray):
        return bool(np.array_equal(a, b)) and a.dtype == b.dtype
    if dataclasses.is_dataclass(a):
        names = [field.name for field in dataclasses.fields(a) if field.name != "tokenize_ms"]
        return type(a) is type(b) and all(same(getattr(a, name), getattr(b, name)) for name in names)
    return bool(a == b)


@pytest.mark.feature("A10")
@pytest.mark.fault(20)
def test_changes_after_submitting_change_nothing() -> None:
    preparer = toys.make(chat=toys.chat)
    ids, array, labels = [5, 6, 7], np.array([5, 6, 7]), ["English", "French"]
    messages = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    questions: list[Any] = [Choice("Which?", labels), YesNo("Polite?")]
    plain = [{"role": "user", "content": "hi"}]
    stops, bias, banned = ["one"], {5: 1.0}, np.array([6, 7])
    lists = SamplingParams(seed=1, stop=stops, logit_bias=bias, banned_token_ids=banned)
    tasks = [
        Decide(ids, questions), Decide(messages, questions), Embed(array, pooling="last"), Loglikelihood(ids, array),
        Generate(plain, SamplingParams(seed=1)), Generate("hi", lists),
    ]  # fmt: skip
    owned = [preparer.snapshot(task) for task in tasks]
    before = [preparer.prepare(task).prepared for task in tasks]
    ids[0] = 9
    array[:] = 9
    labels.append("German")
    stops[0], bias[5], banned[0] = "two", 2.0, 8
    questions.pop()
    messages[0]["content"][0]["text"] = "changed"  # type: ignore[index]
    plain[0]["content"] = "changed"
    plain.append({"role": "user", "content": "more"})
    for task, expected, late in zip(owned, before, tasks):
        assert same(preparer.prepare(task).prepared, expected)
        assert not same(preparer.prepare(late).prepared, expected)


def test_a_snapshot_of_a_task_that_cannot_change_is_the_task_itself() -> None:
    for task in (Embed("x"), Decide("x", (YesNo("a"), Choice("b", ("c",)))), Generate("x"), Loglikelihood("x", "y")):
        assert snapshot(task) is task
    assert snapshot(Classify(("a text", "another"))).prompt == ("a text", "another")  # a pair stays a pair
    labels = ["a"]
    judged = snapshot(Guard([], given={"categories": labels}))
    labels.append("b")
    assert judged.given == {"categories": ("a",)}
    for bad in (Embed(None), Decide(5, 5), Generate({"role": "user"}), Decide("x", ["y"])):  # type: ignore[arg-type, list-item]
        with pytest.raises(InvalidRequest):
            toys.make().prepare(snapshot(bad))


@pytest.mark.parametrize("bad", [None, "x", 5, object(), SamplingParams()])
def test_a_value_that_is_not_a_task(preparer: Preparer, bad: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"is not a task"):
        preparer.prepare(bad)


def test_cache_and_salt(preparer: Preparer) -> None:
    def prepared(**options: Any) -> Any:
        return preparer.prepare(Embed([5], pooling="last", **options)).prepared

    assert (prepared().cache, prepared().salt) == ("auto", 0)
    assert prepared(cache="never").cache == "never"
    assert toys.make(default_cache="always").prepare(Embed([5], pooling="last")).prepared.cache == "always"
    salts = {prepared(salt=name).salt for name in ("a", "b", "A", "0", "\x00", "x" * 256)}
    assert len(salts) == 6 and 0 not in salts and all(0 < salt < 1 << 63 for salt in salts)
    assert prepared(salt="a").salt == salt_number("a")
    assert len({salt_number(str(tenant)) for tenant in range(1 << 17)}) == 1 << 17
    for bad in ("", "x" * 257, 5, b"a", ["a"]):
        with pytest.raises(InvalidRequest, match=r"^salt: "):
            prepared(salt=bad)
    for wrong in ("sometimes", True, None):
        with pytest.raises(InvalidRequest, match=r"^cache: "):
            prepared(cache=wrong)


def test_explain_shows_the_tokens_that_would_run() -> None:
    preparer = toys.make(chat=toys.chat, num_labels=2)
    for task in TASKS:
        shown, prepared = preparer.explain(task), preparer.prepare(task).prepared
        assert shown.token_ids.tolist() == prepared.tree.token_ids.tolist()
        assert shown.rows.tolist() == prepared.rows.tolist() != []
        assert [start for start, _, _ in shown.segments] == prepared.tree.starts[:-1].tolist()
        assert shown.text == preparer.tokenizer.decode(shown.token_ids.tolist(), skip_special_tokens=False)
        assert bool(shown.labels) == isinstance(task, Decide)
    assert preparer.explain(TASKS[6]).execution_class == "decode"
    assert preparer.explain(TASKS[2]).readout == "hidden states of 2 rows, pooling mean"
    assert preparer.explain(Embed("one two three", pooling="last", truncation="tail")).truncated_tokens == 0


def test_threads_share_a_preparer() -> None:
    preparer = toys.make(chat=toys.chat, num_labels=2)
    expected = [toys.make(chat=toys.chat, num_labels=2).prepare(task).prepared for task in TASKS]
    failures: list[Any] = []

    def work() -> None:
        for _ in range(20):
            for task, right in zip(TASKS, expected):
                if not same(preparer.prepare(task).prepared, right):
                    failures.append(task)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# ------------------------------------------------------------------ many tasks
class Kind(Decide):
    """A subclass of a task."""


def test_a_subclass_of_a_task_is_the_task(preparer: Preparer) -> None:
    asked = (Choice("Which?", ("red", "blue")),)
    [found] = preparer.prepare_all([Kind("a state", asked)])
    assert not isinstance(found, Exception)
    assert same(found.prepared, preparer.prepare(Decide("a state", asked)).prepared)


@pytest.mark.feature("H3")
def test_each_task_of_a_run_draws_a_seed_of_its_own(preparer: Preparer) -> None:
    params = SamplingParams(max_tokens=1, temperature=1.0)
    found = preparer.prepare_all([Generate([1, 2, 3], params) for _ in range(20)])
    seeds = {one.prepared.sampling.seed for one in found if not isinstance(one, Exception) and one.prepared.sampling}
    assert len(seeds) == 20


def test_a_callers_function_is_asked_once_for_each_task(preparer: Preparer) -> None:
    asked: list[list[int]] = []

    def allowed(output: list[int]) -> list[int]:
        asked.append(output)
        return [5, 6]

    params = SamplingParams(max_tokens=4, allowed_tokens_fn=allowed)
    preparer.prepare_all([Generate([1, 2, 3], params) for _ in range(5)])
    assert len(asked) == 5


# ------------------------------------------------------------------ cost
def test_questions_are_kept_and_bounded() -> None:
    preparer = toys.make()
    questions = [Choice("Which?", ("New York", "York")), YesNo("Polite?")]
    preparer.prepare(Decide([5, 6], questions))
    before = preparer.tokenizer_calls
    preparer.prepare(Decide([5, 6, 7], [Choice("Which?", ["New York", "York"]), YesNo("Polite?")]))
    assert preparer.tokenizer_calls == before  # equal questions, other objects
    other = preparer.prepare(Decide([5, 6], [Choice("Which?", ("New York", "York!"))]))
    assert preparer.tokenizer_calls > before and other.prepared.readout is not None


def test_a_memo_holds_at_most_its_capacity() -> None:
    memo: Memo[int, int] = Memo(20)
    for key in range(100):
        memo.put(key, key, 2)
        assert 2 * len(memo) <= memo.weight <= 20
        assert memo.get(0) == 0  # entries that are asked for stay
    for weight, kept in ((11, None), (10, 1)):  # half of it
        memo.put(1000, 1, weight)
        assert memo.get(1000) == kept and memo.get(50) is None
