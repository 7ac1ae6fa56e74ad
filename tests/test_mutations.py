"""The tool that edits the product at random."""

from __future__ import annotations

import subprocess
import sys

from tests.conftest import ROOT
from tests.mutations import drawn, edits

SOURCE = b"""
def half(count: int = 2, *, wide: bool = False) -> str:
    '''Not this: 7 < 8.'''
    if count < 3 and not wide:
        raise ValueError(f"{count + 1}")
    print([one for one in range(count // 2) if one], sep="\xc3\xa9")
    return "a" if wide else "b"
"""


def test_each_kind_of_edit_is_one_change_of_the_source() -> None:
    found = {(edit.kind, SOURCE[edit.start : edit.end].decode(), edit.new) for edit in edits("half.py", SOURCE)}
    assert found >= {
        ("comparison", "count < 3", "(count <= 3)"),
        ("operand dropped", "count < 3 and not wide", "(count < 3)"),
        ("not dropped", "not wide", "(wide)"),
        ("statement dropped", 'raise ValueError(f"{count + 1}")', "pass"),
        ("filter dropped", "[one for one in range(count // 2) if one]", "([one for one in range(count // 2)])"),
        ("arithmetic", "count // 2", "(count * 2)"),
        ("one branch", '"a" if wide else "b"', "('a')"),
        ("constant", "False", "(True)"),
    }
    assert not any("7" in old or old == "1" for _, old, _ in found), "texts and f-strings stay"
    chosen = drawn({"half.py": SOURCE}, 5, 1)
    assert len(chosen) == 5 and chosen == drawn({"half.py": SOURCE}, 5, 1)


def test_an_edit_that_no_test_notices_is_printed() -> None:
    command = [sys.executable, "-m", "tests.mutations", "prelude/terminal/tables.py", "--count", "1"]
    ran = subprocess.run([*command, "--", "tests/test_mutations.py", "-k", "each_kind"],
                         cwd=ROOT, capture_output=True, text=True)  # fmt: skip
    assert ran.returncode == 1, ran.stderr
    assert "survived  prelude/terminal/tables.py:" in ran.stdout and "0 of 1 edits were noticed" in ran.stdout
