"""The CPU executor against transformers in float32."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from prelude._native import cpu

from prelude.readouts.batch import MixedBatch, OneShotBatch, PooledRows
from tests.checkpoints import save_model
from tests.execution.conftest import VARIANTS
from tests.execution.helpers import (
    VOCAB,
    Model,
    Segment,
    all_logprobs,
    decode_rows,
    ends,
    greedy,
    i32,
    last_logprobs,
    live_array_bytes,
    prompts,
    random_ids,
    run,
    sampling,
    slices,
    slots,
)


@pytest.mark.feature("H2")
def test_logits_of_every_position(variant: Model) -> None:
    ids = [random_ids(n, n) for n in (1, 2, 15, 16, 17, 90)]
    s = prompts(*ids)
    ours = last_logprobs(variant.executor(), s, np.arange(s.num_tokens))
    theirs = np.concatenate([variant.logprobs(x) for x in ids])
    assert np.abs(ours - theirs).max() < 1e-4


@pytest.mark.feature("H1")
@pytest.mark.feature("H8")
def test_64_greedy_tokens(variant: Model) -> None:
    """Prefill and decode read K and V in different ways; the tokens are those of a growing full forward."""
    ids = [random_ids(n + 50, n) for n in (1, 16, 37)]
    order = np.random.default_rng(0).permutation(60)
    tables = [order[i * 8 : i * 8 + 8] for i in range(3)]
    tokens = greedy(variant.executor(), ids, tables, 64)
    for prompt, generated in zip(ids, tokens):
        text = np.concatenate([prompt, generated])
        theirs = variant.logprobs(text[:-1])[len(prompt) - 1 :]
        chosen = theirs[np.arange(64), generated]
        best = theirs.max(axis=1)
        assert (theirs.argmax(axis=1) == generated)[best - chosen > 1e-5].all()
        assert (theirs.argmax(axis=1) == generated).mean() == 1.0


@pytest.mark.feature("A17")
def test_one_lm_head_row_per_sequence(model: Model) -> None:
    ids = [random_ids(n, n) for n in (40, 3, 77, 12)]
    s = prompts(*ids)
    result = run(model.executor(), OneShotBatch(s, all_logprobs(ends(s))))
    assert result.lm_head_rows == 4
    assert s.num_tokens == 132 and s.starts.tolist() == [0, 40, 43, 120, 132]
    together = result.outputs[0].logprobs.reshape(4, -1)
    for row, x in zip(together, ids):
        assert np.abs(row - last_logprobs(model.executor(), prompts(x))).max() < 1e-5


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(save_model(tmp_path_factory.mktemp("long"), max_position_embeddings=4096, num_hidden_layers=2))


@pytest.mark.feature("A18")
def test_last_five_of_4096_positions(long: Model) -> None:
    ids = random_ids(1, 4096)
    executor = long.executor()
    few = run(executor, OneShotBatch(prompts(ids), all_logprobs(np.arange(4091, 4096))))
    many = run(executor, OneShotBatch(prompts(ids), all_logprobs(np.arange(4096 - 500, 4096))))
    assert few.lm_head_rows == 5 and many.lm_head_rows == 500
    hidden, logits = long.config.hidden_size * 4, VOCAB * 8
    assert many.peak_bytes - few.peak_bytes == 495 * hidden + (executor.limits().logits_chunk_rows - 5) * logits
    five = few.outputs[0].logprobs.reshape(5, -1)
    assert np.abs(five - long.logprobs(ids)[-5:]).max() < 1e-4


@pytest.mark.feature("A17")
@pytest.mark.feature("A18")
def test_the_forward_makes_the_last_layers_rows_that_are_read_and_no_others(model: Model) -> None:
    """The decoder's output has a row for each row that is read, in memory of that size."""
    executor = model.executor()
    made: list[np.ndarray] = []
    forward = executor.decoder.forward

    def watched(*given: Any) -> np.ndarray:
        made.append(forward(*given))
        return made[-1]

    executor.decoder.forward = watched  # type: ignore[method-assign]
    s = prompts(random_ids(1, 90), random_ids(2, 30))
    for rows in (ends(s), np.arange(115, 120), np.arange(120)):
        last_logprobs(executor, s, rows)
        assert made[-1].shape == (len(rows), model.config.hidden_size)
        memory = made[-1]
        while isinstance(memory.base, np.ndarray):
            memory = memory.base
        assert memory.nbytes <= made[-1].nbytes + 64, "it begins at a line of the cache"


