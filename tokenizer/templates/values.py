"""The values of a chat template and their operations, each charged before it runs.

A template sees ``None``, booleans, numbers, strings, lists, tuples, dicts with plain keys, ranges, views of dicts,
iterators, and the objects of jinja2 (``loop``, ``namespace``, macros, undefined names). Nothing else gets in, so the
functions here go by type, and refuse a type that they do not know.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, ValuesView
from typing import Any

from jinja2.runtime import Undefined

from ..errors import ChatTemplateError
from .limits import ACTIVE, MAX_BITS, OBJECT, PIECE, measure
from .marks import Marked, MarkedFloat, MarkedInt, joined

VIEWS = (KeysView, ValuesView, ItemsView)
PRINTABLE = (list, tuple, dict, range, *VIEWS)
_PLAIN = frozenset([bool, int, float, type(None)])
MAX_KEY = (1 << 60) - 1  # greater ints can be chosen so that their hashes are alike


def text(value: Any) -> str:
    """Return the text of ``value`` in the output. A container's text is as untrusted as its items."""
    kind = type(value)
    if kind is str or kind is Marked:
        return value  # type: ignore[no-any-return]
    if kind in _PLAIN or isinstance(value, Undefined):
        return str(value)
    if kind is MarkedInt or kind is MarkedFloat:
        return Marked(str(value))
    if not isinstance(value, PRINTABLE):
        raise ChatTemplateError(f"the chat template writes a value of type {kind.__name__}, which has no text")
    return Marked(repr_of(value))


def repr_of(value: Any) -> str:
    rendering = ACTIVE.get()
    shown = list(value) if isinstance(value, VIEWS) else value
    if isinstance(shown, (list, tuple, dict)):
        size = measure(shown)
        # ``repr`` writes up to 10 characters for one; each level of nesting is copied into the next.
        rendering.take((size.items * 32 + size.narrow * 4) * (4 if size.wide else 1) + size.wide * 40)
        rendering.spend((size.copied + size.depths * 8) >> 4)
        _check_printable(shown)
    return repr(value)


def _check_printable(value: Any) -> None:
    """Refuse a container with an item that has no text; ``measure`` has bounded the walk."""
    left = [value]
    while left:
        found = left.pop()
        if isinstance(found, dict):
            left.extend(found.values())
        elif isinstance(found, (list, tuple)):
            left.extend(found)
        elif not (found is None or isinstance(found, (str, bool, int, float, range, Undefined))):
            raise ChatTemplateError(f"the chat template writes a value of type {type(found).__name__}")


def taints(value: Any) -> bool:
    """Return whether text made of ``value`` is untrusted."""
    kind = type(value)
    if kind is str or kind in _PLAIN:
        return False
    return not isinstance(value, Undefined)


def with_taint(result: Any, tainted: bool) -> Any:
    """Return a string or number that an operation made: marked if an operand was."""
    if not tainted:
        return result
    kind = type(result)
    if kind is str:
        return Marked(result)
    if kind is int:
        return MarkedInt(result)
    return MarkedFloat(result) if kind is float else result


def number(value: Any, name: str, limit: int) -> int:
    """``value`` as a count; ``name`` says in an error where it stands."""
    if not isinstance(value, int) or abs(value) > limit:
        shown = (
            f"the number {value!r:.40}" if isinstance(value, int) and value.bit_length() < 200 else "another value"
        )
        raise ChatTemplateError(f"{name} is a whole number of at most {limit} in chat templates, not {shown}")
    return int(value)


# ---- containers


def checked_key(key: Any) -> Any:
    """Return a key of a dict: only types whose hash takes constant time and cannot be chosen."""
    if isinstance(key, str):
        return key
    if isinstance(key, int):
        if -MAX_KEY <= key <= MAX_KEY:
            return key
    elif key is None or isinstance(key, (float, Undefined)):
        return key
    raise ChatTemplateError(
        f"a key of a dict is a string, a number below 2**60 or none in chat templates, not {type(key).__name__}"
    )


def listed(value: Any) -> list[Any]:
    """Return the items of ``value`` in a new list."""
    rendering = ACTIVE.get()
    if isinstance(value, str):
        rendering.take_items(len(value), PIECE)
        return list(value)
    if isinstance(value, (list, tuple, dict, *VIEWS)):
        rendering.take_items(len(value), OBJECT if isinstance(value, ItemsView) else 8)
        return list(value)
    if isinstance(value, range):
        rendering.take_items(len(value), 40)
        return list(value)
    return list(counted(value))


