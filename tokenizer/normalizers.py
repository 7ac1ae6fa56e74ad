"""Normalizers: views of a loaded tokenizer's, or made by themselves to be called."""

from __future__ import annotations

from .components import Normalizer as Normalizer
from .components import component_type
from .errors import TokenizerError

BertNormalizer = component_type("normalizer", "BertNormalizer")
ByteLevel = component_type("normalizer", "ByteLevel")
Lowercase = component_type("normalizer", "Lowercase")
NFC = component_type("normalizer", "NFC")
NFD = component_type("normalizer", "NFD")
NFKC = component_type("normalizer", "NFKC")
NFKD = component_type("normalizer", "NFKD")
Nmt = component_type("normalizer", "Nmt")
Precompiled = component_type("normalizer", "Precompiled")
Prepend = component_type("normalizer", "Prepend")
Replace = component_type("normalizer", "Replace")
Sequence = component_type("normalizer", "Sequence")
Strip = component_type("normalizer", "Strip")
StripAccents = component_type("normalizer", "StripAccents")

NORMALIZERS = {"nfc": NFC, "nfd": NFD, "nfkc": NFKC, "nfkd": NFKD}


def unicode_normalizer_from_str(normalizer: str) -> Normalizer:
    """The normalizer of that name: "nfc", "nfd", "nfkc" or "nfkd". Raises ``TokenizerError`` for another name."""
    if normalizer not in NORMALIZERS:
        known = ", ".join(NORMALIZERS)
        raise TokenizerError(f"{normalizer} is not a known unicode normalizer. Available are {known}")
    made: Normalizer = NORMALIZERS[normalizer]()
    return made
