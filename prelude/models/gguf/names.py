"""Names of tensors: llama.cpp's to those of transformers, and llama.cpp's changes of their values."""

from __future__ import annotations

import re
from collections.abc import Iterable

from prelude.errors import CheckpointError, UnsupportedModel, shown

_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NORMED_AFTER = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
"""Norms of Gemma 2 and 3."""
_PHI3 = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
ROPE_FACTORS = "rope_freqs.weight"
"""The divisor of each inverse frequency: rotary scaling of Llama 3.1 and later."""
SHORT_FACTORS, LONG_FACTORS = "rope_factors_short.weight", "rope_factors_long.weight"
"""The same of Phi-3, for contexts up to the original length and beyond it."""
_PART = re.compile(r"(?:blk\.(\d{1,6})\.)?([a-z_]+)\.(weight|bias)")

GEMMAS = ("gemma", "gemma2", "gemma3")
ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3", "phi3", *GEMMAS)


def model_names(names: Iterable[str], architecture: str, where: str) -> dict[str, str]:
    """Return the name that transformers gives each tensor. Tensors that are no weights are left out."""
    layer = {**_LAYER, **(_NORMED_AFTER if architecture in ("gemma2", "gemma3") else {})}
    others = {ROPE_FACTORS}
    if architecture == "phi3":
        joined = ("attn_q", "attn_k", "attn_v", "ffn_gate")
        layer = {name: mapped for name, mapped in layer.items() if name not in joined} | _PHI3
        others |= {SHORT_FACTORS, LONG_FACTORS}
    found: dict[str, str] = {}
    for name in names:
        if name in others:
            continue
        match = _PART.fullmatch(name)
        index, part, kind = match.groups() if match else (None, name, "")
        mapped = _OUTER.get(part) if index is None else layer.get(part)
        if mapped is None or not kind:
            raise UnsupportedModel(f"{where}: unsupported: tensor {shown(name)} is not part of a {architecture}")
        full = f"{mapped}.{kind}" if index is None else f"model.layers.{int(index)}.{mapped}.{kind}"
        if full in found:
            raise CheckpointError(f"{where}: tensors {shown(found[full])} and {shown(name)} are both {full}")
        found[full] = name
    return found


def rotated_heads(name: str, architecture: str, heads: int, kv_heads: int) -> int:
    """How many heads the rows of a tensor are whose halves lie interleaved, as llama.cpp writes those of Llama and
    Mistral; 0 for other tensors."""
    if architecture not in ("llama", "mistral"):
        return 0
    return heads if ".attn_q." in name else kv_heads if ".attn_k." in name else 0


def counts_from_one(name: str, architecture: str) -> bool:
    """Return whether a norm's gain is written with the one that transformers adds to it."""
    return architecture in GEMMAS and name.endswith("norm.weight")
