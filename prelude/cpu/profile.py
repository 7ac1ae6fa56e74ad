"""The profile run: the memory of a loaded model's step, measured before the KV pool is made.

A step's memory does not depend on how many layers there are, so the run goes through two layers of each kind and the
last one, and it grows by a constant for each token, so two short prompts give the memory of the longest one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from prelude.execution.executor import Executor
from prelude.execution.layout import blank_prompts
from prelude.execution.memory_plan import StepMemory, from_runs
from prelude.models.config import ModelConfig
from prelude.models.memory import give_back_freed, text_of
from prelude.models.spec import Attention, Layer
from prelude.models.weights import ModelWeights
from prelude.readouts.base import Readout
from prelude.readouts.batch import OneShotBatch
from prelude.readouts.logprobs import LogprobRows
from prelude.readouts.pooled import PooledRows

LONG = 2048  # tokens of the longer prompt
_WARM = 16
_RUNS = 3  # a run may find pages that an earlier one left; the highest of three peaks varies less


def few_layers(config: ModelConfig, weights: ModelWeights) -> tuple[ModelConfig, ModelWeights]:
    """The same model with the first two layers of each kind and the last layer alone; it shares the weights."""
    spec, kept = config.spec, []
    kinds: Counter[tuple[object, ...]] = Counter()
    for index, layer in enumerate(spec.layers[:-1]):
        kind = _kind(layer)
        kinds[kind] += 1
        if kinds[kind] <= 2:
            kept.append(index)
    kept.append(len(spec.layers) - 1)
    layers = tuple(spec.layers[index] for index in kept)
    few = replace(weights, layers=tuple(weights.layers[index] for index in kept))
    return replace(config, spec=replace(spec, layers=layers)), few


def profile(executor: Executor, longest: int, shapes: StepMemory) -> StepMemory:
    """``executor``: of ``few_layers``, with one KV block; ``longest``: the model's longest prompt; ``shapes``: the
    same by the model's shapes, which is the result if the system does not count a process's memory."""
    limits = executor.limits()
    many = max(2, min(longest, LONG))
    few = many // 2

    def peak(tokens: int, rows: int) -> int | None:
        batch = OneShotBatch(blank_prompts([tokens]), _worst(tokens, rows, limits.lm_head))
        return peak_bytes(lambda: executor.wait(executor.submit(batch)))

    def highest(tokens: int, rows: int) -> int | None:
        peaks = [found for _ in range(_RUNS) if (found := peak(tokens, rows)) is not None]
        return max(peaks, default=None)

    rows = max(1, min(few, limits.logits_chunk_rows))
    peak(min(few, _WARM), 1)
    short, long, readout = peak(few, 1), highest(many, 1), highest(few, rows)
    if short is None or long is None or readout is None:
        return shapes
    return from_runs(shapes, (few, short), (many, long), readout)


def _kind(layer: Layer) -> tuple[object, ...]:
    """Return the key that a layer's intermediates depend on."""
    mixer, window = layer.mixer, layer.mixer.window if isinstance(layer.mixer, Attention) else None
    return type(mixer), mixer.in_proj.outputs, window, layer.mlp.up.outputs, layer.mlp.gated, layer.entry is None


def _worst(tokens: int, rows: int, with_head: bool) -> Readout:
    read = np.arange(tokens - rows, tokens, dtype=np.int32)
    if not with_head:
        return PooledRows(read, np.array([0, rows], np.int32), "mean")
    return LogprobRows(
        read, np.arange(rows, dtype=np.int32), np.zeros(rows, np.int32), top=int(rows > 1), ranks=rows > 1
    )


_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")
_PEAK = "5"  # sets VmHWM back to the present size (proc_pid_clear_refs(5))


def resident_bytes() -> int | None:
    """Return bytes that this process has in memory now; None if the system does not say."""
    return _status("VmRSS")


def peak_bytes(run: Callable[[], object]) -> int | None:
    """Return bytes that the process grew by at most while ``run`` ran; None if the system does not count.

    Memory that was freed before goes back to the system first, so that ``run`` has to ask for all that it uses. Other
    threads that allocate meanwhile are counted as well.
    """
    give_back_freed()
    before = _status("VmRSS")
    try:
        _RESET.write_text(_PEAK, encoding="utf-8")
    except OSError:
        return None
    run()
    most = _status("VmHWM")
    return None if before is None or most is None else max(0, most - before)


def _status(name: str) -> int | None:
    for line in text_of(_STATUS).splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None
