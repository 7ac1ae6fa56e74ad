"""``dataclass`` as in ``dataclasses``, with methods that cost no start.

The standard library compiles six functions for each frozen dataclass, which takes most of the time of an import of
this package. Here the text, comparison and hash of all classes are the same few functions; what they give is what
the compiled ones give.
"""

from __future__ import annotations

import dataclasses
from dataclasses import MISSING, asdict, field, fields, replace
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
        made = dataclasses.dataclass(cls, repr=False, eq=False, frozen=frozen, **options)
        if repr and "__repr__" not in own:
            made.__repr__ = _text
        if eq:
            equals, hashed = _compared([field.name for field in fields(made) if field.compare])
            if "__eq__" not in own:
                made.__eq__ = equals
            if own.get("__hash__") is None:
                made.__hash__ = hashed if frozen else None
        return made


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
