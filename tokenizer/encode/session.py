"""Counting ids without a list of them, and encoding a text that grows at its end.

Both stand on the core's cuts (core/cuts.cpp): the ids before a cut stay the same whatever is written behind it. Files
of the reference backend, and native files of a kind that has no cuts, are encoded anew as a whole: the same results,
at the cost of the whole text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from ..backends.choice import Core

Int32 = npt.NDArray[np.int32]

LONGER = 64  # characters behind a prefix that no longer grows by one, at which truncated() looks for a longer one


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

    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    found = -1
    while found != low:
        found = low
        cut, after = core.last_cut(text[begin:low])
        before += len(core.encode_array(text[begin : begin + cut])) if cut else 0
        begin += after
        low = next((end for end in range(min(low + LONGER, len(text)), low, -1) if fits(end)), low)
    return text[:low]
