"""The tokenizer bench compares before it times, stops at a planted difference, and names the aims that are met."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from bench.blocks import Times, blocks, means
from bench.tokenizer.padded import TEXTS
from bench.tokenizer.sides import KINDS, OURS
from bench.tokenizer.texts import cut, documents, inputs, texts_of, unseen

ROOT = Path(__file__).resolve().parents[2]
CHARACTERS = "The harbour was quiet; 12 boats lay at the quay. Straße, 你好世界 🙂"


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", "tokenizer", *arguments, "--quick"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small file as language models have them: byte-level, with control tokens."""
    small: Any = tokenizers.Tokenizer(models.BPE())
    small.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    small.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    small.train_from_iterator([CHARACTERS, *inputs(quick=True).values()], trainer)
    path = tmp_path_factory.mktemp("file") / "tokenizer.json"
    small.save(str(path))
    return str(path)


@pytest.mark.long
@pytest.mark.feature("J6")
@pytest.mark.parametrize("kind", KINDS)
def test_a_planted_fault_of_ours_stops_it(tokenizer_file: str, kind: str) -> None:
    done = bench("--tokenizer", tokenizer_file, "--plant-fault", OURS, kind)
    assert done.returncode == 1
    assert "nothing is timed" in done.stderr and done.stderr.rstrip().endswith(f": {kind}")
    assert not done.stdout


@pytest.mark.feature("J6")
@pytest.mark.parametrize("part", ["families", "first"])
def test_a_fault_in_another_family_stops_it_before_that_is_timed(
    tokenizer_file: str, tmp_path: Path, part: str
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / "en.txt").write_text((ROOT / "README.md").read_text(encoding="utf-8"), encoding="utf-8")
    whole = json.loads(Path(tokenizer_file).read_text(encoding="utf-8"))
    whole["model"]["dropout"] = 0.5  # HF leaves merges out at random, ours never does
    (other / "tokenizer.json").write_text(json.dumps(whole), encoding="utf-8")
    done = bench(
        "--tokenizer", tokenizer_file, "--family", str(other / "tokenizer.json"), "--only", part,
        "--texts", str(tmp_path), "--json", str(tmp_path / "table.json"),
    )  # fmt: skip
    assert done.returncode == 1 and "nothing is timed: other" in done.stderr, done.stderr
    assert not (tmp_path / "table.json").exists()


