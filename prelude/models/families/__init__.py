"""The model families that can be loaded, as data. A family without new mathematics is an entry here."""

from __future__ import annotations

from dataclasses import replace

from prelude.models.families import bert
from prelude.models.families.base import Family, Head, SpecRequest
from prelude.models.families.bert import encoder
from prelude.models.families.deberta import DEBERTA
from prelude.models.families.decoder import decoder
from prelude.models.families.gemma import GEMMA, GEMMA2, GEMMA3
from prelude.models.families.modernbert import MODERNBERT
from prelude.models.families.recurrent import LFM2, QWEN3_5, QWEN3_5_TEXT

_SENTENCES = {"bos_token_id": 1, "eos_token_id": 2}
_FIRST_LLAMA = {"num_key_value_heads": None, "head_dim": None, "rope_theta": 10000.0, **_SENTENCES}

QWEN3 = decoder("qwen3", "Qwen3", {"attention_bias": False}, qk_norm=True, mlp_bias=False, window_switch=True)
QWEN2 = decoder(
    "qwen2",
    "Qwen2",
    {"head_dim": None, "rope_theta": 10000.0},
    attention_bias=True,
    output_bias=False,
    mlp_bias=False,
    window_switch=True,
)
# Its process-reward models are of a class that comes with the checkpoint.
QWEN2 = replace(QWEN2, architectures={**QWEN2.architectures, "Qwen2ForProcessRewardModel": "steps"})
LLAMA = decoder("llama", "Llama", {**_FIRST_LLAMA, "attention_bias": False, "mlp_bias": False}, windows=False)
MISTRAL = decoder(
    "mistral",
    "Mistral",
    {
        "head_dim": None,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        **_SENTENCES,
    },  # files without a window say null
    attention_bias=False,
    mlp_bias=False,
)
PHI3 = decoder(
    "phi3",
    "Phi3",
    {
        "num_key_value_heads": None,
        "head_dim": None,
        "rope_theta": 10000.0,
        "sliding_window": None,
        "bos_token_id": 1,
        "eos_token_id": 32000,
    },
    attention_bias=False,
    mlp_bias=False,
    fused=True,
    partial=True,
    longrope=("su", "yarn"),
)
SMOLLM3 = decoder(
    "smollm3",
    "SmolLM3",
    {"head_dim": None, "rope_theta": 2000000.0, "no_rope_layer_interval": 4, "tie_word_embeddings": True}
    | {"attention_bias": False, "mlp_bias": False, "bos_token_id": 128000, "eos_token_id": 128001},
    window_switch=True,
    no_rope_layers=True,
)

BERT = encoder("bert", "Bert", bert.BERT, {"layer_norm_eps": 1e-12, "type_vocab_size": 2})
_ROBERTA = {"layer_norm_eps": 1e-12, "type_vocab_size": 2, "pad_token_id": 1}
ROBERTA = encoder("roberta", "Roberta", bert.ROBERTA, _ROBERTA)
XLM_ROBERTA = encoder("xlm-roberta", "XLMRoberta", bert.ROBERTA, _ROBERTA)
DISTILBERT = encoder("distilbert", "DistilBert", bert.DISTILBERT, {})
ELECTRA = encoder("electra", "Electra", bert.ELECTRA, {"layer_norm_eps": 1e-12, "type_vocab_size": 2})

_ALL = (
    QWEN3,
    QWEN2,
    LLAMA,
    MISTRAL,
    PHI3,
    SMOLLM3,
    GEMMA,
    GEMMA2,
    GEMMA3,
    QWEN3_5_TEXT,
    QWEN3_5,
    LFM2,
    BERT,
    ROBERTA,
    XLM_ROBERTA,
    DISTILBERT,
    ELECTRA,
    MODERNBERT,
    DEBERTA,
)

FAMILIES: dict[str, Family] = {family.model_type: family for family in _ALL}
"""Families by ``model_type``."""

ARCHITECTURES: dict[str, Family] = {name: family for family in FAMILIES.values() for name in family.architectures}
"""Families by a name in ``architectures``."""

__all__ = ["ARCHITECTURES", "FAMILIES", "Family", "Head", "SpecRequest"]
