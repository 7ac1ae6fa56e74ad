"""One example for each family of loads that end with their prompt: its numbers, and that none generates a token."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from prelude import Engine, EngineConfig
from tests.examples.conftest import ROOT, load

families = load("families")
QUESTION = "Why is the sky blue?"
ANSWERS = ("Air scatters blue light more than red.", "Because I say so.", "It is the sea's reflection.")


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.from_pretrained(config=EngineConfig(kv_bytes=1 << 23, deterministic=True)) as engine:
        yield engine


@pytest.fixture(autouse=True)
def nothing_is_generated(engine: Engine) -> Iterator[None]:
    before = engine.stats()["decode_tokens"]
    yield
    assert engine.stats()["decode_tokens"] == before == 0


@pytest.mark.feature("Q7")
def test_a_judge_does_not_depend_on_the_order_of_the_answers(engine: Engine) -> None:
    one, other = ANSWERS[:2]
    said = families.judge(engine, QUESTION, one, other)
    assert 0 < said < 1 and said == pytest.approx(1 - families.judge(engine, QUESTION, other, one), abs=1e-12)


@pytest.mark.feature("Q7")
def test_grades_are_mean_levels_and_the_text_is_read_once(engine: Engine) -> None:
    before = engine.stats()["prefill_tokens"]
    found = families.grade(engine, "A text of some words. " * 40, ["clarity", "accuracy", "style"])
    read = engine.stats()["prefill_tokens"] - before
    assert list(found) == ["clarity", "accuracy", "style"] and all(1 < level < 5 for level in found.values())
    text = len(engine.tokenizer.encode("A text of some words. " * 40).ids)
    assert text < read < 2 * text


def test_the_command_says_a_line_for_each_family() -> None:
    command = [sys.executable, str(ROOT / "examples" / "families.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    said = [line.split()[0] for line in done.stdout.splitlines()]
    assert list(dict.fromkeys(said)) == ["judge", "grade", "route", "embed", "rerank", "reward"]