@pytest.mark.feature("J6")
@pytest.mark.feature("J9")
@pytest.mark.feature("K3")
@pytest.mark.timeout(900)
def test_without_a_fault_it_says_equal_and_gives_every_row(
    tokenizer_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "en.txt").write_text(cut((ROOT / "README.md").read_text(encoding="utf-8"), 90_000), encoding="utf-8")
    table, objdump = tmp_path / "table.json", tmp_path / "objdump"
    objdump.write_text("#!/bin/sh\necho 'vpaddb %ymm0,%ymm1,%ymm2'\n", encoding="utf-8")  # the real one takes long
    objdump.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    done = bench(
        "--tokenizer", tokenizer_file, "--family", tokenizer_file, "--texts", str(tmp_path), "--json", str(table)
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("equal to HF")
    told = json.loads(table.read_text(encoding="utf-8"))
    rows, file = told["rows"], Path(tokenizer_file).parent.name
    assert told["facts"]["builds"]["tokenizers"] == "AVX2"
    with_reach = {(row["load"].split(" (")[0], row["measure"]) for row in rows if row["reach"]}
    assert {
        ("geometric mean of 11 inputs", "to a list, times HF"),
        ("geometric mean of 11 inputs", "to an array, times HF's list"),
        ("tiny", "to a list"),
        ("chat of 4000 ch, turns never seen", "to a list"),
        ("en", "never seen, the first 45,000 characters after a load"),
        ("en", "never seen, the next 45,000 characters, times the best peer"),
        ("geometric mean of 11 inputs", "ids with offsets, times HF"),
        ("geometric mean of 11 inputs", ".offsets, times HF"),
        ("geometric mean of 1 inputs", "decode, times HF: medium_prose"),
        ("the tokenizer.json", "load, of HF's time"),
        ("prelude, kept tables, its own process", "first load"),
        ("prelude, kept tables, its own process", "first call"),
        ("prelude, its own process", "memory of a load"),
        (file, f"PreTrainedTokenizerFast, {TEXTS}, to arrays, never seen, times HF"),
        ("batch of 16 x 674 ch", "encode_batch, times the best peer"),
        ("8 threads x 100 x 674 ch", "encode, times the best peer"),
    } <= with_reach
    assert any(measure.startswith("p99 of ") for _, measure in with_reach)
    assert any("times the best exact peer" in measure for _, measure in with_reach)
    if importlib.util.find_spec("fastokens"):
        assert {
            ("geometric mean of 11 inputs", "to an array, times fastokens"),
            (file, f"encode_batch, {TEXTS}, again, times fastokens"),
            (file, f"PreTrainedTokenizerFast, {TEXTS}, to arrays, never seen, times fastokens"),
        } <= {(row["load"], row["measure"]) for row in rows}


@pytest.mark.feature("J6")
def test_a_peer_that_differs_has_no_figure_and_ours_has(tokenizer_file: str, tmp_path: Path) -> None:
    pytest.importorskip("iree.tokenizer", reason="a peer")
    done = bench("--tokenizer", tokenizer_file, "--only", "fixed", "--plant-fault", "iree", "array")
    assert done.returncode == 0, done.stderr
    assert "tiny: iree to array differs from HF: no figure" in done.stderr
    assert "to an array, times iree" not in done.stdout and "to a list, times iree" in done.stdout


def test_blocks_alternate_and_their_first_calls_do_not_count() -> None:
    calls: list[tuple[str, int]] = []

    def run(name: str, slow: float) -> Any:
        def of(count: int) -> float:
            calls.append((name, count))
            return slow * count

        return of

    times = blocks({"a": run("a", 2e-3), "b": run("b", 1e-3)}, rounds=3, seconds=4e-3)
    assert calls == [("a", 1), ("a", 1), ("b", 1), ("b", 1)] + [("a", 1), ("a", 2), ("b", 1), ("b", 4)] * 3
    assert times.ratios("a", "b") == pytest.approx([2, 2, 2])
    assert means([[2.0, 8.0], [8.0, 8.0]]) == pytest.approx([4, 8])


def test_the_faster_way_is_the_figure_of_a_peer_and_the_best_peer_took_part_in_each_round() -> None:
    times = Times({"a": [1.0, 1.0], "b": [3.0, 2.0], "b, fast": [2.0, 2.0], "b, slow": [4.0, 4.0], "once": [0.1]})
    times.join("b, fast", "b")
    times.join("b, slow", "b")
    assert list(times.of) == ["a", "b", "once"] and times.ratios("b", "a") == [2, 2] and times.best("a") == "b"


REFERENCE = {
    "tiny": 5, "short_english": 51, "short_chinese": 90, "medium_prose": 674, "code_snippet": 470,
    "mixed_multilingual": 641, "long_repeat": 2_025, "long_unique": 4_000, "very_long": 8_000, "chat_template": 212,
    "long_32K": 32_000, "long_64K": 64_000, "long_200K": 200_000, "long_code_16K": 16_000,
    "multi_turn_chat_8K": 21_370, "multi_turn_chat_32K": 85_480, "long_chinese_32K": 31_998,
}  # fmt: skip


@pytest.mark.feature("K1")
def test_the_reference_inputs_have_the_published_names_and_lengths() -> None:
    others = {"random_4K", "long_200K_unique", "dense_chat_16K"}
    assert {name: len(text) for name, text in inputs(quick=False).items() if name not in others} == REFERENCE


@pytest.mark.feature("K4")
def test_a_text_that_is_not_mostly_of_its_script_is_refused_and_made_without_such_lines(tmp_path: Path) -> None:
    (tmp_path / "page").write_text("今天的天气非常好\nThe weather is fine today\n" * 50, encoding="utf-8")
    assert set("".join(documents("zh", [tmp_path / "page"], 1_000)).split()) == {"今天的天气非常好"}
    (tmp_path / "zh.txt").write_text("今天 The weather is fine today", encoding="utf-8")
    with pytest.raises(SystemExit, match="zh is not mostly Han: 28 characters, 9% Han"):
        texts_of(tmp_path)


@pytest.mark.feature("K4")
def test_five_inputs_are_natural_text_which_the_streamed_table_does_not_have() -> None:
    texts = {name: "".join(map(chr, range(0x100, 0x4000))) * 100 for name in ("code_py", "en", "zh", "multi")}
    natural = {name: text for name, text in inputs(False, texts).items() if name.startswith("natural")}
    assert [len(text) for text in natural.values()] == [16_384, 32_768, 200_000, 32_768, 32_768]
    assert texts["en"] == natural["natural_en_200K"] + unseen(texts["en"], len(texts["en"]) - 200_000)


@pytest.mark.feature("K4")
def test_some_inputs_leave_a_cache_nothing_to_remember() -> None:
    texts = inputs(quick=False)
    for name in ("long_unique", "long_200K_unique"):
        words = texts[name].split()
        assert len(set(words)) > 0.9 * len(words), name
    pieces = [texts["random_4K"][at : at + 6] for at in range(0, 4_000, 6)]
    assert len(set(pieces)) > 0.98 * len(pieces)
    turns = texts["multi_turn_chat_32K"].split("<|im_start|>")[1:]
    assert len(set(turns)) == len(turns)


@pytest.mark.long
@pytest.mark.feature("K2")
@pytest.mark.feature("K3")
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
@pytest.mark.timeout(900)
def test_the_core_is_timed_without_python_after_it_was_compared(tokenizer_file: str, tmp_path: Path) -> None:
    pytest.importorskip("pybind11", reason="the driver is built with pybind11")
    command = [sys.executable, "-m", "bench", "tokenizer_native", "--tokenizer", tokenizer_file, "--quick"]
    command += ["--threads", "2", "--json", str(tmp_path / "table.json"), "--flags=-O0"]
    command += ["--build", str(tmp_path / "driver")]

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *more], cwd=ROOT, capture_output=True, text=True)

    done = run("--plant-fault")
    assert done.returncode == 1 and "nothing is timed" in done.stderr, done.stderr
    assert not (tmp_path / "table.json").exists()
    done = run()
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "table.json").read_text(encoding="utf-8"))["rows"]
    of_one = {row["measure"]: row["value"] for row in rows if row["load"].startswith("medium_prose")}
    assert set(of_one) == {"one thread", "python", "boundary", "2 threads"}
    assert of_one["one thread"] > 0 and of_one["2 threads"] > 0
