"""The values of a chat template and their operations, each charged before it runs.

A template sees ``None``, booleans, numbers, strings, lists, tuples, dicts with plain keys, ranges, views of dicts,
iterators, and the objects of jinja2 (``loop``, ``namespace``, macros, undefined names). Nothing else gets in, so the
functions here go by type, and refuse a type that they do not know.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, ValuesView
from typing import Any

from jinja2.runtime import Undefined
from jinja2.sandbox import SandboxedEnvironment
from jinja2.tests import TESTS as _TESTS

from ..errors import ChatTemplateError
from .limits import ACTIVE, MAX_BITS, OBJECT, PIECE, measure
from .marks import Marked, MarkedFloat, MarkedInt, joined

VIEWS = (KeysView, ValuesView, ItemsView)
PRINTABLE = (list, tuple, dict, range, *VIEWS)
_TEXTS = frozenset([str, Marked])
_PLAIN = frozenset([bool, int, float, type(None)])
_MARKED: dict[type, Callable[[Any], Any]] = {str: Marked, int: MarkedInt, float: MarkedFloat}
JINJA_TESTS: dict[str, Any] = dict(_TESTS)
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
    marked = _MARKED.get(type(result)) if tainted else None
    return result if marked is None else marked(result)


def whole(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``run`` on plain strings: what it makes is untrusted as a whole if an argument is."""

    def tainting(*args: Any) -> Any:
        return with_taint(run(*map(_plain, args)), any(map(taints, args)))

    return tainting


def _plain(value: Any) -> Any:
    return str.__str__(value) if isinstance(value, str) else value


def number(value: Any, name: str, limit: int) -> int:
    """``value`` as a count; ``name`` says in an error where it stands."""
    if not isinstance(value, int) or abs(value) > limit:
        shown = f"the number {value!r:.40}" if isinstance(value, int) else "another value"
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
    if not isinstance(value, (str, *PRINTABLE)):
        return list(counted(value))
    size = PIECE if isinstance(value, str) else OBJECT if isinstance(value, (range, ItemsView)) else 8
    ACTIVE.get().take_items(len(value), size)
    return list(value)


def counted(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the items of ``values``, each charged for."""
    take, size = ACTIVE.get().take, PIECE if isinstance(values, str) else OBJECT
    return (take(size) or item for item in values)


def cut(value: Any, start: Any, stop: Any, step: Any) -> Any:
    """``value[start:stop:step]``"""
    where = slice(start, stop, step)
    if isinstance(value, str):
        ACTIVE.get().take_copy(len(range(*where.indices(len(value)))), value)
    elif isinstance(value, (list, tuple)):
        ACTIVE.get().take_items(len(range(*where.indices(len(value)))))
    elif not isinstance(value, (range, Undefined)):
        raise ChatTemplateError(f"the chat template slices a value of type {type(value).__name__}")
    return value[where]


# ---- comparing

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
    """Return the result of jinja2's test of that name, such as ``==``."""
    return JINJA_TESTS[name](comparable(left), comparable(right))  # type: ignore[no-any-return]


def contains(container: Any, item: Any) -> bool:
    """``item in container``"""
    rendering = ACTIVE.get()
    if isinstance(container, str):
        rendering.spend(len(container) >> 4)
        if isinstance(item, str):
            rendering.spend(len(item) >> 4)
    elif isinstance(container, (dict, KeysView)):
        comparable(checked_key(item))
    elif isinstance(container, (list, tuple, range, ValuesView, ItemsView)):
        charge_search(len(container), item)
    elif not isinstance(container, Undefined):  # an iterator: its items are charged for as it makes them
        return any(item is found or compare("==", item, found) for found in counted(container))
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


# ---- operators


def added(*values: Any) -> Any:
    """``a + b + c``, from left to right. Strings are joined once."""
    if _TEXTS.issuperset(map(type, values)):
        return concatenated(values)
    result = values[0]
    for value in values[1:]:
        if isinstance(result, str) and isinstance(value, str):
            result = concatenated((result, value))
        elif isinstance(result, (list, tuple)) and isinstance(value, (list, tuple, Undefined)):
            ACTIVE.get().take_items(len(result) + len(value))
            result = result + value  # type: ignore[operator]
        else:
            result = _calculated("+", result, value)
    return result


def chained(*values: Any) -> str:
    """``a ~ b ~ c``"""
    return concatenated(map(text, values))


def _calculated(name: str, left: Any, right: Any) -> Any:
    """Compute an operation on two numbers."""
    known = isinstance(left, (int, float)) and isinstance(right, (int, float, Undefined))
    if not known and not isinstance(left, Undefined):
        raise TypeError(f"unsupported operand types for {name}: {type(left).__name__} and {type(right).__name__}")
    ACTIVE.get().take(32)
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * (abs(right) if name == "**" else 1) + right.bit_length()
        if bits > MAX_BITS:
            raise ChatTemplateError(f"the chat template makes a number of more than {MAX_BITS} bits")
    result = SandboxedEnvironment.default_binop_table[name](left, right)
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
        from .methods import percent

        return percent(left, right)
    return _calculated(name, left, right)


def _repeated(value: Any, count: int) -> Any:
    rendering = ACTIVE.get()
    count = max(count, 0)
    if not isinstance(value, str):
        rendering.take_items(len(value) * count)
        return value * count
    spans = len(value.spans) if isinstance(value, Marked) else 0
    rendering.take_text(len(value) * count, not value.isascii(), spans * count)
    if not spans:
        return value * count
    rendering.take_items(count)
    return joined([value] * count)


def unary(name: str, value: Any) -> Any:
    """``-value`` and ``+value``"""
    ACTIVE.get().take(32)
    return with_taint(-value if name == "-" else +value, taints(value))


# ---- joining


def join(value: Any, separator: str) -> str:
    """``separator.join(value)``, with items made text first."""
    return concatenated(map(text, counted(value)), separator)


def concatenated(pieces: Iterable[str], separator: str = "") -> str:
    """``separator.join(pieces)``; no more pieces are asked for than one string may have characters of."""
    rendering = ACTIVE.get()
    most = rendering.bounds.max_output
    found = []
    size = spans = 0
    wide = not separator.isascii()
    for piece in pieces:
        found.append(piece)
        size += len(piece)
        if type(piece) is Marked:
            spans += 1 if piece.marks is None else len(piece.marks)
        if not piece.isascii():
            wide = True
        if size > most:
            rendering.refuse_size(size)
    if found:
        size += len(separator) * (len(found) - 1)
        spans += len(separator.spans) * (len(found) - 1) if isinstance(separator, Marked) else 0
    rendering.take_text(size, wide, spans)
    return joined(found, separator) if spans else separator.join(found)
