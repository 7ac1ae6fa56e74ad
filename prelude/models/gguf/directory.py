"""A GGUF file as a model directory: the JSON files that its metadata describe, beside those of its folder.

``config.json`` is always the metadata's. ``tokenizer.json`` and ``tokenizer_config.json`` in the folder win over the
metadata's, and the log says so.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from prelude.errors import ModelError, shown
from prelude.models.files import GGUF, INDEX, SINGLE, ModelDirectory
from prelude.models.gguf.config import architecture_of, config_of, pooling_of
from prelude.models.gguf.reader import GgufFile
from prelude.models.gguf.tokenizer import GgufTokenizer
from prelude.records import dataclass, field

log = logging.getLogger("prelude.models.gguf")

_TOKENIZER, _TOKENIZER_CONFIG, _POOLING = "tokenizer.json", "tokenizer_config.json", "1_Pooling/config.json"


@dataclass(frozen=True, slots=True)
class GgufDirectory(ModelDirectory):
    """The folder that ``weights`` lies in; ``weights`` is the GGUF file, links resolved."""

    weights: Path = Path()
    metadata: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    config: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def opened(cls, folder: Path, links: bool, weights: Path) -> GgufDirectory:
        with GgufFile(weights) as file:
            return cls(folder, links, "", weights, file.metadata, config_of(file, architecture_of(file)))

    def __str__(self) -> str:
        return str(self.weights)

    def has(self, name: str) -> bool:
        if name == "config.json":
            return True
        if ModelDirectory.has(self, name):
            return name not in (SINGLE, INDEX, "generation_config.json")
        if name == _POOLING:
            return pooling_of(self.metadata) is not None
        return name in (_TOKENIZER, _TOKENIZER_CONFIG) and "tokenizer.ggml.model" in self.metadata

    def read(self, name: str, limit: int, error: type[ModelError] = ModelError) -> bytes:
        if name == "config.json":
            return json.dumps(self.config).encode()
        if name == _POOLING and not ModelDirectory.has(self, name):
            return json.dumps({"pooling_mode": pooling_of(self.metadata)}).encode()
        if name in (_TOKENIZER, _TOKENIZER_CONFIG):
            if not ModelDirectory.has(self, name):
                tokenizer = GgufTokenizer(self.metadata, self.weights)
                return tokenizer.file() if name == _TOKENIZER else tokenizer.config()
            log.info("%s: %s beside the file is used, not the file's own", self.weights, name)
        return ModelDirectory.read(self, name, limit, error)


def open_directory(path: Path, links: bool = False) -> ModelDirectory:
    """Return the model at ``path``: a directory, a GGUF file, or a directory whose only weights are one GGUF file."""
    if path.is_file() and path.suffix == GGUF:
        return GgufDirectory.opened(path.parent, links, path)
    directory = ModelDirectory.of(path, links)
    if directory.has(SINGLE) or directory.has(INDEX):
        return directory
    names = sorted(name for name in os.listdir(directory.path) if name.endswith(GGUF))
    if len(names) > 1:
        raise ModelError(f"{directory}: {len(names)} GGUF files, {shown(names)}; give the path of one of them")
    return GgufDirectory.opened(directory.path, links, directory.file(names[0])) if names else directory
