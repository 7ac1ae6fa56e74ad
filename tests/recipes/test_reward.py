"""reward: the score of a Bradley-Terry head over the chat template, as Skywork-Reward-V2's card computes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from prelude import Engine, EngineConfig, Reward
from prelude.errors import InvalidRequest, RecipeError
from tests.engine.test_encoders import write
from tests.recipes.conftest import write_qwen

GOOD = [
    {"role": "user", "content": "Jane has 12 apples. She gives 4 to Mark. How many are left?"},
    {"role": "assistant", "content": "12 - 4 = 8 apples are left."},
]
OTHER = [GOOD[0], {"role": "assistant", "content": "北京 has <|endoftext|> 13 apples."}]


@pytest.fixture(scope="module")
def directory(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Qwen3's own chat template, as Skywork's checkpoints have it."""
    template = (shared / "chat_templates" / "Qwen-Qwen3.jinja").read_text(encoding="utf-8")
    return write_qwen(
        shared, tmp_path_factory.mktemp("reward"), template, kind="ForSequenceClassification", num_labels=1
    )


@pytest.fixture(scope="module")
def engine(directory: Path) -> Iterator[Engine]:
    with Engine.from_pretrained(directory, dtype="float32", config=EngineConfig(kv_bytes=1 << 22)) as engine:
        yield engine


@pytest.mark.feature("A19")
@pytest.mark.fault(27)
def test_text_ids_and_score_are_those_of_the_card(engine: Engine, directory: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(directory, dtype=torch.float32).eval()
    for messages in (GOOD, [*GOOD, *GOOD]):
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        if tokenizer.bos_token is not None and text.startswith(tokenizer.bos_token):
            text = text[len(tokenizer.bos_token) :]
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            expected = model(ids).logits[0][0].item()
        said = engine.explain(Reward(messages))
        assert said.token_ids.tolist() == ids[0].tolist() and said.text == text
        assert said.rows.tolist() == [ids.shape[1] - 1]
        assert (said.readout, said.activation) == ("head at 1 row", "none")
        found = engine.reward(messages)
        assert found.score == found.logit == pytest.approx(expected, abs=1e-4)  # raw: not a probability
        squashed = engine.reward(messages, activation="sigmoid")
        assert squashed.score == pytest.approx(1 / (1 + np.exp(-expected)), abs=1e-5)


@pytest.mark.fault(26)
def test_control_text_of_a_message_is_no_control_token(engine: Engine) -> None:
    ids = engine.explain(Reward(OTHER)).token_ids.tolist()
    assert 151643 not in ids
    assert engine.reward(OTHER, skip_pad=False).score == pytest.approx(engine.reward(OTHER).score, abs=1e-5)


def test_other_models_and_prompts_are_refused(engine: Engine, qwen: Path, tmp_path: Path) -> None:
    for wrong in ("text", [1, 2, 3], []):
        with pytest.raises(InvalidRequest, match="messages"):
            engine.reward(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="activation"):
        engine.reward(GOOD, activation="softmax")
    with (
        Engine.from_pretrained(qwen, dtype="float32", config=EngineConfig(kv_bytes=1 << 22)) as chat,
        pytest.raises(RecipeError, match="a decoder with no classification head"),
    ):
        chat.reward(GOOD)
    path = write(tmp_path, "ForSequenceClassification", num_labels=1)
    with Engine.from_pretrained(path) as encoder, pytest.raises(RecipeError, match="is an encoder"):
        encoder.reward(GOOD)
