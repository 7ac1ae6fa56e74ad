"""How much longer a file's normalizers, pre-tokenizers and decoders may make a text: the bound, and its errors."""

from __future__ import annotations

import base64
import contextlib
import json
import math
import struct
import sys
import time
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from prelude.tokenizer import Tokenizer, TokenizerError, TokenizerFileError
from prelude.tokenizer.backends.bounds import LITTLE, Growth, checked

from tests.patience import shown
from tests.tokenizer.small_files import WORD, file, left_to_reference

tokenizers = pytest.importorskip("tokenizers")

DOUBLED = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
MARKED = [{**WORD, "content": "<x>", "id": 3, "normalized": False}]


@pytest.mark.fault(30)
def test_replacements_in_a_row_end_where_the_bound_is() -> None:
    """On the old code they wrote 32 MB for each call, and for each part between control tokens."""
    grown = Tokenizer.from_str(
        file(normalizer={"type": "Sequence", "normalizers": [DOUBLED] * 40}, added_tokens=MARKED)
    )
    assert grown.backend == "native" and grown.encode("b").ids == [1]
    decoded = Tokenizer.from_str(file(decoder={"type": "Sequence", "decoders": [DOUBLED] * 40}))
    assert decoded.decode([1]) == "b"
    for call in (
        lambda: grown.encode("a"),
        lambda: grown.encode_array("a"),
        lambda: grown.encode_with_offsets("a"),
        lambda: grown.normalizer.normalize_str("a"),
        lambda: decoded.decode([0]),
        lambda: decoded.token_bytes(0),
    ):

        def at_once(call: Callable[[], object] = call) -> bool:
            began = time.thread_time()
            with pytest.raises(TokenizerError, match="longer than is allowed: they add more than 655"):
                call()
            return time.thread_time() - began < 0.1

        assert shown(at_once)


@pytest.mark.fault(30)
def test_the_growth_by_replacements_is_counted_over_the_parts_of_a_text() -> None:
    prepended = {"type": "Prepend", "prepend": "b" * 60_000}
    ours = Tokenizer.from_str(file(normalizer=prepended, added_tokens=MARKED))
    assert len(ours.encode("a").ids) == 60_001

    def soon() -> bool:
        began = time.thread_time()
        for encode in (ours.encode, ours.encode_array):
            with pytest.raises(TokenizerError, match="they add more than 65888 bytes to 11"):
                encode("a<x>" * 2 + "a<x")
            with pytest.raises(TokenizerError, match="longer than is allowed"):
                encode("a<x>" * 100_000)
        return time.thread_time() - began < 2

    assert shown(soon, 5)


@pytest.mark.fault(30)
@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({"normalizer": {"type": "Prepend", "prepend": "b" * 70_000}}, "normalizer.prepend: 70000 bytes; at most"),
        ({"normalizer": {**DOUBLED, "content": "é" * 40_000}}, "normalizer.content: 80000 bytes; at most 65536"),
        ({"decoder": {**DOUBLED, "content": "b" * 70_000}}, "decoder.content: 70000 bytes; at most 65536"),
        ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 1025}}, "1025 steps|more than 1024"),
        (
            {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Whitespace"}] * 1025}},
            "1025 steps|more than 1024",
        ),
        ({"decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"}] * 1025}}, "1025 steps|more than 1024"),
    ],
)
@pytest.mark.parametrize(
    "make", [lambda **m: file(**m), lambda **m: left_to_reference(**m)], ids=["native", "reference"]
)
def test_a_step_inserts_a_bounded_text_and_steps_are_bounded(make: Any, members: dict[str, Any], says: str) -> None:
    with pytest.raises(TokenizerFileError, match=says):
        Tokenizer.from_str(make(**members))


SPACED = {"type": "Metaspace", "prepend_scheme": "always", "split": True}
HUGE = {"type": "Replace", "pattern": {"String": "a"}, "content": "b" * 60_000}
WIDE = {"type": "Sequence", "pretokenizers": [{**SPACED, "replacement": c} for c in "abcd"]}


