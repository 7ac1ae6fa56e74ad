"""Tokens to characters, one token at a time, with exactly the result of decoding them all at once.

A ``Decoder`` is one text under way; the tables behind it belong to the tokenizer. A character is given when it is
whole, bytes that can no longer become one are given as U+FFFD at once, and an unfinished character at the end as
U+FFFD; nothing is ever taken back.

Vocabularies with byte fallback (``<0xF0>`` tokens among ordinary ones) decode a run of byte tokens as a whole: one
invalid byte makes every byte of the run U+FFFD. So a run that is valid so far is held until an ordinary token ends
it, but for no more than ``RUN_BYTES``; a longer run goes out character by character, as if it were valid to its end.
"""

from __future__ import annotations

import re
from codecs import utf_8_decode
from collections.abc import Mapping
from typing import Any, Protocol

RUN_BYTES = 64
BROKEN = "\ufffd"
_WINDOW = 48
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Decoder(Protocol):
    def feed(self, token_id: int) -> str:
        """Return the characters that this token makes certain."""

    def finish(self) -> str:
        """Return the held text."""


class ByteDecoder:
    """Byte-level vocabularies: the text is the tokens' bytes, one after the other, as UTF-8."""

    __slots__ = ("_held", "_table")

    def __init__(self, table: ByteTable) -> None:
        self._table = table
        self._held = b""

    def feed(self, token_id: int) -> str:
        data = self._held + self._table[token_id]
        text, used = utf_8_decode(data, "replace", False)
        self._held = data[used:]
        return text

    def finish(self) -> str:
        text, _ = utf_8_decode(self._held, "replace", True)
        self._held = b""
        return text


