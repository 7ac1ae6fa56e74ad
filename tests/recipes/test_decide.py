"""Recipes of decide for plain chat models: the text is that of Qwen3's own chat template; letters are scored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers

from prelude import Choice, Decide, Engine, EngineConfig, Score, YesNo
from prelude.admission.template import decision_template
from tests.recipes.conftest import write_qwen

STATE = "I was charged twice."
CHOICE = Choice("Which team?", {"Billing": "Invoices", "Sales": None, "Tech": None})
LETTER = "Answer with the letter of the best option."
PLAIN = Choice("Which team?", ["Billing", "Sales"])


@pytest.fixture(scope="module")
def directory(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    template = (shared / "chat_templates" / "Qwen-Qwen3.jinja").read_text(encoding="utf-8")
    return write_qwen(shared, tmp_path_factory.mktemp("chat"), template)


@pytest.fixture(scope="module")
def engine(directory: Path) -> Iterator[Engine]:
    with Engine.from_pretrained(directory, dtype="float32", config=EngineConfig(kv_bytes=1 << 22)) as engine:
        yield engine


def prompt_of(engine: Engine, question: Any, name: str) -> tuple[list[int], Any]:
    said = engine.explain(Decide(STATE, [question], template=decision_template(name)))
    return said.token_ids[: said.segments[0][1]].tolist(), said


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(directory)


@pytest.mark.parametrize("thoughts", ["", "-instruct"])
@pytest.mark.parametrize(
    ("name", "question", "asked"),
    [
        ("qwen3-labels", PLAIN, "Question: Which team?\nAnswer with exactly one of: Billing, Sales"),
        ("qwen3-labels", YesNo("Is it spam?"), "Question: Is it spam?\nAnswer with exactly one of: yes, no"),
        ("qwen3-letters", CHOICE, f"Question: Which team?\nA. Billing: Invoices\nB. Sales\nC. Tech\n{LETTER}"),
        ("qwen3-letters", PLAIN, f"Question: Which team?\nA. Billing\nB. Sales\n{LETTER}"),
        ("qwen3-letters", YesNo("Is it spam?"), "Question: Is it spam?\nAnswer yes or no."),
        ("qwen3-yes-no", YesNo("Is it spam?"), "Question: Is it spam?\nAnswer with Yes or No alone."),
        ("qwen3-yes-no", Score("How urgent?", 3), "Question: How urgent?\nAnswer with exactly one of: 1, 2, 3"),
    ],
)
def test_text_and_ids_are_those_of_the_chat_template(
    engine: Engine, tokenizer: Any, name: str, question: Any, asked: str, thoughts: str
) -> None:
    ids, said = prompt_of(engine, question, name + thoughts)
    turn, options = {"role": "user", "content": f"{STATE}\n\n{asked}"}, {"add_generation_prompt": True}
    text = tokenizer.apply_chat_template([turn], tokenize=False, enable_thinking=bool(thoughts), **options)
    assert tokenizer.decode(ids) == text
    assert ids == tokenizer(text, add_special_tokens=False)["input_ids"]
    if name == "qwen3-letters" and isinstance(question, Choice):
        expected = [tokenizer.encode(letter, add_special_tokens=False) for letter in "ABC"]
        assert [list(label_ids) for _, label_ids in said.labels[0]] == expected[: len(said.labels[0])]


def test_answers_of_letters_name_the_labels(engine: Engine) -> None:
    answer = engine.decide(STATE, [CHOICE], template=decision_template("qwen3-letters"))[0]
    assert set(answer.probabilities) == {"Billing", "Sales", "Tech"}
    ids, said = prompt_of(engine, CHOICE, "qwen3-letters")
    for label, label_ids in said.labels[0]:
        alone = engine.loglikelihood(ids, list(label_ids))
        assert answer.logprobs[label] == pytest.approx(alone.total, abs=1e-4)
    turned = Choice("Which team?", ["Sales", "Billing"])
    orders = [
        engine.decide(STATE, [one], template=decision_template("qwen3-letters"), orders="sorted")[0]
        for one in (PLAIN, turned)
    ]
    for label in ("Billing", "Sales"):
        assert orders[0].probabilities[label] == pytest.approx(orders[1].probabilities[label], abs=1e-6)
