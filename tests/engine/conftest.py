"""Small random Qwen3 checkpoints with a real tokenizer, and the same weights in transformers as the oracle."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prelude import Engine, EngineConfig, default_model


def make_checkpoint(path: Path, *, seed: int = 0, tie: bool = True, kind: str = "causal", **changes: Any) -> Path:
    """A random float32 Qwen3 with the packaged model's tokenizer."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3ForSequenceClassification

    sizes: dict[str, Any] = {
        "vocab_size": 4096,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "tie_word_embeddings": tie,
        "eos_token_id": 0,
        "pad_token_id": 0,
        "initializer_range": 0.12,
        **changes,
    }
    torch.manual_seed(seed)
    config = Qwen3Config(**sizes)
    model = Qwen3ForCausalLM(config) if kind == "causal" else Qwen3ForSequenceClassification(config)
    model.float().save_pretrained(path)
    for name in ("tokenizer.json",):
        shutil.copy(default_model.path() / name, path / name)
    return path


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
        engine = Engine.from_pretrained(path, dtype=dtype, config=EngineConfig(kv_bytes=1 << 22, **config))
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine._core.audit()
        engine.close()
