"""Labelled texts, checked before any of them is computed: each refusal names rows and the way out."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from prelude.errors import InvalidRequest, shown
from prelude.fitting.question import check_labels, label_of
from prelude.records import dataclass
from prelude.values.arrays import I32
from prelude.values.validation import listed

MOST_ROWS = 1 << 20
_NAMED = 5  # rows in a message
_SEEN = 200  # characters of a text that say its script


@dataclass(frozen=True, slots=True)
class LabelledTexts:
    """``labels`` are those of an answer, in its order, and ``truth`` [rows] the number of each text's own."""

    texts: tuple[str, ...]
    labels: tuple[str, ...]
    truth: I32

    def other_script(self) -> list[int]:
        """Return the rows whose letters are mostly of another script than those of most rows."""
        found = [_script_of(text) for text in self.texts]
        most = Counter(filter(None, found)).most_common(1)
        return [at for at, script in enumerate(found) if script and script != most[0][0]]

    @classmethod
    def of(cls, kind: str, texts: Any, labels: Any) -> LabelledTexts:
        texts, labels = listed(texts, "texts"), listed(labels, "labels")
        if len(texts) != len(labels):
            raise InvalidRequest(f"{len(labels)} labels of {len(texts)} texts; give one a text", field="labels")
        if len(texts) > MOST_ROWS:
            raise InvalidRequest(f"{len(texts)} rows; the limit is {MOST_ROWS}", field="texts")
        for at, one in enumerate(texts):
            if not isinstance(one, str):
                raise InvalidRequest(f"{shown(one)} is not a string; write objects as JSON", field=f"texts[{at}]")
        empty = [at for at, one in enumerate(texts) if not one.strip()]
        if empty:
            raise InvalidRequest(f"{rows_said(empty)} without text; leave out such rows", field="texts")
        names = [label_of(kind, label, f"labels[{at}]") for at, label in enumerate(labels)]
        known = sorted(set(names))
        _check_spelling(names, known)
        if len(known) < 2:
            said = f"all rows have the label {shown(known[0])}" if known else "there is no row"
            raise InvalidRequest(f"{said}; add rows of others", field="labels")
        order = check_labels(kind, known)
        single = [label for label, count in Counter(names).items() if count == 1]
        if single:
            where = rows_said([names.index(label) for label in single])
            raise InvalidRequest(
                f"{where}: the only one of its label ({shown(single[0])}); a label needs 2 rows: "
                "add one, or leave it out",
                field="labels",
            )
        _check_duplicates(texts, names)
        found = tuple([known[at] for at in order])
        number = {label: at for at, label in enumerate(found)}
        return cls(tuple(map(str.__str__, texts)), found, np.array([number[name] for name in names], np.int32))


def _script_of(text: str) -> str:
    found = Counter(filter(None, map(_script, text[:_SEEN])))
    return found.most_common(1)[0][0] if found else ""


@lru_cache(4096)
def _script(character: str) -> str:
    """By the first word of a letter's name in Unicode: Japanese is written in three scripts, which count as one."""
    word = unicodedata.name(character, "").split(" ")[0] if character.isalpha() else ""
    return "CJK" if word in ("HIRAGANA", "KATAKANA") else word


def rows_said(rows: Sequence[int]) -> str:
    more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
    return f"row{'s' * (len(rows) > 1)} {', '.join(map(str, rows[:_NAMED]))}{more}"


def _check_spelling(names: Sequence[str], known: Sequence[str]) -> None:
    spelt: dict[str, str] = {}
    for label in known:
        other = spelt.setdefault(" ".join(unicodedata.normalize("NFC", label.casefold()).split()), label)
        if other != label:
            rows = f"{rows_said([names.index(other)])} and {rows_said([names.index(label)])}"
            raise InvalidRequest(
                f"{shown(other)} and {shown(label)} ({rows}) differ in case, spaces or coding; spell them alike",
                field="labels",
            )


def _check_duplicates(texts: Sequence[str], names: Sequence[str]) -> None:
    seen: dict[str, int] = {}
    pairs = [(first, at) for at, one in enumerate(texts) if names[first := seen.setdefault(one, at)] != names[at]]
    if pairs:
        (first, at), more = pairs[0], f", and {len(pairs) - 1} more such rows" if len(pairs) > 1 else ""
        raise InvalidRequest(
            f"rows {first} and {at} have the same text and the labels {shown(names[first])} and {shown(names[at])}"
            f"{more}; keep one of each",
            field="labels",
        )
