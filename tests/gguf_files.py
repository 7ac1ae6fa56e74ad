"""GGUF files as llama.cpp's converter makes them: written by the ``gguf`` package, with its own names of tensors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

gguf = pytest.importorskip("gguf", reason="the package gguf, of the extra test, is not installed")

ARCHITECTURES = {"llama": "LLAMA", "mistral": "LLAMA", "qwen2": "QWEN2", "qwen3": "QWEN3"}
ARCHITECTURES |= {"phi3": "PHI3", "gemma": "GEMMA", "gemma2": "GEMMA2", "gemma3_text": "GEMMA3"}
TYPE = gguf.GGMLQuantizationType


def write_model(
    source: Path, path: Path, kind: str | Callable[[str], str] = "Q8_0", changed: Callable[[Any], None] | None = None
) -> Path:
    """The safetensors model in ``source`` as a GGUF file. ``kind``: the type of its matrices, of all or by their GGUF
    name; ``changed`` adds metadata and tensors."""
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    family = config["model_type"]
    arch = gguf.MODEL_ARCH[ARCHITECTURES[family]]
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    rope = config.get("rope_parameters") or {}
    writer.add_rope_freq_base(rope.get("full_attention", rope).get("rope_theta", 10000.0))
    if family == "phi3":
        _add_phi3(writer, config, rope, head_dim)
    if family in ("gemma2", "gemma3_text"):
        writer.add_sliding_window(config["sliding_window"])
    if family == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
    if config.get("final_logit_softcapping"):
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    for name, tensor in load_file(source / "model.safetensors").items():
        own = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert own is not None, name
        values = tensor.float().numpy()
        heads = _turned_heads(own, config)
        if heads:
            halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
            values = halves.swapaxes(1, 2).reshape(values.shape)  # LlamaModel.permute of the converter
        if family.startswith("gemma") and own.endswith("norm.weight"):
            values = values + 1
        wanted = "F32" if values.ndim == 1 else kind if isinstance(kind, str) else kind(own)
        writer.add_tensor(own, quantized(values, wanted), raw_dtype=TYPE[wanted])
    if changed is not None:
        changed(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_phi3(writer: Any, config: dict[str, Any], rope: dict[str, Any], head_dim: int) -> None:
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    writer.add_rope_scaling_orig_ctx_len(config.get("original_max_position_embeddings", 4096))
    writer.add_sliding_window(config.get("sliding_window") or 0)
    if rope.get("attention_factor", 1.0) != 1.0:
        writer.add_rope_scaling_attn_factors(rope["attention_factor"])
    if rope.get("rope_type") == "longrope":
        for name in ("long", "short"):
            writer.add_tensor(f"rope_factors_{name}.weight", np.array(rope[f"{name}_factor"], np.float32))


def _turned_heads(own: str, config: dict[str, Any]) -> int:
    if config["model_type"] not in ("llama", "mistral"):
        return 0
    key = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}.get(own.split(".")[-2])
    return 0 if key is None else int(config[key])


def quantized(values: np.ndarray, kind: str) -> np.ndarray:
    """Bytes or numbers of ``kind``. The package does not write Q4_K, Q5_K and Q6_K: their blocks are random bytes
    around scales that fit the size of ``values``."""
    if kind == "F32":
        return values.astype(np.float32)
    if kind not in BYTES:
        found: np.ndarray = gguf.quants.quantize(values, TYPE[kind])
        return found
    made = np.random.default_rng(values.size).integers(0, 256, (values.size // 256, BYTES[kind]), np.uint8)
    size = float(np.abs(values).mean())
    for at, by in SCALES[kind]:
        made[:, at : at + 2] = np.frombuffer(np.float16(size * by).tobytes(), np.uint8)
    return made.reshape(*values.shape[:-1], -1)


BYTES = {"Q4_K": 144, "Q5_K": 176, "Q6_K": 210}
SCALES = {"Q4_K": [(0, 1 / 240), (2, 1 / 32)], "Q5_K": [(0, 1 / 480), (2, 1 / 32)], "Q6_K": [(208, 1 / 2000)]}
"""Offsets of a block's float16 values, and the scales that make the values of random blocks about as large as one."""


def dequantized(path: Path, source: Path, target: Path) -> Path:
    """The model in ``source`` with the values that the ``gguf`` package reads in ``path``."""
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    arch = gguf.MODEL_ARCH[ARCHITECTURES[config["model_type"]]]
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    found: dict[str, torch.Tensor] = {}
    for name in load_file(source / "model.safetensors"):
        own = names.get_name(name, try_suffixes=(".weight", ".bias"))
        values = gguf.quants.dequantize(tensors[own].data, tensors[own].tensor_type).astype(np.float32)
        heads = _turned_heads(own, config)
        if heads:
            pairs = values.reshape(heads, -1, 2, *values.shape[1:])
            values = pairs.swapaxes(1, 2).reshape(values.shape)
        if config["model_type"].startswith("gemma") and own.endswith("norm.weight"):
            values = values - 1
        found[name] = torch.from_numpy(values.copy())
    target.mkdir()
    save_file(found, target / "model.safetensors", {"format": "pt"})
    (target / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return target
