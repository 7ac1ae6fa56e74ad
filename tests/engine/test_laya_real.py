"""Recorded cases of the trained Laya checkpoints: from text to ids and from logits to answers. The weights here are
random: the trained ones are not at hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import save_file

from prelude import Choice, Decide, Engine, Noul, Score
from prelude.models.files import ModelDirectory
from prelude.models.options.laya import LAYA
from prelude.readouts.batch import HeadOutput
from tests.admission import toys
from tests.option_models import random_weights, write_json, write_random

SPECIALS = {"[UNK]": 50280, "[CLS]": 50281, "[SEP]": 50282, "[PAD]": 50283, "[MASK]": 50284}
ENCODER = {"vocab_size": 50288, "hidden_size": 64, "max_position_embeddings": 1024, "num_attention_heads": 2}


@pytest.fixture(scope="module")
def recorded(shared: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((shared / "decision" / "laya_real.json").read_text(encoding="utf-8"))
    return found


def write(path: Path, shared: Path, **agent: Any) -> Path:
    """Laya's tokenizer is gpt-neox's with special tokens of its own."""
    write_random(path, {"max_len": 1024, "head_max_len": 256, "temperature_by_options": None, **agent}, ENCODER)
    shapes = LAYA.network(ModelDirectory(path)).spec.tensors()
    renamed = {name.replace("in_proj.", "in_proj_"): shape for name, shape in shapes.items()}
    save_file(random_weights(renamed), path / "model.safetensors")
    tokenizer = json.loads((shared / "tokenizers/gpt-neox/tokenizer.json").read_text(encoding="utf-8"))
    kept = [token for token in tokenizer["added_tokens"] if token["id"] not in SPECIALS.values()]
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    own = [{"id": at, "content": name, "special": True} | plain for name, at in SPECIALS.items()]
    write_json(path / "tokenizer/tokenizer.json", {**tokenizer, "added_tokens": [*kept, *own]})
    return path


@pytest.fixture(scope="module")
def engines(
    shared: Path, recorded: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Engine]]:
    said = recorded["temperature"]
    typed = write(
        tmp_path_factory.mktemp("typed"),
        shared,
        temperature=said["typed-decisions"],
        temperature_by_options=said["typed-decisions by options"],
    )
    multilingual = write(tmp_path_factory.mktemp("multilingual"), shared, temperature=said["multilingual"])
    with Engine.from_pretrained(typed) as one, Engine.from_pretrained(multilingual) as other:
        yield {"typed-decisions": one, "multilingual": other}


def asked(question: dict[str, Any]) -> Any:
    text, criteria = question["instructions"], question.get("criteria")
    if question["type"] == "choice":
        # Numbers and booleans are no descriptions here.
        return Choice(
            text, {key: note if isinstance(note, str | dict | list) else None for key, note in criteria.items()}
        )
    return Noul(text, criteria) if question["type"] == "noul" else Score(text, criteria)


def cases(recorded: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for case in recorded["cases"]:
        if "questions" in case:
            yield case["model"].rsplit(" ", 1)[-1], case


def test_from_text_to_ids(engines: dict[str, Engine], recorded: dict[str, Any]) -> None:
    compared = 0
    for model, case in cases(recorded):
        if model != "typed-decisions":  # the tokenizer of the other one is not at hand
            continue
        rows, total = {row["id"]: row for row in case["rows"]}, 0
        for name, question in case["questions"].items():
            shown = engines[model].explain(Decide(case["state"], [asked(question)]))
            total += len(shown.token_ids)
            if name == "route":  # two of its descriptions are a number and a boolean
                continue
            assert shown.rows.tolist() == rows[name]["markers"], (case["name"], name)
            if "ids" in rows[name]:
                assert shown.token_ids.tolist() == rows[name]["ids"]
            compared += 1
        if "input_tokens" in case:
            assert total == case["input_tokens"]
    assert compared == 5


def test_from_logits_to_answers(engines: dict[str, Engine], recorded: dict[str, Any]) -> None:
    compared = 0
    for model, case in cases(recorded):
        preparer = engines[model]._preparer
        for row in case["rows"]:
            question = case["questions"][row["id"]]
            ready = preparer.prepare(Decide(case["state"], [asked(question)], truncation="head"))
            [answer] = toys.finish(ready, HeadOutput(np.array(row["logits"], np.float32)[:, None]))
            for name, value in case["answers"][row["id"]].items():
                if name == "confidence":
                    continue
                if name == "noul":
                    found = answer.probability
                elif name == "score":
                    found = answer.expected
                else:
                    found = answer.probabilities[name]
                assert found == pytest.approx(value, abs=6e-5), (case["name"], row["id"], name)
                compared += 1
    assert compared == 22
