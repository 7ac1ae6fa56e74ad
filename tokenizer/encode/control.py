"""Which added tokens are control tokens: by the files, and not by a token's looks.

flag       ``special`` in tokenizer.json, or in the ``added_tokens_decoder`` of tokenizer_config.json
config     a token of a role (``eos_token``, ``image_token``, ``additional_special_tokens``...), or an id of one in
           config.json or generation_config.json
template   a turn mark: a token that a chat template writes on a line of its own, or with one word behind it as its
           label, with no line of prose between it and the place of a value or a statement

    <|im_start|>user\\n        a mark with its label, then a value
    \\n<tool_call>\\n{"name": "  a mark on its own line
    Use <b> for names.        prose: <b> is no mark

Added tokens of letters alone are ordinary text unless they are flagged. Those of white space or of one character are
always ordinary: a config may name one (a newline as ``eos_token``), and a text cannot do without it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from ..backends.choice import Core
    from ..config import FileConfig

_SIGN = re.compile(r"[^\w\s\u2581]")
_WORD = re.compile(r'"\w+|([^\W\d_]\w{0,15})')  # the keys of JSON are none; a sentence may have no spaces
_STRING = r"'(?:[^'\\]|\\.)*'?|\"(?:[^\"\\]|\\.)*\"?"
_ITEM = re.compile(
    rf"(?P<role>(?:\w+\.)?role\b|\w*\[(?:'role'|\"role\")\])|(?P<string>{_STRING})|(?P<end>-?\}}\}}|-?%\}})"
    r"|(?P<join>[\s+~]+)|\w+|.",
    re.DOTALL,
)
_OPENED = re.compile(r"\{[{%#]")
_ROLE, _TOKEN = "\0", "\1"


class ControlIds:
    """``fixed``: the ids that the files name. ``undecided``: those of other added tokens that may be turn marks."""

    def __init__(self, core: Core, config: FileConfig) -> None:
        self._core = core
        added = core.added_tokens()
        named = {content for content in config.named if _may_be_control(content)}
        fixed = {id for id in map(core.token_to_id, named) if id is not None}
        undecided: set[int] = set()
        for id, content, *_, special in added:
            if special and len(content) > 1 and not content.isspace():
                fixed.add(id)
            elif _may_be_control(content):
                (fixed if content in named or id in config.token_ids else undecided).add(id)
        self.fixed: frozenset[int] = frozenset(fixed)
        self.undecided = frozenset(undecided - self.fixed)
        self._is_undecided = mask_of(self.undecided)
        self._is_added = mask_of(self.undecided | self.fixed)
        self.fixed |= self.marks(run for template in config.templates for run in _runs(template))
        self.undecided -= self.fixed
        self._is_undecided = mask_of(self.undecided)

    def marks(self, runs: Iterable[str]) -> frozenset[int]:
        """Find those of ``undecided`` that are turn marks in text of a template, cut at its values and statements."""
        found: set[int] = set()
        for run in runs if self.undecided else ():
            text = run.encode("utf-8", "replace").decode()  # jinja takes lone surrogates
            ids = self._core.encode_array(text, True)
            if self._is_undecided.take(ids, mode="clip").any():
                found.update(self._marks_in(text))
        return frozenset(found)

    def _marks_in(self, text: str) -> Iterator[int]:
        ids, spans, _ = self._core.encode_full(text, True, "char", False)
        shown, places = list(text), []
        added = self._is_added.take(ids, mode="clip")
        for id, (start, stop) in zip(ids[added].tolist(), spans[added].tolist()):
            own = [at for at in range(start, stop) if not text[at].isspace()]  # it may take white space around it
            for at in own:
                shown[at] = _TOKEN
            places += [(id, own[0])] if own and id in self.undecided else []
        prose = [at for at, line in enumerate("".join(shown).split("\n")) if _is_prose(line)]
        line_of = list(accumulate(char == "\n" for char in text))
        for id, at in places:
            if not prose or not prose[0] <= line_of[at] <= prose[-1]:
                yield id


def _is_prose(line: str) -> bool:
    words = [word.start() for word in _WORD.finditer(line) if word[1]]
    return len(words) > 1 or (len(words) == 1 and _TOKEN not in line[: words[0]])


def _may_be_control(content: str) -> bool:
    return len(content) > 1 and _SIGN.search(content) is not None


def mask_of(ids: Iterable[int]) -> npt.NDArray[np.bool_]:
    """Return a mask by id, with one more entry that is False for all larger ones."""
    made = np.zeros(max(ids, default=-1) + 2, np.bool_)
    made[list(ids)] = True
    return made


# ---- the text of a template


def _runs(template: str) -> Iterator[str]:
    """The literal text of a template, joined up to the next value or statement. A role between two literals stands
    for each of the usual ones: some templates build a mark around it."""
    from ..chat import ROLES

    for run in filter(None, _literals(template)):
        yield from run.split(_ROLE)
        if _ROLE in run.strip(_ROLE):
            yield from (run.replace(_ROLE, role) for role in sorted(ROLES))


def _literals(template: str) -> Iterator[str]:
    """Yield the same, with ``_ROLE`` where a role is."""
    run, at = "", 0
    while opened := _OPENED.search(template, at):
        run += template[at : opened.start()]
        at = opened.end()
        if opened[0] == "{#":
            closed = template.find("#}", at)
            at = len(template) if closed < 0 else closed + 2
            continue
        if opened[0] == "{%":
            yield run
            run = ""
        while item := _ITEM.match(template, at):
            at = item.end()
            if item["string"]:
                run += _unescaped(item["string"][1:].removesuffix(item["string"][0]))
            elif item["role"]:
                run += _ROLE
            elif not item["join"] and item[0] not in ("}}", "-}}"):
                yield run
                run = ""
            if item["end"]:
                break
    yield run + template[at:]


def _unescaped(text: str) -> str:
    try:
        return text.encode("ascii", "backslashreplace").decode("unicode-escape")
    except UnicodeDecodeError:
        return text
