"""Chunked prompts, their knob and their turns; groups of decisions; traps that other schedulers fell into."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prelude.admission.prepared import Prepared, TokenTree
from prelude.readouts.batch import HeadRows, LogprobRows, MixedBatch, PooledRows
from prelude.scheduling.policies import FirstComeFirstServed, RoundRobin
from prelude.scheduling.queues import Policies
from prelude.scheduling.request import State
from tests import toy
from tests.scheduling.cores import Collect, chat, check, ids, post, prompt
from tests.service import is_empty, run_steps, service_core


@pytest.mark.feature("F6")
@pytest.mark.feature("F7")
@pytest.mark.feature("F12")
def test_the_knob_trades_first_token_against_pace_without_a_break() -> None:
    """A long prompt comes while a chat runs. It takes a step a chunk, and the chat gets a token in each. Steps until
    its first token fall with the chunk; tokens in the longest step between two of the chat's rise with it."""
    longest = []
    for chunk in (8, 16, 50, 64, 128, 256, 400):
        core = service_core(toy.ToyExecutor(num_blocks=512), chunk=chunk, step_tokens=512)
        sink = Collect()
        runs = post(core, chat(prompt(6, 1), 600), sink)
        core.step()
        late = post(core, chat(prompt(400, 2), 2), sink)
        before, steps = len(runs.output), 0
        while not late.output:
            core.step()
            steps += 1
        assert steps == -(-400 // chunk) == len(runs.output) - before
        run_steps(core)
        check(sink, [late, runs])
        longest.append(
            max(b.num_tokens for b in core.executor.batches if isinstance(b, MixedBatch) and b.decode_tokens)
        )
    assert longest == sorted(longest) and longest[-1] > 8 * longest[0]


@pytest.mark.feature("F10")
@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=12),
    chunk=st.integers(1, 40),
    step_tokens=st.integers(5, 64),
)
def test_chunks_of_a_step_are_within_its_budgets(lengths: list[int], chunk: int, step_tokens: int) -> None:
    """Each prompt longer than the budget is finished as well: it comes in chunks."""
    core = service_core(toy.ToyExecutor(num_blocks=512), chunk=chunk, step_tokens=step_tokens, running=4)
    sink = Collect()
    requests = [post(core, chat(prompt(n, i), 3), sink) for i, n in enumerate(lengths)]
    run_steps(core)
    for batch in core.executor.batches:
        assert batch.num_tokens <= step_tokens
        if isinstance(batch, MixedBatch) and batch.decode_tokens:
            assert batch.prefill_tokens <= chunk
    check(sink, requests)


@pytest.mark.feature("F9")
@pytest.mark.feature("F18")
def test_chunks_go_round() -> None:
    """The timeline of 2,000, 50 and 70 tokens in chunks of 256: the long prompt, then the others, then it again."""
    ends = {}
    for name, policy in (("arrival", FirstComeFirstServed()), ("round", RoundRobin())):
        core = service_core(
            toy.ToyExecutor(num_blocks=2048), chunk=256, step_tokens=2048, running=8, policies=Policies(decode=policy)
        )
        sink = Collect()
        post(core, chat(prompt(6, 1), 60), sink)
        core.step()
        requests = [post(core, chat(prompt(n, n), 2), sink) for n in (2000, 50, 70)]
        first: dict[int, int] = {}
        for step in range(1, 14):
            core.step()
            for i, request in enumerate(requests):
                if request.output and i not in first:
                    first[i] = step
        run_steps(core)
        ends[name] = first
        check(sink, requests)
    assert ends["round"] == {1: 2, 2: 2, 0: 9}
    assert ends["arrival"][0] == 8 and ends["arrival"][1] >= 8


@pytest.mark.feature("F14")
def test_a_prompt_that_ends_in_a_step_decodes_from_the_next_one_on() -> None:
    core = service_core(toy.ToyExecutor(num_blocks=64))
    sink = Collect()
    request = post(core, chat(prompt(7, 1), 5), sink)
    core.step()
    assert request.state is State.DECODE and len(request.output) == 1
    assert core.executor.batches[0].num_tokens == 7, "its prompt alone; the token was read from its last row"
    core.step()
    assert core.executor.batches[1].num_tokens == 1 and len(request.output) == 2


