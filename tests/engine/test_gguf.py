"""An engine on a GGUF file: the answers of the safetensors model that it was made of, its tokenizer, its template."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from prelude import Engine, EngineConfig, SamplingParams
from prelude.default_model import path as packaged
from prelude.models.identity import model_hash
from prelude.systemone import SystemOne
from prelude.tools.cli import main
from tests.checkpoints import make_checkpoint
from tests.gguf_files import write_model

GREEDY = SamplingParams(max_tokens=12, temperature=0.0)
PROMPTS = ["The committee shall publish", "1, 2, 3,", "Once upon a time there was a small engine that"]
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}{{ eos_token }}"


def add_tokenizer(writer: Any, vocab: int = 0) -> None:
    """The packaged tokenizer's tokens, cut into words as GPT-2 does, and unused ones up to ``vocab``."""
    file = json.loads((packaged() / "tokenizer.json").read_text(encoding="utf-8"))
    added = {token["id"]: token["content"] for token in file["added_tokens"]}
    tokens = {**{token: text for text, token in file["model"]["vocab"].items()}, **added}
    count = max(tokens) + 1
    unused = [f"<unused {token}>" for token in range(count, vocab)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*(tokens[token] for token in range(count)), *unused])
    writer.add_token_types([*(3 if token in added else 1 for token in range(count)), *(5 for _ in unused)])
    writer.add_token_merges([one if isinstance(one, str) else " ".join(one) for one in file["model"]["merges"]])
    writer.add_eos_token_id(0)
    writer.add_chat_template(TEMPLATE)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), family="llama")


def answers(engine: Engine) -> list[Any]:
    found: list[Any] = [list(engine.complete(prompt, params=GREEDY).token_ids) for prompt in PROMPTS]
    return [*found, *(float(sum(engine.loglikelihood(prompt, " and so on").token_logprobs)) for prompt in PROMPTS)]


def test_answers_of_the_model_that_the_file_was_made_of(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_model(model, tmp_path / "model.gguf", "F32")
    shutil.copy(model / "tokenizer.json", tmp_path / "tokenizer.json")
    with Engine.from_pretrained(model) as engine:
        wanted = answers(engine)
    with caplog.at_level(logging.INFO, "prelude.models.gguf"), Engine.from_pretrained(str(path)) as engine:
        found = answers(engine)
        assert engine.model_info.quantization is None
    assert found[:3] == wanted[:3] and found[3:] == pytest.approx(wanted[3:], abs=1e-4)
    assert "tokenizer.json beside the file is used" in caplog.text


def test_a_file_by_itself(model: Path, tmp_path: Path) -> None:
    """Tokenizer, template and end of text out of the metadata; weights in 8 bits; a row's bits in any company."""
    path = write_model(model, tmp_path / "model.gguf", "Q8_0", add_tokenizer)
    with Engine.from_pretrained(tmp_path, config=EngineConfig(deterministic=True)) as engine:
        assert engine.model_info.quantization == "int8" and "int8 weights" in repr(engine)
        alone = [list(engine.complete(prompt, params=GREEDY).token_ids) for prompt in PROMPTS]
        chat = engine.complete([{"role": "user", "content": "Hello"}], params=GREEDY)
        assert chat.stats.prompt_tokens == len(engine.tokenizer.encode("user: Hello\n").ids) + 1
        again = answers(engine)
        assert again[:3] == alone
    assert str(path) in repr(engine)


def test_other_types_of_the_weights_of_products(model: Path, tmp_path: Path) -> None:
    path = write_model(model, tmp_path / "model.gguf", "Q8_0", add_tokenizer)
    with Engine.from_pretrained(path, dtype="bfloat16") as engine:
        assert len(engine.complete(PROMPTS[0], params=GREEDY).token_ids) > 0


def test_a_file_serves_system_one_and_bulk_runs(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model's path is a file there. A bulk run goes on with the same file alone."""
    path = write_model(model, tmp_path / "model.gguf", "F32", add_tokenizer)
    with Engine.from_pretrained(path) as engine:
        [listed, _] = SystemOne(engine).models()["models"]
        assert listed["name"] == "model.gguf" and len(listed["release_date"]) == len("2026-01-02")
    source, target = tmp_path / "in.csv", tmp_path / "out.jsonl"
    source.write_text("text\na\nb\n", encoding="utf-8")
    options = ["--model", str(path), "--text-column", "text", "--noul", "q=Is it?", "--no-progress"]
    assert main(["score", str(source), str(target), *options]) == 0, capsys.readouterr().err
    assert len(target.read_text(encoding="utf-8").splitlines()) == 2
    before = model_hash(path)
    (tmp_path / "other.gguf").write_bytes(b"another model")
    assert model_hash(path) == before
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    assert model_hash(path) != before
