"""The object with tiktoken's names: ids, refusals and bytes are tiktoken's, and rank files are converted once."""

from __future__ import annotations

import base64
import contextlib
import copy
import inspect
import itertools
import json
import pickle
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from prelude.tokenizer import TiktokenEncoding, TokenizerError
from prelude.tokenizer import tiktoken as conversion

PATTERN = r"'(?i:[sdmt])|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s+(?!\S)|\s"
SPECIAL = {"<|endoftext|>": 700, "<|fim|>": 701, "<|pad|>": 705}
TEXTS = [
    "", "the other then", "a<|endoftext|>b<|pad|><|fim|>y", "<|fim|>", "12345 它's 🙂\n\n end  ",
    "\ud83d\ude42 \ud800z",
]  # fmt: skip


def small_ranks() -> dict[bytes, int]:
    ranks = {bytes([b]): b for b in range(256)}
    for token in (b"th", b" t", b"the", b" th", b" the", b"he", b"er", b"en", b"other", b"ot", b"oth", b"\xf0\x9f"):
        ranks[token] = len(ranks)
    return ranks


@pytest.mark.fault(30)
def test_a_rank_file_whose_tokens_take_too_long_to_split_is_refused() -> None:
    """Each token is split in every place; one of 300,000 bytes took 16 seconds, one of a megabyte minutes."""
    for tokens in ([b"ab" * 150_000], [b"ab" * n for n in range(6000, 6300)]):
        ranks = small_ranks()
        ranks.update((token, 1000 + i) for i, token in enumerate(tokens))
        with pytest.raises(TokenizerError, match="squares of all tokens' lengths"):
            TiktokenEncoding("long", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={}, cache=False)


@pytest.fixture(scope="module")
def pair() -> Any:
    tiktoken = pytest.importorskip("tiktoken")
    theirs = tiktoken.Encoding("small", pat_str=PATTERN, mergeable_ranks=small_ranks(), special_tokens=SPECIAL)
    return TiktokenEncoding.like(theirs), theirs


@pytest.mark.parametrize(
    ("data", "special", "says"),
    [
        (b"AAA= x", {}, "line 1"), (b"!!!! 3", {}, "line 1"),
        (b"A*AA= 3", {}, "line 1: expected"), (b"AA== 0", {}, "byte 1 has no token"),
        (b"AA== 0\nAA== 1", {}, "line 2"), (None, {"<|x|>": 3}, "already taken"),
        (b"\n \nAA== -1", {}, "line 3: an empty"), (b"= 0", {}, "line 1"),
        (None, {"<|x|>": 999, "<|y|>": 999}, r"y\|>'\]: id 999 is already taken"),
        ({**small_ranks(), b"zz": 5}, {}, "two tokens have the same rank"),
        *((None, {"<|x|>": id}, f"{id} is not an id of a token") for id in (-1, True, 1.0, None)),
        (None, {"": 999}, "not an id"), (None, {"h": 999}, "the ordinary token 104 is written the same"),
        (None, {"Ċ": 999}, "the ordinary token 10 is written the same"),
    ],
)  # fmt: skip
def test_malformed_files(data: Any, special: dict[str, int], says: str) -> None:
    with pytest.raises(TokenizerError, match=says):
        TiktokenEncoding("x", pat_str=PATTERN, mergeable_ranks=data or small_ranks(), special_tokens=special)


