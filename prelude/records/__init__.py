"""``dataclass`` as in ``dataclasses``, with methods that cost no start.

The standard library compiles six functions for each frozen dataclass, which takes most of the time of an import of
this package. Here one is compiled, ``__init__``; the others are the same few functions for all classes. They give
what the compiled ones give.
"""

from __future__ import annotations

import dataclasses
from dataclasses import MISSING, FrozenInstanceError, asdict, field, fields, replace
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

__all__ = ["MISSING", "asdict", "dataclass", "field", "fields", "replace"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls=None, /, *, repr=True, eq=True, frozen=False, **options):
        if cls is None:
            return lambda cls: dataclass(cls, repr=repr, eq=eq, frozen=frozen, **options)
        own = dict(vars(cls))
        closed = frozen and options.get("slots") and not hasattr(cls, "__dataclass_fields__")
        given = {"init": False} if closed else {"frozen": frozen}
        made = dataclasses.dataclass(cls, repr=False, eq=False, **given, **options)
        if closed:
            _close(made)
        if repr and "__repr__" not in own:
            made.__repr__ = _text
        if eq:
            equals, hashed = _compared([field.name for field in fields(made) if field.compare])
            if "__eq__" not in own:
                made.__eq__ = equals
            if own.get("__hash__") is None:
                made.__hash__ = hashed if frozen else None
        return made


class _Factory:
    def __repr__(self) -> str:
        return "<factory>"


def _close(made: Any) -> None:
    """Make a class with slots, of no other dataclass, a frozen one, with an ``__init__`` of its fields."""
    positional, named, body = ["self"], ["*"], ["pass"]
    names = {"_missing": _Factory()} | {f"_set_{one.name}": vars(made)[one.name].__set__ for one in fields(made)}
    given = [one for one in fields(made) if one.init]
    for at, one in enumerate(given):
        parameter = value = one.name
        if one.default_factory is not MISSING:
            names[f"_{at}"] = one.default_factory
            parameter, value = f"{parameter}=_missing", f"_{at}() if {value} is _missing else {value}"
        elif one.default is not MISSING:
            names[f"_{at}"] = one.default
            parameter += f"=_{at}"
        (named if one.kw_only else positional).append(parameter)
        body.append(f"_set_{one.name}(self, {value})")
    if hasattr(made, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = positional + (named if len(named) > 1 else [])
    exec(f"def __init__({', '.join(parameters)}):\n " + "\n ".join(body), names)
    made.__init__ = names["__init__"]
    made.__init__.__qualname__ = f"{made.__qualname__}.__init__"
    made.__init__.__annotations__ = {**{one.name: one.type for one in given}, "return": None}
    made.__dataclass_params__.frozen = True
    made.__setattr__, made.__delattr__ = _refuse, _refuse
    if "__getstate__" not in vars(made):
        made.__getstate__, made.__setstate__ = _state, _restore


def _refuse(self: Any, name: str, *value: Any) -> None:
    if "__dataclass_fields__" in vars(type(self)) or name in type(self).__dataclass_fields__:
        raise FrozenInstanceError(f"cannot {'assign to' if value else 'delete'} field {name!r}")
    (object.__setattr__ if value else object.__delattr__)(self, name, *value)  # of a class of this class


def _state(self: Any) -> list[Any]:
    return [getattr(self, one.name) for one in fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    for one, value in zip(fields(self), state):
        object.__setattr__(self, one.name, value)


@recursive_repr()
def _text(self: Any) -> str:
    shown = (f"{field.name}={getattr(self, field.name)!r}" for field in fields(self) if field.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _compared(names: list[str]) -> tuple[Any, Any]:
    """``__eq__`` and ``__hash__`` over the attributes of these names."""
    values: Any = attrgetter(*names) if len(names) > 1 else lambda self: tuple(getattr(self, name) for name in names)

    def equals(self: Any, other: object) -> Any:
        return values(self) == values(other) if type(other) is type(self) else NotImplemented

    return equals, lambda self: hash(values(self))
