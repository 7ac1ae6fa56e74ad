"""Configs of every family in the registry, as transformers writes them: read as they stand, refused where hostile."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers.activations import ACT2FN

from prelude.models.config import ModelConfig
from prelude.models.families import ARCHITECTURES, FAMILIES
from prelude.models.ops import activate
from tests.checkpoints import save_model
from tests.encoders import DEBERTA
from tests.execution.conftest import RECURRENT, VARIANTS
from tests.models.configs import HOSTILE, refusal, refusals

DECODERS = {**VARIANTS, **RECURRENT}
SMALL: dict[str, dict[str, Any]] = {"deberta-v2": DEBERTA}
"""Settings without which transformers' default config of a family is not supported here."""
MORE = (
    *("layer_types", "sliding_window", "sliding_window_pattern", "use_sliding_window", "rope_parameters"),
    *("rope_scaling", "rope_theta", "rope_local_base_freq", "partial_rotary_factor", "query_pre_attn_scalar"),
    *("original_max_position_embeddings", "attn_logit_softcapping", "final_logit_softcapping", "hidden_activation"),
    *("hidden_act", "use_bidirectional_attention", "no_rope_layers", "no_rope_layer_interval", "attention_bias"),
    *("quantization_config", "auto_map", "num_experts", "full_attention_interval", "tie_embedding", "conv_L_cache"),
    *("block_ff_dim", "block_ffn_dim_multiplier", "block_multiple_of", "attn_output_gate", "activation"),
    *("position_embedding_type", "id2label", "local_attention", "norm_eps", "norm_bias", "global_rope_theta"),
    "is_decoder",
)
"""Keys that transformers' default config of a family does not have."""
ROPES = (
    {"rope_theta": 1e6, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4},
)
ROPE_KEYS = (
    *("rope_theta", "rope_type", "type", "partial_rotary_factor", "original_max_position_embeddings", "factor"),
    *("attention_factor", "short_factor", "long_factor", "low_freq_factor", "high_freq_factor", "beta_fast"),
    *("beta_slow", "mscale", "mscale_all_dim", "truncate", "full_attention"),
)
COUNTS = (
    *(("num_hidden_layers", "n_layers"), ("num_attention_heads", "n_heads"), ("intermediate_size", "hidden_dim")),
    *(("vocab_size",), ("max_position_embeddings",)),
)


@pytest.mark.parametrize("name", DECODERS)
def test_expected_tensors_are_those_that_transformers_writes(name: str, tmp_path: Path) -> None:
    path = save_model(tmp_path, **{**DECODERS[name], "shard": "1GB"})
    written = {key: tuple(tensor.shape) for key, tensor in load_file(path / "model.safetensors").items()}
    spec = ModelConfig.from_dir(path).spec
    assert spec.tensors() == written
    assert spec.num_parameters() == sum(math.prod(shape) for shape in written.values())


def base_of(architecture: str) -> dict[str, Any]:
    family = ARCHITECTURES[architecture].model_type
    config = transformers.CONFIG_MAPPING[family](num_hidden_layers=7, **SMALL.get(family, {})).to_dict()
    return {**config, "architectures": [architecture], "model_type": family, "id2label": {"0": "a", "1": "b"}}


def settings(base: dict[str, Any]) -> dict[str, Any]:
    """The part of a config that describes the text model."""
    found: dict[str, Any] = base.get("text_config", base)
    return found


def changed(base: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """``base`` with another value, in the part of it that describes the text model."""
    return _with(base, {**settings(base), key: value})


def _with(base: dict[str, Any], text: dict[str, Any]) -> dict[str, Any]:
    return {**base, "text_config": text} if "text_config" in base else text


@pytest.mark.fault(43)
@pytest.mark.parametrize("architecture", list(ARCHITECTURES))
def test_sizes_that_no_network_has_are_refused(architecture: str) -> None:
    base = base_of(architecture)
    assert refusal(base) is None
    for names in COUNTS:
        [key] = [name for name in names if name in settings(base)]
        for value in (0, -1, 10**9, "4", 2.5, None, True):
            reason = refusal(changed(base, key, value))
            assert reason is not None and key in reason and len(reason) <= 500, (value, reason)
        assert f"{key} is 1, the limits" not in (refusal(changed(base, key, 1)) or "")


@pytest.mark.fault(43)
@pytest.mark.parametrize("family", list(FAMILIES))
def test_any_value_under_any_key_is_read_or_refused(family: str) -> None:
    """Nothing but a ModelError, of bounded length, wherever a value stands; and a config that is read can be used."""
    base = base_of(next(iter(FAMILIES[family].architectures)))
    keys = {*settings(base), *MORE}
    assert refusals(changed(base, key, value) for key in keys for value in HOSTILE) > 200
    ropes = ({**rope, key: value} for rope in ROPES for key in ROPE_KEYS for value in HOSTILE)
    refusals(changed(base, "rope_parameters", rope) for rope in ropes)


@pytest.mark.parametrize("architecture", list(ARCHITECTURES))
def test_a_key_that_is_left_out_has_the_value_that_transformers_gives_it(architecture: str) -> None:
    base = base_of(architecture)
    given = {"architectures", "model_type", "id2label", "num_hidden_layers", *SMALL.get(base["model_type"], ())}
    whole, read = ModelConfig.from_dict(base).spec, 0
    for left_out in settings(base).keys() - given:
        config = _with(base, {key: value for key, value in settings(base).items() if key != left_out})
        if refusal(config) is None:  # some sizes have no default here
            assert ModelConfig.from_dict(config).spec == whole, left_out
            read += 1
    assert read > 10


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"lfm2"}))
def test_activations_are_those_of_transformers(family: str) -> None:
    base = base_of(next(iter(FAMILIES[family].architectures)))
    [key] = {"hidden_act", "hidden_activation", "activation"} & settings(base).keys()
    x = torch.linspace(-6.0, 6.0, 101)[None]
    for name in [name for name in ACT2FN if refusal(changed(base, key, name)) is None]:
        config = ModelConfig.from_dict(changed(base, key, name))
        wanted = ACT2FN["gelu_pytorch_tanh" if (family, name) == ("gemma", "gelu") else name](x)
        found = activate(x.numpy().copy(), 101, config.spec.layers[0].mlp.activation, False)
        assert np.abs(found - wanted.numpy()).max() < 1e-5, name
