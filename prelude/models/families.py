"""The model families that can be loaded, as data.

There is one decoder definition; a family is the set of switches that makes it Qwen3 rather than
something else, and the rules by which its ``config.json`` is read. Adding a family that needs no
new mathematics is adding an entry here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Family:
    """One ``model_type``: what its decoder has, and what its config may leave out."""

    model_type: str
    architectures: Mapping[str, bool]
    """Class names in ``architectures``, and whether that class has a language-model head."""
    qk_norm: bool = False
    attention_bias: bool | None = None
    """Bias on the query, key and value projections: fixed, or None where the config says."""
    output_bias: bool | None = None
    """Bias on the attention's output projection; None where it follows ``attention_bias``."""
    mlp_bias: bool | None = None
    window_switch: bool = False
    """``sliding_window`` only counts where ``use_sliding_window`` is true."""
    windows: bool = True
    """False for a family that has no windows at all: ``sliding_window`` is not read."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Keys that files of this family are known to leave out, with the value that is then meant."""


QWEN3 = Family(
    model_type="qwen3",
    architectures={"Qwen3ForCausalLM": True, "Qwen3Model": False, "Qwen3ForSequenceClassification": False},
    qk_norm=True,
    mlp_bias=False,
    window_switch=True,
    defaults={"hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": False},
)

QWEN2 = Family(
    model_type="qwen2",
    architectures={"Qwen2ForCausalLM": True, "Qwen2Model": False, "Qwen2ForSequenceClassification": False},
    attention_bias=True,
    output_bias=False,
    mlp_bias=False,
    window_switch=True,
    defaults={"hidden_act": "silu", "head_dim": None, "rope_theta": 10000.0, "tie_word_embeddings": False},
)

LLAMA = Family(
    model_type="llama",
    architectures={"LlamaForCausalLM": True, "LlamaModel": False, "LlamaForSequenceClassification": False},
    windows=False,
    defaults={
        "hidden_act": "silu",
        "num_key_value_heads": None,
        "head_dim": None,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    },
)

MISTRAL = Family(
    model_type="mistral",
    architectures={"MistralForCausalLM": True, "MistralModel": False, "MistralForSequenceClassification": False},
    attention_bias=False,
    mlp_bias=False,
    defaults={
        "hidden_act": "silu",
        "head_dim": None,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "sliding_window": 4096,  # files without a window say null
    },
)

FAMILIES: dict[str, Family] = {family.model_type: family for family in (QWEN3, QWEN2, LLAMA, MISTRAL)}
"""By ``model_type``."""

ARCHITECTURES: dict[str, Family] = {name: family for family in FAMILIES.values() for name in family.architectures}
"""By a name in ``architectures``."""
