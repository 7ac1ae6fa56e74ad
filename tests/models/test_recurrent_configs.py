"""config.json of models whose layers keep a state: Qwen3.5 alone and inside a larger model, LFM2."""

from __future__ import annotations

from typing import Any

import pytest

from prelude.errors import ModelError
from prelude.models.config import ModelConfig
from prelude.models.spec import Attention, GatedDelta, ShortConv

SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256,
}  # fmt: skip
RULE: dict[str, Any] = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}  # fmt: skip
TEXT = {**SIZES, **RULE, "model_type": "qwen3_5_text", "rms_norm_eps": 1e-6, "rope_theta": 1e4}
QWEN = {**TEXT, "architectures": ["Qwen3_5ForCausalLM"]}
LFM = {**SIZES, "model_type": "lfm2", "architectures": ["Lfm2ForCausalLM"], "norm_eps": 1e-5, "full_attn_idxs": [1]}
WHOLE = {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "vision_config": {"depth": 1}}
FULL, LINEAR = "full_attention", "linear_attention"


def read(base: dict[str, Any], **changes: Any) -> ModelConfig:
    return ModelConfig.from_dict({**base, **changes})


def kinds(config: ModelConfig) -> str:
    letters = {Attention: "a", GatedDelta: "d", ShortConv: "c"}
    return "".join(letters[type(layer.mixer)] for layer in config.spec.layers)


def test_which_layers_keep_a_state() -> None:
    assert kinds(read(QWEN, num_hidden_layers=9)) == "dddadddad"
    assert kinds(read(QWEN, full_attention_interval=2)) == "dada"
    assert kinds(read(QWEN, layer_types=[FULL, LINEAR, LINEAR, LINEAR])) == "addd"
    assert kinds(read(LFM)) == "cacc" and kinds(read(LFM, full_attn_idxs=[0, 3])) == "acca"
    assert kinds(read(LFM, layer_types=[FULL, "conv", FULL, "conv"])) == "acac"
    assert kinds(read({key: value for key, value in LFM.items() if key != "full_attn_idxs"})) == "aaaa"


def test_a_quarter_of_a_head_turns_where_the_file_does_not_say() -> None:
    widths = [read(QWEN, head_dim=32).spec.attention.rope, read(QWEN, partial_rotary_factor=0.5).spec.attention.rope]
    assert [rope and rope.width for rope in widths] == [8, 4]
    rope = {"rope_theta": 5e6, "partial_rotary_factor": 1.0, "mrope_section": [11, 11, 10], "mrope_interleaved": True}
    found = read({key: value for key, value in QWEN.items() if key != "rope_theta"}, rope_parameters=rope)
    assert found.spec.attention.rope is not None and found.spec.attention.rope.theta == 5e6


def test_widths_of_lfm2() -> None:
    def inner(**changes: Any) -> int:
        return read(LFM, **changes).spec.layers[0].mlp.inner

    assert inner() == 256 and inner(block_multiple_of=10) == 40 and inner(block_auto_adjust_ff_dim=False) == 48
    assert inner(intermediate_size=1 << 20, block_ffn_dim_multiplier=1.5) == 1 << 20
    assert inner(intermediate_size=2, block_ffn_dim_multiplier=None) == 1
    assert inner(block_ff_dim=900) == 768 and inner(block_ffn_dim_multiplier=None) == 32
    assert read(LFM).spec.lm_head == "tied" and read(LFM, tie_embedding=False).spec.lm_head == "own"


def test_the_text_model_of_a_larger_one() -> None:
    whole = read(WHOLE, text_config=TEXT, tie_word_embeddings=True, eos_token_id=3)
    assert (whole.spec.prefix, whole.spec.lm_head, whole.eos_token_ids) == ("model.language_model.", "tied", (3,))
    assert {name.split(".layers")[0] for name in whole.spec.tensors() if "layers" in name} == {"model.language_model"}
    alone = read(QWEN, tie_word_embeddings=True)
    assert [name.replace("language_model.", "") for name in whole.spec.tensors()] == list(alone.spec.tensors())
    for text in (None, 5, [TEXT]):
        with pytest.raises(ModelError, match=r"text_config is .*, an object is needed"):
            read(WHOLE, text_config=text)
    with pytest.raises(ModelError, match=r"config.json: text_config: linear_conv_kernel_dim is 0"):
        read(WHOLE, text_config={**TEXT, "linear_conv_kernel_dim": 0})


UNSUPPORTED: list[tuple[dict[str, Any], str]] = [
    ({**QWEN, "layer_types": [LINEAR] * 4}, "layer_types without 'full_attention'"),
    ({**QWEN, "layer_types": [FULL, "sliding_attention", LINEAR, LINEAR]}, "layer_types with 'sliding_attention'"),
    ({**QWEN, "attn_output_gate": False}, "attn_output_gate"),
    ({**QWEN, "hidden_act": "gelu"}, "hidden_act 'gelu'"),
    ({**QWEN, "text_config": TEXT}, "text_config"),
    ({**QWEN, "architectures": ["Qwen3_5MoeForCausalLM"]}, "'Qwen3_5MoeForCausalLM'"),
    ({**WHOLE, "text_config": TEXT, "quantization_config": {"quant_method": "fp8"}}, "'fp8'"),
    ({**LFM, "full_attn_idxs": []}, "layer_types without 'full_attention'"),
    ({**LFM, "layer_types": ["conv", FULL, LINEAR, "conv"]}, "layer_types with 'linear_attention'"),
    ({**LFM, "use_bidirectional_attention": True}, "use_bidirectional_attention"),
]
WRONG: list[tuple[dict[str, Any], str]] = [
    ({**QWEN, "linear_num_value_heads": 3}, "it must be a multiple of linear_num_key_heads = 2"),
    ({**QWEN, "linear_num_key_heads": 0}, "linear_num_key_heads is 0, the limits are 1 and 4,096"),
    ({**QWEN, "linear_key_head_dim": 0}, "linear_key_head_dim is 0, the limits are 1 and 1,024"),
    ({**QWEN, "linear_value_head_dim": 1025}, "linear_value_head_dim is 1025, the limits are 1 and"),
    ({**QWEN, "linear_conv_kernel_dim": 0}, "linear_conv_kernel_dim is 0, the limits are 1 and 64"),
    ({**QWEN, "linear_conv_kernel_dim": 65}, "linear_conv_kernel_dim is 65"),
    ({**QWEN, "full_attention_interval": 0}, "full_attention_interval is 0, the limits are 1 and 1,048,576"),
    ({**LFM, "conv_L_cache": 0}, "conv_L_cache is 0, the limits are 1 and 64"),
    ({**LFM, "conv_bias": 1}, "conv_bias is 1"),
    ({**LFM, "full_attn_idxs": [4]}, r"full_attn_idxs is \[4\], a list of layers between 0 and 3"),
    ({**LFM, "full_attn_idxs": [True]}, r"full_attn_idxs is \[True\], a list of layers"),
    ({**LFM, "full_attn_idxs": 5}, "full_attn_idxs is 5"),
    ({**LFM, "block_multiple_of": 0}, "block_multiple_of is 0, the limits are 1 and 1,048,576"),
    ({**LFM, "block_ffn_dim_multiplier": 1e3, "intermediate_size": 1 << 20}, "adjusted it is"),
    ({**LFM, "intermediate_size": 1}, "adjusted it is 0; the limits are 1 and 1,048,576"),
]
