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

native = pytest.importorskip("prelude.tokenizer._core", reason="the native core is not built")
splitter = pytest.importorskip("prelude.tokenizer.backends.splitter")
pytest.importorskip("regex")

laws = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))


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
@pytest.mark.parametrize("missing", ["tokenizers", "regex"])
def test_without_the_package_of_a_rung_the_error_names_it(missing: str, json_of: Any, tmp_path: Path) -> None:
    """Without HF a file of the reference backend is refused, without both packages also a refused pattern; the rest
    still works."""
    (tmp_path / "blocked").mkdir()
    for package in {"tokenizers", missing}:
        (tmp_path / "blocked" / f"{package}.py").write_text("raise ImportError('blocked')", encoding="utf-8")
    (tmp_path / "reference.json").write_text(left_to_reference(), encoding="utf-8")
    (tmp_path / "pattern.json").write_text(split_by(json_of("byte-level"), PATTERNS[0]), encoding="utf-8")
    (tmp_path / "fine.json").write_text(json_of("template"), encoding="utf-8")
    code = (
        "import sys\n"
        "from prelude.tokenizer import BackendUnavailable, Tokenizer\n"
        "assert len(Tokenizer.from_file('fine.json').encode('Hello')) > 2\n"
        "refused = ['reference.json'] + (['pattern.json'] if sys.argv[1] == 'regex' else [])\n"
        "for name in refused:\n"
        "    try: Tokenizer.from_file(name)\n"
        "    except BackendUnavailable as e:\n"
        "        said = str(e)\n"
        "        assert '`tokenizers`' in said and 'pip install' in said and '[tokenizer]' in said, said\n"
        "        assert name != 'reference.json' or 'twice' in said, said\n"
        "    else: raise AssertionError(name)\n"
        "if 'pattern.json' not in refused: assert Tokenizer.from_file('pattern.json').backend == 'native+regex'\n"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "blocked")}
    subprocess.run([sys.executable, "-c", code, missing], check=True, env=env, cwd=tmp_path)


# A back-reference that never matches makes the native compiler refuse a pattern that it could compile.
NEVER = r"|(\x{10FFFF})\1"
PATTERNS = [
    r"(\p{L})\1|\p{L}+|[^\p{L}]+",
    r"(?<=^|\n)>+ ?|[^\n]+|\n+",
    r"(?<=\d)\s+|\p{L}+|[^\s\p{L}]+|\s" + NEVER,
    r"(?<![A-Za-z])[A-Z]\w*|\w+|\s+|." + NEVER,
    r"\b\w+\b|\W" + NEVER,
    r"\B.|\h+" + NEVER,
    r"(?>\s+)(?=\S)|\S+|\s+" + NEVER,
    r"^\s*#.*$|\w+|.|\n" + NEVER,
    r"\A\p{Lu}|a\z|b\Z|\p{^L}{1,2}?|[\p{L}&&[^a-c]]++" + NEVER,
    r"x*" + NEVER,
    r"\x{41}\x42?\n|\u0043+\.|\-\n|." + NEVER,
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+" + NEVER,
]


@pytest.mark.long
@pytest.mark.parametrize("behavior", ["Isolated", "Removed", "MergedWithPrevious", "Contiguous"])
@pytest.mark.parametrize("pattern", PATTERNS)
@laws
@given(text=st.text(st.sampled_from("abAB12 \n\t#>.é你ñß_-\u0301\u2028\U0001f642\u1c89\U00010d4a"), max_size=30))
def test_refused_patterns_split_as_hf_splits(json_of: Any, pattern: str, behavior: str, text: str) -> None:
    ours, theirs = loaded(split_by(json_of("byte-level"), pattern, behavior))
    assert ours.backend == "native+regex"
    assert ours.encode(text).ids == theirs.encode(text).ids
    assert ours.encode(text).offsets == theirs.encode(text).offsets


