"""Layers that keep a state (gated delta rule, short convolutions) against transformers in float32; and the promise
that a token's numbers are those of its own sequence in any company, wherever a prompt is cut, forked or continued."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from prelude.cpu.executor import CpuExecutor
from prelude.models.recurrent import state_bytes
from prelude.models.spec import GatedDelta
from prelude.readouts.batch import DecodeBatch, MixedBatch, OneShotBatch, PooledRows, PromptSlices
from tests.checkpoints import save_model
from tests.execution.conftest import RECURRENT
from tests.execution.helpers import (
    Model,
    Segment,
    all_logprobs,
    decode_rows,
    ends,
    greedy,
    hidden,
    i32,
    last_logprobs,
    owned,
    prompts,
    random_ids,
    run,
    sampling,
    slices,
)
from tests.threads import use_threads

NO_ROWS = decode_rows([], [], [[]])


@pytest.fixture(scope="session", params=list(RECURRENT))
def recurrent(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(save_model(tmp_path_factory.mktemp(request.param), **RECURRENT[request.param]))


@pytest.fixture(scope="session", params=["qwen3_5", "lfm2"])
def hybrid(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(save_model(tmp_path_factory.mktemp(request.param), **RECURRENT[request.param]))


def chunk_hidden(executor: CpuExecutor, s: PromptSlices, entries: list[int], rows: np.ndarray) -> np.ndarray:
    """As ``hidden``, of segments that hold entries; -1 for one that has none."""
    readout = PooledRows(i32(rows), i32(np.arange(len(rows) + 1)))
    return run(executor, MixedBatch(owned(s, entries), (readout,), NO_ROWS, None, i32([]))).outputs[0].vectors


# ------------------------------------------------------------------ transformers
@pytest.mark.feature("H2")
def test_logits_of_every_position(recurrent: Model) -> None:
    ids = [random_ids(n, n) for n in (1, 2, 3, 15, 16, 17, 64, 65, 90)]
    s = prompts(*ids)
    ours = last_logprobs(recurrent.executor(), s, np.arange(s.num_tokens))
    theirs = np.concatenate([recurrent.logprobs(x) for x in ids])
    assert np.abs(ours - theirs).max() < 1e-4


@pytest.mark.feature("H2")
def test_the_longest_prompt(recurrent: Model) -> None:
    ids = random_ids(4, recurrent.config.max_positions)
    ours = last_logprobs(recurrent.executor(), prompts(ids), np.arange(len(ids) - 40, len(ids)))
    assert np.abs(ours - recurrent.logprobs(ids)[-40:]).max() < 1e-4


@pytest.mark.feature("H1")
def test_greedy_tokens_are_those_of_transformers_generate(recurrent: Model) -> None:
    ids = [random_ids(n + 50, n) for n in (1, 2, 16, 37)]
    order = np.random.default_rng(0).permutation(60)
    tables = [order[i * 8 : i * 8 + 8] for i in range(4)]
    tokens = greedy(recurrent.executor(), ids, tables, 60)
    for prompt, generated in zip(ids, tokens):
        given = torch.tensor(prompt.astype(np.int64))[None]
        options = {"max_new_tokens": 60, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        theirs = recurrent.oracle.generate(given, attention_mask=torch.ones_like(given), **options)
        assert generated.tolist() == theirs[0, len(prompt) :].tolist()


def test_a_tree_is_its_sequences(recurrent: Model) -> None:
    """A state, three questions, label pieces behind two of them, an empty branch, another tree; and in the last layer
    all rows, or those that are read."""
    shapes = [(70, -1), (12, 0), (3, 1), (1, 2), (0, 0), (5, 4), (2, 1), (9, -1), (4, 7)]
    segments = [Segment(random_ids(i, n), parent) for i, (n, parent) in enumerate(shapes)]
    s, executor = slices(segments), recurrent.executor()
    every = last_logprobs(executor, s, np.arange(s.num_tokens))
    assert np.abs(last_logprobs(executor, s) - every[ends(s)]).max() < 1e-5
    whole: list[np.ndarray] = []
    for i, one in enumerate(segments):
        whole.append(one.ids if one.parent < 0 else np.concatenate([whole[one.parent], one.ids]))
        mine = every[s.starts[i] : s.starts[i + 1]]
        if len(mine):
            assert np.abs(mine - recurrent.logprobs(whole[i])[-len(mine) :]).max() < 1e-4


@pytest.mark.parametrize("chunk", [1, 2, 7, 33])
def test_chunked_prefill_beside_decode(hybrid: Model, chunk: int) -> None:
    executor = hybrid.executor()
    long, short = random_ids(0, 75), random_ids(1, 20)
    table, other = [11, 3, 8, 1, 6], [20, 15, 17, 21, 22, 23, 24]
    tokens = [int(greedy(executor, [short], [other], 1)[0, 0])]  # its state is in entry 0
    ours = np.zeros(0)
    for done in range(0, 75, chunk):
        part = Segment(long[done : done + chunk], context=done, blocks=table[: -(-done // 16)], write=table)
        s = slices([Segment(random_ids(9, 30)), part])
        rows = decode_rows([tokens[-1]], [20 + len(tokens) - 1], [other])
        reads = (all_logprobs(ends(s)[1:]),)
        result = run(executor, MixedBatch(owned(s, [-1, 5]), reads, rows, sampling([0]), i32([0])))
        ours = result.outputs[0].logprobs
        tokens.append(int(result.outputs[1].token_ids[0]))
    assert np.abs(ours - hybrid.logprobs(long)[-1]).max() < 1e-4
    theirs = hybrid.logprobs(np.concatenate([short, tokens[:-1]]))[19:].argmax(axis=1)
    assert tokens == theirs.tolist()


def test_bfloat16_is_close_to_float32(recurrent: Model) -> None:
    ids = [random_ids(n, n) for n in (1, 40, 120)]
    s = prompts(*ids)
    rows = np.arange(s.num_tokens)
    exact = hidden(recurrent.executor(), s, rows)
    half = hidden(recurrent.executor(dtype="bfloat16"), s, rows)
    assert np.sqrt(np.square(half - exact).mean() / np.square(exact).mean()) < 5e-2


# ------------------------------------------------------------------ the same bits
@pytest.fixture(scope="module", params=[("qwen3_5", "float32"), ("qwen3_5", "bfloat16"), ("lfm2", "float32")])
def executor(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CpuExecutor:
    name, dtype = request.param
    model = Model(save_model(tmp_path_factory.mktemp(name), **RECURRENT[name]))
    return model.executor(dtype=dtype, deterministic=True)


@pytest.fixture(scope="module")
def alone(executor: CpuExecutor) -> Callable[[np.ndarray], np.ndarray]:
    """All rows of one prompt that is alone in its step."""
    return lambda ids: hidden(executor, prompts(ids), np.arange(len(ids)))


@pytest.mark.fault(74)
@pytest.mark.parametrize("threads", [1, 2])
def test_company_and_order(executor: CpuExecutor, alone: Callable[..., np.ndarray], threads: int) -> None:
    ids = [random_ids(i, n) for i, n in enumerate((1, 2, 15, 64, 65, 200, 3))]
    expected = [alone(x) for x in ids]
    use_threads(threads)
    try:
        for order in (np.arange(7), np.random.default_rng(0).permutation(7)):
            s = prompts(*[ids[i] for i in order])
            together = hidden(executor, s, np.arange(s.num_tokens))
            assert np.array_equal(hidden(executor, s, ends(s)), together[ends(s)])
            for n, i in enumerate(order):
                assert np.array_equal(together[s.starts[n] : s.starts[n + 1]], expected[i])
    finally:
        use_threads(1)


@pytest.mark.fault(74)
def test_folded(executor: CpuExecutor, alone: Callable[..., np.ndarray]) -> None:
    state = random_ids(0, 130)
    tails = [random_ids(1 + i, n) for i, n in enumerate((12, 5, 1, 70))]
    s = slices(
        [Segment(state), *[Segment(x, 0) for x in tails], Segment(random_ids(50, 3), 4), Segment(random_ids(51, 90))]
    )
    whole = [state, *[np.concatenate([state, x]) for x in tails]]
    whole += [np.concatenate([whole[4], random_ids(50, 3)]), random_ids(51, 90)]
    rows = hidden(executor, s, np.arange(s.num_tokens))
    for i, ids in enumerate(whole):
        mine = rows[s.starts[i] : s.starts[i + 1]]
        assert np.array_equal(mine, alone(ids)[-len(mine) :])


@pytest.mark.fault(74)
@pytest.mark.parametrize("chunk", [1, 7, 16, 100])
def test_chunked(executor: CpuExecutor, alone: Callable[..., np.ndarray], chunk: int) -> None:
    """In an entry that another sequence left full."""
    ids = random_ids(3, 150 if chunk > 1 else 40)
    table = np.random.default_rng(2).permutation(100)[:10].tolist()
    whole = alone(ids)
    for done in range(0, len(ids), chunk):
        part = Segment(ids[done : done + chunk], context=done, blocks=table[: -(-done // 16)], write=table)
        s = slices([Segment(random_ids(chunk, 33)), part])
        rows = chunk_hidden(executor, s, [-1, 2], np.arange(33, s.num_tokens))
        assert np.array_equal(rows, whole[done : done + chunk])


@pytest.mark.fault(74)
def test_decode_rows_and_prompt_rows(executor: CpuExecutor) -> None:
    texts = [random_ids(i, n) for i, n in enumerate((3, 64, 130))]
    tables = np.random.default_rng(3).permutation(120)[:30].reshape(3, 10).tolist()
    expected = [last_logprobs(executor, prompts(ids))[0] for ids in texts]
    lengths, tokens = [len(x) - 1 for x in texts], [int(x[-1]) for x in texts]
    vocab = executor.config.vocab_size
    for rows in ([1], [0, 1, 2], [2, 0]):
        for i in rows:
            fill = slices([Segment(texts[i][:-1], write=tables[i])])
            run(executor, MixedBatch(owned(fill, [i]), (), NO_ROWS, None, i32([])))
        held = i32(rows)
        batch = decode_rows([tokens[i] for i in rows], [lengths[i] for i in rows], [tables[i] for i in rows])
        output = run(executor, DecodeBatch(batch, sampling(range(len(rows)), top=vocab), held)).outputs[0]
        for n, i in enumerate(rows):
            assert np.array_equal(output.top_logprobs[n], expected[i][output.top_ids[n]].astype(np.float32))


@pytest.mark.fault(74)
@pytest.mark.parametrize("cut", [1, 2, 3, 16, 64, 77])
def test_cut_where_a_state_is_kept_and_gone_on_from(
    executor: CpuExecutor, alone: Callable[..., np.ndarray], cut: int
) -> None:
    """A prompt leaves the state behind its token ``cut`` in an entry; two others go on from it at once."""
    ids = random_ids(3, 78)
    whole, table = alone(ids), [5, 2, 9, 4, 0]
    first = slices([Segment(ids[:cut], write=table), Segment(ids[cut:], 0)])
    first = replace(first, state_to=i32([6, -1]))
    assert np.array_equal(hidden(executor, first, np.arange(78)), whole)
    after = [Segment(ids[cut:], context=cut, blocks=table[: -(-cut // 16)])] * 2
    again = replace(slices([*after, Segment(ids[:9])]), state_from=i32([6, 6, -1]), state_to=i32([-1, 4, -1]))
    rows = hidden(executor, again, np.arange(again.num_tokens))
    for part in np.split(rows[: 2 * (78 - cut)], 2):
        assert np.array_equal(part, whole[cut:])


# ------------------------------------------------------------------ accounts and refusals
@pytest.mark.feature("A8")
def test_bytes_of_a_token_and_of_a_state(recurrent: Model) -> None:
    executor = recurrent.executor(num_blocks=4, running_states=3)
    limits, spec = executor.limits(), recurrent.config.spec
    heads, full = spec.attention, len(spec.attentions)
    assert 0 < full < len(spec.layers) and full + len(spec.recurrent) == len(spec.layers)
    assert limits.kv_bytes_per_token == 2 * full * heads.kv_heads * heads.head_dim * 4
    assert executor.pool.tensor.nbytes == limits.kv_bytes_per_token * 4 * limits.block_size
    values = 0
    for mixer in spec.recurrent:
        values += (mixer.kernel - 1) * mixer.channels
        if isinstance(mixer, GatedDelta):
            values += mixer.value_heads * mixer.key_dim * -(-mixer.value_dim // 16) * 16
    assert (limits.running_states, limits.bytes_per_state) == (3, 4 * values) and state_bytes(spec) == 4 * values


def test_a_context_without_its_state_is_refused(hybrid: Model) -> None:
    executor = hybrid.executor(running_states=2)
    part = slices([Segment(random_ids(1, 3), context=16, blocks=[0])])
    rows = decode_rows([5], [3], [[0]])
    for batch, told in (
        (OneShotBatch(part, all_logprobs(ends(part))), "goes on from 16 tokens without their state"),
        (MixedBatch(owned(part, [-1]), (), NO_ROWS, None, i32([])), "goes on from 16 tokens without their state"),
        (DecodeBatch(rows, sampling([0])), "1 decode rows without a state"),
        (DecodeBatch(rows, sampling([0]), i32([-1])), "1 decode rows without a state"),
        (DecodeBatch(rows, sampling([0]), i32([2])), "no such entry"),
    ):
        with pytest.raises(ValueError, match=told):
            run(executor, batch)
    assert len(last_logprobs(executor, prompts(random_ids(1, 3)))) == 1
