"""The additions to HF's API: numpy arrays straight from the core, token bytes, and the marked tokens.

Truncation and padding are settings of ``encode``; the arrays hold the whole text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from .._core import EncodeEntry
from ..config import FileConfig
from ..errors import TokenizerError
from .literal import LiteralText
from .session import Session, truncated
from .trusted import ControlTokens

if TYPE_CHECKING:
    from ..backends.choice import Core
    from ..params import Padding, Truncation
    from .post_processing import Frame, Processor
    from .sequences import Sequences

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Offsets = Literal["char", "byte"]


class ArrayMethods(EncodeEntry):
    """The part of ``Tokenizer`` that returns arrays."""

    _core: Core
    _backend: str
    _config: FileConfig
    _literal: LiteralText
    _control: ControlTokens
    _processor: Processor | None
    _untrimmed: Processor | None
    _frames: tuple[Frame | None, Frame | None]  # without special tokens, with
    _truncation: Truncation | None
    _padding: Padding | None
    _encode_special: bool
    _sequences: Sequences

    # encode_array() and encode_with_offsets() are EncodeEntry's. Calls with more than one text between the tokens of
    # a frame come here.

    def _array_general(self, text: str | bytes, add_special_tokens: bool, parse_special: bool) -> Int32:
        ids = self._core.encode_array(text, True) if parse_special else self._literal.ids(text)
        return self._frame().ids(ids) if add_special_tokens else ids

    def _array_spelled(self, text: str | bytes, add_special_tokens: bool) -> Int32:
        """Return the ids of a text that gave control tokens, which are spelled out."""
        ids = self._literal.encode(text)[0]
        return self._frame().ids(ids) if add_special_tokens else ids

    def encode_segments(self, segments: Sequence[tuple[str, bool]], add_special_tokens: bool = False) -> Int32:
        """Return the ids of (text, trusted) pieces, one after the other: as of the whole string, but that control
        tokens come out of trusted text alone. See ``chat.render_segments``."""
        ids = self._control.encode(segments)
        return self._frame().ids(ids) if add_special_tokens else ids

    def _offsets_general(
        self, text: str | bytes, add_special_tokens: bool, parse_special: bool, offsets: Offsets
    ) -> tuple[Int32, Int32]:
        if parse_special and offsets == "char":
            ids, spans = self._core.encode_spans(text, True)
        elif parse_special:
            ids, spans, _ = self._core.encode_full(text, True, offsets, True)
        else:
            ids, spans = self._literal.encode(text, offsets)
            for add_prefix_space in self._core.trim_passes:
                spans = self._core.trim_offsets(ids, spans, add_prefix_space)
        if not add_special_tokens:
            return ids, spans
        frame = self._frame()
        return frame.ids(ids), frame.rows(spans, 0)

    def encode_batch_array(
        self,
        texts: Sequence[str | bytes],
        add_special_tokens: bool = True,
        *,
        parse_special: bool = True,
        offsets: Offsets | None = None,
    ) -> tuple[Int32, Int32 | None, Int64]:
        """(ids of all texts, their offsets if asked for, row starts [len(texts) + 1])."""
        if offsets is None and parse_special:
            ids, starts = self._core.encode_batch_array(texts, True)
            if not add_special_tokens or not self.num_special_tokens_to_add(False):
                return ids, None, starts
            frame = self._frame()
            rows = [frame.ids(ids[a:b]) for a, b in pairwise(starts.tolist())]
            return _rows(rows, None)
        if offsets is None:
            return _rows([self._array_general(t, add_special_tokens, parse_special) for t in texts], None)
        pairs = [self._offsets_general(t, add_special_tokens, parse_special, offsets) for t in texts]
        return _rows([p[0] for p in pairs], [p[1] for p in pairs])

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
        that are longer by up to 64 characters fits. It is the longest of all that fit if the file has cuts and the
        text has one at least every 60 characters. (More characters may have fewer ids: part of a word may have more
        than the word.) It may end within a grapheme. ``TokenizerError`` if ``n`` is less than the special tokens
        around a text."""
        room = n - self._around(add_special_tokens)
        if room < 0:
            raise TokenizerError(f"n is {n}, fewer than the {n - room} special tokens around each text")
        return truncated(self._core, text, room)

    def _around(self, add_special_tokens: bool) -> int:
        return sum(map(len, self._around_ids(add_special_tokens)))

    def _around_ids(self, add_special_tokens: bool) -> tuple[list[int], list[int]]:
        if not add_special_tokens:
            return [], []
        frame = self._frame()
        return frame.before.ids, frame.after.ids

    def token_bytes(self, id: int) -> bytes:
        """Return the bytes that a token stands for. For byte-level vocabularies the bytes of all tokens, one after
        the other, are the bytes of the decoded text. An id without a token is no bytes."""
        return self._core.token_bytes(id) or b""

    # ---- properties of the tokenizer

    @property
    def backend(self) -> str:
        """ "native" or "reference" (HF)."""
        return self._backend

    def num_special_tokens_to_add(self, is_pair: bool) -> int:
        raise NotImplementedError

    @property
    def bos_token(self) -> str | None:
        return self._config.token("bos_token")

    @property
    def eos_token(self) -> str | None:
        return self._config.token("eos_token")

    @property
    def pad_token(self) -> str | None:
        return self._config.token("pad_token")

    @property
    def bos_token_id(self) -> int | None:
        """From the tokenizer_config.json beside the file; None when there is none, or it names none."""
        return self._id_of(self.bos_token)

    @property
    def eos_token_id(self) -> int | None:
        return self._id_of(self.eos_token)

    @property
    def pad_token_id(self) -> int | None:
        return self._id_of(self.pad_token)

    @property
    def chat_template(self) -> str | None:
        """The template that stands beside the file."""
        return self._config.chat_template

    # ---- inside

    def _id_of(self, token: str | None) -> int | None:
        return None if token is None else self._core.token_to_id(token)

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

    def _around_lists(self) -> tuple[list[int], list[int]]:
        frame = self._frames[1]
        return ([], []) if frame is None else (frame.before.ids, frame.after.ids)


def _rows(rows: list[Int32], spans: list[Int32] | None) -> tuple[Int32, Int32 | None, Int64]:
    starts = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(r) for r in rows], out=starts[1:])
    ids = np.concatenate(rows) if rows else np.empty(0, np.int32)
    if spans is None:
        return ids, None, starts
    return ids, np.concatenate(spans) if spans else np.empty((0, 2), np.int32), starts
