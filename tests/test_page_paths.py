"""Every file and folder that the pages for contributors name is there, and so is every function beside it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "CONTRIBUTING.md", "docs/ARCHITECTURE.md", "docs/CUDA.md", "docs/MODELS.md", "docs/NATIVE.md")
FOLDERS = ("prelude", "cuda", "tokenizer", "_native", "tests", "bench", "examples", "docs", "tools")
PATH = re.compile(rf"`((?:{'|'.join(FOLDERS)})/[\w./*-]*)`")


@pytest.mark.parametrize("page", PAGES)
def test_paths_on_a_page_exist(page: str) -> None:
    found = PATH.findall((ROOT / page).read_text(encoding="utf-8"))
    missing = [path for path in found if not (any(ROOT.glob(path)) if "*" in path else (ROOT / path).exists())]
    assert not missing
