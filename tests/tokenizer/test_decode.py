"""decode, decode_batch and DecodeStream against HF's; laws of round trips and streams by hypothesis."""

from __future__ import annotations

import copy
import functools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prelude.tokenizer import DecodeStream, Tokenizer, TokenizerError, decoders

from tests.tokenizer.small_files import file

Pair = Callable[[str], tuple[Tokenizer, Any]]

laws = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
FLAVOURS = ["byte-level", "template", "sentence pieces"]
id_lists = st.lists(st.integers(0, 520), max_size=40)


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("flavour", FLAVOURS)
@laws
@given(ids=id_lists)
@pytest.mark.fault(32)
def test_decode_of_any_ids(pair_of: Pair, flavour: str, skip: bool, ids: list[int]) -> None:
    ours, theirs = pair_of(flavour)
    expected = theirs.decode(ids, skip_special_tokens=skip)
    assert ours.decode(ids, skip_special_tokens=skip) == expected
    assert ours.decode(tuple(ids), skip) == expected
    assert ours.decode(np.array(ids, np.int32), skip) == expected


@pytest.mark.feature("J10")
@pytest.mark.fault(32)
def test_decode_of_odd_lists(pair_of: Pair) -> None:
    ours, theirs = pair_of("byte-level")
    for ids in ([], [10**6], [5, 10**6, 6], [2**31 - 1], list(range(400)) * 250):
        assert ours.decode(ids) == theirs.decode(ids)
    assert ours.decode_batch([]) == []
    assert ours.decode_batch([[], [5, 6], [7]]) == theirs.decode_batch([[], [5, 6], [7]])
    for call in (lambda t: t.decode([-1]), lambda t: t.id_to_token(-1)):
        for tokenizer in (ours, theirs):
            with pytest.raises(OverflowError):
                call(tokenizer)
    for bad in (["a"], 5):
        for tokenizer in (ours, theirs):
            with pytest.raises(TypeError):
                tokenizer.decode(bad)


@pytest.mark.parametrize("flavour", ["byte-level", "sentence pieces"])
@laws
@given(text=st.text(max_size=60))
def test_decode_of_encode_is_the_text(pair_of: Pair, flavour: str, text: str) -> None:
    ours, theirs = pair_of(flavour)
    ids = ours.encode(text, add_special_tokens=False).ids
    decoded = ours.decode(ids, skip_special_tokens=False)
    assert decoded == theirs.decode(ids, skip_special_tokens=False)
    if flavour == "byte-level":
        assert decoded == text


@pytest.mark.feature("J1")
@pytest.mark.parametrize("flavour", ["byte-level", "template", "sentence pieces"])
@laws
@given(text=st.text(max_size=60))
def test_offsets_are_monotone_and_in_bounds(pair_of: Pair, flavour: str, text: str) -> None:
    ours, theirs = pair_of(flavour)
    ids, offsets = ours.encode_with_offsets(text, add_special_tokens=False)
    assert list(map(tuple, offsets.tolist())) == theirs.encode(text, add_special_tokens=False).offsets
    starts, stops = offsets[:, 0], offsets[:, 1]
    assert (starts <= stops).all() and (stops <= len(text)).all()
    assert (np.diff(starts) >= 0).all()
    assert len(ids) == len(offsets)


def streamed_as_hf(ours: Tokenizer, theirs: Any, skip: bool, ids: list[int]) -> DecodeStream | None:
    """Ours behind all of ``ids``, each step as HF's; ``None`` where both ended in an error."""
    mine, other = DecodeStream(skip_special_tokens=skip), tokenizers.decoders.DecodeStream(skip_special_tokens=skip)
    for id in ids:
        try:
            expected = other.step(theirs, id)
        except Exception:  # HF's invalid prefix
            with pytest.raises(ValueError):
                mine.step(ours, id)
            return None
        assert mine.step(ours, id) == expected
    return mine


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("flavour", FLAVOURS)
@laws
@given(ids=id_lists)
def test_a_stream_equals_hfs(pair_of: Pair, flavour: str, skip: bool, ids: list[int]) -> None:
    ours, theirs = pair_of(flavour)
    streamed_as_hf(ours, theirs, skip, ids)


