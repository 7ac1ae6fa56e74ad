"""The filters and tests that chat templates may use, each charged before it runs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from jinja2 import filters as jinja
from jinja2 import pass_context, pass_environment
from jinja2.exceptions import FilterArgumentError
from jinja2.runtime import LoopContext, Macro
from jinja2.utils import Joiner

from ..errors import ChatTemplateError
from .limits import ACTIVE, OBJECT, PIECE, checked_bits, measure
from .methods import METHODS, count_breaks, percent
from .values import (
    JINJA_TESTS,
    binary,
    checked_key,
    compare,
    contains,
    counted,
    join,
    listed,
    number,
    taints,
    text,
    whole,
    with_taint,
)

MAX_NAME = 1000  # characters of an attribute's name
MAX_INDENT = 64
MAX_DIGITS = 64  # of ``round``
_WORD = re.compile(r"\w+")
_STR = METHODS[str]


def check_name(value: Any) -> None:
    """Check a name in an argument: of a filter, a test or an attribute."""
    if isinstance(value, str) and len(value) > MAX_NAME:
        raise ChatTemplateError(f"a name of {len(value)} characters in a chat template; the limit is {MAX_NAME}")


# ---- strings


def _of_text(run: Callable[..., Any]) -> Callable[..., Any]:
    return lambda value, *args, **kwargs: run(text(value), *args, **kwargs)


@pass_environment
def _join(environment: Any, value: Any, d: Any = "", attribute: Any = None) -> str:
    return join(_attributes(environment, value, attribute), text(d))


def _replace(s: Any, old: Any, new: Any, count: int | None = None) -> str:
    return _STR["replace"](text(s), text(old), text(new), -1 if count is None else count)  # type: ignore[no-any-return]


def _title(s: Any) -> str:
    value = text(s)
    ACTIVE.get().take(len(value) * OBJECT)
    return whole(jinja.do_title)(value)  # type: ignore[no-any-return]


def _wordcount(s: Any) -> int:
    value = text(s)
    ACTIVE.get().spend(len(value))
    return sum(1 for _ in _WORD.finditer(value))


@pass_environment
def _truncate(
    environment: Any, s: Any, length: int = 255, killwords: bool = False, end: str = "...", leeway: Any = None
) -> Any:
    # jinja2 counts the items of a list or a dict, and leaves a short one as it is.
    if isinstance(s, str):
        ACTIVE.get().take_copy(len(s), s, text(end))
    return jinja.do_truncate(environment, s, length, killwords, text(end), leeway)


def _indent(s: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    value, rendering = text(s), ACTIVE.get()
    size = len(width) if isinstance(width, str) else number(width, "the width of indent", rendering.bounds.max_output)
    lines = count_breaks(value) + 1
    rendering.take_items(lines, PIECE)
    for _ in range(2):  # the lines, and the text of them
        rendering.take_copy(len(value) + lines * max(size, 0), value, width if isinstance(width, str) else "")
    return whole(jinja.do_indent)(value, width, first, blank)  # type: ignore[no-any-return]


def _format(value: Any, *args: Any, **kwargs: Any) -> str:
    if args and kwargs:
        raise ChatTemplateError("format takes positional or named values, not both")
    return percent(text(value), kwargs or args)


def _tojson(
    x: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if isinstance(indent, int):
        number(indent, "the indent of tojson", MAX_INDENT)
    rendering = ACTIVE.get()
    size = measure(x)
    step = len(indent) if isinstance(indent, str) else int(indent or 0)
    gaps = sum(map(len, separators)) if separators else 2
    between = size.items * gaps + size.depths * max(step, 0)
    if between > rendering.bounds.max_output:
        rendering.refuse_size(between)
    # A character becomes up to six, or twelve; parts and whole are in memory together.
    written = between + size.items * 32 + size.narrow * 6 + size.wide * 12
    rendering.take(size.items * 2 * OBJECT + 2 * (written if not size.wide else 4 * (written - size.wide * 6)))
    rendering.spend((size.narrow + size.wide) >> 2)
    made = json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return with_taint(made, taints(x))  # type: ignore[no-any-return]


# ---- numbers


def _int(value: Any, default: Any = 0, base: int = 10) -> Any:
    if isinstance(value, str) and len(value) > 4000:
        return default
    made = whole(jinja.do_int)(value, default, base)
    return checked_bits(made) if isinstance(made, int) else made


def _float(value: Any, default: Any = 0.0) -> Any:
    return default if isinstance(value, str) and len(value) > 4000 else whole(jinja.do_float)(value, default)


def _round(value: Any, precision: int = 0, method: str = "common") -> Any:
    precision = number(precision, "the precision of round", MAX_DIGITS)
    if isinstance(method, tuple):  # jinja2 hashes it: of nested ones that takes any time, and the stack of C
        raise FilterArgumentError("round: the method is common, ceil or floor")
    if not isinstance(value, (int, float)):
        raise TypeError(f"round: a number is required, not {type(value).__name__}")
    return whole(jinja.do_round)(value, precision, method)


@pass_environment
def _sum(environment: Any, iterable: Any, attribute: Any = None, start: Any = 0) -> Any:
    total = start
    for item in counted(_attributes(environment, iterable, attribute)):
        if isinstance(item, str):
            raise TypeError("sum: a number or a list is required, not a string")
        total = binary("+", total, item)
    return total


# ---- containers


def _read(items: Iterator[Any]) -> Iterator[Any]:
    """Read all ``items`` now, and give them as a generator: generators over generators take C stack for each."""
    found = list(items)
    return (item for item in found)


def _attributes(environment: Any, items: Any, attribute: Any) -> Any:
    check_name(attribute)
    return items if attribute is None else map(jinja.make_attrgetter(environment, attribute), items)


def _reverse(value: Any) -> Any:
    if isinstance(value, str):
        ACTIVE.get().take_copy(len(value), value)
    elif not isinstance(value, (list, tuple, range)):
        value = listed(value)
    return jinja.do_reverse(value)


def _compared(value: Any) -> list[Any]:
    """Return the items of ``value`` in a new list, charged for being sorted."""
    items = listed(value)
    rendering = ACTIVE.get()
    size = measure(items)
    rendering.spend((size.items * 4 + ((size.narrow + size.wide) >> 4)) * len(items).bit_length())
    rendering.take((size.narrow + size.wide) * 4 + size.items * PIECE)  # keys in lower case
    return items


@pass_environment
def _sort(
    environment: Any, value: Any, reverse: bool = False, case_sensitive: bool = False, attribute: Any = None
) -> list[Any]:
    check_name(attribute)
    return jinja.do_sort(environment, _compared(value), reverse, case_sensitive, attribute)


def _extreme(function: Callable[..., Any]) -> Callable[..., Any]:
    @pass_environment
    def extreme(environment: Any, value: Any, case_sensitive: bool = False, attribute: Any = None) -> Any:
        check_name(attribute)
        return function(environment, _compared(value), case_sensitive, attribute)

    return extreme


def _dictsort(value: Any, case_sensitive: bool = False, by: Any = "key", reverse: bool = False) -> list[Any]:
    _compared(value.items())
    return jinja.do_dictsort(value, case_sensitive, by, reverse)


@pass_environment
def _unique(environment: Any, value: Any, case_sensitive: bool = False, attribute: Any = None) -> Iterator[Any]:
    check_name(attribute)
    key_of = jinja.make_attrgetter(environment, attribute)

    def keyed() -> Iterator[Any]:
        for item in counted(value):
            key = checked_key(key_of(item))
            ACTIVE.get().take(OBJECT + (16 * len(key) if isinstance(key, str) else 0))
            yield item

    return _read(jinja.sync_do_unique(environment, keyed(), case_sensitive, attribute))


def _batch(value: Any, linecount: int, fill_with: Any = None) -> Iterator[Any]:
    linecount = number(linecount, "the size of batch", ACTIVE.get().bounds.max_range)
    ACTIVE.get().take_items(abs(linecount))
    return _read(counted(jinja.do_batch(counted(value), linecount, fill_with)))


def _slice(value: Any, slices: int, fill_with: Any = None) -> Iterator[Any]:
    slices = number(slices, "the number of slices", ACTIVE.get().bounds.max_range)
    return counted(jinja.sync_do_slice(listed(value), slices, fill_with))


def _eager(function: Callable[..., Any]) -> Callable[..., Any]:
    @pass_context
    def eager(context: Any, value: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        for name in (*args, *kwargs.values()):
            check_name(name)
        items = counted(value) if value else ()
        return _read(counted(function(context, items, *args, **kwargs)))

    return eager


FILTERS: dict[str, Callable[..., Any]] = {
    **{name: _of_text(_STR[name]) for name in ("capitalize", "lower", "upper")},
    **{name: _eager(getattr(jinja, f"sync_do_{name}")) for name in ("map", "select", "selectattr")},
    **{name: _eager(getattr(jinja, f"sync_do_{name}")) for name in ("reject", "rejectattr")},
    "abs": whole(abs),
    "batch": _batch,
    "center": lambda value, width=80: _STR["center"](text(value), width),
    "count": len,
    "d": jinja.do_default,
    "default": jinja.do_default,
    "dictsort": _dictsort,
    "first": jinja.sync_do_first,
    "float": _float,
    "format": _format,
    "indent": _indent,
    "int": _int,
    "items": lambda value: counted(jinja.do_items(value)),
    "join": _join,
    "last": jinja.do_last,
    "length": len,
    "list": listed,
    "max": _extreme(jinja.do_max),
    "min": _extreme(jinja.do_min),
    "replace": _replace,
    "reverse": _reverse,
    "round": _round,
    "slice": _slice,
    "sort": _sort,
    "string": text,
    "sum": _sum,
    "title": _title,
    "tojson": _tojson,
    "trim": _of_text(_STR["strip"]),
    "truncate": _truncate,
    "unique": _unique,
    "wordcount": _wordcount,
}


# Their result is escaped text: in jinja2 another type, which escapes text that is added to it. They stand where their
# result goes straight into the output, and so no text can be added to it.


def _escape(value: Any) -> str:
    found = text(value)
    ACTIVE.get().take_text(min(5 * len(found), ACTIVE.get().bounds.max_output), not found.isascii())
    for character, name in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("'", "&#39;"), ('"', "&#34;")):
        found = _STR["replace"](found, character, name)
    return found


OUTPUT_FILTERS: dict[str, Callable[..., Any]] = {"e": _escape, "escape": _escape, "safe": text}


# ---- tests


def _whole_number(value: Any) -> int:
    """jinja2 formats a string here, of any width: ``'%999999999d' is odd``."""
    if not isinstance(value, (int, float)):
        raise ChatTemplateError(f"a test of numbers takes no {type(value).__name__} in chat templates")
    return value  # type: ignore[return-value]


_FREE = (  # jinja2's own tests that look at no more than a value's type
    *("boolean", "defined", "undefined", "none", "true", "false", "integer", "float", "number", "string"),
    *("mapping", "sequence", "iterable", "sameas", "escaped"),
)
_COMPARING = (
    *("==", "eq", "equalto", "!=", "ne", "<", "lt", "lessthan", "<=", "le"),
    *(">", "gt", "greaterthan", ">=", "ge"),
)
TESTS: dict[str, Callable[..., Any]] = {
    **{name: JINJA_TESTS[name] for name in _FREE},
    **{name: partial(compare, name) for name in _COMPARING},
    "in": lambda value, seq: contains(seq, value),
    "callable": lambda value: isinstance(value, (partial, Macro, LoopContext, Joiner)),
    "divisibleby": lambda value, num: _whole_number(value) % _whole_number(num) == 0,
    "odd": lambda value: _whole_number(value) % 2 == 1,
    "even": lambda value: _whole_number(value) % 2 == 0,
    "lower": _of_text(_STR["islower"]),
    "upper": _of_text(_STR["isupper"]),
    "filter": pass_environment(lambda environment, value: isinstance(value, str) and value in environment.filters),
    "test": pass_environment(lambda environment, value: isinstance(value, str) and value in environment.tests),
}