@pytest.mark.fault(30)
@pytest.mark.parametrize(
    "call", ["encode", "encode of a pair", "encode_batch", "encode_array", "normalize_str", "decode"]
)
def test_the_reference_backend_is_not_given_a_text_that_it_would_make_too_long(call: str) -> None:
    """HF ends the process where memory ends: 20,000 bytes became 1.2 GB, and twenty times as many for offsets."""
    t = Tokenizer.from_str(
        left_to_reference(decoder=HUGE) if call == "decode" else left_to_reference(normalizer=HUGE)
    )
    assert t.backend == "reference"
    assert t.decode([1]) == "b" * 60_000 if call == "decode" else len(t.normalizer.normalize_str("ca")) == 60_001
    text = "a" * 20_000
    calls: dict[str, Any] = {
        "encode": lambda: t.encode(text), "encode of a pair": lambda: t.encode("b", text),
        "encode_batch": lambda: t.encode_batch(["b", text]), "encode_array": lambda: t.encode_array(text),
        "normalize_str": lambda: t.normalizer.normalize_str(text), "decode": lambda: t.decode([1] * 20_000),
    }  # fmt: skip
    t.encode("b")  # from now on the entry knows HF's encode()
    with pytest.raises(TokenizerError, match=r"longer than 67108864|may decode to too much"):
        calls[call]()
    if call != "decode":
        assert len(t.normalizer.normalize_str("c" * 20_000)) == 20_000


@pytest.mark.fault(30)
def test_a_replacement_counts_what_it_takes_away() -> None:
    longer = {"type": "Replace", "pattern": {"String": "a" * 600}, "content": "b" * 60_000}
    steps = {"type": "Sequence", "normalizers": [{"type": "NFC"}, longer]}
    t = Tokenizer.from_str(left_to_reference(normalizer=steps))
    assert len(t.normalizer.normalize_str("a" * 600 * 1118)) == 1118 * 60_000 < 1 << 26
    with pytest.raises(TokenizerError, match="longer than 67108864"):
        t.normalizer.normalize_str("a" * 600 * 1119)


@pytest.mark.fault(30)
@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({"pre_tokenizer": WIDE}, "more than 64 times"),
        ({"decoder": {"type": "Sequence", "decoders": [{"type": "BPEDecoder", "suffix": ""}] * 17}}, "65536 times"),
        (
            {"normalizer": HUGE, "added_tokens": [{**WORD, "id": 3, "normalized": True, "content": "a" * 2000}]},
            "2000 b",
        ),
    ],
)
def test_a_file_whose_steps_multiply_is_not_given_to_the_reference_backend(members: Any, says: str) -> None:
    with pytest.raises(TokenizerFileError, match=says):
        Tokenizer.from_str(left_to_reference(**members))


@pytest.mark.fault(30)
def test_a_stride_that_the_rest_of_a_text_cannot_have_is_a_typed_error() -> None:
    """Found by the fuzzer of files: it was a plain ValueError. HF panics there."""
    cut = {"direction": "Right", "max_length": 5, "strategy": "OnlyFirst", "stride": 4}
    t = Tokenizer.from_str(file(truncation=cut))
    with pytest.raises(TokenizerError, match="stride 4 must be below max_length 1"):
        t.encode("bbb", "aaaa")


