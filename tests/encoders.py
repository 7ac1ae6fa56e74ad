"""Small random encoders of every family beside transformers' own, for tests of models and of the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from prelude.cpu.executor import CpuExecutor
from prelude.models.config import ModelConfig
from tests.execution.helpers import cpu_executor

SIZES: dict[str, Any] = {
    "vocab_size": 211, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 100,
    "max_position_embeddings": 140, "layer_norm_eps": 0.02, "norm_eps": 0.03, "rms_norm_eps": 0.04,
}  # fmt: skip
DISTILBERT = {"vocab_size": 211, "dim": 48, "n_layers": 3, "n_heads": 4, "hidden_dim": 100, "layer_norm_eps": 0.02}
CLASSES = {"bert": "Bert", "roberta": "Roberta", "xlm-roberta": "XLMRoberta", "distilbert": "DistilBert"}
CLASSES |= {"electra": "Electra", "modernbert": "ModernBert", "gemma3_text": "Gemma3Text"}
CLASSES |= {"deberta-v2": "DebertaV2"}
_V3 = {"position_buckets": 32, "norm_rel_ebd": "layer_norm", "share_att_key": True, "relative_attention": True}
DEBERTA = {**_V3, "position_biased_input": False, "pos_att_type": ["p2c", "c2p"], "layer_norm_eps": 1e-7}

VARIANTS: dict[str, dict[str, Any]] = {
    "bert": {"family": "bert"}, "bert-relu": {"family": "bert", "hidden_act": "relu"},
    "bert-gelu-new": {"family": "bert", "hidden_act": "gelu_new", "type_vocab_size": 3},
    "bert-narrow-heads": {"family": "bert", "num_attention_heads": 16},
    "bert-one-layer": {"family": "bert", "num_hidden_layers": 1}, "roberta": {"family": "roberta"},
    "roberta-silu-types": {"family": "roberta", "hidden_act": "silu", "type_vocab_size": 2, "pad_token_id": 4},
    "xlm-roberta": {"family": "xlm-roberta"}, "distilbert": {"family": "distilbert", "activation": "relu"},
    "electra": {"family": "electra"}, "electra-narrow-embeddings": {"family": "electra", "embedding_size": 20},
    "modernbert": {"family": "modernbert", "classifier_activation": "relu", "classifier_bias": True},
    "modernbert-biases": {"family": "modernbert", "attention_bias": True, "norm_bias": True},
    "modernbert-all-global": {"family": "modernbert", "global_attn_every_n_layers": 1, "hidden_activation": "relu"},
    "modernbert-wide-window": {"family": "modernbert", "local_attention": 90, "mlp_bias": True},
    "deberta-v2": {"family": "deberta-v2", "pooler_hidden_act": "tanh"},
    "deberta-v2-positions": {"family": "deberta-v2", "position_biased_input": True},
    "deberta-v2-types": {"family": "deberta-v2", "position_biased_input": True, "type_vocab_size": 2},
    "deberta-v2-few-buckets": {"family": "deberta-v2", "position_buckets": 6, "max_relative_positions": 60},
    "deberta-v2-no-buckets": {"family": "deberta-v2", "position_buckets": -1, "num_attention_heads": 3},
    "deberta-v2-old-spelling": {"family": "deberta-v2", "pos_att_type": "c2p|p2c", "norm_rel_ebd": "none"},
    "gemma3_text": {"family": "gemma3_text"},
    "gemma3_text-narrowest-window": {"family": "gemma3_text", "sliding_window": 1},
    "gemma3_text-odd-window": {"family": "gemma3_text", "sliding_window": 7, "query_pre_attn_scalar": 12},
}  # fmt: skip


def write_encoder(
    path: Path, *, family: str, kind: str = "Model", seed: int = 0, dtype: str = "float32", **changes: Any
) -> Path:
    """A random checkpoint: gains around one, biases around zero, weights large enough that answers differ."""
    sizes = {**DISTILBERT, "max_position_embeddings": 140} if family == "distilbert" else SIZES
    if family == "modernbert":
        sizes = {"local_attention": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, **sizes}
        sizes |= {"cls_token_id": 1, "sep_token_id": 2}
    if family == "electra":
        sizes = {"embedding_size": 48, **sizes}
    if family == "deberta-v2":
        sizes = {**DEBERTA, **sizes}
    if family == "gemma3_text":
        kinds = ["sliding_attention", "full_attention", "sliding_attention"]
        sizes = {"use_bidirectional_attention": True, "sliding_window": 16, "layer_types": kinds, **sizes}
        sizes |= {"num_key_value_heads": 2, "head_dim": 16}
    config = getattr(transformers, f"{CLASSES[family]}Config")(**{**sizes, **changes})
    torch.manual_seed(seed)
    model = getattr(transformers, CLASSES[family] + kind)(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            gain = "norm" in name.lower() and name.endswith("weight") and family != "gemma3_text"
            weight.copy_((1.0 if gain else 0.0) + (0.2 if weight.ndim == 1 else 0.15) * torch.randn(weight.shape))
    model.to(getattr(torch, dtype)).save_pretrained(path)
    return path


def run_encoder(path: Path, **options: Any) -> CpuExecutor:
    return cpu_executor(path, ModelConfig.from_dir(path), num_blocks=1, **options)


@dataclass
class Encoder:
    """A checkpoint, and transformers' model of it."""

    path: Path
    config: ModelConfig = field(init=False)
    oracle: Any = field(init=False)

    def __post_init__(self) -> None:
        self.config = ModelConfig.from_dir(self.path)
        loader = getattr(transformers, self.config.architecture)
        self.oracle = loader.from_pretrained(self.path, dtype=torch.float32).eval()

    def executor(self, **options: Any) -> CpuExecutor:
        return run_encoder(self.path, **options)

    def run(self, ids: np.ndarray, second: int | None = None) -> Any:
        """transformers' output for one prompt, whose tokens from ``second`` on are of a second text."""
        more: dict[str, Tensor] = {}
        if second is not None:
            more["token_type_ids"] = (torch.arange(len(ids)) >= second).long()[None]
        with torch.no_grad():
            return self.oracle(torch.tensor(ids.astype(np.int64))[None], **more)

    def states(self, ids: np.ndarray, second: int | None = None) -> np.ndarray:
        """[tokens, hidden]"""
        found: np.ndarray = self.run(ids, second).last_hidden_state[0].numpy()
        return found
