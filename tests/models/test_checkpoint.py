"""The weights of a model directory against its config: names, shapes, types, the head."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from prelude.errors import CheckpointError, UnsupportedModel
from prelude.models.arrays import narrow, widen
from tests.tensors import torch_of

from .conftest import FILE, INDEX, Copy, edit_json, edit_weights, loaded, open_checkpoint, reference_weights, refused

# -- files that load -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["untied", "tied", "bf16", "sharded", "sharded_tied", "biased", "multi_query"])
def test_weights_equal_those_of_the_reference(kind: str, checkpoint_dir: Copy) -> None:
    directory = checkpoint_dir(kind)
    reference = reference_weights(directory)
    assert (len(list(directory.glob("*.safetensors"))) > 1) == ("shard" in kind)
    with open_checkpoint(directory, scan=True) as checkpoint:
        assert checkpoint.head == ("tied" if kind.endswith("tied") and kind != "untied" else "own")
        assert checkpoint.names() == list(checkpoint) == list(checkpoint.config.spec.tensors())
        assert set(checkpoint.names()) == set(reference) and len(checkpoint) == len(reference)
        for name, value in reference.items():
            ours = torch_of(checkpoint.tensor(name))
            assert torch.equal(ours, value) and ours.dtype == value.dtype
            assert checkpoint.shape(name) == tuple(value.shape)
        elements = sum(value.numel() for value in reference.values())
        assert checkpoint.nbytes(4) == 4 * elements
        for name, value in reference.items():
            assert np.array_equal(widen(checkpoint.tensor(name)), value.float())


@pytest.mark.fault(42)
@pytest.mark.parametrize("kind", ["tied", "untied"])
def test_names_with_and_without_prefix(kind: str, copy_of: Copy) -> None:
    directory = copy_of(kind)
    with open_checkpoint(directory) as checkpoint:
        expected = loaded(checkpoint)
    edit_weights(directory / FILE, lambda tensors: {k.removeprefix("model."): v for k, v in tensors.items()})
    with open_checkpoint(directory) as checkpoint:
        found = loaded(checkpoint)
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.fault(42)
def test_mixed_dtypes_are_converted_tensor_by_tensor(copy_of: Copy) -> None:
    directory = copy_of("tied")
    kinds = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
    edit_weights(
        directory / FILE, lambda tensors: {k: t.to(kinds[i % 4]) for i, (k, t) in enumerate(tensors.items())}
    )
    reference = reference_weights(directory)
    with open_checkpoint(directory) as checkpoint:
        assert {torch_of(checkpoint.tensor(name)).dtype for name in checkpoint} == set(kinds)
        for name, value in reference.items():
            stored = checkpoint.tensor(name)
            assert np.array_equal(widen(stored), value.float())
            assert torch.equal(torch_of(narrow(stored)), value.float().to(torch.bfloat16))


def test_buffers_of_old_versions_are_ignored(copy_of: Copy) -> None:
    directory = copy_of("tied")
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    edit_weights(directory / FILE, lambda tensors: {**tensors, name: torch.ones(4)})
    with open_checkpoint(directory) as checkpoint:
        assert name not in checkpoint.names()


def test_one_file_is_preferred_to_an_index(copy_of: Copy, caplog: pytest.LogCaptureFixture) -> None:
    directory = copy_of("tied")
    (directory / INDEX).write_text("nonsense", encoding="utf-8")
    open_checkpoint(directory).close()
    assert "the index is not used" in caplog.text


# -- 42: the set of tensors, shapes, types ---------------------------------------------------------


NORM = "model.layers.1.post_attention_layernorm.weight"
Q_PROJ = "model.layers.0.self_attn.q_proj.weight"


def without(*names: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda tensors: {name: value for name, value in tensors.items() if name not in names}


def plus(**added: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda tensors: {**tensors, **{name.replace("__", "."): value for name, value in added.items()}}


def replaced(name: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda tensors: {**tensors, name: change(tensors[name]).contiguous()}


@pytest.mark.fault(42)
@pytest.mark.parametrize(
    "change, match",
    [
        (without(NORM), f"tensor '{NORM}' is missing"),
        (without(NORM, Q_PROJ), "2 tensors .* are missing"),
        (without("model.embed_tokens.weight"), "embed_tokens.weight' is missing"),
        (lambda tensors: {"x": torch.ones(1)}, "24 tensors .* are missing"),
        (plus(model__layers__2__mlp__up_proj__weight=torch.ones(1)), "layers.2.mlp.up_proj.weight' is not part"),
        (plus(model__layers__0__self_attn__q_proj__bias=torch.ones(32)), "q_proj.bias' is not part"),
        (replaced(NORM, lambda t: t[:-1]), f"{NORM} has shape \\[31\\], the configuration implies \\[32\\]"),
        (replaced(NORM, lambda t: t[None]), f"{NORM} has shape \\[1, 32\\]"),
        (replaced(NORM, lambda t: t[:0]), f"{NORM} has shape \\[0\\]"),
        (replaced("model.layers.0.mlp.up_proj.weight", lambda t: t.T), "shape \\[32, 48\\], .*\\[48, 32\\]"),
        (replaced("model.embed_tokens.weight", lambda t: t[:60]), "shape \\[60, 32\\]"),
        (plus(norm__weight=torch.ones(32)), "'model.norm.weight' is there twice"),
    ],
)
def test_tensors_that_the_config_does_not_imply(change: Any, match: str, copy_of: Copy) -> None:
    directory = copy_of("tied")
    edit_weights(directory / FILE, change)
    refused(directory, match)


@pytest.mark.fault(42)
@pytest.mark.parametrize(
    "changes, match",
    [
        ({"num_hidden_layers": 3, "layer_types": None}, "11 tensors .* are missing"),
        ({"num_hidden_layers": 1, "layer_types": None}, "11 tensors .* are not part"),
        ({"hidden_size": 64}, "has shape .*, the configuration implies"),
        ({"vocab_size": 65}, "embed_tokens.weight has shape \\[64, 32\\], the configuration implies \\[65, 32\\]"),
        ({"attention_bias": True}, "8 tensors .* are missing"),
    ],
)
def test_config_that_does_not_fit_the_weights(changes: dict[str, Any], match: str, copy_of: Copy) -> None:
    directory = copy_of("tied")
    edit_json(directory / "config.json", **changes)
    refused(directory, match)


@pytest.mark.fault(42)
@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.bool, torch.int64])
def test_weights_that_are_not_floats(dtype: torch.dtype, copy_of: Copy) -> None:
    directory = copy_of("tied")
    edit_weights(directory / FILE, replaced(Q_PROJ, lambda t: t.to(dtype)))
    refused(directory, f"unsupported: tensor {Q_PROJ} is stored as", UnsupportedModel)


@pytest.mark.fault(42)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("kind", ["tied", "bf16"])
def test_scan_finds_values_that_are_not_finite(value: float, kind: str, copy_of: Copy) -> None:
    directory = copy_of(kind)

    def spoil(weight: torch.Tensor) -> torch.Tensor:
        weight[3, 5] = weight[0, 0] = value
        return weight

    edit_weights(directory / FILE, replaced(Q_PROJ, spoil))
    open_checkpoint(directory).close()
    refused(directory, f"{Q_PROJ}: 2 of 1,024 values are NaN or infinite", scan=True)


def test_tied_weights_saved_under_the_name_of_the_head(copy_of: Copy) -> None:
    directory = copy_of("tied")
    with open_checkpoint(directory) as checkpoint:
        expected = loaded(checkpoint)
    edit_weights(directory / FILE, lambda t: {k.replace("model.embed_tokens", "lm_head"): v for k, v in t.items()})
    with open_checkpoint(directory) as checkpoint:
        assert checkpoint.head == "tied"
        found = loaded(checkpoint)
    assert all(torch.equal(found[name], expected[name]) for name in expected) and list(found) == list(expected)


@pytest.mark.parametrize("begins", ["_orig_mod.", "language_model.", "module.", "model.language_model."])
@pytest.mark.parametrize("kind", ["tied", "untied"])
def test_names_of_a_wrapped_model_are_named(
    kind: str, begins: str, copy_of: Copy, caplog: pytest.LogCaptureFixture
) -> None:
    """transformers draws such weights at random."""
    directory = copy_of(kind)
    edit_weights(directory / FILE, lambda t: {begins + k: v for k, v in t.items()})
    refused(directory, f"begins with '{begins}', as no weight of a Qwen3ForCausalLM does; save the model inside")
    assert "saved alone" not in caplog.text


@pytest.mark.fault(42)
def test_untied_without_a_head_is_an_error(copy_of: Copy) -> None:
    directory = copy_of("tied")
    edit_json(directory / "config.json", tie_word_embeddings=False)
    refused(directory, "lm_head.weight is missing and tie_word_embeddings is false; .*set tie_word_embeddings")


@pytest.mark.fault(42)
def test_untied_body_saved_alone_has_no_head(copy_of: Copy, caplog: pytest.LogCaptureFixture) -> None:
    directory = copy_of("untied")
    edit_weights(
        directory / FILE,
        lambda tensors: {k.removeprefix("model."): v for k, v in tensors.items() if k != "lm_head.weight"},
    )
    with open_checkpoint(directory) as checkpoint:
        assert checkpoint.head == "none" and "lm_head.weight" not in checkpoint.names()
    assert "no logits" in caplog.text


def test_architecture_without_a_head_ignores_one(copy_of: Copy) -> None:
    directory = copy_of("untied")
    edit_json(directory / "config.json", architectures=["Qwen3Model"])
    with open_checkpoint(directory) as checkpoint:
        assert checkpoint.head == "none" and "lm_head.weight" not in checkpoint.names()


@pytest.mark.fault(42)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tied_with_an_identical_head_ignores_it(
    dtype: torch.dtype, copy_of: Copy, caplog: pytest.LogCaptureFixture
) -> None:
    directory = copy_of("tied")
    edit_weights(
        directory / FILE, lambda t: {**t, "lm_head.weight": t["model.embed_tokens.weight"].to(dtype, copy=True)}
    )
    with caplog.at_level(logging.WARNING), open_checkpoint(directory) as checkpoint:
        assert checkpoint.head == "tied" and "lm_head.weight" not in checkpoint.names()
    assert not caplog.text


@pytest.mark.fault(42)
def test_tied_with_another_head_uses_it_as_the_reference_does(
    copy_of: Copy, caplog: pytest.LogCaptureFixture
) -> None:
    from transformers import AutoModelForCausalLM

    directory = copy_of("tied")
    edit_weights(directory / FILE, lambda t: {**t, "lm_head.weight": torch.ones(64, 32)})
    with caplog.at_level(logging.WARNING), open_checkpoint(directory) as checkpoint:
        assert checkpoint.head == "own" and checkpoint.names()[-1] == "lm_head.weight"
        assert bool((checkpoint.tensor("lm_head.weight") == 1).all())
    assert "lm_head.weight differs from the embeddings" in caplog.text
    model = AutoModelForCausalLM.from_pretrained(directory)
    assert torch.equal(model.lm_head.weight, torch.ones(64, 32))


@pytest.mark.fault(42)
def test_tied_with_a_head_of_another_shape(copy_of: Copy) -> None:
    directory = copy_of("tied")
    edit_weights(directory / FILE, lambda t: {**t, "lm_head.weight": torch.ones(63, 32)})
    refused(directory, "lm_head.weight has shape \\[63, 32\\]")


def test_unknown_weight(checkpoint_dir: Copy) -> None:
    with open_checkpoint(checkpoint_dir("tied")) as checkpoint, pytest.raises(CheckpointError, match="no weight 'a'"):
        checkpoint.tensor("a")
