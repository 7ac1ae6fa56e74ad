from __future__ import annotations

import pytest

from prelude import Engine
from prelude.records import replace
from prelude.scheduling.cost import Work
from prelude.simulation import Arrival, Fleet, machine
from prelude.simulation.costs import QWEN3_4B, LinearCost, RooflineCost, Shape
from prelude.simulation.workloads import chat, rubrics


def test_qwen3_4b_has_its_published_sizes() -> None:
    assert QWEN3_4B.layer_weights == pytest.approx(3.6e9, rel=0.02)  # "non-embedding parameters: 3.6B"
    assert QWEN3_4B.weight_bytes == pytest.approx(8.04e9, rel=0.01)  # 4.02 B parameters in bfloat16
    assert QWEN3_4B.kv_bytes_per_token == 147_456


def test_the_roofline_is_its_formula_by_hand() -> None:
    shape = Shape(2, 4, 1, 1, 4, 8, 10, 100)
    weights = 2 * (4 * 4 * 4 + 3 * 4 * 8)
    assert shape.layer_weights == weights
    cost = RooflineCost(shape, 1e3, 1e6, 0.5, 0.5, 1.0)
    work = Work(5, 15, 2, 3)
    expected = 1.0 + 2 * weights * 5 / 500 + 4 * 2 * 1 * 4 * 15 / 500 + 2 * 4 * 10 * 2 / 500
    assert cost.seconds(work) == pytest.approx(expected)
    assert cost.bound(work) == "arithmetic" and cost.ridge == pytest.approx(2 * 500 / (2 * 5e5))
    by_model = cost.coefficients  # where no part waits for memory
    assert sum(by_model[name] * n for name, n in zip(by_model, (1, 5, 15, 2))) == pytest.approx(expected)
    assert replace(shape, tied=False).weight_bytes - shape.weight_bytes == 2 * 4 * 10
    slow_memory = RooflineCost(shape, 1e12, 10, 0.5, 0.5, 1.0)
    kv = 2 * 2 * 1 * 4 * 2
    assert slow_memory.seconds(work) == pytest.approx(1.0 + (weights * 2 + kv * 3 + 40 * 2) / 5)
    assert slow_memory.bound(work) == "memory" and slow_memory.seconds(replace(work, lm_rows=0)) == pytest.approx(
        1.0 + (weights * 2 + kv * 3) / 5
    )


def test_machines_have_the_sizes_of_their_models() -> None:
    with Engine.from_pretrained() as engine:
        packaged = engine._core.executor.limits()
    found = machine("cpu-default").limits()
    for name in ("vocab_size", "max_positions", "kv_bytes_per_token", "block_size"):
        assert getattr(found, name) == getattr(packaged, name), name
    large = machine("h200-qwen3-4b").limits()
    assert (large.vocab_size, large.max_positions, large.block_size) == (151_936, 262_144, found.block_size)
    room = large.num_blocks * large.kv_bytes_per_token * large.block_size
    assert room == pytest.approx(0.9 * 141e9 - 8.04e9, rel=0.001)
    assert machine("h200-qwen3-4b", kv_blocks=77).limits().num_blocks == 77
    for name in ("reestimate", "probation"):
        made = machine("cpu-default", **{name: False}, kv_blocks=9)
        assert [made.reestimate, made.probation] == [name != "reestimate", name != "probation"]


def test_each_token_of_output_is_a_row_of_the_lm_head() -> None:
    trace, fleet = list(chat(50.0, requests=20)), Fleet(machine("cpu-default"))
    fleet.run(trace)
    assert fleet.replicas[0].core.stats.lm_head_rows == sum(arrival.max_tokens for arrival in trace)
    for tenants in (0, 2):  # a policy states no bound of starvation across tenants
        report = Fleet(machine("cpu-default")).run(rubrics(200.0, requests=60, tenants=tenants))
        assert (report.starvation == report.starvation) == (tenants == 0)


