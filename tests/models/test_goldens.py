"""Models against recorded numbers of transformers, with weights from a formula."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from prelude.readouts.batch import HeadRows, OneShotBatch
from tests.encoders import run_encoder
from tests.execution.helpers import Model, hidden, i32, last_logprobs, prompts, run


def _formula(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("hashweights", folder / "hashweights.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["hashweights"] = module
    spec.loader.exec_module(module)
    return module


def _write(path: Path, folder: Path, case: dict[str, Any], config: dict[str, Any], prefix: str = "") -> None:
    formula = _formula(folder)
    tensors = {}
    for name, shape in case["tensors"].items():
        gain = next((gain for part, gain in case["gains"] if part in name), 1.0)
        full = name if name.startswith(("head.", "classifier.")) else prefix + name
        tensors[full] = torch.from_numpy(formula.tensor(full, shape, gain))
    save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")


def recorded(shared: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((shared / "decision" / "arch_tiny.json").read_text(encoding="utf-8"))[name]
    return found


ARCHITECTURES = {
    "modernbert": ("ModernBertModel", 1e-4), "deberta_v3": ("DebertaV2Model", 1e-5),
    "qwen3_5_text": ("Qwen3_5ForCausalLM", 2e-5), "lfm2": ("Lfm2ForCausalLM", 2e-5),
}  # fmt: skip
"""The class of a recorded model, and how far its hidden states may be from those of transformers."""


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_hidden_states_and_logits(shared: Path, tmp_path: Path, name: str) -> None:
    case, (architecture, most) = recorded(shared, name), ARCHITECTURES[name]
    config = {"max_position_embeddings": 128, **case["config"], "architectures": [architecture]}
    _write(tmp_path, shared / "decision", case, config)
    executor = Model(tmp_path).executor() if "last_logits" in case else run_encoder(tmp_path)
    ids = i32(case["ids"])
    states, wanted = hidden(executor, prompts(ids), np.arange(len(ids))), case["last_hidden_state"]
    for row, values in wanted["rows"].items():
        assert np.abs(states[int(row), : len(values)] - values).max() < most
    if "abs_mean" in wanted:
        assert abs(float(np.abs(states).mean()) - wanted["abs_mean"]) < most
    if "last_logits" in case:
        ours, logits = last_logprobs(executor, prompts(ids))[0], np.array(case["last_logits"])
        ours = ours[: len(logits)]
        # transformers itself is 9e-5 away from its recorded logits of up to 26 on another machine.
        assert np.abs((ours - ours[0]) - (logits - logits[0])).max() < 1e-5 * np.abs(logits).max()


def test_modernbert_with_a_head(shared: Path, tmp_path: Path) -> None:
    body, case = (recorded(shared, name) for name in ("modernbert", "modernbert_seqcls_mean"))
    case["tensors"] = {**body["tensors"], **case["tensors_added"]}
    config = {**body["config"], "architectures": ["ModernBertForSequenceClassification"]}
    _write(tmp_path, shared / "decision", case, {**config, "num_labels": 3, "classifier_pooling": "mean"}, "model.")
    executor = run_encoder(tmp_path)
    ids = i32(case["ids"])
    rows = np.arange(len(ids), dtype=np.int32)
    output = run(executor, OneShotBatch(prompts(ids), HeadRows(rows, i32([0, len(ids)])))).outputs[0]
    assert np.abs(output.logits - case["logits"]).max() < 1e-4
