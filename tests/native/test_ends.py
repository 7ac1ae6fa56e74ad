"""The results of ended requests, in whatever order they ended; and the checks of a step's
result before it is postprocessed."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from prelude.admission.prepared import Outcome
from prelude.api.call_steps import finish_all
from prelude.errors import ExecutionError, InvalidRequest
from prelude.readouts.batch import (
    LogprobOutput,
    LogprobRows,
    OneShotBatch,
    PromptSlices,
    SampleOutput,
    SampleRows,
    StepResult,
)
from prelude.results import RequestStats
from prelude.runtime.delivery import Completions
from prelude.runtime.entry import Call
from prelude.scheduling.pack import Packed
from prelude.scheduling.postprocess import check_result
from prelude.scheduling.request import Request
from prelude.values.options import RequestOptions
from tests.scheduling.cores import Collect, last_logprob, prompt


def requests(count: int) -> list[Request]:
    return [Request(last_logprob(prompt(4, at)), Collect()) for at in range(count)]


def outcome(*ids: int) -> Outcome:
    stats = RequestStats(finish_reason="length")
    return Outcome(None, ids, stats)


def admitted(made: Any = lambda outcome: ("made", outcome.token_ids)) -> Any:
    return SimpleNamespace(finish=made)


CALL = Call(RequestOptions(), math.inf, None)


def test_results_are_those_of_the_requests_in_whatever_order_they_ended() -> None:
    some: list[Any] = list(requests(4))
    outcomes = [outcome(at) for at in range(4)]
    expected = [("made", (at,)) for at in range(4)]
    ends: Completions = {request.id: (one, None) for request, one in reversed(list(zip(some, outcomes)))}
    items, calls = [admitted()] * 4, [CALL] * 4
    assert finish_all(items, calls, some, ends) == expected
    assert finish_all(items[2:], calls[2:], some[2:], ends) == expected[2:]


def test_a_result_that_cannot_be_made_and_errors_are_values() -> None:
    def refuse(outcome: Outcome) -> Any:
        raise ValueError("no text")

    some: list[Any] = list(requests(3))
    failed = RuntimeError("failed")
    ends: Completions = {some[0].id: (outcome(7), None), some[1].id: (outcome(3), None), some[2].id: (None, failed)}
    refused = InvalidRequest("never admitted")
    items = [admitted(), admitted(refuse), admitted(), refused]
    good, bad, broken, never = finish_all(items, [CALL] * 4, [*some, refused], ends)
    assert good == ("made", (7,)) and isinstance(bad, ValueError)
    assert broken is failed and never is refused


def test_only_a_result_of_the_asked_kind_is_taken_as_tokens() -> None:
    rows, floats = np.arange(2, dtype=np.int32), np.zeros(2, np.float32)
    asked = SampleRows(rows, floats, rows, floats, floats, np.zeros(2, np.uint64), rows)
    none = np.zeros(0, np.int32)
    slices = PromptSlices(rows, rows, none, none, none, none, none)
    packed = Packed(OneShotBatch(slices, asked))
    good = StepResult((SampleOutput(rows),), (none,), 0.1)
    assert check_result(packed, good) == [frozenset()]
    assert check_result(packed, replace(good, bad_rows=(rows[:1],))) == [frozenset([0])]
    wrong: list[Any] = [
        replace(good, outputs=()),
        replace(good, outputs=good.outputs * 2),
        replace(good, bad_rows=()),
        replace(good, bad_rows=(rows + 1,)),
        replace(good, outputs=(SampleOutput(rows[:1]),)),
        replace(good, outputs=(SampleOutput(rows.reshape(1, 2)),)),
        replace(good, outputs=(SampleOutput([0, 1]),)),  # type: ignore[arg-type]
        replace(good, outputs=(LogprobOutput(np.zeros(2), None, None, None),)),
        SimpleNamespace(outputs=good.outputs, bad_rows=good.bad_rows),
        "not a result",
    ]
    for result in wrong:
        with pytest.raises(ExecutionError):
            check_result(packed, result)
    logprobs = Packed(OneShotBatch(slices, LogprobRows(rows, rows, rows)))
    with pytest.raises(ExecutionError):
        check_result(logprobs, good)