@pytest.mark.feature("F21")
@pytest.mark.feature("M5")
def test_prompts_wait_for_arithmetic_and_decode_rows_for_memory() -> None:
    cost = machine("h200-qwen3-4b").cost
    assert isinstance(cost, RooflineCost)

    def rows(count: int, keys: int) -> Work:
        return Work(count, count * (keys + 1), count, count * (keys + 1))

    assert [cost.bound(Work.prompt(n)) for n in (16, 160, 8000)] == ["memory", "arithmetic", "arithmetic"]
    assert {cost.bound(rows(n, 1000)) for n in (1, 4, 64)} == {"memory"}
    # Prompts go up with their tokens; another decode row adds its keys and its share of nothing else.
    assert cost.seconds(Work.prompt(4096)) > 3 * cost.seconds(Work.prompt(1024))
    assert cost.seconds(rows(8, 100)) < 1.05 * cost.seconds(rows(1, 100))
    below, above = (cost.parts(Work(int(cost.ridge * f), 1))[0] for f in (0.9, 1.1))
    assert below[0] < below[1] and above[0] > above[1]


def test_more_work_never_costs_less_and_a_longer_hit_never_more() -> None:
    for cost in (machine("h200-qwen3-4b").cost, machine("cpu-default").cost):
        times = [cost.seconds(Work.prompt(n)) for n in (1, 100, 4000, 30_000)]
        assert times == sorted(times)
        hits = [cost.seconds(Work.prompt(8000, cached)) for cached in (0, 1600, 4000, 7984)]
        assert hits == sorted(hits, reverse=True)


def counted(*arrivals: Arrival, **config: object) -> list[Work]:
    """The work of every step in which the arrivals run on a machine of small blocks."""
    fleet = Fleet(machine("h200-qwen3-4b", **{"kv_blocks": 64, "max_length": 4096, **config}))
    seen: list[Work] = []

    class Watching(LinearCost):
        def seconds(self, work: Work) -> float:
            seen.append(work)
            return 1.0

    fleet.replicas[0].executor.cost = Watching(1.0, 0.0, 0.0)
    fleet.run(arrivals)
    return seen


def test_a_prompt_alone_is_the_triangle_of_its_pairs() -> None:
    assert counted(Arrival(0.0, ((None, 100),))) == [Work(100, 5050, 1)]


def test_a_cached_prefix_is_read_and_not_computed() -> None:
    first, second = counted(Arrival(0.0, (("a", 160), (None, 40))), Arrival(5.0, (("a", 160), (None, 40))))
    assert first == Work(200, 200 * 201 // 2, 1)
    assert second == Work(40, 40 * 160 + 40 * 41 // 2, 1, 160)


def test_a_folded_prefix_is_counted_once() -> None:
    pair = (Arrival(0.0, (("a", 160), (None, 40))), Arrival(0.0, (("a", 160), (None, 40))))
    tails = 2 * (40 * 160 + 40 * 41 // 2)
    assert counted(*pair) == [Work(240, 160 * 161 // 2 + tails, 2)]
    assert counted(*pair, fold=False, defer_steps=0) == [Work(400, 2 * (200 * 201 // 2), 2)]


def test_branches_see_their_trunk() -> None:
    work = counted(Arrival(0.0, ((None, 100),), questions=(10, 5)))
    assert work == [Work(115, 5050 + 10 * 100 + 55 + 5 * 100 + 15, 2)]


def test_generated_tokens_read_all_that_precede_them() -> None:
    steps = counted(Arrival(0.0, ((None, 32),), task="generate", max_tokens=4))
    assert steps == [Work(32, 528, 1), *(Work(1, n, 1, n) for n in (33, 34, 35))]


def test_a_vector_meets_no_vocabulary() -> None:
    assert counted(Arrival(0.0, ((None, 16),), task="embed")) == [Work(16, 136, 0)]
