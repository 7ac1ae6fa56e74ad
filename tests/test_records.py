"""``prelude.records.dataclass`` gives what the standard library's gives."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import importlib
import inspect
import operator
import pickle
import pkgutil
import sys
from collections.abc import Callable
from dataclasses import field
from typing import Any

import pytest

import prelude
from prelude import records


class Point:
    x: int
    y: Any = 2
    near: list[Any] = field(default_factory=list, compare=False)
    secret: str = field(default="", repr=False, kw_only=True)


class Single:
    x: Any


class Empty:
    pass


class Own:
    x: Any

    def __repr__(self) -> str:
        return f"own {self.x}"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.x == getattr(other, "x", None) != 2


class Hashed:
    x: Any

    def __hash__(self) -> int:
        return 7


def told(call: Callable[..., Any], *given: Any) -> Any:
    try:
        return call(*given)
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("shape", [Point, Single, Empty, Own, Hashed])
@pytest.mark.parametrize("options", [{}, {"frozen": True, "slots": True}, {"slots": True}, {"eq": False}], ids=str)
def test_classes_are_those_of_the_standard_library(shape: type, options: dict[str, Any]) -> None:
    found = []
    for dataclass in (records.dataclass, dataclasses.dataclass):
        own = {name: value for name, value in vars(shape).items() if name not in ("__dict__", "__weakref__")}
        made: Any = dataclass(**options)(type(shape.__name__, (), own))
        some = [made(*given) for given in ([()] if shape is Empty else [(1,), (2,), (1,), ([],), ("a",)])]
        found.append(
            (
                [repr(one) for one in some],
                [told(operator.eq, one, other) for one in some for other in (*some, 1, None)],
                [told(hash, one) for one in some] if options.get("eq", True) else None,
                [told(setattr, one, "x", 5) for one in some if shape is not Empty],  # a TypeError with slots there
                [told(delattr, copy.copy(one), "x") for one in some if shape is not Empty],
                str(inspect.signature(made)),
                [dataclasses.asdict(copy.copy(one)) for one in some],
            )
        )
    assert found[0] == found[1]


@records.dataclass(frozen=True, slots=True)
class Node:
    name: str
    inside: Any = None


@records.dataclass(frozen=True, slots=True)
class Leaf(Node):
    size: int = 0


class Plain(Node):
    """It is no dataclass, so it takes attributes that are no field."""


def test_a_class_of_a_class() -> None:
    plain = Plain("a")
    plain.more = 1
    assert plain.more == 1
    for name in ("name", "inside"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(plain, name, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Node("a").more = 1
    leaf = Leaf("a", Node("b"), 3)
    assert repr(leaf) == "Leaf(name='a', inside=Node(name='b', inside=None), size=3)"
    assert leaf != Node("a", Node("b")) and leaf == pickle.loads(pickle.dumps(leaf))
    assert hash(leaf) == hash(dataclasses.replace(leaf)) != hash(dataclasses.replace(leaf, size=4))
    around: list[Any] = []
    around.append(Node("c", around))
    assert repr(around[0]) == "Node(name='c', inside=[...])"


WRITTEN = {
    "api.Window", "bulk.Position", "bulk.Report", "cpu.HiddenRows", "integrations.Kept", "loading.Ranks",
    "parallel.RankGroup", "parallel.ShardRows", "results.RequestStats", "runtime.Call", "runtime.EngineStats",
    "runtime.Failures", "runtime.InFlightStep", "runtime.Lifecycle", "runtime.Stepper", "scheduling.Account",
    "scheduling.CompletedStep", "scheduling.Ledger", "scheduling._Step", "simulation.Clock", "simulation.Recorder",
}  # fmt: skip


PARTS = {one.name for one in pkgutil.iter_modules(prelude.__path__) if one.ispkg} - {"_native", "cuda", "tokenizer"}


@pytest.mark.parametrize("part", sorted(PARTS))
def test_records_have_slots_and_are_closed(part: str) -> None:
    package = importlib.import_module(f"prelude.{part}")
    inside = pkgutil.walk_packages(package.__path__, f"prelude.{part}.")
    for name in (f"prelude.{part}", *(one.name for one in inside)):
        with contextlib.suppress(ModuleNotFoundError):  # of a library that is not installed
            importlib.import_module(name)
        for record in vars(sys.modules.get(name, package)).values():
            if isinstance(record, type) and record.__module__ == name and "__dataclass_fields__" in vars(record):
                made, said = record.__new__(record), f"{part}.{record.__name__}"
                assert hasattr(made, "__dict__") == (record.__name__ in ("Failures", "Lifecycle", "Stepper")), said
                wrong = told(setattr, made, next(iter(record.__dataclass_fields__), "x"), 1)
                assert (wrong in (dataclasses.FrozenInstanceError, TypeError)) == (said not in WRITTEN), said
