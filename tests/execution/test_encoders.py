"""Encoders on the CPU, against transformers: every family and option, alone and in company."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from prelude.readouts.batch import HeadRows, OneShotBatch, PooledRows
from tests.encoders import VARIANTS, Encoder, write_encoder
from tests.execution.helpers import (
    Segment,
    decode_rows,
    ends,
    hidden,
    i32,
    prompts,
    random_ids,
    run,
    sampling,
    slices,
)

FAMILIES = {name: options for name, options in VARIANTS.items() if name == options["family"]}
WITH_TYPES = (
    "bert", "bert-gelu-new", "roberta-silu-types", "electra", "electra-narrow-embeddings", "deberta-v2-types",
)  # fmt: skip


def ids_of(seed: int, count: int) -> np.ndarray:
    """Each family's pad token is among them, for which RoBERTa counts no position."""
    ids = i32(random_ids(seed, count, 211))
    ids[1::6] %= 5
    return ids


@pytest.fixture(scope="module", params=list(VARIANTS))
def encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    path: Path = tmp_path_factory.mktemp(request.param)
    return Encoder(write_encoder(path, **VARIANTS[request.param]))


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    path: Path = tmp_path_factory.mktemp(request.param)
    return Encoder(write_encoder(path, **FAMILIES[request.param]))


def test_hidden_states_are_those_of_transformers(encoder: Encoder) -> None:
    """Prompts from one token to the longest there is, packed without padding: every row of each."""
    longest = encoder.config.max_positions
    batch = [ids_of(n, n) for n in (1, 2, 17, 90, longest)]
    theirs = np.concatenate([encoder.states(ids) for ids in batch])
    executor, s = encoder.executor(), prompts(*batch)
    assert np.abs(hidden(executor, s, np.arange(s.num_tokens)) - theirs).max() < 2e-5
    rows = [0, 2, 3, 40, 110, s.num_tokens - 1]  # the last layer is cut to them
    assert np.abs(hidden(executor, s, rows) - theirs[rows]).max() < 2e-5
    alone = hidden(executor, prompts(batch[3]), np.arange(90))
    assert np.abs(alone - theirs[20:110]).max() < 2e-5


def test_the_second_text_of_a_pair_has_the_second_type(encoder: Encoder, request: pytest.FixtureRequest) -> None:
    if request.node.callspec.params["encoder"] not in WITH_TYPES:
        pytest.skip("this family has no second type")
    ids, other = ids_of(1, 60), ids_of(2, 9)
    s = slices([Segment(other), Segment(ids[:25]), Segment(ids[25:], 1), Segment(other)])
    theirs = np.concatenate([encoder.states(other), encoder.states(ids, 25), encoder.states(other)])
    ours = hidden(encoder.executor(), s, np.arange(s.num_tokens))
    assert np.abs(ours - theirs).max() < 2e-5
    assert np.abs(encoder.states(ids, 25) - encoder.states(ids)).max() > 1e-2


def test_a_pair_is_one_text_where_there_are_no_types(family: Encoder) -> None:
    if family.config.spec.embeddings.num_types > 1:
        pytest.skip("this family has a second type")
    ids = ids_of(1, 60)
    s = slices([Segment(ids[:25]), Segment(ids[25:], 0)])
    assert np.abs(hidden(family.executor(), s, np.arange(60)) - family.states(ids)).max() < 2e-5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_has_the_same_bits_in_any_company(family: Encoder, dtype: str) -> None:
    executor = family.executor(deterministic=True, dtype=dtype)
    ids, pair = ids_of(1, 33), ids_of(2, 41)
    alone = hidden(executor, prompts(ids), np.arange(33))
    two = [Segment(pair[:20]), Segment(pair[20:], 0)]
    pair_alone = hidden(executor, slices(two), np.arange(41))
    for seed in range(4):
        rng = np.random.default_rng(seed)
        before = [Segment(ids_of(10 * seed + n, int(rng.integers(1, 120)))) for n in range(3)]
        after = [Segment(ids_of(10 * seed + n, int(rng.integers(1, 120)))) for n in range(2)]
        at = sum(len(one.ids) for one in before)
        nested = [Segment(two[0].ids), Segment(two[1].ids, len(before) + 1)]
        s = slices([*before, Segment(ids), *nested, *after])
        assert np.array_equal(hidden(executor, s, np.arange(s.num_tokens))[at : at + 33], alone)
        few = hidden(executor, s, [3, at, at + 30, at + 33, at + 60])
        assert np.array_equal(few[1:], np.concatenate([alone[[0, 30]], pair_alone[[0, 27]]]))


def test_bfloat16_stays_near_float32(family: Encoder) -> None:
    s = prompts(ids_of(1, 70), ids_of(2, 12))
    exact, rounded = (hidden(family.executor(dtype=d), s, np.arange(82)) for d in ("float32", "bfloat16"))
    assert np.abs(rounded - exact).max() < 0.15 and np.abs(rounded - exact).mean() < 0.02


