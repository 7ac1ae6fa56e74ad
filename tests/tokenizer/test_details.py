"""Details where HF's behaviour is the rule: HF is asked, and ours gives the same answer."""

from __future__ import annotations

import json
import random
from collections import UserList, deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tokenizers
from prelude.tokenizer import Tokenizer, TokenizerFileError

from tests.tokenizer.conftest import reference

Pair = Callable[[str], tuple[Tokenizer, Any]]
BPE = {
    "type": "BPE",
    "vocab": {"a": 0, "b": 1, "c": 2, "▁": 3, "Ġ": 4, "▁a": 5, "ab": 6, "▁Ġ": 7, "Ċ": 8, ".": 9, "Ã": 10, "©": 11},
    "merges": [["▁", "a"], ["a", "b"], ["▁", "Ġ"]],
}


def both(**members: Any) -> tuple[Tokenizer, Any]:
    """Ours and HF's for a file of these members."""
    names = ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    whole = {"version": "1.0", **dict.fromkeys(names), "added_tokens": [], "model": BPE, **members}
    text = json.dumps(whole)
    return Tokenizer.from_str(text), tokenizers.Tokenizer.from_str(text)


def added(id: int, content: str, **flags: bool) -> dict[str, Any]:
    names = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return {"id": id, "content": content, **dict.fromkeys(names, False), **flags}


def test_tokens_where_an_added_token_has_the_id_of_another(assert_same: Any) -> None:
    """Such files come of vocabularies with holes: an added token's id is the number of tokens."""
    model = {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1, "b": 3}, "unk_token": "[UNK]"}
    bpe = {"type": "BPE", "vocab": {"a": 0, "b": 2}, "merges": []}
    for one in (model, bpe):
        ours, theirs = both(model=one, added_tokens=[added(2, "<x>")], pre_tokenizer={"type": "Whitespace"})
        assert set(ours.get_added_tokens_decoder()) <= set(one["vocab"].values()), "the ids collide"  # type: ignore[attr-defined]
        for text in ("a <x> b", "b", "<x>b<x>"):
            assert_same(ours.encode(text), theirs.encode(text), text)
            assert_same(ours.encode_batch([text, text])[1], theirs.encode(text), text)
            ids = ours.encode(text).ids
            assert [ours.id_to_token(i) for i in ids] == [theirs.id_to_token(i) for i in ids]


