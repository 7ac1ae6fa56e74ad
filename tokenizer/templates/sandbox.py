"""The environment that chat templates run in: jinja2 with every operation replaced by one that is charged.

A template is a program from a model repository. ``syntax`` bounds its source and refuses the parts of the language
that chat templates have no use for; jinja2 compiles the rest to calls of the functions here, which know every type
that a template can hold (``values``), and which methods (``methods``), filters and tests (``filters``) there are. So
there is no road to Python's internals, and none to an operation whose cost is not known before it runs.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from typing import Any

import jinja2
import jinja2.ext
from jinja2.exceptions import SecurityError
from jinja2.lexer import TokenStream
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner

from ..errors import ChatTemplateError
from . import syntax, values
from .filters import FILTERS, OUTPUT_FILTERS, TESTS, check_name
from .limits import ACTIVE, CALL, NAMED_CALL, OBJECT
from .methods import ATTRIBUTES, METHODS, REFUSED

_MISSING = object()
_DATE = re.compile(r"(?:[^%]|%[-_^#]?[A-Za-z%])*")
_DICT = METHODS[dict].keys() | REFUSED[dict]


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    code_generator_class = syntax.Generator
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})
    intercepted_unops = frozenset({"+", "-"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            extensions=[syntax.Generation, jinja2.ext.loopcontrols],
        )
        self.filters = {name: _stepped(function) for name, function in {**FILTERS, **OUTPUT_FILTERS}.items()}
        self.tests = {name: _stepped(function) for name, function in TESTS.items()}
        self.globals = dict(_GLOBALS)

    # ---- compiling

    def _tokenize(self, source: str, *args: Any, **kwargs: Any) -> TokenStream:
        stream = super()._tokenize(source, *args, **kwargs)
        return TokenStream(syntax.bounded(stream), stream.name, stream.filename)

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        return syntax.prepared(super()._parse(source, name, filename))

    def _compile(self, source: str, filename: str) -> Any:
        syntax.check_code(source)
        return super()._compile(source, filename)

    # ---- called from compiled templates

    def tick(self, units: int, size: int) -> bool:
        """Charge, at the head of a body, for its nodes and for the literals in it."""
        rendering = ACTIVE.get()
        rendering.work -= units
        rendering.memory -= size
        if rendering.work < rendering.look or rendering.memory < 0:
            rendering.take(0)
        return True

    def concat(self, pieces: Iterable[str]) -> str:
        return values.concatenated(pieces)

    written = staticmethod(values.text)
    chain = staticmethod(values.chained)
    add = staticmethod(values.added)
    cut = staticmethod(values.cut)
    compare = staticmethod(values.compare)
    comparable = staticmethod(values.comparable)
    contains = staticmethod(values.contains)

    def table(self, *parts: Any) -> dict[Any, Any]:
        """Return a dict from keys and values in turn."""
        return {values.checked_key(key): value for key, value in zip(parts[::2], parts[1::2])}

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        return values.binary(operator, left, right)

    def call_unop(self, context: Context, operator: str, arg: Any) -> Any:
        return values.unary(operator, arg)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        rendering = ACTIVE.get()
        rendering.work -= CALL
        rendering.take(OBJECT)
        kwargs.pop("_loop_vars", None)  # jinja's own, for functions that take a context
        kwargs.pop("_block_vars", None)
        if isinstance(__obj, (partial, Macro, LoopContext, Joiner, Undefined)):
            return __obj(*args, **kwargs)
        kind = type(__obj).__name__
        raise ChatTemplateError(f"the chat template calls a value of type {kind}, which is no function")

    def call_filter(self, name: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        _check_called(name)
        if name in OUTPUT_FILTERS:
            raise ChatTemplateError(f"the filter {name!r} stands only at the end of an output in chat templates")
        return super().call_filter(name, value, *args, **kwargs)

    def call_test(self, name: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        _check_called(name)
        return super().call_test(name, value, *args, **kwargs)

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict:
            if attribute not in _DICT:
                found = obj.get(attribute, _MISSING)
                return self._nothing(obj, attribute) if found is _MISSING else found
        elif type(obj) is _Namespace:
            return _of_namespace(obj, attribute, self)
        return self._attribute(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        try:
            if type(obj) is dict:
                return obj[argument if type(argument) is str else values.checked_key(argument)]
            if isinstance(obj, (str, list, tuple, range, Undefined)):
                ACTIVE.get().take(OBJECT)
                return obj[argument]
        except (TypeError, LookupError):
            pass
        if isinstance(argument, str):
            return self.getattr(obj, argument)
        return self._nothing(obj, argument)

    def _attribute(self, obj: Any, name: str) -> Any:
        kind: type = str if isinstance(obj, str) else type(obj)
        run = METHODS.get(kind, {}).get(name)
        if run is not None:
            ACTIVE.get().take(OBJECT)
            return partial(run, obj)
        if isinstance(obj, Undefined) and name.startswith("_"):
            raise SecurityError(f"access to attribute {name[:100]!r} of an undefined value")
        if name in ATTRIBUTES.get(kind, ()) or isinstance(obj, Undefined):
            return getattr(obj, name)
        if name in REFUSED.get(kind, ()):
            raise ChatTemplateError(f"{kind.__name__}.{name} is left out of chat templates")
        if obj is _DICT_FUNCTION and name == "fromkeys":
            return partial(_from_keys)
        return self._nothing(obj, name)

    def _nothing(self, obj: Any, name: Any) -> Undefined:
        """Return an undefined name. Errors write the name, so a long one is cut."""
        check_name(name)
        if isinstance(name, str) and name.startswith("__"):
            return self.unsafe_undefined(obj, name)
        shown = name if isinstance(name, str) else f"item of type {type(name).__name__}"
        return self.undefined(obj=obj, name=shown)


def _check_called(name: Any) -> None:
    """Check the name of a filter or test that ``map``, ``select`` and the like are about to look up."""
    if not isinstance(name, str):
        raise ChatTemplateError(f"the name of a filter or test is a string, not {type(name).__name__}")
    ACTIVE.get().spend(NAMED_CALL)


def _stepped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter or test, charged for being called."""

    @functools.wraps(function)
    def stepped(*args: Any, **kwargs: Any) -> Any:
        rendering = ACTIVE.get()
        rendering.work -= CALL
        rendering.take(OBJECT)
        return function(*args, **kwargs)

    return stepped


