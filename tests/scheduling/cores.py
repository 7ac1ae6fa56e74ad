"""An engine core over the toy model, its prompts, and the numbers that they must have."""

from __future__ import annotations

import numpy as np
from prelude._native.core import KvPool

from prelude.admission.prepared import Outcome, Prepared, TokenTree
from prelude.readouts.batch import LogprobRows
from prelude.readouts.sampling import Sampling, SamplingState
from prelude.runtime.core import EngineCore
from prelude.scheduling.planner import Budgets
from prelude.scheduling.request import Request
from tests import toy


class Collect:
    streams = False

    def token(self, request, token_id, output, row) -> bool:  # type: ignore[no-untyped-def]
        return False

    def __init__(self) -> None:
        self.ends: dict[int, tuple[Outcome | None, BaseException | None]] = {}
        self.ended: list[Request] = []  # kept, so that no later one has the id of one of them

    def deliver(self, request: Request, outcome: Outcome | None, error: BaseException | None) -> None:
        if id(request) in self.ends:
            raise AssertionError("a request ended twice")
        self.ends[id(request)] = (outcome, error)
        self.ended.append(request)


def make_core(
    executor: toy.ToyExecutor | None = None,
    *,
    fold: bool = True,
    cache: bool = True,
    step_tokens: int = 256,
    running: int = 4,
    chunk: int = 8,
    step_requests: int = 64,
    logits_bytes: int = 1 << 30,
    queued: int = 1 << 20,
) -> EngineCore:
    executor = executor or toy.ToyExecutor()
    pool = KvPool(executor.num_blocks, executor.block_size, prefix_cache=cache)
    budgets = Budgets(step_tokens, step_requests, running, chunk, logits_bytes, toy.VOCAB, 64, fold)
    return EngineCore(
        executor, pool, budgets, max_queued_requests=queued, max_queued_tokens=1 << 31, unhealthy_after=3
    )


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


def run(core: EngineCore, items: list[Prepared]) -> list[Outcome]:
    """All at once, audited after every step."""
    sink = Collect()
    requests = [core.request(item, sink) for item in items]
    core.lifecycle.post(requests)
    while core.step():
        core.audit()
    core.audit()
    results = []
    for request in requests:
        outcome, error = sink.ends[id(request)]
        if error is not None:
            raise error
        assert outcome is not None
        results.append(outcome)
    return results


def expected_logprob(tokens: np.ndarray, target: int = 5) -> float:
    return float(toy.logprobs_of(tokens.tolist())[target])


def tree_request(state: np.ndarray, branches: list[np.ndarray]) -> Prepared:
    tree = TokenTree.build([(-1, state), *((0, b) for b in branches)])
    rows = tree.starts[2:] - 1
    n = len(branches)
    return Prepared(tree, LogprobRows(rows.astype(np.int32), np.arange(n, dtype=np.int32), np.full(n, 5, np.int32)))
