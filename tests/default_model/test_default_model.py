"""The default model: its size, its files, and its right answers on sentences it never saw."""

from __future__ import annotations

import json
import math
import struct
from collections import Counter

import pytest

from bench.train import DATA
from prelude import default_model

FILES = {
    "config.json", "decision_template.json", "demo.json", "generation_config.json", "model.safetensors", "README.md",
    "tokenizer.json", "tokenizer_config.json",
}  # fmt: skip


def read(name: str) -> dict:
    return json.loads((default_model.path() / name).read_text(encoding="utf-8"))


def header() -> dict:
    with (default_model.path() / "model.safetensors").open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        found = json.loads(file.read(length))
    found.pop("__metadata__", None)
    return found


def rows() -> list[dict]:
    lines = (DATA / "heldout.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_files_and_bytes() -> None:
    names = {file.name for file in default_model.path().iterdir()}
    assert names >= FILES
    assert sum(file.stat().st_size for file in default_model.path().iterdir() if file.is_file()) <= 8_000_000


def test_parameters() -> None:
    tensors = header()
    assert sum(math.prod(tensor["shape"]) for tensor in tensors.values()) <= 2_000_000
    assert {tensor["dtype"] for tensor in tensors.values()} == {"BF16"}
    assert not any("lm_head" in name for name in tensors)
    config = read("config.json")
    assert config["model_type"] == "qwen3" and config["tie_word_embeddings"]
    assert config["max_position_embeddings"] == 8192
    assert tensors["model.embed_tokens.weight"]["shape"] == [config["vocab_size"], config["hidden_size"]]


def test_held_out_sentences_are_those_of_the_readme() -> None:
    found = rows()
    assert all(set(row) == {"text", "language", "personal_data", "origin"} for row in found)
    assert all(len(row["text"]) >= 30 for row in found)
    assert len({row["text"] for row in found}) == len(found)
    languages = Counter(row["language"] for row in found)
    assert len(languages) >= 12 and min(languages.values()) >= 15
    data = Counter(row["personal_data"] for row in found)
    assert data[True] == data[False]
    assert set(languages) == set(read("demo.json")["questions"][0]["labels"])


def test_demo() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    demo, template = read("demo.json"), read("decision_template.json")
    tokenizer = tokenizers.Tokenizer.from_file(str(default_model.path() / "tokenizer.json"))
    assert len(demo["texts"]) >= 24
    assert not {row["text"] for row in rows()} & set(demo["texts"])
    assert len(tokenizer.encode(demo["rubric"]).ids) >= 100
    for question in demo["questions"]:
        text = template["question"].format(question=question["question"], labels=", ".join(question["labels"]))
        assert question["question"] in text
        for label in question["labels"]:
            assert len(tokenizer.encode(template["label"].format(label=label)).ids) == 1


def test_the_tokenizer_gives_every_text_back() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(default_model.path() / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == read("config.json")["vocab_size"]
    texts = [row["text"] for row in rows()] + ["", " a  b\n\n\tc ", "e\u0301 \U0001f469\u200d\U0001f680 \x00\ufffd"]
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_completes_with_transformers() -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(default_model.path())
    model = transformers.AutoModelForCausalLM.from_pretrained(default_model.path(), dtype=torch.float32).eval()
    ids = tokenizer("Please enter a valid", return_tensors="pt")
    out = model.generate(**ids, max_new_tokens=8, do_sample=False)
    assert out.shape[1] > ids["input_ids"].shape[1]
    ids = tokenizer("User: Which language is it? Das Haus ist alt und klein.\nAssistant:", return_tensors="pt")
    out = model.generate(**ids, max_new_tokens=4, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert tokenizer.decode(out) == " German<|endoftext|>"
    # In the chat template it keeps the form and stops; its answer there is not checked.
    messages = [{"role": "user", "content": "Which language is it?\n\nМоя сестра выращивает фасоль."}]
    chat = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    out = model.generate(**chat, max_new_tokens=16, do_sample=False)[0, chat["input_ids"].shape[1] :]
    assert tokenizer.decode(out).endswith("<|im_end|>")


def test_nothing_held_out_is_in_the_words_of_the_corpus() -> None:
    """Rubrics, lead-ins and everyday sentences are the only ones that the training code itself has."""
    pytest.importorskip("babel")
    pytest.importorskip("regex")
    from bench.train import everyday, phrases
    from bench.train.sources import shingles

    files = [DATA / name for name in ("selection.jsonl", "development.jsonl")]
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    judged = [row["text"] for row in [*rows(), *map(json.loads, lines)]] + read("demo.json")["texts"]
    held = set().union(*map(shingles, judged))
    own = [phrases.RUBRIC, *phrases.RUBRICS, *phrases.LANGUAGE_QUESTIONS, *phrases.DATA_QUESTIONS]
    for table in (phrases.EMAIL, phrases.PHONE, phrases.CARD):
        own += [lead.replace("{}", " ") for leads in table.values() for lead in leads]
    for lines in everyday.sentences().values():
        own += lines
    for text in own:
        assert held.isdisjoint(shingles(text)), text


def test_held_out_text_is_removed_from_the_corpus() -> None:
    pytest.importorskip("babel")
    pytest.importorskip("regex")
    from bench.train.sources import shingles, without

    text = rows()[0]["text"]
    kept = without(["An unrelated sentence about the weather of today.", f"He said: {text}", text[3:]], [text])
    assert kept == ["An unrelated sentence about the weather of today."]
    assert shingles("全世界大约有亿人在家里看着人类第一次走上月球")
