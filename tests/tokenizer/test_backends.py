"""The backend of each file, the log's line about it, and the same tokens by every backend."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prelude.tokenizer import Tokenizer, TokenizerError

from tests.tokenizer.small_files import left_to_reference

pytest.importorskip("prelude.tokenizer._core", reason="the native core is not built")

laws = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


def split_by(text: str, pattern: str, behavior: str = "Isolated") -> str:
    state = json.loads(text)
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    state["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, level]}
    return json.dumps(state)


@pytest.mark.feature("J7")
def test_a_file_outside_the_subset_goes_to_the_reference(caplog: pytest.LogCaptureFixture, assert_same: Any) -> None:
    with caplog.at_level(logging.INFO, logger="prelude.tokenizer"):
        ours = Tokenizer.from_str(left_to_reference())
    assert ours.backend == "reference"
    assert [r.getMessage() for r in caplog.records if "backend reference" in r.getMessage()]
    assert "a token that is there twice at model.vocab" in caplog.text
    theirs = tokenizers.Tokenizer.from_str(left_to_reference())
    for text in ("ab a", "ba<x>", ""):
        assert_same(ours.encode(text), theirs.encode(text))
        assert ours.decode(ours.encode(text).ids) == theirs.decode(theirs.encode(text).ids)


@pytest.mark.feature("J7")
@pytest.mark.parametrize("flavour", ["byte-level", "template", "sentence pieces", "sequence"])
def test_the_subset_is_native_and_says_nothing(json_of: Any, flavour: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="prelude.tokenizer"):
        assert Tokenizer.from_str(json_of(flavour)).backend == "native"
    assert not caplog.records


@pytest.mark.feature("J7")
def test_without_hf_the_error_names_it(json_of: Any, tmp_path: Path) -> None:
    """A file of the reference backend is refused, also one for its pattern alone; the rest still works."""
    (tmp_path / "blocked").mkdir()
    (tmp_path / "blocked" / "tokenizers.py").write_text("raise ImportError('blocked')", encoding="utf-8")
    (tmp_path / "reference.json").write_text(left_to_reference(), encoding="utf-8")
    (tmp_path / "pattern.json").write_text(split_by(json_of("byte-level"), PATTERNS[0]), encoding="utf-8")
    (tmp_path / "fine.json").write_text(json_of("template"), encoding="utf-8")
    code = (
        "from prelude.tokenizer import BackendUnavailable, Tokenizer\n"
        "assert len(Tokenizer.from_file('fine.json').encode('Hello')) > 2\n"
        "for name, reason in ('reference.json', 'twice'), ('pattern.json', 'a pattern with the escape'):\n"
        "    try: Tokenizer.from_file(name)\n"
        "    except BackendUnavailable as e:\n"
        "        said = str(e)\n"
        "        assert '`tokenizers`' in said and 'pip install' in said and '[tokenizer]' in said, said\n"
        "        assert reason in said, said\n"
        "    else: raise AssertionError(name)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "blocked")}
    subprocess.run([sys.executable, "-c", code], check=True, env=env, cwd=tmp_path)


PATTERNS = [  # the first two are the reference's
    r"(\p{L})\1|\p{L}+|[^\p{L}]+",
    r"(?<=^|\n)>+ ?|[^\n]+|\n+",
    r"x*",
    r"(?<=\d)\s+|\p{L}+|[^\s\p{L}]+|\s",
    r"(?<![A-Za-z])[A-Z]\w*|\w+|\s+|.",
    r"\b\w+\b|\W",
    r"\B.|\h+",
    r"(?>\s+)(?=\S)|\S+|\s+",
    r"^\s*#.*$|\w+|.|\n",
    r"\A\p{Lu}|a\z|b\Z|\p{^L}{1,2}?|[\p{L}&&[^a-c]]++",
    r"\x{41}\x42?\n|\u0043+\.|\-\n|.",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
]


@pytest.mark.long
@pytest.mark.parametrize("behavior", ["Isolated", "Removed", "MergedWithPrevious", "Contiguous"])
@pytest.mark.parametrize("pattern", PATTERNS)
@laws
@given(text=st.text(st.sampled_from("abAB12 \n\t#>.é你 ñß_-\u0301\u2028\U0001f642\u1c89\U00010d4a"), max_size=30))
def test_patterns_split_as_hf_splits(json_of: Any, pattern: str, behavior: str, text: str) -> None:
    ours, theirs = loaded(split_by(json_of("byte-level"), pattern, behavior))
    assert ours.encode(text).ids == theirs.encode(text).ids
    assert ours.encode(text).offsets == theirs.encode(text).offsets


_cache: dict[str, tuple[Tokenizer, Any]] = {}


def loaded(text: str) -> tuple[Tokenizer, Any]:
    if text not in _cache:
        _cache[text] = Tokenizer.from_str(text), tokenizers.Tokenizer.from_str(text)
    return _cache[text]


@pytest.mark.fault(29)
def test_an_exponential_pattern_ends(json_of: Any) -> None:
    ours = Tokenizer.from_str(split_by(json_of("byte-level"), r"(?:(a)|a|aa)+\1b|[^a]"))
    assert ours.backend == "reference"
    with pytest.raises(TokenizerError, match="retry-limit-in-match over"):
        ours.encode("a" * 60)
    assert ours.encode("xyz").ids
    pattern = {"type": "Replace", "pattern": {"Regex": r"(?:(a)|a|aa)+\1b"}, "content": ""}
    growing = {"type": "Replace", "pattern": {"String": "q"}, "content": "x" * 64}
    written = json.loads(json_of("byte-level"))
    written["normalizer"] = {"type": "Sequence", "normalizers": [pattern, growing]}
    normalizes = Tokenizer.from_str(json.dumps(written))
    for call in (normalizes.encode, normalizes.normalizer.normalize_str):  # the first one measures the text's growth
        with pytest.raises(TokenizerError):
            call("c" * 1_100_000 + "a" * 60)
