"""Settings of ``SamplingParams`` beyond the basic ones: accepted values, refused ones, and the words of the
refusal."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from prelude.admission.preparer import Preparer
from prelude.errors import InvalidRequest, RequestTooLarge, UnknownParameter
from prelude.readouts.batch import SampleRows
from prelude.readouts.sampling import SamplingState, sample_rows
from prelude.tasks import Generate, SamplingParams

ROWS = 428
NAN, INF = math.nan, math.inf


def refused(preparer: Preparer, match: str, error: type[Exception] = InvalidRequest, **params: Any) -> None:
    for count in (0, 1, 64):
        with pytest.raises(error, match=match) as caught:
            preparer.prepare(Generate([5], SamplingParams(max_tokens=count, **params)))
        assert len(str(caught.value)) < 300


def readout(preparer: Preparer, **params: Any) -> SampleRows:
    found = preparer.prepare(Generate([5, 6, 5], SamplingParams(max_tokens=1, **params))).prepared.readout
    assert isinstance(found, SamplingState)
    return sample_rows([found])


@pytest.mark.fault(8)
@pytest.mark.parametrize("name", ["repetition_penalty", "presence_penalty", "frequency_penalty"])
@pytest.mark.parametrize("bad", [NAN, INF, -INF, 1e38, -1e38, "1", None, True, [1.0], 10**400])
def test_penalties_that_are_not_finite_or_out_of_range(preparer: Preparer, name: str, bad: Any) -> None:
    refused(preparer, rf"^params.{name}: ", **{name: bad})


@pytest.mark.fault(8)
def test_penalties_at_their_bounds(preparer: Preparer) -> None:
    for bad in (0.0, -0.0, -1.0, 0.0099):
        refused(preparer, "^params.repetition_penalty: .*it takes 0.01 to 100; 1 is off", repetition_penalty=bad)
    for name, values in (("repetition_penalty", (0.01, 100)), ("presence_penalty", (-100, 100, -0.0))):
        for value in values:
            readout(preparer, **{name: value})
    with pytest.raises(UnknownParameter, match="does not offer 'length_penalty'"):
        SamplingParams(length_penalty=1.0)  # type: ignore[call-arg]
    assert readout(preparer).edits is None, "off costs nothing"


@pytest.mark.fault(10)
def test_logprobs(preparer: Preparer) -> None:
    for bad in (-1, 257, ROWS, 10**9, True, 1.0, "5", NAN):
        refused(preparer, "^params.logprobs: .*it takes 0 to 256; None is off", logprobs=bad)
    for given, top in ((None, 0), (0, 0), (1, 1), (np.int64(256), 256)):
        made = readout(preparer, logprobs=given)
        assert (made.logprobs, made.top) == (given is not None, top)


@pytest.mark.fault(11)
@pytest.mark.parametrize(
    ("bias", "match"),
    [
        ({"5": 1.0}, r"^params.logit_bias key: '5' is not an integer; it takes 0 to 427; a key is a token id"),
        ({ROWS: 1.0}, r"^params.logit_bias key: 428 is out of range"),
        ({-1: 1.0}, r"^params.logit_bias key: -1 is out of range"),
        ({True: 1.0}, r"^params.logit_bias key: True is not an integer"),
        ({5: NAN}, r"^params.logit_bias\[5\]: nan is not finite"),
        ({5: INF}, r"^params.logit_bias\[5\]: inf is not finite; .*use banned_token_ids"),
        ({5: -INF}, r"^params.logit_bias\[5\]: -inf is not finite"),
        ({5: 101}, r"^params.logit_bias\[5\]: 101 is out of range; it takes -100 to 100"),
        ({5: "1"}, r"^params.logit_bias\[5\]: '1' is not a number"),
        ({5: None}, r"^params.logit_bias\[5\]: None is not a number"),
        ([(5, 1.0)], r"^params.logit_bias: .* is not a dict"),
        ("5", r"^params.logit_bias: '5' is not a dict"),
    ],
)
def test_biases_that_are_none(preparer: Preparer, bias: Any, match: str) -> None:
    refused(preparer, match, logit_bias=bias)


@pytest.mark.fault(11)
def test_a_million_biases_are_refused_before_they_are_looked_at(preparer: Preparer) -> None:
    many = dict.fromkeys(range(10**6), 1)
    refused(preparer, "1000000 entries; the model has 428 logits", RequestTooLarge, logit_bias=many)
    assert readout(preparer, logit_bias=dict.fromkeys(range(ROWS), 1)).edits is not None, "one for each logit"
    edits = readout(preparer, logit_bias={np.int32(ROWS - 1): np.float32(2), 0: -100}).edits
    assert edits is not None and edits.bias_ids.tolist() == [ROWS - 1, 0] and edits.bias_values.tolist() == [2, -100]


@pytest.mark.fault(11)
def test_no_token_allowed(preparer: Preparer) -> None:
    every = range(ROWS)
    refused(preparer, r"^params.allowed_token_ids: no token allowed", allowed_token_ids=[])
    refused(preparer, r"^params.banned_token_ids: no token allowed", banned_token_ids=every)
    refused(preparer, r"no token allowed", allowed_token_ids=[5, 6], banned_token_ids=[6, 5])
    only_stop = {"allowed_token_ids": [0], "min_tokens": 1}
    with pytest.raises(InvalidRequest, match=r"no token allowed: .*before min_tokens"):
        preparer.prepare(Generate([5], SamplingParams(max_tokens=2, **only_stop)))
    assert readout(preparer, banned_token_ids=range(1, ROWS)).edits is not None, "one is left"


@pytest.mark.fault(13)
@pytest.mark.parametrize("name", ["allowed_token_ids", "banned_token_ids", "stop_token_ids"])
def test_ids_out_of_range(preparer: Preparer, name: str) -> None:
    for bad in ([-1], [ROWS], [1 << 31], [1 << 70], [5, True], ["5"], [1.0], [None], [[5]], np.array([5, ROWS])):
        refused(preparer, rf"^params.{name}\[", **{name: bad})
    for bad in (5, "5", b"5", {5: 1}, np.array([[5]]), np.array([0.5]), np.array(5), iter([5]), object()):
        refused(preparer, rf"^params.{name}: .* is not a list of token ids", **{name: bad})
    refused(preparer, rf"^params.{name}: 10+ ids; the limit is", RequestTooLarge, **{name: range(10**6)})
    preparer.prepare(Generate([5], SamplingParams(**{name: np.array([ROWS - 1, 5, 5])})))
    with pytest.raises(UnknownParameter, match="use banned_token_ids"):
        SamplingParams(bad_words=["x"])  # type: ignore[call-arg]


@pytest.mark.fault(12)
@pytest.mark.parametrize(
    ("stop", "match"),
    [
        ("", r"^params.stop\[0\]: it is empty"),
        (["ok", ""], r"^params.stop\[1\]: it is empty"),
        (["x"] * 10**4, r"^params.stop: 10000 stop strings; the limit is 64"),
        ([5], r"^params.stop\[0\]: 5 is of type int; give a string"),
        ([None], r"^params.stop\[0\]: it is None; give a string"),
        ([b"x"], r"^params.stop\[0\]: b'x' is of type bytes"),
        (b"x", r"^params.stop: b'x' is not a string or a list"),
        (5, r"^params.stop: 5 is not a string or a list"),
        (None, r"^params.stop: None is not a string or a list"),
        ({"x"}, r"^params.stop: \{'x'\} is not a string or a list"),
        ("a\ud800", r"^params.stop\[0\]: a lone surrogate"),
        ("x" * 4097, r"^params.stop\[0\]: 4097 characters"),
        (["x" * 1000 + str(i) for i in range(5)], r"^params.stop: more than 4096 characters"),
    ],
)
def test_stops_that_are_none(preparer: Preparer, stop: Any, match: str) -> None:
    refused(preparer, match, stop=stop)


def test_settings_of_the_end_of_a_text(preparer: Preparer) -> None:
    def sampling(**params: Any) -> Any:
        return preparer.prepare(Generate([5], SamplingParams(**params))).prepared.sampling

    assert sampling(stop_token_ids=[7, np.int64(8)]).stop_ids == {0, 7, 8}
    assert sampling(stop_token_ids=(7,), ignore_eos=True).stop_ids == {7}
    assert sampling(stop="END").stops.words == ("END",) and sampling(stop=[]).stops is None
