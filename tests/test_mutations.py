"""The tool that breaks features on purpose: it refuses an edit that no longer fits, and restores the changed
files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutations.__main__ import chosen, files_with, out_of_time
from tests.mutations.edit import TableError, edit
from tests.mutations.runs import WarmTests
from tests.mutations.table import EDITS


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "a.py").write_text("x = 1\ny = 1\n", encoding="utf-8")
    (tmp_path / "b.py").write_text("z = 3\n", encoding="utf-8")
    return tmp_path


def test_an_edit_changes_its_files_and_returns_their_old_texts(tree: Path) -> None:
    both = edit("both", "A1 53", ("a.py", "x = 1", "x = 2"), ("a.py", "y = 1", "y = x"), ("b.py", "z", "w"))
    before = both.apply(tree)
    assert both.marks == ("A1", "53") and not both.native
    assert (tree / "a.py").read_text(encoding="utf-8") == "x = 2\ny = x\n" and (tree / "b.py").read_text(
        encoding="utf-8"
    ) == "w = 3\n"
    assert before == {tree / "a.py": "x = 1\ny = 1\n", tree / "b.py": "z = 3\n"}


@pytest.mark.parametrize(("old", "count"), [("= 1", 2), ("gone", 0)])
def test_an_old_text_that_is_not_there_once_is_refused_and_nothing_written(tree: Path, old: str, count: int) -> None:
    wrong = edit("wrong", "A1", ("b.py", "z", "w"), ("a.py", old, "new"))
    with pytest.raises(TableError, match=rf"wrong: .* a.py {count} times, not once"):
        wrong.apply(tree)
    assert (tree / "b.py").read_text(encoding="utf-8") == "z = 3\n"


def test_files_are_found_by_the_marks_in_them(tmp_path: Path) -> None:
    folder = tmp_path / "tests" / "deep"
    folder.mkdir(parents=True)
    (folder / "test_one.py").write_text('@pytest.mark.feature("A1")\ndef test_it(): ...\n', encoding="utf-8")
    (folder / "test_two.py").write_text("@pytest.mark.fault(5)\ndef test_it(): ...\n", encoding="utf-8")
    assert files_with(tmp_path, ["A1"]) == ["tests/deep/test_one.py"]
    assert files_with(tmp_path, ["5", "A1"]) == ["tests/deep/test_one.py", "tests/deep/test_two.py"]
    assert files_with(tmp_path, ["A", "A11", "55"]) == []


def test_a_test_that_does_not_end_is_told_from_a_slow_machine(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(
        "def test_quick(): ...\ndef test_wrong(): assert False\n", encoding="utf-8"
    )
    passed = "tests/test_it.py::test_first PASSED                [ 20%]\n"
    with WarmTests(tmp_path) as tests:
        said = out_of_time(tests, passed + "tests/test_it.py::test_quick \n+++ Timeout +++\n", 6000)
        assert said[0] == "killed" and said[1].startswith("tests/test_it.py::test_quick: more than 6000 s, and ")
        assert out_of_time(tests, passed + "tests/test_it.py::test_wrong \n", 6000)[0] == "unclear"
        assert out_of_time(tests, passed, 6000) == ("unclear", "a test ran out of time")


def test_every_edit_has_a_name_of_its_own_and_marks() -> None:
    assert len({one.name for one in EDITS}) == len(EDITS)
    assert all(one.marks and one.changes for one in EDITS)
    assert chosen([], "53") == [one for one in EDITS if "53" in one.marks]
    with pytest.raises(SystemExit, match="no edit has the name 'nothing'"):
        chosen(["nothing"], None)
