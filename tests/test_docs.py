"""The documentation's links, and the files and modules that it names, exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "tokenizer/core/NOTES.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
TOP = "prelude|_native|tokenizer|cuda|tests|bench|docs|examples|tools"
NAMED = re.compile(rf"(?<![\w/.~-])((?:{TOP})/[\w./*-]*\w/?)")
MODULES = re.compile(r"python -m ((?:tests|bench)(?:\.[a-z_]+)+)")  # NAME stands for any of them
LINK = re.compile(r"\]\(([^)\s]+)\)")


def ids(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def anchors(page: Path) -> set[str]:
    """The fragments that GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path, _, fragment = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        assert not fragment or fragment in anchors(found), target


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_named_files_and_modules_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    missing = [name for name in sorted(set(NAMED.findall(text))) if not any(ROOT.glob(name.rstrip("/")))]
    modules = [name.replace(".", "/") for name in MODULES.findall(text)]
    missing += [
        name for name in modules if not ((ROOT / f"{name}.py").exists() or (ROOT / name / "__main__.py").exists())
    ]
    assert not missing


def test_the_table_of_extras_is_that_of_pyproject() -> None:
    """Each extra once, and the pages of the parts that need one name it."""
    page = (ROOT / "docs" / "INSTALL.md").read_text(encoding="utf-8")
    table = re.search(r"^\| extra \|.*?\n\n", page, re.M | re.S)
    assert table is not None
    listed = re.findall(r"^\| (`[^|]*) \|", table[0], re.M)
    found = [name for row in listed for name in re.findall("`([a-z-]+)`", row)]
    part = (ROOT / "pyproject.toml").read_text(encoding="utf-8").split("[project.optional-dependencies]\n")[1]
    extras = re.findall(r"^([a-z-]+) = \[", part.split("\n[")[0], re.M)
    assert sorted(found) == sorted(extras)
    for name, extra in (("BULK", "bulk"), ("CALIBRATION", "calibration"), ("SERVICES", "metrics")):
        assert f"prelude-engine[{extra}]" in (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
