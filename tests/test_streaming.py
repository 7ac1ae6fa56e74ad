"""Text as tokens arrive, against decoding it whole: characters, invalid bytes, stop strings, words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prelude.tokenizer import Tokenizer

from prelude import default_model
from prelude.streaming.detokenize import BROKEN, Texts, WindowDecoder
from prelude.streaming.text import Stops, TextState
from tests import fuzz_streaming
from tests.fuzz_streaming import SAMPLES, check, chunks, naive_cut


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(default_model.path() / "tokenizer.json")


@pytest.fixture(scope="module")
def texts(tokenizer: Tokenizer) -> Texts:
    return Texts(tokenizer)


@pytest.fixture(scope="module")
def byte_id(tokenizer: Tokenizer) -> dict[int, int]:
    """The token of each single byte."""
    found = {}
    for i in range(tokenizer.get_vocab_size()):
        data = tokenizer.token_bytes(i)
        if len(data) == 1:
            found[data[0]] = i
    assert len(found) == 256
    return found


@pytest.fixture(scope="module")
def llama2(shared: Path) -> Tokenizer:
    return Tokenizer.from_file(shared / "tokenizers" / "llama2" / "tokenizer.json")


def spelled(byte_id: dict[int, int], data: bytes) -> list[int]:
    return [byte_id[b] for b in data]


def stream(texts: Texts, ids: list[int], *words: str, **options: Any) -> list[str]:
    return list(chunks(TextState(texts, Stops(words) if words else None, **options), ids))


# ------------------------------------------------------------------ characters
@pytest.mark.feature("I2")
@pytest.mark.feature("I3")
@pytest.mark.feature("I5")
@pytest.mark.feature("I6")
@pytest.mark.fault(32)
def test_random_ids_of_the_packaged_tokenizer() -> None:
    """Every piece, whole, held by words and cut at random stops; the command beside this test goes on for longer."""
    fuzz_streaming.run(default_model.path() / "tokenizer.json", 600, seed=11)


@pytest.mark.feature("I2")
@pytest.mark.feature("I3")
@pytest.mark.parametrize("name", fuzz_streaming.SHARED)
def test_random_ids_of_real_tokenizers(shared: Path, name: str) -> None:
    fuzz_streaming.run(shared / "tokenizers" / name / "tokenizer.json", 150, seed=5)


@pytest.mark.feature("I2")
@pytest.mark.feature("I6")
def test_a_character_is_given_when_it_is_whole(texts: Texts, byte_id: dict[int, int]) -> None:
    parts = stream(texts, spelled(byte_id, "a你🦀👨‍👩é".encode()))
    given = [(i, part) for i, part in enumerate(parts) if part]
    assert given == [(0, "a"), (3, "你"), (7, "🦀"), (11, "👨"), (14, "\u200d"), (18, "👩"), (20, "é")]


@pytest.mark.feature("I2")
def test_every_split_of_a_text_into_byte_tokens(texts: Texts, tokenizer: Tokenizer, byte_id: dict[int, int]) -> None:
    rng = np.random.default_rng(0)
    for _ in range(25):
        ids: list[int] = []
        for piece in tokenizer.encode(SAMPLES, add_special_tokens=False).ids:
            ids += spelled(byte_id, tokenizer.token_bytes(piece)) if rng.integers(0, 2) else [piece]
        parts = stream(texts, ids)
        assert "".join(parts) == tokenizer.decode(ids) and not any(BROKEN in part for part in parts)


@pytest.mark.feature("I3")
@pytest.mark.fault(32)
def test_bytes_that_cannot_become_a_character_are_given_at_once(texts: Texts, byte_id: dict[int, int]) -> None:
    def parts(data: bytes) -> list[str]:
        return stream(texts, spelled(byte_id, data))

    assert parts(b"\xffa") == [BROKEN, "a", ""]
    assert parts(b"\x80\x80") == [BROKEN, BROKEN, ""]
    assert parts(b"\xf0\x9fa") == ["", "", BROKEN + "a", ""]
    assert parts(b"\xe0\x80x") == ["", BROKEN * 2, "x", ""], "not even the beginning of a character"
    assert parts(b"\xc3\xc3\xa9") == ["", BROKEN, "é", ""]
    for data in (b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\xaf", b"\xff\xfe" * 20, b"\xe4\xff" * 20):
        assert "".join(parts(data)) == data.decode(errors="replace")


@pytest.mark.fault(33)
def test_an_unfinished_character_ends_as_one_replacement(texts: Texts, byte_id: dict[int, int]) -> None:
    whole = "é🙂".encode()
    for cut in range(1, 4):
        parts = stream(texts, spelled(byte_id, whole[: len(whole) - cut]))
        assert parts[-1] == BROKEN and "".join(parts) == "é" + BROKEN


def test_control_tokens_and_holes_are_no_text(texts: Texts, tokenizer: Tokenizer) -> None:
    special = [i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special]
    ids = tokenizer.encode("one two", add_special_tokens=False).ids
    assert special and "".join(stream(texts, [special[0], ids[0], 10**6, *ids[1:], special[-1]])) == "one two"


@pytest.mark.feature("I1")
def test_a_state_belongs_to_one_text(tokenizer: Tokenizer) -> None:
    texts = Texts(tokenizer)
    ids = tokenizer.encode(SAMPLES, add_special_tokens=False).ids
    states = [TextState(texts) for _ in range(5)]
    assert (texts.live, texts.created) == (5, 5)
    out = [""] * 5
    for step, token in enumerate(ids):  # side by side, each at its own place
        for i, state in enumerate(states):
            if step >= i:
                out[i] += state.feed(token)
    for i, state in enumerate(states):
        out[i] += state.finish()
        state.close()
        assert out[i] == tokenizer.decode(ids[i:])
    assert (texts.live, texts.created) == (0, 5)


# ------------------------------------------------------------------ byte fallback, and anything else
@pytest.mark.feature("I3")
@pytest.mark.fault(32)
def test_runs_of_byte_tokens(llama2: Tokenizer) -> None:
    """They are decoded as a whole: one bad byte breaks its run, so a run is given when it ends or has broken."""
    texts = Texts(llama2)
    byte = {b: llama2.token_to_id(f"<0x{b:02X}>") or 0 for b in range(256)}
    word = llama2.encode("word", add_special_tokens=False).ids
    crabs = spelled(byte, "🦀🦀".encode())
    assert stream(texts, [*crabs, *word]) == [""] * 8 + ["🦀🦀 word", ""]
    assert stream(texts, [*crabs[:5], byte[0xFF], *word])[4:6] == ["", BROKEN * 6]
    assert "".join(stream(texts, crabs[:-1])) == llama2.decode(crabs[:-1]) == BROKEN * 7
    assert "".join(stream(texts, [byte[0x20], byte[0x41]])) == llama2.decode([byte[0x20], byte[0x41]]) == "A"
    long = spelled(byte, "ภาษาไทย".encode() * 6)
    parts = stream(texts, long)
    assert "".join(parts) == llama2.decode(long)
    for behind, text in ((crabs[:3], BROKEN), ([*crabs[:3], *word], f"{BROKEN} word")):
        assert "".join(stream(texts, [*long, *behind])) == llama2.decode(long) + text
    first = next(i for i, part in enumerate(parts) if part)
    assert first == 63 and all("".join(parts[i : i + 3]) for i in range(first, len(long), 3))


class OnlyDecode:
    """A tokenizer of which only ``decode`` is known."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def decode(self, ids: Any, skip_special_tokens: bool = True) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens)

    def id_to_token(self, token_id: int) -> str | None:
        return self._tokenizer.id_to_token(token_id)

    def get_vocab_size(self) -> int:
        return self._tokenizer.get_vocab_size()


