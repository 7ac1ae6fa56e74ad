"""The engine loop's four jobs, each done by its own module without the loop: hold state, choose work, prepare inputs,
update after sampling."""

from __future__ import annotations

from pathlib import Path

import prelude._native.core
import prelude._native.cpu
import pytest
from prelude._native.core import KvPool

import prelude.scheduling
from prelude.readouts.batch import DecodeBatch, MixedBatch, OneShotBatch
from prelude.scheduling.pack import pack
from prelude.scheduling.planner import Budgets, plan_step
from prelude.scheduling.policies import policy_named
from prelude.scheduling.postprocess import check_result, postprocess
from prelude.scheduling.queues import Queues
from prelude.scheduling.request import Request, State
from tests import toy
from tests.scheduling.cores import Collect, chat, expected_logprob, last_logprob, prompt


@pytest.mark.feature("H7")
def test_the_four_jobs_by_hand() -> None:
    executor, pool, queues, sink = toy.ToyExecutor(), KvPool(64, 4), Queues(), Collect()
    budgets = Budgets(64, 16, 4, 8, 1 << 30, toy.VOCAB, 64)
    text, decision = (Request(one, sink) for one in (chat(prompt(10, 1), 3), last_logprob(prompt(7, 2))))
    for request in (text, decision):  # 1: the queues hold state; nothing is computed
        queues.add(request)
    assert queues.num_waiting == 2 and not executor.batches

    kinds = []
    while not queues.empty:
        plan = plan_step(queues, pool, budgets)  # 2: work is chosen; the executor has not heard of it
        before = [text.cached_len, len(text.output)]
        assert len(executor.batches) == len(kinds)
        packed = pack(plan, pool.block_size)  # 3: inputs are made; no request and no account changes
        batch = packed.batch
        assert isinstance(batch, OneShotBatch | DecodeBatch | MixedBatch)
        kinds.append(type(batch).__name__)
        result = executor.wait(executor.submit(batch))
        assert [text.cached_len, len(text.output)] == before

        bad = check_result(packed, result)
        postprocess(plan, packed, result, bad, queues, pool, toy.VOCAB)  # 4: states advance; ends are told
        assert len(text.output) == before[1] + 1
    assert kinds == ["MixedBatch", "DecodeBatch", "DecodeBatch"]
    assert list(sink.ends[id(text)][0].token_ids) == toy.generate(prompt(10, 1).tolist(), 3)  # type: ignore[union-attr]
    outcome = sink.ends[id(decision)][0]
    assert outcome is not None and outcome.output.logprobs[0] == pytest.approx(expected_logprob(prompt(7, 2)))  # type: ignore[union-attr]
    assert text.state is decision.state is State.FINISHED
    assert pool.live_leases == 0 and pool.allocator.num_used == 0


@pytest.mark.feature("N10")
@pytest.mark.feature("Q8")
def test_policy_is_python_and_the_path_of_a_token_is_compiled() -> None:
    for compiled in (prelude._native.core, prelude._native.cpu):
        assert Path(compiled.__file__).suffix in (".so", ".pyd")
    [folder] = prelude.scheduling.__path__
    assert not [path for path in Path(folder).rglob("*") if path.suffix in (".so", ".pyd", ".pyx")]
    assert type(policy_named("round_robin")).__module__ == "prelude.scheduling.policies"
    for hot in (KvPool, Request.__bases__[0]):
        assert hot.__module__.startswith("prelude._native")
