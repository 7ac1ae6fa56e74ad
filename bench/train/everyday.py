"""Everyday sentences, written for this model, in the languages where the catalogues have none.

Catalogues of translations speak of settings and permissions; people write about shops, weather and dinner.
``everyday.txt`` has a sentence a line, below a line ``# LANGUAGE``.
"""

from __future__ import annotations

from functools import cache

from . import DATA


@cache
def sentences() -> dict[str, list[str]]:
    """The sentences by language."""
    found: dict[str, list[str]] = {}
    for line in (DATA / "everyday.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            of_language = found.setdefault(line[2:], [])
        elif line:
            of_language.append(line)
    return found
