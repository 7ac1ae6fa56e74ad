"""Admission's calls of the native core: runs of equal tasks, requests of one setting, labels."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from prelude._native.core import Alike, LabelPaths, Maker, PromptMould


@dataclass(frozen=True, slots=True)
class Asked:
    prompt: Any
    setting: Any = None
    other: Any = "x"


@dataclass(frozen=True, slots=True)
class Tree:
    token_ids: Any
    positions: Any
    starts: Any
    parents: Any


@dataclass(frozen=True, slots=True)
class Ready:
    tree: Tree
    readout: Any
    most: int
    sampling: Any
    cache: Any
    salt: int
    truncated: int
    ms: float
    first: int


@dataclass(frozen=True, slots=True)
class Admitted:
    prepared: Ready
    finish: Any
    reader: Any = None


def ids(*values: int) -> Any:
    return np.array(values, np.int32)


def shape(n: int) -> tuple[Any, Any]:
    return np.arange(n, dtype=np.int32), ids(0, n)


def mould(**given: Any) -> PromptMould:
    parts: dict[str, Any] = {
        "makers": (Maker(Tree), Maker(Ready), Maker(Admitted)),
        "shape": shape,
        "head": ids(1),
        "foot": ids(2, 3),
        "tail": (ids(7, 8), ids(0, 1), ids(0, 2), ids(-1)),
        "common": ("readout", 1, None, "auto"),
        "reading": ("finish",),
        "back": 0,
        "least": 1,
        "most": 6,
        **given,
    }
    names = ("makers", "shape", "head", "foot", "tail", "common", "reading")
    return PromptMould(*[parts.pop(name) for name in names], **parts)


def test_runs_end_where_another_object_is_said() -> None:
    alike, setting = Alike(Asked), [1]
    tasks: list[Any] = [Asked(1, setting), Asked(2, setting), Asked(3, [1]), Asked(4, None, "y"), "no task"]
    assert [alike.end(tasks, at) for at in range(4)] == [2, 2, 3, 4]
    for at in (4, 5, -1):
        with pytest.raises(ValueError):
            alike.end(tasks, at)
    with pytest.raises(TypeError):
        Alike(int)
    with pytest.raises(TypeError):
        alike.end(tuple(tasks), 0)  # type: ignore[arg-type]


def test_a_state_stands_between_head_and_foot_and_the_tail_behind_it() -> None:
    made, whole = mould().make(
        [ids(4), [5, 6], (), ids(4, 5, 6, 7), "text", [99], [True], None, ids(4)[None]], 50, 1.5, 5
    )
    assert not whole and [one is None for one in made] == [False, False, False, *[True] * 6]
    first = made[1].prepared
    assert first.tree.token_ids.tolist() == [1, 5, 6, 2, 3, 7, 8] and first.tree.starts.tolist() == [0, 7]
    assert (first.readout, first.most, first.cache, first.salt, first.ms, first.first) == (
        "readout",
        1,
        "auto",
        5,
        1.5,
        5,
    )
    assert made[1].finish == "finish" and made[1].reader is None
    assert mould().make([ids(4)], 50, 0.0, 5)[1] and mould().make([], 50, 0.0, 5) == ([], True)


def test_a_tail_with_branches_grows_behind_the_state() -> None:
    tail = (ids(7, 8, 9), ids(0, 1, 1), ids(0, 0, 1, 3), ids(-1, 0, 1))
    [one], _ = mould(tail=tail, head=ids(), foot=ids(), back=1).make([[4, 5]], 50, 0.0, 5)
    tree = one.prepared.tree
    assert tree.token_ids.tolist() == [4, 5, 7, 8, 9] and tree.positions.tolist() == [0, 1, 2, 3, 3]
    assert tree.starts.tolist() == [0, 2, 3, 5] and tree.parents.tolist() == [-1, 0, 1] and one.prepared.first == 1


def test_parts_that_do_not_fit_each_other_are_refused() -> None:
    none = ids()
    for tail in [(ids(7), none, ids(0, 1), ids(-1)), (none, none, ids(0), none), (none, none, ids(0), ids(-1))]:
        with pytest.raises(ValueError):
            mould(tail=tail)
    with pytest.raises(TypeError):
        mould(makers=(1, 2, 3))
    with pytest.raises(TypeError):
        mould(common=("too few",)).make([ids(4)], 50, 0.0, 5)
    with pytest.raises(TypeError):
        mould(shape=lambda n: None).make([ids(4)], 50, 0.0, 5)
    with pytest.raises(TypeError):
        mould().make((ids(4),), 50, 0.0, 5)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(20))
def test_labels_are_weighed_by_the_formulas(seed: int) -> None:
    draw = random.Random(seed)
    edges, count = draw.randint(1, 80), draw.randint(1, 40)
    paths = [[draw.randrange(edges) for _ in range(draw.randint(1, 4))] for _ in range(count)]
    counted = sorted(draw.sample(range(count), draw.randint(0, count)))
    labels = tuple(f"label {i}" for i in range(count))
    logprobs = [-draw.expovariate(0.3) for _ in range(2 * edges + 3)]
    for alone in (-1, edges + 3):
        for by_length in (False, True):
            joint = [
                sum(logprobs[2 + e] for e in path) if alone < 0 else sum(logprobs[e] for e in path) for path in paths
            ]
            first = 2 if alone < 0 else 0
            other = [sum(logprobs[alone + e] for e in path) if alone >= 0 else 0.0 for path in paths]
            scores = [(a - b) / (len(path) if by_length else 1) for a, b, path in zip(joint, other, paths)]
            best = max(scores)
            weights = [math.exp(score - best) for score in scores]
            shares = [weight / math.fsum(weights) for weight in weights]
            weighed = LabelPaths(paths, counted, edges).weigh(labels, logprobs, first, alone, by_length)
            index, found, probabilities, kept, mass = weighed
            assert index == scores.index(best) and list(probabilities) == list(kept) == list(labels)
            np.testing.assert_allclose(found, shares, rtol=1e-12)
            assert list(probabilities.values()) == found
            np.testing.assert_allclose(list(kept.values()), joint, rtol=1e-12)
            assert mass == pytest.approx(min(1.0, math.fsum(math.exp(joint[i]) for i in counted)), rel=1e-12)
            *_, relative, none = LabelPaths(paths, counted, edges).weigh(
                labels, logprobs, first, alone, by_length, True
            )
            assert math.isnan(none)
            np.testing.assert_allclose(np.exp(list(relative.values())), shares, rtol=1e-9)


def test_labels_outside_their_trie_are_refused() -> None:
    for paths, counted, edges in [
        ([[0], [2]], [], 2),
        ([[0], [-1]], [], 2),
        ([[]], [], 1),
        ([], [], 1),
        ([[0]], [1], 1),
    ]:
        with pytest.raises(ValueError):
            LabelPaths(paths, counted, edges)
    two = LabelPaths([[0], [1]], [0, 1], 2)
    for first, alone in [(1, -1), (-1, -1), (0, 1)]:
        with pytest.raises(IndexError):
            two.weigh(("a", "b"), [-1.0, -2.0], first, alone)
    with pytest.raises(ValueError):
        two.weigh(("a",), [-1.0, -2.0], 0)
    with pytest.raises(TypeError):
        two.weigh(("a", "b"), ["x", -2.0], 0)  # type: ignore[list-item]
