"""Pre-tokenizers: views of a loaded tokenizer's, or made by themselves to be called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .components import PreTokenizer as PreTokenizer
from .components import types_of

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


globals().update(types_of("pre_tokenizer"))