def test_where_a_piece_starts_in_text_that_was_rewritten_before(assert_same: Any) -> None:
    """``first`` of Metaspace is about the original text: the bytes of one character all start where it does."""
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}
    rng = random.Random(5)
    texts = ["é...", "écéb", "é", *("".join(rng.choices("ab c.\n▁é", k=rng.randint(0, 6))) for _ in range(200))]
    for prefix in (True, False):
        byte_level = {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": False}
        steps = {"type": "Sequence", "pretokenizers": [byte_level, {"type": "Whitespace"}, metaspace]}
        ours, theirs = both(pre_tokenizer=steps)
        for text in texts:
            assert_same(ours.encode(text), theirs.encode(text), text)
            assert ours.pre_tokenizer.pre_tokenize_str(text) == theirs.pre_tokenizer.pre_tokenize_str(text)
            assert_same(
                ours.encode([text, text], is_pretokenized=True), theirs.encode([text] * 2, is_pretokenized=True)
            )


@pytest.mark.parametrize("add_prefix_space", [True, False])
def test_offsets_leave_out_the_white_space_of_tokens(add_prefix_space: bool, backend: str, assert_same: Any) -> None:
    around = [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (0, 2), (3, 2)]
    words = [
        blank * n + word + blank * m for blank in " \n\x85\u2003\u0120_" for word in ("", "a") for n, m in around
    ]
    model = {
        "type": "WordLevel",
        "vocab": {word: id for id, word in enumerate(dict.fromkeys(["?", *words]))},
        "unk_token": "?",
    }
    trimming = {"trim_offsets": True, "add_prefix_space": add_prefix_space}
    for kind in (
        {"type": "ByteLevel", "use_regex": True},
        {"type": "RobertaProcessing", "sep": ["?", 0], "cls": ["?", 0]},
    ):
        split = {"type": "Split", "pattern": {"String": "|"}, "behavior": "Removed", "invert": False}
        ours, theirs = both(model=model, pre_tokenizer=split, post_processor={**kind, **trimming})
        ours = reference(theirs.to_str()) if backend == "reference" else ours
        for word in words:
            for inputs in ((word,), (f"a|{word}", f"{word}|a|{word}")):
                assert_same(ours.encode(*inputs), theirs.encode(*inputs), inputs)
                assert_same(
                    ours.encode(*inputs, add_special_tokens=False), theirs.encode(*inputs, add_special_tokens=False)
                )


def test_offsets_after_a_prepend_of_nothing(assert_same: Any) -> None:
    ours, theirs = both(normalizer={"type": "Prepend", "prepend": ""})
    for text in ("a b", "ab", "", "xa", "xxab", "é.a"):
        assert_same(ours.encode(text), theirs.encode(text), text)


@pytest.mark.parametrize("is_pretokenized", [False, True])
@pytest.mark.parametrize(
    "batch",
    [
        np.array(["Hello there", "you"]), np.array([["Hello there", "you"], ["12", "34"]]),
        np.array([["Hello there", "you"]], dtype=object), np.array([["a", "b", "c"]]),
        np.array([[["Hello", "there"], ["you", "!"]]]), [np.array(["Hello", "there"]), ("you", "!")], np.array([]),
        np.array("Hello"), np.array([1, 2]),
    ],
    ids=lambda batch: str(getattr(batch, "shape", "list")),
)  # fmt: skip
def test_batches_of_arrays(batch: Any, is_pretokenized: bool, backend: str, pair_of: Pair, assert_same: Any) -> None:
    ours, theirs = pair_of("template")
    try:
        expected = theirs.encode_batch(batch, is_pretokenized=is_pretokenized)
    except TypeError:
        for call in (ours.encode_batch, ours.encode_batch_fast):
            with pytest.raises(TypeError):
                call(batch, is_pretokenized=is_pretokenized)
        return
    if is_pretokenized:  # HF gives words of arrays the offsets of the longest word; as lists they have their own
        lists = [row.tolist() if isinstance(row, np.ndarray) else row for row in batch]
        expected = theirs.encode_batch(lists, is_pretokenized=True)
    made = ours.encode_batch(batch, is_pretokenized=is_pretokenized)
    assert len(made) == len(expected)
    for mine, other in zip(made, expected):
        assert_same(mine, other)


class Column:
    """As pandas and pyarrow have them: no Sequence, and a method that gives a list."""

    def __init__(self, *values: Any) -> None:
        self._values = values

    def to_pylist(self) -> list[Any]:
        return list(self._values)


def test_batches_of_columns(pair_of: Pair) -> None:
    ours, _ = pair_of("byte-level")
    expected = [e.ids for e in ours.encode_batch(["Hello", "you"])]
    columns: list[Any] = [Column("Hello", "you")]
    try:
        import pandas
    except ImportError:
        pass
    else:
        columns += [pandas.Series(["Hello", "you"], index=[7, 3]), pandas.Index(["Hello", "you"])]
    for column in columns:
        for call in (ours.encode_batch, ours.encode_batch_fast):
            assert [e.ids for e in call(column)] == expected
        ours.enable_padding(length=9)
        assert [len(e) for e in ours.encode_batch(column)] == [9, 9]
        ours.no_padding()
    with pytest.raises(TypeError, match="a string or a pair of strings, not float"):
        ours.encode_batch(Column("Hello", float("nan")))  # type: ignore[arg-type]
    for wrong in ({"Hello": 1}, {"Hello"}, iter(["Hello"]), "Hello", 5):
        with pytest.raises(TypeError, match="a batch is a list of inputs"):
            ours.encode_batch(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "ids",
    [
        {1}, {1: 2}, iter([1]), frozenset([1]), None, 1, "ab", [1.0], np.array([1.0]), np.array([[0, 1], [1, 0]]),
        np.array(1), np.array([1 << 33]), [1 << 32], [-1], np.array([-1]), range(2), (1, 0), np.array([1, 0]),
        np.array([5, 6], np.uint32),
        [True], [np.int64(1)], b"\1", [(1 << 32) - 1], np.array([(1 << 32) - 1]), [],
    ],
    ids=lambda ids: repr(ids).partition(" object at ")[0],  # an address differs between processes
)  # fmt: skip
def test_the_arguments_of_decode(ids: Any, pair_of: Pair) -> None:
    ours, theirs = pair_of("byte-level")
    try:
        expected = theirs.decode(ids)
    except (TypeError, OverflowError) as error:
        with pytest.raises(type(error)):
            ours.decode(ids)
    else:
        assert ours.decode(ids) == expected


@pytest.mark.parametrize(
    "id", [1.0, np.float64(1), "1", None, -1, 1 << 32, (1 << 32) - 1, True, np.int64(1)], ids=repr
)
def test_the_arguments_of_id_to_token(id: Any, pair_of: Pair) -> None:
    ours, theirs = pair_of("byte-level")
    try:
        expected = theirs.id_to_token(id)
    except (TypeError, OverflowError) as error:
        with pytest.raises(type(error)):
            ours.id_to_token(id)
    else:
        assert ours.id_to_token(id) == expected
    with pytest.raises(TypeError):
        ours.token_to_id(None)  # type: ignore[arg-type]


class Items(Sequence):  # type: ignore[type-arg]
    def __init__(self, *items: Any) -> None:
        self._items = items

    def __getitem__(self, index: Any) -> Any:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)


