"""Checkpoints of real shapes with random weights, token ids for them, and the floor of their time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from prelude import default_model

_BASE = {"hidden_size": 768, "num_attention_heads": 12}
_MODERN = {**_BASE, "num_hidden_layers": 22, "intermediate_size": 1152}
_DEEP = {**_BASE, "num_hidden_layers": 12, "intermediate_size": 3072, "max_position_embeddings": 512}
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "MiniLM-L6": (
        "Bert",
        {
            "hidden_size": 384,
            "num_hidden_layers": 6,
            "num_attention_heads": 12,
            "intermediate_size": 1536,
            "vocab_size": 30522,
            "max_position_embeddings": 512,
        },
    ),
    "BERT-base": ("Bert", {**_DEEP, "vocab_size": 30522}),
    "ModernBERT-base": ("ModernBert", {**_MODERN, "vocab_size": 50368}),
    "mmBERT-base": ("ModernBert", {**_MODERN, "vocab_size": 256000}),
    "XLM-R-base": (
        "XLMRoberta",
        {**_DEEP, "vocab_size": 250002, "max_position_embeddings": 514, "type_vocab_size": 1, "pad_token_id": 1},
    ),
    "DeBERTa-v3-base": (
        "DebertaV2",
        {
            **_DEEP,
            "vocab_size": 128100,
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
"""How transformers' class names of each begin, and its sizes."""
DECODER = "Qwen3-0.6B"
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
PEAKS = Path(__file__).parents[2] / "_native" / "bench" / "peaks.cpp"
BYTES = {"float32": 4.0, "bfloat16": 2.0, "int8": 34 / 32}
"""Of a weight in memory."""
RATES = {
    "float32": ("vfmadd231ps", "vfmadd231ps-256"),
    "bfloat16": ("tdpbf16ps", "vdpbf16ps", "vfmadd231ps", "vfmadd231ps-256"),
    "int8": ("vpdpbusd", "vpmaddubsw-256"),
}
"""The instructions of each type's products, the first that a processor has; vpmaddubsw with the three beside it."""


def lengths(count: int, middle: int, longest: int) -> list[int]:
    """Log-normal around ``middle``, sigma 0.7, at least 4, the same in every run."""
    drawn = np.exp(np.random.default_rng(0).normal(np.log(middle), 0.7, count))
    return np.clip(drawn, 4, longest).astype(int).tolist()


def random_ids(counts: Sequence[int]) -> list[list[int]]:
    draw = np.random.default_rng(1)
    return [draw.integers(1000, 4000, count).tolist() for count in counts]


def random_model(folder: Path, name: str) -> Path:
    """A checkpoint in ``folder``, or the one that is there; a decoder's weights are of bfloat16."""
    path = folder / name
    if path.exists():
        return path
    import torch
    import transformers

    begins, sizes = ("Qwen3", QWEN3) if name == DECODER else ENCODERS[name]
    kind, dtype = ("ForCausalLM", torch.bfloat16) if name == DECODER else ("Model", torch.float32)
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        config = getattr(transformers, f"{begins}Config")(**sizes)
        getattr(transformers, f"{begins}{kind}")(config).to(dtype).save_pretrained(path)
    finally:
        torch.set_default_dtype(before)
    shutil.copy(default_model.path() / "tokenizer.json", path / "tokenizer.json")
    return path


def peaks(threads: int = 1) -> dict[str, float]:
    """1e9 operations a second of each vector instruction on one thread, and 1e9 bytes a second that so many threads
    read from memory, the most of three runs; empty without a compiler."""
    with tempfile.TemporaryDirectory() as folder:
        made = str(Path(folder) / "peaks")
        try:
            compiler = os.environ.get("CXX", "c++").split()
            subprocess.run([*compiler, "-O2", "-pthread", "-o", made, str(PEAKS)], check=True, capture_output=True)
            command = [made, str(threads)]
            runs = [subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(3)]
        except (OSError, subprocess.CalledProcessError):
            return {}
    found: dict[str, float] = {}
    for name, rate in map(str.split, "".join(runs).splitlines()):
        found[name] = max(found.get(name, 0.0), float(rate))
    return found


def rate_of(kind: str, rates: dict[str, float]) -> float | None:
    """That of a type's products on this processor, by ``peaks``."""
    return next((rates[name] for name in RATES.get(kind, ()) if name in rates), None)


def weights_of(path: Path) -> tuple[int, int]:
    """Weights of the layers' projections, and of a decoder's LM head."""
    from safetensors import safe_open

    with safe_open(path / "model.safetensors", "np") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    counted = {name: int(np.prod(shape)) for name, shape in shapes.items() if len(shape) == 2}
    layers = sum(count for name, count in counted.items() if "layer" in name and "embed" not in name)
    decodes = config["architectures"][0].endswith("ForCausalLM")
    return layers, config["vocab_size"] * config["hidden_size"] if decodes else 0


def floors(
    path: Path, kind: str, counts: Sequence[int], said: int, threads: int, rates: dict[str, float]
) -> dict[str, float]:
    """Milliseconds that the products take at least: by the rate of their instruction, and by reading each weight once
    a step. ``counts``: tokens of each text, ``said``: tokens after it."""
    layers, head = weights_of(path)
    work = 2.0 * (layers * sum(counts) + head * len(counts) + (layers + head) * max(0, said - 1) * len(counts))
    rate = rate_of(kind, rates)
    read = (layers + head) * BYTES[kind] * max(1, said)
    found = {} if rate is None else {"arithmetic": 1e-6 * work / (rate * threads)}
    return found | ({"memory": 1e-6 * read / rates["memory"]} if "memory" in rates else {})
