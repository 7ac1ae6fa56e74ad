"""Models of real shapes on a CPU, against transformers, sentence-transformers, ONNX Runtime and llama.cpp.

    python -m bench cpu_models [--rows FILE] [--only MODEL ...] [--loads TEXT ...] [--minilm DIR] [--qwen3 DIR]

MiniLM-L6 and Qwen3-0.6B take weights of a directory, else random ones; the others have their shapes and random
weights, Qwen3's are of bfloat16. Answers come first: sides of float32 must agree, the others get a row with their
difference. Times are processor seconds of this process, all its threads, in alternating rounds, or with
``--clock wall`` those of the clock. A decoder reads a prompt and says one token. Peers that are not installed are
left out, and the facts name them.

``--rows FILE`` makes a run that can be cut at any time: each load's rows are appended there when they are measured,
one JSON object a line, and a load that is there is not measured again. ``--list`` says what is left. ``--seconds``
ends the run before the first load that would begin after so many.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.blocks import Run, blocks
from bench.common import Report, Row, add_outputs, machine_facts, three
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
QUESTION, QUESTIONS = 16, 16
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
DECODER = "Qwen3-0.6B"
ENCODERS = {
    "MiniLM-L6": 256,
    "ModernBERT-base": 8192,
    "mmBERT-base": 8192,
    "ModernBERT-large": 8192,
    "XLM-R-base": 512,
}
"""The longest text of each, in tokens."""
MODELS = (*ENCODERS, DECODER)
OURS = {
    "prelude auto": ("auto", None),
    "prelude float32": ("float32", None),
    "prelude bfloat16": ("bfloat16", None),
    "prelude int8": ("auto", "int8"),
}
START = """
import re, sys, time
side, path, verb, began = sys.argv[1:]
ids = list(range(1005, 1021))
if side == "transformers":
    import torch, transformers
    torch.set_num_threads(1)
    kind = transformers.AutoModelForCausalLM if verb == "complete" else transformers.AutoModel
    model = kind.from_pretrained(path, dtype=torch.bfloat16 if verb == "complete" else torch.float32)
    with torch.inference_mode():
        model(torch.tensor([ids]), **({"logits_to_keep": 1} if verb == "complete" else {}))
else:
    from prelude import Embed, Engine, EngineConfig, SamplingParams
    config = EngineConfig(quantization="int8" if side == "int8" else None, kv_bytes=64 << 20)
    engine = Engine.from_pretrained(path, dtype="auto" if side == "int8" else side, config=config)
    if verb == "complete":
        engine.complete(ids, params=SamplingParams(max_tokens=1, temperature=0.0))
    else:
        engine.run(Embed(ids, pooling="mean"))
seconds = time.time() - float(began)
status = open("/proc/self/status").read()
kept, peak = (int(re.search(key + r":\\s+(\\d+)", status)[1]) / 1e6 for key in ("VmRSS", "VmHWM"))
print(seconds, time.process_time(), kept, peak)
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


CLOCKS = {"processor": time.process_time, "wall": time.perf_counter}


@dataclass
class Session:
    """The rows of this run and of those before it that wrote to the same file."""

    options: argparse.Namespace
    report: Report
    began: float = field(default_factory=time.monotonic)
    made: dict[str, list[Row]] = field(default_factory=dict)
    """By load, in the order of measuring."""

    def read(self) -> None:
        """The rows of the file; of a load that was measured twice the later ones. A last line that was cut is left
        out, with its load."""
        path: Path | None = self.options.rows
        if path is None or not path.exists():
            return
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError, TypeError, KeyError):
                given = json.loads(line)
                self.made[given["load"]] = [Row(**row) for row in given["rows"]]

    def keep(self, load: str, rows: list[Row]) -> None:
        self.made[load] = rows
        path: Path | None = self.options.rows
        if path is not None:
            line = {"load": load, "facts": self.report.facts | {"load average": load_average()}}
            with path.open("a") as file:
                file.write(json.dumps(line | {"rows": [asdict(row) for row in rows]}) + "\n")

    def wanted(self, load: str) -> bool:
        """Whether a load is chosen and not there yet."""
        chosen = self.options.loads
        return load not in self.made and (not chosen or any(text in load for text in chosen))

    def late(self) -> bool:
        seconds = self.options.seconds
        return seconds is not None and time.monotonic() - self.began > seconds

    @contextlib.contextmanager
    def rows_of(self, load: str) -> Iterator[Report]:
        """A report for the rows of one load, which are kept when all of them are there."""
        first = len(self.report.rows)
        yield self.report
        self.keep(load, self.report.rows[first:])

    def finish(self) -> None:
        self.report.rows = [row for rows in self.made.values() for row in rows]
        left = [load for model in self.options.only for load in loads_of(model, self.options) if self.wanted(load)]
        print(f"left: {len(left)}" + "".join(f"\n  {load}" for load in left), file=sys.stderr)
        if self.report.rows:
            self.report.finish(self.options, unit="ms")


