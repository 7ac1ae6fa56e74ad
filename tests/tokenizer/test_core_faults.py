"""Hostile texts, files, patterns and ids: defined errors, HF's results, time that grows with the text."""

from __future__ import annotations

import json
import math
import time

import pytest
from prelude.tokenizer import Tokenizer
from prelude.tokenizer._core import CoreTokenizer, TokenizerFileError, UnsupportedFeature
from prelude.tokenizer.encode.post_processing import trim_passes, trimmed

from bench.tokenizer.hostile import hostile_texts
from tests.tokenizer.shared import shared, tokenizer_json

needs_shared = pytest.mark.skipif(shared() is None, reason="the shared reference material is not here")


def made(model: dict, **rest: object) -> bytes:
    return json.dumps({"version": "1.0", "added_tokens": [], **rest, "model": model}).encode()


def bpe(vocab: dict, merges: list, **rest: object) -> dict:
    return {"type": "BPE", "vocab": vocab, "merges": merges, **rest}


SMALL = bpe({"a": 0, "b": 1, "ab": 2}, ["a b"])


@pytest.mark.long
@pytest.mark.fault(23)
@needs_shared
@pytest.mark.parametrize("family", ["qwen3", "gpt2", "llama2", "deepseek-v3", "bert-base-uncased", "t5"])
def test_long_words_grow_no_faster_than_the_text(family: str) -> None:
    core = CoreTokenizer.from_json(tokenizer_json(family))

    def seconds(text: str) -> float:
        start = time.process_time()
        core.encode_array(text)
        return time.process_time() - start

    long = hostile_texts(400_000)
    for name, text in long.items():
        # Eight times the text: a quadratic step would take 64 times as long.
        whole = part = math.inf
        for _ in range(40):
            whole, part = min(whole, seconds(text)), min(part, seconds(text[: len(text) // 8]))
            if whole < 32 * part:
                break
        assert whole < 32 * part, (name, whole, part)


@pytest.mark.fault(23)
@needs_shared
@pytest.mark.parametrize("family", ["qwen3", "llama2", "clip", "t5"])
def test_long_texts_equal_hf(family: str) -> None:
    tokenizers = pytest.importorskip("tokenizers", minversion="0.23.3")
    data = tokenizer_json(family)
    core, hf = CoreTokenizer.from_json(data), tokenizers.Tokenizer.from_str(data.decode())
    hf.no_truncation()
    hf.no_padding()

    def same(text: str) -> None:
        assert core.encode_array(text).tolist() == hf.encode(text, add_special_tokens=False).ids, text[:40]

    texts = hostile_texts(20_000)
    for text in texts.values():
        same(text)
    # Lengths where a word no longer fits a window, two, three: windows have 64 symbols, or bytes.
    for name in ("letters", "few letters", "Chinese", "'a'", "' '", "torn", "marks"):
        for length in (*range(15, 24), *range(60, 70), *range(100, 140, 3), *range(170, 200, 3), 500, 1000):
            for start in (0, 7, 31, 977):
                same(texts[name][start : start + length])


@pytest.mark.fault(29)
def test_patterns_never_explode() -> None:
    for pattern in [r"(a+)+$", r"(a|a)+b", r"(a|aa)+$", r"a*a*a*b"]:
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        core = CoreTokenizer.from_json(made(SMALL, pre_tokenizer=split))
        start = time.process_time()
        assert len(core.encode_array("a" * 20_000 + "b").tolist()) > 10_000
        assert time.process_time() - start < 10


def test_a_refused_pattern_is_named() -> None:
    split = {"type": "Split", "pattern": {"Regex": r"(a)\1"}, "behavior": "Isolated", "invert": False}
    data = made(SMALL, pre_tokenizer={"type": "Sequence", "pretokenizers": [split]})
    with pytest.raises(UnsupportedFeature) as caught:
        CoreTokenizer.from_json(data)
    assert caught.value.path == "pre_tokenizer.pretokenizers[0].pattern.Regex"


@pytest.mark.fault(30)
@pytest.mark.parametrize(
    ("data", "path"),
    [
        (b"", "line 1"), (b"\xef\xbb\xbf{}", "line 1"), (b"[" * 100_000, "line 1"),
        (b'{"version":"1.0","model":{"type":"BPE","vocab":{"a":NaN},"merges":[]}}', "line 1"), (b"{}", ""),
        (made(bpe({"a": -1}, [])), 'model.vocab["a"]'), (made(bpe({"a": 2**40}, [])), 'model.vocab["a"]'),
        (made(bpe({"a": 1, "b": 1 << 25}, [])), 'model.vocab["b"]'),
        (made(bpe({"a": 1}, ["a x"])), "model.merges[0]"),
        (made(bpe({"a": 0, "aa": 1}, ["a a", ["a", "a"]])), "model.merges[1]"), (made(SMALL, surprise=1), "surprise"),
        (json.dumps({"version": "9", "model": SMALL}).encode(), "version"),
        (made(SMALL, added_tokens=[{"content": "x"}]), "added_tokens[0]"),
        (made(SMALL, normalizer={"type": "Strip", "strip_left": 3}), "normalizer.strip_left"),
    ],
)  # fmt: skip
def test_malformed_files_name_the_place(data: bytes, path: str) -> None:
    with pytest.raises(TokenizerFileError) as caught:
        CoreTokenizer.from_json(data)
    assert caught.value.path.startswith(path)
    assert caught.value.message


@pytest.mark.fault(30)
def test_text_that_is_no_json_is_refused() -> None:
    bad = ["{", "[1,]", '{"a":1,}', '{"a"1}', "[1;2]", "nul", "NaN", "01", "1.", "-", '"a', r'"\x"', r'"\u12"', "'a'"]
    bad += [r'"\ud800"', r'"\udc00"', "{}x", "[1}", "{1:2}", '"\n"', "[" * 129 + "]" * 129, "Infinity"]
    for value in bad:
        with pytest.raises(TokenizerFileError):
            CoreTokenizer.from_json(made(SMALL, surprise=0).replace(b': 0, "m', f': {value}, "m'.encode()))
    whole = made(SMALL)
    for size in range(len(whole)):
        with pytest.raises(TokenizerFileError):
            CoreTokenizer.from_json(whole[:size])


@pytest.mark.fault(30)
def test_a_feature_outside_the_subset_is_named() -> None:
    vocabularies: list[dict[str, int]] = [{"a": 1_000_000}, {"a": 1, "b": 1}]
    made_of = [bpe(v, []) for v in vocabularies]
    for model in [{"type": "Unigram", "vocab": []}, *made_of, bpe({"a": 0}, [], dropout=0.5)]:
        with pytest.raises(UnsupportedFeature):
            CoreTokenizer.from_json(made(model))
    with pytest.raises(UnsupportedFeature) as caught:
        CoreTokenizer.from_json(made(SMALL, normalizer={"type": "Precompiled", "precompiled_charsmap": ""}))
    assert caught.value.path == "normalizer.precompiled_charsmap"


@needs_shared
def test_columns_and_vocabulary_agree() -> None:
    tokenizers = pytest.importorskip("tokenizers", minversion="0.23.3")
    for family in ["roberta", "phi-3"]:
        data = tokenizer_json(family)
        core, hf = CoreTokenizer.from_json(data), tokenizers.Tokenizer.from_str(data.decode())
        texts = ["", "Hello world", " <mask> x</s> ", "\u4f60\u597d e\u0301", "a" * 300]
        assert [core.encode_full(t)[0].tolist() for t in texts] == [core.encode_array(t).tolist() for t in texts]
        assert core.get_vocab() == hf.get_vocab() and core.get_vocab(False) == hf.get_vocab(False)
        assert core.vocab_size() == hf.get_vocab_size() and core.vocab_size(False) == hf.get_vocab_size(False)
        assert json.dumps(core.model()) == json.dumps(json.loads(hf.to_str())["model"])
        passes = trim_passes(Tokenizer.from_buffer(data)._processor)
        for text in texts:
            _, by_char, _ = core.encode_full(text, trim=False)
            for add_prefix_space in passes:
                by_char = trimmed(core.encode_tokens(text), by_char, add_prefix_space)
            assert by_char.tolist() == core.encode_full(text)[1].tolist()


def test_text_inserted_at_empty_matches_is_left_to_another_rung() -> None:
    # HF then loses the beginning of the text in later steps: nothing to imitate.
    for pattern in ({"Regex": r"\b"}, {"Regex": "a*"}, {"String": ""}):
        with pytest.raises(UnsupportedFeature):
            CoreTokenizer.from_json(made(SMALL, normalizer={"type": "Replace", "pattern": pattern, "content": "x"}))
    CoreTokenizer.from_json(made(SMALL, normalizer={"type": "Replace", "pattern": {"Regex": "a*"}, "content": ""}))


_FILE = '{"version":"1.0","added_tokens":[],"pre_tokenizer":null,"post_processor":null,"decoder":null,'
_MODEL = '"model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[]}'


@pytest.mark.fault(30)
@pytest.mark.parametrize(
    "data",
    [
        _FILE + '"model":{"type":"BPE","vocab":{"a":0,"a":1,"b":2},"merges":[]}}',
        f'{_FILE}{_MODEL},"model":{{"type":"BPE","vocab":{{"b":0}},"merges":[]}}}}',
        _FILE + '"model":{"type":"BPE","type":"WordPiece","vocab":{"a":0},"merges":[]}}',
    ],
    ids=["a_token", "the_model", "its_type"],
)
def test_a_key_that_stands_twice_is_read_as_by_the_reference(data: str) -> None:
    """The later one counts; where the reference refuses the file, so do we."""
    tokenizers = pytest.importorskip("tokenizers", minversion="0.23.3")
    try:
        theirs = tokenizers.Tokenizer.from_str(data)
    except Exception:
        with pytest.raises(TokenizerFileError):
            CoreTokenizer.from_json(data.encode())
        return
    ours = CoreTokenizer.from_json(data.encode())
    assert ours.encode_array("ab").tolist() == theirs.encode("ab").ids
    assert {ours.id_to_token(i) for i in range(3)} - {None} == set(theirs.get_vocab())
