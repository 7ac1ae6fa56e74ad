"""HF's trainers by name. Training is left out: making one raises ``TokenizersMutationError``."""

from __future__ import annotations

from typing import Any

from .errors import TokenizersMutationError

TRAINING = "training is left out: train with `tokenizers`, save, and load the file here"


class Trainer:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise TokenizersMutationError(f"{type(self).__name__}: {TRAINING}")


for _name in ("BpeTrainer", "ParityBpeTrainer", "UnigramTrainer", "WordLevelTrainer", "WordPieceTrainer"):
    globals()[_name] = type(_name, (Trainer,), {"__module__": __name__})
