"""The methods and attributes that chat templates may use, each charged before it runs.

``METHODS[type][name]`` is a function of the owner and the arguments. A method that is not in the tables does not
exist for a template, or is refused by name if Python has it (``REFUSED``).

A field of a format has a width and a precision of at most ``MAX_WIDTH``, and names a value: it does not look into one
(``{0.name}``), nor take its width from another (``%*d``, ``{:{}}``). Each field is made by itself and the parts are
joined, so the spans of marked strings are kept.
"""

from __future__ import annotations

import re
import string
import sys
from collections.abc import Callable, Mapping
from operator import index
from types import FunctionType
from typing import Any

from jinja2.runtime import LoopContext, Macro
from jinja2.utils import Cycler, Joiner

from ..errors import ChatTemplateError
from . import marks
from .limits import ACTIVE, OBJECT, PIECE, SPAN
from .marks import Marked
from .values import added, charge_search, checked_key, comparable, join, number, repr_of, taints, whole
from .values import text as text_of

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
        for part in (*args, *kwargs.values()):
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


MAX_WIDTH = 1000
_PERCENT = re.compile(r"%(?:\(([^()]*)\))?([-#0 +]*)(\d*)(?:\.(\d*))?[hlL]?(.)", re.DOTALL)
_SPEC = re.compile(r"(?:.?[<>=^])?[-+ ]?#?0?(\d*)[,_]?(?:\.(\d+))?([bcdeEfFgGnosxX%]?)", re.DOTALL)
_FIELD = re.compile(r"[A-Za-z0-9_]*")


def percent(template: str, values: Any) -> str:
    """``template % values``"""
    rendering = ACTIVE.get()
    rendering.spend(len(template) >> 4)
    rendering.take_items(template.count("%") * 2, PIECE)
    given = list(values) if isinstance(values, tuple) else [values]
    parts: list[str] = []
    at = used = 0
    while (found := str.find(template, "%", at)) >= 0:
        parts.append(template[at:found])
        match = _PERCENT.match(template, found)
        if match is None:
            raise ValueError("incomplete format")
        key, flags, width, precision, kind = match.groups()
        at = match.end()
        if kind == "%":
            parts.append(Marked("%") if isinstance(template, Marked) else "%")
            continue
        if key is not None:
            if len(key) > MAX_WIDTH:
                raise ChatTemplateError(f"the name of a format's value has at most {MAX_WIDTH} characters")
            if not isinstance(values, dict):
                raise TypeError("format requires a mapping")
            value, used = values[str.__str__(key)], len(given)
        elif used < len(given):
            value, used = given[used], used + 1
        else:
            raise TypeError("not enough arguments for format string")
        _check_width(width, precision)
        made = _percent_field(flags, width, precision, kind, value)
        parts.append(Marked(made) if isinstance(template, Marked) else made)
    if used < len(given) and not isinstance(values, dict):
        raise TypeError("not all arguments converted during string formatting")
    parts.append(template[at:])
    return join(parts, "")


def _percent_field(flags: str, width: str, precision: str | None, kind: str, value: Any) -> str:
    if kind not in "diouxXeEfFgGcrsa":
        raise ChatTemplateError(f"the format character {kind!r} is left out of chat templates, or there is none such")
    if kind in "sra":
        made = _converted(value, kind)
        if precision is not None:
            made = made[: int(precision or 0)]
        return _filled(made, int(width or 0), "-" in flags)
    if not isinstance(value, (int, float, str)):
        raise TypeError(f"%{kind} format: a number is required, not {type(value).__name__}")
    given = f"%{flags}{width}{'' if precision is None else '.' + precision}{kind}"
    ACTIVE.get().take(4 * MAX_WIDTH)
    return whole(given.__mod__)(value)  # type: ignore[no-any-return]


def braces(template: str, *args: Any, **kwargs: Any) -> str:
    """``template.format(*args, **kwargs)``"""
    rendering = ACTIVE.get()
    rendering.spend(len(template) >> 4)
    rendering.take_items((template.count("{") + template.count("}")) * 2, PIECE)
    marked = isinstance(template, Marked)
    parts: list[str] = []
    used = 0
    for literal, name, spec, conversion in string.Formatter().parse(str.__str__(template)):
        parts.append(Marked(literal) if marked else literal)
        if name is None:
            continue
        if not _FIELD.fullmatch(name):
            raise ChatTemplateError(
                "a field of str.format names a value in chat templates, and does not look into it"
            )
        if not name:
            value, used = args[used], used + 1
        else:
            value = args[int(name)] if name.isdecimal() and len(name) < 6 else kwargs[name]
        made = _brace_field(value, spec, conversion)
        parts.append(Marked(made) if marked else made)
    return join(parts, "")


def _brace_field(value: Any, spec: str | None, conversion: str | None) -> str:
    if conversion:
        value = _converted(value, conversion)
    if not spec:
        return text_of(value)
    match = _SPEC.fullmatch(spec)
    if match is None:
        raise ChatTemplateError("str.format has a format that is left out of chat templates")
    _check_width(match[1], match[2])
    if isinstance(value, str):
        ACTIVE.get().take_copy(len(value) + MAX_WIDTH, value)
    else:
        ACTIVE.get().take(4 * MAX_WIDTH + (value.bit_length() if isinstance(value, int) else 0))
    return whole(format)(value, spec)  # type: ignore[no-any-return]


def _converted(value: Any, conversion: str) -> str:
    """``str``, ``repr`` or ``ascii`` of a value."""
    if conversion == "s":
        return text_of(value)
    if conversion not in ("r", "a"):
        raise ValueError(f"unknown conversion {conversion!r}")
    marked = taints(value)
    shown = repr_of([value])[1:-1]
    if conversion == "a":
        ACTIVE.get().take(12 * len(shown))
        shown = shown.encode("ascii", "backslashreplace").decode("ascii")
    return Marked(shown) if marked else shown


def _filled(text: str, width: int, left: bool) -> str:
    gap = " " * (width - len(text))
    return added(text, gap) if left else added(gap, text)  # type: ignore[no-any-return]


def _check_width(*widths: str | None) -> None:
    for width in widths:
        if width and (len(width) > 4 or int(width) > MAX_WIDTH):
            raise ChatTemplateError(
                f"the chat template formats with a field width or precision of {width[:20]}; the limit is {MAX_WIDTH}"
            )


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


def _sequence_index(owner: Any, item: Any, start: int = 0, stop: int = sys.maxsize) -> int:
    charge_search(len(owner), item)
    for i in range(*slice(index(start), index(stop)).indices(len(owner))):
        if owner[i] is item or owner[i] == item:
            return i
    raise ChatTemplateError("list.index: the list has no such item")  # Python's error would write the item


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
for _table in (_OF_STRINGS, *(METHODS[kind] for kind in (str, list, dict))):
    for _name, _run in _table.items():
        if isinstance(_run, FunctionType):
            _run.__qualname__ = _name  # which Python's errors of calls say
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
