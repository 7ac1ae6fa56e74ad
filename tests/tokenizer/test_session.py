"""Texts that grow at their end, counting and truncating: always as ``encode_array`` of the whole text has it."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

tokenizers = pytest.importorskip("tokenizers", minversion="0.23.3")

from prelude.tokenizer import Tokenizer, TokenizerError  # noqa: E402
from prelude.tokenizer.encode.arrays import truncated  # noqa: E402

from tests.fuzz_tokenizer import Strings  # noqa: E402
from tests.tokenizer import random_files  # noqa: E402
from tests.tokenizer.conftest import MAKERS, file_text, reference  # noqa: E402

LONGER = 64  # characters
WITHOUT_CUTS = {"clip", "command-r", "gpt-neox"}  # encoded anew at each append
PIECES = [
    " ", "  ", "\n", "\r\n", "\t", " \n ", "a", "the", " quick", "Brown", "fox.", "it's", "'s", "12", "3456", "x y",
    "你好", "世界。", "、", "，", "です。", "ガ", "か\u3099", "e\u0301", "\u0301", "Ünï", "cödé ", "🙂", "👍🏽",
    "\u200d", "▁", "\u00a0", "\u3000", "ﬁ", "<s>", "<mask>", " <mask> ", "<r>", "<r> ", "<tool>", "[SEP]", "Ünïcödé",
    "<|im", "_end|>", "…", "!?", "/", " /\n", "İ", "ſ", "한국", "어", "\u1100", "\u1161", "สวัสดี", "\u0600", "\x00",
    "ab cd ef gh",
]  # fmt: skip
TEXTS = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=4)), max_size=25)


def appended(tokenizer: Tokenizer, pieces: list[str], special: bool) -> None:
    """A session over ``pieces`` has the ids of their text after each, and says which it kept."""
    session, text, known = tokenizer.session(special), "", tokenizer.encode_array("", special)
    assert session.ids.tolist() == known.tolist()
    for piece in pieces:
        kept, ids = session.append(piece)
        text += piece
        whole = tokenizer.encode_array(text, special)
        assert ids.dtype == session.ids.dtype == np.int32
        assert session.ids.tolist() == whole.tolist(), (text, piece)
        assert [*known[:kept], *ids] == whole.tolist() and len(session) == len(whole), (text, piece)
        known = whole


def counted(tokenizer: Tokenizer, text: str, n: int, special: bool) -> None:
    def count(end: int) -> int:
        return len(tokenizer.encode_array(text[:end], special))

    assert tokenizer.count(text, special) == count(len(text))
    assert tokenizer.fits(text, n, special) == (count(len(text)) <= n)
    if n < len(tokenizer.encode_array("", special)):
        with pytest.raises(TokenizerError, match=f"n is {n}, fewer than the"):
            tokenizer.truncate(text, n, special)
        return
    prefix = tokenizer.truncate(text, n, special)
    assert text.startswith(prefix) and count(len(prefix)) <= n
    assert prefix == text or count(len(text)) > n
    longer = range(len(prefix) + 1, min(len(prefix) + LONGER, len(text)) + 1)
    assert prefix == text or all(count(end) > n for end in longer), (text, prefix, n)


def _of_kind(name: str, **members: Any) -> str:
    """The small file ``name`` without added tokens that are looked for in normalized text, and without tokens that
    have a mark behind something else, as real files; and with ``members``."""
    whole = json.loads(file_text(name))
    if merges := whole["model"].get("merges"):
        whole["model"]["merges"] = [pair for pair in merges if "▁" not in "".join(pair)[1:]]
    added = [token for token in whole["added_tokens"] if not token["normalized"]]
    return json.dumps({**whole, "added_tokens": added, **members})


def _unigram() -> dict[str, Any]:
    vocab = json.loads(file_text("sentence pieces"))["model"]["vocab"]
    return {"type": "Unigram", "unk_id": 0, "vocab": [[t, -len(vocab) / (len(t) + i)] for i, t in enumerate(vocab)]}


def _metaspace(scheme: str, split: bool) -> dict[str, Any]:
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}
    return {"normalizer": None, "pre_tokenizer": metaspace}


SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
LLAMA = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLIT = {"type": "Split", "pattern": {"Regex": LLAMA}, "behavior": "Isolated", "invert": False}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
SPLIT_ALONE = {"type": "Sequence", "pretokenizers": [SPLIT, BYTES]}
OF_KIND: dict[str, Callable[[], str]] = {
    "Qwen": lambda: _of_kind("byte-level", normalizer={"type": "NFC"}, pre_tokenizer=SPLIT_ALONE),
    "decomposed": lambda: _of_kind("byte-level", normalizer={"type": "NFKD"}, pre_tokenizer=SPLIT_ALONE),
    "Llama 2": lambda: _of_kind("sentence pieces"),
    "Gemma": lambda: _of_kind("sentence pieces", normalizer=SPACES),
    "mark at the start": lambda: _of_kind("sentence pieces", **_metaspace("first", False)),
    "mark at each word": lambda: _of_kind("sentence pieces", **_metaspace("always", True)),
    "BERT": lambda: _of_kind("bert"),
    "T5": lambda: _of_kind("sentence pieces", model=_unigram(), **_metaspace("always", True)),
}


@pytest.mark.parametrize("name", OF_KIND)
def test_the_common_kinds_have_cuts(name: str) -> None:
    """An append leaves all but the last words as they are."""
    session = _both(name)[0].session()
    for _ in range(50):
        kept, _ids = session.append("some words here, ")
    assert kept > len(session) * 0.9


@settings(max_examples=150)
@given(pieces=TEXTS, n=st.integers(0, 40), special=st.booleans(), name=st.sampled_from([*MAKERS, *OF_KIND]))
def test_small_files(pieces: list[str], n: int, special: bool, name: str) -> None:
    for tokenizer in _both(name):
        appended(tokenizer, pieces, special)
        counted(tokenizer, "".join(pieces), n, special)


@functools.cache
def _both(name: str) -> tuple[Tokenizer, Tokenizer]:
    """A small file's tokenizer on its own backend, and on the last."""
    text = OF_KIND[name]() if name in OF_KIND else file_text(name)
    return Tokenizer.from_str(text), reference(text)


