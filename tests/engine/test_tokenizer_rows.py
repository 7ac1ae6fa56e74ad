"""A tokenizer and a model that do not fit together are told apart while loading, not by the first text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from prelude import Engine
from prelude.errors import ModelError

ROWS = 4096


def template(whole: dict[str, Any], id: int) -> None:
    whole["post_processor"] = {"type": "BertProcessing", "cls": ["X", id], "sep": ["X", id]}


def hole(whole: dict[str, Any], id: int) -> None:
    """The word with the last id gets ``id``: there are no more tokens than before."""
    vocab = whole["model"]["vocab"]
    vocab[max(vocab, key=vocab.__getitem__)] = id


@pytest.mark.fault(30)
@pytest.mark.fault(43)
@pytest.mark.parametrize("change", [template, hole])
@pytest.mark.parametrize("id", [ROWS, 60_000])
def test_an_id_past_the_embeddings_is_refused_while_loading(
    checkpoint: Path, tmp_path: Path, change: Any, id: int
) -> None:
    path = shutil.copytree(checkpoint, tmp_path / "model")
    whole = json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))
    change(whole, id)
    (path / "tokenizer.json").write_text(json.dumps(whole), encoding="utf-8")
    with pytest.raises(ModelError, match=rf"token id {id:,}, but vocab_size is 4,096"):
        Engine.from_pretrained(path)


@pytest.mark.fault(30)
@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        (
            [{"SpecialToken": {"id": "[X]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            r"post_processor: the template uses '\[X\]', which its special_tokens do not have",
        ),
        (
            [{"Sequence": {"id": "B", "type_id": 0}}],
            "post_processor: the template for one sequence asks for a second",
        ),
    ],
)
def test_a_template_that_cannot_be_used_is_refused_while_loading(
    checkpoint: Path, tmp_path: Path, pieces: list[dict[str, Any]], message: str
) -> None:
    path = shutil.copytree(checkpoint, tmp_path / "model")
    whole = json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))
    pair = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    whole["post_processor"] = {"type": "TemplateProcessing", "single": pieces, "pair": pair, "special_tokens": {}}
    (path / "tokenizer.json").write_text(json.dumps(whole), encoding="utf-8")
    with pytest.raises(ModelError, match=f"tokenizer.json: .*{message}"):
        Engine.from_pretrained(path)