@pytest.mark.feature("A12")
@pytest.mark.feature("A17")
@pytest.mark.feature("A18")
@pytest.mark.feature("A23")
def test_no_array_of_a_step_outlives_it(model: Model) -> None:
    executor = model.executor()
    s = prompts(random_ids(1, 90), random_ids(2, 30))
    tracemalloc.start()
    try:
        last_logprobs(executor, s)  # makes the arrays that are made once
        before = live_array_bytes()
        assert before > 0
        for rows in (ends(s), np.arange(20, 120), np.arange(120)):
            last_logprobs(executor, s, rows)
        assert live_array_bytes() < before + 4096, "beside the answers of the last step"
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("tokens", [100, 1024, 1025, 4096])
def test_the_peak_of_a_step_is_that_of_its_arrays(long: Model, tokens: int) -> None:
    """In one run and in several, whose queries exist for one at a time."""
    s, executor = prompts(random_ids(1, tokens)), long.executor()
    last_logprobs(executor, prompts(random_ids(1, 16)))  # makes the arrays that are made once
    tracemalloc.start()
    try:
        result = run(executor, OneShotBatch(s, all_logprobs(ends(s))))
        assert 0.8 < result.peak_bytes / tracemalloc.get_traced_memory()[1] <= 1
    finally:
        tracemalloc.stop()


def test_chunks_of_logits_change_nothing(model: Model) -> None:
    s = prompts(random_ids(0, 50))
    rows = np.arange(50)
    whole = last_logprobs(model.executor(), s, rows)
    assert np.abs(last_logprobs(model.executor(logits_chunk_rows=7), s, rows) - whole).max() < 1e-5


# ------------------------------------------------------------------ trees
def _tree() -> tuple[list[Segment], dict[int, np.ndarray]]:
    """A state, three questions, and label pieces behind two of them; and the whole sequence of each segment."""
    shapes = [(70, -1), (12, 0), (3, 1), (1, 2), (12, 0), (5, 0), (2, 1), (9, -1), (4, 7)]
    segments = [Segment(random_ids(i, n), parent) for i, (n, parent) in enumerate(shapes)]
    whole: dict[int, np.ndarray] = {}
    for i, s in enumerate(segments):
        whole[i] = s.ids if s.parent < 0 else np.concatenate([whole[s.parent], s.ids])
    return segments, whole


def test_a_tree_is_its_sequences(variant: Model) -> None:
    segments, whole = _tree()
    s = slices(segments)
    executor = variant.executor()
    folded = last_logprobs(executor, s)
    for i, ids in whole.items():
        assert np.abs(folded[i] - variant.logprobs(ids)[-1]).max() < 1e-4
        assert np.abs(folded[i] - last_logprobs(executor, prompts(ids))[0]).max() < 1e-5


def test_all_rows_of_a_tree(model: Model) -> None:
    """The same through the plan that computes every query in the last layer too."""
    segments, whole = _tree()
    s = slices(segments)
    folded = last_logprobs(model.executor(), s, np.arange(s.num_tokens))
    for i, ids in whole.items():
        rows = folded[s.starts[i] : s.starts[i + 1]]
        assert np.abs(rows - model.logprobs(ids)[-len(rows) :]).max() < 1e-4


