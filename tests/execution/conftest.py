from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import save_model
from tests.execution.helpers import Model
from tests.threads import use_threads

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "sharded": {"shard": "60KB"},
    "bf16-files": {"dtype": "bfloat16"},
    "no-groups": {"num_key_value_heads": 4},
    "groups-of-4": {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16},
    "biases": {"attention_bias": True},
    "yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 256,
        }
    },
    "one-kv-head": {"num_key_value_heads": 1},
    "llama": {"family": "llama", "head_dim": None},
    "llama-tied-sharded": {"family": "llama", "tie_word_embeddings": True, "shard": "60KB"},
    "llama-groups-of-4": {"family": "llama", "num_attention_heads": 8, "head_dim": 8},
    "llama-one-kv-head": {"family": "llama", "num_key_value_heads": 1, "head_dim": 16},
    "llama-biases": {"family": "llama", "attention_bias": True, "mlp_bias": True},
    "llama-3-rope": {
        "family": "llama",
        "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
        },
    },
    "qwen2": {"family": "qwen2", "head_dim": 16},
    "mistral": {"family": "mistral"},
    "mistral-window": {"family": "mistral", "sliding_window": 24},
    "qwen2-windows": {
        "family": "qwen2", "head_dim": 16, "use_sliding_window": True, "sliding_window": 10, "max_window_layers": 1,
    },
    "qwen3-windows": {
        "use_sliding_window": True,
        "sliding_window": 40,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "window-of-one": {"family": "mistral", "sliding_window": 1},
    "phi3": {"family": "phi3", "head_dim": 16},
    "phi3-part-of-heads": {"family": "phi3", "head_dim": 16, "sliding_window": 20, "partial_rotary_factor": 0.75},
    "phi3-longrope": {
        "family": "phi3",
        "head_dim": 16,
        "original_max_position_embeddings": 256,
        "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0 + 0.1 * pair for pair in range(8)],
            "long_factor": [1.0 + 0.9 * pair for pair in range(8)], "original_max_position_embeddings": 256,
        },
    },
    "smollm3": {"family": "smollm3", "no_rope_layer_interval": 2, "attention_bias": True, "mlp_bias": True},
    "gemma": {"family": "gemma"},
    "gemma2": {
        "family": "gemma2", "sliding_window": 12, "query_pre_attn_scalar": 20, "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0, "attention_bias": True,
    },
    "gemma3": {
        "family": "gemma3_text",
        "attention_bias": True,
        "final_logit_softcapping": 3.0,
        "sliding_window": 12,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}  # fmt: skip
RECURRENT: dict[str, dict[str, Any]] = {
    "qwen3_5": {
        "family": "qwen3_5_text", "num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    },
    "qwen3_5-odd-sizes": {
        "family": "qwen3_5_text", "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "linear_num_key_heads": 3, "linear_num_value_heads": 6, "linear_key_head_dim": 20,
        "linear_value_head_dim": 37, "linear_conv_kernel_dim": 2, "attention_bias": True, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    },
    "qwen3_5-wide-heads": {
        "family": "qwen3_5_text", "layer_types": ["full_attention", "linear_attention", "full_attention"],
        "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 64,
        "linear_value_head_dim": 100, "linear_conv_kernel_dim": 7, "num_key_value_heads": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
    },
    "lfm2": {
        "family": "lfm2", "num_hidden_layers": 4, "layer_types": ["conv", "conv", "full_attention", "conv"],
        "block_auto_adjust_ff_dim": False, "tie_word_embeddings": True,
    },
    "lfm2-biases": {
        "family": "lfm2", "full_attn_idxs": [0, 2], "conv_bias": True, "conv_L_cache": 5, "block_multiple_of": 16,
        "block_ffn_dim_multiplier": 1.3,
    },
}  # fmt: skip
"""Models with layers that keep a state of a sequence: their running sequences hold entries."""


@pytest.fixture(scope="session", params=list(VARIANTS))
def variant(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    path: Path = tmp_path_factory.mktemp(request.param)
    return Model(save_model(path, **VARIANTS[request.param]))


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Steps this small gain nothing from threads, and on a busy machine they wait for each other."""
    before = use_threads(1)
    yield
    use_threads(before)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(save_model(tmp_path_factory.mktemp("model")))
