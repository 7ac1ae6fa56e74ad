"""The engine against transformers on the CPU, same weights, same run.

    python -m bench engine [--model DIR] [--repeats 7] [--threads 2] [--json FILE] [--plot FILE] [--quick]

Equality first: every label's logprob of every load must agree, or nothing is timed. The baselines are the code of a
transformers user: the LM head on the last position only; one call after the other, in batches sorted by length, and
one padded batch. For questions on one state its keys and values are kept, once for all batches of questions, and cut
back behind each; or one pass has all questions and a mask, behind these keys and values or behind the state itself.
Both sides compute rows in float32 and in bfloat16. The table compares with the fastest, which the row's note names.
The questions are the same in all calls, as a service asks them: the engine keeps what it made of them, as
transformers is given ids and masks. A state's first token is new in each call, so that no prefix is found; the states
enter the prefix cache, as they do by default.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, cast

import numpy as np

from bench.command_line import options_parser
from bench.common import REST, Measured, Report, add_outputs, machine_facts, paired, ratio, use_threads
from bench.engine.shapes import peaks, rate_of, weights_of
from prelude import Choice, Decide, Engine, EngineConfig
from prelude.admission.template import DecisionTemplate

TOLERANCE = 0.1  # logprobs of rows that each side rounds to bfloat16 in places of its own; float32 agrees to 1e-4
PLAIN = DecisionTemplate(state="{state}", question="{question}", label=" {label}")


def mixed_lengths(count: int = 64) -> list[int]:
    """Log-normal, median 80, sigma 0.8, cut to 16..512, seed 0."""
    drawn = np.exp(np.random.default_rng(0).normal(math.log(80), 0.8, count))
    return np.clip(drawn, 16, 512).astype(int).tolist()


WORDS = ("is", "this", "text", "about", "the", "weather", "sea", "and", "who", "wrote", "it", "to", "in", "which")


def word_questions(engine: Engine, tokens: int, count: int) -> list[str]:
    """``count`` different questions of exactly ``tokens`` tokens each, the same in every run."""
    encode = engine._preparer.tokenizer.encode_array
    draw = np.random.default_rng(2)
    found: dict[str, None] = {}
    for _ in range(200 * count):
        text = ""
        for word in draw.choice(WORDS, tokens):
            text = f"{text} {word}"
            length = len(encode(text, False))
            if length >= tokens:
                break
        if length == tokens:
            found[text] = None
        if len(found) == count:
            return list(found)
    raise SystemExit(f"this tokenizer gives no {count} different questions of {tokens} tokens")


class Loads:
    """The same decisions as tasks for us and as id sequences for transformers."""

    def __init__(self, engine: Engine) -> None:
        vocabulary = engine._preparer.tokenizer.get_vocab_size()
        draw = np.random.default_rng(1)
        self.firsts = cycle(range(vocabulary // 8, vocabulary - 8))

        def ids(n: int) -> list[int]:
            return draw.integers(vocabulary // 8, vocabulary - 8, n).tolist()

        labels = ["yes", "no"]
        [question] = word_questions(engine, 4, 1)
        self.mixed = [Decide(ids(n - 4), [Choice(question, labels)], template=PLAIN) for n in mixed_lengths()]
        variants = [Choice(question, labels) for question in word_questions(engine, 12, 64)]
        self.state = Decide(ids(1000), variants, template=PLAIN)
        self.one = Decide(ids(124), [Choice(question, labels)], template=PLAIN)

    def new(self, tasks: Sequence[Decide]) -> list[Decide]:
        """The tasks with states that begin with another token."""
        return [replace(task, state=[next(self.firsts), *cast(list[int], task.state)[1:]]) for task in tasks]

    def sequences(self, engine: Engine, task: Decide) -> list[list[int]]:
        """The root-to-leaf sequences of a task, without labels."""
        return [engine.explain(replace(task, questions=[question])).token_ids.tolist() for question in task.questions]


class Baseline:
    """transformers, as it comes: eager-free SDPA, logits of the last position only."""

    def __init__(self, path: Any, dtype: Any, label_ids: list[int]) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.torch = torch
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()
        self.label_ids = torch.tensor(label_ids)

    def padded(self, sequences: list[list[int]], batch: int) -> np.ndarray:
        """[N, labels] logprobs, batches of ``batch`` padded at the left."""
        torch = self.torch
        out = []
        with torch.inference_mode():
            for at in range(0, len(sequences), batch):
                part = sequences[at : at + batch]
                longest = max(map(len, part))
                ids = torch.zeros(len(part), longest, dtype=torch.long)
                mask = torch.zeros(len(part), longest, dtype=torch.long)
                for row, sequence in enumerate(part):
                    ids[row, longest - len(sequence) :] = torch.tensor(sequence)
                    mask[row, longest - len(sequence) :] = 1
                positions = (mask.cumsum(1) - 1).clamp(min=0)
                logits = self.model(
                    ids, attention_mask=mask, position_ids=positions, logits_to_keep=1, use_cache=False
                ).logits[:, -1]
                out.append(torch.log_softmax(logits.float(), -1)[:, self.label_ids])
        return torch.cat(out).numpy()

    def sorted(self, sequences: list[list[int]], batch: int) -> np.ndarray:
        order = np.argsort([len(sequence) for sequence in sequences])
        found = self.padded([sequences[at] for at in order], batch)
        out = np.empty_like(found)
        out[order] = found
        return out

    def reusing_the_state(self, sequences: list[list[int]], batch: int) -> np.ndarray:
        """[N, labels] logprobs: the tokens that all sequences begin with are computed once, as ``past_key_values``
        for a batch of questions, which are of one length. The cache is cut back behind each batch."""
        torch = self.torch
        shared = begun_alike(sequences)
        rests = [sequence[shared:] for sequence in sequences]
        out = []
        with torch.inference_mode():
            state = self.model(
                torch.tensor([sequences[0][:shared]]), logits_to_keep=1, use_cache=True
            ).past_key_values
            state.batch_repeat_interleave(batch)
            for at in range(0, len(rests), batch):
                part = torch.tensor(rests[at : at + batch])
                logits = self.model(part, past_key_values=state, logits_to_keep=1, use_cache=True).logits[:, -1]
                out.append(torch.log_softmax(logits.float(), -1)[:, self.label_ids])
                state.crop(-part.shape[1])
        return torch.cat(out).numpy()

    def in_one_pass(self, sequences: list[list[int]], kept: bool) -> Callable[[], np.ndarray]:
        """[N, labels] logprobs of one pass over all questions, each of which sees the state and itself: behind the
        state, or, if ``kept``, behind its keys and values, which a causal pass makes. Masks are made once."""
        torch = self.torch
        shared = begun_alike(sequences)
        size, count = len(sequences[0]) - shared, len(sequences)
        ids = torch.tensor([sequences[0][:shared] + [token for sequence in sequences for token in sequence[shared:]]])
        own = torch.arange(ids.shape[1]).sub(shared).div(size, rounding_mode="floor").clamp(min=-1)
        sees = torch.ones(len(own), len(own), dtype=torch.bool).tril() & ((own == -1) | (own[:, None] == own))
        mask = torch.where(sees, 0.0, torch.finfo(self.model.dtype).min)[None, None]
        positions = torch.cat([torch.arange(shared), torch.arange(shared, shared + size).repeat(count)])[None]
        ends = shared + size * torch.arange(1, count + 1) - 1
        first = shared if kept else 0
        mask, positions, ends = mask[:, :, first:].contiguous(), positions[:, first:], ends - first

        def run() -> np.ndarray:
            with torch.inference_mode():
                state = self.model(ids[:, :first], logits_to_keep=1).past_key_values if kept else None
                logits = self.model(
                    ids[:, first:],
                    attention_mask=mask,
                    position_ids=positions,
                    past_key_values=state,
                    logits_to_keep=ends,
                    use_cache=kept,
                ).logits[0]
                found: np.ndarray = torch.log_softmax(logits.float(), -1)[:, self.label_ids].numpy()
            return found

        return run

    def one_by_one(self, sequences: list[list[int]]) -> np.ndarray:
        torch = self.torch
        out = []
        with torch.inference_mode():
            for sequence in sequences:
                logits = self.model(torch.tensor([sequence]), logits_to_keep=1, use_cache=False).logits[:, -1]
                out.append(torch.log_softmax(logits.float(), -1)[:, self.label_ids])
        return torch.cat(out).numpy()


def begun_alike(sequences: list[list[int]]) -> int:
    """How many tokens all begin with."""
    return next(i for i, column in enumerate(zip(*sequences)) if len(set(column)) > 1)


Answers = Callable[[], list[Any]]
Run = Callable[[], Any]


def check(name: str, ours: Answers, theirs: Callable[[], np.ndarray], tolerance: float) -> float:
    """Both sides once; where they differ, both once more, so that the message says which side changed. Return the
    largest difference."""

    def run() -> np.ndarray:
        return np.array([[answer.logprobs[label] for label in answer.labels] for row in ours() for answer in row])

    mine, wanted = run(), theirs()
    error = np.abs(mine - wanted).max(axis=1)
    print(f"equality: {name}: largest difference of a label's logprob {error.max():.2e} (limit {tolerance:.0e})")
    if error.max() <= tolerance:
        return float(error.max())
    for row in np.flatnonzero(~(error <= tolerance)):
        print(f"row {row}: prelude {mine[row].tolist()}, transformers {wanted[row].tolist()}")
    for side, first, again in (("prelude", mine, run()), ("transformers", wanted, theirs())):
        print(f"{side} computed once more differs from itself by {np.abs(again - first).max():.2e}")
    raise SystemExit(f"{name}: results differ from transformers by {error.max()}; no time is reported")


HALF = " in bfloat16"
"""Behind the names of sides whose rows are rounded to bfloat16; the others have float32."""


def compare(
    report: Report, load: str, ours: Mapping[str, Run], baselines: Mapping[str, Run], repeats: int, reach: str
) -> dict[str, Measured]:
    """``ours``: of each type of rows."""
    measured = paired({**ours, **baselines}, repeats, rest=REST)
    beside(report, load, "transformers", measured, baselines, reach)
    for name, times in measured.items():
        report.add(load, name, (times.median * 1e3, times.spread[0] * 1e3, times.spread[1] * 1e3), "ms")
    return measured


def beside(
    report: Report, load: str, name: str, measured: dict[str, Measured], baselines: Iterable[str], reach: str
) -> None:
    """Adds the ratio of the fastest baseline, of each type."""
    for said in ("", HALF):
        alike = [measured[one] for one in baselines if one.endswith(HALF) == bool(said)]
        if alike and f"prelude{said}" in measured:
            base = min(alike, key=lambda one: one.median)
            times = ratio(base, measured[f"prelude{said}"])
            report.add(load, f"{name}{said} / prelude{said}", times, "x", "" if said else reach, base.name)


def floor(path: Path, shared: int, count: int, size: int, threads: int) -> float | None:
    """Milliseconds of the float32 products of a state and its questions, without the LM head, at the rate of the
    processor's instruction; None without a C++ compiler."""
    rates, config = peaks(threads), json.loads((path / "config.json").read_text(encoding="utf-8"))
    rate = rate_of("float32", rates)
    if rate is None:
        return None
    seen = shared * (shared + 1) // 2 + count * (size * shared + size * (size + 1) // 2)
    width = config["num_attention_heads"] * config["head_dim"]
    work = 2 * weights_of(path)[0] * (shared + count * size) + 4 * seen * width * config["num_hidden_layers"]
    return 1e-6 * work / (rate * threads)