@pytest.mark.parametrize("pattern", PATTERNS)
def test_refused_patterns_are_served_by_the_regex_package(
    json_of: Any, caplog: pytest.LogCaptureFixture, pattern: str
) -> None:
    text = split_by(json_of("byte-level"), pattern)
    with caplog.at_level(logging.INFO, logger="prelude.tokenizer"):
        ours = Tokenizer.from_str(text)
    assert ours.backend == "native+regex"
    assert len(caplog.records) == 1 and "backend native+regex" in caplog.text
    theirs = tokenizers.Tokenizer.from_str(text)
    for one in ("aabB12 \n\t# x\n#é你 ABC", "> a\n>>b \u2028c", "ñß_ñ é\u0301 xx", "A\nB-\nCC.AB\nD", ""):
        mine, other = ours.encode(one), theirs.encode(one)
        assert (mine.ids, mine.offsets, mine.word_ids) == (other.ids, other.offsets, other.word_ids), one


_cache: dict[str, tuple[Tokenizer, Any]] = {}


def loaded(text: str) -> tuple[Tokenizer, Any]:
    if text not in _cache:
        _cache[text] = Tokenizer.from_str(text), tokenizers.Tokenizer.from_str(text)
    return _cache[text]


@pytest.mark.fault(29)
@pytest.mark.parametrize(
    "pattern",
    [
        r"(?i)straße(?<=x)|\w",
        r"(?<name>a)\k<name>|.",
        r"\G(?<=a)b|.",
        r"a\Kb(?<=b)|.",
        r"(?<=a)b{1,2}+|.",
        r"(?<=a)b{2}?|.",
        r"(?<=a)\R|.",
        r"(?x: a )(?<=a)|.",
        r"(?<=a)b**|.",
    ],
)
def test_a_pattern_that_two_engines_read_differently_goes_to_the_reference(json_of: Any, pattern: str) -> None:
    ours, theirs = loaded(split_by(json_of("byte-level"), pattern))
    assert ours.backend in ("reference", "native")
    for text in ("aab bbb straße STRASSE", "a\r\nb", "xaba"):
        assert ours.encode(text).ids == theirs.encode(text).ids


@pytest.mark.fault(29)
def test_an_exponential_pattern_ends(json_of: Any) -> None:
    ours = Tokenizer.from_str(split_by(json_of("byte-level"), r"(?:(a)|a|aa)+\1b|[^a]"))
    assert ours.backend == "native+regex"
    with pytest.raises(TokenizerError, match="takes too long on this text"):
        ours.encode("a" * 60)
    assert ours.encode("xyz").ids


@pytest.mark.fault(30)
@pytest.mark.parametrize(
    "pattern",
    [r"(a)\1a{100000000}", r"(a)\1(?:(?:(?:ab){1000}){1000}){10}", r"(a)\1(?=\w{200,})", r"(a)\1" + r"\b" * 300],
    ids=["a letter", "groups", "a class", "edges of words"],
)
def test_a_pattern_that_would_become_too_long_is_not_compiled(pattern: str) -> None:
    """``regex`` writes repetitions out: the first of these took more than 6 GB, 1,000 classes took 12 seconds."""
    with pytest.raises(splitter.Refused, match="more than 1048576 characters, classes and repetitions written out"):
        splitter.matcher(native)(pattern)
    splitter.matcher(native)(r"(a)\1(?:(?:b{3}){20,}|\w{1,1000}){9}")


@pytest.mark.fault(30)
def test_the_size_of_written_out_patterns_is_bounded_over_a_file() -> None:
    """1,024 patterns of 99 classes each took minutes."""
    made = splitter.Translation(lambda _: [(0x61, 0x7A)] * 1000)
    with pytest.raises(splitter.Refused, match="more than 1048576 characters"):
        for _ in range(100):
            made.of("[a-z]b")
    made = splitter.Translation(lambda _: [(0x61, 0x7A)])
    assert made.of("[ab][ab]" * 100)
    with pytest.raises(splitter.Refused, match="more than 32 classes"):
        for i in range(33):
            made.of(f"[a{i}]")
