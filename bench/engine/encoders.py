"""Encoders on the CPU against sentence-transformers, ONNX Runtime and transformers, same weights, same run.

    python -m bench encoders [--minilm DIR] [--repeats 7] [--threads 2] [--json FILE] [--plot FILE] [--quick]

Vectors first: those of every side must agree with ours, or nothing is timed. ``--minilm`` is a directory of
all-MiniLM-L6-v2; without it the shape of that model with random weights is taken. ModernBERT-base and
DeBERTa-v3-base have their shapes and random weights. Sides that are not installed are left out, and the facts of the
report name them. The baselines are the code of their users: padded batches, sorted by length.
"""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.command_line import options_parser
from bench.common import Report, add_outputs, machine_facts, paired, ratio, use_threads
from prelude import Embed, Engine, EngineConfig, default_model

TOLERANCE = 5e-4  # of a component of a vector of length 1; float32 sums of two orders agree to about 1e-6
REST = 0.1  # seconds before each run: ONNX Runtime's threads go on spinning after one
BATCH = 32  # of sentence-transformers
_MINILM = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
_BASE = {"hidden_size": 768, "num_attention_heads": 12}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "MiniLM-L6": ("Bert", {**_MINILM, "vocab_size": 30522, "max_position_embeddings": 512}),
    "ModernBERT-base": (
        "ModernBert",
        {**_BASE, "num_hidden_layers": 22, "intermediate_size": 1152, "vocab_size": 50368},
    ),
    "mmBERT-base": (
        "ModernBert",
        {**_BASE, "num_hidden_layers": 22, "intermediate_size": 1152, "vocab_size": 256000},
    ),
    "ModernBERT-large": (
        "ModernBert",
        {
            "hidden_size": 1024,
            "num_attention_heads": 16,
            "num_hidden_layers": 28,
            "intermediate_size": 2624,
            "vocab_size": 50368,
        },
    ),
    "XLM-R-base": (
        "XLMRoberta",
        {
            **_BASE,
            "num_hidden_layers": 12,
            "intermediate_size": 3072,
            "vocab_size": 250002,
            "max_position_embeddings": 514,
            "type_vocab_size": 1,
            "pad_token_id": 1,
            "layer_norm_eps": 1e-5,
        },
    ),
    "DeBERTa-v3-base": (
        "DebertaV2",
        {
            **_BASE,
            "num_hidden_layers": 12,
            "intermediate_size": 3072,
            "vocab_size": 128100,
            "max_position_embeddings": 512,
            "relative_attention": True,
            "position_buckets": 256,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "pos_att_type": ["p2c", "c2p"],
            "position_biased_input": False,
            "layer_norm_eps": 1e-7,
        },
    ),
}
Side = Callable[[list[list[int]]], np.ndarray]
"""Token ids of texts to their vectors [texts, width], means of the last hidden states at length 1."""


def lengths(count: int, middle: int, longest: int) -> list[int]:
    """Log-normal around ``middle``, sigma 0.7, at least 4, the same in every run."""
    drawn = np.exp(np.random.default_rng(0).normal(np.log(middle), 0.7, count))
    return np.clip(drawn, 4, longest).astype(int).tolist()