@pytest.mark.parametrize("first", range(0, 200, 25))
def test_random_files(first: int) -> None:
    for seed in range(first, first + 25):
        made = random_files.pair_of(seed)
        if made is None:
            continue
        rng = random.Random(seed)
        tokenizer = Tokenizer.from_buffer(made[0], cache=False)
        drawn = iter(Strings(rng, made[1].tokens, made[1].added, []))
        for _ in range(4):
            pieces = [rng.choice((next(drawn)[:60], rng.choice(PIECES))) for _ in range(rng.randrange(12))]
            try:
                tokenizer.encode_array("".join(pieces), False)
            except TokenizerError:  # HF takes no such text either
                continue
            appended(tokenizer, pieces, False)
            counted(tokenizer, "".join(pieces), rng.randrange(20), False)


def test_real_files(family: Any, golden_lines: list[str]) -> None:
    """Also beside HF, and that long texts are cut where the file's kind allows it."""
    name, tokenizer, theirs = family
    rng = random.Random(name)
    added = [token.content for token in theirs.get_added_tokens_decoder().values()]
    drawn = iter(Strings(rng, [*tokenizer.get_vocab()][:20000], added, golden_lines))
    for _ in range(15):
        pieces = [rng.choice((next(drawn)[:200], rng.choice(PIECES))) for _ in range(rng.randrange(16))]
        text = "".join(pieces)
        appended(tokenizer, pieces, True)
        counted(tokenizer, text, rng.randrange(40), True)
        assert tokenizer.count(text) == len(theirs.encode(text).ids)
    long = " ".join(golden_lines)[:60_000]
    session = tokenizer.session()
    kept = [session.append(long[at : at + 999])[0] for at in range(0, len(long), 999)]
    assert session.ids.tolist() == theirs.encode(long).ids
    assert tokenizer.count(long) == len(session)
    n = len(session) // 2
    prefix = tokenizer.truncate(long, n)
    assert len(theirs.encode(prefix).ids) <= n < len(theirs.encode(long[: len(prefix) + 1]).ids)
    assert (kept[-1] > len(session) * 0.9) == (name not in WITHOUT_CUTS)


def test_a_long_text_without_cuts_is_encoded_a_few_times() -> None:
    tokenizer, seen = Tokenizer.from_str(file_text("byte-level")), list[int]()

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return lambda text, *rest: seen.append(len(text)) or getattr(tokenizer._core, name)(text, *rest)

    text = " " * 100_000
    assert truncated(Counting(), text, 20_000) == tokenizer.truncate(text, 20_000, False) != text
    assert sum(seen) < 4 * len(text) + (1 << 20)


def test_a_session_stays_as_it_was_if_a_text_is_refused() -> None:
    tokenizer = Tokenizer.from_str(file_text("byte-level"))
    session = tokenizer.session()
    session.append("the quick")
    before = session.ids
    with pytest.raises(UnicodeEncodeError):
        session.append(" brown\ud800")
    assert session.ids.tolist() == before.tolist()
    session.append(" fox")
    assert session.ids.tolist() == tokenizer.encode_array("the quick fox").tolist()
