"""Whether two paths hold the same model."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

SAMPLES, SAMPLE_BYTES = 64, 1 << 16  # of each weight file, for the model's hash
WHOLE_BYTES = 1 << 25  # a smaller file is hashed whole
BESIDE = (".json", ".jinja")  # of files beside a model that is one file: tokenizer and template


def model_hash(model: Path) -> str:
    """A hash of the files of a model directory; of a model that is one file, that file and those beside it that are
    read with it. Small files count whole, large ones by their size and 64 evenly spaced samples of 64 KiB."""
    found = hashlib.blake2b(digest_size=16)
    folder = model if model.is_dir() else model.parent
    for path in sorted(folder.iterdir()):
        if not path.is_file() or (folder != model and path != model and path.suffix not in BESIDE):
            continue
        size = path.stat().st_size
        found.update(json.dumps([path.name, size]).encode())
        with open(path, "rb") as file:
            if size <= WHOLE_BYTES:
                found.update(file.read())
                continue
            for number in range(SAMPLES):
                file.seek(number * (size - SAMPLE_BYTES) // (SAMPLES - 1))
                found.update(file.read(SAMPLE_BYTES))
    return found.hexdigest()
