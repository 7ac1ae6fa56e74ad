"""Models of real shapes on a CPU, against transformers, sentence-transformers, ONNX Runtime and llama.cpp.

    python -m bench cpu_models [--only MODEL ...] [--loads TEXT ...] [--sides TEXT ...] [--minilm DIR] [--qwen3 DIR]

MiniLM-L6 and Qwen3-0.6B take weights of a directory, else random ones; the others have their shapes and random
weights. A decoder reads a prompt and says one token, or says a text of 64.

Answers come first: sides of float32 must agree, the others get a row with their difference, and a variant whose
vector is not near is left out. Each peer is run in every way of ``bench/engine/peers.py``; the three fastest meet
ours in alternating rounds, and the note of its row names the one with the least median. Times are those of the clock,
and each side rests 0.1 s before its turn, since ONNX Runtime's threads go on spinning after one. A floor is the time
that a side's products take at the rate of their instruction, or that reading the weights takes. Peers that are not
installed or do not take a network are left out, and the facts name them.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.command_line import options_parser
from bench.common import Report, add_outputs, machine_facts, paired, ratio, three, use_threads
from bench.engine.cpu_start import SIDES as STARTS
from bench.engine.cpu_start import start
from bench.engine.llama_cpp import system_info
from bench.engine.peers import (
    Said,
    Way,
    decoder_peers,
    encoder_peers,
    exported,
    fed,
    gguf_files,
    installed,
    onnx_way,
    our_decoder,
    our_encoder,
    our_engines,
)
from bench.engine.shapes import BYTES, DECODER, ENCODERS, floors, lengths, peaks, random_ids, random_model
from prelude import Embed, Engine

EXACT = 1e-3
"""Of a component of a vector of length 1, or of a logprob: sides that compute in float32 may differ by it."""
NEAR = 0.99
"""The least cosine of a vector to ours in float32 with which a peer's variant is timed."""
REST = 0.1
TEXT, TEXT_AFTER = 64, 16
"""Tokens of a text that a decoder says, and of the prompt before it."""
SAID = f"a text of {TEXT} tokens after {TEXT_AFTER}"
MANY = "16 texts of mixed length"
PROMPTS = "16 prompts of mixed length"
ENCODER_LOADS = {
    "one text of 16 tokens": [16],
    "one text of 81 tokens": [81],
    "one text of 256 tokens": [256],
    "4 texts of 256 tokens": [256] * 4,
    MANY: lengths(16, 80, 256),
}
DECODER_LOADS = {
    "one prompt of 16 tokens": [16],
    "one prompt of 128 tokens": [128],
    "one prompt of 512 tokens": [512],
    PROMPTS: lengths(16, 40, 150),
    SAID: [TEXT_AFTER],
}
EVERY = "a text of 81 tokens each 100 ms"
TEXTS = 60
START = "from the start to one answer"
PAIRS = {
    "ONNX Runtime": "prelude float32",
    "ONNX Runtime int8": "prelude int8",
    "transformers": "prelude float32",
    "transformers bfloat16": "prelude bfloat16",
    "llama.cpp BF16": "prelude bfloat16",
    "llama.cpp Q8_0": "prelude int8",
    "llama.cpp Q4_K_M": "prelude Q4_K_M",
    "prelude float32": "prelude int8",
    "prelude bfloat16": "prelude int8",
}
"""Whose time is divided by which of our sides'."""
AIMS = {
    ("one prompt of 128 tokens", "llama.cpp Q8_0"): 3.2,
    ("one prompt of 128 tokens", "llama.cpp BF16"): 1.45,
    ("one prompt of 128 tokens", "transformers bfloat16"): 1.5,
    (SAID, "llama.cpp Q8_0"): 1.15,
    (SAID, "llama.cpp Q4_K_M"): 1.1,
    (PROMPTS, "llama.cpp Q8_0"): 3.0,
    (MANY, "ONNX Runtime"): 1.25,
    (MANY, "ONNX Runtime int8"): 1.4,
    **{(f"one text of {count} tokens", "ONNX Runtime"): 1.15 for count in (16, 256)},
    **{(f"one text of {count} tokens", "ONNX Runtime int8"): 1.15 for count in (16, 81, 256)},
    ("one text of 81 tokens", "ONNX Runtime"): 1.05,
    ("one text of 256 tokens", "transformers"): 1.05,
    ("4 texts of 256 tokens", "transformers"): 1.0,
}
"""How many times our time a peer's is at least."""


