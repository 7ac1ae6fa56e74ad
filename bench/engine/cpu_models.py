"""Models of real shapes on a CPU, against transformers, sentence-transformers, ONNX Runtime and llama.cpp.

    python -m bench cpu_models [--only MODEL ...] [--loads TEXT ...] [--sides TEXT ...] [--minilm DIR] [--qwen3 DIR]

MiniLM-L6 and Qwen3-0.6B take weights of a directory, else random ones; the others have their shapes and random
weights. A decoder reads a prompt and says one token, or says a text of 64.

Answers come first: sides of float32 must agree, and the others get a row with their difference. Each peer is run in
every way of ``bench/engine/peers.py``; the fastest, at most three, meet ours in alternating rounds, and the note of
its row names the one with the least median. A lone text of an encoder is computed up to ten times in a round, one
behind another, and the round counts with its median. The fastest variant of those whose vectors are not near has a
row without a ratio. Our int8 is compared with ONNX Runtime's int8 or float32, whichever is faster. Times are those of
the clock, and each side rests 0.1 s before its turn, since ONNX Runtime's threads go on spinning after one. A floor
is the time that a side's products take at the rate of their instruction, or that reading the weights takes. Peers
that are not installed or do not take a network are left out, and the facts name them.
"""

from __future__ import annotations