def load_average() -> str:
    return f"{os.getloadavg()[0]:.1f}"  # an idle machine is near 0


def measure(session: Session, load: str, runs: dict[str, Callable[[], Any]]) -> None:
    clock = CLOCKS[session.options.clock]

    def timed(run: Callable[[], Any]) -> Run:
        def times(count: int) -> float:
            began = clock()
            for _ in range(count):
                run()
            return clock() - began

        return times

    times = blocks({name: timed(run) for name, run in runs.items()}, session.options.rounds, seconds=0.05)
    for name in runs:
        session.report.add(load, name, three(times.of[name], 1e3), "ms")


def ratio(session: Session, load: str, side: str, many: Callable[[], Any], one: Callable[[], Any]) -> None:
    """``many`` / ``one`` of a side, in turns."""
    clock, taken = CLOCKS[session.options.clock], []
    for turn in range(session.options.rounds + 1):
        seconds = []
        for run in (many, one):
            began = clock()
            run()
            seconds.append(clock() - began)
        if turn:  # the first one is not counted
            taken.append(seconds[0] / seconds[1])
    session.report.add(load, f"{side}: {QUESTIONS} questions / one", three(taken), "x", "<= 1.3")


def texts_of(model: str, options: argparse.Namespace) -> dict[str, list[int]]:
    """The lengths of each load's texts."""
    if model == DECODER:
        found = {f"{model}, one prompt of {count} tokens": [count] for count in options.tokens}
        return found | {f"{model}, 16 prompts of mixed length": lengths(16, 40, 150)}
    longest = ENCODERS[model]
    found = {f"{model}, one text of {count} tokens": [count] for count in options.tokens if count <= longest}
    return found | {f"{model}, 16 texts of mixed length": lengths(16, 80, min(300, longest))}


def questions_of(model: str) -> str:
    state = STATE if model == DECODER else min(STATE, ENCODERS[model] - QUESTION)
    return f"{model}, {QUESTIONS} questions on a state of {state} tokens"


def start_of(model: str) -> str:
    return f"{model}, from the start to one answer"


def loads_of(model: str, options: argparse.Namespace) -> list[str]:
    first = [start_of(model)] if model in (DECODER, "MiniLM-L6") else []
    return [*first, *texts_of(model, options), questions_of(model)]


def asked(model: str) -> list[list[int]]:
    """Questions behind one state."""
    room = STATE if model == DECODER else min(STATE, ENCODERS[model] - QUESTION)
    state, *questions = random_ids([room, *[QUESTION] * QUESTIONS])
    return [state + question for question in questions]


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


def encoder_sides(session: Session, name: str, path: Path) -> tuple[dict[str, Side], list[Engine]]:
    threads = session.options.threads
    engines = {
        side: Engine.from_pretrained(path, config=EngineConfig(default_cache="never", quantization=quantization))
        for side, quantization in (("prelude float32", None), ("prelude int8", "int8"))
    }
    found = {side: our_side(engine) for side, engine in engines.items()}
    peers: dict[str, tuple[tuple[str, ...], Callable[[], Side]]] = {
        "transformers": (("transformers",), lambda: transformers_side(path)),
        "ONNX Runtime": (("onnxruntime", "onnx"), lambda: onnx_side(path, threads)),
        "ONNX Runtime int8": (("onnxruntime", "onnx"), lambda: onnx_int8_side(path, threads)),
    }
    if (path / "modules.json").exists():
        peers["sentence-transformers"] = (("sentence_transformers",), lambda: sentence_transformers_side(path))
    for peer, (needed, make) in peers.items():
        if not session.options.peers:
            continue
        try:
            if not all(map(installed, needed)):
                raise ImportError("not installed")
            found[peer] = make()
        except Exception as failure:  # a peer that is not there, or a network that it does not take
            session.report.facts[f"left out of {name}"] = f"{peer}: {type(failure).__name__}"
    return found, list(engines.values())


def encoder(session: Session, name: str, path: Path) -> None:
    if session.wanted(start_of(name)) and start_of(name) in loads_of(name, session.options):
        with session.rows_of(start_of(name)):
            start(session.report, name, path, ("auto", "int8", "transformers"))
    options, report = session.options, session.report
    if not any(map(session.wanted, loads_of(name, options))) or session.late():
        return
    sides, engines = encoder_sides(session, name, path)
    for load, counts in texts_of(name, options).items():
        if not session.wanted(load) or session.late():
            continue
        with session.rows_of(load):
            texts = random_ids(counts)
            wanted = sides["prelude float32"](texts)
            for side, run in sides.items():
                found = run(texts)
                if "int8" in side:
                    report.add(load, f"{side}: cosine", three((found * wanted).sum(axis=1).tolist()), "of 1")
                elif not (error := float(np.abs(found - wanted).max())) <= EXACT:
                    raise SystemExit(f"{load}: vectors of {side} differ by {error}; no time is reported")
            measure(session, load, {side: lambda run=run, texts=texts: run(texts) for side, run in sides.items()})
    load, prompts = questions_of(name), asked(name)
    if session.wanted(load) and not session.late():
        with session.rows_of(load):
            for side, run in sides.items():
                if side.startswith("prelude"):
                    ratio(session, load, side, lambda run=run: run(prompts), lambda run=run: run(prompts[:1]))
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


