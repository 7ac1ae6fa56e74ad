"""Libraries that take a tokenizer of transformers take a fast one of this package, with the same results."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from prelude.tokenizer import fast_tokenizer

transformers = pytest.importorskip("transformers")

TEXTS = ["Hello there, how are you?", "Ünïcödé 你好 <mask> x", "12345", "The quick brown fox jumps. " * 8]


@pytest.fixture
def theirs(json_of: Any, tmp_path: Path) -> Any:
    (tmp_path / "tokenizer.json").write_text(json_of("byte-level"), encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<pad>",
        "eos_token": "</s>",
        "model_max_length": 40,
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    return transformers.AutoTokenizer.from_pretrained(tmp_path)


def test_datasets_map_it_in_several_processes(theirs: Any, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"text": TEXTS * 4})

    def mapped(tokenizer: Any, name: str) -> Any:
        def encode(batch: dict[str, list[str]]) -> Any:
            return tokenizer(batch["text"], truncation=True, padding="max_length")

        where = str(tmp_path / f"{name}.arrow")
        return rows.map(encode, batched=True, batch_size=3, num_proc=2, cache_file_name=where).to_dict()

    assert mapped(fast_tokenizer(theirs), "ours") == mapped(theirs, "theirs")


def test_sentence_transformers_use_it(theirs: Any, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    config = transformers.BertConfig(
        vocab_size=len(theirs), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=64,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(tmp_path / "model")
    theirs.save_pretrained(tmp_path / "model")
    model = library.SentenceTransformer(str(tmp_path / "model"), device="cpu")
    expected, tokens = model.encode(TEXTS), model.tokenize(TEXTS)
    model[0].processor = fast_tokenizer(model.tokenizer)
    assert (model.encode(TEXTS) == expected).all()
    found = model.tokenize(TEXTS)
    assert list(found) == list(tokens)
    assert all((found[name] == tokens[name]).all() for name in tokens if hasattr(tokens[name], "all"))


def test_lm_eval_uses_it(theirs: Any) -> None:
    huggingface = pytest.importorskip("lm_eval.models.huggingface")
    config = transformers.GPT2Config(vocab_size=len(theirs), n_layer=1, n_head=2, n_embd=16, n_positions=64)
    model = transformers.GPT2LMHeadModel(config)
    mine, other = (
        huggingface.HFLM(pretrained=model, tokenizer=one, device="cpu", batch_size=2)
        for one in (fast_tokenizer(theirs), theirs)
    )
    for given in ({}, {"left_truncate_len": 5}, {"truncation": True, "padding_side": "right"}):
        for a, b in zip(mine.tok_batch_encode(TEXTS, **given), other.tok_batch_encode(TEXTS, **given)):
            assert a.dtype == b.dtype and a.tolist() == b.tolist()
    assert [mine.tok_encode(text) for text in TEXTS] == [other.tok_encode(text) for text in TEXTS]


PADDED: list[Any] = [
    [], {}, "ab", ["a", "b"], [{"input_ids": 5}], [{"input_ids": []}], [{"input_ids": [1 << 70]}],
    [{"input_ids": [1.0, 2.0]}, {"input_ids": [1.0]}], [{"input_ids": [[1, 2], [3, 4]]}],
    [{"labels": [1], "input_ids": [2]}], [{"input_ids": [1, 2, 3]}, {"input_ids": [4]}],
    *([{"input_ids": [1, 2, 3], name: [1, 0, 1]}, {"input_ids": [4], name: [1]}] for name in (
        "attention_mask", "token_type_ids", "special_tokens_mask")),
    [{"input_ids": [1, 2], "attention_mask": [1]}], [{"input_ids": [1], "attention_mask": [1]}, {"input_ids": [2]}],
]  # fmt: skip
PADS: list[dict[str, Any]] = [
    {}, {"padding": False}, {"padding": "nope"}, {"padding_side": "up"}, {"padding_side": "right"}, {"max_length": 2},
    *({"padding": "max_length", "max_length": length} for length in (None, 2, 3, 9)), {"padding": "longest"},
    *({"pad_to_multiple_of": times} for times in (0, 1, 2, 3)), *({"return_attention_mask": on} for on in (0, 1)),
    {"padding": "max_length", "max_length": 9, "pad_to_multiple_of": 4},
]  # fmt: skip


@pytest.mark.parametrize("kind", [None, "np", "pt", "nope"])
def test_rows_are_padded_or_refused_as_by_transformers(theirs: Any, kind: str | None) -> None:
    ours = fast_tokenizer(theirs)
    ours.padding_side = theirs.padding_side = "left"
    for given in PADDED:
        for more in PADS:
            found: list[Any] = []
            for one in (ours, theirs):
                try:
                    batch = one.pad(copy.deepcopy(given), return_tensors=kind, **more)
                    found.append(str({k: (type(v), getattr(v, "dtype", None), v) for k, v in batch.items()}))
                except Exception as error:
                    found.append(type(error))
            assert found[0] == found[1], (given, more)


@pytest.mark.parametrize("kind", [None, "np", "pt"])
def test_a_collator_pads_by_it(theirs: Any, kind: str | None) -> None:
    ours = fast_tokenizer(theirs)
    ours.padding_side = theirs.padding_side = "left"
    rows = [theirs(text, return_special_tokens_mask=True) for text in TEXTS]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    options: list[dict[str, Any]] = [{}, {"padding": "max_length", "max_length": 120}, {"pad_to_multiple_of": 8}]
    options.append({"padding_side": "right"})
    others = [{**rows[0], "labels": rows[0]["input_ids"]}]  # a column that is not padded
    for given in (rows, columns, [{"input_ids": row["input_ids"]} for row in rows], others):
        for more in options:
            found, expected = (t.pad(given, return_tensors=kind, **more) for t in (ours, theirs))
            assert list(found) == list(expected)
            for name in expected:
                if kind is None:
                    assert found[name] == expected[name]
                else:
                    assert found[name].dtype == expected[name].dtype
                    assert found[name].tolist() == expected[name].tolist()
    with pytest.raises(ValueError, match="input_ids"):
        ours.pad([{"labels": [1]}])
