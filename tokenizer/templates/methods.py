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
from .limits import ACTIVE, OBJECT, PIECE, SPAN
from .marks import Marked
from .values import charge_search, checked_key, comparable, join, number, whole

# ---- strings: ``marks`` has those that keep the spans; what the others make is untrusted as a whole

_ASKED = (  # they give a number or a boolean
    *("startswith", "endswith", "find", "rfind", "index", "rindex", "count", "isalnum", "isalpha", "isascii"),
    *("isdecimal", "isdigit", "isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper"),
)
# CPython looks for a string from the end by comparing it at each place, and strips by comparing each character.
_SLOW = ("rfind", "rindex", "rsplit", "rpartition", "strip", "lstrip", "rstrip")


def _charged(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method, charged for the strings that it reads, and for a copy that keeps the spans."""
    copies, slow = name in marks.METHODS, name in _SLOW

    def method(owner: str, *args: Any, **kwargs: Any) -> Any:
        rendering, length, read = ACTIVE.get(), len(owner), 0
        if copies:
            rendering.take_copy(length, owner)
        for part in (*args, *kwargs.values()) if kwargs else args:
            if isinstance(part, str):
                read += len(part)
            elif isinstance(part, tuple):
                read += sum(map(len, part)) + 16 * len(part)
        rendering.spend((length + read * (length if slow else 1)) >> 4)
        return run(owner, *args, **kwargs)

    return method


def _split(function: Callable[..., list[str]]) -> Callable[..., list[str]]:
    def run(owner: str, sep: str | None = None, maxsplit: int = -1) -> list[str]:
        """The number of pieces is not known before, so no more are asked for than can be paid."""
        rendering = ACTIVE.get()
        size = PIECE
        if isinstance(owner, Marked):
            size = 2 * PIECE if owner.marks is None else 2 * PIECE + SPAN
        affordable = rendering.memory // size
        most = int(maxsplit)
        if most < 0 or most > affordable:
            most = affordable
        found = function(owner, sep, most)
        rendering.take(len(found) * size)
        if len(found) > affordable:
            rendering.take(rendering.memory + 1)
        return found

    return run


def count_breaks(value: str) -> int:
    return sum(str.count(value, c) for c in "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")


def _splitlines(owner: str, keepends: bool = False) -> list[str]:
    ACTIVE.get().take_items(count_breaks(owner) + 1, 3 * PIECE)
    return marks.splitlines(owner, keepends)


def _replace(owner: str, old: str, new: str, count: int = -1) -> str:
    found = str.count(owner, old)
    if count >= 0:
        found = min(found, count)
    rendering = ACTIVE.get()
    spans = len(owner.spans) if isinstance(owner, Marked) else 0
    spans += found * (1 + len(new.spans)) if isinstance(new, Marked) else 0
    if isinstance(owner, Marked) or isinstance(new, Marked):
        rendering.take_items(found + 1, 3 * PIECE)
    rendering.take_text(len(owner) + found * len(new), not (owner.isascii() and new.isascii()), spans)
    return marks.replace(owner, old, new, count)


def _cased(name: str, run: Callable[[str], str]) -> Callable[[str], str]:
    def cased(owner: str) -> str:
        rendering = ACTIVE.get()
        if isinstance(owner, Marked):
            rendering.take_items(2 * len(owner.marks or ()) + 1, 2 * PIECE)
        if name not in ("upper", "lower") or not owner.isascii():
            rendering.take(len(owner) * 16)  # CPython makes three characters of 4 bytes for each one
        return run(owner)

    return cased


def _padded(name: str) -> Callable[..., str]:
    pad = whole(getattr(str, name))

    def run(owner: str, width: int, *fill: str) -> str:
        width = number(width, f"the width of str.{name}", ACTIVE.get().bounds.max_output)
        ACTIVE.get().take_copy(max(width, len(owner)), owner, *fill)
        return pad(owner, width, *fill)  # type: ignore[no-any-return]

    return run


def _expandtabs(owner: str, tabsize: int = 8) -> str:
    size = number(tabsize, "the size of str.expandtabs", ACTIVE.get().bounds.max_output)
    ACTIVE.get().take_copy(len(owner) + str.count(owner, "\t") * max(size, 0), owner)
    return whole(str.expandtabs)(owner, size)  # type: ignore[no-any-return]


def _join(owner: str, values: Any = ()) -> str:
    return join(values, owner)


_OF_STRINGS: dict[str, Callable[..., Any]] = {
    **{name: getattr(str, name) for name in _ASKED},
    **marks.METHODS,
    "split": _split(marks.split),
    "rsplit": _split(marks.rsplit),
    "splitlines": _splitlines,
    "replace": _replace,
    "upper": _cased("upper", marks.upper),
    "lower": _cased("lower", marks.lower),
    **{name: _cased(name, whole(getattr(str, name))) for name in ("title", "capitalize", "swapcase", "casefold")},
    **{name: _padded(name) for name in ("center", "ljust", "rjust", "zfill")},
    "expandtabs": _expandtabs,
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
    str: {**{name: _charged(name, run) for name, run in _OF_STRINGS.items()}, "join": _join, "format": braces},
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
            *("index", "index0", "revindex", "revindex0", "first", "last", "length", "depth", "depth0"),
            *("previtem", "nextitem"),
        )
    ),
    Cycler: frozenset(("current",)),
    Macro: frozenset(("name", "arguments", "catch_kwargs", "catch_varargs", "caller")),
}
REFUSED: Mapping[type, frozenset[str]] = {
    kind: frozenset(name for name in dir(kind) if not name.startswith("_")) - METHODS[kind].keys()
    for kind in (str, list, tuple, dict)
}
