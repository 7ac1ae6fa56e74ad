"""The methods and attributes that chat templates may use, each charged before it runs.

``METHODS[type][name]`` is a function of the owner and the arguments. A method that is not in the tables does not
exist for a template, or is refused by name if Python has it (``REFUSED``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jinja2.runtime import LoopContext, Macro
from jinja2.utils import Cycler, Joiner

from ..errors import ChatTemplateError
from . import marks
from .formats import braces
from .limits import ACTIVE, OBJECT, PIECE, SPAN, Rendering
from .marks import Marked
from .values import charge_search, checked_key, comparable, join, number, taints, with_taint


class Function:
    """A function that a template may call; ``owner`` is its first argument if it is a method."""

    __slots__ = ("owner", "run")

    def __init__(self, run: Callable[..., Any], owner: Any = None) -> None:
        self.run = run
        self.owner = owner


# ---- strings: ``marks`` has those that keep the spans


def _charge_copy(value: str) -> Rendering:
    """Charge for a string made of the characters of ``value``."""
    rendering = ACTIVE.get()
    spans = len(value.marks or ()) if isinstance(value, Marked) else 0
    rendering.take_text(len(value), not value.isascii(), spans)
    return rendering


def _strip(function: Callable[..., str]) -> Callable[..., str]:
    def run(owner: str, chars: str | None = None) -> str:
        rendering = _charge_copy(owner)
        if chars is not None:
            rendering.spend((len(owner) * len(chars)) >> 4)
        return function(owner, chars)

    return run


def _split(function: Callable[..., list[str]]) -> Callable[..., list[str]]:
    def run(owner: str, sep: str | None = None, maxsplit: int = -1) -> list[str]:
        """The number of pieces is not known before, so no more are asked for than can be paid."""
        rendering = _charge_copy(owner)
        size = PIECE
        if isinstance(owner, Marked):
            size = 2 * PIECE if owner.marks is None else 2 * PIECE + SPAN
        affordable = rendering.memory // size
        most = int(maxsplit)
        if function is marks.rsplit and sep:
            charge_reverse(owner, sep)
        if most < 0 or most > affordable:
            most = affordable
        found = function(owner, sep, most)
        rendering.take(len(found) * size)
        if len(found) > affordable:
            rendering.take(rendering.memory + 1)
        return found

    return run


def charge_reverse(value: str, found: str) -> None:
    """CPython looks for a string from the end by comparing it at each place."""
    rendering = ACTIVE.get()
    rendering.spend((len(value) * min(len(found), len(value))) >> 4)


def _splitlines(owner: str, keepends: bool = False) -> list[str]:
    rendering = _charge_copy(owner)
    breaks = sum(str.count(owner, c) for c in "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")
    rendering.take_items(breaks + 1, 3 * PIECE)
    return marks.splitlines(owner, keepends)


def _partition(owner: str, sep: str) -> tuple[str, str, str]:
    _charge_copy(owner)
    return marks.partition(owner, sep)


def _rpartition(owner: str, sep: str) -> tuple[str, str, str]:
    _charge_copy(owner)
    charge_reverse(owner, sep)
    return marks.rpartition(owner, sep)


def replaced(value: str, old: str, new: str, count: int = -1) -> str:
    found = str.count(value, old)
    if count >= 0:
        found = min(found, count)
    rendering = ACTIVE.get()
    rendering.spend(len(value) >> 4)
    wide = not (value.isascii() and new.isascii())
    spans = (len(value.spans) if isinstance(value, Marked) else 0) + (
        found * (1 + len(new.spans)) if isinstance(new, Marked) else 0
    )
    if isinstance(value, Marked) or isinstance(new, Marked):
        rendering.take_items(found + 1, 3 * PIECE)
    rendering.take_text(len(value) + found * len(new), wide, spans)
    return marks.replace(value, old, new, count)


def _replace(owner: str, old: str, new: str, count: int = -1) -> str:
    return replaced(owner, old, new, count)


def _cased(function: Callable[[str], str]) -> Callable[[str], str]:
    def run(owner: str) -> str:
        _charge_copy(owner)
        # CPython makes these in a buffer of three 4-byte characters for each one.
        ACTIVE.get().take(len(owner) * 16 if owner else 0)
        return with_taint(function(str.__str__(owner)), isinstance(owner, Marked))  # type: ignore[no-any-return]

    return run


def _spanned_case(function: Callable[[str], str]) -> Callable[[str], str]:
    def run(owner: str) -> str:
        rendering = _charge_copy(owner)
        if isinstance(owner, Marked) and owner.marks:
            rendering.take_items(2 * len(owner.marks) + 1, 2 * PIECE)
        if not owner.isascii():
            rendering.take(len(owner) * 16)
        return function(owner)

    return run


def _padded(name: str) -> Callable[..., str]:
    function = getattr(str, name)

    def run(owner: str, width: int, *fill: str) -> str:
        width = number(width, f"the width of str.{name}", ACTIVE.get().bounds.max_output)
        wide = not all(part.isascii() for part in (owner, *fill))
        ACTIVE.get().take_text(max(width, len(owner)), wide)
        tainted = taints(owner) or any(map(taints, fill))
        return with_taint(function(str.__str__(owner), width, *fill), tainted)  # type: ignore[no-any-return]

    return run


def _expandtabs(owner: str, tabsize: int = 8) -> str:
    size = number(tabsize, "the size of str.expandtabs", ACTIVE.get().bounds.max_output)
    ACTIVE.get().take_text(len(owner) + str.count(owner, "\t") * max(size, 0), not owner.isascii())
    made = str.__str__(owner).expandtabs(size)
    return with_taint(made, isinstance(owner, Marked))  # type: ignore[no-any-return]


def _asked(name: str) -> Callable[..., Any]:
    """Return a method that reads the string and gives a number or a boolean."""
    function = getattr(str, name)
    reverse = name in ("rfind", "rindex")

    def run(owner: str, *args: Any) -> Any:
        rendering = ACTIVE.get()
        rendering.spend(len(owner) >> 4)
        for found in args:
            for part in found if isinstance(found, tuple) else (found,):
                if isinstance(part, str):
                    rendering.spend(len(part) >> 4)
                    if reverse:
                        charge_reverse(owner, part)
        return function(owner, *args)

    return run


def _join(owner: str, values: Any = ()) -> str:
    return join(values, owner)


def _prefix(function: Callable[[str, str], str]) -> Callable[[str, str], str]:
    def run(owner: str, affix: str) -> str:
        _charge_copy(owner)
        return function(owner, affix)

    return run


_STR: dict[str, Callable[..., Any]] = {
    "strip": _strip(marks.strip),
    "lstrip": _strip(marks.lstrip),
    "rstrip": _strip(marks.rstrip),
    "split": _split(marks.split),
    "rsplit": _split(marks.rsplit),
    "splitlines": _splitlines,
    "partition": _partition,
    "rpartition": _rpartition,
    "replace": _replace,
    "removeprefix": _prefix(marks.removeprefix),
    "removesuffix": _prefix(marks.removesuffix),
    "upper": _spanned_case(marks.upper),
    "lower": _spanned_case(marks.lower),
    "title": _cased(str.title),
    "capitalize": _cased(str.capitalize),
    "swapcase": _cased(str.swapcase),
    "casefold": _cased(str.casefold),
    "expandtabs": _expandtabs,
    "join": _join,
    "format": braces,
    **{name: _padded(name) for name in ("center", "ljust", "rjust", "zfill")},
    **{
        name: _asked(name)
        for name in (
            *("startswith", "endswith", "find", "rfind", "index", "rindex", "count", "isalnum", "isalpha", "isascii"),
            *("isdecimal", "isdigit", "isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle"),
            *("isupper",),
        )
    },
}

# ---- containers and the objects of jinja2


def _sequence_index(owner: Any, item: Any, *where: int) -> int:
    charge_search(len(owner), item)
    try:
        return int(owner.index(_Quiet(item) if isinstance(item, (list, tuple, dict)) else item, *where))
    except ValueError:
        raise ChatTemplateError("list.index: the list has no such item") from None


class _Quiet:
    """Equal to the same objects as ``value``. ``list.index`` writes the missing value into its error; this one is
    written shortened."""

    __slots__ = ("value",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return bool(self.value == other)


def _sequence_count(owner: Any, item: Any) -> int:
    charge_search(len(owner), item)
    return int(owner.count(item))


def _get(owner: dict[Any, Any], key: Any, default: Any = None) -> Any:
    return owner.get(comparable(checked_key(key)), default)


def _copy(owner: Any) -> Any:
    ACTIVE.get().take_items(len(owner), 2 * OBJECT)
    return owner.copy()


def _changed(owner: LoopContext, *values: Any) -> bool:
    comparable(values)
    return owner.changed(*values)


_SEQUENCE: dict[str, Callable[..., Any]] = {"index": _sequence_index, "count": _sequence_count}
METHODS: Mapping[type, Mapping[str, Callable[..., Any]]] = {
    str: _STR,
    list: {**_SEQUENCE, "copy": _copy},
    tuple: _SEQUENCE,
    dict: {"get": _get, "items": dict.items, "keys": dict.keys, "values": dict.values, "copy": _copy},
    LoopContext: {"cycle": LoopContext.cycle, "changed": _changed},
    Cycler: {"next": Cycler.next, "reset": Cycler.reset},
    Macro: {},
    Joiner: {},
}
ATTRIBUTES: Mapping[type, frozenset[str]] = {
    LoopContext: frozenset(
        (
            "index",
            "index0",
            "revindex",
            "revindex0",
            "first",
            "last",
            "length",
            "depth",
            "depth0",
            "previtem",
            "nextitem",
        )
    ),
    Cycler: frozenset(("current",)),
    Macro: frozenset(("name", "arguments", "catch_kwargs", "catch_varargs", "caller")),
}
REFUSED: Mapping[type, frozenset[str]] = {
    kind: frozenset(name for name in dir(kind) if not name.startswith("_")) - METHODS[kind].keys()
    for kind in (str, list, tuple, dict)
}
