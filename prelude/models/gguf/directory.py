"""A GGUF file as a model directory: the JSON files that its metadata describe, beside those of its folder; and its
tensors as those of a checkpoint, with names and values as transformers has them.

``config.json`` is always the metadata's. ``tokenizer.json`` and ``tokenizer_config.json`` in the folder win over the
metadata's, and the log says so.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prelude.errors import CheckpointError, ModelError, UnsupportedModel, shown
from prelude.models.files import GGUF, INDEX, SINGLE, ModelDirectory
from prelude.models.gguf.config import (
    architecture_of,
    config_of,
    counts_from_one,
    model_names,
    pooling_of,
    rotated_heads,
)
from prelude.models.gguf.reader import BLOCK_TYPES, GgufFile
from prelude.models.gguf.tokenizer import GgufTokenizer
from prelude.records import dataclass, field

if TYPE_CHECKING:
    from prelude.models.arrays import Array
    from prelude.models.gguf.blocks import Blocks

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

    def where(self, name: str) -> str:
        return str(self.weights if name == "config.json" else self.path / name)

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


class GgufWeights(GgufFile):
    """One open file. Its tensors have transformers' names."""

    def _parse(self, size: int) -> None:
        super()._parse(size)
        self._architecture = architecture_of(self)
        self._stored = model_names(self.tensors, self._architecture, str(self.path))
        self.tensors = {name: self.tensors[stored] for name, stored in self._stored.items()}

    def tensor(self, name: str) -> Array:
        """Return it as it is stored, rows and gains as transformers has them; blocks as float32."""
        if self.tensors[name].dtype in BLOCK_TYPES:
            return self.blocks(name).dense()
        found, order = super().tensor(name), self._order(name)
        if order is not None:
            found = found[order]
        if not counts_from_one(self._stored[name], self._architecture):
            return found
        from prelude.models.arrays import widen

        return widen(found) - 1

    def blocks(self, name: str) -> Blocks:
        """Return a weight that is stored in blocks."""
        from prelude.models.gguf.blocks import Blocks

        info = self.tensors[name]
        if len(info.shape) != 2:
            raise UnsupportedModel(f"{self.path}: unsupported: tensor {name} of {info.dtype} with sizes {info.shape}")
        found = Blocks(info.dtype, (info.shape[0], info.shape[1]), super().tensor(name))
        order = self._order(name)
        return found if order is None else found.rows(order)

    def _order(self, name: str) -> Array | None:
        """Return the order of the rows if the halves of heads lie interleaved."""
        import numpy as np

        metadata, architecture, stored = self.metadata, self._architecture, self._stored[name]
        heads, kv_heads = (metadata.get(f"{architecture}.attention.head_count{kind}") for kind in ("", "_kv"))
        if not isinstance(heads, int) or not isinstance(kv_heads, (int, type(None))):
            raise CheckpointError(f"{self.path}: attention.head_count is not a number")
        count = rotated_heads(stored, architecture, heads, heads if kv_heads is None else kv_heads)
        if count == 0:
            return None
        rows = self.tensors[name].shape[0]
        if count < 1 or rows % (2 * count):
            raise CheckpointError(f"{self.path}: tensor {stored} has {rows:,} rows, which are no {count:,} heads")
        order: Array = np.arange(rows).reshape(count, rows // count // 2, 2).transpose(0, 2, 1).reshape(-1)
        return order
