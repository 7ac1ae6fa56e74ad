"""Models of real shapes on a CPU, against transformers, sentence-transformers, ONNX Runtime and llama.cpp.

    python -m bench cpu_models [--rows FILE] [--only MODEL ...] [--loads TEXT ...] [--minilm DIR] [--qwen3 DIR]

MiniLM-L6 and Qwen3-0.6B take weights of a directory, else random ones; the others have their shapes and random
weights, Qwen3's are of bfloat16. Answers come first: sides of float32 must agree, the others get a row with their
difference. Times are processor seconds of this process, all its threads, in alternating rounds, or with
``--clock wall`` those of the clock. A decoder reads a prompt and says one token, or says a text of 64. Ratios are
taken round by round; those that the project has an aim for have it beside them. Peers that are not installed are
left out, and the facts name them. The load of accuracy asks the packaged model about its held-out sentences, and
compares MiniLM's vectors of them where its weights are given.

``--rows FILE`` makes a run that can be cut at any time: each load's rows are appended there when they are measured,
one JSON object a line, and a load that is there is not measured again. ``--list`` says what is left and measures
nothing; with ``--json`` it writes the rows that are there, with ``--table`` those that have an aim as a table of
Markdown. ``--seconds`` ends the run before the first load that would begin after so many.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.blocks import Run, blocks
from bench.command_line import options_parser
from bench.common import Report, Row, add_outputs, machine_facts, three, use_threads
from bench.engine import llama_cpp
from bench.engine.cpu_sides import decoder_sides, encoder_sides, random_decoder
from bench.engine.cpu_start import SIDES as STARTS
from bench.engine.cpu_start import start
from bench.engine.encoders import REST, lengths, random_ids, random_model
from prelude import Choice, Decide, Embed, Engine, EngineConfig, default_model

EXACT = 1e-3
"""Of a component of a vector of length 1, or of a logprob: sides that compute in float32 may differ by it."""
STATE = 512
QUESTION, QUESTIONS = (8, 16), 16
"""Tokens of a question, in two loads, and questions on a state."""
TEXT, TEXT_AFTER = 64, 16
"""Tokens of a text that a decoder says, and of the prompt before it."""
DECODER = "Qwen3-0.6B"
ENCODERS = {
    "MiniLM-L6": 256,
    "ModernBERT-base": 8192,
    "mmBERT-base": 8192,
    "ModernBERT-large": 8192,
    "XLM-R-base": 512,
}
"""The longest text of each, in tokens."""
ACCURACY = "accuracy"
MODELS = (*ENCODERS, DECODER, ACCURACY)
TOKENS = (16, 81, 256, 512)
PROMPT_TOKENS = (16, 128, 256, 512)
AIMS = (
    ("one prompt of ", "prelude float32", "prelude bfloat16", 2.0),
    ("one prompt of ", "prelude bfloat16", "prelude int8", 1.7),
    ("one prompt of ", "llama.cpp BF16", "prelude bfloat16", 1.5),
    ("one prompt of ", "llama.cpp Q8_0", "prelude int8", 3.0),
    ("one prompt of ", "transformers bfloat16", "prelude bfloat16", None),
    ("16 prompts of mixed", "prelude float32", "prelude bfloat16", None),
    ("16 prompts of mixed", "prelude bfloat16", "prelude int8", 1.7),
    ("16 prompts of mixed", "llama.cpp BF16", "prelude bfloat16", 2.0),
    ("16 prompts of mixed", "llama.cpp Q8_0", "prelude int8", 2.0),
    ("16 prompts of mixed", "transformers bfloat16", "prelude bfloat16", None),
    ("a text of ", "prelude float32", "prelude bfloat16", None),
    ("a text of ", "prelude bfloat16", "prelude int8", 1.8),
    ("a text of ", "llama.cpp BF16", "prelude bfloat16", None),
    ("a text of ", "llama.cpp Q8_0", "prelude int8", 1.1),
    ("a text of ", "transformers bfloat16", "prelude bfloat16", None),
    ("one text of ", "prelude float32", "prelude int8", None),
    ("one text of ", "ONNX Runtime int8", "prelude int8", 1.3),
    ("one text of ", "ONNX Runtime", "prelude float32", 1.2),
    ("one text of ", "transformers", "prelude float32", 1.2),
    ("one text of ", "sentence-transformers", "prelude float32", None),
    ("16 texts of mixed", "prelude float32", "prelude int8", None),
    ("16 texts of mixed", "ONNX Runtime int8", "prelude int8", 1.8),
    ("16 texts of mixed", "ONNX Runtime", "prelude float32", 1.8),
    ("16 texts of mixed", "transformers", "prelude float32", 1.8),
    ("16 texts of mixed", "sentence-transformers", "prelude float32", None),
)
"""A part of a load's name, two sides, and how many times the first one's time is the second one's at least."""
CLOCKS = {"processor": time.process_time, "wall": time.perf_counter}


