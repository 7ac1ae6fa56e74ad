"""config.json of decoders: the values that are read, and their spellings."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from prelude.models.config import ModelConfig
from prelude.models.files import ModelDirectory
from prelude.models.options import option_model
from prelude.models.spec import Norm, Projection, Rope
from tests.models.configs import ABSENT, LLAMA, LLAMA3, MISTRAL, NEW, OLD, QWEN2, YARN, read, rope


def test_fields() -> None:
    config = read()
    spec = config.spec
    assert config == ModelConfig(
        "Qwen3ForCausalLM", "qwen3", spec, dtype="bfloat16", eos_token_ids=(3,), bos_token_id=1
    )
    assert (config.vocab_size, config.hidden_size, config.max_positions, len(spec.layers)) == (64, 32, 256, 2)
    mixer, mlp = spec.layers[1].mixer, spec.layers[1].mlp
    assert (mixer.heads, mixer.kv_heads, mixer.head_dim, mixer.causal) == (4, 2, 8, True)
    assert mixer.rope == Rope(1e6, 8) and mixer.q_norm == Norm("model.layers.1.self_attn.q_norm", "rms", 8, 1e-6)
    assert mixer.qkv == Projection(
        tuple(f"model.layers.1.self_attn.{part}_proj" for part in "qkv"), (32, 16, 16), 32, bias=False
    )
    assert (mlp.inner, mlp.activation, mlp.gated) == (48, "silu", True)
    assert spec.final_norm == Norm("model.norm", "rms", 32, 1e-6)
    assert (spec.lm_head, spec.classifier) == ("tied", None)
    assert spec.kv_bytes_per_token(2) == 2 * 2 * 2 * 8 * 2
    hash(config)


def test_both_transformers_spellings_mean_the_same() -> None:
    assert read(OLD) == read(NEW)


def test_directory_written_by_transformers(checkpoint_dir: Any) -> None:
    config = ModelConfig.from_dir(checkpoint_dir("bf16"))
    assert (config.dtype, rope(config).theta, config.spec.attention.head_dim) == ("bfloat16", 10000.0, 8)


@pytest.mark.parametrize(
    "changes, theta",
    [
        ({"rope_theta": 500.0, "rope_parameters": None}, 500.0),
        ({"rope_theta": 1000000.0}, 1e6),
        ({"rope_theta": 500, "rope_parameters": {"rope_type": "default"}}, 500.0),
    ],
)
def test_theta_in_either_place(changes: dict[str, Any], theta: float) -> None:
    assert rope(read(**changes)).theta == theta


@pytest.mark.parametrize(
    "said",
    [
        {"rope_type": "default"}, {"rope_type": "linear", "factor": 3.0}, {"rope_type": "yarn", **YARN},
        {"rope_type": "linear", "factor": 1.0},
        {"rope_type": "yarn", **YARN, "truncate": False, "beta_fast": 16, "beta_slow": 2, "attention_factor": 1.5},
        {"rope_type": "yarn", **YARN, "mscale": 0.7, "mscale_all_dim": 0.9}, LLAMA3,
        {"rope_type": "yarn", **YARN, "mscale": 0.7}, {"rope_type": "yarn", **YARN, "beta_fast": 2, "beta_slow": 2},
        *[{"rope_type": "yarn", **YARN, "rope_theta": theta, "original_max_position_embeddings": original}
          for theta, original in ((100.0, 1 << 16), (1e4, 4096), (1e4, 16))],
    ],
)  # fmt: skip
def test_inverse_frequencies_are_those_of_transformers(said: dict[str, Any]) -> None:
    from transformers import Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

    said = {"rope_theta": 10000.0, **said}
    sizes = {key: NEW[key] for key in ("hidden_size", "num_attention_heads", "max_position_embeddings")}
    reference = Qwen3RotaryEmbedding(Qwen3Config(**sizes, head_dim=32, rope_parameters=dict(said)))
    frequencies, factor = rope(read(rope_parameters=said, head_dim=32)).frequencies()
    assert np.abs(frequencies / reference.inv_freq.double().numpy() - 1).max() < 4e-7
    assert factor == reference.attention_scaling


@pytest.mark.parametrize(
    "generation, config, expected",
    [
        ({"eos_token_id": [5, 63, 5]}, 3, (5, 63)), ({"eos_token_id": [5] * 1024}, 3, (5,)), ({}, [3, 4], (3, 4)),
        (None, 3, (3,)), (None, None, ()), ({"eos_token_id": None}, 0, (0,)),
    ],
)  # fmt: skip
def test_end_of_text_ids(generation: Any, config: Any, expected: tuple[int, ...], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**NEW, "eos_token_id": config}), encoding="utf-8")
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    assert ModelConfig.from_dir(tmp_path).eos_token_ids == expected


def test_a_first_llama_config_leaves_out_later_fields() -> None:
    later = ("num_key_value_heads", "head_dim", "rope_parameters", "attention_bias", "mlp_bias")
    config = read(**LLAMA, tie_word_embeddings=ABSENT, **dict.fromkeys(later, ABSENT))
    mixer, mlp = config.spec.layers[0].mixer, config.spec.layers[0].mlp
    assert (mixer.kv_heads, mixer.head_dim, rope(config).theta) == (4, 8, 10000.0)
    assert not (mixer.qkv.bias or mixer.out.bias or mlp.up.bias or mlp.down.bias or mixer.q_norm)
    assert config.spec.lm_head == "own"


def test_where_each_family_has_biases() -> None:
    def biases(**changes: Any) -> tuple[bool, bool, bool]:
        layer = read(**changes).spec.layers[0]
        assert layer.mlp.up.bias == layer.mlp.down.bias
        return layer.mixer.qkv.bias, layer.mixer.out.bias, layer.mlp.up.bias

    assert biases(**QWEN2) == (True, False, False)
    assert biases(**MISTRAL) == (False, False, False)
    assert biases(**{**LLAMA, "attention_bias": True}) == (True, True, False)
    assert biases(**{**LLAMA, "mlp_bias": True}) == (False, False, True)


def test_body_without_head() -> None:
    config = read(architectures=["Qwen3Model"], tie_word_embeddings=False)
    assert config.spec.lm_head is None
    assert "lm_head.weight" not in config.spec.tensors()


DECODERS = ["llama", "mistral", "qwen2", "qwen3", "phi3", "smollm3", "gemma", "gemma2", "gemma3_text", "lfm2"]


@pytest.mark.parametrize("family", [*DECODERS, "qwen3_5_text"])
def test_ids_that_a_config_leaves_out_are_those_of_its_class(family: str) -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    known = CONFIG_MAPPING[family]()
    raw = {key: value for key, value in known.to_dict().items() if key not in ("bos_token_id", "eos_token_id")}
    found = ModelConfig.from_dict({**raw, "architectures": None})
    assert (found.bos_token_id, found.eos_token_ids or (None,)) == (known.bos_token_id, (known.eos_token_id,))
    none = ModelConfig.from_dict({**raw, "architectures": None, "bos_token_id": None, "eos_token_id": None})
    assert (none.bos_token_id, none.eos_token_ids) == (None, ())
    small = ModelConfig.from_dict({**raw, "architectures": None, "vocab_size": 1, "pad_token_id": 0})
    assert (small.bos_token_id, small.eos_token_ids) == (None, ()), "there are no such tokens"


def test_pad_token_of_minus_one_is_none() -> None:
    assert read(pad_token_id=-1).pad_token_id is None


# ------------------------------------------------------------------ heads that read options
NAMED = {"cls_token": {"content": "<s>"}, "mask_token": "<m>_"}


@pytest.mark.parametrize(
    "files, said",
    [
        ({"opendecider.json": {}, "tokenizer_config.json": NAMED}, {"max_length": 2048, "tokens": [3, 5, 4]}),
        ({"julia_config.json": {}}, {"max_length": 8192, "head_length": 512, "option_length": 48}),
        ({"pointer_head.json": {}}, {"max_length": 73728, "head_length": 8192, "state_length": 65536}),
        ({"pointer_head.json": {"temperature": 2.5}}, {"temperatures": (2.5, 2.5, 2.5)}),
        ({"config.json": {"model_type": "extractor"}}, {"max_length": 8192}),
    ],
)
def test_settings_of_a_head_if_no_file_says(files: dict[str, Any], said: dict[str, Any], tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    directory = ModelDirectory.of(tmp_path)
    model: Any = option_model(directory)
    found = model.settings(directory, SimpleNamespace(token_to_id=len))
    told = {"tokens": [*found.tokens.values()]}
    assert {name: told.get(name, getattr(found, name)) for name in said} == said
