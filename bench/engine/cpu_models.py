"""Models of real shapes on a CPU, against transformers, sentence-transformers, ONNX Runtime and llama.cpp.

    python -m bench cpu_models [--minilm DIR] [--qwen3 DIR] [--only MODEL] [--tokens 16 81 256 512] [--rounds 3]

MiniLM-L6 and Qwen3-0.6B take weights of a directory, else random ones; ModernBERT-base has its shape and random
weights, Qwen3's are of bfloat16. Answers come first: sides of float32 must agree, the others get a
row with their difference. Times are processor seconds of this process, all its threads, in alternating rounds. A
decoder reads a prompt and says one token. Peers that are not installed are left out, and the facts name them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.blocks import Run, blocks
from bench.common import Report, add_outputs, machine_facts, three
from bench.engine import llama_cpp
from bench.engine.encoders import (
    Side,
    installed,
    lengths,
    onnx_side,
    our_side,
    padded,
    pooled,
    random_ids,
    random_model,
    transformers_side,
)
from prelude import Engine, EngineConfig, Generate, SamplingParams, default_model

EXACT = 1e-3
"""Of a component of a vector of length 1, or of a logprob: sides that compute in float32 may differ by it."""
ONE_TOKEN = SamplingParams(max_tokens=1, temperature=0.0, logprobs=1)
STATE = 512
QUESTION = 16
QWEN3 = {
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
}
ENCODERS = {"MiniLM-L6": 256, "ModernBERT-base": 8192}
"""The longest text of each, in tokens."""
OURS = {
    "prelude auto": ("auto", None),
    "prelude float32": ("float32", None),
    "prelude bfloat16": ("bfloat16", None),
    "prelude int8": ("auto", "int8"),
}
START = """
import re, sys, time
if sys.argv[1] == "transformers":
    import torch, transformers
    torch.set_num_threads(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[2], dtype=torch.bfloat16)
    with torch.inference_mode():
        model(torch.arange(5, 21)[None], logits_to_keep=1)
else:
    from prelude import Engine, EngineConfig, SamplingParams
    config = EngineConfig(quantization="int8" if sys.argv[1] == "int8" else None, kv_bytes=64 << 20)
    dtype = "auto" if sys.argv[1] == "int8" else sys.argv[1]
    engine = Engine.from_pretrained(sys.argv[2], dtype=dtype, config=config)
    engine.complete(list(range(5, 21)), params=SamplingParams(max_tokens=1, temperature=0.0))