@pytest.mark.parametrize("name", list(FAMILIES))
def test_classification_heads(name: str, tmp_path: Path) -> None:
    model = Encoder(write_encoder(tmp_path, kind="ForSequenceClassification", num_labels=5, **FAMILIES[name]))
    batch = [ids_of(n, n) for n in (3, 50, 9)]
    theirs = np.concatenate([model.run(ids).logits.numpy() for ids in batch])
    s = prompts(*batch)
    for deterministic in (False, True):
        executor = model.executor(deterministic=deterministic)
        last = executor.limits().head_pooling == "last"
        output = run(executor, OneShotBatch(s, HeadRows(ends(s) if last else s.starts[:-1]))).outputs[0]
        assert executor.limits().num_labels == 5
        assert np.abs(output.logits - theirs).max() < 2e-5
    alone = run(executor, OneShotBatch(prompts(batch[1]), HeadRows(i32([49 if last else 0])))).outputs[0]
    assert np.array_equal(alone.logits[0], output.logits[1])


def test_the_newer_masked_head_of_deberta_is_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = Encoder(write_encoder(tmp_path, family="deberta-v2", kind="ForMaskedLM", legacy=False))
    assert not model.executor().limits().masked_lm
    assert "the masked-language head are not all there" in caplog.text


def test_a_head_of_one_label_has_the_same_bits_in_any_company(tmp_path: Path) -> None:
    """torch makes one output by a product of a matrix and a vector, which it cuts by the number of rows."""
    model = Encoder(write_encoder(tmp_path, family="bert", kind="ForSequenceClassification", num_labels=1))
    executor = model.executor(deterministic=True)
    batch = [ids_of(n, 3 + n % 9) for n in range(300)]
    s = prompts(*batch)
    together = run(executor, OneShotBatch(s, HeadRows(s.starts[:-1]))).outputs[0].logits
    for at in (0, 150, 299):
        alone = run(executor, OneShotBatch(prompts(batch[at]), HeadRows(i32([0])))).outputs[0].logits
        assert np.array_equal(alone[0], together[at])
        assert np.abs(alone[0] - model.run(batch[at]).logits.numpy()).max() < 2e-5


def test_a_head_over_the_mean(tmp_path: Path) -> None:
    options = {"kind": "ForSequenceClassification", "num_labels": 3, "classifier_pooling": "mean"}
    model = Encoder(write_encoder(tmp_path, family="modernbert", **options))
    batch = [ids_of(n, n) for n in (3, 50, 1)]
    theirs = np.concatenate([model.run(ids).logits.numpy() for ids in batch])
    s, executor = prompts(*batch), model.executor(deterministic=True)
    assert executor.limits().head_pooling == "mean"
    output = run(executor, OneShotBatch(s, HeadRows(i32(np.arange(54)), s.starts))).outputs[0]
    assert np.abs(output.logits - theirs).max() < 2e-5
    alone = run(executor, OneShotBatch(prompts(batch[1]), HeadRows(i32(np.arange(50)), i32([0, 50])))).outputs[0]
    assert np.array_equal(alone.logits[0], output.logits[1])


def test_pooling(family: Encoder) -> None:
    batch = [ids_of(n, n) for n in (9, 1, 30)]
    states = [family.states(ids) for ids in batch]
    s, executor = prompts(*batch), family.executor()
    mean = run(executor, OneShotBatch(s, PooledRows(i32(np.arange(40)), s.starts, "mean"))).outputs[0].vectors
    assert np.abs(mean - np.stack([x.mean(axis=0) for x in states])).max() < 2e-5


def test_an_encoder_keeps_nothing_and_continues_nothing(family: Encoder) -> None:
    executor = family.executor()
    limits = executor.limits()
    assert limits.bidirectional and not limits.lm_head and limits.kv_bytes_per_token == 0
    assert executor.pool.tensor.nbytes == 0
    with pytest.raises(ValueError, match="whole prompts and no decode rows"):
        from prelude.readouts.batch import DecodeBatch

        run(executor, DecodeBatch(decode_rows([5], [0], [[0]]), sampling([0])))
    with pytest.raises(ValueError, match="a context"):
        hidden(executor, slices([Segment(ids_of(0, 4), context=16, blocks=[0])]), [0])


def test_positions_past_the_last_are_refused(family: Encoder) -> None:
    with pytest.raises(IndexError, match="position"):
        hidden(family.executor(), prompts(ids_of(0, family.config.max_positions + 1)), [0])


def test_a_window_hides_distant_tokens(tmp_path: Path) -> None:
    """Two local layers of 8 tokens to each side: a token 17 away changes nothing."""
    path = write_encoder(tmp_path, family="modernbert", layer_types=["sliding_attention"] * 2, num_hidden_layers=2)
    executor = Encoder(path).executor(deterministic=True)
    ids = ids_of(3, 100)
    changed = ids.copy()
    changed[50] += 1
    before, after = (hidden(executor, prompts(x), np.arange(100)) for x in (ids, changed))
    differs = np.flatnonzero((before != after).any(axis=1))
    assert differs.min() == 34 and differs.max() == 66
    rows = [0, 40, 66, 67]
    assert np.array_equal(hidden(executor, prompts(ids), rows), before[rows])
