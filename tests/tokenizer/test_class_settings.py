"""Entries of tokenizer_config.json that transformers' classes apply over tokenizer.json, against AutoTokenizer."""

from __future__ import annotations

import json
import struct
import warnings
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from prelude.tokenizer import Tokenizer, TokenizerConfigWarning
from prelude.tokenizer.class_settings import Model
from tokenizers import models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer

TEXTS = ("ab ba", "a  b", "Ab<x>b", "<s>ab", "b<x> a</s>")
PIECES = ["<unk>", "<s>", "</s>", "▁", "a", "b", "A", "<", ">", "x", "s", "/", "▁a", "▁b", "ab", "▁ab"]
MERGES = [("▁", "a"), ("▁", "b"), ("a", "b"), ("▁", "ab")]


ADDED = {
    "content": "<x>",
    "lstrip": False,
    "rstrip": True,
    "single_word": False,
    "normalized": True,
    "special": False,
}
CHANGES_NOTHING = struct.pack("<I", 1024) + bytes(1024)  # a charsmap


def llama(kind: str) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE({one: n for n, one in enumerate(PIECES)}, MERGES, unk_token="<unk>"))
    if kind == "Prepend":
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        scheme = "always" if kind == "always" else "first"
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    made.add_special_tokens(PIECES[:3])
    return made


def gpt2() -> tokenizers.Tokenizer:
    letters = ["<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = tokenizers.Tokenizer(models.BPE({one: n for n, one in enumerate(letters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.add_special_tokens(["<|endoftext|>"])
    return made


def deberta(*parts: normalizers.Normalizer) -> tokenizers.Tokenizer:
    pieces = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "▁", "a", "b", "A", "B", "x", "▁ab", "."]
    made = tokenizers.Tokenizer(models.Unigram([(one, -float(n)) for n, one in enumerate(pieces)], unk_id=3))
    made.normalizer = normalizers.Sequence([*parts, normalizers.NFC()])
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace()])
    made.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, [("[CLS]", 1), ("[SEP]", 2)])
    made.add_special_tokens(pieces[:4])
    return made


def both(path: Path, made: tokenizers.Tokenizer, kind: str, rows: int, **config: Any) -> tuple[Any, Tokenizer, str]:
    """AutoTokenizer, ours, and what ours warned of."""
    made.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (path / "config.json").write_text(json.dumps({"model_type": kind}), encoding="utf-8")

    def read(name: str, limit: int) -> bytes | None:
        return (path / name).read_bytes() if (path / name).exists() else None

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours = Tokenizer.from_reader(read, str(path), model=Model(kind, rows))
    return AutoTokenizer.from_pretrained(str(path)), ours, " ".join(str(one.message) for one in caught)


@pytest.mark.parametrize(
    ("made", "kind", "config"),
    [
        ("Prepend", "llama", {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False}),
        ("Metaspace", "llama", {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False}),
        ("Metaspace", "llama", {"tokenizer_class": "LlamaTokenizerFast", "add_prefix_space": True}),
        ("Metaspace", "llama", {"tokenizer_class": "LlamaTokenizer", "legacy": True}),
        ("Metaspace", "llama", {"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": False}),
        ("Metaspace", "llama", {"add_prefix_space": False}),
        ("always", "llama", {"bos_token": "<s>"}),
        ("gpt2", "gpt2", {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}),
        ("gpt2", "gpt2", {"add_prefix_space": True, "additional_special_tokens": ["<x>", "ab"]}),
        ("gpt2", "gpt2", {"tokenizer_class": "GPT2Tokenizer", "pad_token": "<x>", "other_token": "<s>"}),
        (
            "gpt2",
            "gpt2",
            {
                "extra_special_tokens": {"image_token": "<x>"},
                "pad_token": {"__type": "AddedToken", **ADDED, "content": "b"},
            },
        ),
        ("gpt2", "gpt2", {"added_tokens_decoder": {"257": ADDED, "258": {**ADDED, "content": "ab", "lstrip": True}}}),
    ],
)
def test_ids_are_those_of_auto_tokenizer(made: str, kind: str, config: dict[str, Any], tmp_path: Path) -> None:
    file = gpt2() if made == "gpt2" else llama(made)
    theirs, ours, said = both(tmp_path, file, kind, 400, **config)
    assert [ours.encode(text).ids for text in TEXTS] == [theirs(text)["input_ids"] for text in TEXTS]
    assert not said


