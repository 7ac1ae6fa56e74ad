"""The tool that edits the product at random."""

from __future__ import annotations

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
