"""Sampling, penalties, bias and masks: against the reference sampler, row by row, and by their distributions."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prelude.admission.sampling import resolve_edits
from prelude.execution.dump import load, save
from prelude.readouts.batch import OneShotBatch
from prelude.readouts.draw import distribution, edited, uniforms
from prelude.readouts.sample import sample_token
from prelude.readouts.sampling import NO_EDITS, History, Sampling, SamplingState, sample_rows
from prelude.tasks import SamplingParams
from tests import reference_sampler as reference
from tests.execution.helpers import Model, i32, prompts, random_ids, run

VOCAB = 40
STOPS = frozenset({0, 3})


class Rows:
    """Just enough of the facts that checking settings needs."""

    class limits:
        vocab_size = VOCAB


def drawing(params: SamplingParams, prompt: list[int], output: list[int], row: int = 0) -> SamplingState:
    early = STOPS if params.min_tokens else frozenset()
    edits = resolve_edits(Rows, params, early)  # type: ignore[arg-type]
    settings = (params.temperature, params.top_k, params.top_p, params.min_p, params.seed or 0)
    sampling = Sampling(*settings, STOPS, edits, params.min_tokens, params.logprobs)
    history = None
    if edits is not None and edits.weighs:
        history = History.of(edits, i32(prompt))
        for token in output:
            history.add(token)
    return SamplingState(row, sampling, len(output), history)


def random_params(rng: np.random.Generator) -> SamplingParams:
    ids = rng.permutation(VOCAB).tolist()
    some = rng.integers(0, 2, 9).tolist()
    return SamplingParams(
        max_tokens=64,
        temperature=float(rng.choice([0, 0.5, 1, 3])),
        top_k=int(rng.choice([0, 3, 20])),
        top_p=float(rng.choice([1, 0.9, 0.4])),
        min_p=float(rng.choice([0, 0.02])),
        seed=int(rng.integers(0, 1 << 63)),
        min_tokens=int(rng.integers(0, 8)) * some[0],
        logit_bias={i: float(b) for i, b in zip(ids[:5], rng.normal(size=5) * 5)} if some[1] else None,
        allowed_token_ids=ids[5:25] if some[2] else None,
        banned_token_ids=ids[20:24] if some[3] else (),
        repetition_penalty=float(rng.choice([0.5, 1.3, 4])) if some[4] else 1.0,
        presence_penalty=float(rng.choice([-1, 2])) if some[5] else 0.0,
        frequency_penalty=float(rng.choice([-0.5, 1])) if some[6] else 0.0,
        logprobs=int(rng.integers(0, 4)) if some[7] else None,
    )


@pytest.mark.feature("H3")
@pytest.mark.feature("H5")
def test_sixty_four_tokens_equal_the_reference_sampler() -> None:
    for seed in range(32):
        rng = np.random.default_rng(seed)
        params = random_params(rng)
        prompt = rng.integers(0, VOCAB, 12).tolist()
        ours: list[int] = []
        theirs: list[int] = []
        for step in range(64):
            # Rounded: with ties. The next logits hang on the text so far, as a model's would.
            logits = np.random.default_rng([step, *ours[-3:]]).normal(size=VOCAB).round(1).astype(np.float32) * 3
            readout = sample_rows([drawing(params, prompt, ours)])
            ours.append(sample_token(logits, readout, 0, float(uniforms(readout.seeds, readout.steps)[0])))
            theirs.append(reference.sample(logits.tolist(), prompt, theirs, params, STOPS))
            assert ours == theirs, (seed, params)
        assert not STOPS & set(ours[: params.min_tokens])


@pytest.mark.feature("H3")
def test_ties_go_to_the_smaller_id() -> None:
    logits = np.array([1, 5, 2, 5, 5, 2], np.float32)
    assert np.flatnonzero(distribution(logits, 1.0, top_k=2)).tolist() == [1, 3]
    assert np.flatnonzero(distribution(logits, 1.0, top_p=0.5)).tolist() == [1, 3]
    readout = sample_rows([SamplingState(0, Sampling(0.0, 0, 1.0, 0.0, 0, frozenset()))])
    assert sample_token(logits, readout, 0, 0.0) == 1


@pytest.mark.feature("H3")
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=0.3),
        SamplingParams(logit_bias={4: 2.0, 9: -3.0}, banned_token_ids=[1, 2], temperature=0.7),
        SamplingParams(allowed_token_ids=[2, 5, 7, 9, 11], top_p=0.9),
    ],
)
def test_exact_distribution_after_edits(params: SamplingParams) -> None:
    """Chi-square over 20,000 draws with fixed seeds; the bound is four standard deviations."""
    logits = np.random.default_rng(5).normal(size=VOCAB).astype(np.float32)
    prompt, output = [1, 2, 3, 4], [5, 5, 9]
    expected = np.array(reference.probabilities(reference.edit(logits.tolist(), prompt, output, params, ()), params))
    readout = sample_rows([drawing(params, prompt, output)])
    assert readout.edits is not None
    ours = distribution(edited(logits, readout.edits, 0), params.temperature, params.top_k, params.top_p)
    assert np.array_equal(ours > 0, expected > 0) and np.abs(ours - expected).max() < 1e-8  # settings are float32
    draws = 20_000
    drawn = uniforms(np.arange(draws, dtype=np.uint64), np.zeros(draws, np.int32))
    tokens = np.searchsorted(np.cumsum(ours), drawn, side="right")
    alike = [sample_token(logits, readout, 0, float(u)) for u in drawn[:300]]
    assert alike == tokens[:300].tolist()
    counts = np.bincount(tokens, minlength=VOCAB)
    kept = expected > 0
    assert not counts[~kept].any()
    statistic = ((counts[kept] - expected[kept] * draws) ** 2 / (expected[kept] * draws)).sum()
    degrees = kept.sum() - 1
    assert statistic < degrees + 4 * np.sqrt(2 * degrees)


def settings_of(rng: np.random.Generator, row: int) -> SamplingState:
    params = random_params(rng)
    prompt, output = rng.integers(0, VOCAB, 6).tolist(), rng.integers(0, VOCAB, int(rng.integers(0, 9))).tolist()
    return drawing(params, prompt, output, row)


@pytest.mark.fault(13)
@pytest.mark.fault(75)
def test_no_row_alters_another(model: Model) -> None:
    """Row by row: in company, alone, and with every other row's settings changed."""
    executor = model.executor(logits_chunk_rows=3)
    ids = [random_ids(i, 10) for i in range(8)]
    s = prompts(*ids)
    ends = (s.starts[1:] - 1).tolist()

    def tokens(parts: list[SamplingState]) -> Any:
        output = run(executor, OneShotBatch(s, sample_rows(parts))).outputs[0]
        if output.logprobs is not None:
            assert (output.logprobs <= 0).all() and np.isfinite(output.logprobs).all()
        return output.token_ids

    for seed in range(12):
        parts = [settings_of(np.random.default_rng([seed, row]), end) for row, end in enumerate(ends)]
        others = [settings_of(np.random.default_rng([seed, row, 1]), end) for row, end in enumerate(ends)]
        together = tokens(parts)
        for row in range(8):
            assert tokens([*others[:row], parts[row], *others[row + 1 :]])[row] == together[row]
            assert tokens([parts[row]])[0] == together[row]


