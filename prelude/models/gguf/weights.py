"""The tensors of a GGUF file as those of a checkpoint: names and values as transformers has them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from prelude.errors import CheckpointError, UnsupportedModel
from prelude.models.gguf.config import architecture_of, counts_from_one, model_names, rotated_heads
from prelude.models.gguf.reader import BLOCK_TYPES, GgufFile
from prelude.models.safetensors_file import TensorInfo

if TYPE_CHECKING:
    from prelude.models.arrays import Array
    from prelude.models.gguf.blocks import Blocks


class GgufWeights:
    """One open file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = GgufFile(path)
        try:
            self._architecture = architecture_of(self.file)
            self._names = model_names(self.file.tensors, self._architecture, str(path))
        except BaseException:
            self.file.close()
            raise
        self.tensors: dict[str, TensorInfo] = {name: self.file.tensors[own] for name, own in self._names.items()}

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def tensor(self, name: str) -> Array:
        """Return it as it is stored, rows and gains as transformers has them; blocks as float32."""
        if self.tensors[name].dtype in BLOCK_TYPES:
            return self.blocks(name).dense()
        own = self._names[name]
        found = self.file.tensor(own)
        order = self._order(own)
        if order is not None:
            found = found[order]
        if not counts_from_one(own, self._architecture):
            return found
        from prelude.models.arrays import widen

        return widen(found) - 1

    def blocks(self, name: str) -> Blocks:
        """Return a weight that is stored in blocks."""
        from prelude.models.gguf.blocks import Blocks

        info = self.tensors[name]
        if len(info.shape) != 2:
            raise UnsupportedModel(f"{self.path}: unsupported: tensor {name} of {info.dtype} with sizes {info.shape}")
        own = self._names[name]
        found = Blocks(info.dtype, (info.shape[0], info.shape[1]), self.file.tensor(own))
        order = self._order(own)
        return found if order is None else found.rows(order)

    def release(self, name: str) -> None:
        self.file.release(self._names[name])

    def changed(self) -> bool:
        return self.file.changed()

    def close(self) -> None:
        self.file.close()

    def _order(self, own: str) -> Array | None:
        """Return the order of the rows if the halves of heads lie interleaved."""
        import numpy as np

        metadata, architecture = self.file.metadata, self._architecture
        heads, kv_heads = (metadata.get(f"{architecture}.attention.head_count{kind}") for kind in ("", "_kv"))
        if not isinstance(heads, int) or not isinstance(kv_heads, (int, type(None))):
            raise CheckpointError(f"{self.path}: attention.head_count is not a number")
        count = rotated_heads(own, architecture, heads, heads if kv_heads is None else kv_heads)
        if count == 0:
            return None
        rows = self.file.tensors[own].shape[0]
        if count < 1 or rows % (2 * count):
            raise CheckpointError(f"{self.path}: tensor {own} has {rows:,} rows, which are no {count:,} heads")
        order: Array = np.arange(rows).reshape(count, rows // count // 2, 2).transpose(0, 2, 1).reshape(-1)
        return order
