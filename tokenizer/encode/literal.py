"""Text that must stay text: no control token may come out of it.

The core already leaves special tokens unmatched when asked to. Two ways remain by which untrusted text could
become a control token: control tokens that are not flagged special (``<tool_call>``, ``<|User|>`` in some
files), and a model whose merges spell a control token from its characters. Both are found by looking at the
ids, and each of them is replaced by the tokens of its single characters.

``_control`` says which tokens these are. All others are ordinary text, as in HF.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..backends.growth import flat
from ..backends.reference import BYTE_CHARS
from .control import mask_of

if TYPE_CHECKING:
    from ..backends.choice import Core

Int32 = npt.NDArray[np.int32]


class LiteralText:
    """Which ids are control tokens, and how to spell them out; immutable."""

    def __init__(self, core: Core, control_ids: frozenset[int]) -> None:
        self._core = core
        self._unknown = core.unknown_id()
        self.control_ids = control_ids
        self._is_control = mask_of(control_ids)
        if 0 <= self._unknown < len(self._is_control):
            self._is_control[self._unknown] = False  # an unknown word is not a control token
        decoder = json.loads(core.section("decoder") or "null")
        self._kinds = [step["type"] for step in flat(decoder, "decoders")]

    def ids(self, text: str | bytes) -> Int32:
        """Return the ids of ``text``, without a control token."""
        ids = self._core.encode_array(text, False)
        return self.encode(text)[0] if self._marked(ids).any() else ids

    def encode(self, text: str | bytes, offsets: str = "char") -> tuple[Int32, Int32]:
        """(ids, offsets untrimmed), without a control token."""
        ids, spans, _ = self._core.encode_full(text, False, offsets, False)  # type: ignore[arg-type]
        marked = self._marked(ids)
        if not marked.any():
            return ids, spans
        string = text if isinstance(text, str) else text.decode()
        raw = string.encode() if offsets == "byte" else string
        out_ids: list[int] = []
        out_spans: list[tuple[int, int]] = []
        for id, (start, stop), bad in zip(ids.tolist(), spans.tolist(), marked.tolist()):
            if not bad:
                out_ids.append(id)
                out_spans.append((start, stop))
                continue
            piece = raw[start:stop]
            for char in piece.decode() if isinstance(piece, bytes) else piece:
                width = len(char.encode()) if offsets == "byte" else 1
                spelled = self._spelled(char)
                out_ids.extend(spelled)
                out_spans.extend([(start, start + width)] * len(spelled))
                start += width
        return np.array(out_ids, np.int32), np.array(out_spans, np.int32).reshape(-1, 2)

    @property
    def mask(self) -> bytes:
        """Return a mask by id: 1 for a control token, 0 for other tokens. Ids past the end are of other tokens."""
        return self._is_control.tobytes()

    def _marked(self, ids: Int32) -> npt.NDArray[np.bool_]:
        return self._is_control.take(ids, mode="clip")

    def _spelled(self, char: str) -> list[int]:
        core = self._core
        if "ByteLevel" in self._kinds:
            found = [core.token_to_id(BYTE_CHARS[b]) for b in char.encode()]
        else:
            shown = "\u2581" if char == " " and ("Replace" in self._kinds or "Metaspace" in self._kinds) else char
            for form in (shown, "##" + char, char + "</w>"):
                id = core.token_to_id(form)
                if id is not None and id not in self.control_ids:
                    return [id]
            found = [core.token_to_id(f"<0x{b:02X}>") for b in char.encode()]
        unknown = self._unknown
        return [i if i is not None else unknown for i in found if i is not None or unknown >= 0]
