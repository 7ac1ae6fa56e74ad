"""config.json of decoders whose layers differ: windows, layers that do not rotate, two rotary bases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from prelude.models.config import ModelConfig

SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
}  # fmt: skip
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
PHI3 = {**SIZES, "model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "tie_word_embeddings": False}
SMOLLM3 = {**SIZES, "model_type": "smollm3", "architectures": ["SmolLM3ForCausalLM"]}
GEMMA = {**SIZES, "model_type": "gemma", "architectures": ["GemmaForCausalLM"]}
GEMMA2 = {**SIZES, "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"]}
GEMMA3 = {**SIZES, "model_type": "gemma3_text", "architectures": ["Gemma3TextModel"]}
CONFIGS = {"phi3": PHI3, "smollm3": SMOLLM3, "gemma": GEMMA, "gemma2": GEMMA2, "gemma3_text": GEMMA3}


def read(base: dict[str, Any], **changes: Any) -> ModelConfig:
    return ModelConfig.from_dict({**base, **changes})


def windows(config: ModelConfig) -> list[int | None]:
    return [layer.mixer.window for layer in config.spec.layers]


def bases(config: ModelConfig) -> list[float | None]:
    return [None if layer.mixer.rope is None else layer.mixer.rope.theta for layer in config.spec.layers]


def test_windows_of_gemma_alternate_and_count_the_own_position() -> None:
    four: dict[str, Any] = {"num_hidden_layers": 4, "sliding_window": 20}
    assert windows(read(GEMMA2, **four)) == [19, None, 19, None]
    assert windows(read(GEMMA2, **four | {"sliding_window": None})) == [None] * 4
    assert windows(read(GEMMA2, num_hidden_layers=4)) == [None] * 4, "4096 tokens, as long as any context"
    assert windows(read(GEMMA2, num_hidden_layers=2, max_position_embeddings=8192)) == [4095, None]
    assert (
        windows(read(GEMMA2, sliding_window=256)) == [None] * 2
        and windows(read(GEMMA2, sliding_window=255))[0] == 254
    )
    assert windows(read(GEMMA3, **four, sliding_window_pattern=3)) == [19, 19, None, 19]
    assert windows(read(GEMMA3, **four | {"num_hidden_layers": 6})) == [19] * 5 + [None]
    assert windows(read(GEMMA3, **four, use_bidirectional_attention=True)) == [10] * 4
    kinds = ["full_attention", "sliding_attention"]
    assert windows(read(GEMMA3, sliding_window=5, layer_types=kinds)) == [None, 4]


def test_rotary_bases_of_gemma3_in_either_spelling() -> None:
    kinds = {"layer_types": ["full_attention", "sliding_attention"]}
    assert bases(read(GEMMA3, **kinds)) == [1e6, 1e4]
    assert bases(read(GEMMA3, **kinds, rope_theta=7e5, rope_local_base_freq=3e3)) == [7e5, 3e3]
    said = {"full_attention": {"rope_theta": 5e5, "rope_type": "linear", "factor": 8.0}, "sliding_attention": {}}
    new = read(GEMMA3, **kinds, rope_parameters=said)
    old = read(GEMMA3, **kinds, rope_theta=5e5, rope_scaling={"rope_type": "linear", "factor": 8.0})
    assert bases(new) == [5e5, 1e4]
    assert new.spec.layers == old.spec.layers
    local = new.spec.layers[1].mixer.rope
    assert local is not None and local.scaling is None


def test_the_first_layers_of_qwen_see_all() -> None:
    window = {"use_sliding_window": True, "sliding_window": 9, "num_hidden_layers": 30}
    base = {**SIZES, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], **window}
    assert windows(read(base)) == [None] * 28 + [8] * 2
    assert windows(read(base, max_window_layers=1)) == [None] + [8] * 29


def test_layers_that_do_not_rotate() -> None:
    assert bases(read(SMOLLM3, num_hidden_layers=5)) == [2e6, 2e6, 2e6, None, 2e6]
    assert bases(read(SMOLLM3, no_rope_layers=[0, 1])) == [None, 2e6]
    window = {"use_sliding_window": True, "sliding_window": 9}
    assert windows(read(SMOLLM3, no_rope_layers=[0, 1], **window)) == [8, None]


def test_parts_of_heads_turn() -> None:
    ropes = [read(PHI3, partial_rotary_factor=part).spec.attention.rope for part in (0.25, 0.5, 1.0)]
    assert [rope.width for rope in ropes if rope is not None] == [2, 4, 8]


@pytest.mark.parametrize("name", ["longrope", "su", "yarn"])
@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("said", [{}, {"factor": 3.0}, {"factor": 0.5}, {"attention_factor": 1.25}], ids=str)
def test_longrope_is_that_of_transformers(said: dict[str, float], name: str, long: bool) -> None:
    from transformers import Phi3Config
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    short = [1.0 + 0.05 * pair for pair in range(4)]
    factors = {"short_factor": short, "long_factor": [2 * one for one in short], **said}
    lengths = {"max_position_embeddings": 4096, "original_max_position_embeddings": 256}
    config = read(PHI3, **lengths, rope_scaling={"type": name, **factors}).reaching(257 if long else None)
    inside = {"type": name, **factors, "original_max_position_embeddings": 256}
    other = read(PHI3, max_position_embeddings=4096, rope_scaling=inside).reaching(257 if long else None)
    assert other.spec == config.spec
    rope = config.spec.attention.rope
    assert rope is not None and config.max_positions == (4096 if long else 256)
    parameters = {"rope_type": "longrope", "rope_theta": 1e4, **factors, "original_max_position_embeddings": 256}
    reference = Phi3Config(**{**SIZES, **lengths, "pad_token_id": 0}, rope_parameters=parameters)
    wanted, scale = ROPE_INIT_FUNCTIONS["longrope"](reference, torch.device("cpu"), seq_len=257 if long else 256)
    ours, factor = rope.frequencies()
    assert np.abs(ours / wanted.double().numpy() - 1).max() < 4e-7 and factor == pytest.approx(scale, rel=1e-12)


@pytest.mark.parametrize("where", ["outside", "inside"])
def test_longrope_of_an_original_context_of_one_token_scales_nothing(where: str) -> None:
    original = {"original_max_position_embeddings": 1}
    changes = {"rope_scaling": {**LONG, **original}} if where == "inside" else {"rope_scaling": LONG, **original}
    config = read(PHI3, **changes)
    rope = config.spec.attention.rope
    assert read(PHI3, rope_scaling=LONG).spec.longer is None and config.spec.longer is not None
    assert rope is not None and (config.max_positions, rope.frequencies()[1]) == (1, 1.0)


UNSUPPORTED: list[tuple[dict[str, Any], str]] = [
    ({**PHI3, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic'"),
    ({**PHI3, "sliding_window": 9, "layer_types": ["full_attention"] * 2}, "holds for all layers"),
    ({**SMOLLM3, "layer_types": ["full_attention", "sliding_attention"]}, "no window in use"),
    ({**GEMMA2, "use_bidirectional_attention": True}, r"use_bidirectional_attention \(True\)"),
    (
        {**GEMMA3, "architectures": ["Gemma3ForCausalLM"], "use_bidirectional_attention": True},
        "use_bidirectional_attention with a language-model head",
    ),
    ({**GEMMA, "partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ({**GEMMA2, "hidden_activation": "relu"}, "hidden_activation 'relu'"),
    ({**GEMMA2, "layer_types": ["full_attention", "chunked_attention"]}, "layer_types with 'chunked_attention'"),
    ({**GEMMA3, "architectures": ["Gemma3ForConditionalGeneration"]}, "'Gemma3ForConditionalGeneration'"),
]
WRONG: list[tuple[dict[str, Any], str]] = [
    ({**GEMMA3, "use_bidirectional_attention": "yes"}, "use_bidirectional_attention is 'yes', true or false"),
    ({**PHI3, "sliding_window": 0}, "sliding_window is 0, the limits are 1 and 16,777,216"),
    ({**PHI3, "sliding_window": -1}, "sliding_window is -1"),
    ({**PHI3, "partial_rotary_factor": 0.2}, "partial_rotary_factor is 0.2, of heads of 8 values an even number"),
    ({**PHI3, "partial_rotary_factor": 0.1}, "partial_rotary_factor is 0.1, of heads of 8 values an even number"),
    ({**PHI3, "partial_rotary_factor": 0.4}, "partial_rotary_factor is 0.4, of heads of 8 values an even number"),
    ({**PHI3, "rope_scaling": {**LONG, "long_factor": [True] * 4}}, "long_factor is .* a list of 4 numbers"),
    ({**PHI3, "rope_scaling": {**LONG, "short_factor": [1.0] * 3}}, r"short_factor is .* a list of 4 numbers"),
    ({**PHI3, "rope_scaling": {**LONG, "long_factor": [1.0, 1.0, 1.0, 0.0]}}, "long_factor is .* above 0"),
    ({**PHI3, "rope_scaling": {**LONG, "long_factor": [1e6, 1e6, 1e6, 2e6]}}, "long_factor is .* above 0"),
    ({**PHI3, "rope_scaling": {**LONG, "long_factor": 4}}, "long_factor is 4, a list of 4 numbers"),
    ({**PHI3, "rope_scaling": {"type": "su"}}, "short_factor is missing"),
    ({**PHI3, "rope_scaling": LONG, "original_max_position_embeddings": 0}, "original_max_position_embeddings is 0"),
    ({**SMOLLM3, "no_rope_layers": [1]}, r"no_rope_layers is \[1\], a list of 2"),
    ({**SMOLLM3, "no_rope_layer_interval": 0}, "no_rope_layer_interval is 0, the limits are 1 and 1,024"),
    ({**GEMMA2, "query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0"),
    ({**GEMMA2, "attn_logit_softcapping": -1.0}, "attn_logit_softcapping is -1"),
    ({**GEMMA2, "sliding_window": 0}, "sliding_window is 0, the limits are 1 and 16,777,216"),
    ({**GEMMA3, "sliding_window_pattern": 0}, "sliding_window_pattern is 0, the limits are 1 and 1,048,576"),
    ({**GEMMA3, "rope_parameters": {"full_attention": 5}}, "an object for full_attention"),
    ({**GEMMA3, "rope_local_base_freq": 0.0}, "rope_theta is"),
]
