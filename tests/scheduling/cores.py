"""Requests of the toy model, their ends, and the numbers that they must have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from prelude.admission.prepared import Outcome, Prepared, TokenTree
from prelude.readouts.batch import LogprobRows, SampleOutput
from prelude.readouts.sampling import Sampling, SamplingState
from prelude.runtime.core import EngineCore
from prelude.scheduling.request import Request
from prelude.values.options import RequestOptions
from tests import toy
from tests.service import run_steps


class Collect:
    """A sink that keeps the end of each request, by its id."""

    streams = False

    def __init__(self) -> None:
        self.ends: dict[int, Any] = {}  # (outcome, error)

    def token(self, request: Request, token_id: int, output: SampleOutput, row: int) -> bool:
        return False

    def deliver(self, request: Request, outcome: Outcome | None, error: BaseException | None) -> None:
        if request.id in self.ends:
            raise AssertionError("a request ended twice")
        self.ends[request.id] = (outcome, error)


def submit(core: EngineCore, items: Sequence[Prepared], sink: Collect, **options: Any) -> list[Request]:
    requests = [core.request(item, sink, RequestOptions(**options)) for item in items]
    sink.ends.update(core.lifecycle.post(requests))
    return requests


def post(core: EngineCore, item: Prepared, sink: Collect, **options: Any) -> Any:
    return submit(core, [item], sink, **options)[0]


def run(core: EngineCore, items: Sequence[Prepared]) -> list[Any]:
    """The outcomes of requests that come at once, audited after every step."""
    sink = Collect()
    requests = submit(core, items, sink)
    run_steps(core)
    for request in requests:
        if (error := sink.ends[request.id][1]) is not None:
            raise error
    return [sink.ends[request.id][0] for request in requests]


def text(sink: Collect, request: Request) -> list[int]:
    outcome, error = sink.ends[request.id]
    if error is not None:
        raise error
    return list(outcome.token_ids)


def generated(seed: int, count: int) -> list[int]:
    return toy.generate(prompt(6, seed).tolist(), count)


def check(sink: Collect, requests: Sequence[Request]) -> None:
    """Each has the numbers of its own sequence."""
    for request in requests:
        outcome, error = sink.ends[request.id]
        assert error is None, error
        tokens = request.prepared.tree.token_ids
        if request.prepared.max_new_tokens > 1:
            assert text(sink, request) == toy.generate(tokens.tolist(), request.prepared.max_new_tokens)
        else:
            assert outcome.output.logprobs[0] == pytest.approx(expected_logprob(tokens), abs=1e-12)


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def prompt(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, toy.VOCAB, n).astype(np.int32)


def last_logprob(tokens: np.ndarray, target: int = 5, **options: object) -> Prepared:
    return Prepared(
        TokenTree.single(tokens),
        LogprobRows(ids(len(tokens) - 1), ids(0), ids(target)),
        **options,  # type: ignore[arg-type]
    )


def chat(tokens: np.ndarray, count: int, stop: frozenset[int] = frozenset(), **options: object) -> Prepared:
    sampling = Sampling(0.0, 0, 1.0, 0.0, 0, stop)
    state = SamplingState(len(tokens) - 1, sampling)
    return Prepared(TokenTree.single(tokens), state, count, sampling, **options)  # type: ignore[arg-type]


def expected_logprob(tokens: np.ndarray, target: int = 5) -> float:
    return float(toy.logprobs_of(tokens.tolist())[target])


def tree_request(state: np.ndarray, branches: list[np.ndarray]) -> Prepared:
    tree = TokenTree.build([(-1, state), *((0, b) for b in branches)])
    rows = tree.starts[2:] - 1
    n = len(branches)
    return Prepared(tree, LogprobRows(rows.astype(np.int32), np.arange(n, dtype=np.int32), np.full(n, 5, np.int32)))
