"""The filters and tests that chat templates may use, each charged before it runs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jinja2.filters
import jinja2.tests
from jinja2 import pass_context, pass_environment
from jinja2.runtime import LoopContext, Macro, Undefined
from jinja2.utils import Joiner

from ..errors import ChatTemplateError
from . import marks
from .formats import percent
from .limits import ACTIVE, OBJECT, PIECE, checked_bits, measure
from .marks import Marked
from .methods import METHODS, Function, replaced
from .values import (
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
    with_taint,
)

MAX_NAME = 1000  # characters of an attribute's name
MAX_INDENT = 64
MAX_DIGITS = 64  # of ``round``
_WORD = re.compile(r"\w+")


def check_name(value: Any) -> None:
    """Check a name in an argument: of a filter, a test or an attribute."""
    if isinstance(value, str) and len(value) > MAX_NAME:
        raise ChatTemplateError(f"a name of {len(value)} characters in a chat template; the limit is {MAX_NAME}")


# ---- strings


def _join(value: Any, d: Any = "", attribute: Any = None) -> str:
    if attribute is not None:
        value = map(_getter(attribute), value)
    return join(value, text(d))


def _replace(s: Any, old: Any, new: Any, count: int | None = None) -> str:
    return replaced(text(s), text(old), text(new), -1 if count is None else count)


def _method(name: str) -> Callable[..., Any]:
    """Return a filter that is the string's method of that name."""
    run = METHODS[str][name]
    return lambda s: run(text(s))


def _trim(value: Any, chars: str | None = None) -> str:
    return METHODS[str]["strip"](text(value), chars)  # type: ignore[no-any-return]


def _center(value: Any, width: int = 80) -> str:
    return METHODS[str]["center"](text(value), width)  # type: ignore[no-any-return]


def _title(s: Any) -> str:
    value = text(s)
    ACTIVE.get().take(len(value) * OBJECT)
    return with_taint(jinja2.filters.do_title(str.__str__(value)), taints(value))  # type: ignore[no-any-return]


def _wordcount(s: Any) -> int:
    value = text(s)
    ACTIVE.get().spend(len(value))
    return sum(1 for _ in _WORD.finditer(value))


@pass_environment
def _truncate(
    environment: Any, s: Any, length: int = 255, killwords: bool = False, end: str = "...", leeway: Any = None
) -> Any:
    value, end = s if isinstance(s, Undefined) else text(s), text(end)
    leeway = environment.policies["truncate.leeway"] if leeway is None else leeway
    if length < len(end) or leeway < 0:
        raise ChatTemplateError("truncate: the length is below that of the end, or the leeway is below 0")
    # jinja2 counts the items of a list or a dict, and leaves a short one as it is.
    whole = s if isinstance(s, (list, tuple, dict)) else value
    if len(whole) <= length + leeway:
        return whole
    ACTIVE.get().take_text(
        length + len(end), not (value.isascii() and end.isascii()), len(getattr(value, "spans", ()))
    )
    kept = value[: length - len(end)]
    if not killwords:
        at = kept.rfind(" ")
        kept = kept[:at] if at >= 0 else kept
    return marks.joined([kept, end])