@pytest.mark.fault(30)
def test_long_tokens_of_a_byte_level_file_decode() -> None:
    """On the old code all ids decoded to nothing where the tokens had more than 32 MB in all."""
    vocab = {"a": 0, "b": 1, **{chr(0x370 + i) * 700_000: i + 2 for i in range(26)}}
    ours = Tokenizer.from_str(
        file(
            model={"type": "BPE", "vocab": vocab, "merges": []},
            decoder={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        )
    )
    assert ours.decode([0, 1]) == "ab" and len(ours.decode([2])) == 700_000
    with pytest.raises(TokenizerError, match="decode fewer at a time"):
        ours.decode([2] * 1000)


def test_a_replacement_of_no_text_stands_between_all_characters() -> None:
    text = file(normalizer={"type": "Replace", "pattern": {"String": ""}, "content": "b"})
    ours, theirs = Tokenizer.from_str(text), tokenizers.Tokenizer.from_str(text)
    for word in ("", "a", "ab", "ba" * 40):
        assert ours.encode(word).ids == theirs.encode(word).ids


def sequence(*steps: str | dict[str, Any], of: str = "decoder") -> dict[str, Any]:
    return {of: {"type": "Sequence", f"{of}s": [{"type": one} if isinstance(one, str) else one for one in steps]}}


def replaced(content: str, **pattern: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def growth(**members: Any) -> Growth:
    return checked(json.dumps(members).encode())[1]


def charsmap(size: int, rest: bytes) -> dict[str, Any]:
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(struct.pack("<I", size) + rest).decode()}


P2 = {"continuing_subword_prefix": "##"}  # two bytes
LONGER = replaced("b" * 60_000, String="a")


@pytest.mark.fault(30)
@pytest.mark.parametrize(
    ("good", "wrong", "field"),
    [
        ({"model": {"vocab": {"a": (1 << 24) + 3}}}, {"model": {"vocab": {"a": (1 << 24) + 4}}}, "model.vocab['a']"),
        (
            {"added_tokens": [{"content": "é" * (1 << 21)}]},
            {"added_tokens": [{"content": "é" * (1 << 21)}, {"content": "a"}]},
            "added_tokens",
        ),
        (
            {"added_tokens": [{"content": "a" * 1118}], "normalizer": LONGER},
            {"added_tokens": [{"content": "a" * 1119}], "normalizer": LONGER},
            "added_tokens",
        ),
        (sequence(*["Fuse"] * 1024), sequence(*["Fuse"] * 1000, sequence(*["Fuse"] * 25)["decoder"]), "decoder"),
        (
            {"decoder": replaced("b" * 65_536, String="a")},
            {"decoder": replaced("b" * 65_537, String="a")},
            "decoder.content",
        ),
        (
            sequence(replaced("b" * 65_536, String="é"), "WordPiece"),
            sequence(replaced("b" * 65_536, String="é"), "WordPiece", "CTC"),
            "decoder",
        ),
        (
            {"normalizer": {"type": "Prepend", "prepend": "b" * 65_535}},
            {"normalizer": {"type": "Prepend", "prepend": "b" * 65_536}},
            "normalizer",
        ),
        (
            {"normalizer": replaced("b" * 32_767, Regex="a")},
            {"normalizer": replaced("b" * 32_768, Regex="a")},
            "normalizer",
        ),
        (
            {"normalizer": replaced("b" * 32_767, String="")},
            {"normalizer": replaced("b" * 32_768, String="")},
            "normalizer",
        ),
        *(
            ({"normalizer": charsmap(*map_)}, {"normalizer": charsmap(*wrong)}, "normalizer.precompiled_charsmap")
            for map_, wrong in (((4, bytes(4)), (8, bytes(4))), ((4, bytes(8)), (6, bytes(8))), ((0, b""), (1, b"")))
        ),
        (
            *({"normalizer": {"type": "Precompiled", "precompiled_charsmap": one}} for one in (5, "AAAA AAA")),
            "normalizer.precompiled_charsmap",
        ),
        *(
            ({"model": {"merges": merges, **P2}}, {"model": {"merges": [*merges, merge], **P2}}, "model.merges[3]")
            for merges in (["a ab▁", "a x", ["a", "###"]], [["a", 5], [], 7])
            for merge in ("a x▁", ["a", "x▁"], ["x▁"], ["a", "b", "▁"])
        ),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_both_sides_of_what_a_file_may_make_of_a_text(good: Any, wrong: Any, field: str) -> None:
    growth(**good)
    with pytest.raises(TokenizerFileError) as caught:
        growth(**wrong)
    assert caught.value.path == field


def test_what_is_no_object_of_json_is_refused() -> None:
    assert checked(b'{"model": 5, "added_tokens": [5, {"content": 7}], "normalizer": [], "a": "\xc3\xa9"}')[1].free
    assert checked(b'{"model": {"vocab": [5, [], ["a", 0]]}}')[1].free
    for data, field in ((b"[]", "$"), (b"{", "the file"), (b"\xff", "the file"), (b"[" * 100_000, "the file")):
        with pytest.raises(TokenizerFileError) as caught:
            checked(data)
        assert caught.value.path == field
    for prefix in ("", None, 5, "x", "####"):
        growth(model={"continuing_subword_prefix": prefix, "merges": ["a x▁"]})
    growth(model={**P2, "merges": {"a": "x▁"}})


STEPS: list[tuple[dict[str, Any], int]] = [
    ({"type": "Prepend", "prepend": "éb"}, 4), ({"type": "Prepend"}, 1), ({"type": "Replace"}, 1), ({}, 1),
    *((replaced("b" * size, String=of), times) for size, of, times in (
        (6, "a", 6), (7, "é", 4), (6, "é", 3), (1, "ab", 1), (0, "a", 1), (5, "", 11)
    )),
    (replaced("éb", Regex="x"), 7), (charsmap(4, b"abcdefgh\0abc\0de"), 4), (charsmap(0, b""), 1),
]  # fmt: skip


def test_how_many_times_as_long_a_step_makes_a_text() -> None:
    for step, times in STEPS:
        assert growth(normalizer=step).free == LITTLE // (4 * times), step
        assert growth(**sequence(step, {"type": "NFD"}, of="normalizer")).free == LITTLE // (12 * times), step


LONGEST = {"NFC": 3, "NFD": 3, "NFKC": 11, "NFKD": 11, "Lowercase": 2, "ByteLevel": 2}


@pytest.mark.fault(30)
@pytest.mark.parametrize("kind", LONGEST)
def test_no_character_becomes_longer_than_a_normalizer_is_said_to_make_it(kind: str) -> None:
    normalize = getattr(tokenizers.normalizers, kind)().normalize_str
    every = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    some = [one for one in every if one < "\u0100" or one.lower() != one or unicodedata.decomposition(one)]
    most = max(len(normalize(one).encode()) / len(one.encode()) for one in some)
    assert math.ceil(most) == LONGEST[kind]
    assert growth(normalizer={"type": kind}).free == LITTLE // (4 * LONGEST[kind])


class Same:
    """HF's normalizer, of which the time and the memory are not wanted here."""

    @staticmethod
    def normalize_str(text: str) -> str:
        return text


@pytest.mark.fault(30)
@pytest.mark.parametrize("as_decoder", [False, True])
def test_a_long_text_may_become_32_times_as_long(as_decoder: bool) -> None:
    text = "a" * (LITTLE // 32 + 1)
    for times in (32, 33):
        step = replaced("b" * times, String="a")
        bound = growth(decoder=step, model={"vocab": {text: 0}}) if as_decoder else growth(normalizer=step)
        with contextlib.nullcontext() if times == 32 else pytest.raises(TokenizerError, match=f" {len(text)} bytes "):
            bound.require_decoded([0], lambda: [text, None]) if as_decoder else bound.require(text, Same())
    two = growth(**sequence(step, step, of="normalizer"))
    with pytest.raises(TokenizerError, match="longer than"):
        two.require("c" * len(text), Same())  # HF's has other steps than the file
    two.require("c" * len(text), [Same(), Same()])


@pytest.mark.fault(30)
def test_tokens_decode_to_half_a_gigabyte_and_no_more() -> None:
    mebibyte = "a" * (1 << 20)
    bound = growth(model={"vocab": {mebibyte: 0}})
    bound.require_decoded(range(512), lambda: [mebibyte] * 512)
    with pytest.raises(TokenizerError, match="536870913 bytes in all"):
        bound.require_decoded(range(513), lambda: [*[mebibyte] * 512, "b"])
