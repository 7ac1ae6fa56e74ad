"""Truncation and padding: parameters, results and errors as in HF."""

from __future__ import annotations

import copy
import functools
import json
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prelude.tokenizer import Tokenizer, TokenizerFileError

from tests.tokenizer.small_files import file

Pair = Callable[[str], tuple[Tokenizer, Any]]

LONG = "Hello there, how are you today? I'm fine, thank you! Ünïcödé 你好 <mask> the end"
SHORT = "two words"


@pytest.mark.parametrize("backend", ["first backend"])
@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_truncation_about_the_size_of_the_special_tokens(
    name: str, pair_of: Pair, assert_same: Any, length: int
) -> None:
    ours, theirs = pair_of(name)
    for tokenizer in (ours, theirs):
        tokenizer.enable_truncation(length)
    for inputs in ((LONG,), (LONG, SHORT), ("",)):
        assert_same(ours.encode(*inputs), theirs.encode(*inputs), inputs)
        assert_same(ours.encode(*inputs, add_special_tokens=False), theirs.encode(*inputs, add_special_tokens=False))


def test_parameters_read_back_as_in_hf(pair_of: Pair) -> None:
    ours, theirs = pair_of("template")
    assert ours.truncation is None and ours.padding is None
    for tokenizer in (ours, theirs):
        tokenizer.enable_truncation(9, stride=2, strategy="only_first", direction="left")
        tokenizer.enable_padding(direction="left", pad_id=3, pad_type_id=1, pad_token="x", length=9)
    assert ours.truncation == theirs.truncation
    assert ours.padding == theirs.padding
    for tokenizer in (ours, theirs):
        tokenizer.enable_truncation(max_length=4)
        tokenizer.enable_padding(pad_to_multiple_of=4)
    assert ours.truncation == theirs.truncation
    assert ours.padding == theirs.padding
    for tokenizer in (ours, theirs):
        tokenizer.no_truncation()
        tokenizer.no_padding()
    assert ours.truncation is None and ours.padding is None


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda t: t.enable_truncation(5, stride=7), ValueError),
        (lambda t: t.enable_truncation(-1), OverflowError),
        (lambda t: t.enable_truncation("5"), TypeError),
        (lambda t: t.enable_truncation(5, strategy="longest"), ValueError),
        (lambda t: t.enable_truncation(5, direction="up"), ValueError),
        (lambda t: t.enable_padding(direction="up"), ValueError),
        (lambda t: t.enable_padding(length=-3), OverflowError),
        (lambda t: t.enable_padding(pad_id=-3), OverflowError),
    ],
)
def test_errors_are_those_of_hf(pair_of: Pair, call: Any, error: type[Exception]) -> None:
    ours, theirs = pair_of("template")
    for tokenizer in (ours, theirs):
        with pytest.raises(error):
            call(tokenizer)
    assert ours.truncation is None and ours.padding is None


def test_unknown_option_is_an_error_not_a_printed_line(pair_of: Pair) -> None:
    ours, _ = pair_of("template")
    with pytest.raises(TypeError, match="max_len"):
        ours.enable_truncation(5, max_len=3)  # type: ignore[call-arg]


def test_settings_of_the_file_are_taken_over(json_of: Callable[[str], str], assert_same: Any) -> None:
    import tokenizers

    theirs = tokenizers.Tokenizer.from_str(json_of("template"))
    theirs.enable_truncation(7, stride=1, strategy="only_second", direction="left")
    theirs.enable_padding(length=8, direction="left", pad_id=5, pad_token="[SEP]")
    ours = Tokenizer.from_str(theirs.to_str())
    assert ours.truncation == theirs.truncation and ours.padding == theirs.padding
    assert_same(ours.encode("a", LONG), theirs.encode("a", LONG))
    again = Tokenizer.from_str(ours.to_str())
    assert again.truncation == theirs.truncation and again.padding == theirs.padding


def test_post_process(name: str, pair_of: Pair, assert_same: Any) -> None:
    ours, theirs = pair_of(name)
    for tokenizer in (ours, theirs):
        tokenizer.enable_truncation(9)
        tokenizer.enable_padding(length=11)
    for add in (True, False):
        raw = [(t.encode_batch([LONG, SHORT], add_special_tokens=False)) for t in (ours, theirs)]
        assert_same(ours.post_process(raw[0][0], None, add), theirs.post_process(raw[1][0], None, add), add)
        assert_same(ours.post_process(raw[0][0], raw[0][1], add), theirs.post_process(raw[1][0], raw[1][1], add), add)
    before = raw[0][0].ids
    ours.post_process(raw[0][0])
    assert raw[0][0].ids == before, "the argument is left alone"