def fastest(ways: dict[str, Callable[[], Any]]) -> list[str]:
    """Three, by the least of two runs in turns after one that is not counted; those that took twice the least of the
    first ones do not run again."""
    first = {name: min(one.seconds) for name, one in paired(ways, 1, rest=REST).items()}
    close = {name: run for name, run in ways.items() if first[name] < 2 * min(first.values())}
    again = {name: min(one.seconds) for name, one in paired(close, 1, warmup=0, rest=REST).items()}
    return sorted(again, key=lambda name: min(first[name], again[name]))[:3]


def near(wanted: np.ndarray, found: np.ndarray) -> bool:
    """Of vectors; logprobs are told as they are."""
    return wanted.ndim == 1 or float((found * wanted).sum(axis=1).min()) >= NEAR


class Saying:
    """A decoder's way. Called, it gives the logprob of the next token; ``timed`` says ``tokens``."""

    def __init__(self, say: Said, tokens: int) -> None:
        self.say, self.tokens = say, tokens

    def __call__(self, prompts: list[list[int]]) -> np.ndarray:
        return self.say(prompts, 1)

    def timed(self, prompts: list[list[int]]) -> None:
        said = self.say(prompts, self.tokens)
        if self.tokens > 1 and said.sum() != self.tokens * len(prompts):
            raise SystemExit(f"a side did not say {self.tokens} tokens")


def timed(way: Way, texts: list[list[int]]) -> Callable[[], Any]:
    return partial(way.timed if isinstance(way, Saying) else way, texts)


