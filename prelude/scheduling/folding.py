"""Which OneShot rows share a cold prefix, so that one step computes it once.

    rows with the same salt, cached prefix and next block          shared tokens = their common prefix
    ┌ rubric (cold) ┬ text a + question                            (never past the first token that is read)
    │               ├ text b + question
    └               └ text c + question

A row joins a group only while that saves tokens: with n members sharing s tokens a group saves s * (n - 1).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np

from prelude.batch import I32
from prelude.scheduling.plan import Fold


def common_prefix(a: I32, b: I32) -> int:
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n


@dataclass(slots=True)
class _Group:
    tokens: I32  # the leader's foldable tokens
    shared: int
    members: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class FoldOffer:
    """Joining costs ``tokens`` to compute, all in all; ``accept`` makes it so."""

    tokens: int
    group: _Group
    shared: int


class FoldFinder:
    def __init__(self, block_size: int) -> None:
        self._least = block_size
        self._groups: dict[Hashable, _Group] = {}

    def offer(self, prefix_key: Hashable, foldable: I32, uncached: int) -> FoldOffer | None:
        """For a row with ``uncached`` tokens to compute, ``foldable`` of them shareable from the front.

        ``prefix_key`` says what precedes them (salt and cached node). ``None``: too short to fold.
        """
        if len(foldable) < self._least:
            return None
        key = (prefix_key, foldable[: self._least].tobytes())
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(foldable, len(foldable))
        n = len(group.members)
        if n == 0:
            return FoldOffer(uncached, group, len(foldable))
        shared = min(group.shared, common_prefix(group.tokens, foldable))
        if shared * n < group.shared * (n - 1):
            return None
        return FoldOffer(uncached - shared + (group.shared - shared) * (n - 1), group, shared)

    def accept(self, offer: FoldOffer, row: int) -> None:
        offer.group.members.append(row)
        offer.group.shared = offer.shared

    def folds(self) -> tuple[Fold, ...]:
        return tuple(
            Fold(tuple(group.members), group.shared) for group in self._groups.values() if len(group.members) > 1
        )
