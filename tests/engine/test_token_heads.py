"""Classifiers of single tokens beside transformers' own, and process-reward heads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from prelude import ClassifyTokens, Engine, EngineConfig, default_model
from prelude.errors import InvalidRequest
from tests.encoders import write_encoder
from tests.option_models import random_weights

SIZES: dict[str, Any] = {
    "vocab_size": 4096, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
LABELS = {"id2label": {0: "O", 1: "B", 2: "I"}, "label2id": {"O": 0, "B": 1, "I": 2}}
PROMPTS = [[7, 8, 9, 10, 11], [5], [3, 4] * 20]


def with_tokenizer(path: Path) -> Path:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(default_model.path() / name, path / name)
    return path


def write_decoder(path: Path, begins: str) -> Path:
    torch.manual_seed(0)
    config = getattr(transformers, f"{begins}Config")(**SIZES, pad_token_id=0, **LABELS)
    model = getattr(transformers, f"{begins}ForTokenClassification")(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn(weight.shape))
    model.save_pretrained(path)
    return path


@pytest.mark.parametrize(
    "family", ["bert", "roberta", "distilbert", "electra", "modernbert", "deberta-v2", "Qwen2", "Llama", "Gemma2"]
)
def test_logits_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    if family[0].isupper():
        write_decoder(tmp_path, family)
    else:
        write_encoder(tmp_path, family=family, kind="ForTokenClassification", **{**LABELS, "vocab_size": 4096})
    oracle = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with Engine.from_pretrained(with_tokenizer(tmp_path), config=EngineConfig(deterministic=True)) as engine:
        together = engine.run_many([ClassifyTokens(ids) for ids in PROMPTS])
        for ids, found in zip(PROMPTS, together):
            with torch.no_grad():
                wanted = oracle(torch.tensor([ids])).logits[0].numpy()
            assert np.abs(found.logits - wanted).max() < 2e-5
            assert found.found == tuple("OBI"[at] for at in wanted.argmax(axis=1))
            assert found.scores.sum(axis=1) == pytest.approx(np.ones(len(ids)), abs=1e-6)
            assert found.positions.tolist() == list(range(len(ids))) and found.token_ids.tolist() == ids
            assert np.array_equal(engine.classify_tokens(ids).logits, found.logits)
        assert engine.explain(ClassifyTokens([5], activation="sigmoid")).activation == "sigmoid"
        with pytest.raises(InvalidRequest, match="reads single tokens; it serves classify_tokens"):
            engine.classify([5])


def test_a_process_reward_model_reads_the_token_behind_each_step(tmp_path: Path) -> None:
    write_decoder(tmp_path, "Qwen2")
    body = {name: value for name, value in load_file(tmp_path / "model.safetensors").items() if "score" not in name}
    head = random_weights(
        {"score.0.weight": (32, 32), "score.0.bias": (32,), "score.2.weight": (2, 32), "score.2.bias": (2,)}
    )
    save_file({**body, **head}, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    own = {"architectures": ["Qwen2ForProcessRewardModel"], "id2label": {"0": "bad", "1": "good"}}
    own["auto_map"] = {"AutoModel": "modeling_qwen2_rm.Qwen2ForProcessRewardModel"}
    (tmp_path / "config.json").write_text(json.dumps({**config, **own}), encoding="utf-8")
    plain = transformers.Qwen2Model.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with Engine.from_pretrained(with_tokenizer(tmp_path)) as engine:
        ids = engine.tokenizer.encode("one . two . three .").ids
        dot = engine.tokenizer.encode("one .").ids[-1]
        found = engine.classify_tokens(ids, at=engine.tokenizer.decode([dot]))
        with pytest.raises(InvalidRequest, match="at: the prompt does not hold the token"):
            engine.classify_tokens([5, 6], at=engine.tokenizer.decode([dot]))
        with pytest.raises(InvalidRequest, match=r"at: .* tokens; it takes the text of one"):
            engine.classify_tokens([5, 6], at="several words of text")
        for bad in ("", 5, b"x"):
            with pytest.raises(InvalidRequest, match=r"^at"):
                engine.classify_tokens([5, 6], at=bad)  # type: ignore[arg-type]
    places = [at for at, token in enumerate(ids) if token == dot]
    assert found.positions.tolist() == places and len(places) == 3
    with torch.no_grad():
        states = plain(torch.tensor([ids])).last_hidden_state[0][places]
        wanted = torch.relu(states @ head["score.0.weight"].T + head["score.0.bias"]) @ head["score.2.weight"].T
        wanted = wanted + head["score.2.bias"]
    assert np.abs(found.logits - wanted.numpy()).max() < 2e-5
    assert found.scores[:, 1] == pytest.approx(wanted.softmax(1)[:, 1].numpy(), abs=1e-5)
    assert found.labels == ("bad", "good")


def test_other_models_have_no_such_head() -> None:
    with Engine.from_pretrained() as engine, pytest.raises(InvalidRequest, match="no head that reads single tokens"):
        engine.classify_tokens("x")
