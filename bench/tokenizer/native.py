"""fasttoken without Python in between, and the time that Python adds.

    python -m bench tokenizer_native --tokenizer tokenizer.json [--texts FOLDER] [--threads 2]
                                     [--quick] [--build FOLDER] [--json FILE] [--plot FILE]

The rows and their lengths are those of ``bench tokenizer``. ``bench/tokenizer/driver.cpp`` is built for the run
(pybind11 and a C++ compiler are needed) and times the core from C++: on one thread in CPU time, and on several
in wall time of all of them together. "python" is the same text through ``encode_array`` in the same process;
"boundary" is the difference, as a line of its own. Nothing is timed unless the core's ids equal HF's on every
input.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tokenizers
from prelude.tokenizer import Tokenizer

from bench.command_line import options_parser
from bench.common import Report, add_outputs, machine_facts, three
from bench.tokenizer.texts import inputs, texts_of

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 15


def build(folder: Path, flags: Sequence[str]) -> Any:
    """Compile the driver into ``folder``, unless one that is newer than its sources is there, and import it."""
    from pybind11.setup_helpers import ParallelCompile, Pybind11Extension
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    core = [line.strip() for line in (ROOT / "native_sources.txt").read_text(encoding="utf-8").splitlines()]
    sources = [ROOT / "bench/tokenizer/driver.cpp", *(ROOT / line for line in core if line.startswith("tokenizer/"))]
    extension = Pybind11Extension(
        "tokenizer_driver",
        [os.path.relpath(source) for source in sources],
        include_dirs=[str(ROOT / "tokenizer/core")],
        cxx_std=20,
        extra_compile_args=list(flags),
    )
    command = build_ext(Distribution({"name": "tokenizer_driver", "ext_modules": [extension]}))
    command.build_lib, command.build_temp = str(folder), str(folder / "objects")
    command.ensure_finalized()
    with ParallelCompile():
        command.run()
    (built,) = folder.glob("tokenizer_driver*")
    spec = importlib.util.spec_from_file_location("tokenizer_driver", built)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def in_python(run: Callable[[], Any], loops: int, rounds: int) -> list[float]:
    """CPU seconds of a call, a value a round."""
    taken = []
    for _ in range(rounds):
        began = time.thread_time()
        for _ in range(loops):
            run()
        taken.append((time.thread_time() - began) / loops)
    return taken


def time_all(driver: Any, ours: Tokenizer, texts: dict[str, str], threads: int, quick: bool) -> Report:
    report = Report(
        "fasttoken from C++, and through Python",
        facts=machine_facts([("threads", threads), ("vocabulary", ours.get_vocab_size())]),
    )
    for name, text in texts.items():
        load = f"{name} ({len(text)} ch, {len(ours.encode_array(text, False))} tok)"
        once = max(driver.alone(text, 1, 3)[-1], 1e-8)
        loops = max(1, int((5e-4 if quick else 5e-3) / once))
        native, python = [], []
        for _ in range(ROUNDS):  # in turn, so that both meet the machine alike
            native += driver.alone(text, loops, 1)
            python += in_python(partial(ours.encode_array, text, False), loops, 1)
        note = f"{len(text) / statistics.median(native) / 1e6:.0f} characters a us"
        report.add(load, "one thread", three(native, 1e6), "us", note=note)
        report.add(load, "python", three(python, 1e6), "us")
        report.add(load, "boundary", three([p - n for n, p in zip(native, python)], 1e6), "us")
        several = driver.together(text, loops, ROUNDS, threads)
        note = f"{len(text) / statistics.median(several) / 1e6:.0f} characters a us, wall time"
        report.add(load, f"{threads} threads", three(several, 1e6), "us", note=note)
    return report


def main() -> int:
    parser = options_parser(__doc__)
    parser.add_argument("--tokenizer", type=Path, required=True, help="a tokenizer.json")
    parser.add_argument("--texts", type=Path, help="a folder of texts for the natural inputs")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--quick", action="store_true", help="short inputs, few loops")
    add_outputs(parser)
    parser.add_argument("--build", type=Path, help="build here, and use the driver that an earlier run left here")
    parser.add_argument("--flags", nargs="*", default=["-O3"], help="for the compiler")
    parser.add_argument("--plant-fault", action="store_true", help="corrupt our ids; the gate must stop")
    options = parser.parse_args()
    texts = inputs(options.quick, texts_of(options.texts))
    with tempfile.TemporaryDirectory() as folder:
        driver = build(options.build or Path(folder), options.flags).Driver(options.tokenizer.read_bytes())
    theirs = tokenizers.Tokenizer.from_file(str(options.tokenizer))
    theirs.no_truncation()
    theirs.no_padding()
    for name, text in texts.items():
        ids = driver.encode(text)
        if options.plant_fault:
            ids = ids[:-1]
        if ids != theirs.encode(text, add_special_tokens=False).ids:
            print(f"not equal to HF, so nothing is timed: {name}", file=sys.stderr)
            return 1
    print(f"equal to HF: ids of {len(texts)} inputs")
    ours = Tokenizer.from_file(options.tokenizer)
    report = time_all(driver, ours, texts, max(1, options.threads), options.quick)
    report.finish(options, "us")
    return 0


if __name__ == "__main__":
    sys.exit(main())
