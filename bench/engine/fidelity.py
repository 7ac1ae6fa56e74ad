"""Right answers of each engine with the same weights: python -m bench fidelity [--encoder DIR --texts FILE.csv]

The packaged model answers its two questions about its 600 held-out sentences; with ``--encoder`` a sentence encoder
puts each text of a CSV file with the columns ``text`` and ``category`` to the nearest name of a category. The
reference is transformers in float32, text by text. Of each side:

    right                       share of answers that are the label
    flipped                     share of answers that differ from the reference's
    difference                  of the answer's probability, or of the cosine to its category: mean, least, most
    flipped by company          share of answers that change if the texts are asked in batches, in another order
    changed by company          share of texts with another bit then

Nothing is timed. A side whose package is not installed is left out and named. The package ``gguf`` writes no
K-quants, so there is no side of them.
"""

from __future__ import annotations

import csv
import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from prelude.tokenizer import Tokenizer

from bench.command_line import options_parser
from bench.common import Report, add_outputs, three
from bench.engine import llama_cpp
from bench.engine.decisions import Baseline
from bench.engine.peers import installed, onnx_graphs, onnx_int8, onnx_way, our_encoder, transformers_encoders
from bench.train.evaluate import held_out
from prelude import Choice, Decide, Engine, EngineConfig, default_model

BATCH = 16
REFERENCE = "transformers float32"
OURS = {
    "prelude float32": ("float32", EngineConfig(default_cache="never")),
    "prelude bfloat16": ("bfloat16", EngineConfig(default_cache="never")),
    "prelude int8": ("auto", EngineConfig(default_cache="never", quantization="int8")),
}
Scores = np.ndarray
"""[texts, answers]: of each text, larger for a better answer."""


@dataclass(frozen=True, slots=True)
class Side:
    """``alone`` and ``company`` take positions of texts and give the scores of these texts."""

    alone: Callable[[Sequence[int]], Scores]
    company: Callable[[Sequence[int]], Scores]


def one_by_one(run: Callable[[Sequence[int]], Scores]) -> Callable[[Sequence[int]], Scores]:
    return lambda places: np.concatenate([run([place]) for place in places])


def compare(report: Report, load: str, sides: dict[str, Side], right: np.ndarray) -> None:
    """``right`` [texts]: the right answer of each text, -1 if there is none."""
    order = np.random.default_rng(0).permutation(len(right))
    reference = sides[REFERENCE].alone(range(len(right)))
    best = reference.argmax(axis=1)
    for name, side in sides.items():
        alone = reference if name == REFERENCE else side.alone(range(len(right)))
        company = np.empty_like(alone)
        company[order] = side.company(order.tolist())
        asked = right >= 0
        shares = {
            "right": alone.argmax(axis=1)[asked] == right[asked],
            "flipped": alone.argmax(axis=1) != best,
            "flipped by company": company.argmax(axis=1) != alone.argmax(axis=1),
            "changed by company": (company != alone).any(axis=1),
        }
        for measure, hits in shares.items():
            share = 100.0 * float(np.mean(hits))
            report.add(f"{load}: {name}", measure, (share, share, share), "%")
        rows = np.arange(len(right))
        apart = np.abs(alone[rows, best] - reference[rows, best])
        report.add(f"{load}: {name}", "difference", (float(apart.mean()), *three(apart.tolist())[1:]), "of 1")


# ------------------------------------------------------------------ an encoder


def encoder_sides(
    folder: Path, path: Path, texts: Sequence[str], names: Sequence[str], left_out: Callable[[str], None]
) -> dict[str, Side]:
    """Scores are the cosines to the names, which each side embeds one by one. ``folder`` gets the files of peers."""
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.no_padding()
    ids = [tokenizer.encode(text).ids for text in texts]
    labels = [tokenizer.encode(name.replace("_", " ")).ids for name in names]
    vectors = {REFERENCE: transformers_encoders(path)["eager attention"]}
    for name, (dtype, config) in OURS.items():
        vectors[name] = our_encoder(Engine.from_pretrained(path, dtype=dtype, config=config))
    if installed("onnxruntime", "onnx"):
        graphs = onnx_graphs(Path(shutil.copytree(path, folder / path.name)))
        vectors["ONNX Runtime float32"] = onnx_way(graphs["exported graph"], 2)
        for name, file in onnx_int8(graphs).items():
            if name.startswith("exported"):
                vectors[f"ONNX Runtime dynamic int8, {name.partition(', ')[2]}"] = onnx_way(file, 2)
    else:
        left_out("ONNX Runtime")

    def side(embed: Callable[[list[list[int]]], np.ndarray]) -> Side:
        to = np.concatenate([embed([label]) for label in labels]).T

        def run(places: Sequence[int]) -> Scores:
            scores: Scores = (embed([ids[place] for place in places])[:, :, None] * to).sum(axis=1)
            return scores

        def company(places: Sequence[int]) -> Scores:
            parts = [places[at : at + BATCH] for at in range(0, len(places), BATCH)]
            return np.concatenate([run(part) for part in parts])

        return Side(one_by_one(run), company)

    return {name: side(embed) for name, embed in vectors.items()}


# ------------------------------------------------------------------ a decoder


