"""Configs of small models, hostile values for their keys, and the check that each config is read or refused."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from prelude.errors import ModelError
from prelude.models.config import ModelConfig
from prelude.models.spec import Rope

NEW: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 64, "hidden_size": 32,
    "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"}, "tie_word_embeddings": True,
    "hidden_act": "silu", "dtype": "bfloat16", "eos_token_id": 3, "bos_token_id": 1, "pad_token_id": None,
    "attention_bias": False, "use_sliding_window": False, "sliding_window": None,
}  # fmt: skip
OLD = {key: value for key, value in NEW.items() if key not in ("rope_parameters", "dtype")} | {
    "rope_theta": 1000000, "rope_scaling": None, "torch_dtype": "bfloat16", "sliding_window": 4096,
    "max_window_layers": 2,
}  # fmt: skip
YARN = {"factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.5, "high_freq_factor": 6.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


class _Absent:
    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Any = _Absent()
LLAMA: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
MISTRAL: dict[str, Any] = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "attention_bias": ABSENT}
QWEN2: dict[str, Any] = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "attention_bias": ABSENT}


def read(base: dict[str, Any] = NEW, **changes: Any) -> ModelConfig:
    raw = {**base, **changes}
    return ModelConfig.from_dict({key: value for key, value in raw.items() if value is not ABSENT})


def rope(config: ModelConfig) -> Rope:
    found = config.spec.attention.rope
    assert found is not None
    return found


HOSTILE: list[Any] = [
    *(None, True, False, 0, 1, -1, 7, 2**31, 2**63, 10**400, 0.0, -0.0, 0.5, 1e308, math.nan, math.inf, -math.inf),
    *("", "x", "0", "\ud800", "a\0b", "x" * 100_000, [], [None], [[]], [1] * 5000, ["x"], {}, {"x": 1}, {"x": {}}),
]
"""Values that stand under every key in turn."""


def refusal(config: dict[str, Any]) -> str | None:
    """The message of a refused config; None for one that is read, and can be used."""
    try:
        found = ModelConfig.from_dict(config)
    except ModelError as failure:
        return str(failure)
    assert found.max_positions >= 1 and found.spec.tensors()
    return None


def refusals(configs: Iterable[dict[str, Any]]) -> int:
    """The number of refused configs. No config may raise an error but a ``ModelError`` of bounded length."""
    messages = [message for message in map(refusal, configs) if message is not None]
    for message in messages:
        assert len(message) <= 500, message[:200]
    return len(messages)
