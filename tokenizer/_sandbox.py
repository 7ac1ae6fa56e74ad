"""The environment that chat templates run in: jinja2's immutable sandbox, bounded and with marked strings.

A template is a program from a model repository. The sandbox keeps it from Python's internals; the bounds
keep it from the machine: every loop body, macro and call is a step, every string made is charged by its
length, before it is made where it can be large, and a clock is read now and then. What a rendering has left
is in a context variable, so compiled templates are shared by all threads.

A step is counted by a node put into the syntax tree at the head of each loop and macro body; ``~`` is
rewritten to a call, since the sandbox does not let it be intercepted.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from datetime import datetime
from types import BuiltinMethodType
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from . import _marks as marks
from ._limits import ACTIVE, MAX_BITS, WIDE, Rendering, bounded_numbers, format_size, weigh
from ._marks import Marked, joined
from .errors import ChatTemplateError


def _text(value: Any) -> str:
    """What ``value`` is in the output. A container's text is as untrusted as what is in it."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, (bool, int, float, Undefined)):
        return str(value)
    weigh(value)
    return Marked(str(value))


def _taints(value: Any) -> bool:
    if isinstance(value, str):
        return isinstance(value, Marked)
    return not (value is None or isinstance(value, (bool, int, float, Undefined)))


def _settled(result: Any, tainted: bool) -> Any:
    """What an operation gave, charged, and marked if any of its operands was."""
    if isinstance(result, str):
        ACTIVE.get().charge(len(result))
        return Marked(result) if tainted and not isinstance(result, Marked) else result
    if tainted and isinstance(result, (list, tuple)):
        return type(result)(_settled(item, True) if isinstance(item, str) else item for item in result)
    return result


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})
    concat = staticmethod(joined)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=_text,
            extensions=[_Generation, jinja2.ext.loopcontrols],
        )
        for name, function in self.filters.items():
            self.filters[name] = _guarded(function, name in _DEEP)
        self.filters.update(_FILTERS)
        self.globals.pop("lipsum", None)
        self.globals.update(
            range=_range, dict=_Dict(), namespace=_namespace, raise_exception=_refuse, strftime_now=_now
        )

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return _instrumented(super()._parse(source, name, filename))

    # ---- called from compiled templates

    def tick(self) -> str:
        return ""  # a call like any other, and every call is a step

    def chain(self, *values: Any) -> str:
        """``a ~ b``"""
        texts = [_text(v) for v in values]
        ACTIVE.get().charge(sum(map(len, texts)))
        return joined(texts)

    def comparable(self, value: Any) -> Any:
        """An operand of a comparison: a container is compared item by item, so it is weighed."""
        if isinstance(value, (list, tuple, dict)):
            weigh(value)
        return value

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        rendering = ACTIVE.get()
        rendering.tick()
        owner = __obj.__self__ if type(__obj) is BuiltinMethodType else None
        if isinstance(owner, TemplateEnvironment):
            owner = None
        if owner is not None:
            bounded_numbers((*args, *kwargs.values()), rendering.bounds.max_output)
        if not isinstance(owner, str):
            return super().call(__context, __obj, *args, **kwargs)
        name = __obj.__name__
        if name in ("encode", "translate"):
            raise ChatTemplateError(f"str.{name} is left out of chat templates")
        kwargs.pop("_loop_vars", None)  # jinja's own, for callables that take a context
        kwargs.pop("_block_vars", None)
        if name == "join":
            return _join(args[0] if args else (), owner)
        if name == "replace":
            _charge_replace(owner, *args)
        if name in marks.METHODS and (isinstance(owner, Marked) or any(isinstance(a, Marked) for a in args)):
            rendering.charge(len(owner))
            return marks.METHODS[name](owner, *args, **kwargs)  # type: ignore[operator]
        result = super().call(__context, __obj, *args, **kwargs)
        return _settled(result, _taints(owner) or any(map(_taints, args)))

    def getitem(self, obj: Any, argument: Any) -> Any:
        result = super().getitem(obj, argument)
        if type(argument) is slice and isinstance(result, (str, list, tuple)):
            ACTIVE.get().charge(len(result))
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        rendering = ACTIVE.get()
        if operator == "+":
            if isinstance(left, str) and isinstance(right, str):
                rendering.charge(len(left) + len(right))
                return joined([left, right])
            if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
                rendering.charge(len(left) + len(right))
        elif operator in ("*", "**"):
            return _product(rendering, operator, left, right, lambda: super(TemplateEnvironment, self).call_binop)(
                context, operator, left, right
            )
        elif isinstance(left, str):
            values = right if isinstance(right, tuple) else (right,)
            bounded_numbers(values, rendering.bounds.max_output)
            rendering.charge(format_size(left, values, left.count("%")))
            return _settled(left % right, any(map(_taints, (left, *values))))
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        inner = super().wrap_str_format(value)
        if inner is None:
            return None

        def bounded(*args: Any, **kwargs: Any) -> str:
            rendering, owner = ACTIVE.get(), value.__self__
            values = [*args, *kwargs.values()]
            for mapping in [v for v in values if isinstance(v, dict)]:
                values.extend(mapping.values())
            bounded_numbers(values, rendering.bounds.max_output)
            rendering.charge(format_size(owner, values, owner.count("{")))
            result: str = _settled(inner(*args, **kwargs), any(map(_taints, (owner, *values))))
            return result

        return bounded


