"""Small random models behind the real tokenizer of Qwen3, where the folder of reference files is present."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import TINY, write_checkpoint

WIDE = {**TINY, "vocab_size": 151936, "max_position_embeddings": 4096, "tie_word_embeddings": True}


def write_qwen(shared: Path, path: Path, chat_template: str | None = None, **options: Any) -> Path:
    """A random Qwen3 with the released tokenizer's files; ``chat_template`` instead of the file's own."""
    write_checkpoint(path, WIDE, scale=0.3, eos_token_id=151645, pad_token_id=151643, **options)
    source = shared / "tokenizers" / "qwen3"
    shutil.copy(source / "tokenizer.json", path / "tokenizer.json")
    config = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
    if chat_template is not None:
        config["chat_template"] = chat_template
    (path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def qwen(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chat model's directory: nothing in it says that it could rank or guard."""
    return write_qwen(shared, tmp_path_factory.mktemp("qwen"))


@pytest.fixture(scope="session")
def qwen_tokenizer(qwen: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(qwen)
