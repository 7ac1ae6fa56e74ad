"""``prelude memory MODEL``: where the memory of a model goes, before anything of it is loaded."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from prelude.cpu.executor import logits_rows
from prelude.execution.memory_plan import StepMemory
from prelude.loading.open import model_path
from prelude.models.checkpoint import Checkpoint
from prelude.models.config import ModelConfig
from prelude.models.gguf.directory import open_directory
from prelude.models.memory import available_memory
from prelude.models.precision import choose
from prelude.models.read_weights import weight_bytes
from prelude.terminal.command_line import add_model, byte_count
from prelude.values.config import EngineConfig

_LENGTHS = (512, 2048, 8192, 32768, 131072)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", help="a directory or a hub name; the packaged model without")
    add_model(parser, named=False, quantization=True)
    more = "as 1500000000, 1.5GB or 2GiB; the free memory by default"
    parser.add_argument("--max-memory", type=byte_count, metavar="BYTES", help=more)
    parser.add_argument("--max-top", type=int, help="alternatives of a token that requests may ask for")


def main(chosen: argparse.Namespace) -> int:
    for line in table(chosen):
        print(line)
    return 0


def table(chosen: argparse.Namespace) -> list[str]:
    """Lines. Nothing but the configuration and the headers of the weight files is read."""
    config = EngineConfig(max_memory=chosen.max_memory, quantization=chosen.quantization)
    if chosen.max_top is not None:
        config = config.changed(max_top=chosen.max_top)
    top = config.expert.max_top
    directory = open_directory(model_path(chosen.model, chosen.revision))
    model = ModelConfig.from_dir(directory)
    with Checkpoint.open(directory, model) as checkpoint:
        precision = choose(chosen.dtype, checkpoint, model.spec, chosen.quantization)
        weights = weight_bytes(checkpoint, model.spec, precision.dtype, precision.packing)
    free = available_memory() if chosen.max_memory is None else chosen.max_memory
    step = StepMemory.of_shapes(model.spec, precision.dtype.itemsize, logits_rows(model.vocab_size), top)
    kv = model.spec.kv_bytes_per_token(precision.dtype.itemsize)
    named = "free" if chosen.max_memory is None else "max_memory"
    return [
        f"{Path(str(directory)).name}: {model.architecture}, {precision.weights}, {model.max_positions} positions",
        f"  weights            {_bytes(weights)}",
        f"  KV of a token      {_bytes(kv)}",
        f"  a step             {_bytes(step.fixed + step.readout)} and {_bytes(step.per_token)} for each token",
        f"  results of a row   {_bytes(step.row_bytes)} with {top} alternatives",
        f"  {named:18} {'not known' if free is None else _bytes(free)}",
        "",
        *_rows(_lengths(model.max_positions), weights, kv, step, free),
    ]


def _rows(lengths: list[int], weights: int, kv: int, step: StepMemory, free: int | None) -> list[str]:
    head = ("tokens", "one pass", "with all logprobs", "KV to go on from it", "fits")
    rows: list[tuple[Any, ...]] = [head]
    for tokens in lengths:
        plain = step.fixed + tokens * step.per_token + step.readout
        every, kept = plain + tokens * step.row_bytes, tokens * kv
        fits = "?"
        if free is not None:
            room = free - weights
            fits = "no" if plain > room else "one pass" if every + kept > room else "all"
        rows.append((f"{tokens:,}", _bytes(plain), _bytes(every), _bytes(kept), fits))
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return ["  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows]


def _lengths(most: int) -> list[int]:
    return [*(n for n in _LENGTHS if n < most), most]


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
