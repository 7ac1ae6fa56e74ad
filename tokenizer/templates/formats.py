"""``'%s' % value`` and ``'{}'.format(value)`` as chat templates may use them.

A field has a width and a precision of at most ``MAX_WIDTH``, and names a value: it does not look into one
(``{0.name}``), nor take its width from another (``%*d``, ``{:{}}``). Each field is made by itself and the parts are
joined, so the spans of marked strings are kept.
"""

from __future__ import annotations

import re
import string
from typing import Any

from jinja2.runtime import Undefined

from ..errors import ChatTemplateError
from .limits import ACTIVE, PIECE
from .marks import Marked
from .values import PRINTABLE, added, join, repr_of, taints, whole
from .values import text as text_of

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
        made = _converted(value, None if kind == "s" else kind)
        if precision is not None:
            made = made[: int(precision or 0)]
        return _padded(made, int(width or 0), "-" in flags)
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
        made = _brace_field(value, spec or "", conversion)
        parts.append(Marked(made) if marked else made)
    return join(parts, "")


def _brace_field(value: Any, spec: str, conversion: str | None) -> str:
    if conversion:
        value = _converted(value, conversion)
    if not spec:
        return text_of(value)
    match = _SPEC.fullmatch(spec) if len(spec) <= 32 else None
    if match is None:
        raise ChatTemplateError("str.format has a format that is left out of chat templates")
    _check_width(match[1], match[2])
    if not isinstance(value, (str, int, float)):
        raise TypeError(f"unsupported format for {type(value).__name__}")
    if isinstance(value, str):
        ACTIVE.get().take_copy(len(value) + MAX_WIDTH, value)
    else:
        ACTIVE.get().take(4 * MAX_WIDTH + (value.bit_length() if isinstance(value, int) else 0))
    return whole(format)(value, spec)  # type: ignore[no-any-return]


def _converted(value: Any, conversion: str | None) -> str:
    """``str``, ``repr`` or ``ascii`` of a value."""
    if conversion in (None, "s"):
        return text_of(value)
    if conversion not in ("r", "a"):
        raise ValueError(f"unknown conversion {conversion!r}")
    marked = taints(value)
    if isinstance(value, (str, *PRINTABLE)):
        shown = repr_of([value])[1:-1]
    else:
        shown = repr(value) if isinstance(value, Undefined) else text_of(value)
    if conversion == "a":
        ACTIVE.get().take(12 * len(shown))
        shown = shown.encode("ascii", "backslashreplace").decode("ascii")
    return Marked(shown) if marked else shown


def _padded(text: str, width: int, left: bool) -> str:
    gap = " " * (width - len(text))
    return added(text, gap) if left else added(gap, text)  # type: ignore[no-any-return]


def _check_width(*widths: str | None) -> None:
    for width in widths:
        if width and (len(width) > 4 or int(width) > MAX_WIDTH):
            raise ChatTemplateError(
                f"the chat template formats with a field width or precision of {width[:20]}; the limit is {MAX_WIDTH}"
            )
