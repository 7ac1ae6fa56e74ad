"""config.json and checkpoints of encoders: the values that are read, and every way to refuse it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from prelude.errors import CheckpointError, ModelError, UnsupportedModel
from prelude.models.arrays import FLOAT32
from prelude.models.config import ModelConfig
from prelude.models.read_weights import load_weights
from prelude.models.weights import arrays_of
from tests.encoders import VARIANTS, write_encoder
from tests.models.conftest import open_checkpoint, refused

SMALL: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 40,
}  # fmt: skip
BERT = {**SMALL, "architectures": ["BertModel"], "model_type": "bert"}
ROBERTA = {**SMALL, "architectures": ["RobertaModel"], "model_type": "roberta"}
ELECTRA = {**SMALL, "architectures": ["ElectraModel"], "model_type": "electra", "embedding_size": 16}
DISTILBERT: dict[str, Any] = {
    "architectures": ["DistilBertModel"], "model_type": "distilbert", "vocab_size": 64, "dim": 32, "n_layers": 2,
    "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 40,
}  # fmt: skip
MODERNBERT = {**SMALL, "architectures": ["ModernBertModel"], "model_type": "modernbert"}
DEBERTA: dict[str, Any] = {
    **SMALL, "architectures": ["DebertaV2Model"], "model_type": "deberta-v2", "relative_attention": True,
    "position_biased_input": False, "share_att_key": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8,
    "max_relative_positions": -1, "norm_rel_ebd": "layer_norm",
}  # fmt: skip
CONFIGS = {
    "deberta-v2": DEBERTA, "modernbert": MODERNBERT, "bert": BERT, "roberta": ROBERTA, "electra": ELECTRA,
    "distilbert": DISTILBERT,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["Model", "ForSequenceClassification"])
@pytest.mark.parametrize("name", list(VARIANTS))
def test_expected_tensors_are_those_that_transformers_writes(name: str, kind: str, tmp_path: Path) -> None:
    path = write_encoder(tmp_path, kind=kind, **VARIANTS[name])
    config = ModelConfig.from_dir(path)
    body = "" if kind == "ForSequenceClassification" else config.spec.prefix
    written = {f"{body}{name}": tuple(t.shape) for name, t in load_file(path / "model.safetensors").items()}
    expected = config.spec.tensors()
    unread = {name for name in written if ".pooler." in name} - set(expected)
    assert expected == {name: shape for name, shape in written.items() if name not in unread}
    assert kind == "Model" or not unread


def test_positions_of_roberta_begin_behind_the_padding() -> None:
    def positions(**changes: Any) -> int:
        return ModelConfig.from_dict({**ROBERTA, **changes}).max_positions

    assert (positions(), positions(pad_token_id=0), positions(pad_token_id=37)) == (38, 39, 2)


@pytest.mark.parametrize("kind", ["gamma", "buffers", "masked-lm"])
def test_checkpoints_of_other_times_and_heads(kind: str, tmp_path: Path) -> None:
    """The first BERT checkpoints call gains gamma, older ones hold buffers, and many have a head of pre-training."""
    path = write_encoder(tmp_path, family="bert", kind="ForMaskedLM" if kind == "masked-lm" else "Model")
    file = path / "model.safetensors"
    with open_checkpoint(path) as checkpoint:
        plain = load_weights(checkpoint, checkpoint.config.spec, FLOAT32)
    tensors = load_file(file)
    if kind == "gamma":
        for name in [name for name in tensors if "LayerNorm" in name]:
            old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            tensors[old] = tensors.pop(name)
    elif kind == "buffers":
        tensors["embeddings.position_ids"] = torch.arange(140)[None]
    save_file(tensors, file)
    with open_checkpoint(path) as checkpoint:
        again = load_weights(checkpoint, checkpoint.config.spec, FLOAT32)
    for one, other in zip(arrays_of(plain.layers[2]), arrays_of(again.layers[2]), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.fault(42)
def test_weights_of_the_body_that_are_missing_too_many_or_of_another_shape(tmp_path: Path) -> None:
    path = write_encoder(tmp_path, family="bert")
    file = path / "model.safetensors"
    tensors = load_file(file)
    name = "encoder.layer.1.attention.self.key.bias"
    for change, said in (
        ({**tensors, name: torch.zeros(3)}, r"key.bias has shape \[3\], the configuration implies \[48\]"),
        ({**tensors, "encoder.layer.3.output.dense.bias": torch.zeros(48)}, "not part of a BertModel"),
        ({key: value for key, value in tensors.items() if key != name}, "key.bias' is missing"),
    ):
        save_file(change, file)
        refused(path, said, CheckpointError)


UNSUPPORTED: list[tuple[dict[str, Any], str]] = [
    ({**BERT, "is_decoder": True}, "is_decoder"), ({**BERT, "is_causal": True}, "is_causal"),
    ({**BERT, "add_cross_attention": True}, "add_cross_attention"),
    ({**BERT, "position_embedding_type": "relative_key"}, "position_embedding_type"),
    ({**BERT, "hidden_act": "mish"}, "hidden_act 'mish'; supported: gelu"),
    ({**BERT, "quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
    ({**DISTILBERT, "sinusoidal_pos_embds": True}, "sinusoidal_pos_embds"),
    ({**DEBERTA, "relative_attention": False}, "relative_attention"),
    ({**DEBERTA, "share_att_key": False}, "share_att_key"), ({**DEBERTA, "type_vocab_size": 2}, "type_vocab_size"),
    ({**DEBERTA, "conv_kernel_size": 3}, "conv_kernel_size"), ({**DEBERTA, "embedding_size": 16}, "embedding_size"),
    ({**DEBERTA, "pos_att_type": ["c2p"]}, "pos_att_type"),
    ({**DEBERTA, "norm_rel_ebd": "batch"}, "norm_rel_ebd 'batch'"),
    ({**BERT, "architectures": ["BertForQuestionAnswering"]}, "architecture 'BertForQuestionAnswering'"),
]  # fmt: skip
WRONG: list[tuple[dict[str, Any], str]] = [
    ({**BERT, "num_attention_heads": 5}, "hidden_size is 32, .* a multiple of num_attention_heads = 5"),
    ({**DISTILBERT, "n_heads": 5}, "dim is 32, .* a multiple of n_heads = 5"),
    ({**DEBERTA, "position_buckets": 78}, "position_buckets is 78, it must be below"),
    ({**DEBERTA, "position_buckets": 65537}, "position_buckets is 65537, the limits are -1 and 65,536"),
    ({**DEBERTA, "position_buckets": -1, "max_relative_positions": 65537}, "position_buckets the limit is 65,536"),
    ({**DEBERTA, "position_biased_input": 1}, "position_biased_input is 1"),
    ({**DEBERTA, "position_biased_input": True, "type_vocab_size": 1025}, "type_vocab_size is 1025, the limits"),
    ({**DEBERTA, "pos_att_type": 7}, "pos_att_type is 7"),
    ({**DEBERTA, "max_relative_positions": "x"}, "max_relative_positions is 'x'"),
    ({**BERT, "num_hidden_layers": 0}, "num_hidden_layers is 0, the limits are 1 and 1,024"),
    ({**BERT, "max_position_embeddings": 0}, "max_position_embeddings is 0, the limits are 1 and 16,777,216"),
    ({**BERT, "layer_norm_eps": 0}, "layer_norm_eps is 0"),
    ({**BERT, "type_vocab_size": -1}, "type_vocab_size is -1, the limits are 0 and 1,024"),
    ({**ROBERTA, "pad_token_id": 39}, "pad_token_id is 39, the limits are 0 and 38"),
    ({**ROBERTA, "max_position_embeddings": 1}, "positions begin at pad_token_id"),
    ({**ELECTRA, "embedding_size": 0}, "embedding_size is 0, the limits are 1 and 1,048,576"),
    ({**BERT, "model_type": "roberta"}, "belongs to 'bert'"),
]


def test_a_config_written_by_transformers_is_read_as_it_stands(tmp_path: Path) -> None:
    path = write_encoder(tmp_path, family="roberta", kind="ForSequenceClassification", num_labels=3)
    raw = json.loads((path / "config.json").read_text(encoding="utf-8"))
    config = ModelConfig.from_dir(path)
    assert raw["model_type"] == config.model_type == "roberta"
    assert (config.labels, config.activation) == (("LABEL_0", "LABEL_1", "LABEL_2"), "softmax")
    assert config.spec.bidirectional and config.spec.final_norm is None and config.spec.lm_head is None


def _ropes(config: ModelConfig) -> list[float]:
    return [layer.mixer.rope.theta for layer in config.spec.layers if layer.mixer.rope is not None]


def test_rotary_bases_of_modernbert_in_either_spelling() -> None:
    thetas = {"full_attention": 7e4, "sliding_attention": 3e3}
    new = {kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in thetas.items()}
    yarn = {**new, "full_attention": {"rope_type": "yarn", "rope_theta": 1.0}}
    old = {"global_rope_theta": 7e4, "local_rope_theta": 3e3}
    assert _ropes(ModelConfig.from_dict({**MODERNBERT, **old})) == [7e4, 3e3]
    assert _ropes(ModelConfig.from_dict({**MODERNBERT, "rope_parameters": new})) == [7e4, 3e3]
    assert _ropes(ModelConfig.from_dict({**MODERNBERT, "local_rope_theta": None})) == [16e4, 16e4]
    assert _ropes(ModelConfig.from_dict(MODERNBERT)) == [16e4, 1e4]
    for change, said in (
        ({"rope_parameters": new, "global_rope_theta": 1e4}, "global_rope_theta is 10000.0, and rope_parameters say"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "an object for sliding_attention"),
        ({"rope_parameters": yarn}, "rope_type 'yarn'"),
        ({"layer_types": ["full_attention"]}, "layer_types is .* a list of 2 names"),
        ({"layer_types": ["full_attention", "linear"]}, "layer_types with .linear."),
        ({"num_attention_heads": 32}, "heads of 1 values"),
        ({"local_attention": 0}, "local_attention is 0"),
        ({"global_attn_every_n_layers": 0}, "global_attn_every_n_layers is 0"),
    ):
        with pytest.raises(ModelError, match=said):
            ModelConfig.from_dict({**MODERNBERT, **change})
    head = {**MODERNBERT, "architectures": ["ModernBertForSequenceClassification"], "classifier_pooling": "max"}
    with pytest.raises(UnsupportedModel, match="classifier_pooling 'max'"):
        ModelConfig.from_dict(head)


@pytest.mark.parametrize("config, name", [(BERT, "Bert"), (ROBERTA, "Roberta"), (MODERNBERT, "ModernBert")])
def test_a_head_of_masks_has_the_weight_of_the_embeddings_and_a_bias(config: dict[str, Any], name: str) -> None:
    masked = {**config, "architectures": [f"{name}ForMaskedLM"]}
    assert ModelConfig.from_dict(masked).spec.masked is not None and ModelConfig.from_dict(config).spec.masked is None
    without = [{"tie_word_embeddings": False}, *([{"decoder_bias": False}] if config is MODERNBERT else [])]
    assert [ModelConfig.from_dict({**masked, **change}).spec.masked for change in without] == [None] * len(without)
