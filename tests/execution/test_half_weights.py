"""Checkpoints of bfloat16 and float16 as ``dtype="auto"`` runs them: their weights keep two bytes, everything else is
float32."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from prelude._native import cpu

from prelude import Engine, EngineConfig, ExpertConfig
from prelude.models.arrays import FLOAT32
from prelude.models.checkpoint import Checkpoint
from prelude.models.precision import choose
from tests.checkpoints import make_checkpoint, save_model
from tests.encoders import CLASSES, Encoder, write_encoder
from tests.execution.conftest import RECURRENT, VARIANTS
from tests.execution.helpers import Model, greedy, hidden, i32, last_logprobs, prompts, random_ids

DECODERS = {**{name: VARIANTS[name] for name in ("tied", "biases", "phi3", "gemma2", "llama-biases")}, **RECURRENT}
LOADED = "weights of two bytes are kept and rows computed in float32"
HALVES = pytest.mark.parametrize("half", ["bfloat16", "float16"])


@HALVES
@pytest.mark.parametrize("variant", sorted(DECODERS))
def test_decoders_are_those_of_transformers_in_float32(variant: str, half: str, tmp_path: Path) -> None:
    model = Model(save_model(tmp_path, **{**DECODERS[variant], "dtype": half}))
    executor = model.executor()
    ids = [random_ids(n, n) for n in (1, 17, 90)]
    s = prompts(*ids)
    theirs = np.concatenate([model.logprobs(x) for x in ids])
    assert np.abs(last_logprobs(executor, s, np.arange(108)) - theirs).max() < 1e-4
    assert executor.limits().weights == half and executor.limits().dtype == "float32"
    assert executor.weights.nbytes < 0.75 * model.executor(dtype="float32").weights.nbytes


def test_decode_continues_a_prompt(tmp_path: Path) -> None:
    model = Model(save_model(tmp_path, dtype="bfloat16", tie_word_embeddings=True))
    ids = random_ids(1, 37)
    tokens = greedy(model.executor(), [ids], [np.arange(8)], 30)[0]
    theirs = model.logprobs(np.concatenate([ids, tokens])[:-1])[36:]
    assert (theirs.argmax(axis=1) == tokens).all()


@HALVES
@pytest.mark.parametrize("family", sorted(CLASSES))
def test_encoders_are_those_of_transformers_in_float32(family: str, half: str, tmp_path: Path) -> None:
    encoder = Encoder(write_encoder(tmp_path, family=family, dtype=half))
    batch = [i32(5 + random_ids(n, n, 200)) for n in (1, 17, 90)]
    executor = encoder.executor()
    theirs = np.concatenate([encoder.states(ids) for ids in batch])
    assert np.abs(hidden(executor, prompts(*batch), np.arange(108)) - theirs).max() < 2e-5
    assert executor.limits().weights == half


@HALVES
def test_tied_embeddings_are_kept_once(half: str, tmp_path: Path) -> None:
    executor = Model(save_model(tmp_path, dtype=half, tie_word_embeddings=True)).executor()
    tokens = executor.weights.embeddings.tokens
    assert tokens is executor.weights.lm_head
    assert executor.weights.embeddings.of(np.array([3, 210])).shape == (2, 64)
    with pytest.raises(IndexError):
        executor.weights.embeddings.of(np.array([211]))


def test_files_of_several_types(tmp_path: Path) -> None:
    """A weight of float16 keeps its two bytes beside others of bfloat16; one of float32 is computed as such."""
    from safetensors.torch import load_file, save_file

    model = Model(save_model(tmp_path, dtype="bfloat16"))
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    for at, kind in (("0.self_attn.k", "float32"), ("1.mlp.down", "float32"), ("2.mlp.down", "float16")):
        name = f"model.layers.{at}_proj.weight"
        tensors[name] = tensors[name].to(getattr(torch, kind))
    save_file(tensors, file, metadata={"format": "pt"})
    mixed = Model(tmp_path)
    executor = mixed.executor()
    packings = [[layer.in_proj.packing, layer.down.packing] for layer in executor.weights.layers]
    assert packings == [["float32", "widened"], ["widened", "float32"], ["widened", "float16"]]
    ids = random_ids(1, 40)
    assert np.abs(last_logprobs(executor, prompts(ids), np.arange(40)) - model.logprobs(ids)).max() < 1e-4


def test_the_forms_that_auto_chooses(tmp_path: Path) -> None:
    for stored, dtype, packing, told in (
        ("bfloat16", FLOAT32, "widened", LOADED),
        ("float32", FLOAT32, "float32", "the files have float32"),
        ("float16", FLOAT32, "float16", LOADED),
    ):
        model = Model(save_model(tmp_path / stored, dtype=stored))
        with Checkpoint.open(model.path, model.config) as checkpoint:
            chosen = choose("auto", checkpoint, model.config.spec)
            assert (chosen.dtype, chosen.packing) == (dtype, packing) and told in chosen.reason
            assert choose("float32", checkpoint, model.config.spec).packing == "float32"
            assert choose("auto", checkpoint, model.config.spec, "int8").packing == "int8"


def test_vectors_of_another_type_do_not_choose(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model, file = Model(save_model(tmp_path, dtype="float32")), tmp_path / "model.safetensors"
    tensors = {name: one.bfloat16() if one.ndim == 1 else one for name, one in load_file(file).items()}
    save_file(tensors, file, metadata={"format": "pt"})
    with Checkpoint.open(model.path, model.config) as checkpoint:
        chosen = choose("auto", checkpoint, model.config.spec)
    assert chosen.packing == "float32" and "the files have float32," in chosen.reason


@pytest.mark.parametrize("quick, packing", [(True, "bfloat16"), (False, "widened")])
def test_weights_of_bfloat16_are_widened_where_its_products_are_slow(
    quick: bool, packing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "QUICK_PAIRS", quick)
    model = Model(save_model(tmp_path, dtype="bfloat16"))
    with Checkpoint.open(model.path, model.config) as checkpoint:
        assert choose("bfloat16", checkpoint, model.config.spec).packing == packing


def test_the_choice_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_checkpoint(tmp_path, dtype="bfloat16")
    caplog.set_level(logging.INFO, "prelude.engine")
    with Engine.from_pretrained(tmp_path, config=EngineConfig(expert=ExpertConfig(kv_blocks=8))) as engine:
        info = engine.model_info
        assert "bfloat16 weights, float32 on cpu" in repr(engine)
    assert LOADED in caplog.text and "bfloat16 weights, float32 (dtype='auto')" in caplog.text
    assert (info.dtype, info.weights, info.quantization) == ("float32", "bfloat16", None)