def check_blank(texts: Texts, tokenizer: Tokenizer, sequences: int) -> None:
    """Random ids, and every second time with many that show nothing alone: white space, control tokens, bytes."""
    assert isinstance(texts.decoder(), WindowDecoder)
    source = fuzz_streaming.Source(tokenizer, 3)
    special = list(tokenizer.get_added_tokens_decoder())[:3]
    blank = [i for i in map(tokenizer.token_to_id, ["\u2581", "\u2581\u2581", "<0x20>", "<0xC3>"]) if i is not None]
    for number in range(sequences):
        ids = source.draw()
        if number % 2:
            ids = [int(i) for i in source.rng.choice([*blank, *special, *ids[:5], ord("a")], 14)]
        check(texts, tokenizer, ids, source.rng)


@pytest.mark.feature("I3")
def test_a_tokenizer_that_can_only_decode(tokenizer: Tokenizer) -> None:
    check_blank(Texts(OnlyDecode(tokenizer)), tokenizer, 300)


@pytest.mark.feature("I3")
@pytest.mark.parametrize("name", ["llama2", "t5", "bert-base-uncased"])
def test_another_tokenizer_can_only_decode(shared: Path, name: str) -> None:
    found = Tokenizer.from_file(shared / "tokenizers" / name / "tokenizer.json")
    check_blank(Texts(OnlyDecode(found)), found, 200)