@dataclass
class Session:
    """The rows of this run and of those before it that wrote to the same file."""

    options: argparse.Namespace
    report: Report
    began: float = field(default_factory=time.monotonic)
    made: dict[str, list[Row]] = field(default_factory=dict)
    """By load, in the order of measuring."""
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By load: those of its run."""

    def read(self) -> None:
        """The rows of the file; of a load that was measured twice the later ones. A last line that was cut is left
        out, with its load."""
        path: Path | None = self.options.rows
        if path is None or not path.exists():
            return
        for line in path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError, TypeError, KeyError):
                given = json.loads(line)
                self.made[given["load"]] = [Row(**row) for row in given["rows"]]
                self.facts[given["load"]] = given["facts"]

    def keep(self, load: str, rows: list[Row]) -> None:
        self.made[load] = rows
        self.facts[load] = self.report.facts | {"load average": load_average()}
        path: Path | None = self.options.rows
        if path is not None:
            line = {"load": load, "facts": self.facts[load], "rows": [asdict(row) for row in rows]}
            with path.open("a") as file:
                file.write(json.dumps(line) + "\n")

    def left_out(self, model: str) -> Callable[[str, str], None]:
        def told(peer: str, reason: str) -> None:
            self.report.facts[f"left out of {model}"] = f"{peer}: {reason}"

        return told

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
            self.report.facts |= self.common_facts()
            self.report.finish(self.options, unit="ms")
            if self.options.table is not None:
                self.options.table.write_text(table(self.report.rows), encoding="utf-8")

    def common_facts(self) -> dict[str, Any]:
        """A fact that loads have in common once, else each of its values."""
        found: dict[str, list[Any]] = {}
        for facts in self.facts.values():
            for name, value in facts.items():
                if value not in found.setdefault(name, []):
                    found[name].append(value)
        averages = sorted(map(float, found.pop("load average")))
        common = {name: values[0] if len(values) == 1 else values for name, values in found.items()}
        return common | {"load average": f"{averages[0]} to {averages[-1]}"}


def table(rows: list[Row]) -> str:
    """The rows that have an aim, in Markdown."""
    lines = ["| load | measured | | aim |", "|---|---|---|---|"]
    for row in rows:
        if row.reach:
            digits = 4 if row.unit == "of 1" else 2
            spread = f"{row.low:.{digits}f} to {row.high:.{digits}f}"
            lines.append(f"| {row.load} | {row.measure} | {row.value:.{digits}f} ({spread}) | {row.reach} |")
    return "\n".join(lines) + "\n"


def load_average() -> str:
    return f"{os.getloadavg()[0]:.1f}"  # an idle machine is near 0


def measure(session: Session, load: str, runs: dict[str, Callable[[], Any]]) -> None:
    """Times of each side, which has run once before, and ratios of two of them. Under the clock on the wall each
    side rests before its turn, since threads of a peer go on spinning after it."""
    clock = CLOCKS[session.options.clock]

    def timed(run: Callable[[], Any]) -> Run:
        def times(count: int) -> float:
            began = clock()
            for _ in range(count):
                run()
            return clock() - began

        return times

    rest = REST if session.options.clock == "wall" else 0.0
    turns = {name: timed(run) for name, run in runs.items()}
    times = blocks(turns, session.options.rounds, seconds=0.05, warm=False, rest=rest)
    for name in runs:
        session.report.add(load, name, three(times.of[name], 1e3), "ms")
    for part, base, side, aim in AIMS:
        if part in load and base in runs and side in runs:
            reach = "" if aim is None else f">= {aim:g}"
            session.report.add(load, f"{base} / {side}", three(times.ratios(base, side)), "x", reach)


def ratio(session: Session, load: str, side: str, run: Callable[[list[list[int]]], Any], length: int) -> None:
    """All questions / one question of a side, in turns."""
    prompts = asked(load.partition(",")[0], length)
    clock, taken = CLOCKS[session.options.clock], []
    for turn in range(session.options.rounds + 1):
        seconds = []
        for some in (prompts, prompts[:1]):
            began = clock()
            run(some)
            seconds.append(clock() - began)
        if turn:  # the first one is not counted
            taken.append(seconds[0] / seconds[1])
    one = len(prompts[0])
    note = (
        f"tokens to compute, the state once: {(one + (QUESTIONS - 1) * length) / one:.2f} times those of one question"
    )
    session.report.add(load, f"{side}: {QUESTIONS} questions / one", three(taken), "x", "<= 1.3", note)


def questions(session: Session, model: str, sides: Mapping[str, Callable[[list[list[int]]], Any]]) -> None:
    for length in QUESTION:
        load = questions_of(model, length)
        if session.wanted(load) and not session.late():
            with session.rows_of(load):
                for side, run in sides.items():
                    if side.startswith("prelude"):
                        ratio(session, load, side, run, length)


def texts_of(model: str, options: argparse.Namespace) -> dict[str, list[int]]:
    """The lengths of each load's texts."""
    if model == DECODER:
        found = {f"{model}, one prompt of {count} tokens": [count] for count in options.tokens or PROMPT_TOKENS}
        return found | {f"{model}, 16 prompts of mixed length": lengths(16, 40, 150), said_of(model): [TEXT_AFTER]}
    longest = ENCODERS[model]
    counts = [count for count in options.tokens or TOKENS if count <= longest]
    found = {f"{model}, one text of {count} tokens": [count] for count in counts}
    return found | {f"{model}, 16 texts of mixed length": lengths(16, 80, min(300, longest))}