def test_a_conversion_is_what_hf_writes_of_the_parts() -> None:
    ranks = {raw: id + 1 for raw, id in small_ranks().items()}
    special = {"<b>": 402, "<a>": 0, "<c>": 401}
    data = b"\n\n".join(b"%s %d" % (base64.b64encode(raw), id) for raw, id in ranks.items())
    made = tokenizers.Tokenizer.from_str(conversion.tokenizer_json(data, r"\w+$", special).decode())
    merges = [(a, b) for token in ranks for a, b in sorted(
        ((token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks),
        key=lambda two: ranks[two[0]],
    )]  # fmt: skip
    written = {raw: "".join(map(conversion.BYTE_CHARS.get, raw)) for raw in ranks}
    vocab = {written[raw]: id for raw, id in ranks.items()} | special
    pairs = [(written[a], written[b]) for a, b in merges]
    whole = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, pairs, ignore_merges=True))
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"\w+(?![\s\S])"), "isolated")
    level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    whole.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([split, level])
    whole.decoder = tokenizers.decoders.ByteLevel()
    whole.add_special_tokens(sorted(special, key=special.get))
    assert json.loads(made.to_str()) == json.loads(whole.to_str())
    loaded = TiktokenEncoding("x", pat_str=r"\w", mergeable_ranks=ranks, special_tokens=special, explicit_n_vocab=403)
    assert (loaded.n_vocab, str(loaded)) == (403, "<TiktokenEncoding 'x'>")
    for size in (402, 404):
        with pytest.raises(TokenizerError, match=f"explicit_n_vocab={size}, but the largest id is 402"):
            TiktokenEncoding("x", pat_str="a", mergeable_ranks=ranks, special_tokens=special, explicit_n_vocab=size)


def test_both_sides_of_the_squares_of_all_tokens_lengths() -> None:
    sizes = [1] * 256 + [32767, 255, 15, 5, 2]
    assert sum(size * size for size in sizes) == 1 << 30
    for last in (2, 3):
        ranks = {bytes([b]): b for b in range(256)} | {b"a" * n: 300 + n for n in (32767, 255, 15, 5, last)}
        data = b"\n".join(b"%s %d" % (base64.b64encode(raw), id) for raw, id in ranks.items())
        fits = contextlib.nullcontext() if last == 2 else pytest.raises(TokenizerError, match="1,073,741,829, and")
        with fits:
            conversion.tokenizer_json(data, "a", {})


def test_a_pattern_of_many_counts_that_give_nothing_back_is_translated_in_one_pass() -> None:
    data, parts = b"\n".join(b"%s %d" % (base64.b64encode(bytes([b])), b) for b in range(256)), 20_000
    began = time.process_time()
    made = json.loads(conversion.tokenizer_json(data, "|".join(["(a{1,2}+)"] * parts), {}))
    split = made["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
    assert split == "|".join(["((?>a{1,2}))"] * parts) and time.process_time() - began < 4


@pytest.mark.parametrize(
    "pattern",
    [
        r"a{1,2}+a|\S|\s", r"(?:a{1,2}+|b)a|.|\n", r"[a\]]{1,2}+\]|.|\n", r"\p{L}{1,3}+$|b{1,2}+|.|\n",
        r"(?:b|a{,2}+)a|.|\n", r"(?:b|a{1,2}+)a|.|\n", r"[[:alpha:]]{2,}+b|.|\n", r"\(*[(]*a{1,2}+|.|\n",
        r"a$|[$]|\$|.|\n", r"(?#a{1,2}+$)a{1,2}+a|.|\n", r"\\a{1,2}+a|[\]a{1,2}+]b|.|\n",
    ],
)  # fmt: skip
def test_counts_that_give_nothing_back_match_as_in_tiktoken(pattern: str) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    pairs = [f"{a}{b}".encode() for a in "ab]$\n" for b in "ab]$\n"]
    ranks = small_ranks() | {pair: 300 + i for i, pair in enumerate(pairs)}
    theirs = tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    ours = TiktokenEncoding.like(theirs, cache=False)
    for size in range(5):
        for letters in itertools.product("ab]$\n", repeat=size):
            assert ours.encode("".join(letters)) == theirs.encode("".join(letters)), letters


OPTIONS: list[dict[str, Any]] = [
    {}, {"allowed_special": "all"}, {"disallowed_special": ()}, {"allowed_special": {"<|endoftext|>"}},
    {"allowed_special": {"<|endoftext|>", "<|pad|>"}, "disallowed_special": ()},
    {"allowed_special": {"<|fim|>"}, "disallowed_special": ()}, {"disallowed_special": {"<|fim|>"}},
]  # fmt: skip


def result(call: Any, *args: Any, **options: Any) -> Any:
    try:
        return call(*args, **options)
    except ValueError:
        return "refused"


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: str({key: sorted(options[key]) for key in options}))
def test_encode_and_its_refusals(pair: Any, options: dict[str, Any]) -> None:
    ours, theirs = pair
    for text in TEXTS:
        expected = result(theirs.encode, text, **options)
        assert result(ours.encode, text, **options) == expected, text
        array = result(ours.encode_to_numpy, text, **options)
        assert array == "refused" if expected == "refused" else array.tolist() == expected
        assert ours.encode_ordinary(text) == theirs.encode_ordinary(text), text
    batch = [text for text in TEXTS if result(theirs.encode, text, **options) != "refused"]
    assert ours.encode_batch(batch, **options) == theirs.encode_batch(batch, **options)
    assert ours.encode_ordinary_batch(TEXTS) == theirs.encode_ordinary_batch(TEXTS)