class Run:
    """The loads of one run."""

    def __init__(self, report: Report, options: argparse.Namespace) -> None:
        self.report, self.options = report, options
        self.rates = peaks(options.threads)
        if not self.rates:
            report.facts["left out"] = "floors: there is no C++ compiler"

    def wanted(self, model: str, loads: Iterable[str]) -> list[str]:
        """Those that are chosen."""
        chosen = self.options.loads
        return [load for load in loads if not chosen or any(text in f"{model}, {load}" for text in chosen)]

    def left_out(self, model: str, peer: str, reason: str) -> None:
        self.report.facts.setdefault(f"left out of {model}", {})[peer] = reason

    def chosen(self, side: str) -> bool:
        """The side that answers are compared with is always there."""
        sides = self.options.sides
        return not sides or side == "prelude float32" or any(text in side for text in sides)

    def variants(self, model: str, peers: Any) -> dict[str, dict[str, Any]]:
        """Those of each peer that is there."""
        found = {}
        for peer, make in peers:
            if not self.chosen(peer):
                continue
            try:
                found[peer] = make()
            except Exception as failure:  # a peer that is not there, or a network that it does not take
                self.left_out(model, peer, f"{type(failure).__name__}: {failure}"[:200])
        return found

    def compare(self, load: str, ours: str, wanted: np.ndarray, side: str, found: np.ndarray) -> None:
        """Vectors or logprobs of a side beside ours in float32."""
        exact = side in ("prelude auto", "transformers", "ONNX Runtime")
        error = float(np.abs(found - wanted).max())
        if exact and not error <= EXACT:
            raise SystemExit(f"{load}: {side} differs from {ours} by {error}; no time is reported")
        if exact or side == ours:
            return
        if wanted.ndim == 2:
            self.report.add(load, f"{side}: cosine", three((found * wanted).sum(axis=1).tolist()), "of 1")
        else:
            beside = "" if ours == "prelude float32" else f" to {ours}"
            self.report.add(load, f"{side}: difference of logprobs{beside}", (error, error, error), "nats")

    def measure(
        self,
        model: str,
        name: str,
        path: Path,
        counts: list[int],
        said: int,
        ours: dict[str, Way],
        peers: dict[str, dict[str, Way]],
    ) -> None:
        load, texts = f"{model}, {name}", random_ids(counts)
        runs: dict[str, Callable[[], Any]] = {}
        found = {side: way(texts) for side, way in ours.items()}
        wanted = found["prelude float32"]
        for side, way in ours.items():
            self.compare(load, "prelude float32", wanted, side, found[side])
            runs[side] = timed(way, texts)
        tried: dict[str, dict[str, str]] = {}
        answers: dict[str, np.ndarray] = {}
        together = (4,) if wanted.ndim == 1 else (2, 4, 8)
        for peer, variants in peers.items():
            ways = fed(variants, len(texts), together)
            given = {one: way(texts) for one, way in ways.items()}
            right = {one: timed(way, texts) for one, way in ways.items() if near(wanted, given[one])}
            if not right:
                self.left_out(load, peer, f"no variant has a cosine of {NEAR} to ours in float32")
                continue
            tried[peer] = {f"{peer}: {one}": one for one in fastest(right)}
            runs |= {key: right[one] for key, one in tried[peer].items()}
            answers |= {key: given[one] for key, one in tried[peer].items()}
        times = paired(runs, self.options.rounds, warmup=0, rest=REST)
        chosen: dict[str, str] = {}
        for peer, keys in tried.items():
            best = min(keys, key=lambda key: times[key].median)
            ours_like = PAIRS[peer] if wanted.ndim == 1 and PAIRS[peer] in found else "prelude float32"
            self.compare(load, ours_like, found[ours_like], peer, answers[best])
            chosen[peer], times[peer] = keys[best], times[best]
            times = {key: one for key, one in times.items() if key not in keys}
        for side, one in times.items():
            self.report.add(load, side, three(one.seconds, 1e3), "ms", note=chosen.get(side, ""))
        for base, side in PAIRS.items():
            if base in times and side in times:
                aim = AIMS.get((name, base))
                reach = "" if aim is None else f">= {aim:g}"
                note = chosen.get(base, "")
                self.report.add(load, f"{base} / {side}", ratio(times[base], times[side]), "x", reach, note)
        for kind in BYTES:
            side = f"prelude {kind}"
            if side not in times:
                continue
            for floor, least in floors(path, kind, counts, said, self.options.threads, self.rates).items():
                if least > min(times[side].seconds) * 1e3:
                    self.left_out(load, f"{side}: floor by {floor}", "a run was faster")
                else:
                    self.report.add(load, f"{side}: floor by {floor}", (least,) * 3, "ms")

    def every(self, model: str, path: Path, ours: Way) -> None:
        """The 90th percentile of lone texts that come each 100 ms, beside the exported graph and the defaults of ONNX
        Runtime."""
        load, texts = f"{model}, {EVERY}", random_ids([81])
        theirs = onnx_way(exported(path), self.options.threads)
        wanted, found = ours(texts), theirs(texts)
        self.compare(load, "prelude float32", wanted, "ONNX Runtime", found)
        runs = {"prelude float32": partial(ours, texts), "ONNX Runtime": partial(theirs, texts)}
        times = paired(runs, TEXTS, warmup=5, rest=REST)
        late = {side: float(np.percentile(one.seconds, 90)) for side, one in times.items()}
        for side, one in times.items():
            self.report.add(load, f"{side}: median", three(one.seconds, 1e3), "ms")
            self.report.add(load, f"{side}: 90th percentile", (late[side] * 1e3,) * 3, "ms")
        rate = late["ONNX Runtime"] / late["prelude float32"]
        self.report.add(load, "90th percentile, ONNX Runtime / prelude float32", (rate,) * 3, "x", ">= 1.5")

    def start(self, model: str, path: Path, made: Path, sides: list[str]) -> None:
        if self.wanted(model, [START]):
            sides = [side for side in sides if self.chosen(side)]
            verb = "complete" if model == DECODER else "embed"
            rounds, threads = self.options.rounds, self.options.threads
            start(self.report, f"{model}, {START}", path, made, verb, sides, rounds, threads)

    def encoder(self, model: str, path: Path, made: Path) -> None:
        if model == "MiniLM-L6":
            sides = ["import torch", "prelude auto", "prelude int8", "prelude auto, converted", "transformers"]
            self.start(model, path, made, sides)
        loads, from_text = self.wanted(model, ENCODER_LOADS), self.wanted(model, FROM_TEXT)
        every = self.wanted(model, [EVERY]) and installed("onnxruntime", "onnx")
        if not loads and not from_text and not every:
            return
        engines = our_engines(path, {}, False, self.chosen)
        ours = {side: our_encoder(engine) for side, engine in engines.items()}
        peers = self.variants(model, encoder_peers(path, self.options.threads)) if loads else {}
        for load in loads:
            self.measure(model, load, path, ENCODER_LOADS[load], 1, ours, peers)
        if every:
            self.every(model, path, ours["prelude float32"])
        if from_text and self.chosen("sentence-transformers") and (path / "modules.json").exists():
            self.texts(model, path, engines["prelude float32"], from_text)
        for engine in engines.values():
            engine.close()

    def texts(self, model: str, path: Path, engine: Engine, loads: list[str]) -> None:
        """sentence-transformers as it is shipped, tokenizers included."""
        from sentence_transformers import SentenceTransformer

        theirs = SentenceTransformer(str(path), device="cpu")
        for load in loads:
            texts = FROM_TEXT[load]
            runs: dict[str, Callable[[], Any]] = {
                "prelude": lambda texts=texts: np.stack(engine.run_many([Embed(text) for text in texts])),
                "sentence-transformers": lambda texts=texts: theirs.encode(texts, normalize_embeddings=True),
            }
            first, second = (run() for run in runs.values())
            if not (error := float(np.abs(first - second).max())) <= EXACT:
                raise SystemExit(f"{load}: sentence-transformers differs by {error}; no time is reported")
            times = paired(runs, self.options.rounds, rest=REST)
            for side, one in times.items():
                self.report.add(f"{model}, {load}", side, three(one.seconds, 1e3), "ms")
            found = ratio(times["sentence-transformers"], times["prelude"])
            self.report.add(f"{model}, {load}", "sentence-transformers / prelude", found, "x")

    def decoder(self, path: Path, made: Path) -> None:
        self.start(DECODER, path, made, list(STARTS))
        loads = self.wanted(DECODER, DECODER_LOADS)
        if not loads:
            return
        files = gguf_files(path, made, self.chosen) if installed("gguf") else {}
        engines = our_engines(path, files, True, self.chosen)
        said = {side: our_decoder(engine) for side, engine in engines.items()}
        if installed("xllamacpp"):
            self.report.facts["llama.cpp"] = system_info()
        peers = self.variants(DECODER, decoder_peers(path, self.options.threads, files))
        for load in loads:
            tokens = TEXT if load == SAID else 1

            def of(variants: dict[str, Any], tokens: int = tokens) -> dict[str, Way]:
                return {name: Saying(say, tokens) for name, say in variants.items()}

            sides = {peer: of(variants) for peer, variants in peers.items()}
            self.measure(DECODER, load, path, DECODER_LOADS[load], tokens, of(said), sides)
        for engine in engines.values():
            engine.close()


