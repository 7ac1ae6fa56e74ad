"""docs/BACKGROUND.md names tests and counters: they are there. ``test_docs`` looks for its files."""

from __future__ import annotations

import re
from pathlib import Path

from prelude.results import RequestStats
from prelude.runtime.stats import EngineStats

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "BACKGROUND.md").read_text(encoding="utf-8")
WORDS = (
    "token, tokenizer, prompt, completion, logits, sampler, request, batch, prefill, decode, KV cache, scheduler, "
    "block, page, prefix cache, tensor parallelism, CUDA graph, MIL, JCT, TTFT, TPOT, E2E, RPM, OneShot, Mixed, "
    "leader, peer, refresh, state index"
)


def test_every_test_that_the_page_names_exists() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    named = re.findall(r"`(test_\w+)`", PAGE)
    assert named and not [name for name in named if f"def {name}(" not in sources]


def test_every_word_of_the_field_is_explained() -> None:
    glossary = PAGE.split("## Constraints")[0]
    rows = " ".join(row.split("|")[1] for row in glossary.splitlines() if row.startswith("| "))
    assert not [word for word in WORDS.split(", ") if word not in rows]


def test_the_counters_that_the_page_names_are_there() -> None:
    assert "computed_tokens" in RequestStats.__dataclass_fields__ and "estimated_jct" in dir(RequestStats())
    assert "blocks_used" in EngineStats.__dataclass_fields__
