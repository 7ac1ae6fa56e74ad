"""Tables for a terminal, as text. Columns are as wide as they are shown: a Chinese character takes two places, a
combining mark none."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

_GAP = "  "
_CUT = "…"


def shown_width(text: str) -> int:
    """Return places that ``text`` takes in a terminal."""
    return sum(map(_places, text))


def shortened(text: str, width: int) -> str:
    """``text`` in at most ``width`` places, an ellipsis in the last of them if a part is left out."""
    if shown_width(text) <= width:
        return text
    taken, kept = shown_width(_CUT), []
    for character in text:
        taken += _places(character)
        if taken > width:
            break
        kept.append(character)
    return "".join(kept) + _CUT


def text_table(rows: Sequence[Sequence[str]], *, header: Sequence[str], right: Sequence[int], title: str) -> str:
    """``rows`` as lines, every cell on one. ``right``: columns that are aligned there."""
    lines = [list(header), *map(list, rows)]
    for line in lines:
        line[:] = [" ".join(cell.split()) for cell in line]
    widths = [max(map(shown_width, column)) for column in zip(*lines)]
    lines.insert(1, ["─" * places for places in widths])
    table = [
        _GAP.join(_padded(cell, places, column in right) for column, (cell, places) in enumerate(zip(line, widths)))
        for line in lines
    ]
    return "\n".join([*([title, ""] if title else []), *(line.rstrip() for line in table)])


def _places(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _padded(cell: str, places: int, right: bool) -> str:
    space = " " * (places - shown_width(cell))
    return space + cell if right else cell + space