def test_scattered_rows_of_a_segment(model: Model) -> None:
    ids = random_ids(3, 60)
    rows = np.array([0, 7, 8, 31, 58])
    assert np.abs(last_logprobs(model.executor(), prompts(ids), rows) - model.logprobs(ids)[rows]).max() < 1e-4


@pytest.mark.parametrize("kind", ["model", "windowed"])
def test_shared_context_in_the_pool(kind: str, request: pytest.FixtureRequest) -> None:
    """Roots that continue the same blocks, one of them empty with two children, beside one that continues others,
    and a branch that stands behind its elder one."""
    model: Model = request.getfixturevalue(kind)
    executor = model.executor()
    state, other = random_ids(0, 48), random_ids(1, 32)
    fill = slices([Segment(state, write=[9, 2, 5]), Segment(other, write=[7, 30])])
    run(executor, OneShotBatch(fill, all_logprobs(ends(fill))))
    tails = [random_ids(10 + i, n) for i, n in enumerate((5, 8, 1, 6, 3, 4, 7, 2))]
    s = slices(
        [
            Segment(tails[0], context=48, blocks=[9, 2, 5]),
            Segment(tails[1], context=32, blocks=[7, 30]),
            Segment(tails[2], context=40, blocks=[9, 2, 5]),
            Segment(random_ids(0, 0), context=48, blocks=[9, 2, 5]),
            *[Segment(tail, parent=3) for tail in tails[3:5]],
            Segment(tails[5]),
            *[Segment(tail, parent=6) for tail in tails[6:]],
        ]
    )
    s.positions[-2:] += len(tails[6])
    heads = [state, other, state[:40], state, state, state[:0], tails[5], np.concatenate(tails[5:7])]
    theirs = np.stack([model.logprobs(np.concatenate(pair))[-1] for pair in zip(heads, tails)])
    assert np.abs(last_logprobs(executor, s) - theirs).max() < 1e-4


@pytest.mark.feature("A12")
def test_nothing_stays_in_the_pool_that_was_not_published(model: Model) -> None:
    executor = model.executor()
    last_logprobs(executor, prompts(random_ids(0, 40)))
    assert not executor.pool.tensor.any()
    s = slices([Segment(random_ids(0, 40), write=[3, 4, 5])])
    last_logprobs(executor, s)
    written = np.flatnonzero(executor.pool.tensor.any(axis=(0, 1, 3, 4)))
    assert written.tolist() == slots([3, 4, 5])[:40].tolist()