BOTH = ["Hello you", "a b"]
BATCHES: dict[str, Any] = {
    "tuple": tuple(BOTH), "deque": deque(BOTH), "user list": UserList(BOTH), "sequence": Items(*BOTH),
    "range": range(2), "dict": {"a": 1}, "set": {"a"}, "text": "ab", "bytes": b"ab", "none": None, "empty": [],
    "pairs": [("a", "b"), ["c", "d"]], "triple": [("a", "b", "c")], "one": [("a",)], "mixed": ["a", ("b", "c")],
    "pair of another type": [Items("a", "b")], "str of numpy": [np.str_("a")], "int": [1],
    "pair with int": [("a", 1)], "pair with none": [("a", None)], "words": [["a", "b"], ["c"]],
    "pair of words": [(["a"], ["b"])], "no words": [[]], "nested": [[["a"], ["b"], ["c"]]],
    "words with int": [["a", 1]], "keys": {"a": 1}.keys(), "none in it": [None], "lone surrogate": ["\ud800"],
}  # fmt: skip


def outcome(call: Callable[[Any], Any], tokenizer: Any) -> Any:
    """Its result, or the type of error that HF would raise."""
    try:
        return call(tokenizer)
    except (TypeError, OverflowError, ValueError) as error:
        return next(kind for kind in (TypeError, OverflowError, ValueError) if isinstance(error, kind))


@pytest.mark.parametrize("name", BATCHES)
def test_batches_of_all_kinds(name: str, pair_of: Pair) -> None:
    batch = BATCHES[name]
    calls: list[Callable[[Any], Any]] = [
        lambda t: [e.ids for e in t.encode_batch(batch)],
        lambda t: [e.ids for e in t.encode_batch_fast(batch)],
        lambda t: [e.ids for e in t.encode_batch(batch, is_pretokenized=True)],
    ]
    ours, theirs = pair_of("template")
    for call in calls:
        assert outcome(call, ours) == outcome(call, theirs)


@pytest.mark.parametrize("given", [1, None, b"a", "", np.str_("you"), "you", ["a", "b"]], ids=repr)
def test_arguments_of_other_types(given: Any, pair_of: Pair) -> None:
    ours, theirs = pair_of("template")
    calls: list[Callable[[Any], Any]] = [
        lambda t: t.token_to_id(given), lambda t: t.enable_padding(pad_token=given), lambda t: t.encode(given).ids,
        lambda t: t.encode(given, is_pretokenized=True).ids, lambda t: t.encode("a", given).ids,
        lambda t: t.encode(["a"], given, is_pretokenized=True).ids,
    ]  # fmt: skip
    for call in calls:
        assert outcome(call, ours) == outcome(call, theirs)


CUT = {"max_length": 3, "stride": 0, "strategy": "LongestFirst"}
WHOLE = {"strategy": "BatchLongest", "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "x"}


@pytest.mark.parametrize(
    ("member", "change", "names"),
    [
        ("padding", {"pad_token": -1}, "pad_token"), ("padding", {"pad_id": -1}, "pad_id"),
        ("padding", {"pad_id": "0"}, "pad_id"), ("padding", {"pad_id": 1 << 32}, "pad_id"),
        ("padding", {"pad_type_id": True}, "pad_type_id"),
        ("padding", {"pad_to_multiple_of": -1}, "pad_to_multiple_of"),
        ("padding", {"pad_to_multiple_of": 2.0}, "pad_to_multiple_of"),
        ("padding", {"strategy": {"Fixed": "3"}}, "strategy.Fixed"), ("padding", {"strategy": "Nope"}, "strategy"),
        ("padding", {"direction": "right"}, "padding"), ("truncation", {"max_length": "3"}, "max_length"),
        ("truncation", {"max_length": 3.0}, "max_length"), ("truncation", {"stride": True}, "stride"),
        ("truncation", {"direction": "right"}, "truncation"), ("truncation", {}, None), ("padding", {}, None),
        ("padding", {"pad_to_multiple_of": 4, "strategy": {"Fixed": 3}, "direction": "Left"}, None),
    ],
)  # fmt: skip
def test_settings_of_a_file(member: str, change: dict[str, Any], names: str | None, assert_same: Any) -> None:
    given = {
        **(WHOLE if member == "padding" else {"max_length": 3, "stride": 0, "strategy": "LongestFirst"}),
        **change,
    }
    if names is None:
        ours, theirs = both(**{member: given})
        assert_same(ours.encode("abcabc"), theirs.encode("abcabc"))
        assert ours.to_str() == theirs.to_str()
        return
    text = theirs_text(member, given)
    with pytest.raises(Exception, match=r"expected|unknown variant"):
        tokenizers.Tokenizer.from_str(text)
    with pytest.raises(TokenizerFileError, match=names):
        Tokenizer.from_str(text)


def theirs_text(member: str, given: dict[str, Any]) -> str:
    state = json.loads(both()[1].to_str())
    return json.dumps({**state, member: given})