REPLACE = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
FALLBACK, FUSE = {"type": "ByteFallback"}, {"type": "Fuse"}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
SHAPES = {
    "as Llama 2": [REPLACE, FALLBACK, FUSE, STRIP],
    "nothing taken": [REPLACE, FALLBACK, FUSE],
    "not fused": [REPLACE, FALLBACK],
    "each token stripped": [REPLACE, FALLBACK, STRIP],
    "stripped before bytes": [REPLACE, STRIP, FALLBACK, FUSE],
    "two taken": [REPLACE, FALLBACK, FUSE, STRIP | {"start": 2}],
    "another letter taken": [REPLACE, FALLBACK, FUSE, STRIP | {"content": "H"}],
    "no bytes": [REPLACE, FUSE, STRIP],
    "replaced twice": [REPLACE, REPLACE | {"pattern": {"String": "e"}, "content": "é\ufffd"}, FALLBACK, FUSE, STRIP],
    "replaced by nothing": [REPLACE | {"content": ""}, FALLBACK, FUSE, STRIP],
    "letters into bytes": [REPLACE | {"pattern": {"String": "l"}, "content": "<0xE4>"}, FALLBACK, FUSE, STRIP],
    "by an expression": [REPLACE | {"pattern": {"Regex": "▁|o+"}}, FALLBACK, FUSE, STRIP],
    "replaced last": [FALLBACK, FUSE, STRIP, REPLACE],
    "an empty token stays empty": [
        REPLACE | {"pattern": {"Regex": "[▁a-z]+"}, "content": ""},
        REPLACE | {"pattern": {"Regex": "H*"}, "content": "x"},
    ],
}


@functools.cache
def of_shape(shape: str, made: str) -> tuple[Tokenizer, Any]:
    whole = json.loads(made)
    whole["decoder"] = {"type": "Sequence", "decoders": SHAPES[shape]}
    return Tokenizer.from_str(json.dumps(whole)), tokenizers.Tokenizer.from_str(json.dumps(whole))


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
@laws
@given(ids=id_lists)
def test_decoders_near_those_whose_tokens_stand_apart(
    json_of: Callable[[str], str], shape: str, skip: bool, ids: list[int]
) -> None:
    ours, theirs = of_shape(shape, json_of("sentence pieces"))
    assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)
    mine = streamed_as_hf(ours, theirs, skip, ids)
    if mine is None:
        return
    twin = copy.copy(mine)
    assert twin.finish() == mine.finish() and mine.finish() == ""


@pytest.mark.fault(32)
@laws
@given(ids=id_lists)
def test_a_stream_and_its_finish_are_the_full_decoding(pair_of: Pair, ids: list[int]) -> None:
    ours, _ = pair_of("byte-level")
    stream = DecodeStream()
    parts = [stream.step(ours, id) or "" for id in ids]
    assert "".join(parts) + stream.finish() == ours.decode(ids, skip_special_tokens=False)


@pytest.mark.fault(33)
def test_an_unfinished_character_is_flushed_once(pair_of: Pair) -> None:
    ours, _ = pair_of("byte-level")
    ids = ours.encode("é🙂", add_special_tokens=False).ids
    whole = ours.encode("🦀", add_special_tokens=False).ids
    assert len(whole) > 1
    stream = DecodeStream()
    given = "".join(stream.step(ours, id) or "" for id in [*ids, *whole[:-1]])
    assert given == "é🙂"
    assert stream.finish() == "\ufffd"
    assert stream.finish() == ""
    assert DecodeStream().finish() == ""


def test_stream_with_a_prompt(pair_of: Pair) -> None:
    for flavour in FLAVOURS:
        ours, theirs = pair_of(flavour)
        ids = ours.encode("Hello there, Ünïcödé 你好 friend", add_special_tokens=False).ids
        for cut in range(len(ids)):
            mine, other = decoders.DecodeStream(ids[:cut], False), tokenizers.decoders.DecodeStream(ids[:cut], False)
            assert [mine.step(ours, i) for i in ids[cut:]] == [other.step(theirs, i) for i in ids[cut:]]
            mine, other = decoders.DecodeStream(ids=ids[:cut]), tokenizers.decoders.DecodeStream(ids=ids[:cut])
            assert mine.step(ours, ids[cut:]) == other.step(theirs, ids[cut:])


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_a_copied_stream_goes_its_own_way(pair_of: Pair, duplicate: Any) -> None:
    ours, _ = pair_of("byte-level")
    ids = ours.encode("Hello 你好 there", add_special_tokens=False).ids
    stream = DecodeStream()
    head = "".join(stream.step(ours, i) or "" for i in ids[:4])
    other = duplicate(stream)
    tails = ["".join(s.step(ours, i) or "" for i in ids[4:]) for s in (stream, other)]
    assert [head + t for t in tails] == ["Hello 你好 there"] * 2


