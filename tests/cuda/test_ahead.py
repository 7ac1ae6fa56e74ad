"""The engine's own loop over the CUDA executor: decode steps are submitted before the device has run the one before,
and the texts are those of the CPU executor, one step at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from prelude.cuda.executor import CudaExecutor
from prelude.cuda.graphs import GraphPolicy

from prelude import EngineConfig
from prelude.admission.prepared import Prepared, TokenTree
from prelude.execution.executor import Executor
from prelude.readouts.batch import DecodeBatch, ForwardBatch, MixedBatch
from prelude.readouts.sampling import RowEdits, Sampling, SamplingState
from prelude.runtime.assembly import make_core
from prelude.runtime.core import EngineCore
from tests.cuda.conftest import on_device
from tests.cuda.plans import BLOCKS
from tests.execution.helpers import VOCAB, Model, random_ids
from tests.scheduling.cores import Collect
from tests.service import is_empty, run_steps

NONE = np.zeros(0, np.int32)
LIMITS: dict[str, Any] = {
    "max_length": 256, "max_step_tokens": 512, "max_running": 16, "max_step_requests": 32, "chunk_tokens": 512,
    "oneshot_share": 1.0,
}  # fmt: skip


class Told(Collect):
    """Ends by request; the tokens with their logprobs as they were streamed."""

    streams = True

    def __init__(self) -> None:
        super().__init__()
        self.streamed: dict[int, list[tuple[int, float]]] = {}

    def token(self, request: Any, token_id: int, output: Any, row: int) -> bool:
        logprob = 0.0 if output.logprobs is None or request.sampling.logprobs is None else float(output.logprobs[row])
        self.streamed.setdefault(request.id, []).append((token_id, logprob))
        return False


def edits(repetition: float = 1.0, banned: int = 0, early: frozenset[int] = frozenset()) -> RowEdits:
    ids = np.arange(banned, dtype=np.int32)
    both = np.union1d(ids, np.array(sorted(early), np.int32)).astype(np.int32)
    return RowEdits(repetition, 0.0, 0.0, NONE, NONE.astype(np.float32), NONE, ids, both)


def sampling(kind: str, seed: int) -> Sampling:
    stops = frozenset(range(0, VOCAB, 9))
    match kind:
        case "greedy":
            return Sampling(0.0, 0, 1.0, 0.0, 0, frozenset())
        case "drawn":
            return Sampling(0.8, 40, 0.95, 0.0, seed, stops)
        case "logprobs":
            return Sampling(1.0, 0, 1.0, 0.02, seed, stops, logprobs=0)
        case "early":
            return Sampling(1.2, 0, 1.0, 0.0, seed, stops, edits(banned=5, early=stops), min_tokens=4)
        case _:
            return Sampling(0.7, 0, 1.0, 0.0, seed, stops, edits(repetition=1.4))


def requests(kinds: list[str]) -> list[Prepared]:
    found = []
    for i, kind in enumerate(kinds):
        ids = random_ids(i, 5 + 17 * i % 90)
        chosen = sampling(kind, 1000 + i)
        found.append(Prepared(TokenTree.single(ids), SamplingState(len(ids) - 1, chosen), 4 + i % 9, chosen))
    return found


def play(executor: Executor, prepared: list[Prepared], overlap: bool) -> tuple[EngineCore, list[Any]]:
    """In two waves; audited after every step."""
    core = make_core(EngineCore, executor, EngineConfig().changed(overlap=overlap, **LIMITS))
    sink = Told()
    waves = []
    for wave in (prepared[::2], prepared[1::2]):
        waves.append([core.request(item, sink) for item in wave])
        core.lifecycle.post(waves[-1])
        for _ in range(3):
            core.step()
            core.audit()
    run_steps(core)
    assert is_empty(core)
    ended = [request for pair in zip(*waves) for request in pair]
    for request in ended:
        outcome, error = sink.ends[request.id]
        assert error is None and list(outcome.token_ids) == [t for t, _ in sink.streamed.get(request.id, [])]
    return core, [sink.streamed.get(request.id, []) for request in ended]


def same_texts(ours: list[Any], theirs: list[Any]) -> None:
    for a, b in zip(ours, theirs):
        assert [token for token, _ in a] == [token for token, _ in b]
        assert np.allclose([x for _, x in a], [x for _, x in b], atol=1e-4)


class Spied:
    """Says of every step with decode rows whether the step before was still under way when it was submitted."""

    def __init__(self, inner: CudaExecutor) -> None:
        self.inner = inner
        self.limits, self.close = inner.limits, inner.close
        self.ahead: list[bool] = []
        self.last: Any = None

    def submit(self, batch: ForwardBatch) -> Any:
        if isinstance(batch, DecodeBatch | MixedBatch):
            rows = batch.rows if isinstance(batch, DecodeBatch) else batch.decode
            if rows.num_rows:
                under_way = self.last is not None and not self.last.ended.done()
                assert under_way or rows.token_ids.min() >= 0
                self.ahead.append(under_way)
        self.last = self.inner.submit(batch)
        return self.last

    def wait(self, handle: Any) -> Any:
        return self.inner.wait(handle)


@pytest.mark.feature("H13")
@pytest.mark.feature("H14")
@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
def test_texts_are_the_cpu_executors_with_steps_in_flight_and_without(model: Model, graphs: bool) -> None:
    prepared = requests(["greedy", "drawn", "logprobs", "early", "drawn", "greedy", "logprobs", "drawn"] * 2)
    _, expected = play(model.executor(num_blocks=BLOCKS), prepared, False)
    for overlap in (True, False):
        executor = Spied(on_device(model, policy=GraphPolicy(enabled=graphs, at_once=True)))
        core, texts = play(executor, prepared, overlap)
        same_texts(texts, expected)
        assert (sum(executor.ahead) > len(executor.ahead) * 0.8) == overlap
        assert (core.stats.discarded_rows > 0) == overlap
        assert (core.stats.graph_replays > 5) == graphs
    assert any(len(text) < item.max_new_tokens for text, item in zip(expected, prepared)), "some end by a stop"


@pytest.mark.feature("H13")
def test_a_step_with_penalties_is_never_gone_on_from_in_flight(model: Model) -> None:
    prepared = requests(["penalised", "greedy", "drawn", "penalised"])
    _, expected = play(model.executor(num_blocks=BLOCKS), prepared, False)
    executor = Spied(on_device(model))
    _, texts = play(executor, prepared, True)
    same_texts(texts, expected)
    assert False in executor.ahead


@pytest.mark.feature("H13")
@pytest.mark.feature("H14")
def test_bits_are_those_of_one_step_at_a_time(model: Model) -> None:
    prepared = requests(["logprobs", "drawn", "logprobs", "early"] * 3)
    found = []
    for overlap in (True, False):
        found.append(play(on_device(model, deterministic=True, levels=False), prepared, overlap)[1])
    assert found[0] == found[1]


@pytest.mark.feature("H13")
def test_a_step_behind_one_that_could_not_be_enqueued_runs(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokens that it names were never drawn. Its other rows are not drawn into that, and nothing is read out of
    bounds: the rows run again."""
    prepared = requests(["greedy", "drawn", "logprobs", "drawn"] * 2)
    _, expected = play(model.executor(num_blocks=BLOCKS), prepared, False)
    executor = on_device(model)
    calls, submit = [0], executor._submit

    def refuse(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] in (3, 6):
            raise RuntimeError("injected")
        return submit(*args)

    monkeypatch.setattr(executor, "_submit", refuse)
    core, texts = play(executor, prepared, True)
    same_texts(texts, expected)
    assert core.stats.failed_steps == 2 and core.stats.replays > 0
