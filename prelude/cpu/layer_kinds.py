"""Which layers with attention read alike, so that one attention plan of a step serves them all."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from prelude.models.spec import Attention, Projection

Kinds: TypeAlias = tuple[list[Attention], list[int]]
_NO_PROJECTION = Projection((), (), 0)


class LayerKinds:
    """A window as long as the step's longest sequence is none, so layers with and without a window read alike in
    short steps. The answer depends on how many of the model's windows are shorter than the sequence, and is kept for
    each number of them."""

    def __init__(self, mixers: Sequence[Attention]) -> None:
        self._mixers = mixers
        self._windows = sorted({mixer.window for mixer in mixers if mixer.window is not None})
        self._kept: dict[int, Kinds] = {}

    def within(self, highest: int) -> Kinds:
        """(the distinct kinds of attention, of each layer the index of its kind) in a step whose largest position is
        ``highest``. The lists are not to be changed."""
        shorter = bisect_left(self._windows, highest)
        found = self._kept.get(shorter)
        if found is None:
            found = self._kept[shorter] = self._grouped(self._windows[:shorter])
        return found

    def _grouped(self, windows: Sequence[int]) -> Kinds:
        """Return the ``windows`` that leave out a key."""
        kinds: dict[Attention, int] = {}
        of_layer = []
        for mixer in self._mixers:
            kind = replace(
                mixer,
                window=mixer.window if mixer.window in windows else None,
                qkv=_NO_PROJECTION,
                out=_NO_PROJECTION,
                rope=None,
                q_norm=None,
                k_norm=None,
                gate=False,
            )
            of_layer.append(kinds.setdefault(kind, len(kinds)))
        return list(kinds), of_layer
