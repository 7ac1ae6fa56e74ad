"""The models: views of a loaded tokenizer's. Building one is left out, and says so."""

from __future__ import annotations

from .components import Model, component_type

__all__ = ["BPE", "Model", "Unigram", "WordLevel", "WordPiece"]

BPE = component_type("model", "BPE")
Unigram = component_type("model", "Unigram")
WordLevel = component_type("model", "WordLevel")
WordPiece = component_type("model", "WordPiece")
