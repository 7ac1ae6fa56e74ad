"""From the start of a process to a model's first answer: seconds, processor time and resident memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from bench.common import Report, three

START = """
import re, sys, time
side, path, verb, began = sys.argv[1:]
ids = list(range(1005, 1021))
if side == "transformers":
    import torch, transformers
    kind = transformers.AutoModelForCausalLM if verb == "complete" else transformers.AutoModel
    model = kind.from_pretrained(path, dtype=torch.bfloat16 if verb == "complete" else torch.float32)
    with torch.inference_mode():
        model(torch.tensor([ids]), **({"logits_to_keep": 1} if verb == "complete" else {}))
elif side == "import":
    import torch
else:
    from prelude import Embed, Engine, EngineConfig, SamplingParams
    dtype, _, quantization = side.partition(" ")
    config = EngineConfig(quantization=quantization or None, kv_bytes=64 << 20)
    engine = Engine.from_pretrained(path, dtype=dtype, config=config)
    if verb == "complete":
        engine.complete(ids, params=SamplingParams(max_tokens=1, temperature=0.0))
    else:
        engine.run(Embed(ids, pooling="mean"))
seconds = time.time() - float(began)
status = open("/proc/self/status").read()
sizes = (int(re.search(key + r":\\s+(\\d+)", status)[1]) / 1e6 for key in ("VmRSS", "RssAnon", "VmHWM"))
print(seconds, time.process_time(), *sizes)
"""
MEASURES = (
    ("seconds", "s"),
    ("processor time", "s"),
    ("resident memory", "GB"),
    ("resident memory without pages of files", "GB"),
    ("peak of resident memory", "GB"),
)
SIDES = {
    "prelude auto": ("auto", ""),
    "prelude float32": ("float32", ""),
    "prelude bfloat16": ("bfloat16", ""),
    "prelude int8": ("auto int8", ""),
    "prelude auto, converted": ("auto", "auto"),
    "prelude bfloat16, converted": ("bfloat16", "bfloat16"),
    "prelude int8, converted": ("auto int8", "auto int8"),
    "transformers": ("transformers", ""),
    "import torch": ("import", ""),
}
"""What a process runs, and for which choice the directory was converted before."""


def converted(path: Path, made: Path, choice: str) -> Path:
    """A directory in ``made`` by ``prelude convert``, which is not timed."""
    dtype, _, quantization = choice.partition(" ")
    target = made / f"{path.name}-{choice.replace(' ', '-')}"
    if not target.exists():
        options = ["--dtype", dtype, *(["--quantization", quantization] if quantization else [])]
        subprocess.run([sys.executable, "-m", "prelude", "convert", str(path), str(target), *options], check=True)
    return target


def start(
    report: Report, load: str, path: Path, made: Path, verb: str, sides: list[str], rounds: int, threads: int
) -> None:
    """A process of its own each, in turns. The pages of the files are in the system's cache: each side runs once
    before."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    found: dict[str, list[list[float]]] = {side: [] for side in sides}
    for turn in range(rounds + 1):
        for side in sides:
            asked, choice = SIDES[side]
            where = converted(path, made, choice) if choice else path
            command = [sys.executable, "-c", START, asked, str(where), verb, str(time.time())]
            ran = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
            if turn:
                found[side].append([float(word) for word in ran.stdout.split()[-len(MEASURES) :]])
    for side, values in found.items():
        for (measure, unit), column in zip(MEASURES, zip(*values)):
            report.add(load, f"{side}: {measure}", three(column), unit)
