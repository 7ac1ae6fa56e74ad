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
from tests.engine.test_encoders import TEXTS, write, write_pooling

SETTINGS = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "pad_token": "[PAD]",
    "model_max_length": 140,
    "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
}


def with_settings(path: Path, **more: Any) -> Path:
    (path / "tokenizer_config.json").write_text(json.dumps({**SETTINGS, **more}), encoding="utf-8")
    return path


def test_encode_is_that_of_the_library(tmp_path: Path) -> None:
    import sentence_transformers as library

    path = with_settings(write(tmp_path, "Model"))
    write_pooling(path)
    theirs = library.SentenceTransformer(str(path), device="cpu")
    with Engine.from_pretrained(path) as engine:
        ours = SentenceEncoder(engine)
        texts = [*TEXTS, " ".join(["w5"] * 400)]  # longer than the model: both cut its end
        assert np.abs(ours.encode(texts) - theirs.encode(texts)).max() < 1e-5
        assert ours.encode(texts[0]).shape == theirs.encode(texts[0]).shape == (48,)
        prompted = ours.encode(texts[:2], prompt="w7 w8 ")
        assert np.abs(prompted - theirs.encode(texts[:2], prompt="w7 w8 ")).max() < 1e-5
        both = {"prompt": "w7 w8 ", "prompt_name": "query"}  # the text is taken, and not the name's
        assert (ours.encode(texts[:2], **both) == prompted).all()
        short = ours.encode(texts[:2], truncate_dim=16, normalize_embeddings=True)
        expected = theirs.encode(texts[:2], truncate_dim=16, normalize_embeddings=True)
        assert np.abs(short - expected).max() < 1e-5
        assert np.abs(ours.similarity(short, short) - theirs.similarity(expected, expected).numpy()).max() < 1e-5
        assert ours.encode([]).shape == (0, 48)
        for other in (None, 5, {"w1": "w2"}):
            with pytest.raises(InvalidRequest, match=r"^sentences"):
                ours.encode(other)  # type: ignore[arg-type]
        for wrong in ({"convert_to_tensor": True}, {"precision": "int8"}, {"output_value": "token_embeddings"}):
            with pytest.raises(InvalidRequest):
                ours.encode(texts, **wrong)  # type: ignore[arg-type]


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


def test_predict_and_rank_are_those_of_the_library(tmp_path: Path) -> None:
    import sentence_transformers as library

    path = with_settings(write(tmp_path, "ForSequenceClassification", num_labels=1))
    theirs = library.CrossEncoder(str(path), device="cpu")
    pairs = [("w1 w2", "w5 w6"), ("w1 w2", "w9"), ("w3", " ".join(["w9"] * 300))]
    documents = ["w5 w6", "w9 w10 w11", "w1"]
    with Engine.from_pretrained(path) as engine:
        ours = PairScorer(engine)
        assert np.abs(ours.predict(pairs[:2]) - theirs.predict(pairs[:2])).max() < 1e-5
        assert ours.predict(pairs[0]) == pytest.approx(float(theirs.predict(pairs[0])), abs=1e-5)
        raw = ours.predict(pairs[:2], activation_fn=lambda x: x)
        import torch

        expected = theirs.predict(pairs[:2], activation_fn=torch.nn.Identity())
        assert np.abs(raw - expected).max() < 1e-5
        assert len(ours.predict(pairs)) == 3
        for wrong in ("ab", ["ab", "cd", "ef"], [("w1",)], [("w1", "w2", "w3")], [5], None, {"w1": "w2", "w3": "w4"}):
            with pytest.raises(InvalidRequest, match=r"^inputs"):
                ours.predict(wrong)  # type: ignore[arg-type]
        for wrong in ("w1", None):
            with pytest.raises(InvalidRequest, match=r"^documents"):
                ours.rank("w1", wrong)  # type: ignore[arg-type]
        for options in ({}, {"top_k": 2}, {"return_documents": True}):
            mine, other = (one.rank("w1 w2", documents, **options) for one in (ours, theirs))
            assert [item["corpus_id"] for item in mine] == [item["corpus_id"] for item in other]
            assert [item.get("text") for item in mine] == [item.get("text") for item in other]
            assert [item["score"] for item in mine] == pytest.approx([item["score"] for item in other], abs=1e-5)


@pytest.mark.parametrize(
    ("ours", "theirs", "name"),
    [
        (SentenceEncoder, "SentenceTransformer", "encode"),
        (PairScorer, "CrossEncoder", "predict"),
        (PairScorer, "CrossEncoder", "rank"),
    ],
)
def test_keywords_have_the_defaults_of_the_library(ours: type[Any], theirs: str, name: str) -> None:
    import sentence_transformers as library

    own, other = (
        {
            one.name: one.default
            for one in inspect.signature(getattr(kind, name)).parameters.values()
            if one.default is not one.empty
        }
        for kind in (ours, getattr(library, theirs))
    )
    own.pop("normalize_embeddings", None)  # None: as the model directory says, which the library's False adds to
    assert own == {key: other[key] for key in own}


def test_several_labels_are_raw_logits(tmp_path: Path) -> None:
    import sentence_transformers as library

    path = with_settings(write(tmp_path, "ForSequenceClassification", num_labels=3))
    theirs = library.CrossEncoder(str(path), device="cpu")
    pairs = [("w1 w2", "w5 w6"), ("w1 w2", "w9")]
    with Engine.from_pretrained(path) as engine:
        ours = PairScorer(engine)
        assert np.abs(ours.predict(pairs) - theirs.predict(pairs)).max() < 1e-4
        assert (
            np.abs(ours.predict(pairs, apply_softmax=True) - theirs.predict(pairs, apply_softmax=True)).max() < 1e-5
        )
        with pytest.raises(InvalidRequest, match="one label"):
            ours.rank("w1", ["w2"])