class ByteTable(dict[int, bytes]):
    """The bytes of each id, none for control tokens; filled as ids come up."""

    def __init__(self, tokenizer: Any, special: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._special = special

    def __missing__(self, token_id: int) -> bytes:
        found = b"" if token_id in self._special else self._tokenizer.token_bytes(token_id)
        self[token_id] = found
        return found


class PieceDecoder:
    """Vocabularies whose tokens are text by themselves, but for the first one and for runs of byte tokens."""

    __slots__ = ("_broken", "_first", "_late", "_run", "_strip", "_table")

    def __init__(self, table: PieceTable) -> None:
        self._table = table
        self._first = True
        self._strip = table.strip
        self._run = b""  # bytes that are held
        self._broken = False  # the run has a byte that cannot be right
        self._late = False  # the run outgrew RUN_BYTES

    def feed(self, token_id: int) -> str:
        piece = self._table.firsts[token_id] if self._first else self._table[token_id]
        if piece is None:
            return ""
        self._first = False
        if isinstance(piece, bytes):
            return self._stripped(self._byte(piece))
        return self._stripped(self._end_run() + piece)

    def finish(self) -> str:
        return self._stripped(self._end_run())

    def _byte(self, byte: bytes) -> str:
        if self._broken:
            return BROKEN
        self._run += byte
        if self._late:
            text, used = utf_8_decode(self._run, "replace", False)
            self._run = self._run[used:]
            return text
        try:
            text, used = utf_8_decode(self._run, "strict", False)
        except UnicodeDecodeError:
            self._broken = True
            held, self._run = self._run, b""
            return BROKEN * len(held)
        if len(self._run) < RUN_BYTES:
            return ""
        self._late = True
        self._run = self._run[used:]
        return text

    def _end_run(self) -> str:
        run, late = self._run, self._late
        self._run, self._broken, self._late = b"", False, False
        if not run:
            return ""
        if late:
            return utf_8_decode(run, "replace", True)[0]
        try:
            return utf_8_decode(run, "strict", True)[0]
        except UnicodeDecodeError:
            return BROKEN * len(run)

    def _stripped(self, text: str) -> str:
        while self._strip and text:
            if text[0] != self._table.strip_char:
                self._strip = 0
                break
            text = text[1:]
            self._strip -= 1
        return text


class PieceTable(dict[int, "str | bytes | None"]):
    """The text of each id: its characters, one byte, or nothing (control tokens, holes).

    ``firsts`` is the same for the first token of a text. Found by decoding behind an ordinary token (the anchor), so
    that no rule of a decoder is written down here a second time.
    """

    def __init__(self, tokenizer: Any, special: frozenset[int], shape: _Shape, anchor: int) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._shape = shape
        self._anchor = anchor
        self._before = len(tokenizer.decode([anchor]))
        self.strip, self.strip_char = shape.strip, shape.strip_char
        self.firsts: Mapping[int, str | bytes | None] = self if shape.alike else _Firsts(self)

    def __missing__(self, token_id: int) -> str | bytes | None:
        found = self.look_up(token_id, (self._anchor,))
        self[token_id] = found
        return found

    def look_up(self, token_id: int, before: tuple[int, ...]) -> str | bytes | None:
        token = self._tokenizer.id_to_token(token_id)
        if token is None or token_id in self._special:
            return None
        match = _BYTE_TOKEN.fullmatch(token) if self._shape.bytes else None
        if match:
            return bytes.fromhex(match.group(1))
        text: str = self._tokenizer.decode([*before, token_id])
        return text[self._before :] if before else text


class _Firsts(dict[int, "str | bytes | None"]):
    def __init__(self, table: PieceTable) -> None:
        self._table = table

    def __missing__(self, token_id: int) -> str | bytes | None:
        found = self[token_id] = self._table.look_up(token_id, ())
        return found


class WindowDecoder:
    """Any other tokenizer, of which ``decode`` and ``id_to_token`` are known: with each new token the last few are
    decoded again.

    ``ids`` begin with the last ones that made whole characters, for the context of those after them: some that are
    more than white space, since a decoder may strip the beginning of a text. The first ``known`` characters of their
    text were given already.
    """

    __slots__ = ("_decode", "_ids", "_known", "_read", "_run", "_token")

    def __init__(self, tokenizer: Any) -> None:
        self._decode, self._token = tokenizer.decode, tokenizer.id_to_token
        self._ids: list[int] = []
        self._read = 0
        self._known = 0
        self._run = False  # of byte tokens, and of control tokens among them, which are skipped

    def feed(self, token_id: int) -> str:
        self._ids.append(token_id)
        full = len(self._ids) > _WINDOW  # nothing stays open that long
        is_byte = _BYTE_TOKEN.fullmatch(self._token(token_id) or "") is not None
        self._run = is_byte or (self._run and not self._decode([token_id]))
        if self._run and not full:
            return ""  # it may be decoded as a whole
        text = self._decode(self._ids)
        # An open character shows as one U+FFFD at the end; the text before it is certain.
        certain = len(text) - 1 if text.endswith(BROKEN) and not full else len(text)
        new: str = text[self._known : certain]
        self._known = max(self._known, certain)
        if full or certain == len(text):
            later = self._ids[self._read :]
            context = self._decode(later)
            if full or context.strip():
                self._ids, self._read, self._known = later, len(later), len(context)
        return new

    def finish(self) -> str:
        rest: str = self._decode(self._ids)[self._known :] if self._ids else ""
        self._ids = []
        return rest


class _Shape:
    """The steps of a tokenizer file's decoder, as far as they can be followed token by token."""

    def __init__(self, decoder: Any) -> None:
        members = _members(decoder)
        kinds = [m["type"] for m in members]
        self.byte_level = kinds == ["ByteLevel"]
        self.alike = False  # the first token is like all others
        self.bytes = "ByteFallback" in kinds
        self.strip, self.strip_char = 0, ""
        self.known = kinds in ([], ["WordPiece"], ["Metaspace"])
        if kinds and not self.known and not self.byte_level:
            self.alike = self.known = self._replacing(members, kinds)

    def _replacing(self, members: list[Mapping[str, Any]], kinds: list[str]) -> bool:
        """Replace..., ByteFallback, Fuse, Strip from the left: the decoder of SentencePiece conversions."""
        while kinds and kinds[0] == "Replace" and "String" in members[0].get("pattern", {}):
            kinds, members = kinds[1:], members[1:]
        if kinds[:1] == ["ByteFallback"]:
            kinds, members = kinds[1:], members[1:]
        if kinds == ["Fuse", "Strip"] and members[1].get("stop", 0) == 0:
            self.strip, self.strip_char = int(members[1]["start"]), str(members[1]["content"])
            return True
        return kinds in ([], ["Fuse"])


def _members(decoder: Any) -> list[Mapping[str, Any]]:
    if decoder is None:
        return []
    whole = decoder.member
    if whole["type"] != "Sequence":
        return [whole]
    members: list[Mapping[str, Any]] = []
    for member in whole["decoders"]:
        members.extend(member["decoders"] if member["type"] == "Sequence" else [member])
    return members


class Texts:
    """A tokenizer's decoders. ``created`` and ``live`` count requests' states; both are written by the thread that
    postprocesses steps, and by no other one."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._table = make_table(tokenizer)
        self.created = 0
        self.live = 0

    def decoder(self) -> Decoder:
        if isinstance(self._table, ByteTable):
            return ByteDecoder(self._table)
        if isinstance(self._table, PieceTable):
            return PieceDecoder(self._table)
        return WindowDecoder(self._tokenizer)


def make_table(tokenizer: Any) -> ByteTable | PieceTable | None:
    """Return None if tokens can only be decoded together."""
    if not hasattr(tokenizer, "token_bytes") or not hasattr(tokenizer, "decoder"):
        return None
    shape = _Shape(tokenizer.decoder)
    special = frozenset(i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special)
    if shape.byte_level:
        return ByteTable(tokenizer, special)
    if not shape.known:
        return None
    for anchor in range(tokenizer.get_vocab_size()):
        token = tokenizer.id_to_token(anchor)
        plain = token and token.isascii() and token.isalnum() and anchor not in special
        if plain and tokenizer.decode([anchor]) == token:
            return PieceTable(tokenizer, special, shape, anchor)
    return None
