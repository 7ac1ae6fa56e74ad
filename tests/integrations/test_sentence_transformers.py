"""The shapes of sentence-transformers against the library itself."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prelude import Engine, EngineConfig
from prelude.errors import InvalidRequest
from prelude.integrations.sentence_transformers import PairScorer, SentenceEncoder
from tests.engine.test_encoders import write, write_pooling

SETTINGS = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "pad_token": "[PAD]",
    "model_max_length": 140,
    "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
}


def with_settings(path: Path, **more: Any) -> Path:
    (path / "tokenizer_config.json").write_text(json.dumps({**SETTINGS, **more}), encoding="utf-8")
    return path


def test_what_is_no_list_of_texts_is_refused(tmp_path: Path) -> None:
    path = with_settings(write(tmp_path, "Model"))
    write_pooling(path)
    with Engine.from_pretrained(path) as engine:
        for other in (None, 5, {"w1": "w2"}, {"w1", "w2"}):
            with pytest.raises(InvalidRequest, match=r"^inputs"):
                SentenceEncoder(engine).encode(other)  # type: ignore[arg-type]


@pytest.mark.parametrize(("engine_s", "directory_s"), [(20, 140), (140, 20)])
def test_the_shorter_of_the_engine_s_and_the_directory_s_limits_cuts(
    tmp_path: Path, engine_s: int, directory_s: int
) -> None:
    import sentence_transformers as library

    path = with_settings(write(tmp_path, "Model"), model_max_length=directory_s)
    write_pooling(path)
    theirs = library.SentenceTransformer(str(path), device="cpu")
    theirs.max_seq_length = 20
    texts = [" ".join(["w5 w6 w7"] * 40), "w1"]
    with Engine.from_pretrained(path, config=EngineConfig(max_length=engine_s)) as engine:
        assert np.abs(SentenceEncoder(engine).encode(texts) - theirs.encode(texts)).max() < 1e-5


@pytest.mark.parametrize(
    ("ours", "theirs", "name"),
    [
        (SentenceEncoder, "SentenceTransformer", "encode"),
        (PairScorer, "CrossEncoder", "predict"),
        (PairScorer, "CrossEncoder", "rank"),
    ],
)
def test_arguments_have_the_names_the_order_and_the_defaults_of_the_library(
    ours: type[Any], theirs: str, name: str
) -> None:
    import sentence_transformers as library

    own, other = (
        {one.name: one.default for one in inspect.signature(getattr(kind, name)).parameters.values()}
        for kind in (ours, getattr(library, theirs))
    )
    if "normalize_embeddings" in own:  # None: as the model directory says, which the library's False adds to
        own["normalize_embeddings"] = False
    assert list(own.items()) == [(key, default) for key, default in other.items() if key in own]


def test_several_labels_are_not_ranked(tmp_path: Path) -> None:
    path = with_settings(write(tmp_path, "ForSequenceClassification", num_labels=3))
    with Engine.from_pretrained(path) as engine, pytest.raises(InvalidRequest, match="one label"):
        PairScorer(engine).rank("w1", ["w2"])