def counted(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the items of ``values``, each charged for."""
    iterator = iter(values)
    return _counted(iterator, PIECE if isinstance(values, str) else OBJECT)


def _counted(iterator: Iterator[Any], size: int) -> Iterator[Any]:
    rendering = ACTIVE.get()
    for item in iterator:
        rendering.take(size)
        yield item


def cut(value: Any, start: Any, stop: Any, step: Any) -> Any:
    """``value[start:stop:step]``"""
    rendering = ACTIVE.get()
    where = slice(start, stop, step)
    if isinstance(value, str):
        first, last, by = where.indices(len(value))
        spans = len(value.marks or ()) if isinstance(value, Marked) else 0
        rendering.take_text(len(range(first, last, by)), not value.isascii(), spans)
    elif isinstance(value, (list, tuple)):
        rendering.take_items(len(range(*where.indices(len(value)))))
    elif not isinstance(value, (range, Undefined)):
        raise ChatTemplateError(f"the chat template slices a value of type {type(value).__name__}")
    return value[where]


# ---- comparing

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "lteq": operator.le,
    "gt": operator.gt,
    "gteq": operator.ge,
}
_CONTAINERS = (list, tuple, dict)


def comparable(value: Any) -> Any:
    """``value``, charged for being compared."""
    if isinstance(value, str):
        if len(value) > 256:
            ACTIVE.get().spend(len(value) >> 4)
    elif isinstance(value, _CONTAINERS):
        size = measure(value)
        ACTIVE.get().spend((size.narrow + size.wide) >> 4)
    elif isinstance(value, VIEWS):
        raise ChatTemplateError("a view of a dict cannot be compared in chat templates; use |list")
    return value


def compare(name: str, left: Any, right: Any) -> bool:
    return _COMPARE[name](comparable(left), comparable(right))


def contains(container: Any, item: Any) -> bool:
    """``item in container``"""
    rendering = ACTIVE.get()
    if isinstance(container, str):
        rendering.spend(len(container) >> 4)
        if isinstance(item, str):
            rendering.spend(len(item) >> 4)
        elif not isinstance(item, Undefined):
            raise TypeError(f"'in <string>' requires string as left operand, not {type(item).__name__}")
    elif isinstance(container, (dict, KeysView)):
        comparable(checked_key(item))
    elif isinstance(container, (list, tuple, range, ValuesView, ItemsView)):
        charge_search(len(container), item)
    elif not isinstance(container, Undefined):
        comparable(item)  # an iterator: its items are charged for as it makes them
        return any(_same(item, found) for found in counted(container))
    return item in container


def charge_search(count: int, item: Any) -> None:
    """Charge for comparing ``item`` with ``count`` others."""
    rendering = ACTIVE.get()
    cost = 1
    if isinstance(item, str):
        cost += len(item) >> 4
    elif isinstance(item, _CONTAINERS):
        size = measure(item)
        cost += size.items * 8 + ((size.narrow + size.wide) >> 4)
    rendering.spend(count * cost)


def _same(left: Any, right: Any) -> bool:
    return left is right or bool(compare("eq", left, right))


# ---- operators


def added(*values: Any) -> Any:
    """``a + b + c``, from left to right. Strings are joined once."""
    size = 0
    wide = False
    spans = 0
    for value in values:
        kind = type(value)
        if kind is Marked:
            spans += 1 if value.marks is None else len(value.marks)
        elif kind is not str:
            break
        size += len(value)
        wide = wide or not value.isascii()
    else:
        ACTIVE.get().take_text(size, wide, spans)
        return joined(values) if spans else "".join(values)
    result = values[0]
    for value in values[1:]:
        result = _sum(result, value)
    return result


def _sum(left: Any, right: Any) -> Any:
    rendering = ACTIVE.get()
    if isinstance(left, str) and isinstance(right, str):
        return added(left, right)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        rendering.take_items(len(left) + len(right))
        return left + right  # type: ignore[operator]
    return _calculated("+", left, right)


def chained(*values: Any) -> str:
    """``a ~ b ~ c``"""
    return added(*map(text, values))  # type: ignore[no-any-return]


_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}


def _calculated(name: str, left: Any, right: Any) -> Any:
    """Compute an operation on two numbers."""
    if not isinstance(left, (int, float, Undefined)) or not isinstance(right, (int, float, Undefined)):
        raise TypeError(f"unsupported operand types for {name}: {type(left).__name__} and {type(right).__name__}")
    ACTIVE.get().take(32)
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * (abs(right) if name == "**" else 1) + right.bit_length()
        if bits > MAX_BITS:
            raise ChatTemplateError(f"the chat template makes a number of more than {MAX_BITS} bits")
    result = _ARITHMETIC[name](left, right)
    if isinstance(result, complex):
        raise ChatTemplateError("the chat template takes a root of a negative number")
    return with_taint(result, taints(left) or taints(right))


def binary(name: str, left: Any, right: Any) -> Any:
    """``left name right`` for all operators but ``~``."""
    if name == "+":
        return added(left, right)
    if name == "*":
        for repeated, count in ((left, right), (right, left)):
            if isinstance(repeated, (str, list, tuple)) and isinstance(count, int):
                return _repeated(repeated, count)
    if name == "%" and isinstance(left, str):
        from .formats import percent

        return percent(left, right)
    return _calculated(name, left, right)


def _repeated(value: Any, count: int) -> Any:
    rendering = ACTIVE.get()
    count = max(count, 0)
    if isinstance(value, str):
        spans = len(value.spans) if isinstance(value, Marked) else 0
        rendering.take_text(len(value) * count, not value.isascii(), spans * count)
        if spans:
            rendering.take_items(count)
            return joined([value] * count)
    else:
        rendering.take_items(len(value) * count)
    return value * count


def unary(name: str, value: Any) -> Any:
    """``-value`` and ``+value``"""
    if not isinstance(value, (int, float, Undefined)):
        raise TypeError(f"bad operand type for unary {name}: {type(value).__name__}")
    ACTIVE.get().take(32)
    return with_taint(-value if name == "-" else +value, taints(value))


# ---- joining


def join(value: Any, separator: str) -> str:
    """``separator.join(value)``, with items made text first."""
    rendering = ACTIVE.get()
    pieces = []
    size = spans = 0
    gap = len(separator)
    wide = not separator.isascii()
    gap_spans = len(separator.spans) if isinstance(separator, Marked) else 0
    for item in counted(value):
        piece = text(item)
        pieces.append(piece)
        size += len(piece) + gap
        wide = wide or not piece.isascii()
        spans += gap_spans + (len(piece.spans) if isinstance(piece, Marked) else 0)
        if size > rendering.bounds.max_output + gap:
            rendering.refuse_size(size)
    rendering.take_items(2 * len(pieces))
    rendering.take_text(max(size - gap, 0), wide, spans)
    return joined(pieces, separator)
