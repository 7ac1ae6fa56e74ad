"""The rows that rounding up to recorded shapes adds, over the steps that the engine's own planning makes of a
load."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from prelude.cuda.graphs import GraphPolicy
from prelude.cuda.shapes import Shape

from bench.gpu.batches import draw
from prelude import EngineConfig
from prelude.batch import I32, ForwardBatch
from prelude.runtime.assembly import make_core
from prelude.runtime.core import EngineCore
from prelude.simulation.machines import machine
from prelude.simulation.replica import Clock, CostedExecutor
from tests.cuda.conftest import on_device
from tests.cuda.test_layout import measured, packer
from tests.engine.test_faults import ById
from tests.execution.helpers import Model, random_ids
from tests.scheduling.cores import chat, last_logprob
from tests.service import run_steps


class Recording(CostedExecutor):
    """Takes no time and keeps its batches."""

    def __init__(self) -> None:
        h200 = machine("h200-qwen3-4b", kv_blocks=20_000)
        super().__init__(h200.cost, h200.limits(), Clock())
        self.batches: list[ForwardBatch] = []

    def submit(self, batch: ForwardBatch) -> Any:
        self.batches.append(batch)
        return super().submit(batch)


def saturated(prompt: Callable[[int], I32], flights: int, count: int) -> list[ForwardBatch]:
    """The steps of a closed loop with ``flights`` requests in flight, as ``bench gpu_first`` drives it."""
    executor = Recording()
    config = EngineConfig(max_length=4096, max_step_tokens=16_384, max_running=256, chunk_tokens=2048)
    core = make_core(EngineCore, executor, config)
    sink, sent = ById(), 0
    while len(sink.ends) < count:
        more = min(flights - (sent - len(sink.ends)), count - sent)
        if more:
            core.lifecycle.post([core.request(last_logprob(prompt(sent + i)), sink) for i in range(more)])
            sent += more
        core.step()
    return executor.batches


def padding(batches: list[ForwardBatch]) -> tuple[float, int, int]:
    """Rows added over rows asked for, of the steps that a graph may serve; how many these are, and others, which run
    as they are."""
    asked = added = 0
    served = large = 0
    step = packer(**dict.fromkeys(("positions", "seen_whole", "rows", "vocab"), 1 << 20))
    for batch in batches:
        recorded = Shape.of(measured(step, batch, blocks=1 << 20))
        exact = Shape.of(step.exact())
        if recorded.rows <= GraphPolicy().max_rows:
            asked += exact.rows
            added += recorded.rows - exact.rows
            served += 1
        else:
            large += 1
    return added / max(1, asked), served, large


COMMON = draw(7, 384)
LOADS: dict[str, tuple[Callable[[int], I32], int]] = {
    "512in_c1": (lambda i: draw(i, 512), 1),
    "512in_c16": (lambda i: draw(i, 512), 16),
    "512in_c96": (lambda i: draw(i, 512), 96),
    "512in_c96_shared75": (lambda i: np.concatenate([COMMON, draw(i, 128)]), 96),
    "128in_c1": (lambda i: draw(i, 128), 1),
    "any_length_c1": (lambda i: draw(i, 60 + i * 7919 % 1400), 1),
    "any_length_c4": (lambda i: draw(i, 60 + i * 7919 % 1400), 4),
    "any_length_c32": (lambda i: draw(i, 60 + i * 7919 % 1400), 32),
}


@pytest.mark.parametrize("load", list(LOADS))
def test_padding_is_under_3_percent_at_load(load: str) -> None:
    """Alone, prompts of any length have up to 64 rows of padding: their shapes are few enough to be recorded before
    they come, and a step of so few rows takes its time to read the weights."""
    prompt, flights = LOADS[load]
    share, served, large = padding(saturated(prompt, flights, max(150, 2 * flights)))
    assert share < (0.05 if load == "any_length_c1" else 0.03)
    assert served + large >= 3


def test_loads_do_meet_graphs_and_padding() -> None:
    """The padding bounded above exists: prompts of any length are rounded up, and short ones are replayed."""
    share, served, _ = padding(saturated(*LOADS["any_length_c1"], 150))
    assert share > 0.002 and served > 10


@pytest.mark.parametrize("step_rows, rows", [(40, 33), (6, 5), (40, 40)])
def test_a_full_step_of_rows_finds_room_though_their_limit_is_no_power_of_two(
    model: Model, step_rows: int, rows: int
) -> None:
    """Rows that are sampled are rounded up to a power of two, and their tokens have places of their own."""
    limits = {"max_length": 64, "max_step_tokens": 512, "max_step_requests": step_rows, "max_running": step_rows}
    config = EngineConfig(**limits, prefix_cache=False, fold=False)
    core = make_core(EngineCore, on_device(model, step_rows=step_rows), config)
    sink = ById()
    core.lifecycle.post([core.request(chat(random_ids(i, 5), 1), sink) for i in range(rows)])
    run_steps(core)
    assert len(sink.ends) == rows and all(error is None for _, error in sink.ends.values())
    assert sum(core.stats.steps.values()) == 1
