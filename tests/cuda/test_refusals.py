"""Models that the device does not serve are refused by name when they are loaded; all others are loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from prelude.cuda import driver

from prelude import Engine, EngineConfig
from prelude.errors import ConfigError, PreludeError, UnsupportedModel
from prelude.loading.cuda import check_supported
from prelude.models.families import ARCHITECTURES
from tests.checkpoints import save_model
from tests.encoders import write_encoder
from tests.models.configs import read
from tests.models.test_every_family import base_of
from tests.option_models import BERT_SPECIALS, save_tokenizer, write_opendecider, write_pointer

SERVED = ("qwen3", "qwen2", "llama", "mistral", "phi3", "smollm3")
"""Families whose decoders, bodies and classifiers of the last token run on the device."""
ENCODER = r"attention over the whole prompt \(an encoder\)"
RECURRENT = r"layers with a recurrent state \((GatedDelta|ShortConv)\)"
GEMMA = "norms whose weights count from one"
CAPS = "attention with a soft cap or a scale of its own"
TOKENS = "a classification head other than one projection of the last token"
REASONS = {
    "gemma": GEMMA, "gemma2": CAPS, "gemma3_text": CAPS, "qwen3_5_text": RECURRENT, "qwen3_5": RECURRENT,
    "lfm2": RECURRENT,
}  # fmt: skip
CONVOLUTIONS = {"layer_types": [*["conv", "full_attention"] * 3, "conv"]}  # of the seven layers of ``base_of``


@pytest.mark.parametrize("architecture", list(ARCHITECTURES))
def test_every_architecture_is_served_or_refused_by_name(architecture: str) -> None:
    family = ARCHITECTURES[architecture].model_type
    spec = read({**base_of(architecture), **(CONVOLUTIONS if family == "lfm2" else {})}).spec
    reason = None if family in SERVED else REASONS.get(family, ENCODER)
    if architecture.endswith(("ForTokenClassification", "ForProcessRewardModel")) and reason not in (ENCODER, CAPS):
        reason = TOKENS
    if reason is None:
        check_supported(spec)
        return
    with pytest.raises(UnsupportedModel, match=f"^device='cuda' does not implement {reason}; use device='cpu'$"):
        check_supported(spec)


def _gguf(path: Path) -> Path:
    from tests.gguf_files import write_model

    return write_model(save_model(path / "source"), path / "model.gguf")


MODELS: dict[str, tuple[Callable[[Path], Path], type[PreludeError], str]] = {
    "bert": (lambda path: write_encoder(path, family="bert"), UnsupportedModel, ENCODER),
    "modernbert": (lambda path: write_encoder(path, family="modernbert"), UnsupportedModel, ENCODER),
    "deberta": (lambda path: write_encoder(path, family="deberta-v2"), UnsupportedModel, ENCODER),
    "gemma": (lambda path: save_model(path, family="gemma"), UnsupportedModel, GEMMA),
    "opendecider": (write_opendecider, UnsupportedModel, ENCODER),
    "pointer": (write_pointer, UnsupportedModel, "a head that reads the options of a question together"),
    "gguf": (_gguf, ConfigError, "GGUF is read on CPUs"),
}


@pytest.mark.parametrize("kind", list(MODELS))
def test_loading_refuses_them_before_the_device_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Here there is no device, so anything behind the refusal would fail in another way."""
    write, error, said = MODELS[kind]
    monkeypatch.setattr(driver, "require", lambda: None)
    path = write(tmp_path / "model")
    if path.is_dir() and not (path / "tokenizer.json").exists():
        save_tokenizer(path / "tokenizer.json", BERT_SPECIALS)
    with pytest.raises(error, match=said):
        Engine.from_pretrained(path, device="cuda")


def test_int8_weights_are_of_cpus(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"quantization='int8' is of CPUs; leave it out for device='cuda'"):
        Engine.from_pretrained(save_model(tmp_path), device="cuda", config=EngineConfig(quantization="int8"))