def overhead(report: Report, engine: Engine, loads: Loads, repeats: int) -> None:
    """Microseconds a request beyond the forward's own time, text already tokenised."""
    values = []
    for _ in range(4 * repeats):  # a small difference of two large times
        tasks = loads.new(loads.mixed)
        before, began = engine.stats()["forward_seconds"], time.perf_counter()
        engine.run_many(tasks)
        took = time.perf_counter() - began
        values.append((took - (engine.stats()["forward_seconds"] - before)) / len(tasks) * 1e6)
    values.sort()
    report.add(
        "64 single decisions",
        "host time a request beyond the forward",
        (values[len(values) // 2], values[0], values[-1]),
        "us",
        reach="<= 60",
    )


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--model", default=None)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    add_outputs(parser)
    parser.add_argument("--quick", action="store_true", help="two repeats")
    chosen = parser.parse_args()
    import torch
    import transformers

    use_threads(chosen.threads)
    repeats = 2 if chosen.quick else chosen.repeats
    engine = Engine.from_pretrained(chosen.model)
    fixed = Engine.from_pretrained(chosen.model, config=EngineConfig(deterministic=True))
    engines = {"": engine, HALF: Engine.from_pretrained(chosen.model, dtype="bfloat16")}
    loads = Loads(engine)
    label_ids = [label[1][0] for label in engine.explain(loads.one).labels[0]]
    mixed = [sequence for task in loads.mixed for sequence in loads.sequences(engine, task)]
    state = loads.sequences(engine, loads.state)
    [one] = loads.sequences(engine, loads.one)
    singles: dict[str, Run] = {}
    batches, passes, alone = dict(singles), dict(singles), dict(singles)
    errors: dict[str, float] = {}
    for said, own in engines.items():
        base = Baseline(engine.model_path, torch.bfloat16 if said else torch.float32, label_ids)
        single = {
            "one by one": partial(base.one_by_one, mixed),
            **{f"sorted, {size} at once": partial(base.sorted, mixed, size) for size in (2, 4, 8, 16)},
            "one padded batch": partial(base.padded, mixed, 64),
        }
        batch = {f"state reused, {n} at once": partial(base.reusing_the_state, state, n) for n in (8, 16, 32, 64)}
        whole = {
            "one pass": base.in_one_pass(state, kept=False),
            "state kept, one pass of all questions": base.in_one_pass(state, kept=True),
        }
        for found, ways, tasks in (
            ({}, {"one by one": partial(base.one_by_one, state)}, [loads.state]),  # too slow to be timed
            (singles, single, loads.mixed),
            (batches, batch, [loads.state]),
            (passes, whole, [loads.state]),
            (alone, {"one by one": partial(base.one_by_one, [one])}, [loads.one]),
        ):
            for name, run in ways.items():
                error = check(name + said, partial(own.run_many, tasks), run, TOLERANCE if said else 1e-4)
                errors[said] = max(error, errors.get(said, 0.0))
                found[name + said] = run

    def ours(tasks: list[Decide]) -> dict[str, Run]:
        return {f"prelude{said}": lambda own=own: own.run_many(loads.new(tasks)) for said, own in engines.items()}

    facts = [
        ("torch", torch.__version__),
        ("transformers", transformers.__version__),
        ("threads", chosen.threads),
        ("repeats", repeats),
    ]
    report = Report("prelude against transformers, one set of weights, CPU", facts=machine_facts(facts))
    for said, error in errors.items():
        report.add("all loads", f"largest difference of a logprob{said}", (error,) * 3, "nats")
    compare(report, "64 single decisions", ours(loads.mixed), singles, repeats, ">= 2.5")
    load = "64 questions on one state"
    measured = compare(report, load, ours([loads.state]), batches | passes, repeats, ">= 3.5")
    beside(report, load, "transformers in batches", measured, batches, ">= 3.5")
    shared = begun_alike(state)
    if least := floor(Path(engine.model_path), shared, len(state), len(state[0]) - shared, chosen.threads):
        report.add(load, "prelude: floor by arithmetic", (least,) * 3, "ms")
        most = 1e3 * min(measured[name].median for name in passes if not name.endswith(HALF)) / least
        report.add(load, "transformers / floor by arithmetic", (most,) * 3, "x")
    compare(report, "one decision alone", ours([loads.one]), alone, repeats * 10, ">= 1")
    overhead(report, engine, loads, repeats * 3)
    measured = paired(
        {
            "default": lambda: engine.run_many(loads.new(loads.mixed)),
            "fixed": lambda: fixed.run_many(loads.new(loads.mixed)),
        },
        repeats,
    )
    report.add(
        "64 single decisions",
        "deterministic / default",
        ratio(measured["fixed"], measured["default"]),
        "x",
        reach="< 1.6",
    )
    report.finish(chosen)


if __name__ == "__main__":
    main()
