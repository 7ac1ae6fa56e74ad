"""Streaming decoding: HF's ``DecodeStream``.

A stream belongs to one sequence and one thread; all its state is here, none in the tokenizer.
"""

from __future__ import annotations

import hashlib
import json
from collections import abc
from typing import TYPE_CHECKING, Any

from ._core import CoreStream, StreamEntry
from .components import Decoder as Decoder
from .components import component_type
from .encoding import _unsigned
from .errors import TokenizerError

if TYPE_CHECKING:
    from .tokenizer import Tokenizer

_BROKEN = "\ufffd"

BPEDecoder = component_type("decoder", "BPEDecoder")
ByteFallback = component_type("decoder", "ByteFallback")
ByteLevel = component_type("decoder", "ByteLevel")
CTC = component_type("decoder", "CTC")
Fuse = component_type("decoder", "Fuse")
Metaspace = component_type("decoder", "Metaspace")
Replace = component_type("decoder", "Replace")
Sequence = component_type("decoder", "Sequence")
Strip = component_type("decoder", "Strip")
WordPiece = component_type("decoder", "WordPiece")


class DecodeStream(StreamEntry):
    """Text as it grows, token by token: ``step`` gives the new text, or None while a character is open."""

    def __init__(self, ids: abc.Sequence[int] | None = None, skip_special_tokens: bool | None = False) -> None:
        self._ids = [_unsigned(i) for i in ids] if ids is not None else []
        self._skip = bool(skip_special_tokens)
        self._stream: Any = None  # a CoreStream or a _Stream, made at the first step
        self._tokenizer: Tokenizer | None = None

    def _step_general(self, tokenizer: Tokenizer, id: int | abc.Sequence[int]) -> str | None:
        stream = self._stream if self._tokenizer is tokenizer else self._over(tokenizer)
        if hasattr(id, "__index__"):
            return stream.step(_unsigned(id))  # type: ignore[no-any-return]
        return stream.step_many([_unsigned(i) for i in id])  # type: ignore[no-any-return]

    def finish(self) -> str:
        """Return the held text, each unfinished character as U+FFFD; HF's streams drop it."""
        return "" if self._stream is None else str(self._stream.finish())

    def _over(self, tokenizer: Tokenizer) -> Any:
        if self._tokenizer is not None:
            if tokenizer._core is not self._tokenizer._core and _digest(tokenizer) != _digest(self._tokenizer):
                raise TokenizerError(
                    "a DecodeStream serves the tokenizer of its first step, copies of it, and the same file loaded "
                    "again, not another tokenizer"
                )
        else:
            made: Any = _Stream if tokenizer.backend == "reference" else CoreStream
            self._stream = made(tokenizer._core, self._ids, self._skip)
        self._tokenizer = tokenizer
        self._set_entry(tokenizer, self._stream)
        return self._stream

    def __copy__(self) -> DecodeStream:
        made = DecodeStream(self._ids, self._skip)
        made._tokenizer = self._tokenizer
        made._stream = None if self._stream is None else self._stream.copy()
        made._set_entry(made._tokenizer, made._stream)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> DecodeStream:
        return self.__copy__()


def _digest(tokenizer: Tokenizer) -> bytes:
    """Digest all that decodes; kept by ``tokenizer``. Another thread may make the same meanwhile."""
    if tokenizer._digest is None:
        whole = tokenizer._whole()
        decodes = {name: whole[name] for name in ("added_tokens", "normalizer", "decoder", "model")}
        tokenizer._digest = hashlib.blake2b(json.dumps(decodes).encode()).digest()
    return tokenizer._digest


class _Stream:
    """The stream over full decoding, for the reference backend.

    ``ids`` are the ids that are still needed: those of the chunk given last (up to ``start``), as the context of
    the next ones, and those not given yet. ``prefix`` is the text of the former.
    """

    def __init__(self, core: Any, ids: list[int], skip: bool) -> None:
        self._decode: abc.Callable[..., str] = core.decode
        self._ids, self._skip = list(ids), skip
        self._prefix, self._start = "", 0

    def step(self, id: int) -> str | None:
        return self.step_many([id])

    def step_many(self, ids: abc.Sequence[int]) -> str | None:
        if not self._prefix:
            text = self._decode(self._ids, self._skip)
            if not text.endswith(_BROKEN):
                self._prefix, self._start = text, len(self._ids)
        self._ids.extend(ids)
        text = self._decode(self._ids, self._skip)
        if len(text.encode()) <= len(self._prefix.encode()) or text.endswith(_BROKEN):
            return None
        if not text.startswith(self._prefix):
            raise TokenizerError(
                f"Invalid prefix encountered while decoding stream. Token ID: {self._ids[-1]}, "
                f"Expected prefix: '{self._prefix}', Actual string: '{text}'"
            )
        new = text[len(self._prefix) :]
        self._start, self._ids = len(self._ids) - self._start, self._ids[self._start :]
        self._prefix = self._decode(self._ids, self._skip)
        return new

    def finish(self) -> str:
        text = self._decode(self._ids, self._skip)
        rest = text[len(self._prefix) :] if text.startswith(self._prefix) else ""
        self._ids, self._prefix, self._start = [], "", 0
        return rest

    def copy(self) -> _Stream:
        made = _Stream.__new__(_Stream)
        made.__dict__.update(self.__dict__)
        made._ids = list(self._ids)
        return made
