"""Edit: one change of the source that breaks a feature, as data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class TableError(Exception):
    """An edit whose old text does not stand in its file exactly once."""


@dataclass(frozen=True, slots=True)
class Change:
    """``old``, which stands in ``file`` exactly once, becomes ``new``. ``file`` is relative to the root."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Edit:
    """``marks``: ids of features ("A6") and numbers of faults ("53"), whose tests must fail with the edit."""

    name: str
    marks: tuple[str, ...]
    changes: tuple[Change, ...]

    def apply(self, root: Path) -> dict[Path, str]:
        """Writes the edit below ``root``; the files' texts as they were. ``TableError``, and nothing written, where
        an old text does not stand in its file exactly once."""
        before: dict[Path, str] = {}
        after: dict[Path, str] = {}
        for change in self.changes:
            path = root / change.file
            text = after.get(path) or path.read_text(encoding="utf-8")
            if (count := text.count(change.old)) != 1:
                raise TableError(f"{self.name}: its old text stands in {change.file} {count} times, not once")
            before.setdefault(path, text)
            after[path] = text.replace(change.old, change.new)
        for path, text in after.items():
            path.write_text(text, encoding="utf-8")
        return before

    @property
    def native(self) -> bool:
        """Whether the extensions have to be built again."""
        return any(not change.file.endswith(".py") for change in self.changes)


def edit(name: str, marks: str, *changes: tuple[str, str, str]) -> Edit:
    """``marks`` separated by spaces; each change is a file, its old text and its new text."""
    return Edit(name, tuple(marks.split()), tuple(Change(*change) for change in changes))
