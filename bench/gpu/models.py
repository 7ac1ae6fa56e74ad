"""Random models of the exact shapes, made where they are needed; float32 references; floors.

Latency does not depend on the values of weights, as long as they are not zeros.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.gpu.chips import Chip
from prelude.models.arrays import BF16, Array
from prelude.models.config import ModelConfig


def fields(
    hidden: int, layers: int, heads: int, inner: int, head_dim: int, vocab: int, positions: int, eps: float
) -> dict[str, Any]:
    """Of a config.json."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": head_dim,
        "max_position_embeddings": positions,
        "rms_norm_eps": eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
        "eos_token_id": 0,
    }


def qwen3(
    *sizes: int, head_dim: int = 128, vocab: int = 151_936, positions: int = 8192, eps: float = 1e-6
) -> ModelConfig:
    """``sizes``: hidden, layers, heads, inner."""
    return ModelConfig.from_dict(fields(*sizes, head_dim, vocab, positions, eps))


MODELS = {
    "06b": qwen3(1024, 28, 16, 3072, positions=16_384),  # a state of 8,192 tokens, and questions behind it
    "4b": qwen3(2560, 36, 32, 9728),
    "tiny": qwen3(256, 3, 16, 512, vocab=2048),
}


class RandomSource:
    """A checkpoint that is drawn when it is read: the same tensor whenever it is asked for, on ``device``."""

    def __init__(self, config: ModelConfig, device: str, dtype: torch.dtype) -> None:
        self.config = config
        self.device = device
        self.dtype = dtype
        self._shapes = config.spec.tensors()

    def names(self) -> Sequence[str]:
        return list(self._shapes)

    def tensor(self, name: str) -> Array:
        drawn = self.drawn(name).cpu()
        return drawn.view(torch.int16).numpy().view(BF16) if self.dtype == torch.bfloat16 else drawn.numpy()

    def drawn(self, name: str) -> Tensor:
        shape = self._shapes[name]
        generator = torch.Generator(self.device).manual_seed(1000 * list(self._shapes).index(name))
        drawn = torch.randn(shape, generator=generator, device=self.device, dtype=torch.float32)
        if len(shape) == 1:
            return (1.0 + 0.1 * drawn).to(self.dtype)
        scale = 0.02 if "embed" in name else 0.7 / math.sqrt(shape[1])
        return (drawn * scale).to(self.dtype)


class Reference:
    """transformers over the same weights: whole sequences, one at a time, without a cache."""

    def __init__(self, source: RandomSource, dtype: torch.dtype = torch.float32) -> None:
        from transformers import AutoModelForCausalLM, Qwen3Config

        self.device = source.device
        kind = "eager" if dtype == torch.float32 else "sdpa"
        settings = Qwen3Config(**described(source.config), attn_implementation=kind)
        with torch.device(source.device):
            self.model = AutoModelForCausalLM.from_config(settings, dtype=dtype).eval()
        with torch.no_grad():
            for name, weight in self.model.named_parameters():  # the head is the embeddings
                weight.copy_(source.drawn(name))

    def logprobs(self, ids: np.ndarray) -> np.ndarray:
        """[vocab] of the token behind ``ids``, float64."""
        with torch.inference_mode():
            found = self.model(torch.from_numpy(ids).long().to(self.device)[None], logits_to_keep=1).logits[0, -1]
        logprobs: np.ndarray = found.double().log_softmax(-1).cpu().numpy()
        return logprobs


def causal(tokens: int) -> int:
    """Pairs of a query and a key in a prompt."""
    return tokens * (tokens + 1) // 2


@dataclass(frozen=True)
class Floor:
    """The least seconds that a load can take on ``chip``: the larger of arithmetic and bytes."""

    config: ModelConfig
    chip: Chip

    @property
    def layer_parameters(self) -> int:
        shapes = self.config.spec.tensors().items()
        return sum(math.prod(s) for name, s in shapes if ".layers." in name and len(s) == 2)

    @property
    def head_parameters(self) -> int:
        return self.config.vocab_size * self.config.hidden_size

    def prefill(self, tokens: int, rows: int, pairs: int) -> float:
        """``rows`` meet the vocabulary, ``pairs`` of a query and a key meet in each head."""
        config = self.config
        flops = 2 * tokens * self.layer_parameters + 2 * rows * self.head_parameters
        flops += 4 * pairs * config.spec.attention.heads * config.spec.attention.head_dim * len(config.spec.layers)
        nbytes = 2 * (self.layer_parameters + (self.head_parameters if rows else 0))
        return max(flops / self.chip.flops, nbytes / self.chip.bytes)

    def decode(self, batch: int, context: int) -> float:
        kv = batch * context * self.config.spec.kv_bytes_per_token(2)
        return (2 * (self.layer_parameters + self.head_parameters) + kv) / self.chip.bytes


def described(config: ModelConfig) -> dict[str, Any]:
    """The fields of its config.json."""
    spec, hidden, vocab = config.spec, config.hidden_size, config.vocab_size
    heads, layers, eps = spec.attention, spec.layers, spec.final_norm.eps
    sizes = hidden, len(layers), heads.heads, layers[0].mlp.inner, heads.head_dim
    return fields(*sizes, vocab, config.max_positions, eps)


def save_checkpoint(config: ModelConfig, folder: Path, device: str = "cpu") -> None:
    """A directory as transformers writes it, with the packaged tokenizer; weights are drawn on ``device``."""
    from safetensors.torch import save_file

    from prelude import default_model

    source = RandomSource(config, device, torch.bfloat16)
    save_file({name: source.drawn(name).cpu() for name in source.names()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(described(config)), encoding="utf-8")
    shutil.copy(default_model.path() / "tokenizer.json", folder / "tokenizer.json")
