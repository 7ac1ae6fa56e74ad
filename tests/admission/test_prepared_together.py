"""Tasks of one call that differ in their prompt alone are prepared together, as each of them is alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from prelude.admission.preparer import Preparer
from prelude.errors import InvalidRequest, PreludeError
from prelude.tasks import Choice, Decide, Embed, Generate, SamplingParams, Score, YesNo
from tests.admission import toys
from tests.admission.test_preparer import same

ONE = (Choice("Which?", ("red", "blue")),)
LONG = (Choice("Which town?", ("New York", "New Delhi", "York")), YesNo("Polite?"))
STATES: list[Any] = ["The quick", "brown fox", "", "  spaces", "naïve 你好", "The quick " * 30, [5, 6, 7], (8, 9)]
STATES += [[{"role": "user", "content": "hi"}, {"role": "tool", "content": "4"}], np.array([3, 4], np.int32)]
WRONG: list[Any] = [None, 3, b"bytes", "\ud800", "x" * 100_000, [1, 2.5], [{"role": 3}], [10**6], object()]
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "several questions": {"questions": LONG},
    "by length": {"length_norm": "token", "questions": LONG},
    "without the state": {"length_norm": "unconditional"},
    "labels alone": {"mass": False},
    "cut": {"truncation": "middle"},
    "salted": {"salt": "tenant"},
    "not kept": {"cache": "never"},
}


def alone(preparer: Preparer, task: Any) -> Any:
    try:
        return preparer.prepare(task)
    except Exception as error:
        return error


def check(together: list[Any], one_by_one: list[Any]) -> None:
    assert len(together) == len(one_by_one)
    for a, b in zip(together, one_by_one):
        if isinstance(b, Exception):
            assert type(a) is type(b) and str(a) == str(b) and isinstance(b, PreludeError)
        else:
            assert same(a.prepared, b.prepared) and a.watched == b.watched
            assert (a.reader is None) == (b.reader is None)


@pytest.mark.feature("A10")
@pytest.mark.parametrize("chat", [None, toys.chat, toys.stripping_chat], ids=["plain", "chat", "stripping"])
@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_decisions_are_prepared_together_as_each_alone(setting: dict[str, Any], chat: Any) -> None:
    given: dict[str, Any] = {"questions": ONE, **setting}
    tasks = [Decide(state, **given) for state in (*STATES, *WRONG, *STATES)]
    fresh = [toys.make(chat=chat) for _ in range(2)]
    check(fresh[0].prepare_all(tasks), [alone(fresh[1], task) for task in tasks])
    assert 0 < fresh[0].tokenizer_calls <= fresh[1].tokenizer_calls


@pytest.mark.feature("A10")
def test_a_call_of_the_tokenizer_serves_all_decisions_of_a_run(
    preparer: Preparer, monkeypatch: pytest.MonkeyPatch
) -> None:
    preparer.prepare(Decide("first", ONE))
    tokenizer: Any = preparer.tokenizer
    lengths, before = [], preparer.tokenizer_calls
    inner = tokenizer.encode_arrays

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(tokenizer, name)

        def encode_arrays(self, texts: Any, *given: Any, **more: Any) -> Any:
            lengths.append(len(texts))
            return inner(texts, *given, **more)

    monkeypatch.setattr(preparer.context.encoder, "tokenizer", Watched())
    found = preparer.prepare_all([Decide(f"state {i}", ONE) for i in range(20)])
    assert lengths == [20] and preparer.tokenizer_calls == before + 20
    assert all(one.prepared.tokenize_ms > 0 for one in found if not isinstance(one, Exception))


def test_neighbours_that_say_something_else_are_not_taken_for_alike(preparer: Preparer) -> None:
    tasks: list[Any] = [
        Decide("a state", ONE),
        Decide("a state", ONE, salt="other"),
        Decide("a state", LONG),
        Decide("a state", LONG, cache="always"),
        Embed("a state", pooling="last"),
        Generate([1, 2, 3], SamplingParams(max_tokens=1, temperature=0)),
        Generate([1, 2, 3], SamplingParams(max_tokens=2, temperature=0)),
        "no task",
        Decide("a state", (Score("Clear?"),)),
    ]
    found = preparer.prepare_all(tasks)
    check(found, [alone(preparer, task) for task in tasks])
    assert len({one.prepared.salt for one in found[:2]}) == 2 and found[3].prepared.cache == "always"  # type: ignore[union-attr]
    assert isinstance(found[7], InvalidRequest)


class Kind(Decide):
    """A subclass of a task."""


def test_a_subclass_of_a_task_is_the_task(preparer: Preparer) -> None:
    [found] = preparer.prepare_all([Kind("a state", ONE)])
    assert not isinstance(found, Exception)
    assert same(found.prepared, preparer.prepare(Decide("a state", ONE)).prepared)


@pytest.mark.parametrize("wanted", [0, 1, 3])
def test_prompts_of_ids_are_prepared_together_as_each_alone(wanted: int) -> None:
    params = SamplingParams(max_tokens=wanted, temperature=0, stop="\n" if wanted else ())
    prompts: list[Any] = [[1, 2, 3], (4, 5), np.array([6], np.int32), np.array([6, 7]), [], "text", [1] * 63]
    prompts += [[1] * 62, [1] * 61, [1] * 64, [1, True], [1, 2.0], [-1], [10**7], ["a"], None, [[1]]]
    tasks = [Generate(prompt, params) for prompt in prompts]
    fresh = [toys.make(max_length=64) for _ in range(2)]
    check(fresh[0].prepare_all(tasks), [alone(fresh[1], task) for task in tasks])


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


def test_ids_are_the_requests_own(preparer: Preparer) -> None:
    given = np.array([1, 2, 3], np.int32)
    [found] = preparer.prepare_all([Generate(given, SamplingParams(max_tokens=1, temperature=0))])
    assert not isinstance(found, Exception)
    given[:] = 9
    assert found.prepared.tree.token_ids.tolist() == [1, 2, 3]
    fields = {field.name for field in dataclasses.fields(found.prepared)}
    assert all(hasattr(found.prepared, name) for name in fields)
