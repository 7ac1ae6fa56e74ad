"""Tokenizers out of a GGUF file's metadata: the ids of the ``tokenizer.json`` that the metadata were made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from prelude.tokenizer import Tokenizer

from prelude.default_model import path as packaged
from prelude.errors import ModelError, UnsupportedModel
from prelude.models.gguf.tokenizer import GgufTokenizer
from tests.tokenizer.conftest import SHARED

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
TEXTS = [
    "The committee shall publish its findings before the close of the year.",
    "  two  spaces, tabs\tand\n\nlines \n and 1234567890 numbers, it's DON'T",
    "Grüße aus Köln, 東京の天気 e\u0301 \U0001f600\U0001f468\u200d\U0001f469 \u00a0x",
    "",
    " ",
    "def f(x):\n    return x ** 2  # ok",
]


def metadata(file: dict[str, Any], pre: str | None) -> dict[str, Any]:
    """As llama.cpp's converter writes them. ``pre``: None for tokens with scores, here the ranks of their merges."""
    vocabulary: dict[str, int] = dict(file["model"]["vocab"])
    added = {token["content"]: token for token in file["added_tokens"]}
    vocabulary |= {content: token["id"] for content, token in added.items()}
    tokens = [""] * (max(vocabulary.values()) + 1)
    kinds = [NORMAL] * len(tokens)
    for text, token in vocabulary.items():
        tokens[token] = text
        if text in added:
            kinds[token] = CONTROL if added[text]["special"] else USER
        elif pre is None and len(text) == 6 and text.startswith("<0x"):
            kinds[token] = BYTE
    found: dict[str, Any] = {"tokens": tokens, "token_type": kinds, "model": "llama" if pre is None else "gpt2"}
    if pre is None:
        kinds[vocabulary["<unk>"]] = UNKNOWN
        ranks: dict[str, int] = {}
        for rank, merge in enumerate(file["model"]["merges"]):
            ranks.setdefault("".join(merge.split(" ") if isinstance(merge, str) else merge), rank)
        found |= {"scores": [-float(ranks.get(text, 0)) for text in tokens], "unknown_token_id": 0}
        found |= {"bos_token_id": 1, "eos_token_id": 2}
    else:
        merges = file["model"]["merges"]
        found |= {"pre": pre, "merges": [one if isinstance(one, str) else " ".join(one) for one in merges]}
    return {f"tokenizer.ggml.{key}": value for key, value in found.items()}


