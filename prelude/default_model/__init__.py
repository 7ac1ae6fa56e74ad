"""The model that ships with the package: two million parameters, trained by ``python -m bench.train.train``.

``path()`` is all that the engine needs; nothing here imports torch.
"""

from __future__ import annotations

from pathlib import Path


def path() -> Path:
    """The directory of the default model: config.json, model.safetensors, tokenizer.json and the rest."""
    return Path(__file__).parent
