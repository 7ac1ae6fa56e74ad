"""config.json of decoders: every way to refuse it, and settings that are read with a warning."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest

from prelude.errors import ModelError, UnsupportedModel
from prelude.models.config import ModelConfig, read_activation, read_labels
from prelude.models.fields import Fields
from prelude.models.files import ModelDirectory
from prelude.models.options import option_model
from tests.models import test_decoder_configs, test_encoder_configs, test_recurrent_configs
from tests.models.configs import ABSENT, LLAMA, LLAMA3, MISTRAL, NEW, OLD, QWEN2, YARN, read

# -- readers of a value ---------------------------------------------------------------------------

READERS: list[tuple[str, tuple[Any, ...], list[Any], list[Any]]] = [
    ("integer", (3, 5), [3, 5], [2, 6, True, 4.0, "4", None]),
    ("number", (3, 5), [3.5, 4, 5], [3, 5.5, True, "4", None, math.nan, math.inf]),
    ("boolean", (), [True, False], [0, 1, "true", None]),
    ("text", (), ["", "a"], [1, None, ["a"]]),
    ("token_ids", (9,), [0, 8, None, [], [3, 0]], [-1, 9, True, "1", [1, 9], [[1]], [0] * 1025]),
    ("token_id", (9,), [0, 8, None], [-2, 9, True, "1", [1], [1, 2], []]),
]


@pytest.mark.parametrize("reader, limits, taken, refused", READERS, ids=[one[0] for one in READERS])
def test_a_value_is_read_within_its_limits(
    reader: str, limits: tuple[Any, ...], taken: list[Any], refused: list[Any]
) -> None:
    ids = {None: (), 0: (0,), 8: (8,)}
    for value in taken:
        found = getattr(Fields({"a": value}, "here"), reader)("a", *limits)
        if reader == "token_ids":
            assert found == (tuple(value) if isinstance(value, list) else ids[value])
        else:
            assert found == value and type(found) is (float if reader == "number" else type(value))
    for value in refused:
        with pytest.raises(ModelError, match=r"^here: a "):
            getattr(Fields({"a": value}, "here"), reader)("a", *limits)


def test_labels_and_the_activation_of_a_head_are_those_of_the_config() -> None:
    names = [f"LABEL_{at}" for at in range(1 << 16)]
    for config, labels in (
        ({}, names[:2]), ({"num_labels": 1}, names[:1]), ({"num_labels": 1 << 16}, names),
        ({"id2label": {1: "b", "0": "a"}}, ["a", "b"]), ({"id2label": dict(enumerate(names))}, names),
    ):  # fmt: skip
        assert read_labels(Fields(config, "here")) == tuple(labels)
    for wrong in ({}, [], "ab", dict(enumerate([*names, "more"])), {"1": "a"}, {"0": "a", "2": "b"}, {"0": 1}):
        with pytest.raises(ModelError, match="id2label"):
            read_labels(Fields({"id2label": wrong}, "here"))
    single, several = "single_label_classification", "multi_label_classification"
    for problem, count, activation in (
        (None, 1, "sigmoid"), (None, 2, "softmax"), (single, 1, "sigmoid"), (single, 2, "softmax"),
        (several, 2, "sigmoid"), ("regression", 2, "none"),
    ):  # fmt: skip
        assert read_activation(Fields({"problem_type": problem}, "here"), count) == activation
    for problem in ("another", 5, ["regression"]):
        with pytest.raises(ModelError, match="problem_type"):
            read_activation(Fields({"problem_type": problem}, "here"), 2)


def test_a_value_that_is_not_there_has_the_default_of_the_call_then_that_of_the_family() -> None:
    fields = Fields({"null": None}, "here", {"a": 4, "id": 5, "null": 6})
    assert (fields.integer("a", 0, 9), fields.integer("a", 0, 9, 7)) == (4, 7)
    assert fields.get("null") is fields.get("null", 1) is None
    assert (fields.token_ids("id", 6), fields.token_ids("id", 5), fields.token_ids("null", 9)) == ((5,), (), ())
    assert fields.token_ids("b", 6) == () and fields.token_id("b", 6) is None
    assert Fields({"a": [3, 1, 3]}, "here").token_ids("a", 4) == (3, 1)
    assert len(Fields({"a": list(range(1024))}, "here").token_ids("a", 1024)) == 1024
    assert Fields({"a": -1}, "here").token_id("a", 4) is None
    for reader in ("boolean", "text", "get"):
        with pytest.raises(ModelError, match=r"^here: b is missing$"):
            getattr(fields, reader)("b")


# -- 43: refused, by name -------------------------------------------------------------------------

REQUIRED = {
    "vocab_size": "1 and 16,777,216", "hidden_size": "1 and 1,048,576", "intermediate_size": "1 and 1,048,576",
    "num_hidden_layers": "1 and 1,024", "num_attention_heads": "1 and 4,096", "num_key_value_heads": "1 and 4,096",
    "head_dim": "2 and 1,024", "max_position_embeddings": "1 and 16,777,216", "rms_norm_eps": "",
}  # fmt: skip


@pytest.mark.fault(43)
@pytest.mark.parametrize("key", REQUIRED)
def test_missing_key(key: str) -> None:
    with pytest.raises(ModelError, match=f"{key} is missing"):
        read(**{key: ABSENT})


@pytest.mark.fault(43)
def test_missing_theta() -> None:
    with pytest.raises(ModelError, match="rope_theta is missing"):
        read(rope_parameters=None)


@pytest.mark.fault(43)
def test_missing_architecture_and_type() -> None:
    with pytest.raises(ModelError, match="architectures and model_type"):
        read(architectures=ABSENT, model_type=ABSENT)


@pytest.mark.fault(43)
@pytest.mark.parametrize("key", [key for key in REQUIRED if key != "rms_norm_eps"])
@pytest.mark.parametrize("value", [True, "32", 8.0, [8], {"a": 1}, -8, 0, 10**9, 2**64, math.nan])
def test_size_of_wrong_type_or_range(key: str, value: Any) -> None:
    with pytest.raises(ModelError, match=f"{key} is .*(between|limits are) {REQUIRED[key]}"):
        read(**{key: value})


@pytest.mark.fault(43)
@pytest.mark.parametrize("layers", [0, 10**9])
def test_number_of_layers(layers: int) -> None:
    with pytest.raises(ModelError, match=f"num_hidden_layers is {layers}, the limits are 1 and 1,024"):
        read(num_hidden_layers=layers, layer_types=None)


@pytest.mark.fault(43)
@pytest.mark.parametrize("eps", [0, 0.0, -1e-6, math.nan, math.inf, "1e-6", True, None, 1.0])
def test_epsilon(eps: Any) -> None:
    with pytest.raises(ModelError, match="rms_norm_eps is"):
        read(rms_norm_eps=eps)


@pytest.mark.fault(43)
@pytest.mark.parametrize("theta", [0, 0.0, -1.0, math.nan, math.inf, "10000", True, 1.0, 10**400])
@pytest.mark.parametrize("base", [OLD, NEW], ids=["transformers4", "transformers5"])
def test_theta(theta: Any, base: dict[str, Any]) -> None:
    change = {"rope_theta": theta} if base is OLD else {"rope_parameters": {"rope_theta": theta}}
    with pytest.raises(ModelError, match="rope_theta is"):
        read(base, **change)


@pytest.mark.fault(43)
@pytest.mark.parametrize(
    "changes, message",
    [
        ({"hidden_size": 33, "head_dim": None}, "hidden_size is 33, .*multiple of num_attention_heads = 4"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3, it must divide num_attention_heads = 4"),
        ({"num_key_value_heads": 8}, "num_key_value_heads is 8, it must divide"),
        ({"head_dim": 7}, "head_dim is 7, .*even"), ({"hidden_size": 4, "head_dim": None}, "head_dim is 1, .*even"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1, true or false"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings is 'false', true or false"),
        ({"attention_bias": "no"}, "attention_bias is 'no', true or false"),
        ({"hidden_act": 5}, "hidden_act is 5, a string"), ({"model_type": 5}, "model_type is 5, a string"),
        ({"model_type": "llama"}, "model_type is 'llama', but the architecture Qwen3ForCausalLM"),
        ({"architectures": []}, "architectures is \\[\\], a list of one name"),
        ({"architectures": "Qwen3ForCausalLM"}, "architectures is 'Qwen3ForCausalLM', a list"),
        ({"architectures": [{}]}, "architectures is"),
        ({"eos_token_id": 64}, "eos_token_id is 64, token ids here are between 0 and vocab_size - 1 = 63"),
        ({"eos_token_id": -1}, "eos_token_id is -1, token ids"),
        ({"eos_token_id": [3, True]}, "eos_token_id is \\[3, True\\], a token id"),
        ({"eos_token_id": 3.0}, "eos_token_id is 3.0, a token id"),
        ({"eos_token_id": [1] * 1025}, "eos_token_id lists 1,025 ids"),
        ({"bos_token_id": [1]}, "bos_token_id is \\[1\\], one token id"),
        ({"pad_token_id": 64}, "pad_token_id is 64"), ({"pad_token_id": False}, "pad_token_id is False"),
        ({"rope_theta": 5.0}, "rope_theta is given twice, as 1000000.0 and as 5.0"),
        ({"rope_parameters": [1]}, "rope_parameters is \\[1\\], an object"),
        ({"torch_dtype": "float16"}, "dtype is 'bfloat16', but torch_dtype is 'float16'"),
        ({"dtype": 16}, "dtype is 16, a string"),
        ({"layer_types": ["full_attention"]}, "layer_types is .*list of 2 names"),
        ({"use_sliding_window": "yes"}, "use_sliding_window is 'yes', true or false"),
    ],
)  # fmt: skip
def test_contradictions_and_wrong_values(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read(**changes)


@pytest.mark.fault(43)
@pytest.mark.parametrize(
    "rope, message",
    [
        ({"rope_type": "yarn"}, "factor is missing"),
        ({"rope_type": "yarn", "factor": 0.5}, "factor is 0.5, it must be at least 1"),
        ({"rope_type": "yarn", "factor": math.nan}, "factor is nan, a finite"),
        ({"rope_type": "yarn", **YARN, "beta_fast": 1, "beta_slow": 2}, "beta_fast is 1, .*beta_slow = 2"),
        ({"rope_type": "linear", "factor": "2"}, "factor is '2', a number"),
        ({"rope_type": 7}, "rope_type is 7, a string"),
        ({"rope_type": "yarn", "type": "linear", **YARN}, "type 'linear' and rope_type 'yarn'"),
        ({**LLAMA3, "high_freq_factor": 1.0}, "high_freq_factor is 1.0, it must be above low_freq_factor"),
        ({**LLAMA3, "original_max_position_embeddings": 0}, "original_max_position_embeddings is 0"),
    ],
)
def test_rope_values(rope: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read(rope_parameters={"rope_theta": 1e4, **rope})


UNSUPPORTED: list[tuple[dict[str, Any], str]] = [
    ({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}, "architecture 'GPT2LMHeadModel'"),
    ({"architectures": None, "model_type": "gpt2"}, "model_type 'gpt2'"),
    ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantization_config \\('gptq'\\)"),
    ({"quantization_config": {}}, "quantization_config"),
    ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types with sliding_attention and no window"),
    ({"layer_types": ["full_attention", "linear_attention"]}, "layer_types with 'linear_attention'"),
    ({**MISTRAL, "sliding_window": 9, "layer_types": ["full_attention"] * 2}, "holds for all layers"),
    ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "spiral"}}, "rope_type 'spiral'"),
    ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "one entry per layer type"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"), ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    ({"dtype": "float8_e4m3fn"}, "dtype 'float8_e4m3fn'"),
    ({"dual_chunk_attention_config": {"chunk_size": 8}}, "dual_chunk_attention_config"),
    ({"is_causal": False}, "is_causal"), ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ({**LLAMA, "rope_parameters": None, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic'"),
    ({**LLAMA, "hidden_act": "gelu"}, "hidden_act 'gelu'"), ({"vision_config": {}}, "vision_config"),
]  # fmt: skip


ANOTHER_KIND = (test_decoder_configs, test_encoder_configs, test_recurrent_configs)
NAMED = [(UnsupportedModel, {**NEW, **changes}, message) for changes, message in UNSUPPORTED]
NAMED += [(UnsupportedModel, *case) for other in ANOTHER_KIND for case in other.UNSUPPORTED]
NAMED += [(ModelError, *case) for other in ANOTHER_KIND for case in other.WRONG]


@pytest.mark.fault(43)
@pytest.mark.parametrize("error, config, message", NAMED, ids=[message for _, _, message in NAMED])
def test_a_config_that_is_refused_is_named(error: type[ModelError], config: dict[str, Any], message: str) -> None:
    with pytest.raises(error, match=message):
        read(config)


WINDOWS = {**NEW, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}


@pytest.mark.parametrize(
    "files, message",
    [
        ({"opendecider.json": {"kind": "nano"}, "config.json": NEW}, "'qwen3'; the head reads an encoder"),
        ({"pointer_head.json": {}, "config.json": test_encoder_configs.BERT}, "'bert'; the head reads a decoder"),
        ({"config.json": {"backbone_config": "b.json"}, "b.json": WINDOWS}, "b.json: .*within a window below"),
        ({"config.json": {"backbone_config": "b.json"}, "b.json": test_recurrent_configs.QWEN}, "a recurrent state"),
        ({"config.json": {"model_type": "extractor", "token_pooling": "mean"}}, "token_pooling 'mean'"),
    ],
)
def test_a_network_that_a_head_does_not_read(files: dict[str, Any], message: str, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    model: Any = option_model(ModelDirectory.of(tmp_path))
    with pytest.raises(UnsupportedModel, match=message):
        model.network(ModelDirectory.of(tmp_path))


def test_a_file_of_a_heads_network_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "extractor"}', encoding="utf-8")
    model: Any = option_model(ModelDirectory.of(tmp_path))
    with pytest.raises(ModelError, match=r"encoder_config.config\.json: missing"):
        model.network(ModelDirectory.of(tmp_path))


@pytest.mark.parametrize(
    "changes",
    [
        {"num_experts": 8}, {"final_logit_softcapping": 30.0}, {"mlp_bias": True},
        {**MISTRAL, "attention_bias": True}, {**QWEN2, "attention_bias": False},
    ],
    ids=str,
)  # fmt: skip
def test_keys_that_transformers_does_not_read_are_said_and_ignored(
    changes: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    plain = {key: value for key, value in changes.items() if key in MISTRAL or key in QWEN2}
    config = read(**changes)
    assert list(changes)[-1] in caplog.text and "not read by a" in caplog.text
    assert config == read(**{**plain, list(changes)[-1]: ABSENT})


NEUTRAL = {"attn_logit_softcapping": 0, "final_logit_softcapping": 0, "logit_scale": 1, "logits_scaling": 1,
           "embedding_multiplier": 1, "residual_multiplier": 1, "num_experts": 0, "num_local_experts": 0,
           "n_routed_experts": 0, "attention_chunk_size": None, "attention_multiplier": None}  # fmt: skip


@pytest.mark.parametrize(("key", "value"), NEUTRAL.items())
def test_nothing_is_said_of_another_familys_key_that_changes_nothing(
    key: str, value: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    assert read(**{key: value}) == read(**{key: None}) and "not read" not in caplog.text
    read(**{key: 2})
    assert f"{key} 2 is not read by a" in caplog.text


@pytest.mark.parametrize(
    "changes",
    [
        {**LLAMA, "sliding_window": 64}, {"use_sliding_window": ABSENT, "sliding_window": 64},
        {**QWEN2, "use_sliding_window": ABSENT, "sliding_window": 64},
        {**QWEN2, "use_sliding_window": True, "sliding_window": 64, "max_window_layers": 28},
        {**QWEN2, "use_sliding_window": True, "sliding_window": 256, "max_window_layers": 0},
        {"use_sliding_window": True, "sliding_window": 64, "layer_types": ["full_attention", "full_attention"]},
        {**MISTRAL, "sliding_window": 256},
    ],
    ids=str,
)  # fmt: skip
def test_windows_that_no_layer_uses(changes: dict[str, Any]) -> None:
    config = read(**changes)
    assert config.max_positions == 256
    assert [layer.mixer.window for layer in config.spec.layers] == [None, None]


@pytest.mark.parametrize(
    "changes, windows",
    [
        ({**MISTRAL, "sliding_window": 255}, [254, 254]),
        ({**MISTRAL, "sliding_window": 9, "layer_types": ["sliding_attention"] * 2}, [8, 8]),
        ({**MISTRAL, "sliding_window": ABSENT, "max_position_embeddings": 8192}, [4095, 4095]),
        ({**QWEN2, "use_sliding_window": True, "sliding_window": 64, "max_window_layers": 0}, [63, 63]),
        ({"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1}, [None, 63]),
        (
            {
                "use_sliding_window": True,
                "sliding_window": 1,
                "max_window_layers": 9,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            [0, None],
        ),
    ],
    ids=str,
)
def test_windows_of_layers(changes: dict[str, Any], windows: list[int | None]) -> None:
    """The window counts the token's own position."""
    assert [layer.mixer.window for layer in read(**changes).spec.layers] == windows