def test_a_refusal_names_the_token_and_the_way_out(pair: Any) -> None:
    with pytest.raises(ValueError, match=r"disallowed special token '<\|fim\|>' at 2.*allowed_special.*disallowed"):
        pair[0].encode("a <|fim|>", allowed_special={"<|endoftext|>"})


def test_decoding_and_vocabulary(pair: Any) -> None:
    ours, theirs = pair
    for name in ("name", "n_vocab", "max_token_value", "eot_token", "special_tokens_set"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert sorted(ours.token_byte_values()) == sorted(theirs.token_byte_values())
    assert ours._mergeable_ranks == theirs._mergeable_ranks
    rows = [*(theirs.encode(text, allowed_special="all") for text in TEXTS), list("\x80\xbf\xc0🙂".encode())]
    for ids in [*rows, [0xF0], [700, 65]]:
        for name in ("decode", "decode_bytes", "decode_tokens_bytes"):
            assert getattr(ours, name)(ids) == getattr(theirs, name)(ids)
    assert [*map(ours.decode_with_offsets, rows)] == [*map(theirs.decode_with_offsets, rows)]
    assert ours.decode_batch(rows) == theirs.decode_batch(rows)
    assert ours.decode_batch([[0xF0]], errors="ignore") == theirs.decode_batch([[0xF0]], errors="ignore") == [""]
    assert ours.decode_bytes_batch(rows) == theirs.decode_bytes_batch(rows)
    for one in (ours, theirs):
        for call in (one.decode, one.decode_bytes, lambda ids, e=one: e.decode_single_token_bytes(ids[0])):
            with pytest.raises(KeyError):
                call([600])
        with pytest.raises(UnicodeDecodeError):
            one.decode([0xF0], errors="strict")
        with pytest.raises(KeyError):
            one.encode_single_token("no token")
        assert one.encode_single_token("the") == one.encode_single_token(b"the") == small_ranks()[b"the"]
        assert one.encode_single_token("<|fim|>") == 701
        assert one.is_special_token(700) and not one.is_special_token(65)
    with pytest.raises(TokenizerError, match="use tiktoken") as raised:
        ours.encode_with_unstable("a")
    assert type(raised.value) is TokenizerError, "not a part of HF's API"
    again = pickle.loads(pickle.dumps(ours))
    assert again.encode("the other<|fim|>", allowed_special="all") == ours.encode(
        "the other<|fim|>", allowed_special="all"
    )


def test_every_public_name_and_argument_of_tiktoken_is_here(pair: Any) -> None:
    ours, theirs = (type(one) for one in pair)
    for name in (n for n in dir(theirs) if not n.startswith("_")):
        mine, other = getattr(ours, name), getattr(theirs, name)
        if callable(other) and name != "encode_with_unstable":  # left out: it takes anything, and says so
            arguments = [
                [(p.name, p.kind, p.default) for p in inspect.signature(call).parameters.values()]
                for call in (mine, other)
            ]
            assert arguments[0] == arguments[1], name


BITS = [*SPECIAL, "the other", " th", "\n", "  ", "é", "你好", "🙂", "123", "'s", "<|", "|>", "endoftext", "a" * 40]
IDS = [0, 65, 255, 256, 262, 267, 268, 600, 700, 701, 705, 706, -1, 1 << 32, 1.0, "a", None, True, np.int64(65)]


def outcome(call: Any, encoding: Any) -> Any:
    """Its result, or the kind of error that tiktoken raises."""
    try:
        found = call(encoding)
    except (KeyError, TypeError, ValueError) as error:
        return next(kind for kind in (KeyError, TypeError, ValueError) if isinstance(error, kind))
    except OverflowError:  # an id of more than 32 bits; here it is a KeyError, as other ids without a token
        return KeyError
    return found.tolist() if isinstance(found, np.ndarray) else found


def test_random_texts_ids_and_options(pair: Any) -> None:
    draw = random.Random(7)
    texts = ["".join(draw.choices(BITS, k=draw.randrange(8))) for _ in range(60)]
    calls: list[Any] = [
        lambda e: e.encode_batch(texts, allowed_special="all"),
        lambda e: e.encode_batch(texts),
        lambda e: e.encode_ordinary_batch(tuple(texts), num_threads=2),
    ]
    for text in texts:
        calls += [
            lambda e, t=text, o=options: e.encode(t, **o) for options in (*OPTIONS, {"disallowed_special": None})
        ]
        calls += [
            lambda e, t=text: e.encode_ordinary(t),
            lambda e, t=text: e.encode_to_numpy(t, allowed_special="all"),
            lambda e, t=text: e.decode_with_offsets(e.encode_ordinary(t)),
        ]
    for id in IDS:
        for name in ("decode", "decode_bytes", "decode_tokens_bytes"):
            calls.append(lambda e, i=id, n=name: getattr(e, n)([i]))
        calls.append(lambda e, i=id: e.decode_single_token_bytes(i))
    for given in ("the", " th", "<|fim|>", "none", b"\xf0\x9f", "", "é", None, 5):
        calls.append(lambda e, g=given: e.encode_single_token(g))
    for wrong in (None, b"a", 5):
        calls += [lambda e, w=wrong: e.encode(w), lambda e, w=wrong: e.encode_ordinary(w)]
    calls += [
        lambda e: e.encode("a", allowed_special="<|fim|>"),
        lambda e: e.decode(5),
        lambda e: e.decode(np.array([65, 66], np.uint32)),
        lambda e: e.decode((65, 240), errors="ignore"),
        lambda e: copy.deepcopy(e).encode("the other"),
    ]
    ours, theirs = pair
    for call in calls:
        assert outcome(call, ours) == outcome(call, theirs), inspect.getsource(call)
    with pytest.raises(TypeError, match='takes "all" or a set'):  # tiktoken reads the string as a set of letters
        ours.encode("a", disallowed_special="<|fim|>")


def test_tables_of_a_rank_file_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second load converts nothing; other special tokens, or another pattern, are another tokenizer."""
    ranks = small_ranks()
    for i in range(40_000):  # more than the size from which tables are kept
        ranks[b"%c%c%c" % (97 + i % 26, 97 + i // 26 % 26, 97 + i // 676 % 26) + b"%d" % i] = len(ranks)
    data = b"\n".join(b"%s %d" % (base64.b64encode(raw), id) for raw, id in ranks.items())
    file = tmp_path / "ranks.tiktoken"
    file.write_bytes(data)
    converted: list[Any] = []
    convert = conversion.tokenizer_json

    def counted(*args: Any) -> bytes:
        converted.append(args)
        return convert(*args)

    monkeypatch.setattr(conversion, "tokenizer_json", counted)

    def load(pattern: str = PATTERN, **special: int) -> TiktokenEncoding:
        return TiktokenEncoding(
            "x", pat_str=pattern, mergeable_ranks=file, special_tokens=special, cache=tmp_path / "kept"
        )

    first, again = load(eot=90_000), load(eot=90_000)
    assert len(converted) == 1
    assert first.encode("the other eot", allowed_special="all") == again.encode(
        "the other eot", allowed_special="all"
    )
    assert again.n_vocab == 90_001 and again.decode(again.encode("the other")) == "the other"
    assert load(eot=90_001).n_vocab == 90_002 and len(converted) == 2
    assert load(r"\S+|\s+", eot=90_000).encode("then") == first.encode("then") and len(converted) == 3
    assert len([path for path in (tmp_path / "kept").iterdir() if path.name != "key"]) == 3
