"""The cost of loading: time from the tokenizer.json and from kept tables, the first call after it, memory.

    python -m bench tokenizer_load SIDE tokenizer.json [TEXT ...]        # one side in a process of its own, as JSON

Each side is loaded in as many fresh processes, the sides in turns (the first load of a process meets memory that it
never touched), and again there, where the median counts; memory is the resident set, after loading and, in the first
process, after up to a megabyte of each text.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from prelude.tokenizer import Tokenizer

from bench.blocks import blocks, statement
from bench.command_line import options_parser
from bench.tokenizer.sides import FAST, HF, LOADERS, OURS, VARIANTS, Side, Sides
from bench.tokenizer.table import Table

AGAIN = 3
LEFT_OUT = (*VARIANTS, FAST, "tiktoken")  # other ways of a loaded side, and tiktoken, which reads no tokenizer.json


def resident() -> float:
    """Megabytes of this process in memory."""
    with open("/proc/self/statm", encoding="utf-8") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


def one(name: str, path: Path, texts: list[str]) -> dict[str, float]:
    load: Callable[[Path], Side] = LOADERS[name]
    gc.collect()
    before = resident()
    began = time.process_time()
    side = load(path)
    first_load = time.process_time() - began
    loaded = resident()
    encode = side.encoder()
    began = time.process_time()
    encode("Hello")
    first_call = time.process_time() - began
    for text in texts:
        for at in range(0, len(text), 32_768):
            encode(text[at : at + 32_768])
    gc.collect()
    after = resident()
    again = []
    for _ in range(AGAIN):
        began = time.process_time()
        load(path)
        again.append(time.process_time() - began)
    return {
        "first load": first_load,
        "load again": statistics.median(again),
        "first call": first_call,
        "memory": loaded - before,
        "caches": after - loaded,
    }


def in_process(name: str, path: Path, texts: list[Path], **environment: str) -> dict[str, float]:
    command = [sys.executable, "-m", "bench", "tokenizer_load", name, str(path), *map(str, texts)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    if done.returncode:
        raise RuntimeError(f"{name} could not be loaded alone: {done.stderr[-300:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measured(table: Table, sides: Sides, texts: list[str], quick: bool) -> None:
    path, count = sides.path, 1 if quick else 3
    with tempfile.TemporaryDirectory() as folder:
        Tokenizer.from_file(path, cache=folder)
        names = {"read": Tokenizer.from_file, "path": path}
        runs = {
            HF: statement("load(path)", {"load": LOADERS[HF], "path": path}),
            "json": statement("read(path, cache=False)", names),
        }
        times = blocks(runs, 5 if quick else 15, 0.002)
        note = f"{times.median('json') * 1e3:.1f} ms, HF {times.median(HF) * 1e3:.1f}"
        table.row("the tokenizer.json", "load, of HF's time", times.ratios("json", HF), most=0.45, note=note)
        files = []
        for at, text in enumerate(texts):
            files.append(Path(folder) / f"text{at}")
            files[-1].write_text(text[:1_000_000], encoding="utf-8")
        found: dict[tuple[str, bool], list[dict[str, float]]] = {
            (name, kept): []
            for name in sides.loaded
            if name not in LEFT_OUT
            for kept in ((False, True) if name == OURS else (False,))
        }
        for at in range(count):
            for (name, kept), values in found.items():
                where = {"PRELUDE_TOKENIZER_CACHE": folder if kept else "off"}
                values.append(in_process(name, path, [] if at else files, **where))
        for (name, kept), values in found.items():
            rows(table, name, kept, values, found[HF, False])


def rows(table: Table, name: str, kept: bool, found: list[dict[str, float]], hf: list[dict[str, float]]) -> None:
    """Of one side; the aims are for ours."""
    load, aimed = f"{name}{', kept tables' if kept else ''}, its own process", name == OURS

    def row(key: str, measure: str, scale: float, unit: str, most: float) -> None:
        table.row(load, measure, [f[key] * scale for f in found], unit, most=most if aimed else None)

    table.row(load, "first load", [f["first load"] * 1e3 for f in found], "ms", most=10 if kept else None)
    table.row(load, "load again", [f["load again"] * 1e3 for f in found], "ms", most=10 if kept else None)
    if aimed:
        for key in ("first load", "load again"):
            table.row(load, f"{key}, of HF's time", [f[key] / h[key] for f, h in zip(found, hf)])
    row("first call", "first call", 1e6, "us", 100)
    row("memory", "memory of a load", 1, "MB", 40)
    table.row(load, "memory more after the texts", [found[0]["caches"]], "MB", most=32 if aimed else None)


if __name__ == "__main__":
    parser = options_parser(__doc__)
    parser.add_argument("side", choices=LOADERS)
    parser.add_argument("tokenizer", type=Path, help="a tokenizer.json")
    parser.add_argument("texts", type=Path, nargs="*", help="files that are encoded after the first call")
    chosen = parser.parse_args()
    texts = [path.read_text(encoding="utf-8") for path in chosen.texts]
    print(json.dumps(one(chosen.side, chosen.tokenizer, texts)))