def test_num_special_tokens_to_add(name: str, pair_of: Pair) -> None:
    ours, theirs = pair_of(name)
    for is_pair in (True, False):
        assert ours.num_special_tokens_to_add(is_pair) == theirs.num_special_tokens_to_add(is_pair)


PROCESSORS: list[dict[str, Any]] = [
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False}, {"type": "Sequence", "processors": []},
    {"type": "BertProcessing", "sep": ["a", 0], "cls": ["b", 1]},
    {"type": "RobertaProcessing", "sep": ["a", 0], "cls": ["b", 1], "trim_offsets": True, "add_prefix_space": False},
    {
        "type": "TemplateProcessing", "pair": [{"Sequence": {"id": id, "type_id": n}} for n, id in enumerate("AB")],
        "single": [{"SpecialToken": {"id": "X", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {"X": {"ids": [0, 1], "tokens": ["a", "b"]}},
    },
]  # fmt: skip
AROUND = ("sep", "cls")


def places(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    yield path, value
    for key, inner in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        yield from places(inner, (*path, key))


def fits(path: tuple[str | int, ...], old: Any, new: Any) -> bool:
    """Whether a post-processor's member at ``path`` may be ``new``; ``...``: may be left out."""
    within, key = path[-2:] if len(path) > 1 else ("processors", path[-1])
    if isinstance(key, int) and new is ...:
        return within not in AROUND
    if isinstance(old, bool):
        return isinstance(new, bool)
    if isinstance(old, int):
        return type(new) is int and 0 <= new < 1 << 31
    if isinstance(old, str):
        return isinstance(new, str) and key != "type"
    if new == {} or new is ...:  # a token may be named that is not declared
        return key == ("special_tokens" if new == {} else "X")
    return new == [] and isinstance(old, list) and key not in AROUND


def test_each_member_of_a_post_processor_has_its_type() -> None:
    for at, old in places(PROCESSORS, ("processors",)):
        for new in (..., None, 5, -1, True, 1.5, "B", [], {}, (1 << 31) - 1, 1 << 31):
            whole = {"processors": copy.deepcopy(PROCESSORS)}
            owner: Any = functools.reduce(lambda one, key: one[key], at[:-1], whole)
            if new is ...:
                del owner[at[-1]]
            else:
                owner[at[-1]] = new
            text = file(post_processor={"type": "Sequence", **whole})
            if fits(at, old, new):
                Tokenizer.from_str(text)
            else:
                with pytest.raises(TokenizerFileError) as caught:
                    Tokenizer.from_str(text)
                assert caught.value.path.startswith("post_processor"), (at, new)
    most = {**PROCESSORS[-1], "special_tokens": {"X": {"ids": [0] * 1024, "tokens": ["a"] * 1024}}}
    made = Tokenizer.from_str(file(post_processor={"type": "Sequence", "processors": [most, *PROCESSORS[:1] * 63]}))
    assert made.num_special_tokens_to_add(False) == 1024


@pytest.mark.parametrize("id", [0, (1 << 31) - 1, 1 << 31, (1 << 32) - 1])
@pytest.mark.parametrize("direction", ["left", "right"])
def test_ids_of_padding_have_32_bits(pair_of: Pair, assert_same: Any, id: int, direction: str) -> None:
    ours, theirs = pair_of("template")
    made = []
    for tokenizer in (ours, theirs):
        tokenizer.enable_truncation(5)
        tokenizer.enable_padding(length=9, pad_id=id, pad_type_id=id, direction=direction)
        made.append(tokenizer.encode("Hello there you", "12345"))
    for mine, other in (made, [e.overflowing[0] for e in made], [ours.encode("a"), theirs.encode("a")]):
        assert_same(mine, other)
        assert mine.type_ids == other.type_ids and max(mine.ids) >= id
    assert_same(pickle.loads(pickle.dumps(made[0])), made[1])
    for one in made:
        one.pad(20, pad_id=3, direction=direction)
        one.pad(22, pad_id=id, pad_type_id=7)
        one.truncate(21, direction=direction)
    assert_same(*made)
    assert json.loads(ours.to_str()) == json.loads(theirs.to_str())
    assert_same(type(ours).from_str(theirs.to_str()).encode("a"), theirs.encode("a"))


@pytest.mark.parametrize("id", [-1, 1 << 32, 1 << 70])
def test_ids_that_are_none_are_refused(pair_of: Pair, id: int) -> None:
    for tokenizer in pair_of("template"):
        for name in ("pad_id", "pad_type_id"):
            with pytest.raises(OverflowError):
                tokenizer.enable_padding(**{name: id})
            with pytest.raises(OverflowError):
                tokenizer.encode("a").pad(9, **{name: id})
        assert tokenizer.padding is None
