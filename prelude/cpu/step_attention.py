"""Attention of one step over the pool of a CPU executor: keys and values are written, then runs of queries read."""

from __future__ import annotations

from collections.abc import Sequence

from prelude._native.cpu import write_pool
from prelude.cpu.attention_runs import RunsPlan
from prelude.cpu.threads import GOVERNOR
from prelude.execution.layout import StepTokens
from prelude.models.arrays import Array
from prelude.models.transformer import Run
from prelude.models.weights import LayerWeights


class PlannedAttention:
    """See ``StepAttention``. ``plans``: of each layer with attention, whose place among them ``places`` [layers] has.
    A plan has a section for each run, or there is one run. ``pool``: K and V of such a layer by its place."""

    def __init__(
        self,
        plans: Sequence[RunsPlan],
        places: Sequence[int],
        layers: Sequence[LayerWeights],
        pool: Sequence[tuple[Array, Array]],
        step: StepTokens,
        runs: list[Run],
        last_runs: list[Run],
    ) -> None:
        self.runs, self.last_runs = runs, last_runs
        self._plans, self._places, self._layers, self._pool = plans, places, layers, pool
        self._slots, self._written = step.slots, step.written

    def keep(self, layer: int, k: Array, v: Array) -> None:
        GOVERNOR.look()
        if len(self._slots):
            write_pool(k, v, *self._pool[self._places[layer]], self._slots, self._written)

    def run(self, layer: int, number: int, q: Array, k: Array, v: Array) -> Array:
        place = self._places[layer]
        runs = self.last_runs if layer == len(self._layers) - 1 else self.runs
        section = None if len(runs) == 1 else number
        return self._plans[place].run(q, k, v, *self._pool[place], self._layers[layer].relative, section)
