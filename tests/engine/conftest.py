"""A small random checkpoint with a real tokenizer, and the same weights in transformers as the oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prelude import Engine, EngineConfig
from tests.checkpoints import make_checkpoint


@dataclass
class Oracle:
    """transformers in float32, one sequence at a time."""

    path: Path
    model: Any = field(init=False)

    def __post_init__(self) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.torch = torch
        self.model = AutoModelForCausalLM.from_pretrained(self.path, dtype=torch.float32).eval()

    def logprobs(self, ids: list[int]) -> np.ndarray:
        """[n, vocab]: row i predicts token i + 1."""
        with self.torch.inference_mode():
            logits = self.model(self.torch.tensor([ids])).logits[0].double()
            return self.torch.log_softmax(logits, -1).numpy()

    def joint(self, context: list[int], continuation: list[int]) -> float:
        table = self.logprobs(context + continuation)
        return float(sum(table[len(context) + i - 1, token] for i, token in enumerate(continuation)))

    def hidden(self, ids: list[int]) -> np.ndarray:
        """[n, hidden] after the final norm."""
        with self.torch.inference_mode():
            return self.model.model(self.torch.tensor([ids])).last_hidden_state[0].numpy()

    def greedy(self, ids: list[int], count: int) -> list[int]:
        with self.torch.inference_mode():
            out = self.model.generate(
                self.torch.tensor([ids]),
                max_new_tokens=count,
                min_new_tokens=count,
                do_sample=False,
                eos_token_id=None,
            )
        return out[0, len(ids) :].tolist()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("qwen3"))


@pytest.fixture(scope="session")
def oracle(checkpoint: Path) -> Oracle:
    return Oracle(checkpoint)


@pytest.fixture
def make_engine(checkpoint: Path) -> Iterator[Callable[..., Engine]]:
    """Engines of the random checkpoint in float32, audited and closed at the end of the test."""
    made: list[Engine] = []

    def make(path: Path | None = checkpoint, dtype: str = "float32", **config: Any) -> Engine:
        engine = Engine.from_pretrained(path, dtype=dtype, config=EngineConfig().changed(kv_bytes=1 << 22, **config))
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine._core.audit()
        engine.close()