def made(told: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_buffer(GgufTokenizer(told, Path("m.gguf")).file())


@pytest.mark.long
@pytest.mark.parametrize(
    "family, pre",
    [
        ("gpt2", "gpt-2"), ("qwen3", "qwen2"), ("llama-3.2", "llama-bpe"), ("mistral-nemo", "tekken"),
        ("llama2", None), ("mistral-v1", None),
    ],
)  # fmt: skip
def test_ids_are_those_of_the_real_tokenizer(family: str, pre: str | None) -> None:
    if SHARED is None:
        pytest.skip("the shared tokenizer files are not here")
    path = SHARED / "tokenizers" / family / "tokenizer.json"
    told = metadata(json.loads(path.read_text(encoding="utf-8")), pre)
    theirs = Tokenizer.from_file(path)
    if pre in ("llama-bpe", "tekken"):
        told["tokenizer.ggml.bos_token_id"] = theirs.encode("").ids[0]
    ours = made(told)
    special = [token["content"] for token in json.loads(path.read_text(encoding="utf-8"))["added_tokens"][:3]]
    for text in [*TEXTS, f"a {special[0]}b{special[-1]} c"]:
        assert ours.encode(text).ids == theirs.encode(text).ids, text
        ids = ours.encode(text, add_special_tokens=False).ids
        assert ours.decode(ids) == theirs.decode(ids)


def byte_level() -> dict[str, Any]:
    return metadata(json.loads((packaged() / "tokenizer.json").read_text(encoding="utf-8")), "gpt-2")


def test_ids_are_those_of_the_packaged_tokenizer() -> None:
    """The first and last tokens of a text are added as the file says."""
    theirs = Tokenizer.from_file(packaged() / "tokenizer.json")
    told = byte_level()
    for text in TEXTS:
        found = made(told).encode(text).ids
        assert made(told).decode(found) == theirs.decode(theirs.encode(text).ids)
    for begins, ends in ((True, True), (True, False), (False, True), (False, False)):
        told |= {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.add_bos_token": begins}
        told |= {"tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.add_eos_token": ends}
        text, other = (
            [*[1] * begins, *theirs.encode(one, add_special_tokens=False).ids, *[0] * ends] for one in "ab"
        )
        found = made(told).encode("a", "b")
        assert (found.ids, made(told).encode("a").ids) == (text + other, text)
        assert found.type_ids == [0] * len(text) + [1] * len(other)
    word = theirs.encode("the", add_special_tokens=False).ids[0]
    for kind, text in ((USER, theirs.decode([word])), (CONTROL, "")):
        told["tokenizer.ggml.token_type"][word] = kind
        assert text == made(told).decode([word]), "a token of the user is text, a control token is none"


@pytest.mark.parametrize(
    "pre, begins, composed, joined, whole",
    [
        ("gpt-2", 0, False, True, False), ("qwen2", 0, True, False, False), ("llama-bpe", 1, False, True, True),
        ("tekken", 1, False, False, True), ("smollm", 0, False, False, False),
    ],
)  # fmt: skip
def test_names_of_cutting(pre: str, begins: int, composed: bool, joined: bool, whole: bool) -> None:
    told = byte_level() | {"tokenizer.ggml.pre": pre, "tokenizer.ggml.bos_token_id": 1}
    first = len(told["tokenizer.ggml.tokens"])
    added = {"tokens": ["12", "zq", "[PAD]"], "token_type": [NORMAL, NORMAL, UNUSED], "merges": ["1 2"]}
    found = made(told | {(name := f"tokenizer.ggml.{key}"): [*told[name], *more] for key, more in added.items()})
    accent, letter, number, word = (found.encode(text).ids[begins:] for text in ("e\u0301", "\xe9", "12", "zq"))
    assert found.encode("").ids == [1] * begins and (accent == letter) is composed
    assert (number == [first]) is joined and (word == [first + 1]) is whole
    assert found.decode([first + 2]) == ""


def test_template_and_named_tokens() -> None:
    ids = {"bos": 3, "eos": 0, "unknown": 5, "padding": 7}
    told = byte_level() | {f"tokenizer.ggml.{name}_token_id": token for name, token in ids.items()}
    config = json.loads(GgufTokenizer(told | {"tokenizer.chat_template": "x"}, Path("m.gguf")).config())
    named = {"bos_token": 3, "eos_token": 0, "unk_token": 5, "pad_token": 7}
    tokens = told["tokenizer.ggml.tokens"]
    assert config == {"chat_template": "x", **{name: tokens[token] for name, token in named.items()}}


def of_runs(letters: int, longest: int) -> dict[str, Any]:
    """Tokens of scores: ``letters`` letters, and of each all runs of up to ``longest``."""
    runs = [chr(0x4E00 + at) * length for at in range(letters) for length in range(1, longest + 1)]
    told = {"model": "llama", "tokens": runs, "scores": [-float(len(run)) for run in runs]}
    return {f"tokenizer.ggml.{key}": value for key, value in told.items()}


@pytest.mark.parametrize(
    "letters, longest, held", [(2, 256, True), (1, 257, True), (3, 256, False), (18_000, 16, False)]
)
def test_merges_are_counted_before_they_are_made(letters: int, longest: int, held: bool) -> None:
    """Up to four times the tokens and a million, and the same of their characters. A token of more than 256
    characters has none, so it is spelled by others."""
    tokenizer = GgufTokenizer(of_runs(letters, longest), Path("m.gguf"))
    if not held:
        with pytest.raises(ModelError, match=r"m.gguf: tokenizer.ggml.tokens makes more than [\d,]+ merges"):
            tokenizer.file()
        return
    merges = json.loads(tokenizer.file())["model"]["merges"]
    most = min(longest, 256)
    assert len(merges) == letters * most * (most - 1) // 2 and merges[0] == ["\u4e00"] * 2


def test_halves_of_a_token_are_ordered_by_score_and_length() -> None:
    """As llama.cpp merges: the better score first; of one score the longer left half, then the first token."""
    told = {"model": "llama", "tokens": ["a", "b", "ab", "ba", "aba", "bb", "bab"]}
    told |= {"scores": [0.0, 0.0, -2.0, -1.0, -1.0, -2.0, 0.0], "token_type": [1] * 6 + [CONTROL]}
    made = GgufTokenizer({f"tokenizer.ggml.{key}": value for key, value in told.items()}, Path("m.gguf")).file()
    merges = json.loads(made)["model"]["merges"]
    assert merges == [["ab", "a"], ["a", "ba"], ["b", "a"], ["a", "b"], ["b", "b"]]


@pytest.mark.parametrize("said, ids", [(None, [3]), (True, [3]), (False, [2])])
def test_a_space_is_put_before_a_text_unless_the_file_says_no(said: bool | None, ids: list[int]) -> None:
    """Characters that are no tokens are bytes, or unknown where a byte is none."""
    told = {"tokens": ["<unk>", "\u2581", "a", "\u2581a", "<0xC3>", "<0xA9>"], "model": "llama"}
    told |= {"token_type": [UNKNOWN, *[NORMAL] * 3, BYTE, BYTE], "scores": [0.0, -1.0, -1.0, -2.0, 0.0, 0.0]}
    found = made({f"tokenizer.ggml.{key}": value for key, value in (told | {"add_space_prefix": said}).items()})
    assert found.encode("a").ids == ids and found.decode([*ids, 0]) == "a"
    assert found.encode("a\xe8\xea").ids == [*ids, 0] and found.encode("a\xe9").ids == [*ids, 4, 5]
    assert found.decode([*ids, 4, 5, 1, 2]) == "a\xe9 a"
    named = made({f"tokenizer.ggml.{key}": value for key, value in (told | {"unknown_token_id": 1}).items()})
    assert named.encode("\xe8").ids[-1] == 1, "the file's own unknown token comes before the first of that kind"


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no tokens": ({"tokens": None}, "tokenizer.ggml.tokens is None"),
    "tokens of numbers": ({"tokens": [1, 2]}, "an array of str is needed"),
    "types of another length": ({"token_type": [1]}, "1 token types for"),
    "another model": ({"model": "rwkv"}, "tokenizer.ggml.model 'rwkv'"),
    "another way of cutting": ({"pre": "new-one"}, "tokenizer.ggml.pre 'new-one'; supported"),
    "another, of no text": ({"pre": ["gpt-2"]}, "tokenizer.ggml.pre ['gpt-2']; supported"),
    "a merge of three": ({"merges": ["a b c"]}, "merges has 'a b c'"),
    "a token that is not there": ({"bos_token_id": 1 << 30, "add_bos_token": True}, "bos_token_id is 1073741824"),
    "a token of no number": ({"bos_token_id": True, "add_bos_token": True}, "bos_token_id is True, there are"),
    "a switch of text": ({"add_bos_token": "yes"}, "add_bos_token is 'yes'"),
    "many control tokens": (
        {"tokens": [f"{at}" for at in range((1 << 16) + 1)], "token_type": [CONTROL] * ((1 << 16) + 1)},
        "65,537 added tokens, the limit is 65,536",
    ),
    "scores of another length": ({"model": "llama", "scores": [0.0]}, "1 scores for"),
}


def test_as_many_added_tokens_as_the_limit() -> None:
    told = byte_level() | {"tokenizer.ggml.tokens": [f"{at}" for at in range(1 << 16)], "tokenizer.ggml.merges": []}
    file = json.loads(GgufTokenizer(told | {"tokenizer.ggml.token_type": [CONTROL] * (1 << 16)}, Path("m")).file())
    assert [token["id"] for token in file["added_tokens"]] == list(range(1 << 16))


@pytest.mark.parametrize("name", sorted(WRONG))
def test_metadata_without_a_tokenizer_is_refused(name: str) -> None:
    changes, said = WRONG[name]
    told = byte_level() | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    with pytest.raises(ModelError) as caught:
        GgufTokenizer(told, Path("m.gguf")).file()
    assert said in str(caught.value) and str(caught.value).startswith("m.gguf")
    assert isinstance(caught.value, UnsupportedModel) is (name.startswith("another"))