def _indent(s: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    value = text(s)
    size = (
        len(width) if isinstance(width, str) else number(width, "the width of indent", ACTIVE.get().bounds.max_output)
    )
    breaks = sum(str.count(value, c) for c in "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")
    wide = not value.isascii() or (isinstance(width, str) and not width.isascii())
    rendering = ACTIVE.get()
    rendering.take_items(breaks + 1, PIECE)
    rendering.take_text(len(value) + (breaks + 1) * max(size, 0), wide)
    rendering.take_text(len(value) + (breaks + 1) * max(size, 0), wide)
    plain = str.__str__(width) if isinstance(width, str) else width
    made = jinja2.filters.do_indent(str.__str__(value), plain, first, blank)
    return with_taint(made, taints(value) or isinstance(width, Marked))  # type: ignore[no-any-return]


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
    if isinstance(indent, int) and not isinstance(indent, bool):
        number(indent, "the indent of tojson", MAX_INDENT)
    rendering = ACTIVE.get()
    size = measure(x)
    step = len(indent) if isinstance(indent, str) else int(indent or 0)
    gaps = sum(map(len, separators)) if separators else 2
    if size.items * gaps + size.depths * max(step, 0) > rendering.bounds.max_output:
        rendering.refuse_size(size.items * gaps + size.depths * step)
    chars = size.narrow + size.wide
    # A character becomes up to six, or twelve; parts and whole are in memory together.
    written = size.items * (32 + gaps) + size.depths * max(step, 0) + size.narrow * 6 + size.wide * 12
    rendering.take(size.items * 2 * OBJECT + 2 * (written if not size.wide else 4 * (written - size.wide * 6)))
    rendering.spend(chars >> 2)
    made = json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return with_taint(made, taints(x))  # type: ignore[no-any-return]


# ---- numbers


def _int(value: Any, default: Any = 0, base: int = 10) -> Any:
    if isinstance(value, str) and len(value) > 4000:
        return default
    made = jinja2.filters.do_int(_bare(value), default, base)
    return with_taint(checked_bits(made) if isinstance(made, int) else made, taints(value) or taints(default))


def _float(value: Any, default: Any = 0.0) -> Any:
    if isinstance(value, str) and len(value) > 4000:
        return default
    return with_taint(jinja2.filters.do_float(_bare(value), default), taints(value) or taints(default))


def _bare(value: Any) -> Any:
    return str.__str__(value) if isinstance(value, str) else value


def _round(value: Any, precision: int = 0, method: str = "common") -> Any:
    precision = number(precision, "the precision of round", MAX_DIGITS)
    if not isinstance(method, str):
        raise TypeError("round: the method is common, ceil or floor")
    if not isinstance(value, (int, float)):
        raise TypeError(f"round: a number is required, not {type(value).__name__}")
    kind: Any = method
    return with_taint(jinja2.filters.do_round(value, precision, kind), taints(value))


def _abs(x: Any) -> Any:
    if not isinstance(x, (int, float)):
        raise TypeError(f"abs: a number is required, not {type(x).__name__}")
    return with_taint(abs(x), taints(x))


def _sum(iterable: Any, attribute: Any = None, start: Any = 0) -> Any:
    if attribute is not None:
        iterable = map(_getter(attribute), iterable)
    total = start
    for item in counted(iterable):
        if isinstance(item, str):
            raise TypeError("sum: a number or a list is required, not a string")
        total = binary("+", total, item)
    return total


# ---- containers


def _getter(attribute: Any, **options: Any) -> Callable[[Any], Any]:
    from .sandbox import ENVIRONMENT

    check_name(attribute)
    return jinja2.filters.make_attrgetter(ENVIRONMENT(), attribute, **options)


def _list(value: Any) -> list[Any]:
    return listed(value)


def _length(value: Any) -> int:
    return len(value)


def _first(seq: Any) -> Any:
    return _listed_end(iter(seq), "first")


def _last(seq: Any) -> Any:
    return _listed_end(reversed(seq), "last")


def _listed_end(items: Iterator[Any], name: str) -> Any:
    from .sandbox import ENVIRONMENT

    for item in items:
        return item
    return ENVIRONMENT().undefined(f"No {name} item, sequence was empty.")


def _reverse(value: Any) -> Any:
    if isinstance(value, str):
        ACTIVE.get().take_text(len(value), not value.isascii())
        return value[::-1]
    if isinstance(value, (list, tuple, range)):
        return reversed(value)
    return reversed(listed(value))


def _items(value: Any) -> Iterator[Any]:
    if not isinstance(value, (Mapping, Undefined)):
        raise TypeError("Can only get item pairs from a mapping.")
    return counted(value.items() if isinstance(value, dict) else ())


def _compared(value: Any) -> list[Any]:
    """Return the items of ``value`` in a new list, charged for being sorted."""
    items = listed(value)
    rendering = ACTIVE.get()
    size = measure(items)
    rendering.spend((size.items * 4 + ((size.narrow + size.wide) >> 4)) * max(len(items), 1).bit_length())
    rendering.take((size.narrow + size.wide) * 4 + size.items * PIECE)  # keys in lower case
    return items


@pass_environment
def _sort(
    environment: Any, value: Any, reverse: bool = False, case_sensitive: bool = False, attribute: Any = None
) -> list[Any]:
    check_name(attribute)
    return jinja2.filters.do_sort(environment, _compared(value), reverse, case_sensitive, attribute)


def _extreme(function: Callable[..., Any]) -> Callable[..., Any]:
    @pass_environment
    def extreme(environment: Any, value: Any, case_sensitive: bool = False, attribute: Any = None) -> Any:
        check_name(attribute)
        return function(environment, _compared(value), case_sensitive, attribute)

    return extreme


def _dictsort(value: Any, case_sensitive: bool = False, by: Any = "key", reverse: bool = False) -> list[Any]:
    _compared(value.items())
    return jinja2.filters.do_dictsort(value, case_sensitive, by, reverse)


def _unique(value: Any, case_sensitive: bool = False, attribute: Any = None) -> Iterator[Any]:
    return ACTIVE.get().layered(_first_seen(value, case_sensitive, attribute), value)


def _first_seen(value: Any, case_sensitive: bool, attribute: Any) -> Iterator[Any]:
    key_of = None if attribute is None else _getter(attribute)
    seen: set[Any] = set()
    rendering = ACTIVE.get()
    for item in counted(value):
        key = checked_key(item if key_of is None else key_of(item))
        if isinstance(key, str) and not case_sensitive:
            rendering.take(len(key) * 16)
            key = str.lower(key)
        if key not in seen:
            rendering.take(OBJECT)
            seen.add(key)
            yield item


def _batch(value: Any, linecount: int, fill_with: Any = None) -> Iterator[Any]:
    linecount = number(linecount, "the size of batch", ACTIVE.get().bounds.max_range)
    ACTIVE.get().take_items(abs(linecount))
    made = counted(jinja2.filters.do_batch(counted(value), linecount, fill_with))
    return ACTIVE.get().layered(made, value)


def _slice(value: Any, slices: int, fill_with: Any = None) -> Iterator[Any]:
    slices = number(slices, "the number of slices", ACTIVE.get().bounds.max_range)
    return counted(jinja2.filters.sync_do_slice(listed(value), slices, fill_with))


def _lazy(function: Callable[..., Any]) -> Callable[..., Any]:
    @pass_context
    def lazy(context: Any, value: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        for name in (*args, *kwargs.values()):
            check_name(name)
        items = counted(value) if value else ()
        return ACTIVE.get().layered(counted(function(context, items, *args, **kwargs)), value)

    return lazy


FILTERS: dict[str, Callable[..., Any]] = {
    "abs": _abs,
    "batch": _batch,
    "capitalize": _method("capitalize"),
    "center": _center,
    "count": _length,
    "d": jinja2.filters.do_default,
    "default": jinja2.filters.do_default,
    "dictsort": _dictsort,
    "first": _first,
    "float": _float,
    "format": _format,
    "indent": _indent,
    "int": _int,
    "items": _items,
    "join": _join,
    "last": _last,
    "length": _length,
    "list": _list,
    "lower": _method("lower"),
    "map": _lazy(jinja2.filters.sync_do_map),
    "max": _extreme(jinja2.filters.do_max),
    "min": _extreme(jinja2.filters.do_min),
    "reject": _lazy(jinja2.filters.sync_do_reject),
    "rejectattr": _lazy(jinja2.filters.sync_do_rejectattr),
    "replace": _replace,
    "reverse": _reverse,
    "round": _round,
    "select": _lazy(jinja2.filters.sync_do_select),
    "selectattr": _lazy(jinja2.filters.sync_do_selectattr),
    "slice": _slice,
    "sort": _sort,
    "string": text,
    "sum": _sum,
    "title": _title,
    "tojson": _tojson,
    "trim": _trim,
    "truncate": _truncate,
    "unique": _unique,
    "upper": _method("upper"),
    "wordcount": _wordcount,
}


# Their result is escaped text: in jinja2 another type, which escapes text that is added to it. They stand where their
# result goes straight into the output, and so no text can be added to it.


def _escape(value: Any) -> str:
    found = text(value)
    ACTIVE.get().take_text(min(5 * len(found), ACTIVE.get().bounds.max_output), not found.isascii())
    for character, name in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("'", "&#39;"), ('"', "&#34;")):
        found = replaced(found, character, name)
    return found


OUTPUT_FILTERS: dict[str, Callable[..., Any]] = {"e": _escape, "escape": _escape, "safe": text}


# ---- tests


def _compares(name: str) -> Callable[[Any, Any], bool]:
    return lambda value, other: compare(name, value, other)


def _whole(value: Any) -> int:
    """jinja2 formats a string here, of any width: ``'%999999999d' is odd``."""
    if not isinstance(value, (int, float)):
        raise ChatTemplateError(f"a test of numbers takes no {type(value).__name__} in chat templates")
    return value  # type: ignore[return-value]


def _is_text(name: str) -> Callable[[Any], bool]:
    run = METHODS[str][name]
    return lambda value: run(text(value))


def _is_callable(value: Any) -> bool:
    return isinstance(value, (Function, Macro, LoopContext, Joiner))


def _is_in(value: Any, seq: Any) -> bool:
    return contains(seq, value)


@pass_environment
def _is_filter(environment: Any, value: Any) -> bool:
    return isinstance(value, str) and value in environment.filters


@pass_environment
def _is_test(environment: Any, value: Any) -> bool:
    return isinstance(value, str) and value in environment.tests


_FREE = (  # jinja2's own tests that look at no more than a value's type
    *("boolean", "defined", "undefined", "none", "true", "false", "integer", "float", "number", "string"),
    *("mapping", "sequence", "iterable", "sameas", "escaped"),
)
_JINJA: dict[str, Any] = jinja2.tests.TESTS
TESTS: dict[str, Callable[..., Any]] = {
    **{name: _JINJA[name] for name in _FREE},
    **{name: _compares("eq") for name in ("==", "eq", "equalto")},
    **{name: _compares("ne") for name in ("!=", "ne")},
    **{name: _compares("lt") for name in ("<", "lt", "lessthan")},
    **{name: _compares("lteq") for name in ("<=", "le")},
    **{name: _compares("gt") for name in (">", "gt", "greaterthan")},
    **{name: _compares("gteq") for name in (">=", "ge")},
    "in": _is_in,
    "callable": _is_callable,
    "divisibleby": lambda value, num: _whole(value) % _whole(num) == 0,
    "odd": lambda value: _whole(value) % 2 == 1,
    "even": lambda value: _whole(value) % 2 == 0,
    "lower": _is_text("islower"),
    "upper": _is_text("isupper"),
    "filter": _is_filter,
    "test": _is_test,
}
