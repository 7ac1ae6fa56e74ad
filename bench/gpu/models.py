"""Random models of the exact shapes, made where they are needed; float32 references; floors.

Latency does not depend on the values of weights, as long as they are not zeros. Correctness is checked against a
plain float32 forward over the same weights, written here for being read: no cache, no packing, one sequence at a
time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.gpu.chips import Chip
from prelude.models.arrays import Array, narrow
from prelude.models.config import ModelConfig


def qwen3(
    hidden: int,
    layers: int,
    heads: int,
    inner: int,
    *,
    head_dim: int = 128,
    vocab: int = 151_936,
    positions: int = 8192,
    eps: float = 1e-6,
) -> ModelConfig:
    return ModelConfig.from_dict(
        {
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
            "rope_theta": 1_000_000.0,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "eos_token_id": 0,
        }
    )


MODELS = {
    "06b": qwen3(1024, 28, 16, 3072, positions=16_384),  # a state of 8,192 tokens, and questions behind it
    "4b": qwen3(2560, 36, 32, 9728),
    "tiny": qwen3(256, 3, 16, 512, vocab=2048),
}


class RandomSource:
    """A checkpoint that is drawn when it is read: the same tensor whenever it is asked for, on ``device``."""

    def __init__(self, config: ModelConfig, device: str, dtype: torch.dtype, seed: int = 0) -> None:
        self.config = config
        self.device = device
        self.dtype = dtype
        self.seed = seed
        self._shapes = config.spec.tensors()

    def names(self) -> Sequence[str]:
        return list(self._shapes)

    def tensor(self, name: str) -> Array:
        values: Array = self.drawn(name).float().cpu().numpy()
        return narrow(values) if self.dtype == torch.bfloat16 else values

    def drawn(self, name: str) -> Tensor:
        shape = self._shapes[name]
        generator = torch.Generator(self.device).manual_seed(self.seed + 1000 * list(self._shapes).index(name))
        drawn = torch.randn(shape, generator=generator, device=self.device, dtype=torch.float32)
        if len(shape) == 1:
            return (1.0 + 0.1 * drawn).to(self.dtype)
        scale = 0.02 if "embed" in name else 0.7 / math.sqrt(shape[1])
        return (drawn * scale).to(self.dtype)


class Reference:
    """Logits of whole sequences in float32, by the book."""

    def __init__(self, source: RandomSource) -> None:
        self.config = source.config
        self.device = source.device
        self.weights = {name: source.drawn(name).float() for name in source.names()}
        turns = torch.from_numpy(source.config.spec.attention.rope.turns(0, source.config.max_positions))
        self.cosine, self.sine = (part.contiguous().to(source.device) for part in (turns.real, turns.imag))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return (
            x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.config.spec.final_norm.eps) * self.weights[name]
        )

    def _turn(self, x: Tensor) -> Tensor:
        n, half = x.shape[0], x.shape[-1] // 2
        c, s = self.cosine[:n, None], self.sine[:n, None]
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * c - b * s, b * c + a * s], -1)

    def hidden(self, ids: Tensor) -> Tensor:
        """[tokens, hidden] after the final norm."""
        config, w = self.config, self.weights
        x = w["model.embed_tokens.weight"][ids]
        for i in range(len(config.spec.layers)):
            at, mlp = f"model.layers.{i}.self_attn", f"model.layers.{i}.mlp"
            y = self._norm(x, f"model.layers.{i}.input_layernorm.weight")
            q, k, v = (
                (y @ w[f"{at}.{part}_proj.weight"].t()).view(len(ids), -1, config.spec.attention.head_dim)
                for part in "qkv"
            )
            q = self._turn(self._norm(q, f"{at}.q_norm.weight")).transpose(0, 1)
            k = self._turn(self._norm(k, f"{at}.k_norm.weight")).transpose(0, 1)
            group = config.spec.attention.heads // config.spec.attention.kv_heads
            k, v = k.repeat_interleave(group, 0), v.transpose(0, 1).repeat_interleave(group, 0)
            scores = q @ k.transpose(1, 2) / math.sqrt(config.spec.attention.head_dim)
            hidden = torch.ones(len(ids), len(ids), dtype=torch.bool, device=ids.device).triu(1)
            out = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
            x = x + out.transpose(0, 1).reshape(len(ids), -1) @ w[f"{at}.o_proj.weight"].t()
            y = self._norm(x, f"model.layers.{i}.post_attention_layernorm.weight")
            gate, up = y @ w[f"{mlp}.gate_proj.weight"].t(), y @ w[f"{mlp}.up_proj.weight"].t()
            x = x + (torch.nn.functional.silu(gate) * up) @ w[f"{mlp}.down_proj.weight"].t()
        return self._norm(x, "model.norm.weight")

    def logprobs(self, ids: Tensor) -> Tensor:
        """[vocab] of the token behind ``ids``, float64."""
        last = self.hidden(ids)[-1]
        return (last @ self.weights["model.embed_tokens.weight"].t()).double().log_softmax(-1)


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
    heads, layers = config.spec.attention, config.spec.layers
    return {
        "architectures": [config.architecture],
        "model_type": config.model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": layers[0].mlp.inner,
        "num_hidden_layers": len(layers),
        "num_attention_heads": heads.heads,
        "num_key_value_heads": heads.kv_heads,
        "head_dim": heads.head_dim,
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.spec.final_norm.eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": heads.rope.theta},
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
        "eos_token_id": 0,
    }


def transformers_model(config: ModelConfig, source: RandomSource) -> Any:
    """The same weights in transformers, bfloat16, SDPA."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    settings = Qwen3Config(**described(config), attn_implementation="sdpa")
    with torch.device("meta"):
        model = Qwen3ForCausalLM(settings)
    model = model.to_empty(device=source.device).to(torch.bfloat16).eval()
    model.tie_weights()  # to_empty takes them apart
    known = set(source.names())
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name in known:
                weight.copy_(source.drawn(name))
    if model.lm_head.weight.data_ptr() != model.model.embed_tokens.weight.data_ptr():
        model.lm_head.weight = model.model.embed_tokens.weight
    # to_empty leaves buffers as they come: the rotary frequencies are made again.
    model.model.rotary_emb = type(model.model.rotary_emb)(config=settings).to(source.device)
    return model


def save_checkpoint(config: ModelConfig, folder: Path, device: str = "cpu") -> None:
    """A directory as transformers writes it, with the packaged tokenizer; weights are drawn on ``device``."""
    import json
    import shutil

    from safetensors.torch import save_file

    from prelude import default_model

    source = RandomSource(config, device, torch.bfloat16)
    save_file({name: source.drawn(name).cpu() for name in source.names()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(described(config)), encoding="utf-8")
    shutil.copy(default_model.path() / "tokenizer.json", folder / "tokenizer.json")