@pytest.mark.parametrize(
    "positions, rope, expected",
    [
        (40960, {"factor": 4.0, "original_max_position_embeddings": 32768}, 131072),
        (32768, {"factor": 4.0, "original_max_position_embeddings": 32768}, 131072),
        (262144, {"factor": 4.0, "original_max_position_embeddings": 32768}, 262144), (40960, {"factor": 4.0}, 40960),
    ],
)  # fmt: skip
def test_yarn_as_qwen_writes_it_makes_the_context_longer(positions: int, rope: dict[str, Any], expected: int) -> None:
    config = read(
        max_position_embeddings=positions,
        rope_scaling={"rope_type": "yarn", **rope},
        rope_parameters=ABSENT,
        rope_theta=1e6,
    )
    assert config.max_positions == expected


@pytest.mark.fault(43)
def test_unsupported_before_the_weights_are_touched(copy_of: Any) -> None:
    from prelude.models.checkpoint import Checkpoint

    directory = copy_of("tied")
    raw = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    (directory / "config.json").write_text(
        json.dumps({**raw, "quantization_config": {"quant_method": "awq"}}), encoding="utf-8"
    )
    (directory / "model.safetensors").unlink()
    with pytest.raises(UnsupportedModel, match="quantization_config"):
        Checkpoint.open(directory, ModelConfig.from_dir(directory))