MARK = "\u2581"
REPLACE = {"type": "Replace", "pattern": {"String": MARK}, "content": " "}
METASPACE = {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "always"}
BYTES = {"type": "ByteFallback"}


@pytest.mark.feature("I3")
@pytest.mark.parametrize(
    "members",
    [
        [REPLACE, BYTES, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 1}],
        [REPLACE, BYTES, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 0, "stop": 3}],
        [BYTES, METASPACE],
        [METASPACE, BYTES, {"type": "Fuse"}],
    ],
    ids=["strip both ends", "strip the end", "bytes first", "bytes second"],
)
def test_a_decoder_that_is_not_followed_token_by_token(members: list[dict[str, Any]]) -> None:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += [MARK, 2 * MARK, f"{MARK}a", "a", f"{MARK}the", "\u9053", "\u00e9"]
    vocab = {token: at for at, token in enumerate(tokens)}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    file = {
        "version": "1.0",
        "added_tokens": [{"id": at, "content": tokens[at], "special": True, **flags} for at in range(3)],
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "unk_token": "<unk>", "byte_fallback": True},
        "decoder": {"type": "Sequence", "decoders": members},
    }
    found = Tokenizer.from_str(json.dumps(file))
    check_blank(Texts(found), found, 300)
    check_blank(Texts(OnlyDecode(found)), found, 300)


# ------------------------------------------------------------------ stop strings
def fed(texts: Texts, tokenizer: Tokenizer, text: str, *words: str, **options: Any) -> tuple[list[str], bool]:
    state = TextState(texts, Stops(words), **options)
    ids = [tokenizer.encode(char, add_special_tokens=False).ids for char in text]
    parts = list(chunks(state, [i for char in ids for i in char]))
    return parts, state.stopped


@pytest.mark.feature("H4")
@pytest.mark.fault(12)
def test_a_stop_string_across_tokens(texts: Texts, tokenizer: Tokenizer) -> None:
    assert fed(texts, tokenizer, "one STOP two", "STOP") == (["o", "n", "e", " ", "", "", "", "", ""], True)
    assert fed(texts, tokenizer, "one STOP two", "STOP", include_stop=True)[0][-2:] == ["STOP", ""]


@pytest.mark.feature("H4")
@pytest.mark.fault(12)
def test_a_text_held_for_a_stop_is_given_when_the_stop_does_not_complete(texts: Texts, tokenizer: Tokenizer) -> None:
    assert fed(texts, tokenizer, "STOx", "STOP") == (["", "", "", "STOx", ""], False)
    assert fed(texts, tokenizer, "SSTOP", "STOP") == (["", "S", "", "", "", ""], True)
    assert fed(texts, tokenizer, "aSTO", "STOP") == (["a", "", "", "", "STO"], False)
    assert fed(texts, tokenizer, "short", "a stop that is longer than the text") == ([*"short", ""], False)


