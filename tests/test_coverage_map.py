"""docs/FEATURES.md is the list that the marks of tests refer to."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.coverage_map import LIST, coverage, listed

TESTS = Path(__file__).parent
BACKGROUND = LIST.parent / "BACKGROUND.md"
NO_MECHANISM = re.compile(r"\*(Measured|Context)\*")
KINDS = {"feature": "features", "fault": "faults"}


def marks_of(path: Path) -> Iterator[tuple[str, str]]:
    """(kind, id) of each ``pytest.mark.feature(...)`` and ``pytest.mark.fault(...)`` in a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in KINDS:
            mark = node.func.value
            if isinstance(mark, ast.Attribute) and mark.attr == "mark":
                assert len(node.args) == 1 and isinstance(node.args[0], ast.Constant), f"{path}:{node.lineno}"
                yield KINDS[node.func.attr], str(node.args[0].value)


@cache
def all_marks() -> list[tuple[Path, str, str]]:
    return [(path, *mark) for path in TESTS.rglob("*.py") for mark in marks_of(path)]


def test_every_mark_is_a_row_of_the_list() -> None:
    rows = {kind: set(names) for kind, names in listed().items()}
    marks = all_marks()
    assert len(marks) > 300
    assert not [mark for mark in marks if mark[2] not in rows[mark[1]]]


def test_a_row_without_a_test_is_said_to_be_open() -> None:
    """Rows of mechanisms and faults; docs/BACKGROUND.md lists those that no test shows."""
    marked = {(kind, name) for _, kind, name in all_marks()}
    text = dict(re.findall(r"^\| ([A-Z]?\d+) \| (.*)$", LIST.read_text(encoding="utf-8"), re.M))
    _, section = BACKGROUND.read_text(encoding="utf-8").split("## Scope and open points")
    said = set(re.findall(r"\b[A-Z]?\d+\b", section))
    open_rows = {
        name
        for kind, names in listed().items()
        for name in names
        if (kind, name) not in marked and not NO_MECHANISM.match(text[name])
    }
    assert open_rows <= said, sorted(open_rows - said)


def test_no_row_stands_twice() -> None:
    rows = listed()
    assert rows["features"] and rows["faults"]
    assert all(len(names) == len(set(names)) for names in rows.values())


def test_a_row_is_shown_by_a_test_that_passed(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    entries = {
        "passed": {"marks": [["feature", "B6"], ["fault", "23"]], "passed": True, "failed": False},
        "failed": {"marks": [["feature", "B6"], ["fault", "24"]], "passed": True, "failed": True},
    }
    record.write_text(json.dumps(entries), encoding="utf-8")
    shown = coverage(record)
    assert shown == {"features": {"B6": ["passed"]}, "faults": {"23": ["passed"]}}
    assert coverage(tmp_path / "missing.json") == {"features": {}, "faults": {}}
