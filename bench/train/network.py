"""Qwen3 in plain torch, for training: one shared prefix per batch, questions as branches of a state.

The names of the parameters are those of the published checkpoints, so that ``state_dict`` is the
file. ``evaluate.py`` runs the result with transformers, which keeps this copy honest.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": None,
    "eos_token_id": 0,
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 192,
    "initializer_range": 0.02,
    "intermediate_size": 352,
    "max_position_embeddings": 8192,
    "max_window_layers": 4,
    "model_type": "qwen3",
    "num_attention_heads": 6,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 4096,
}
HIDDEN, HEADS, KV_HEADS, HEAD = 192, 6, 2, 32
EPS, THETA = CONFIG["rms_norm_eps"], CONFIG["rope_theta"]


def rotation(positions: Tensor) -> tuple[Tensor, Tensor]:
    frequencies = THETA ** (-torch.arange(0, HEAD, 2, dtype=torch.float32) / HEAD)
    angles = positions[..., None].float() * frequencies
    angles = torch.cat([angles, angles], -1)[:, None]
    return angles.cos(), angles.sin()


def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    low, high = x.chunk(2, -1)
    return x * turn[0] + torch.cat([-high, low], -1) * turn[1]


class Norm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, self.weight, EPS)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(HIDDEN, HEADS * HEAD, bias=False)
        self.k_proj = nn.Linear(HIDDEN, KV_HEADS * HEAD, bias=False)
        self.v_proj = nn.Linear(HIDDEN, KV_HEADS * HEAD, bias=False)
        self.o_proj = nn.Linear(HEADS * HEAD, HIDDEN, bias=False)
        self.q_norm = Norm(HEAD)
        self.k_norm = Norm(HEAD)

    def project(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        rows, length, _ = x.shape
        q = self.q_norm(self.q_proj(x).view(rows, length, HEADS, HEAD)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(rows, length, KV_HEADS, HEAD)).transpose(1, 2)
        v = self.v_proj(x).view(rows, length, KV_HEADS, HEAD).transpose(1, 2)
        return rotate(q, turn), rotate(k, turn), v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        # float32: under autocast only the matrix products of the layers run in bfloat16.
        with torch.autocast("cpu", enabled=False):
            q = q.float()
            k, v = (t.float().repeat_interleave(HEADS // KV_HEADS, 1) for t in (k, v))
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        inner = CONFIG["intermediate_size"]
        self.gate_proj = nn.Linear(HIDDEN, inner, bias=False)
        self.up_proj = nn.Linear(HIDDEN, inner, bias=False)
        self.down_proj = nn.Linear(inner, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = Attention()
        self.mlp = MLP()
        self.input_layernorm = Norm(HIDDEN)
        self.post_attention_layernorm = Norm(HIDDEN)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(CONFIG["vocab_size"], HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(CONFIG["num_hidden_layers"]))
        self.norm = Norm(HIDDEN)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = Body()
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                scale = 0.02 / (8**0.5) if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.02
                nn.init.normal_(parameter, std=scale)

    def forward(
        self, prefix: Tensor | None, ids: Tensor, positions: Tensor, mask: Tensor | None
    ) -> tuple[Tensor | None, Tensor]:
        """Final hidden states of the shared prefix [1, P] and of the rows [N, T].

        ``mask`` [N, 1, T, P + T] has the positions that each row position sees; None means plain causal rows
        (then there is no prefix). ``positions`` [N, T] count on from the prefix.
        """
        body = self.model
        x = body.embed_tokens(ids)
        turn = rotation(positions)
        p = prefix_turn = None
        if prefix is not None:
            p = body.embed_tokens(prefix)
            prefix_turn = rotation(torch.arange(prefix.shape[1])[None])
        for layer in body.layers:
            q, k, v = layer.self_attn.project(layer.input_layernorm(x), turn)
            if p is not None:
                pq, pk, pv = layer.self_attn.project(layer.input_layernorm(p), prefix_turn)
                p = layer.finish(p, layer.self_attn.attend(pq, pk, pv, None))
                k = torch.cat([pk.expand(len(ids), -1, -1, -1), k], 2)
                v = torch.cat([pv.expand(len(ids), -1, -1, -1), v], 2)
            x = layer.finish(x, layer.self_attn.attend(q, k, v, mask))
        return (None if p is None else body.norm(p)), body.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.model.embed_tokens.weight)
