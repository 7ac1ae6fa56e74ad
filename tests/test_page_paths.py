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


def test_functions_on_the_path_of_a_state_are_in_their_files() -> None:
    """The table of ARCHITECTURE.md: each row's files, the later ones by name alone, have the row's functions."""
    rows = re.findall(
        r"^\| \d+ \| ([^|]*) \| ([^|]*) \|", (ROOT / "docs/ARCHITECTURE.md").read_text(encoding="utf-8"), re.M
    )
    assert len(rows) > 10
    for files, functions in rows:
        names = re.findall(r"`([^`]*)`", files)
        folder = Path(names[0]).parent
        text = "".join(
            (ROOT / name if "/" in name else ROOT / folder / name).read_text(encoding="utf-8") for name in names
        )
        for function in re.findall(r"`([^`]*)`", functions):
            assert all(re.search(rf"\b{part}\b", text) for part in function.split(".")), (names, function)
