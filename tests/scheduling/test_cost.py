"""The cost model: learning from steps, forgetting, and predictions that it never makes."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prelude.errors import ConfigError
from prelude.execution.layout import prompt_keys
from prelude.scheduling.cost import CostModel, Work
from tests.scheduling.cores import Collect, last_logprob, prompt
from tests.scheduling.test_pace import BASE, PER_TOKEN, Timed
from tests.service import run_steps, service_core

TRUE = {"constant": 2e-3, "token": 3e-5, "key": 4e-9, "lm_row": 1e-5}


def seconds(work: Work, true: dict[str, float] = TRUE) -> float:
    return true["constant"] + true["token"] * work.tokens + true["key"] * work.keys + true["lm_row"] * work.lm_rows


def request_work(uncached: int, cached: int, lm_rows: int = 0) -> Work:
    """A prompt of ``uncached`` tokens to compute behind ``cached`` ones."""
    return Work(uncached, prompt_keys(uncached, cached), lm_rows)


def works(count: int, seed: int = 0) -> list[Work]:
    rng = np.random.default_rng(seed)
    return [
        request_work(int(n), int(m), int(r))
        for n, m, r in zip(rng.integers(1, 8000, count), rng.integers(0, 8000, count), rng.integers(0, 64, count))
    ]


def test_exact_steps_give_back_their_coefficients() -> None:
    model = CostModel()
    for work in works(200):
        model.observe(work, seconds(work))
    assert model.coefficients == pytest.approx(TRUE, rel=1e-6)
    assert model.curvature == pytest.approx(TRUE["key"] / TRUE["token"], rel=1e-6)


@pytest.mark.feature("G3")
def test_noisy_steps_are_predicted_with_a_correlation_above_095() -> None:
    rng = np.random.default_rng(3)
    model = CostModel()
    for work in works(300):
        spike = 20.0 if rng.random() < 0.02 else 1.0  # a step that something else on the machine held up
        model.observe(work, seconds(work) * math.exp(rng.normal(0, 0.2)) * spike)
    fresh = works(200, 1)
    predicted = np.array([model.predict(work) for work in fresh])
    measured = np.array([seconds(work) * math.exp(rng.normal(0, 0.1)) for work in fresh])
    assert np.corrcoef(predicted, measured)[0, 1] > 0.95
    assert 0.8 < np.median(predicted / measured) < 1.25


def test_a_machine_that_changes_is_followed_within_a_few_memories() -> None:
    model = CostModel(memory=64)
    for work in works(200):
        model.observe(work, seconds(work))
    for work in works(64 * 4, 2):
        model.observe(work, 3 * seconds(work))
    for work in works(20, 5):
        assert model.predict(work) == pytest.approx(3 * seconds(work), rel=0.1)


def test_one_kind_of_step_alone_leaves_finite_coefficients() -> None:
    model = CostModel(memory=128)
    for work in works(300):
        model.observe(work, seconds(work))
    for _ in range(5000):
        model.observe(Work(8, 800), seconds(Work(8, 800)))
    assert model.predict(Work(8, 800)) == pytest.approx(seconds(Work(8, 800)), rel=0.02)
    assert all(math.isfinite(c) and c >= 0 for c in model.coefficients.values())


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 9000), st.floats(1e-6, 10)), max_size=40))
@pytest.mark.feature("G7")
def test_a_longer_hit_is_never_predicted_to_take_longer(steps: list[tuple[int, int, float]]) -> None:
    """For any measured steps: with equal prompts, more cached tokens mean less work."""
    model = CostModel()
    for uncached, cached, taken in steps:
        model.observe(request_work(uncached, cached), taken)
    for total in (10, 500, 4000):
        predicted = [model.predict(request_work(total - hit, hit)) for hit in range(0, total, max(1, total // 20))]
        assert all(a >= b * (1 - 1e-12) for a, b in pairwise(predicted))
        assert min(predicted) >= 0


@pytest.mark.parametrize("taken", [0.0, -1.0, math.nan, math.inf])
def test_a_value_that_is_no_duration_is_ignored(taken: float) -> None:
    model = CostModel()
    model.observe(Work(10), taken)
    assert model.steps == 0 and model.predict(Work(10)) == 0.0


def test_saved_and_loaded_it_predicts_the_same_and_still_learns(tmp_path: Path) -> None:
    model = CostModel()
    for work in works(100):
        model.observe(work, seconds(work))
    model.save(tmp_path / "cost.json")
    file = json.loads((tmp_path / "cost.json").read_text("utf-8"))
    assert file == {"prelude_cost_model": 1, "steps": 100, "seconds": model.coefficients}
    loaded = CostModel.load(tmp_path / "cost.json", memory=64)
    for work in works(20, 4):
        assert loaded.predict(work) == pytest.approx(model.predict(work), rel=1e-9)
    for work in works(32, 6):
        loaded.observe(work, 2 * seconds(work))
    assert loaded.predict(Work(4000, 8e6)) == pytest.approx(1.43 * seconds(Work(4000, 8e6)), rel=0.1), "as 16 steps"
    for work in works(400, 6):
        loaded.observe(work, 2 * seconds(work))
    assert loaded.predict(Work(4000, 8e6)) == pytest.approx(2 * seconds(Work(4000, 8e6)), rel=0.1)


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", json.dumps({"prelude_cost_model": 1, "seconds": {"constant": 1}}),
        *(json.dumps({"prelude_cost_model": 1, "seconds": {**TRUE, "key": key}}) for key in (-1, True, 1.01e6)),
        '{"prelude_cost_model": 1, "seconds": {"constant": NaN, "token": 1, "key": 1, "lm_row": 1}}',
    ],
)  # fmt: skip
def test_a_file_that_is_no_cost_model_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "cost.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError):
        CostModel.load(path)
    with pytest.raises(ConfigError):
        CostModel.load(tmp_path / "none.json")
    assert CostModel(coefficients={**TRUE, "key": 1e6}).coefficients["key"] == 1e6, "the most"


@pytest.mark.feature("G3")
def test_results_carry_the_time_that_the_cost_model_expected() -> None:
    core = service_core(Timed(num_blocks=256), step_tokens=512, cache=False)
    sink = Collect()
    estimates = []
    for i in range(60):
        request = core.request(last_logprob(prompt(5 + 7 * i, i)), sink)
        core.lifecycle.post([request])
        run_steps(core)
        estimates.append(sink.ends[request.id][0].stats.estimated_jct)
    lengths = [5 + 7 * i for i in range(60)]
    assert estimates[0] == 0.0, "nothing was measured before the first"
    measured = [BASE + PER_TOKEN * n for n in lengths]
    assert estimates[-1] == pytest.approx(measured[-1], rel=0.05)
    assert np.corrcoef(estimates[10:], measured[10:])[0, 1] > 0.95


@pytest.mark.parametrize("term", TRUE)
def test_a_kept_model_of_one_term_is_known_from_the_first_step(term: str, tmp_path: Path) -> None:
    seconds = {**dict.fromkeys(TRUE, 0.0), term: 1e-3}
    (tmp_path / "cost.json").write_text(json.dumps({"prelude_cost_model": 1, "seconds": seconds}), encoding="utf-8")
    model = CostModel.load(tmp_path / "cost.json")
    assert model.coefficients == pytest.approx(seconds)
    work = Work(512, 1e3, 8)
    before = model.predict(work)
    model.observe(work, 3 * before)
    assert model.predict(work) < 1.5 * before, "one step among many"
