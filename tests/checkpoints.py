"""Small random checkpoints of every family, written by transformers: the one place that states their sizes.

``TINY`` is the smallest that has all parts, for tests of files; ``SMALL`` has odd sizes, for tests of numbers;
``TALKING`` goes with the packaged model's tokenizer, for tests of the engine.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from prelude import default_model

TINY: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256,
}  # fmt: skip
SMALL: dict[str, Any] = {
    "vocab_size": 211, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 1024, "tie_word_embeddings": False,
    "rms_norm_eps": 3e-3, "norm_eps": 2e-3,
}  # fmt: skip
TALKING: dict[str, Any] = {
    "vocab_size": 4096, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "tie_word_embeddings": True,
    "eos_token_id": 0, "pad_token_id": 0, "initializer_range": 0.12,
}  # fmt: skip
CLASSES = {"qwen3": "Qwen3", "qwen2": "Qwen2", "llama": "Llama", "mistral": "Mistral", "phi3": "Phi3"}
CLASSES |= {"smollm3": "SmolLM3", "gemma": "Gemma", "gemma2": "Gemma2", "gemma3_text": "Gemma3Text"}
CLASSES |= {"qwen3_5_text": "Qwen3_5Text", "lfm2": "Lfm2"}
"""How transformers' class names of a family begin."""
_IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
PLAIN: dict[str, dict[str, Any]] = {"mistral": {"sliding_window": None}, "phi3": _IDS, "smollm3": _IDS}
"""Settings of a family's config for models this small with full attention alone."""


def write_checkpoint(
    path: Path,
    sizes: dict[str, Any],
    *,
    family: str = "qwen3",
    kind: str = "ForCausalLM",
    seed: int = 0,
    scale: float | None = None,
    dtype: str = "float32",
    shard: str = "1GB",
    **changes: Any,
) -> Path:
    """A random model of ``family`` in ``path``. ``scale``: all weights are drawn anew with this deviation, gains
    around one, so that biases and gains are not the neutral ones a model begins with; without it the weights are
    those that transformers draws."""
    import torch
    import transformers

    config = getattr(transformers, f"{CLASSES[family]}Config")(**{**sizes, **PLAIN.get(family, {}), **changes})
    torch.manual_seed(seed)
    begins = CLASSES[family].removesuffix("Text") if kind == "ForCausalLM" else CLASSES[family]
    model = getattr(transformers, begins + kind)(config)
    if scale is not None:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name.endswith("A_log"):  # between log 0.01 and log 16: some heads forget at once, others late
                    continue
                from_zero = "gemma" in family or (family == "qwen3_5_text" and "linear_attn" not in name)
                centre = 1.0 if "norm" in name and not from_zero else 0.0
                weight.copy_(centre + scale * torch.randn(weight.shape, generator=generator))
        model.tie_weights()
    model.to(getattr(torch, dtype)).save_pretrained(path, max_shard_size=shard)
    return path


def save_model(path: Path, *, scale: float = 0.08, **options: Any) -> Path:
    """A ``SMALL`` one, with weights large enough that its answers differ clearly."""
    return write_checkpoint(path, SMALL, scale=scale, **options)


def make_checkpoint(path: Path, **options: Any) -> Path:
    """A ``TALKING`` one, with the packaged model's tokenizer."""
    write_checkpoint(path, TALKING, **options)
    shutil.copy(default_model.path() / "tokenizer.json", path / "tokenizer.json")
    return path
