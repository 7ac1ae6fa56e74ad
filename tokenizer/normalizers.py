"""Normalizers: views of a loaded tokenizer's, or made by themselves to be called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .components import Normalizer as Normalizer
from .components import types_of
from .errors import TokenizerError

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


_types = types_of("normalizer")
globals().update(_types)
NORMALIZERS = {name: _types[name.upper()] for name in ("nfc", "nfd", "nfkc", "nfkd")}


def unicode_normalizer_from_str(normalizer: str) -> Normalizer:
    """The normalizer of that name: "nfc", "nfd", "nfkc" or "nfkd". Raises ``TokenizerError`` for another name."""
    if normalizer not in NORMALIZERS:
        known = ", ".join(NORMALIZERS)
        raise TokenizerError(f"{normalizer} is not a known unicode normalizer. Available are {known}")
    return NORMALIZERS[normalizer]()  # type: ignore[no-any-return]