def random_model(folder: Path, name: str) -> Path:
    import torch
    import transformers

    begins, sizes = SHAPES[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{begins}Config")(**sizes)
    getattr(transformers, f"{begins}Model")(config).save_pretrained(folder / name)
    shutil.copy(default_model.path() / "tokenizer.json", folder / name / "tokenizer.json")
    return folder / name


def padded(ids: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Ids and mask, int64."""
    longest = max(map(len, ids))
    table, mask = (np.zeros((len(ids), longest), np.int64) for _ in range(2))
    for row, one in enumerate(ids):
        table[row, : len(one)], mask[row, : len(one)] = one, 1
    return table, mask


def pooled(states: np.ndarray, mask: np.ndarray) -> np.ndarray:
    means = (states * mask[..., None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
    vectors: np.ndarray = means / np.linalg.norm(means, axis=1, keepdims=True)
    return vectors


def in_batches(run: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Side:
    """By length, in batches, as sentence-transformers does it."""

    def side(texts: list[list[int]]) -> np.ndarray:
        order = sorted(range(len(texts)), key=lambda at: -len(texts[at]))
        found: list[np.ndarray] = [np.zeros(0)] * len(texts)
        for first in range(0, len(order), BATCH):
            some = order[first : first + BATCH]
            ids, mask = padded([texts[at] for at in some])
            for at, vector in zip(some, pooled(run(ids, mask), mask)):
                found[at] = vector
        return np.stack(found)

    return side


def transformers_side(path: Path) -> Side:
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(path, dtype=torch.float32).eval()

    def run(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            given = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
            states: np.ndarray = model(**given).last_hidden_state.numpy()
        return states

    return in_batches(run)


def onnx_side(path: Path, threads: int) -> Side:
    import onnxruntime
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    file = path / "model.onnx"
    ids = torch.ones(2, 17, dtype=torch.long)
    axes = {0: "texts", 1: "tokens"}
    torch.onnx.export(
        Plain(),
        (ids, torch.ones_like(ids)),
        str(file),
        input_names=["input_ids", "attention_mask"],
        output_names=["states"],
        dynamic_axes={"input_ids": axes, "attention_mask": axes, "states": axes},
        opset_version=17,
        dynamo=False,
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])

    def run(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        states: np.ndarray = session.run(None, {"input_ids": ids, "attention_mask": mask})[0]
        return states

    return in_batches(run)


def our_side(engine: Engine) -> Side:
    def run(texts: list[list[int]]) -> np.ndarray:
        tasks = [Embed(ids, pooling="mean", normalize=True) for ids in texts]
        return np.stack(engine.run_many(tasks))

    return run


def compare(
    report: Report, load: str, texts: list[list[int]], sides: dict[str, Side], repeats: int, reach: dict[str, str]
) -> None:
    """``reach`` by side. The first side is ours."""
    ours = sides["prelude"](texts)
    for name, side in sides.items():
        error = float(np.abs(side(texts) - ours).max())
        print(f"equality: {load}: {name} differs by {error:.1e} (limit {TOLERANCE:.0e})")
        if not error <= TOLERANCE:
            raise SystemExit(f"{load}: vectors of {name} differ by {error}; no time is reported")
    measured = paired({name: lambda side=side: side(texts) for name, side in sides.items()}, repeats, rest=REST)  # type: ignore[misc]
    for name in sides:
        if name != "prelude":
            report.add(
                load, f"{name} / prelude", ratio(measured[name], measured["prelude"]), "x", reach=reach.get(name, "")
            )
    for name, times in measured.items():
        report.add(load, name, (times.median * 1e3, times.spread[0] * 1e3, times.spread[1] * 1e3), "ms")


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def sides_of(report: Report, name: str, path: Path, engine: Engine, threads: int) -> dict[str, Side]:
    found = {"prelude": our_side(engine), "transformers": transformers_side(path)}
    if not (installed("onnxruntime") and installed("onnx")):
        report.facts["left out"] = "ONNX Runtime, which is not installed"
        return found
    try:
        found["ONNX Runtime"] = onnx_side(path, threads)
    except Exception as failure:  # a network that this version of torch does not export
        report.facts[f"left out of {name}"] = f"ONNX Runtime: {type(failure).__name__}"
    return found


def random_ids(counts: Sequence[int]) -> list[list[int]]:
    draw = np.random.default_rng(1)
    return [draw.integers(1000, 4000, count).tolist() for count in counts]


def sentence_transformers_text(report: Report, path: Path, engine: Engine, repeats: int) -> None:
    """From text to vectors, tokenizers included."""
    if not installed("sentence_transformers"):
        report.facts["left out"] = "sentence-transformers, which is not installed"
        return
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(path), device="cpu")
    words = ("river", "bank", "music", "the", "of", "engine", "quiet", "answer", "stone", "runs", "green", "idea")
    draw = np.random.default_rng(3)
    many = [" ".join(draw.choice(words, count)) for count in lengths(64, 24, 120)]
    for load, texts, reach in (
        ("64 sentences of mixed length, from text", many, ">= 1.5"),
        ("one sentence of 16 tokens, from text", [" ".join(words + words[:2])], ">= 2"),
    ):
        ours = np.stack(engine.run_many([Embed(text) for text in texts]))
        error = float(np.abs(model.encode(texts, normalize_embeddings=True) - ours).max())
        print(f"equality: {load}: sentence-transformers differs by {error:.1e} (limit {TOLERANCE:.0e})")
        if not error <= TOLERANCE:
            raise SystemExit(f"{load}: vectors differ by {error}; no time is reported")
        measured = paired(
            {
                "prelude": lambda texts=texts: engine.run_many([Embed(text) for text in texts]),  # type: ignore[misc]
                "sentence-transformers": lambda texts=texts: model.encode(texts, normalize_embeddings=True),  # type: ignore[misc]
            },
            repeats,
            rest=REST,
        )
        base = measured["sentence-transformers"]
        report.add(load, "sentence-transformers / prelude", ratio(base, measured["prelude"]), "x", reach=reach)
        for name, times in measured.items():
            report.add(load, name, (times.median * 1e3, times.spread[0] * 1e3, times.spread[1] * 1e3), "ms")


LOADS: tuple[tuple[str, str, list[int], dict[str, str]], ...] = (
    ("MiniLM-L6", "64 texts of mixed length", lengths(64, 24, 120), {"ONNX Runtime": ">= 1.2"}),
    ("MiniLM-L6", "one text of 16 tokens", [16], {"ONNX Runtime": ">= 1.2"}),
    ("ModernBERT-base", "one text of 81 tokens", [81], {"ONNX Runtime": ">= 1.1"}),
    ("ModernBERT-base", "16 texts of mixed length", lengths(16, 80, 300), {"ONNX Runtime": ">= 1.6"}),
    ("DeBERTa-v3-base", "one text of 256 tokens", [256], {"transformers": ">= 1.5"}),
)
MODELS = tuple(dict.fromkeys(model for model, *_ in LOADS))


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--minilm", type=Path, metavar="DIR", help="a directory of all-MiniLM-L6-v2")
    parser.add_argument("--only", choices=MODELS, help="one of the models")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="two repeats")
    add_outputs(parser)
    options = parser.parse_args()
    import torch

    use_threads(options.threads)
    repeats = 2 if options.quick else options.repeats
    versions = [("torch", torch.__version__), ("threads", options.threads)]
    report = Report("Encoders in float32", facts=machine_facts(versions))
    with tempfile.TemporaryDirectory() as folder:
        for name in MODELS if options.only is None else (options.only,):
            trained = options.minilm if name == "MiniLM-L6" else None
            path = random_model(Path(folder), name) if trained is None else trained
            with Engine.from_pretrained(path, config=EngineConfig(default_cache="never")) as engine:
                sides = sides_of(report, name, path, engine, options.threads)
                for model, load, counts, reach in LOADS:
                    if model == name:
                        compare(report, f"{name}, {load}", random_ids(counts), sides, repeats, reach)
                if trained is not None:
                    sentence_transformers_text(report, path, engine, repeats)
    report.finish(options)


if __name__ == "__main__":
    main()