def _product(
    rendering: Rendering, operator: str, left: Any, right: Any, plain: Callable[[], Callable[..., Any]]
) -> Callable[..., Any]:
    """Check a ``*`` or ``**`` before it is done."""
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * (abs(right) if operator == "**" else 1) + right.bit_length()
        if bits > MAX_BITS:
            raise ChatTemplateError(f"the chat template makes a number of {bits} bits; the limit is {MAX_BITS}")
    for repeated, count in ((left, right), (right, left)):
        if isinstance(repeated, (str, list, tuple)) and isinstance(count, int):
            rendering.charge(len(repeated) * max(count, 0))
            if isinstance(repeated, Marked):
                return lambda *_: joined([repeated] * max(count, 0))
    return plain()


# ---- the syntax tree


def _instrumented(tree: nodes.Template) -> nodes.Template:
    for node in list(tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock))):
        body: list[nodes.Node] = node.body  # type: ignore[attr-defined]
        body.insert(0, nodes.ExprStmt(_env_call("tick", [], node.lineno), lineno=node.lineno))
    return _Rewritten().visit(tree)  # type: ignore[no-any-return]


class _Rewritten(jinja2.visitor.NodeTransformer):
    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _env_call("chain", node.nodes, node.lineno)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        if not any(isinstance(e, nodes.Const) for e in (node.expr, *(o.expr for o in node.ops))):
            node.expr = _env_call("comparable", [node.expr], node.lineno)
        return node


def _env_call(name: str, args: list[nodes.Expr], lineno: int) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name, lineno=lineno), args, [], None, None, lineno=lineno)