def test_a_dumped_batch_keeps_its_edits(tmp_path: Path) -> None:
    params = SamplingParams(repetition_penalty=2.0, logit_bias={3: 1.0}, min_tokens=4)
    rows = [drawing(params, [1, 2], [2], 3), drawing(SamplingParams(), [1], [2], 2)]
    readout = sample_rows(rows)
    assert readout.edits is not None
    for one in fields(readout.edits):
        dtype = {"F32": np.float32, "I32": np.int32}[str(one.type)]
        assert getattr(readout.edits, one.name).dtype == dtype
    batch = OneShotBatch(prompts(random_ids(0, 4)), readout)
    save(tmp_path / "step", batch)
    assert repr(load(tmp_path / "step")) == repr(batch)


@pytest.mark.feature("H3")
def test_a_masked_greedy_row_looks_at_its_allowed_ids_alone() -> None:
    """Ids in any order, with ties: the token is that of the whole row with its mask."""
    rng = np.random.default_rng(11)
    for case in range(200):
        logits = rng.integers(-3, 3, VOCAB).astype(np.float32)
        allowed = rng.permutation(VOCAB)[: int(rng.integers(1, VOCAB))].astype(np.int32)
        banned = i32(rng.permutation(allowed)[: len(allowed) // 2].tolist() if case % 3 == 0 else [])
        edits = replace(NO_EDITS, allowed=allowed, banned=banned)
        if case % 5 == 0:
            edits = replace(edits, bias_ids=i32([int(allowed[0])]), bias_values=np.array([4.0], np.float32))
        readout = sample_rows([SamplingState(0, Sampling(0.0, 0, 1.0, 0.0, 0, frozenset(), edits))])
        assert readout.edits is not None
        assert sample_token(logits, readout, 0, 0.0) == int(edited(logits, readout.edits, 0).argmax())


@pytest.mark.feature("H3")
@pytest.mark.parametrize("p,kept", [(0.25, 1), (0.5, 2), (0.75, 3), (0.76, 4), (0.2, 1), (1.0, 4)])
def test_top_p_keeps_the_smallest_set_that_reaches_p(p: float, kept: int) -> None:
    """Four equal logits are four exact quarters. A set whose sum equals p reaches it; of equal ones the smaller ids
    are kept."""
    ours = distribution(np.full(4, 2.0, np.float32), 1.0, top_p=p)
    assert ours.tolist() == [1 / kept] * kept + [0.0] * (4 - kept)


def test_uniforms_are_a_function_of_seed_and_step() -> None:
    seeds = np.array([0, 1, 2**63, 2**64 - 1], np.uint64)
    steps = i32([0, 0, 5, 5])
    together = uniforms(seeds, steps)
    assert all(uniforms(seeds[i : i + 1], steps[i : i + 1])[0] == together[i] for i in range(4))
    many = uniforms(np.arange(20_000, dtype=np.uint64), np.zeros(20_000, np.int32))
    assert many.min() >= 0 and many.max() < 1 and abs(many.mean() - 0.5) < 0.01
    assert abs(np.corrcoef(many[:-1], many[1:])[0, 1]) < 0.03
    # Written down once: a stored request must draw the same tokens in later versions.
    stored = uniforms(np.array([42], np.uint64), i32([3]))[0]
    assert stored == 0.04802579547595631


@pytest.mark.parametrize("temperature", [1e-12, 1e-38, 1e38])
def test_temperatures_at_the_edge(temperature: float) -> None:
    logits = np.array([1, 5, 5, -1e4, 1e4], np.float32)
    probabilities = distribution(logits, temperature)
    assert np.isfinite(probabilities).all() and abs(probabilities.sum() - 1) < 1e-12
    assert (probabilities[4] == 1) == (temperature < 1)