# ---- globals


def _range(*args: int) -> range:
    found, limit = (
        range(*(values.number(a, "an argument of range", 1 << 60) for a in args)),
        ACTIVE.get().bounds.max_range,
    )
    if len(found) > limit:
        raise ChatTemplateError(f"the chat template asks for a range of {len(found)}; the limit is {limit}")
    return found


def _refuse(message: Any) -> None:
    raise jinja2.TemplateError(str.__str__(values.text(message)))


def _now(format: str) -> str:
    if not isinstance(format, str) or len(format) > 256 or not _DATE.fullmatch(format):
        raise ChatTemplateError("strftime_now: a format of at most 256 characters, whose fields have no width")
    return values.whole(datetime.now().strftime)(format)  # type: ignore[no-any-return]


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    made: dict[Any, Any] = {}
    for given in args:
        pairs = given.items() if isinstance(given, dict) else given
        for pair in values.counted(pairs):
            ACTIVE.get().take(2 * OBJECT)
            key, value = pair
            made[values.checked_key(key)] = value
    made.update(kwargs)
    return made


def _from_keys(keys: Any, value: Any = None) -> dict[Any, Any]:
    ACTIVE.get().take(OBJECT)
    return _dict((key, value) for key in values.counted(keys))


class _Namespace(jinja2.utils.Namespace):
    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute(name)
        super().__setitem__(name, value)


def _of_namespace(namespace: _Namespace, name: str, environment: TemplateEnvironment) -> Any:
    if name.startswith("_"):
        return environment.unsafe_undefined(namespace, name)
    try:
        return getattr(namespace, name)
    except AttributeError:
        return environment.undefined(obj=namespace, name=name)


def _namespace(*args: Any, **kwargs: Any) -> _Namespace:
    made = _dict(*args, **kwargs)
    for name in made:
        _check_attribute(name)
    return _Namespace(made)


def _check_attribute(name: Any) -> None:
    if not isinstance(name, str) or name.startswith("_"):
        raise SecurityError(f"a namespace has no attribute {str(name)[:100]!r}")


_DICT_FUNCTION = partial(_dict)
_GLOBALS: dict[str, Any] = {
    "range": partial(_range),
    "dict": _DICT_FUNCTION,
    "namespace": partial(_namespace),
    "cycler": partial(Cycler),
    "joiner": partial(Joiner),
    "raise_exception": partial(_refuse),
    "strftime_now": partial(_now),
}


@functools.cache
def ENVIRONMENT() -> TemplateEnvironment:
    return TemplateEnvironment()


@functools.lru_cache(maxsize=16)
def compiled(source: str, max_nodes: int) -> jinja2.Template:
    """``source`` compiled within the bounds of the rendering that asks first; ``max_nodes`` is one of them."""
    return ENVIRONMENT().from_string(source)