def test_windows_are_counted_as_they_are_read(windowed: Model) -> None:
    """One layer of three sees all, two see 12 tokens: the cost model learns from these counts."""
    executor = windowed.executor()
    fill = slices([Segment(random_ids(0, 30), write=[0, 1]), Segment(random_ids(2, 9))])
    rows = decode_rows([5], [30], [[0, 1]])
    seen = run(executor, OneShotBatch(fill, sampling(ends(fill)))).attended_tokens
    near = 12 * 13 // 2 + 18 * 12
    assert seen == round((30 * 31 // 2 + 2 * near) / 3 + 9 * 10 // 2)
    tail = slices([Segment(random_ids(1, 3), context=30, blocks=[0, 1])])
    both = run(executor, MixedBatch(tail, (), rows, sampling([0]))).attended_tokens
    assert both == round((31 + 31 + 32 + 33 + 2 * 4 * 12) / 3)


def test_contexts_that_turn_by_other_angles(tmp_path: Path) -> None:
    """longrope: a text longer than the original context takes other angles from its first token on."""
    usual = Model(save_model(tmp_path, **VARIANTS["phi3-longrope"]))
    assert usual.config.max_positions == 256 and usual.config.reaching(256) is usual.config
    long = Model(tmp_path)
    long.config = usual.config.reaching(257)
    assert long.config.max_positions == 1024
    ids = random_ids(1, 300)
    ours = last_logprobs(long.executor(), prompts(ids), np.arange(300))
    assert np.abs(ours - long.logprobs(ids)).max() < 1e-4
    assert np.abs(last_logprobs(long.executor(), prompts(ids[:200]))[0] - usual.logprobs(ids[:200])[-1]).max() > 1e-2


@pytest.mark.feature("D6")
def test_bytes_of_a_token(variant: Model) -> None:
    executor = variant.executor(num_blocks=4)
    limits, spec = executor.limits(), variant.config.spec
    heads = spec.attention
    assert limits.kv_bytes_per_token == 2 * len(spec.layers) * heads.kv_heads * heads.head_dim * 4
    assert executor.pool.tensor.nbytes == limits.kv_bytes_per_token * 4 * limits.block_size


@pytest.mark.feature("A20")
def test_weights_are_counted_once(variant: Model) -> None:
    count = sum(p.numel() for p in variant.oracle.parameters())  # tied weights appear once
    spec = variant.config.spec
    heads, layers = spec.attention, len(spec.layers)
    per_head_gains = layers * heads.head_dim * (heads.heads + heads.kv_heads - 2) if heads.q_norm else 0
    folded = 2 * layers * spec.hidden
    executor = variant.executor(dtype="float32")
    packed = executor.weights.linears()
    count += sum(-linear.outputs % cpu.PACKED_GROUP * linear.inputs for linear in packed)  # the last group of each
    limits = executor.limits()
    assert limits.weight_bytes == 4 * (count + per_head_gains - folded) and limits.weights == "float32"


# ------------------------------------------------------------------ chunks and mixed steps
@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(save_model(tmp_path_factory.mktemp("windowed"), **VARIANTS["gemma2"]))


@pytest.mark.parametrize("kind", ["model", "windowed"])
@pytest.mark.parametrize("chunk", [1, 7, 16, 33])
def test_chunked_prefill_beside_decode(kind: str, chunk: int, request: pytest.FixtureRequest) -> None:
    model: Model = request.getfixturevalue(kind)
    executor = model.executor()
    long, short = random_ids(0, 75), random_ids(1, 20)
    table, other = [11, 3, 8, 1, 6], [20, 15, 17, 21, 22, 23, 24]
    tokens = [int(greedy(executor, [short], [other], 1)[0, 0])]
    ours = np.zeros(0)
    for done in range(0, 75, chunk):
        part = Segment(long[done : done + chunk], context=done, blocks=table[: -(-done // 16)], write=table)
        s = slices([part])
        rows = decode_rows([tokens[-1]], [20 + len(tokens) - 1], [other])
        result = run(executor, MixedBatch(s, (all_logprobs(ends(s)),), rows, sampling([0])))
        ours = result.outputs[0].logprobs
        tokens.append(int(result.outputs[1].token_ids[0]))
    assert np.abs(ours - model.logprobs(long)[-1]).max() < 1e-4
    theirs = model.logprobs(np.concatenate([short, tokens[:-1]]))[19:].argmax(axis=1)
    assert tokens == theirs.tolist()


def test_steps_that_read_nothing_or_hold_nothing(model: Model) -> None:
    executor = model.executor()
    no_rows = decode_rows([], [], [[]])
    part = slices([Segment(random_ids(0, 20), write=[1, 2])])
    assert run(executor, MixedBatch(part, (), no_rows, None)).outputs == ()
    rest = slices([Segment(random_ids(1, 3), context=20, blocks=[1, 2])])
    whole = np.concatenate([random_ids(0, 20), random_ids(1, 3)])
    assert np.abs(last_logprobs(executor, rest)[0] - model.logprobs(whole)[-1]).max() < 1e-4
    empty = slices([Segment(random_ids(0, 0))])
    result = run(executor, MixedBatch(empty, (), decode_rows([5], [0], [[7]]), sampling([0])))
    assert result.outputs[0].token_ids[0] == model.logprobs([5])[0].argmax()


def test_pooling(model: Model) -> None:
    import torch

    ids = [random_ids(n, n) for n in (9, 1, 300)]
    s = prompts(*ids)
    with torch.no_grad():
        states = [model.oracle.model(torch.tensor(x.astype(np.int64))[None])[0][0].numpy() for x in ids]
    executor, before = model.executor(), i32([3, 0, 5])
    weighed = [(x, np.arange(1 + first, 1 + first + len(x))) for x, first in zip(states, before)]
    wanted: dict[str, list[np.ndarray]] = {
        "last": [x[-1] for x in states], "cls": [x[0] for x in states], "mean": [x.mean(0) for x in states],
        "max": [x.max(0) for x in states], "mean_sqrt_len_tokens": [x.sum(0) / len(x) ** 0.5 for x in states],
        "weightedmean": [weights @ x / weights.sum() for x, weights in weighed],
    }  # fmt: skip
    for pooling, vectors in wanted.items():
        readout = PooledRows(i32(np.arange(310)), s.starts, pooling, before)
        assert np.abs(run(executor, OneShotBatch(s, readout)).outputs[0].vectors - vectors).max() < 3e-4, pooling


def test_decode_rows_read_in_place_and_gathered(model: Model) -> None:
    """Long rows whose blocks lie in a row, are scattered, or begin elsewhere, beside short ones."""
    executor = model.executor()
    texts = [random_ids(i, n) for i, n in enumerate((130, 140, 20, 97, 200))]
    tables = [list(range(10, 19)), [30, 5, 8, 9, 44, 3, 2, 1, 0], [60, 61], list(range(70, 77)), list(range(90, 103))]
    fill = slices([Segment(x[:-1], write=t) for x, t in zip(texts, tables)])
    run(executor, OneShotBatch(fill, sampling(ends(fill))))
    rows = decode_rows([int(x[-1]) for x in texts], [len(x) - 1 for x in texts], tables)
    part = slices([Segment(random_ids(9, 4), context=128, blocks=list(range(10, 18)))])
    batch = MixedBatch(part, (all_logprobs(ends(part)),), rows, sampling(range(5), top=VOCAB))
    first, second = run(executor, batch).outputs
    for i, x in enumerate(texts):
        assert np.abs(second.top_logprobs[i] - model.logprobs(x)[-1][second.top_ids[i]]).max() < 1e-4
    whole = np.concatenate([texts[0][:128], random_ids(9, 4)])
    assert np.abs(first.logprobs - model.logprobs(whole)[-1]).max() < 1e-4


@pytest.mark.parametrize(
    "changes", [{}, {"rope_parameters": VARIANTS["llama-3-rope"]["rope_parameters"]}], ids=["plain", "llama-3-rope"]
)
def test_positions_far_from_the_start(changes: dict[str, Any], tmp_path: Path) -> None:
    """Attention sees differences of positions alone, so a text has the same logprobs wherever it begins. The angles
    of transformers, in float32, are 1e-3 off at position 32,000, and so are its logprobs."""
    model = Model(save_model(tmp_path, family="llama", max_position_embeddings=40_960, **changes))
    executor, ids, begin = model.executor(), random_ids(1, 200), 32_000

    def ours(begin: int) -> np.ndarray:
        here = prompts(ids)
        there = replace(here, positions=here.positions + np.int32(begin))
        readout = all_logprobs(np.arange(len(ids)))
        return run(executor, OneShotBatch(there, readout)).outputs[0].logprobs.reshape(len(ids), -1)

    with torch.no_grad():
        at = torch.arange(begin, begin + len(ids))[None]
        theirs = model.oracle(torch.from_numpy(ids.astype(np.int64))[None], position_ids=at).logits[0]
    assert np.abs(ours(begin) - model.logprobs(ids)).max() < 1e-5
    assert np.abs(ours(begin) - theirs.double().log_softmax(-1).numpy()).max() < 2e-3