def _sentences(counts: list[int]) -> list[str]:
    words = ("river", "bank", "music", "the", "of", "engine", "quiet", "answer", "stone", "runs", "green", "idea")
    draw = np.random.default_rng(3)
    return [" ".join(draw.choice(words, count)) for count in counts]


FROM_TEXT = {
    "one sentence of 16 tokens, from text": _sentences([14]),
    "64 sentences of mixed length, from text": _sentences(lengths(64, 24, 120)),
}


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--minilm", type=Path, metavar="DIR", help="a directory of all-MiniLM-L6-v2")
    parser.add_argument("--qwen3", type=Path, metavar="DIR", help="a directory of Qwen3-0.6B or of its shape")
    models = [*ENCODERS, DECODER]
    parser.add_argument("--only", choices=models, nargs="+", default=models, help="some of the models")
    parser.add_argument("--loads", nargs="+", metavar="TEXT", help="loads whose name has one of these texts in it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--made", type=Path, metavar="DIR", help="keep the models that are made here, and find them again"
    )
    parser.add_argument("--sides", nargs="+", metavar="TEXT", help="sides whose name has one of these texts in it")
    add_outputs(parser)
    options = parser.parse_args()

    use_threads(options.threads)
    facts = machine_facts([("threads", options.threads), ("rounds", options.rounds)])
    run = Run(Report("Models of real shapes on a CPU", facts=facts), options)
    with tempfile.TemporaryDirectory() as folder:
        made = options.made or Path(folder)
        made.mkdir(parents=True, exist_ok=True)
        for model in options.only:
            if not run.wanted(
                model, [*(DECODER_LOADS if model == DECODER else ENCODER_LOADS), *FROM_TEXT, EVERY, START]
            ):
                continue
            if model == DECODER:
                run.decoder(options.qwen3 or random_model(made, model), made)
            elif model == "MiniLM-L6" and options.minilm is not None:
                run.encoder(model, Path(shutil.copytree(options.minilm, made / model, dirs_exist_ok=True)), made)
            else:
                run.encoder(model, random_model(made, model), made)
    run.report.finish(options, unit="ms")


if __name__ == "__main__":
    main()
