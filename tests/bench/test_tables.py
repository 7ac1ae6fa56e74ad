"""The tables of the docs: made of the result files, and stale if the figures are of other code."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import record, tables

MEASURED = [
    ("a text", "other / prelude", 1.25, 1.0, 1.5, "x", ">= 2", "one way"),
    ("a text", "prelude", 1200.4, 1200.4, 1200.4, "ms", "<= 1200.4", ""),
    ("two texts", "other / prelude", 0.5, 0.5, 0.5, "x", "", ""),
]
ROWS = [dict(zip(("load", "measure", "value", "low", "high", "unit", "reach", "note"), row)) for row in MEASURED]
FACTS = {"commit": "abc1234+", "cpu": "A", "cores": 2, "threads": 1, "kernels": {"int8": "avx2"}, "peer": "1.2.3"}
EDITS = [("1,200 ms,", "1,100 ms,"), ("commit abc1234+", "commit abc1235"), ("0.5x", "0.6x")]


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with one result file and one page; ``tables`` reads them in the place of the project's."""
    (tmp_path / "one.json").write_text(
        json.dumps({"command": "python -m bench engine", "rows": ROWS, "facts": FACTS | {"correctness": []}}),
        encoding="utf-8",
    )
    page = tmp_path / "page.md"
    page.write_text(
        "before\n<!-- figures one.json -->\n<!-- end of figures -->\nbetween\n"
        "<!-- figures\nours and theirs | the other | one.json | a text | other / prelude; prelude\n-->\n"
        "<!-- end of figures -->\nbehind\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    monkeypatch.setattr(tables, "PAGES", (page,))
    tables.result.cache_clear()
    yield page
    tables.result.cache_clear()


def run(monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setattr(sys, "argv", ["bench tables", *options])
    return tables.main()


def test_a_table_is_that_of_its_file(pages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, "--check") == 1, "there is no table yet"
    assert run(monkeypatch) == 0
    text = pages.read_text(encoding="utf-8")
    assert "| prelude | 1,200 ms, aim <= 1200.4 |  |" in text
    assert "| other / prelude | 1.25x [1 .. 1.5], aim >= 2, not met (one way) | 0.5x |" in text
    told = "commit abc1234+; A, 2 cores, 1 threads; kernels avx2; peer 1.2.3; correctness not shown. **Stale**: a"
    assert f"`python -m bench engine`; `one.json`; {told}" in text
    assert "| 1.25x [1 .. 1.5], 1,200 ms | A, 2 cores, 1 threads | `one.json` **Stale**" in text
    assert text.startswith("before\n") and text.endswith("behind\n") and "\nbetween\n" in text
    assert run(monkeypatch, "--check") == 0
    assert run(monkeypatch) == 0 and pages.read_text(encoding="utf-8") == text
    assert run(monkeypatch, "--release") == 1, "the figures are stale"
    monkeypatch.setattr(tables, "stale", lambda facts: "")
    assert run(monkeypatch, "--check") == 0, "a table may say that its figures are stale, and need not"
    assert run(monkeypatch) == 0 and "Stale" not in pages.read_text(encoding="utf-8")


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_table_is_found(edit: tuple[str, str], pages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch)
    pages.write_text(pages.read_text(encoding="utf-8").replace(*edit), encoding="utf-8")
    assert run(monkeypatch, "--check") == 1


def test_a_file_that_no_table_reads_is_found(pages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch)
    (pages.parent / "two.json").write_text("{}", encoding="utf-8")
    assert run(monkeypatch, "--check") == 1


def test_a_figure_of_this_commit_is_not_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are stale behind many commits to the measured folders, and on a branch that was left."""

    def git(*words: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a", "-C", str(tmp_path), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def change(count: int) -> None:
        for number in range(count):
            (tmp_path / "prelude").write_text(f"{number} of {count}", encoding="utf-8")
            git("add", "prelude")
            git("commit", "-q", "-m", "a change")

    git("init", "-q", "-b", "main")
    monkeypatch.setattr(record, "ROOT", tmp_path)
    change(1)
    first = record.commit()
    assert record.stale({"commit": first}) == ""
    (tmp_path / "prelude").write_text("not committed", encoding="utf-8")
    assert record.commit() == f"{first}+" and record.stale({"commit": f"{first}+"}) == "a tree with changes"
    git("checkout", "-q", "-b", "left")
    change(2)
    left = record.commit()
    (tmp_path / "prelude").write_text("not committed", encoding="utf-8")
    dirty = record.commit()
    git("checkout", "-q", "-f", "main")
    assert {record.stale({"commit": one}) for one in (left, dirty)} == {"a commit that is not in the history"}
    assert record.stale({}) == "no commit"
    change(record.MANY + 1)
    assert record.stale({"commit": first}) == "older code"
