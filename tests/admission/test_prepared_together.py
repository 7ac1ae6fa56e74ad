"""Tasks of one call have nothing in common."""

from __future__ import annotations

import pytest

from prelude.admission.preparer import Preparer
from prelude.tasks import Choice, Decide, Generate, SamplingParams
from tests.admission.test_preparer import same

ONE = (Choice("Which?", ("red", "blue")),)


class Kind(Decide):
    """A subclass of a task."""


def test_a_subclass_of_a_task_is_the_task(preparer: Preparer) -> None:
    [found] = preparer.prepare_all([Kind("a state", ONE)])
    assert not isinstance(found, Exception)
    assert same(found.prepared, preparer.prepare(Decide("a state", ONE)).prepared)


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
