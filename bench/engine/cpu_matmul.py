"""Products of the CPU executor on the shapes of real models: torch's in float32 and bfloat16, and packed ones.

One thread and processor time. The answers are compared first. A row's value is the median over repeats, the variants
in turn. Copies of a weight take turns, so that each comes from memory. Weights of torch are not packed. The floor of
each type, the rate of its vector instruction (``_native/bench/peaks.cpp``), is measured first, if there is a C++
compiler; a row's note says how much of it the product reaches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle

import torch
from prelude._native import cpu
from torch import Tensor

from bench.command_line import options_parser
from bench.common import Report, add_outputs, machine_facts, rounds, three, use_threads
from bench.engine.shapes import peaks, rate_of
from prelude.models.arrays import F32, KEPT, Packing, narrow
from prelude.models.packed import PackedLinear

SHAPES = {
    "MiniLM up": (1536, 384),
    "MiniLM down": (384, 1536),
    "ModernBERT-base up": (2304, 768),
    "ModernBERT-base down": (768, 1152),
    "Qwen3-0.6B up": (6144, 1024),
    "Qwen3-0.6B down": (1024, 3072),
}
"""Outputs and inputs of a weight."""
ROWS = (1, 16, 81, 256, 512)
LEAST_WORK = 2e8
"""Operations of one measurement."""
COLD = 128 << 20
"""Bytes of a weight's copies, at least: more than the caches hold."""


def variants(x: Tensor, weight: Tensor) -> dict[str, Callable[[], Tensor]]:
    half, count = x.to(torch.bfloat16), COLD // (4 * weight.numel()) + 1
    found: dict[str, list[Callable[[], Tensor]]] = {
        "torch float32": [partial(torch.mm, x, weight.clone().t()) for _ in range(count)],
        "torch bfloat16": [partial(torch.mm, half, weight.to(torch.bfloat16).t()) for _ in range(2 * count)],
    }
    packings: tuple[Packing, ...] = ("float32", "widened", "bfloat16", "int8")
    for packing in packings:
        if packing in cpu.PACKED_KERNELS:
            kept = narrow(weight.numpy()) if KEPT.get(packing) == "bfloat16" else weight.numpy()
            copies = count * (1 if packing == "float32" else 4 if packing == "int8" else 2)
            found[f"packed {packing}"] = [
                partial(_tensor, PackedLinear(kept, None, packing), x.numpy()) for _ in range(copies)
            ]
    return {name: partial(_next, cycle(runs)) for name, runs in found.items()}


def _next(runs: Iterator[Callable[[], Tensor]]) -> Tensor:
    return next(runs)()


def _tensor(linear: PackedLinear, x: F32) -> Tensor:
    return torch.from_numpy(linear(x))


def check_equal(found: dict[str, Callable[[], Tensor]]) -> None:
    """Each product within a hundredth of the largest float32 value."""
    wanted = found["torch float32"]()
    for name, run in found.items():
        error = float((run().float() - wanted).abs().max() / wanted.abs().max())
        if error > 0.02:
            raise SystemExit(f"{name} differs from float32 by {error:.3f} of the largest value")


def measure(
    report: Report, load: str, shape: tuple[int, int], rows: int, repeats: int, floors: dict[str, float]
) -> None:
    outputs, inputs = shape
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, inputs, generator=generator)
    weight = torch.randn(outputs, inputs, generator=generator)
    found = variants(x, weight)
    check_equal(found)
    work = 2.0 * rows * outputs * inputs
    times = max(1, round(LEAST_WORK / work))
    seconds: dict[str, list[float]] = {name: [] for name in found}
    for _ in rounds(repeats):
        for name, run in found.items():
            began = time.process_time()
            for _ in range(times):
                run()
            seconds[name].append((time.process_time() - began) / times)
    for name, taken in seconds.items():
        median, low, high = three([work / one * 1e-9 for one in taken])
        kind = name.removeprefix("packed ").replace("widened", "float32")
        floor = rate_of(kind, floors)
        note = "" if floor is None else f"{median / floor:.2f} of the instruction's rate"
        report.add(f"{load}, {rows} rows", name, (median, low, high), "Gop/s", note=note)


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), help="some of the shapes")
    add_outputs(parser, plot=False)
    args = parser.parse_args()
    use_threads(1)
    report = Report("Products of the CPU executor", facts=machine_facts([("threads", 1)]))
    floors = peaks()
    for name, rate in floors.items():
        report.add("of this processor", name, (rate,) * 3, "GB/s" if name == "memory" else "Gop/s")
    with torch.inference_mode():
        for load, shape in SHAPES.items():
            if args.shapes and load not in args.shapes:
                continue
            for rows in args.rows:
                measure(report, load, shape, rows, args.repeats, floors)
    report.finish(args)


if __name__ == "__main__":
    main()
