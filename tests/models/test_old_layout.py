"""The old layout of sentence-transformers: the model's own files in a folder that modules.json names."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from prelude import Engine
from prelude.errors import ModelError
from prelude.models.checkpoint import Checkpoint
from prelude.models.config import ModelConfig
from prelude.models.files import ModelDirectory
from prelude.tools.convert import convert
from tests.encoders import write_encoder
from tests.option_models import save_tokenizer

KINDS = ["Transformer", "Pooling"]


def written(root: Path, folder: str) -> Path:
    own = root / folder
    own.mkdir(parents=True)
    write_encoder(own, family="bert", vocab_size=300)
    save_tokenizer(own / "tokenizer.json", ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"))
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    (own / "tokenizer_config.json").write_text(json.dumps(told), encoding="utf-8")
    (own / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 64}), encoding="utf-8")
    paths = [folder, "1_Pooling"]
    modules = [
        {"idx": at, "name": str(at), "path": paths[at], "type": f"sentence_transformers.models.{KINDS[at]}"}
        for at in (0, 1)
    ]
    (root / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    (root / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 48, "pooling_mode_mean_tokens": True}
    (root / "1_Pooling" / "config.json").write_text(json.dumps(pooling), encoding="utf-8")
    return root


def test_vectors_are_those_of_sentence_transformers(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    root = written(tmp_path / "old", "0_Transformer")
    texts = ["a short text", "another one, a little longer " * 9]
    wanted = library.SentenceTransformer(str(root), device="cpu").encode(texts)
    with Engine.from_pretrained(root) as engine:
        found = [engine.embed(text, truncation="tail", normalize=False) for text in texts]
    assert np.abs(np.stack(found) - wanted).max() < 1e-5


def test_the_layout_is_converted(tmp_path: Path) -> None:
    root = written(tmp_path / "old", "0_Transformer")
    convert(root, tmp_path / "new")
    with Engine.from_pretrained(root) as before, Engine.from_pretrained(tmp_path / "new") as after:
        assert np.abs(before.embed("a text") - after.embed("a text")).max() < 1e-6


@pytest.mark.parametrize("path", ["..", "a/b", "/etc", 3, None])
def test_a_path_that_is_no_folder_of_the_directory(path: object, tmp_path: Path) -> None:
    root = written(tmp_path / "old", "0_Transformer")
    modules = json.loads((root / "modules.json").read_text(encoding="utf-8"))
    modules[0]["path"] = path
    (root / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    with pytest.raises(ModelError, match=r"modules\.json|config\.json: missing"):
        config = ModelConfig.from_dir(ModelDirectory.of(root))
        Checkpoint.open(root, config).close()
