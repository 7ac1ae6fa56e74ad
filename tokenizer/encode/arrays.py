"""The additions to HF's API: numpy arrays straight from the core, counting without a list, texts that grow at their
end, token bytes, and the marked tokens.

Truncation and padding are settings of ``encode``; the arrays hold the whole text. Counting and growing stand on the
core's cuts (core/cuts.cpp): the ids before a cut stay the same whatever is written behind it. A file without cuts is
encoded anew as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .._core import EncodeEntry
from ..config import FileConfig
from ..errors import TokenizerError
from .literal import ControlTokens, LiteralText
from .post_processing import trim_passes, trimmed

if TYPE_CHECKING:
    from ..backends.choice import Core
    from ..params import Padding, Truncation
    from .post_processing import Frame, Processor
    from .sequences import Sequences

Int32 = npt.NDArray[np.int32]
LONGER = 64  # characters behind a prefix that no longer grows by one, at which truncated() looks for a longer one
LOOKED_AT = 1 << 20  # characters that one such look encodes again, or one prefix


class Session:
    """The ids of a text that grows at its end; made by ``Tokenizer.session``. One thread at a time uses it.

    It holds the ids, and of the text what stands behind its last cut.
    """

    def __init__(self, core: Core, before: list[int], after: list[int]) -> None:
        self._core, self._after = core, np.array(after, np.int32)
        self._buffer: Int32 = np.array([*before, *after], np.int32)
        self._size = len(self._buffer)
        self._kept = len(before)  # ids that no later text changes
        self._tail = ""  # the text of the others
        self.append("")

    def append(self, text: str) -> tuple[int, Int32]:
        """Add ``text`` to the end; return (kept, ids). The first ``kept`` ids are as before, and ``ids``, int32,
        are all others of the whole text. The cost is that of ``text`` and of the few characters since the last cut.
        A call that raises what ``encode_array`` does leaves the session as it was."""
        tail = self._tail + text
        end, begin = self._core.last_cut(tail)
        settled = self._core.encode_array(tail[:end]) if end else self._after[:0]
        rest = tail[begin:]
        ids = np.concatenate((settled, self._core.encode_array(rest), self._after))
        kept = self._kept
        self._size = kept + len(ids)
        if self._size > len(self._buffer):
            self._buffer = np.concatenate((self._buffer[:kept], np.empty(2 * self._size - kept, np.int32)))
        self._buffer[kept : self._size] = ids
        self._kept, self._tail = kept + len(settled), rest
        return kept, ids

    @property
    def ids(self) -> Int32:
        """Return the ids of the whole text, as ``encode_array`` gives them: a new int32 array."""
        ids: Int32 = self._buffer[: self._size].copy()
        return ids

    def __len__(self) -> int:
        """Return the number of ids."""
        return self._size


def truncated(core: Core, text: str, most: int) -> str:
    """Return the prefix of ``Tokenizer.truncate``, for at most ``most`` ids of the text alone."""
    ids, before, begin, low, high = core.count(text, most)
    if ids <= most:
        return text

    def fits(end: int) -> bool:
        return before + len(core.encode_array(text[begin:end])) <= most

    _, spans, _ = core.encode_full(text[begin:high], True, "char", False)
    near, step = begin + int(spans[most - before][0]), 1  # where the first id too many begins
    while high - low > 1:
        middle = near if low < near < high else (low + high) // 2
        low, high, near = (middle, high, middle + step) if fits(middle) else (low, middle, middle - step)
        step *= 4
    found = -1
    while found != low:
        found = low
        cut, after = core.last_cut(text[begin:low])
        before += len(core.encode_array(text[begin : begin + cut])) if cut else 0
        begin += after
        longer = min(LONGER, max(LOOKED_AT // max(low - begin, 1), 1))
        low = next((end for end in range(min(low + longer, len(text)), low, -1) if fits(end)), low)
    return text[:low]


_ROLES = ("bos_token", "eos_token", "pad_token")


def _token_of(role: str) -> property:
    return property(lambda self: self._config.token(role), doc=f"The {role} of the files; None if they name none.")


def _id_of(role: str) -> property:
    def id_of(self: Any) -> int | None:
        token = self._config.token(role)
        return None if token is None else self._core.token_to_id(token)

    return property(id_of, doc=f"The id of the {role}; None if the files name none.")


class ArrayMethods(EncodeEntry):
    """The part of ``Tokenizer`` that returns arrays."""

    _core: Core
    _backend: str
    _config: FileConfig
    _literal: LiteralText
    _control: ControlTokens
    _processor: Processor | None
    _frames: list[Frame | None]  # without special tokens, with
    _truncation: Truncation | None
    _padding: Padding | None
    _encode_special: bool
    _sequences: Sequences

    # encode_array() and encode_with_offsets() are EncodeEntry's. Calls with more than one text between the tokens of
    # a frame come here.

    def _array_general(self, text: str | bytes, add_special_tokens: bool, parse_special: bool) -> Int32:
        ids = self._core.encode_array(text, True) if parse_special else self._literal.ids(text)
        return self._frame().ids(ids) if add_special_tokens else ids

    def encode_segments(self, segments: Sequence[tuple[str, bool]], add_special_tokens: bool = False) -> Int32:
        """Return the ids of (text, trusted) pieces, one after the other: as of the whole string, but that control
        tokens come out of trusted text alone. See ``chat.render_segments``."""
        ids = self._control.encode(segments)
        return self._frame().ids(ids) if add_special_tokens else ids

    def _offsets_general(
        self, text: str | bytes, add_special_tokens: bool, parse_special: bool
    ) -> tuple[Int32, Int32]:
        if parse_special:
            ids, spans, _ = self._core.encode_full(text, True, "char", True)
        else:
            ids, spans = self._literal.encode(text)
            for add_prefix_space in trim_passes(self._processor):
                spans = trimmed([token or "" for token in self._core.tokens(ids)], spans, add_prefix_space)
        if not add_special_tokens:
            return ids, spans
        frame = self._frame()
        return frame.ids(ids), np.pad(spans, (tuple(map(len, frame)), (0, 0)))

    # ---- counting and growing; no truncation and padding here either

    def session(self, add_special_tokens: bool = True) -> Session:
        """Return an empty text to append to, whose ids are those of ``encode_array`` of all that was appended."""
        return Session(self._core, *self._around_ids(add_special_tokens))

    def count(self, text: str | bytes, add_special_tokens: bool = True) -> int:
        """Return ``len(encode_array(text, add_special_tokens))`` without making the array."""
        return self._core.count(text)[0] + self._around(add_special_tokens)

    def fits(self, text: str | bytes, n: int, add_special_tokens: bool = True) -> bool:
        """Return whether ``count(text, add_special_tokens)`` is at most ``n``. Of a long text about 4 KB more are
        encoded than have ``n`` ids; the whole text if the file has no cuts (docs/TOKENIZER.md)."""
        room = n - self._around(add_special_tokens)
        return room >= 0 and self._core.count(text, room)[0] <= room

    def truncate(self, text: str, n: int, add_special_tokens: bool = True) -> str:
        """Return ``text`` if ``fits(text, n, add_special_tokens)``, else a prefix that does. None of the prefixes
        that are longer by up to 64 characters fits; behind 16,384 characters without a cut fewer are tried, one at
        least. It is the longest of all that fit if the file has cuts and the text has one at least every 60
        characters. (More characters may have fewer ids: part of a word may have more than the word.) It may end
        within a grapheme. ``TokenizerError`` if ``n`` is less than the special tokens around a text."""
        room = n - self._around(add_special_tokens)
        if room < 0:
            raise TokenizerError(f"n is {n}, fewer than the {n - room} special tokens around each text")
        return truncated(self._core, text, room)

    def _around(self, add_special_tokens: bool) -> int:
        return sum(map(len, self._around_ids(add_special_tokens)))

    def _around_ids(self, add_special_tokens: bool) -> tuple[list[int], list[int]]:
        return self._frame() if add_special_tokens else ([], [])

    def token_bytes(self, id: int) -> bytes:
        """Return the bytes that a token stands for. For byte-level vocabularies the bytes of all tokens, one after
        the other, are the bytes of the decoded text. An id without a token is no bytes."""
        return self._core.token_bytes(id) or b""

    # ---- properties of the tokenizer

    @property
    def backend(self) -> str:
        """ "native" or "reference" (HF)."""
        return self._backend

    bos_token, eos_token, pad_token = (_token_of(role) for role in _ROLES)
    bos_token_id, eos_token_id, pad_token_id = (_id_of(role) for role in _ROLES)

    @property
    def chat_template(self) -> str | None:
        """The template that stands beside the file."""
        return self._config.chat_template

    # ---- inside

    def _section(self, name: str) -> Any:
        text = self._core.section(name)
        return None if text is None else json.loads(text)

    def _frame(self) -> Frame:
        frame = self._frames[1]
        if frame is None:
            raise TokenizerError(
                "this file's post_processor does more than put tokens around the text: use encode() for it"
            )
        return frame
