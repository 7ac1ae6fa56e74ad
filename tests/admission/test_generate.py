"""Generate: execution class, output budget, sampling settings, text."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from prelude.admission.prepared import ExecutionClass, classify
from prelude.admission.preparer import Preparer
from prelude.errors import InvalidRequest, RequestTooLarge, UnknownParameter
from prelude.readouts.batch import LogprobRows
from prelude.readouts.sampling import SamplingState, sample_rows
from prelude.tasks import Classify, Decide, Embed, Generate, Loglikelihood, PromptLogprobs, SamplingParams, YesNo
from tests.admission import toys

NAN, INF = math.nan, math.inf


def drawn(preparer: Preparer, params: SamplingParams) -> SamplingState:
    found = preparer.prepare(Generate([5], params)).prepared.readout
    assert isinstance(found, SamplingState)
    return found


@pytest.mark.feature("A2")
@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (Generate([5], SamplingParams(max_tokens=0)), ExecutionClass.ONESHOT),
        (Generate([5], SamplingParams(max_tokens=1)), ExecutionClass.ONESHOT),
        (Generate([5], SamplingParams(max_tokens=2)), ExecutionClass.DECODE),
        (Generate([5] * 254, SamplingParams(max_tokens=50)), ExecutionClass.DECODE),
        (Generate([5] * 255, SamplingParams(max_tokens=50)), ExecutionClass.ONESHOT),  # one position is left
        (Embed([5], pooling="last"), ExecutionClass.ONESHOT),
        (Classify([5]), ExecutionClass.ONESHOT),
        (Decide([5], [YesNo("x")]), ExecutionClass.ONESHOT),
        (Loglikelihood([5], [6]), ExecutionClass.ONESHOT),
        (PromptLogprobs([5, 6]), ExecutionClass.ONESHOT),
    ],
)
def test_the_class_follows_the_effective_budget(task: Any, expected: ExecutionClass) -> None:
    assert classify(toys.make(num_labels=2).prepare(task).prepared) is expected


@pytest.mark.feature("A4")
def test_prompt_logprobs_instead_of_text(preparer: Preparer) -> None:
    task = Generate("The quick brown fox", SamplingParams(max_tokens=0, prompt_logprobs=3))
    admitted = preparer.prepare(task)
    assert isinstance(admitted.prepared.readout, LogprobRows) and admitted.prepared.sampling is None
    result = toys.run(preparer, task)
    assert (result.text, result.token_ids, result.finish_reason) == ("", (), "length")
    assert len(result.prompt_logprobs) == admitted.prepared.tree.num_tokens
    assert result.prompt_logprobs[0].logprob is None
    assert all(len(token.top) == 3 and token.rank >= 1 for token in result.prompt_logprobs[1:])
    with pytest.raises(InvalidRequest, match=r"^truncation: 'all' is not one of"):
        preparer.prepare(Generate([5], truncation="all"))  # type: ignore[arg-type]
    nothing = preparer.prepare(Generate("The quick", SamplingParams(max_tokens=0)))
    assert nothing.prepared.readout is None
    assert toys.finish(nothing).prompt_logprobs is None
    with pytest.raises(InvalidRequest, match=r"needs max_tokens=0"):
        preparer.prepare(Generate("x", SamplingParams(max_tokens=1, prompt_logprobs=3)))


@pytest.mark.fault(7)
@pytest.mark.parametrize("bad", [-1, 1 << 31, 10**18, None, True, "5", NAN, 5.0, [5], np.bool_(True)])
def test_max_tokens_that_are_none(preparer: Preparer, bad: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^params.max_tokens: .*; it takes 0 to 2147483647") as caught:
        preparer.prepare(Generate([5], SamplingParams(max_tokens=bad)))
    assert caught.value.field == "params.max_tokens"


@pytest.mark.fault(7)
def test_max_tokens_is_cut_to_the_room_that_the_context_leaves(preparer: Preparer) -> None:
    for wanted, effective in ((0, 0), (1, 1), (np.int64(7), 7), ((1 << 31) - 1, 246)):
        prepared = preparer.prepare(Generate([5] * 10, SamplingParams(max_tokens=wanted))).prepared
        assert prepared.max_new_tokens == effective


@pytest.mark.fault(8)
@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p"])
@pytest.mark.parametrize("bad", [NAN, INF, -INF, -1e-9, 1e38, "1", None, True, [1.0], np.float32(NAN), 10**400])
def test_numbers_that_are_not_finite_or_out_of_range(preparer: Preparer, name: str, bad: Any) -> None:
    for count in (0, 1, 64):
        with pytest.raises(InvalidRequest, match=rf"^params.{name}: ") as caught:
            preparer.prepare(Generate([5], SamplingParams(max_tokens=count, **{name: bad})))
        assert len(str(caught.value)) < 300
        if isinstance(bad, float | np.floating) and not np.isfinite(bad):
            assert "is not finite" in str(caught.value), "not that it is out of range, which nan is not"


@pytest.mark.fault(9)
def test_top_k_and_seed(preparer: Preparer) -> None:
    for given, effective in ((0, 0), (1, 1), (427, 427), (428, 0), (10**9, 0)):
        assert sample_rows([drawn(preparer, SamplingParams(top_k=given))]).top_k.tolist() == [effective]
    for bad in (True, 1.0):
        with pytest.raises(InvalidRequest, match=r"params.top_k"):
            preparer.prepare(Generate([5], SamplingParams(top_k=bad)))  # type: ignore[arg-type]
    for name in ("n", "best_of", "beam_width", "use_beam_search"):
        with pytest.raises(UnknownParameter, match=rf"does not offer '{name}'"):
            SamplingParams(**{name: 10**6})
    with pytest.raises(InvalidRequest, match=r"is not SamplingParams"):
        preparer.prepare(Generate([5], {"max_tokens": 5}))  # type: ignore[arg-type]


def test_a_request_that_can_never_fit_the_pool() -> None:
    preparer = toys.make(num_blocks=4)
    preparer.prepare(Generate([5] * 60, SamplingParams(max_tokens=5)))  # 64 slots; the last token is not written
    with pytest.raises(RequestTooLarge, match=r"more than the pool of 64 tokens; raise EngineConfig.kv_bytes"):
        preparer.prepare(Generate([5] * 60, SamplingParams(max_tokens=6)))
    preparer.prepare(Generate([5] * 100, SamplingParams(max_tokens=1)))  # OneShot holds no blocks


def test_text_stops_before_the_stop_token(tokenizer: Any) -> None:
    preparer = toys.make(eos_ids=[0, 2])
    ids = tuple(tokenizer.encode(" brown fox").ids)
    admitted = preparer.prepare(Generate("The quick", SamplingParams(max_tokens=8)))
    done = toys.finish(admitted, None, (*ids, 2))
    assert (done.text, done.token_ids, done.finish_reason) == (" brown fox", ids, "stop")
    assert done.stats.finish_reason == "stop" and done.stats.detok_ms > 0
    full = toys.finish(admitted, None, ids)
    assert (full.text, full.finish_reason) == (" brown fox", "length")
    endless = preparer.prepare(Generate("The quick", SamplingParams(max_tokens=8, ignore_eos=True)))
    assert endless.prepared.sampling is not None and not endless.prepared.sampling.stop_ids
    assert toys.finish(endless, None, (*ids, 2)).token_ids == (*ids, 2)


def test_one_token_comes_from_the_step_itself(preparer: Preparer, tokenizer: Any) -> None:
    admitted = preparer.prepare(Generate("The quick", SamplingParams(max_tokens=1)))
    brown = tokenizer.encode(" brown").ids[0]
    assert toys.finish(admitted, toys.sampled(brown)).token_ids == (brown,)
    stopped = toys.finish(admitted, toys.sampled(0))
    assert (stopped.text, stopped.token_ids, stopped.finish_reason) == ("", (), "stop")