import argparse
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.command_line import options_parser
from bench.common import REST, Measured, Report, add_outputs, machine_facts, paired, ratio, three, use_threads
from bench.engine.cpu_start import SIDES as STARTS
from bench.engine.cpu_start import start
from bench.engine.llama_cpp import system_info
from bench.engine.peers import (
    Likeliest,
    Said,
    Way,
    decoder_peers,
    encoder_peers,
    fed,
    gguf_files,
    installed,
    onnx_graphs,
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
"""The least cosine of a vector to ours in float32 of a peer's variant that has a ratio."""
FAR = ", cosine below 0.99"
TOLD = 20
"""The likeliest tokens of a decoder's side, among which is ours."""
TEXT, TEXT_AFTER = 64, 16
"""Tokens of a text that a decoder says, and of the prompt before it."""
SAID = f"a text of {TEXT} tokens after {TEXT_AFTER}"
MANY = f"16 texts of {sum(lengths(16, 80, 256)):,} tokens in all"
PROMPTS = f"16 prompts of {sum(lengths(16, 40, 150)):,} tokens in all"
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
EVERY = "texts of 81 tokens, one each 100 ms"
INTERVAL = 0.1
"""Seconds from the beginning of a text of ``EVERY`` to that of the next one."""
TURNS, TEXTS = 20, 10
"""Of each side, and the most texts of a turn."""
START = "from the start to one answer"
ONNX_INT8, LLAMA_INT8 = "ONNX Runtime int8 or float32, the faster", "llama.cpp Q8_0 or BF16, the faster"
FASTER = {
    ONNX_INT8: {"ONNX Runtime int8": "int8", "ONNX Runtime": "float32"},
    LLAMA_INT8: {"llama.cpp Q8_0": "Q8_0", "llama.cpp BF16": "BF16"},
}
"""The sides that such a name stands for, and what a note calls them."""
PAIRS = {
    "ONNX Runtime": "prelude float32",
    ONNX_INT8: "prelude int8",
    f"ONNX Runtime int8{FAR}": "prelude int8",
    "transformers": "prelude float32",
    "transformers bfloat16": "prelude bfloat16",
    "llama.cpp BF16": "prelude bfloat16",
    "llama.cpp Q8_0": "prelude int8",
    LLAMA_INT8: "prelude int8",
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
    (MANY, ONNX_INT8): 1.4,
    **{(f"one text of {count} tokens", "ONNX Runtime"): 1.15 for count in (16, 256)},
    **{(f"one text of {count} tokens", ONNX_INT8): 1.15 for count in (16, 81, 256)},
    ("one text of 81 tokens", "ONNX Runtime"): 1.05,
    ("one text of 256 tokens", "transformers"): 1.05,
    ("4 texts of 256 tokens", "transformers"): 1.0,
}
"""How many times our time a peer's is at least."""


def fastest(ways: dict[str, Callable[[], Any]]) -> list[str]:
    """At most three, within a tenth of the fastest, by the least of two runs in turns; each has run once. Those that
    took twice the least of the first runs do not run again."""
    first = {name: min(one.seconds) for name, one in paired(ways, 1, warmup=0, rest=REST).items()}
    close = {name: run for name, run in ways.items() if first[name] < 2 * min(first.values())}
    again = {name: min(one.seconds) for name, one in paired(close, 1, warmup=0, rest=REST).items()}
    least = {name: min(first[name], again[name]) for name in again}
    return [name for name in sorted(least, key=least.__getitem__)[:3] if least[name] < 1.1 * min(least.values())]


def cosines(wanted: Any, found: Any) -> list[float]:
    told: list[float] = (found * wanted).sum(axis=1).tolist()
    return told


def near(wanted: Any, found: Any) -> bool:
    return min(cosines(wanted, found)) >= NEAR


class Saying:
    """A decoder's way. Called, it gives the likeliest tokens; ``timed`` says ``tokens``."""

    def __init__(self, say: Said, tokens: int) -> None:
        self.say, self.tokens = say, tokens

    def __call__(self, prompts: list[list[int]]) -> Likeliest:
        told: Likeliest = self.say(prompts, 1, TOLD)
        return told

    def timed(self, prompts: list[list[int]]) -> None:
        said = self.say(prompts, self.tokens, 1)
        if self.tokens > 1 and said != self.tokens * len(prompts):
            raise SystemExit(f"a side did not say {self.tokens} tokens")


Answer = np.ndarray | Likeliest
AnyWay = Way | Saying


def timed(way: AnyWay, texts: list[list[int]]) -> Callable[[], Any]:
    return partial(way.timed if isinstance(way, Saying) else way, texts)


def turns(ways: dict[str, Callable[[], Any]], interval: float) -> dict[str, np.ndarray]:
    """Seconds of each text, ``[TURNS, texts]``; fewer than ``TEXTS`` if these take longer than half a second. The
    sides take turns: one's threads do not spin in another's."""
    longest = max(min(one.seconds) for one in paired(ways, 1, rest=REST).values())
    texts = max(1, min(TEXTS, int(0.5 / longest)))
    found = {side: np.empty((TURNS, texts)) for side in ways}
    for turn in range(TURNS):
        for side, run in ways.items():
            time.sleep(REST)
            run()  # not counted
            due = time.perf_counter()
            for at in range(texts):
                due = max(due + interval, time.perf_counter())
                time.sleep(max(0.0, due - time.perf_counter()))
                began = time.perf_counter()
                run()
                found[side][turn, at] = time.perf_counter() - began
    return found


def drawn_ratios(base: np.ndarray, ours: np.ndarray, share: float) -> tuple[float, float, float]:
    """The ratio of a percentile of all times, and its 2.5th and 97.5th percentile in 2,000 draws of the turns."""
    draw = np.random.default_rng(0).integers(0, TURNS, (2000, TURNS))
    rates = [np.percentile(base[at], share) / np.percentile(ours[at], share) for at in draw]
    value = np.percentile(base, share) / np.percentile(ours, share)
    low, high = np.percentile(rates, (2.5, 97.5))
    return float(value), float(low), float(high)


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
        return not sides or side == "prelude float32" or any(re.search(text, side) for text in sides)

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

    def compare(self, load: str, ours: str, wanted: Answer, side: str, found: Answer) -> None:
        """Vectors or likeliest tokens of a side beside ours."""
        exact = side in ("prelude auto", "transformers", "ONNX Runtime")
        beside = "" if ours == "prelude float32" else f" to {ours}"
        if isinstance(wanted, np.ndarray):
            assert isinstance(found, np.ndarray)
            errors = np.abs(found - wanted).ravel().tolist()
        else:
            likeliest = [next(iter(best)) for best in wanted]
            if any(token not in best for token, best in zip(likeliest, found)):
                raise SystemExit(f"{load}: {side} has not the likeliest token of {ours} among its first {TOLD}")
            told = zip(likeliest, wanted, found)
            errors = [abs(best[token] - right[token]) for token, right, best in told]
            same = [next(iter(best)) == token for token, best in zip(likeliest, found)]
        if exact and not max(errors) <= EXACT:
            raise SystemExit(f"{load}: {side} differs from {ours} by {max(errors)}; no time is reported")
        if exact or side == ours:
            return
        if isinstance(wanted, np.ndarray):
            assert isinstance(found, np.ndarray)
            self.report.add(load, f"{side}: cosine", three(cosines(wanted, found)), "of 1")
        else:
            self.report.add(load, f"{side}: difference of logprobs{beside}", three(errors), "nats")
            share = 100 * sum(same) / len(same)
            self.report.add(load, f"{side}: likeliest tokens that are the same{beside}", (share,) * 3, "%")

    def measure(
        self,
        model: str,
        name: str,
        path: Path,
        counts: list[int],
        said: int,
        ours: Mapping[str, AnyWay],
        peers: Mapping[str, Mapping[str, AnyWay]],
    ) -> None:
        load, texts = f"{model}, {name}", random_ids(counts)
        runs: dict[str, Callable[[], Any]] = {}
        found: dict[str, Answer] = {side: way(texts) for side, way in ours.items()}
        wanted = found["prelude float32"]
        encodes = isinstance(wanted, np.ndarray)
        for side, way in ours.items():
            if side != "prelude Q4_K_M":  # it has other weights
                self.compare(load, "prelude float32", wanted, side, found[side])
            runs[side] = timed(way, texts)
        tried: dict[str, dict[str, str]] = {}
        answers: dict[str, Answer] = {}
        for peer, variants in peers.items():
            ways = fed(dict(variants), len(texts), (2, 4, 8) if encodes else (4,))
            given: dict[str, Answer] = {one: way(texts) for one, way in ways.items()}
            right = {one for one in ways if not encodes or near(wanted, given[one])}
            for side, names in ((peer, right), (peer + FAR, set(ways) - right)):
                if names:
                    best = fastest({one: timed(ways[one], texts) for one in ways if one in names})
                    tried[side] = {f"{side}: {one}": one for one in (best if side == peer else best[:1])}
                    runs |= {key: timed(ways[one], texts) for key, one in tried[side].items()}
                    answers |= {key: given[one] for key, one in tried[side].items()}
        if encodes and len(texts) == 1:
            medians = {side: np.median(one, axis=1).tolist() for side, one in turns(runs, 0.0).items()}
            times = {side: Measured(side, tuple(one)) for side, one in medians.items()}
        else:
            times = paired(runs, self.options.rounds, warmup=0, rest=REST)
        chosen: dict[str, str] = {}
        for peer, keys in tried.items():
            best_key = min(keys, key=lambda key: times[key].median)
            ours_like = PAIRS.get(peer, "")
            ours_like = ours_like if not encodes and ours_like in found else "prelude float32"
            self.compare(load, ours_like, found[ours_like], peer, answers[best_key])
            chosen[peer], times[peer] = keys[best_key], times[best_key]
            times = {key: one for key, one in times.items() if key not in keys}
        for side, one in times.items():
            self.report.add(load, side, three(one.seconds, 1e3), "ms", note=chosen.get(side, ""))
        for told, side in PAIRS.items():
            bases = FASTER.get(told, {told: ""})
            if side in times and all(base in times for base in bases):
                base = min(bases, key=lambda key: times[key].median)
                note = ", ".join(filter(None, (bases[base], chosen.get(base))))
                aim = AIMS.get((name, told))
                reach = "" if aim is None else f">= {aim:g}"
                self.report.add(load, f"{told} / {side}", ratio(times[base], times[side]), "x", reach, note)
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
        """Lone texts each 100 ms, beside each graph of ONNX Runtime with its own defaults."""
        load, texts = f"{model}, {EVERY}", random_ids([81])
        ways = {"prelude float32": ours}
        for graph, file in onnx_graphs(path).items():
            ways[f"ONNX Runtime, {graph}"] = way = onnx_way(file, self.options.threads)
            self.compare(load, "prelude float32", ours(texts), "ONNX Runtime", way(texts))
        times = turns({side: partial(way, texts) for side, way in ways.items()}, INTERVAL)
        for share, told in ((50, "median"), (90, "90th percentile")):
            values = {side: float(np.percentile(one, share)) for side, one in times.items()}
            for side, value in values.items():
                by_turn = np.percentile(times[side], share, axis=1)
                row = (value * 1e3, float(by_turn.min()) * 1e3, float(by_turn.max()) * 1e3)
                self.report.add(load, f"{side}: {told}", row, "ms")
            best = min((side for side in values if side != "prelude float32"), key=values.__getitem__)
            aim = ">= 1.5" if share == 90 else ""
            found = drawn_ratios(times[best], times["prelude float32"], share)
            self.report.add(load, f"{told}, ONNX Runtime / prelude float32", found, "x", aim, best.partition(", ")[2])

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

            def of(variants: dict[str, Any], tokens: int = tokens, load: str = load) -> dict[str, Saying]:
                chosen = (name for name in variants if load == PROMPTS or "one cache" not in name)
                return {name: Saying(variants[name], tokens) for name in chosen}

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
    parser.add_argument("--sides", nargs="+", metavar="TEXT", help="regular expressions of sides")
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