class _Generation(jinja2.ext.Extension):
    """``{% generation %}`` marks the assistant's part for training; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's interface

    def parse(self, parser: jinja2.parser.Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=lineno)


# ---- filters


def _guarded(function: Callable[..., Any], deep: bool) -> Callable[..., Any]:
    """A filter with its numbers bounded, its result charged, and marked where what went in was."""
    skipped = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        rendering = ACTIVE.get(None)
        if rendering is None:
            raise ChatTemplateError("not at compile time")
        rendering.tick()
        values = (*args[skipped:], *kwargs.values())
        bounded_numbers(values[1:], rendering.bounds.max_output)
        value = values[0] if values else None
        for weighed in values if deep else values[2:]:
            if isinstance(weighed, (list, tuple, dict)):
                weigh(weighed)
        result = function(*args, **kwargs)
        if isinstance(result, str) and not isinstance(result, Marked):
            # ``default``, ``first`` and the like hand through what they were given: that is not a new string
            same = any(result is v for v in values) or _is_item(result, value)
            return result if same else _settled(result, any(map(_taints, values)))
        return result

    return guarded


# Filters that look into everything they are given.
_DEEP = frozenset(["sort", "dictsort", "unique", "groupby", "min", "max", "sum", "pprint", "urlencode", "xmlattr"])


def _is_item(result: str, value: Any) -> bool:
    if isinstance(value, dict):
        return any(result is v for v in value.values())
    return isinstance(value, (list, tuple)) and any(result is v for v in value)


def _join(value: Any = (), d: str = "", attribute: Any = None) -> str:
    rendering = ACTIVE.get()
    if attribute is not None:
        getter = jinja2.filters.make_attrgetter(ENVIRONMENT(), attribute)
        value = map(getter, value)
    separator = _text(d)
    texts, size = [], 0
    for item in value:
        texts.append(_text(item))
        size += len(texts[-1]) + len(separator)
        rendering.tick()
        if size > rendering.bounds.max_output:
            rendering.charge(size)
    rendering.charge(size)
    return joined(texts, separator)


def _charge_replace(text: str, old: str = "", new: str = "", count: int | None = None, *rest: Any) -> None:
    found = str.count(text, old)
    ACTIVE.get().charge(len(text) + (found if count is None or count < 0 else min(found, count)) * len(new))


def _replace(text: Any, old: str, new: str, count: int | None = None) -> str:
    string, new = _text(text), _text(new)
    _charge_replace(string, old, new, count)
    return marks.replace(string, old, new, -1 if count is None else count)


def _trim(value: Any, chars: str | None = None) -> str:
    return marks.strip(_text(value), chars)


def _tojson(
    x: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if isinstance(indent, int) and abs(indent) > 64:
        raise ChatTemplateError(f"tojson(indent={indent}): the limit is 64")
    weigh(x)
    made = json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    result: str = _settled(made, _taints(x))
    return result


def _indent(s: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> Any:
    text = _text(s)
    size = width if isinstance(width, int) else len(width)
    ACTIVE.get().charge(len(text) + (text.count("\n") + 1) * size)
    return _settled(jinja2.filters.do_indent(str.__str__(text), width, first, blank), _taints(text) or _taints(width))


def _format(value: Any, *args: Any, **kwargs: Any) -> Any:
    values = (*args, *kwargs.values())
    template, rendering = _text(value), ACTIVE.get()
    bounded_numbers(values, rendering.bounds.max_output)
    rendering.charge(format_size(template, values, template.count("%")))
    made = jinja2.filters.do_format(str.__str__(template), *args, **kwargs)
    return _settled(made, any(map(_taints, (template, *values))))


@jinja2.pass_environment
def _wordwrap(environment: Any, s: Any, width: int = 79, *rest: Any, **named: Any) -> Any:
    text = _text(s)
    filling = max((len(v) for v in (*rest, *named.values()) if isinstance(v, str)), default=1)
    ACTIVE.get().charge(len(text) + len(text) * filling // max(width, 1))
    return _settled(jinja2.filters.do_wordwrap(environment, str.__str__(text), width, *rest, **named), _taints(text))


def _counted(function: Callable[..., Any]) -> Callable[..., Any]:
    """One of the filters below: a step, and its result charged."""

    @functools.wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        rendering = ACTIVE.get(None)
        if rendering is None:
            raise ChatTemplateError("not at compile time")
        rendering.tick()
        result = function(*args, **kwargs)
        rendering.charge(len(result))
        return result

    return counted


_FILTERS: dict[str, Callable[..., Any]] = {
    "join": _counted(_join),
    "replace": _counted(_replace),
    "trim": _counted(_trim),
    "upper": _counted(lambda s: marks.upper(_text(s))),
    "lower": _counted(lambda s: marks.lower(_text(s))),
    "string": _counted(_text),
    "tojson": _counted(_tojson),
    "indent": _counted(_indent),
    "format": _counted(_format),
    "wordwrap": _counted(_wordwrap),
}


# ---- globals


def _range(*args: int) -> range:
    found, limit = range(*args), ACTIVE.get().bounds.max_range
    if len(found) > limit:
        raise ChatTemplateError(f"the chat template asks for a range of {len(found)}; the limit is {limit}")
    return found


def _refuse(message: Any) -> None:
    raise jinja2.TemplateError(str.__str__(message) if isinstance(message, str) else str(message))


def _now(format: str) -> str:
    if len(format) > 256 or WIDE.search(format):
        raise ChatTemplateError("strftime_now: the format is past all bounds")
    made = datetime.now().strftime(format)
    return Marked(made) if isinstance(format, Marked) else made


class _Dict:
    """``dict(...)`` and ``dict.fromkeys(...)``, without the type's attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(jinja2.utils.Namespace):
    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _namespace(*args: Any, **kwargs: Any) -> _Namespace:
    for name in dict(*args, **kwargs):
        _check_name(name)
    return _Namespace(*args, **kwargs)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace has no attributes that start with '_': {name!r}")


@functools.cache
def ENVIRONMENT() -> TemplateEnvironment:
    return TemplateEnvironment()


@functools.lru_cache(maxsize=64)
def compiled(source: str) -> jinja2.Template:
    return ENVIRONMENT().from_string(source)