def test_settings_that_are_not_followed_are_named(tmp_path: Path) -> None:
    _, ours, said = both(tmp_path, llama("Prepend"), "llama", 400, tokenizer_class="LlamaTokenizer")
    assert "add_prefix_space" in said and ours.encode(" ab").tokens[0] == "▁"
    extra = {"extra_special_tokens": ["<x>"], "split_special_tokens": True}
    _, ours, said = both(tmp_path, gpt2(), "gpt2", 257, **extra)  # no row is left for a token
    assert "'<x>' of extra_special_tokens is not in the vocabulary" in said and "split_special_tokens" in said
    assert ours.token_to_id("<x>") is None


@pytest.mark.parametrize(
    ("parts", "config", "warned"),
    [
        ([], {"do_lower_case": False, "split_by_punct": False}, ""),
        ([], {"do_lower_case": True}, "makes a Lowercase, and tokenizer.json has none"),
        ([normalizers.Lowercase()], {}, "makes no Lowercase, and tokenizer.json has one"),
        ([], {"split_by_punct": True}, "makes a Punctuation"),
        ([], {"sep_token": "[PAD]"}, "sep_token is '[PAD]'"),
        ([normalizers.Precompiled(CHANGES_NOTHING)], {}, "makes no Precompiled, and tokenizer.json has one"),
    ],
)
def test_what_the_class_of_deberta_makes_itself_is_named(
    parts: list[normalizers.Normalizer], config: dict[str, Any], warned: str, tmp_path: Path
) -> None:
    settings = {"tokenizer_class": "DebertaV2Tokenizer", **config}
    theirs, ours, said = both(tmp_path, deberta(*parts), "deberta-v2", 12, **settings)
    same = all(ours.encode(text).ids == theirs(text)["input_ids"] for text in ("ab Ab.b", "AB"))
    assert same is (not warned or "Precompiled" in warned)
    assert warned in said and bool(said) is bool(warned)


def test_a_tokenizer_alone_follows_its_file_and_names_what_the_class_would_do(tmp_path: Path) -> None:
    settings = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True, "extra_special_tokens": ["<x>"]}
    both(tmp_path, gpt2(), "gpt2", 400, **settings)
    with pytest.warns(TokenizerConfigWarning, match=r"add_prefix_space is True, and ByteLevel has False.*'<x>'"):
        alone = Tokenizer.from_file(tmp_path / "tokenizer.json")
    plain = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert [alone.encode(text).ids for text in TEXTS] == [plain.encode(text).ids for text in TEXTS]


@pytest.mark.parametrize("normalizer", [None, normalizers.NFC(), normalizers.Sequence([normalizers.NFC()])])
def test_all_text_is_lowered_first_if_the_model_asks(normalizer: normalizers.Normalizer | None) -> None:
    def lowered(text: str) -> Tokenizer:
        files = {"tokenizer.json": text.encode()}
        return Tokenizer.from_reader(lambda name, _: files.get(name), "here", model=Model("llama", 16, True))

    plain = llama("always")
    if normalizer is not None:
        plain.normalizer = normalizer
    ours = lowered(plain.to_str())
    assert ours.encode("A b AB").ids == plain.encode("a b ab").ids != plain.encode("A b AB").ids
    assert lowered(ours.to_str()).to_str() == ours.to_str() and ours.to_str().count("Lowercase") == 1


@pytest.mark.parametrize("listed", [[], [5]])
def test_a_list_in_a_component_that_is_no_sequence_is_not_read(listed: list[Any]) -> None:
    made = json.loads(llama("always").to_str())
    made["normalizer"] = {"type": "NFC", "normalizers": listed}
    made["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [], "normalizers": listed}
    files = {"tokenizer.json": json.dumps(made).encode(), "tokenizer_config.json": b"{}"}
    ours = Tokenizer.from_reader(lambda name, _: files.get(name), "here", model=Model("llama", 16, True))
    lowered = normalizers.Sequence([normalizers.Lowercase(), normalizers.NFC()])
    assert json.loads(ours.to_str())["normalizer"] == json.loads(lowered.__getstate__())