@pytest.mark.feature("F23")
@pytest.mark.feature("F17")
def test_thirty_two_requests_with_a_shared_prompt_take_few_steps_and_compute_it_once() -> None:
    """The book's example: 32 requests, 100 tokens of which 60 are shared, 20 out: 3,840 passes done naively."""
    core = service_core(toy.ToyExecutor(num_blocks=1024), running=32, chunk=512, step_tokens=2048)
    sink = Collect()
    shared = prompt(60, 5)
    requests = [post(core, chat(np.concatenate([shared, prompt(40, 50 + i)]), 20), sink) for i in range(32)]
    steps = run_steps(core)
    assert steps == 20, "one for all prompts, and one for each further token; behind a leader they take 23"
    assert core.stats.prefill_tokens == 60 + 32 * 40
    assert core.stats.prefill_tokens + core.stats.decode_tokens == 60 + 32 * 40 + 32 * 19
    check(sink, requests)


# ------------------------------------------------------------------ groups of decisions
def reading(tokens: np.ndarray, kind: str) -> Prepared:
    last, every, whole = ids(len(tokens) - 1), np.arange(len(tokens), dtype=np.int32), ids(0, len(tokens))
    readout: Any = {
        "one": LogprobRows(last, ids(0), ids(5)), "other": LogprobRows(last, ids(0), ids(6)), "head": HeadRows(last),
        "top": LogprobRows(last, ids(0), ids(5), 3), "ranks": LogprobRows(last, ids(0), ids(5), 0, True),
        "raw": LogprobRows(last, ids(0), ids(5), raw=True), "mean": PooledRows(every, whole, "mean"),
        "weighed": PooledRows(every, whole, "weightedmean"), "behind": PooledRows(every, whole, "weightedmean", last),
    }[kind]  # fmt: skip
    return Prepared(TokenTree.single(tokens), readout)


@pytest.mark.feature("A27")
@pytest.mark.parametrize("left,right,together", [
    ("one", "other", True), ("one", "top", False), ("one", "ranks", False), ("one", "raw", False),
    ("mean", "mean", True), ("mean", "weighed", False), ("weighed", "behind", False), ("head", "mean", False),
])  # fmt: skip
@pytest.mark.parametrize("crowd", [False, True])
def test_requests_share_a_batch_by_head_and_options_alone(left: str, right: str, together: bool, crowd: bool) -> None:
    """Also where more wait than fit, and the policy has its say."""
    core = service_core(toy.ToyExecutor(num_blocks=256), step_tokens=64 if crowd else 512, cache=False)
    sink = Collect()
    count = 6 if crowd else 1
    for i in range(count):
        post(core, reading(prompt(12, i), left), sink)
        post(core, reading(prompt(12, 99 + i), right), sink)
    run_steps(core)
    assert len(sink.ends) == 2 * count and all(error is None for _, error in sink.ends.values())
    joined, apart = (3, 4) if crowd else (1, 2)  # five rows of 12 tokens a step, at most
    assert len(core.executor.batches) == (joined if together else apart)


@pytest.mark.feature("F9")
@pytest.mark.feature("D8")
@pytest.mark.parametrize("chunk", [4, 16])
@pytest.mark.parametrize("overlap", [False, True])
def test_taking_turns_over_a_pool_that_is_too_small_does_not_go_round_for_ever(overlap: bool, chunk: int) -> None:
    """Two prompts fill the pool and neither can go on; a request that is preempted for them must not take the room
    again."""
    core = service_core(
        toy.ToyExecutor(num_blocks=24),
        running=3,
        chunk=chunk,
        overlap=overlap,
        policies=Policies(decode=RoundRobin()),
    )
    sink = Collect()
    loads = [(80, "never"), (70, "never"), (60, "auto"), (90, "auto"), (45, "auto"), (55, "auto")]
    requests = [post(core, chat(prompt(n, n), 3, cache=cache), sink) for n, cache in loads]
    run_steps(core, 1000)
    check(sink, requests)
    assert is_empty(core)