def said_of(model: str) -> str:
    return f"{model}, a text of {TEXT} tokens after {TEXT_AFTER}"


def state_of(model: str, length: int) -> int:
    """Tokens of the state before a question."""
    return STATE if model == DECODER else min(STATE, ENCODERS[model] - length)


def questions_of(model: str, length: int) -> str:
    return f"{model}, {QUESTIONS} questions of {length} tokens on a state of {state_of(model, length)}"


def start_of(model: str) -> str:
    return f"{model}, from the start to one answer"


def loads_of(model: str, options: argparse.Namespace) -> list[str]:
    if model == ACCURACY:
        return [ACCURACY]
    first = [start_of(model)] if model in (DECODER, "MiniLM-L6") else []
    return [*first, *texts_of(model, options), *(questions_of(model, length) for length in QUESTION)]


def asked(model: str, length: int) -> list[list[int]]:
    """Questions behind one state."""
    state, *tails = random_ids([state_of(model, length), *[length] * QUESTIONS])
    return [state + tail for tail in tails]


def starts(session: Session, model: str, path: Path, made: Path, sides: list[str]) -> None:
    load, options = start_of(model), session.options
    if load in loads_of(model, options) and session.wanted(load):
        sides = [side for side in sides if options.peers or side != "transformers"]
        with session.rows_of(load):
            verb = "complete" if model == DECODER else "embed"
            start(session.report, load, path, made, verb, sides, options.rounds, options.threads)


def encoder(session: Session, name: str, path: Path, made: Path) -> None:
    options, report = session.options, session.report
    sides_of_start = ["import torch", "prelude auto", "prelude int8", "prelude auto, converted", "transformers"]
    starts(session, name, path, made, sides_of_start)
    if not any(map(session.wanted, loads_of(name, options))) or session.late():
        return
    sides, engines = encoder_sides(path, options.threads, options.peers, session.left_out(name))
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
    questions(session, name, sides)
    for engine in engines:
        engine.close()


def decoder(session: Session, path: Path, made: Path) -> None:
    options, report = session.options, session.report
    starts(session, DECODER, path, made, list(STARTS))
    if not any(map(session.wanted, loads_of(DECODER, options))) or session.late():
        return
    sides, engines = decoder_sides(path, made, options.threads, options.peers, session.left_out(DECODER))
    for load, counts in texts_of(DECODER, options).items():
        if not session.wanted(load) or session.late():
            continue
        with session.rows_of(load):
            prompts, tokens = random_ids(counts), TEXT if load == said_of(DECODER) else 1
            wanted = np.array(sides["prelude float32"](prompts, tokens))
            for side, say in sides.items():
                error = float(np.abs(np.array(say(prompts, tokens)) - wanted).max())
                if side == "prelude auto" and not error <= EXACT:
                    raise SystemExit(f"{load}: logprobs of {side} differ by {error}; no time is reported")
                report.add(load, f"{side}: difference of logprobs", (error, error, error), "nats")
            runs = {side: said(say, prompts, tokens) for side, say in sides.items()}
            measure(session, load, runs)
    questions(session, DECODER, sides)
    for engine in engines:
        engine.close()


