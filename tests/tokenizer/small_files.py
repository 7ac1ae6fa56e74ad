"""Small tokenizer files, of which a test changes members."""

from __future__ import annotations

import json
from typing import Any

VOCAB = {"a": 0, "b": 1, "ab": 2}


def file(**members: Any) -> str:
    """A small tokenizer.json with ``members`` in the place of its own."""
    model = {"type": "BPE", "vocab": VOCAB, "merges": ["a b"]}
    return json.dumps({"version": "1.0", "added_tokens": [], "model": model, **members})


def left_to_reference(**members: Any) -> str:
    """A file that the reference backend serves, since a token stands twice in its vocabulary."""
    vocab = [["<unk>", 0.0], ["a", -1.0], ["b", -2.0], ["<unk>", 0.0]]
    return file(model={"type": "Unigram", "unk_id": 0, "vocab": vocab}, **members)


WORD = {"content": "abab", "single_word": False, "lstrip": False, "rstrip": False, "special": False}