def start(report: Report, model: str, path: Path, sides: tuple[str, ...]) -> None:
    """A process of its own each: seconds until the first answer, resident memory then and at its peak. The pages of
    the files are in the system's cache: each side runs once before."""
    for side in sides:
        verb = "complete" if model == DECODER else "embed"
        command = [sys.executable, "-c", START, side, str(path), verb]
        for _ in range(2):
            ran = subprocess.run([*command, str(time.time())], capture_output=True, text=True, check=True)
        found = map(float, ran.stdout.split()[-4:])
        name = side if side == "transformers" else f"prelude {side}"
        for what, value, unit in zip(
            ("seconds", "processor time", "resident memory", "its peak"), found, ("s", "s", "GB", "GB")
        ):
            report.add(start_of(model), f"{name}: {what}", (value, value, value), unit)


def decoder_sides(session: Session, path: Path) -> tuple[dict[str, llama_cpp.Said], list[Engine]]:
    engines = {}
    for side, (dtype, quantization) in OURS.items():
        config = EngineConfig(default_cache="never", kv_bytes=512 << 20, quantization=quantization)
        engines[side] = Engine.from_pretrained(path, dtype=dtype, config=config)
    sides = {side: our_decoder(engine) for side, engine in engines.items()}
    if session.options.peers:
        sides["transformers bfloat16"] = transformers_decoder(path)
        if installed("xllamacpp") and installed("gguf"):
            sides |= llama_decoders(path, session.options.threads)
        else:
            session.report.facts[f"left out of {DECODER}"] = "llama.cpp: xllamacpp or gguf is not installed"
    return sides, list(engines.values())


def decoder(session: Session, path: Path) -> None:
    options, report = session.options, session.report
    if session.wanted(start_of(DECODER)):
        with session.rows_of(start_of(DECODER)):
            start(report, DECODER, path, ("auto", "float32", "bfloat16", "int8", "transformers"))
    if not any(map(session.wanted, loads_of(DECODER, options))) or session.late():
        return
    sides, engines = decoder_sides(session, path)
    for load, counts in texts_of(DECODER, options).items():
        if not session.wanted(load) or session.late():
            continue
        with session.rows_of(load):
            prompts = random_ids(counts)
            wanted = np.array(sides["prelude float32"](prompts))
            for side, say in sides.items():
                error = float(np.abs(np.array(say(prompts)) - wanted).max())
                if side == "prelude auto" and not error <= EXACT:
                    raise SystemExit(f"{load}: logprobs of {side} differ by {error}; no time is reported")
                report.add(load, f"{side}: difference of logprobs", (error, error, error), "nats")
            measure(session, load, {side: lambda say=say, ids=prompts: say(ids) for side, say in sides.items()})
    load, many = questions_of(DECODER), asked(DECODER)
    if session.wanted(load) and not session.late():
        with session.rows_of(load):
            for side, say in sides.items():
                if side.startswith("prelude"):
                    ratio(session, load, side, lambda say=say: say(many), lambda say=say: say(many[:1]))
    for engine in engines:
        engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minilm", type=Path, metavar="DIR", help="a directory of all-MiniLM-L6-v2")
    parser.add_argument("--qwen3", type=Path, metavar="DIR", help="a directory of Qwen3-0.6B or of its shape")
    parser.add_argument("--only", choices=MODELS, nargs="+", default=list(MODELS), help="some of the models")
    parser.add_argument("--loads", nargs="+", metavar="TEXT", help="loads whose name has one of these texts in it")
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 81, 256, 512])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=list(CLOCKS), default="processor")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="rows of this run and of those before it")
    parser.add_argument("--seconds", type=float, help="begin no load after so many")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="our sides alone")
    parser.add_argument("--list", action="store_true", help="say what is left, and measure nothing")
    add_outputs(parser)
    options = parser.parse_args()
    import torch

    torch.set_num_threads(options.threads)
    versions = [("torch", torch.__version__), ("threads", options.threads)]
    facts = machine_facts([*versions, ("load average", load_average())])
    report = Report(f"Models of real shapes on a CPU, {options.clock} time", facts=facts)
    session = Session(options, report)
    session.read()
    for name in () if options.list else options.only:
        if session.late() or not any(map(session.wanted, loads_of(name, options))):
            continue
        with tempfile.TemporaryDirectory() as folder:
            if name == DECODER:
                decoder(session, options.qwen3 or random_decoder(Path(folder)))
                continue
            if name == "MiniLM-L6" and options.minilm is not None:
                path = Path(shutil.copytree(options.minilm, Path(folder) / name))
            else:
                path = random_model(Path(folder), name)
            encoder(session, name, path)
    session.finish()


if __name__ == "__main__":
    main()