def said(say: llama_cpp.Said, prompts: list[list[int]], tokens: int) -> Callable[[], Any]:
    return lambda: say(prompts, tokens)


def accuracy(session: Session) -> None:
    """int8 beside float32: answers of the packaged model, vectors of MiniLM."""
    from bench.train.evaluate import held_out

    texts = [row["text"] for row in held_out()]
    with session.rows_of(ACCURACY) as report:
        demo = json.loads((default_model.path() / "demo.json").read_text(encoding="utf-8"))
        questions = [Choice(one["question"], one["labels"]) for one in demo["questions"]]
        states = [demo["state"].format(rubric=demo["rubric"], text=text) for text in texts]
        found = []
        for quantization in (None, "int8"):
            with Engine.from_pretrained(config=EngineConfig(quantization=quantization)) as engine:
                answers = engine.run_many([Decide(state, questions) for state in states])
                found.append([answer for several in answers for answer in several])
        flips = sum(one.label != other.label for one, other in zip(*found)) / len(found[0])
        moved = [abs(one.probability - other.probability) for one, other in zip(*found)]
        load = f"the packaged model, {len(texts)} held-out sentences, {len(questions)} questions each"
        report.add(load, "answers of int8 that differ from float32", (100 * flips,) * 3, "%", "<= 0.5")
        report.add(load, "probability of the answer, difference of int8", three(moved), "of 1")
        if session.options.minilm is None:
            return
        vectors = []
        for quantization in (None, "int8"):
            config = EngineConfig(quantization=quantization)
            with Engine.from_pretrained(session.options.minilm, config=config) as engine:
                vectors.append(np.stack(engine.run_many([Embed(text, truncation="tail") for text in texts])))
        cosines = (vectors[0] * vectors[1]).sum(axis=1)
        spread = (float(cosines.mean()), float(cosines.min()), float(cosines.max()))
        report.add(
            f"MiniLM-L6, {len(texts)} sentences", "cosine of int8 to float32, mean", spread, "of 1", ">= 0.999"
        )


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--minilm", type=Path, metavar="DIR", help="a directory of all-MiniLM-L6-v2")
    parser.add_argument("--qwen3", type=Path, metavar="DIR", help="a directory of Qwen3-0.6B or of its shape")
    parser.add_argument("--only", choices=MODELS, nargs="+", default=list(MODELS), help="some of the models")
    parser.add_argument("--loads", nargs="+", metavar="TEXT", help="loads whose name has one of these texts in it")
    parser.add_argument("--tokens", type=int, nargs="+", help="lengths of the loads of one text or prompt")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=list(CLOCKS), default="processor")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="rows of this run and of those before it")
    parser.add_argument(
        "--made", type=Path, metavar="DIR", help="keep the models that are made here, and find them again"
    )
    parser.add_argument("--seconds", type=float, help="begin no load after so many")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="our sides alone")
    parser.add_argument(
        "--table", type=Path, metavar="FILE", help="write the rows that have an aim here, in Markdown"
    )
    parser.add_argument("--list", action="store_true", help="say what is left, and measure nothing")
    add_outputs(parser)
    options = parser.parse_args()
    import torch

    use_threads(options.threads)
    versions = [("torch", torch.__version__), ("threads", options.threads), ("clock", options.clock)]
    facts = machine_facts([*versions, ("rounds", options.rounds), ("load average", load_average())])
    session = Session(options, Report("Models of real shapes on a CPU", facts=facts))
    session.read()
    for name in () if options.list else options.only:
        if session.late() or not any(map(session.wanted, loads_of(name, options))):
            continue
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) if options.made is None else options.made
            made.mkdir(parents=True, exist_ok=True)
            if name == ACCURACY:
                accuracy(session)
            elif name == DECODER:
                decoder(session, options.qwen3 or random_decoder(made), made)
            elif name == "MiniLM-L6" and options.minilm is not None:
                encoder(session, name, Path(shutil.copytree(options.minilm, made / name, dirs_exist_ok=True)), made)
            else:
                encoder(session, name, made / name if (made / name).exists() else random_model(made, name), made)
    session.finish()


if __name__ == "__main__":
    main()