@pytest.mark.feature("H4")
@pytest.mark.fault(12)
def test_overlapping_stops(texts: Texts, tokenizer: Tokenizer) -> None:
    """The first place where one is complete, and the longest that ends there."""

    def cut(text: str, *words: str) -> str:
        whole = "".join(fed(texts, tokenizer, text, *words)[0])
        assert whole == naive_cut(text, words, False) == Stops(words).cut(text, False)[0]
        return whole

    assert cut("xabcd", "abc", "ab") == "x"
    assert cut("xabcd", "bc", "abc") == "x"
    assert cut("xabcd", "xabcde", "bc") == "xa"
    assert cut("aaab", "aab", "ab") == "a"
    assert cut("ababab", "abac", "babb") == "ababab"
    assert cut("x你好", "好") == "x你"


@pytest.mark.feature("H4")
def test_a_stop_in_the_middle_of_a_token_and_of_a_held_piece(texts: Texts, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("the harbour was quiet", add_special_tokens=False).ids
    assert len(ids) < 12
    text = tokenizer.decode(ids)
    for start in range(len(text)):
        for stop in range(start + 1, min(len(text), start + 6)):
            for include in (False, True):
                parts = stream(texts, ids, text[start:stop], include_stop=include)
                assert "".join(parts) == naive_cut(text, (text[start:stop],), include)
    state = TextState(texts, Stops(("bour was!", "rbou")))
    assert "".join(chunks(state, ids)) == "the ha" and state.stopped


def test_stops_are_not_looked_for_before_min_tokens(texts: Texts, byte_id: dict[int, int]) -> None:
    assert "".join(stream(texts, spelled(byte_id, b"xxxxx"), "x", min_tokens=3)) == "xxx"
    assert "".join(stream(texts, spelled(byte_id, b"abab!"), "ab", min_tokens=1)) == "ab"


def test_many_stops_cost_no_more_than_one() -> None:
    many = Stops(tuple(f"{'a' * i}b" for i in range(60)))
    assert many.feed(0, "zzzz") == (0, -1, 0)
    node, end, hold = many.feed(0, "a" * 100)
    assert (end, hold) == (-1, 59)
    assert many.feed(node, "b") == (many.feed(node, "b")[0], 1, 60)


# ------------------------------------------------------------------ words
@pytest.mark.feature("I4")
def test_chunks_end_between_words(texts: Texts, byte_id: dict[int, int]) -> None:
    text = "two words\nand 你好 more"
    parts = [part for part in stream(texts, spelled(byte_id, text.encode()), hold_words=True) if part]
    assert parts == ["two ", "words\n", "and ", "你", "好", " ", "more"]
    words = "\u2e7f\ua000\uf8ff\ufb00\ufefe\ufff0\U0001ffff\U00040000"  # just outside of what is a word by itself
    for char in f"\u2e80\u9fff\uf900\ufaff\uff00\uffef\U00020000\U0003ffff{words}":
        parts = [part for part in stream(texts, spelled(byte_id, f"{char}b".encode()), hold_words=True) if part]
        assert parts == ([f"{char}b"] if char in words else [char, "b"])
    assert [p for p in stream(texts, spelled(byte_id, text.encode())) if p] == list(text), "off: at once"


@pytest.mark.feature("I4")
def test_a_very_long_word_is_not_waited_for(texts: Texts, byte_id: dict[int, int]) -> None:
    parts = [part for part in stream(texts, spelled(byte_id, b"x" * 600), hold_words=True) if part]
    assert "".join(parts) == "x" * 600 and max(map(len, parts)) == 257
    assert stream(texts, spelled(byte_id, b"half wo"), hold_words=True)[-1] == "wo"
    stopped = [p for p in stream(texts, spelled(byte_id, b"half woSTOP"), "STOP", hold_words=True) if p]
    assert stopped == ["half ", "wo"]