status = open("/proc/self/status").read()
kept, peak = (int(re.search(key + r":\\s+(\\d+)", status)[1]) / 1e6 for key in ("VmRSS", "VmHWM"))
print(time.process_time(), kept, peak)
"""


def random_decoder(folder: Path) -> Path:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        Qwen3ForCausalLM(Qwen3Config(**QWEN3, dtype="bfloat16")).save_pretrained(folder / "Qwen3-0.6B")
    finally:
        torch.set_default_dtype(before)
    shutil.copy(default_model.path() / "tokenizer.json", folder / "Qwen3-0.6B" / "tokenizer.json")
    return folder / "Qwen3-0.6B"


def processor(run: Callable[[], Any]) -> Run:
    def timed(times: int) -> float:
        began = time.process_time()
        for _ in range(times):
            run()
        return time.process_time() - began

    return timed


def measure(report: Report, load: str, runs: dict[str, Callable[[], Any]], rounds: int) -> None:
    times = blocks({name: processor(run) for name, run in runs.items()}, rounds, seconds=0.05)
    for name in runs:
        report.add(load, name, three(times.of[name], 1e3), "ms")


# ------------------------------------------------------------------ encoders


def sentence_transformers_side(path: Path) -> Side:
    import torch
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(path), device="cpu")

    def side(texts: list[list[int]]) -> np.ndarray:
        ids, mask = padded(texts)
        with torch.inference_mode():
            made = model({"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)})
        vectors: np.ndarray = torch.nn.functional.normalize(made["sentence_embedding"]).numpy()
        return vectors

    return side


def onnx_int8_side(path: Path, threads: int) -> Side:
    """Dynamic int8 of the network that ``onnx_side`` has exported."""
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic

    file = path / "int8.onnx"
    quantize_dynamic(str(path / "model.onnx"), str(file), weight_type=QuantType.QInt8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])

    def side(texts: list[list[int]]) -> np.ndarray:
        ids, mask = padded(texts)
        return pooled(session.run(None, {"input_ids": ids, "attention_mask": mask})[0], mask)

    return side


def encoder_sides(report: Report, name: str, path: Path, threads: int) -> tuple[dict[str, Side], list[Engine]]:
    engines = {
        side: Engine.from_pretrained(path, config=EngineConfig(default_cache="never", quantization=quantization))
        for side, quantization in (("prelude float32", None), ("prelude int8", "int8"))
    }
    found = {side: our_side(engine) for side, engine in engines.items()}
    found["transformers"] = transformers_side(path)
    peers: dict[str, tuple[tuple[str, ...], Callable[[], Side]]] = {
        "ONNX Runtime": (("onnxruntime", "onnx"), lambda: onnx_side(path, threads)),
        "ONNX Runtime int8": (("onnxruntime", "onnx"), lambda: onnx_int8_side(path, threads)),
    }
    if (path / "modules.json").exists():
        peers["sentence-transformers"] = (("sentence_transformers",), lambda: sentence_transformers_side(path))
    for peer, (needed, make) in peers.items():
        try:
            if not all(map(installed, needed)):
                raise ImportError("not installed")
            found[peer] = make()
        except Exception as failure:  # a peer that is not there, or a network that it does not take
            report.facts[f"left out of {name}"] = f"{peer}: {type(failure).__name__}"
    return found, list(engines.values())


def encoder(report: Report, name: str, path: Path, options: argparse.Namespace) -> None:
    sides, engines = encoder_sides(report, name, path, options.threads)
    longest = ENCODERS[name]
    loads = {f"{name}, one text of {count} tokens": [count] for count in options.tokens if count <= longest}
    loads[f"{name}, 16 texts of mixed length"] = lengths(16, 80, min(300, longest))
    for load, counts in loads.items():
        texts = random_ids(counts)
        wanted = sides["prelude float32"](texts)
        for side, run in sides.items():
            found = run(texts)
            if "int8" in side:
                report.add(load, f"{side}: cosine", three((found * wanted).sum(axis=1).tolist()), "of 1")
            elif not (error := float(np.abs(found - wanted).max())) <= EXACT:
                raise SystemExit(f"{load}: vectors of {side} differ by {error}; no time is reported")
        runs = {side: lambda run=run, texts=texts: run(texts) for side, run in sides.items()}
        measure(report, load, runs, options.rounds)
    for engine in engines:
        engine.close()


# ------------------------------------------------------------------ decoders


def llama_decoders(path: Path, threads: int) -> dict[str, llama_cpp.Said]:
    """A side for each type of GGUF file. Lone prompts and several at once have servers of their own."""

    def side(file: Path) -> llama_cpp.Said:
        alone, many = llama_cpp.LlamaCpp(file, threads), llama_cpp.LlamaCpp(file, threads, sequences=16)
        return lambda prompts: (alone if len(prompts) == 1 else many).say(prompts)

    found = {}
    for kind in llama_cpp.TYPES:
        file = llama_cpp.write_gguf(path, path / f"{kind}.gguf", kind)
        found[f"llama.cpp {kind}"] = side(file)
    return found


def our_decoder(engine: Engine) -> llama_cpp.Said:
    def say(prompts: list[list[int]]) -> list[float]:
        found = engine.run_many([Generate(ids, ONE_TOKEN) for ids in prompts])
        return [one.logprobs[0].logprob for one in found]

    return say


def transformers_decoder(path: Path) -> llama_cpp.Said:
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).eval()

    def say(prompts: list[list[int]]) -> list[float]:
        ids, mask = map(torch.from_numpy, padded(prompts))
        with torch.inference_mode():
            states = model.model(input_ids=ids, attention_mask=mask).last_hidden_state
            logits = model.lm_head(states[torch.arange(len(ids)), mask.sum(dim=1) - 1]).float()
        best: list[float] = logits.log_softmax(dim=1).amax(dim=1).tolist()
        return best

    return say


def start(report: Report, path: Path) -> None:
    """A process of its own each: processor seconds until the first answer, resident memory then and at its peak."""
    for side in ("auto", "float32", "bfloat16", "int8", "transformers"):
        ran = subprocess.run(
            [sys.executable, "-c", START, side, str(path)], capture_output=True, text=True, check=True
        )
        seconds, kept, peak = map(float, ran.stdout.split()[-3:])
        name = side if side == "transformers" else f"prelude {side}"
        for what, value, unit in (
            ("processor time", seconds, "s"),
            ("resident memory", kept, "GB"),
            ("its peak", peak, "GB"),
        ):
            report.add("Qwen3-0.6B, from the start to one answer", f"{name}: {what}", (value, value, value), unit)


def decoder(report: Report, path: Path, options: argparse.Namespace) -> None:
    start(report, path)
    engines = {}
    for side, (dtype, quantization) in OURS.items():
        config = EngineConfig(default_cache="never", kv_bytes=512 << 20, quantization=quantization)
        engines[side] = Engine.from_pretrained(path, dtype=dtype, config=config)
    sides = {side: our_decoder(engine) for side, engine in engines.items()}
    sides["transformers bfloat16"] = transformers_decoder(path)
    if installed("xllamacpp") and installed("gguf"):
        sides |= llama_decoders(path, options.threads)
    else:
        report.facts["left out of Qwen3-0.6B"] = "llama.cpp: xllamacpp or gguf is not installed"
    loads: dict[str, list[int]] = {f"Qwen3-0.6B, one prompt of {count} tokens": [count] for count in options.tokens}
    loads["Qwen3-0.6B, 16 prompts of mixed length"] = lengths(16, 40, 150)
    for load, counts in loads.items():
        prompts = random_ids(counts)
        wanted = np.array(sides["prelude float32"](prompts))
        for side, say in sides.items():
            error = float(np.abs(np.array(say(prompts)) - wanted).max())
            if side == "prelude auto" and not error <= EXACT:
                raise SystemExit(f"{load}: logprobs of {side} differ by {error}; no time is reported")
            report.add(load, f"{side}: difference of logprobs", (error, error, error), "nats")
        runs = {side: lambda say=say, prompts=prompts: say(prompts) for side, say in sides.items()}
        measure(report, load, runs, options.rounds)
    state, *questions = random_ids([STATE, *[QUESTION] * 16])
    asked = [state + question for question in questions]
    for side, say in sides.items():
        if side.startswith("prelude"):
            runs = {"16 questions": lambda say=say: say(asked), "one question": lambda say=say: say(asked[:1])}
            times = blocks({name: processor(run) for name, run in runs.items()}, options.rounds, seconds=0.05)
            ratios = three(times.ratios("16 questions", "one question"))
            report.add(f"Qwen3-0.6B, a state of {STATE} tokens", f"{side}: 16 questions / one", ratios, "x", "<= 1.3")
    for engine in engines.values():
        engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minilm", type=Path, metavar="DIR", help="a directory of all-MiniLM-L6-v2")
    parser.add_argument("--qwen3", type=Path, metavar="DIR", help="a directory of Qwen3-0.6B or of its shape")
    parser.add_argument("--only", choices=[*ENCODERS, "Qwen3-0.6B"], help="one of the models")
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 81, 256, 512])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    add_outputs(parser)
    options = parser.parse_args()
    import torch

    torch.set_num_threads(options.threads)
    versions = [("torch", torch.__version__), ("threads", options.threads)]
    facts = machine_facts([*versions, ("load average", f"{os.getloadavg()[0]:.1f}")])  # an idle machine is near 0
    report = Report("Models of real shapes on a CPU, processor time", facts=facts)
    for name in (*ENCODERS, "Qwen3-0.6B") if options.only is None else (options.only,):
        with tempfile.TemporaryDirectory() as folder:
            if name == "Qwen3-0.6B":
                decoder(report, options.qwen3 or random_decoder(Path(folder)), options)
                continue
            if name == "MiniLM-L6" and options.minilm is not None:
                path = Path(shutil.copytree(options.minilm, Path(folder) / name))
            else:
                path = random_model(Path(folder), name)
            encoder(report, name, path, options)
    report.finish(options, unit="ms")


if __name__ == "__main__":
    main()