def decoder_sides(
    folder: Path, question: Choice, states: Sequence[str], left_out: Callable[[str], None]
) -> dict[str, Side]:
    """Scores are the labels' probabilities among all tokens."""
    import torch

    path = default_model.path()
    engines = {
        name: Engine.from_pretrained(path, dtype=dtype, config=config) for name, (dtype, config) in OURS.items()
    }
    tasks = [Decide(state, [question]) for state in states]
    engine = engines["prelude float32"]
    prompts = [engine.explain(task).token_ids.tolist() for task in tasks]
    ids = [tokens for tokens, *rest in (label[1] for label in engine.explain(tasks[0]).labels[0]) if not rest]
    assert len(ids) == len(question.labels), "each label has one token"
    sides = {}
    for name, dtype in ((REFERENCE, torch.float32), ("transformers bfloat16", torch.bfloat16)):
        base = Baseline(path, dtype, ids)
        sides[name] = Side(
            lambda places, base=base: np.exp(base.one_by_one([prompts[place] for place in places])),  # type: ignore[misc]
            lambda places, base=base: np.exp(base.padded([prompts[place] for place in places], BATCH)),  # type: ignore[misc]
        )
    if installed("gguf"):
        for kind in llama_cpp.TYPES:
            (folder / kind).mkdir(exist_ok=True)
            for beside in ("decision_template.json", "tokenizer.json"):
                shutil.copy(path / beside, folder / kind)
            file = llama_cpp.write_gguf(path, folder / kind / "model.gguf", kind)
            engines[f"prelude GGUF {kind}"] = Engine.from_pretrained(file, config=EngineConfig(default_cache="never"))
            if installed("xllamacpp"):
                sides[f"llama.cpp {kind}"] = llama_side(file, prompts, ids)
    if not installed("gguf", "xllamacpp"):
        left_out("llama.cpp")

    def asked(engine: Engine) -> Callable[[Sequence[int]], Scores]:
        def run(places: Sequence[int]) -> Scores:
            found = engine.run_many([tasks[place] for place in places], progress=False)
            return np.exp([[answers[0].logprobs[label] for label in question.labels] for answers in found])

        return run

    return sides | {name: Side(one_by_one(run), run) for name, run in ((n, asked(e)) for n, e in engines.items())}


def llama_side(file: Path, prompts: list[list[int]], ids: Sequence[int]) -> Side:
    """llama.cpp's defaults; a label that is not among the 200 best tokens has a probability of 0."""

    def run(model: llama_cpp.LlamaCpp) -> Callable[[Sequence[int]], Scores]:
        def scores(places: Sequence[int]) -> Scores:
            found = model.top([prompts[place] for place in places], 200)
            return np.exp([[dict(best).get(token, -np.inf) for token in ids] for best in found])

        return scores

    most = max(map(len, prompts)) + 1
    alone, many = llama_cpp.LlamaCpp(file, 2), llama_cpp.LlamaCpp(file, 2, sequences=BATCH, tokens=most)

    def company(places: Sequence[int]) -> Scores:
        return np.concatenate([run(many)(places[at : at + BATCH]) for at in range(0, len(places), BATCH)])

    return Side(one_by_one(run(alone)), company)


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--encoder", type=Path, metavar="DIR", help="a sentence encoder with mean pooling")
    parser.add_argument("--texts", type=Path, metavar="FILE", help="CSV with the columns text and category")
    parser.add_argument("--rows", type=int, default=1000, help="at most so many texts")
    add_outputs(parser, plot=False)
    chosen = parser.parse_args()
    if (chosen.encoder is None) != (chosen.texts is None):
        parser.error("--encoder and --texts belong together")
    report = Report("Answers of each engine with the same weights")
    left: list[str] = []
    script = json.loads((default_model.path() / "demo.json").read_text(encoding="utf-8"))
    rows = held_out()[:: max(1, 600 // chosen.rows)]
    with tempfile.TemporaryDirectory() as folder:
        for asked in script["questions"]:
            labels = asked["labels"]
            told = [row[asked["key"]] for row in rows]
            answers = ["yes" if one is True else "no" if one is False else one for one in told]
            right = np.array([labels.index(one) if one in labels else -1 for one in answers])
            states = [script["state"].format(rubric=script["rubric"], text=row["text"]) for row in rows]
            sides = decoder_sides(Path(folder), Choice(asked["question"], labels), states, left.append)
            compare(report, f"packaged model, {asked['question']}", sides, right)
    if chosen.encoder is not None:
        with chosen.texts.open(encoding="utf-8", newline="") as file:
            given = list(csv.DictReader(file))
        names = sorted({row["category"] for row in given})
        some = given[:: max(1, len(given) // chosen.rows)][: chosen.rows]
        right = np.array([names.index(row["category"]) for row in some])
        with tempfile.TemporaryDirectory() as folder:
            texts = [row["text"] for row in some]
            sides = encoder_sides(Path(folder), chosen.encoder, texts, names, left.append)
            compare(report, f"{chosen.encoder.name}, {len(some)} texts, {len(names)} categories", sides, right)
    report.facts["left out"] = sorted(set(left))
    report.finish(chosen)


if __name__ == "__main__":
    main()