@pytest.mark.fault(43)
def test_vocabulary_smaller_than_the_tokenizer() -> None:
    config = read()
    config.check_vocabulary(63, "m")
    with pytest.raises(ModelError, match="token id 64, but vocab_size is 64"):
        config.check_vocabulary(64, "m")


@pytest.mark.fault(43)
@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"null", b"\xff\xfe{}", b'{"a": 1, "a": 1}', b"[" * 100_000, b'{"a": ' * 100_000,
        b'{"vocab_size": ' + b"9" * 10_000 + b"}", b" " * (5 << 20),
    ],
    ids=["empty", "open", "list", "null", "utf16", "duplicate", "deep", "deeper", "digits", "large"],
)  # fmt: skip
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_file_that_is_not_a_json_object(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(NEW), encoding="utf-8")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match=f"{name}: "):
        ModelConfig.from_dir(tmp_path)


@pytest.mark.fault(43)
def test_not_a_mapping() -> None:
    with pytest.raises(ModelError, match="an object is needed"):
        ModelConfig.from_dict([1])  # type: ignore[arg-type]


@pytest.mark.fault(44)
def test_code_of_the_model_is_never_imported(
    copy_of: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prelude.models.checkpoint import Checkpoint

    directory = copy_of("tied")
    marker = directory / "was_run"
    for module in ("modeling_own", "configuration_own"):
        (directory / f"{module}.py").write_text(f"open({str(marker)!r}, 'w')", encoding="utf-8")
    raw = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    raw["auto_map"] = {"AutoConfig": "configuration_own.C", "AutoModelForCausalLM": "modeling_own.M"}
    (directory / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    monkeypatch.chdir(directory)
    monkeypatch.syspath_prepend(str(directory))
    with caplog.at_level(logging.WARNING), Checkpoint.open(directory, ModelConfig.from_dir(directory)) as checkpoint:
        assert len(checkpoint) == 24
    assert "auto_map" in caplog.text and "not imported" in caplog.text
    assert not marker.exists()


@pytest.mark.fault(44)
def test_architecture_that_needs_its_own_code_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="architecture 'OwnForCausalLM'"):
        read(architectures=["OwnForCausalLM"], model_type="own", auto_map={"AutoModel": "modeling_own.M"})