def test_a_stream_serves_one_tokenizer(pair_of: Pair) -> None:
    stream = DecodeStream()
    stream.step(pair_of("byte-level")[0], 5)
    with pytest.raises(TokenizerError, match="first step"):
        stream.step(pair_of("template")[0], 5)


@pytest.mark.feature("I5")
@laws
@given(ids=id_lists)
def test_bytes_of_tokens_are_the_bytes_of_the_text(pair_of: Pair, ids: list[int]) -> None:
    ours, _ = pair_of("byte-level")
    joined = b"".join(ours.token_bytes(i) for i in ids)
    assert joined.decode(errors="replace") == ours.decode(ids, skip_special_tokens=False)


@pytest.mark.feature("I5")
def test_bytes_of_single_tokens(pair_of: Pair) -> None:
    ours, _ = pair_of("byte-level")
    crab = ours.encode("🦀", add_special_tokens=False).ids
    assert len(crab) > 1 and b"".join(map(ours.token_bytes, crab)) == "🦀".encode()
    assert ours.token_bytes(10**6) == b""
    pieces, _ = pair_of("sentence pieces")
    assert pieces.token_bytes(pieces.token_to_id("<0xF0>") or 0) == b"\xf0"
    hello = pieces.encode("Hello there", add_special_tokens=False).ids
    assert b"".join(map(pieces.token_bytes, hello)) == b" Hello there"


def test_bytes_of_tokens_are_those_of_the_native_backend() -> None:
    tokens = ["<unk>", "a", "##b", "b</w>", "▁c", "<0x41>", "<0xZZ>", "<0x411", "Ġd", "é", "##", "d▁</w>##", "🙂", ""]
    replace = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    kinds: list[Any] = [
        None, {"type": "BPEDecoder", "suffix": "a"}, {"type": "Fuse"}, replace, {"type": "ByteFallback"},
        *({"type": "WordPiece", "prefix": prefix, "cleanup": True} for prefix in ("##", "a")),
        *({"type": "Metaspace", "replacement": c, "prepend_scheme": "never", "split": True} for c in "▁_"),
        {"type": "Sequence", "decoders": [replace, {"type": "ByteFallback"}, {"type": "Fuse"}]},
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        {**replace, "pattern": {"Regex": r"(#)\1"}},
    ]  # fmt: skip
    for decoder in kinds:
        pieces = [[token, 0.0] for token in tokens]
        native, reference = (
            Tokenizer.from_str(
                file(decoder=decoder, model={"type": "Unigram", "unk_id": 0, "vocab": [*pieces, *more]})
            )
            for more in ([], [["a", 0.0]])
        )
        assert reference.backend == "reference" and reference.token_bytes(99) == b""
        found = {token: reference.token_bytes(reference.token_to_id(token) or 0) for token in tokens}
        if native.backend == "native":
            assert found == {token: native.token_bytes(i) for i, token in enumerate(tokens)}, decoder
        else:
            assert found == {token: token.replace("##", " ").encode() for token in tokens}


@pytest.mark.parametrize("family", ["qwen3", "llama2", "gpt2", "bert-base-uncased", "clip", "t5"])
def test_ids_of_every_kind_and_size_decode_alike(family: str, shared_or_none: Path | None) -> None:
    if shared_or_none is None:
        pytest.skip("the folder of real reference files is not beside the checkout (set PRELUDE_SHARED)")
    path = str(shared_or_none / "tokenizers" / family / "tokenizer.json")
    ours, hf = Tokenizer.from_file(path), tokenizers.Tokenizer.from_file(path)
    rng = random.Random(8)
    for length in (0, 1, 2, 3, 17, 400):
        kinds = lambda: [rng.randrange(256), rng.randrange(50_000), 2**30 - 1, 2**30, 2**32 - 1]  # noqa: E731
        ids = [rng.choice(kinds()) for _ in range(length)]
        for skip in (False, True):
            expected = hf.decode(ids, skip_special_tokens=skip)
            for column in (ids, tuple(ids), np.array(ids, np.int64), [np.int64(i) for i in ids]):
                assert ours.decode(column, skip) == expected
    for bad, error in ((-1, OverflowError), (2**32, OverflowError), (1.0, TypeError), ("1", TypeError)):
        with pytest.raises(error):
            ours.decode([5, bad, 6])
        with pytest.raises(error):
            DecodeStream().step(ours, bad)
