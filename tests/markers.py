"""A small model with a marker head, in a directory as Laya's, out of recorded configs and weights from a formula."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def byte_tokenizer() -> dict[str, Any]:
    """``tokenizer.json`` of one token a byte, behind the special ones."""
    usual = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = sorted(map(chr, [*usual, *range(256, 256 + 256 - len(usual))]))
    vocab = {token: index for index, token in enumerate((*SPECIALS, *alphabet))}
    added = [
        {"id": index, "content": token, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for index, token in enumerate(SPECIALS)
    ]
    spaces = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": vocab, "merges": [], "unk_token": None, "dropout": None}
    fields = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor"))
    return {"version": "1.0", **fields, "added_tokens": added} | {
        "pre_tokenizer": spaces,
        "decoder": spaces,
        "model": model,
    }


def write_laya(path: Path, recorded: dict[str, Any], tensor: Callable[..., Any]) -> Path:
    """``tensor(name, shape, gain)`` makes a weight."""
    made = {}
    for name, shape in recorded["tensors"].items():
        gain = next((gain for part, gain in recorded["gains"] if part in name), 1.0)
        made[name] = torch.from_numpy(tensor(name, shape, gain))
    made["temperature"] = torch.ones(3)
    for folder in ("encoder", "tokenizer"):
        (path / folder).mkdir(exist_ok=True)
    save_file(made, path / "model.safetensors")
    (path / "rl_agent_config.json").write_text(json.dumps(recorded["agent_config"]), encoding="utf-8")
    (path / "encoder/config.json").write_text(json.dumps(recorded["encoder_config"]), encoding="utf-8")
    (path / "tokenizer/tokenizer.json").write_text(json.dumps(byte_tokenizer()), encoding="utf-8")
    return path


AGENT: dict[str, Any] = {
    "head_layers": 2,
    "max_len": 200,
    "head_max_len": 120,
    "temperature": [1.5, 0.75, 2.0],
    "temperature_by_options": {"choice:2": 1.25, "choice:11+": 0.1},
}
ENCODER: dict[str, Any] = {
    "model_type": "modernbert",
    "vocab_size": 261,
    "hidden_size": 128,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "local_attention": 16,
}


def write_random(path: Path, agent: dict[str, Any] | None = None, encoder: dict[str, Any] | None = None) -> Path:
    """One with random weights; ``agent`` and ``encoder`` change its two configs."""
    from prelude.models.files import ModelDirectory
    from prelude.models.options.laya import LAYA

    recorded = {"agent_config": AGENT, "encoder_config": ENCODER, "tensors": {}, "gains": []}
    write_laya(path, recorded, lambda *_: None)
    spec = LAYA.network(ModelDirectory(path)).spec
    torch.manual_seed(0)
    made = {}
    for name, shape in spec.tensors().items():
        gain = ("norm" in name and name.endswith("weight")) or name == "scorer.0.weight"
        made[name.replace("in_proj.", "in_proj_")] = float(gain) + 0.15 * torch.randn(shape)
    save_file(made, path / "model.safetensors")
    (path / "rl_agent_config.json").write_text(json.dumps({**AGENT, **(agent or {})}), encoding="utf-8")
    (path / "encoder/config.json").write_text(json.dumps({**ENCODER, **(encoder or {})}), encoding="utf-8")
    return path
