"""Whether two paths hold the same model."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

SAMPLES, SAMPLE_BYTES = 64, 1 << 16  # of each weight file, for the model's hash
WHOLE_BYTES = 1 << 25  # a smaller file is hashed whole
BESIDE = (".json", ".jinja")  # of files beside a model that is one file: tokenizer and template
READ = (*BESIDE, ".safetensors", ".gguf", ".sparrow")  # of a directory


def model_hash(model: Path) -> str:
    """A hash of the files that are read of a model directory; of a model that is one file, that file and those beside
    it. Small files count whole, large ones by their size and 64 evenly spaced samples of 64 KiB."""
    found = hashlib.blake2b(digest_size=16)
    for name, path in sorted(_files(model)):
        size = path.stat().st_size
        found.update(json.dumps([name, size]).encode())
        with open(path, "rb") as file:
            if size <= WHOLE_BYTES:
                found.update(file.read())
                continue
            for number in range(SAMPLES):
                file.seek(number * (size - SAMPLE_BYTES) // (SAMPLES - 1))
                found.update(file.read(SAMPLE_BYTES))
    return found.hexdigest()


@lru_cache(maxsize=64)
def known_hash(path: str) -> str:
    """Return the hash of a model's files; "" if they are not there any more, as in another process of other files."""
    try:
        return model_hash(Path(path)) if os.path.exists(path) else ""
    except OSError:
        return ""


def _files(model: Path) -> Iterator[tuple[str, Path]]:
    """(name, path) of the files of a model, those in the folders of sentence-transformers' modules among them: their
    names begin with a digit."""
    folder = model if model.is_dir() else model.parent
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if folder == model and Path(root) == folder and name[:1].isdigit()]
        for name in names:
            path = Path(root, name)
            if path.is_file() and (path == model or path.suffix in (READ if folder == model else BESIDE)):
                yield str(path.relative_to(folder)), path
