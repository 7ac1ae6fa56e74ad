"""Small directories of every format whose head reads the options of a question: recorded configs, weights from a
formula or random ones."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

Formula = Callable[..., Any]


def formula_of(folder: Path) -> Formula:
    """``tensor(name, shape, gain)`` of the recorded data."""
    spec = importlib.util.spec_from_file_location("hashweights", folder / "hashweights.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: Formula = module.tensor
    return made


def weights(recorded: dict[str, Any], tensor: Formula) -> dict[str, torch.Tensor]:
    made = {}
    for name, shape in recorded["tensors"].items():
        gain = next((gain for part, gain in recorded["gains"] if part in name), 1.0)
        made[name] = torch.from_numpy(tensor(name, shape, gain))
    return made


def random_weights(shapes: Mapping[str, tuple[int, ...]], seed: int = 0) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return {
        name: float("norm" in name and name.endswith("weight")) + 0.15 * torch.randn(shape)
        for name, shape in shapes.items()
    }


def save_tokenizer(path: Path, specials: tuple[str, ...], added: Mapping[str, int] | None = None) -> None:
    """One token a byte behind ``specials``, and ``added`` ones at their ids."""
    usual = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = sorted(map(chr, [*usual, *range(256, 256 + 256 - len(usual))]))
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    ids = {name: index for index, name in enumerate(specials)} | dict(added or {})
    spaces = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    vocab = {token: index for index, token in enumerate((*specials, *alphabet))}
    found = {
        "version": "1.0",
        **dict.fromkeys(("truncation", "padding", "normalizer", "post_processor")),
        "added_tokens": [{"id": index, "content": name, "special": True} | plain for name, index in ids.items()],
        "pre_tokenizer": spaces,
        "decoder": spaces,
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "unk_token": "[UNK]", "dropout": None},
    }
    write_json(path, found)


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def write_bev(path: Path, recorded: dict[str, Any], tensor: Formula) -> Path:
    write_json(path / "config.json", recorded["config"])
    write_json(path / "backbone_config.json", recorded["backbone_config"])
    save_tokenizer(path / "tokenizer.json", ("<|endoftext|>",))
    save_file(weights(recorded, tensor), path / "model.safetensors")
    return path


def write_gliner(path: Path, recorded: dict[str, Any], tensor: Formula) -> Path:
    rows = recorded["tensors"]["encoder.embeddings.word_embeddings.weight"][0]
    write_json(path / "config.json", {"model_type": "extractor", "token_pooling": "first"})
    write_json(path / "encoder_config/config.json", {**recorded["encoder_config"], "vocab_size": rows})
    save_tokenizer(path / "tokenizer.json", tuple(recorded["specials"]), recorded["added"])
    save_file(weights(recorded, tensor), path / "model.safetensors")
    return path


MODERNBERT: dict[str, Any] = {
    "model_type": "modernbert", "architectures": ["ModernBertModel"], "vocab_size": 261, "hidden_size": 128,
    "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 256,
    "local_attention": 16, "pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2,
    "eos_token_id": 3,
}  # fmt: skip
BERT_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def write_opendecider(path: Path, **changes: Any) -> Path:
    import transformers

    torch.manual_seed(0)
    config = transformers.ModernBertConfig(**{k: v for k, v in MODERNBERT.items() if k != "architectures"})
    transformers.ModernBertModel(config).save_pretrained(path)
    width = config.hidden_size
    shapes = {
        f"{at}.{part}": (width, width) if part == "weight" else (width,) for at in (0,) for part in ("weight", "bias")
    }
    shapes |= {"2.weight": (width,), "2.bias": (width,), "3.weight": (1, width), "3.bias": (1,)}
    save_file(random_weights(shapes), path / "head.safetensors")
    write_json(path / "opendecider.json", {"kind": "nano", "name": "small", "max_len": 200, **changes})
    save_tokenizer(path / "tokenizer.json", BERT_SPECIALS)
    return path


KEV_TOKENS = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|box_start|>", "<|box_end|>")


def write_pointer(path: Path, **changes: Any) -> Path:
    import transformers

    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=261,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    transformers.Qwen3Model(config).save_pretrained(path)
    shapes = {
        f"{name}.{part}": (32, 64) if part == "weight" else (32,) for name in "qk" for part in ("weight", "bias")
    }
    save_file({name: 4 * value for name, value in random_weights(shapes).items()}, path / "pointer_head.safetensors")
    write_json(path / "pointer_head.json", {"head_dim": 32, "temperature": 1.5, **changes})
    save_tokenizer(path / "tokenizer.json", KEV_TOKENS)
    return path


def write_laya(path: Path, recorded: dict[str, Any], tensor: Formula) -> Path:
    """A model with a marker head. ``tensor(name, shape, gain)`` makes a weight."""
    made = weights(recorded, tensor) | {"temperature": torch.ones(3)}
    write_json(path / "rl_agent_config.json", recorded["agent_config"])
    write_json(path / "encoder/config.json", recorded["encoder_config"])
    save_tokenizer(path / "tokenizer/tokenizer.json", BERT_SPECIALS)
    save_file(made, path / "model.safetensors")
    return path


AGENT: dict[str, Any] = {
    "head_layers": 2, "max_len": 200, "head_max_len": 120, "temperature": [1.5, 0.75, 2.0],
    "temperature_by_options": {"choice:2": 1.25, "choice:11+": 0.1},
}  # fmt: skip
ENCODER: dict[str, Any] = {
    "model_type": "modernbert", "vocab_size": 261, "hidden_size": 128, "intermediate_size": 64,
    "num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 256, "local_attention": 16,
}  # fmt: skip


def write_random(path: Path, agent: dict[str, Any] | None = None, encoder: dict[str, Any] | None = None) -> Path:
    """One with random weights; ``agent`` and ``encoder`` change its two configs."""
    from prelude.models.files import ModelDirectory
    from prelude.models.options.laya import LAYA

    write_laya(path, {"agent_config": AGENT, "encoder_config": ENCODER, "tensors": {}, "gains": []}, lambda *_: None)
    made = random_weights(LAYA.network(ModelDirectory(path)).spec.tensors())
    made["scorer.0.weight"] += 1
    save_file(
        {name.replace("in_proj.", "in_proj_"): value for name, value in made.items()}, path / "model.safetensors"
    )
    write_json(path / "rl_agent_config.json", {**AGENT, **(agent or {})})
    write_json(path / "encoder/config.json", {**ENCODER, **(encoder or {})})
    return path
