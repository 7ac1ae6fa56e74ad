"""The label trie of one question, as the arrays that one forward pass needs.

Labels that begin alike share their tokens. An *edge* is one token after one prefix; it is scored once, at the row of
its prefix, however many labels go through it:

    question … Answer:        row 0  (the question's last token)
        ├─ " yes"             edge 0, scored at row 0; a leaf is not fed
        ├─ " New"             edge 1, scored at row 0; fed, because something follows: row 1
        │    ├─ " York"       edge 2, scored at row 1
        │    └─ " Delhi"      edge 3, scored at row 1
        └─ " no"              edge 4, scored at row 0

Nodes that are fed and have one fed child are joined into one segment. A label that is the beginning of another one
("A", "AB") is a node of its path: its logprob is that of its own tokens, without the tokens after them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prelude.errors import InvalidRequest, shown
from prelude.readouts.batch import I32
from prelude.records import dataclass


@dataclass(frozen=True, slots=True)
class LabelTrie:
    """``segments`` are (parent, ids) with parents before children; parent -1 is the question itself. ``rows`` are
    distinct and ascending, counted from the question's last token (row 0); tokens of segments follow in order."""

    segments: tuple[tuple[int, I32], ...]
    rows: I32  # [R]
    target_rows: I32  # [E], into rows
    targets: I32  # [E]
    lengths: I32  # [L], tokens per label
    counted: tuple[int, ...]  # labels that extend no other label: their probabilities are disjoint
    paths: tuple[tuple[int, ...], ...]  # the edges of each label

    @property
    def depth(self) -> int:
        """Tokens fed after the question on the longest path."""
        return max(map(len, self.paths)) - 1


def build_trie(label_ids: Sequence[Sequence[int]], labels: Sequence[str], field: str) -> LabelTrie:
    """Raise ``InvalidRequest`` if a label has no tokens or two labels have the same."""
    children: list[dict[int, int]] = [{}]
    parents, tokens = [-1], [-1]
    ends: dict[int, int] = {}
    paths: list[list[int]] = []
    for index, ids in enumerate(label_ids):
        if not len(ids):
            raise InvalidRequest(
                f"label {shown(labels[index])} tokenises to nothing: there is nothing to score",
                field=f"{field}[{index}]",
            )
        node, path = 0, []
        for token in ids:
            child = children[node].get(token)
            if child is None:
                child = len(children)
                children[node][token] = child
                children.append({})
                parents.append(node)
                tokens.append(token)
            node = child
            path.append(node - 1)
        if node in ends:
            raise InvalidRequest(
                f"labels {shown(labels[ends[node]])} and {shown(labels[index])} are the same tokens "
                f"{shown(list(ids))}: no model can tell them apart",
                field=f"{field}[{index}]",
            )
        ends[node] = index
        paths.append(path)
    segments, row_of = _segments(children, tokens)
    return _arrays(segments, row_of, parents, tokens, paths, ends)


def _segments(children: list[dict[int, int]], tokens: list[int]) -> tuple[list[tuple[int, I32]], dict[int, int]]:
    """Segments of fed nodes in depth-first order, and the row of every node that has children."""
    segments: list[tuple[int, I32]] = []
    row_of = {0: 0}
    stack = [(child, -1) for child in reversed(children[0].values()) if children[child]]
    while stack:
        node, parent = stack.pop()
        ids: list[int] = []
        while True:
            ids.append(tokens[node])
            row_of[node] = len(row_of)
            fed = [child for child in children[node].values() if children[child]]
            if len(fed) != 1:
                break
            node = fed[0]
        stack += [(child, len(segments)) for child in reversed(fed)]
        segments.append((parent, np.array(ids, dtype=np.int32)))
    return segments, row_of


def _arrays(
    segments: list[tuple[int, I32]],
    row_of: dict[int, int],
    parents: list[int],
    tokens: list[int],
    paths: list[list[int]],
    ends: dict[int, int],
) -> LabelTrie:
    counted = [index for index, path in enumerate(paths) if not any(edge + 1 in ends for edge in path[:-1])]
    lengths = np.array([len(path) for path in paths], dtype=np.int32)
    return LabelTrie(
        tuple(segments),
        np.arange(len(row_of), dtype=np.int32),
        np.array([row_of[parent] for parent in parents[1:]], dtype=np.int32),
        np.array(tokens[1:], dtype=np.int32),
        lengths,
        tuple(counted),
        tuple(map(tuple, paths)),
    )
