"""From the source of a chat template to code whose every operation is charged: bounds, refusals, rewriting.

The source is bounded in characters, tokens, nodes and depth, and the code made of it in characters, since the memory
and time of compiling follow from these. The rewriting puts at the head of each body a charge for the nodes in it, and
calls of the environment in the place of Python's own operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import jinja2.ext
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame, operators
from jinja2.exceptions import TemplateAssertionError
from jinja2.lexer import Token
from jinja2.parser import Parser

from ..errors import ChatTemplateError
from .filters import OUTPUT_FILTERS
from .limits import ACTIVE, OBJECT, PIECE, checked_bits

MAX_DEPTH = 100
MAX_CODE = 2_000_000  # characters of Python
ITEM = 96  # bytes of an item that an iterator makes: a number or a character
LONG = 256  # characters of a constant that takes no time to compare

_ALLOWED = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.For, nodes.If, nodes.Macro, nodes.CallBlock),
    *(nodes.FilterBlock, nodes.With, nodes.Assign, nodes.AssignBlock, nodes.Scope, nodes.ExprStmt, nodes.Name),
    *(nodes.NSRef, nodes.Const, nodes.Tuple, nodes.List, nodes.Dict, nodes.Pair, nodes.Keyword, nodes.CondExpr),
    *(nodes.Filter, nodes.Test, nodes.Call, nodes.Getitem, nodes.Getattr, nodes.Slice, nodes.Concat, nodes.Compare),
    *(nodes.Operand, nodes.BinExpr, nodes.UnaryExpr, nodes.Break, nodes.Continue),
)
# Of others it is the type's name in lower case.
_NAMES: dict[type[nodes.Node], str] = {nodes.FromImport: "from", nodes.ScopedEvalContextModifier: "autoescape"}
_BODIES = (nodes.For, nodes.Macro, nodes.CallBlock, nodes.Template)


class Generation(jinja2.ext.Extension):
    """``{% generation %}`` marks the assistant's part for training; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's interface

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=lineno)


def bounded(tokens: Iterator[Token]) -> Iterator[Token]:
    """Yield the tokens of a template. Every node comes from at least one, and few nodes from more than five."""
    limit = ACTIVE.get().bounds.max_nodes * 5
    for count, token in enumerate(tokens):
        if count > limit:
            raise ChatTemplateError(f"the chat template has more than {limit} tokens (5 * Bounds.max_nodes)")
        yield token


def check_code(code: str) -> None:
    if len(code) > MAX_CODE:
        raise ChatTemplateError(f"the chat template compiles to {len(code)} characters; the limit is {MAX_CODE}")
    ACTIVE.get().look_at_clock()


# ---- the tree


def prepared(tree: nodes.Template) -> nodes.Template:
    """Return the tree with its charges, or ``TemplateAssertionError`` for syntax that chat templates leave out."""
    _check(tree)
    for node in [*tree.find_all(_BODIES), tree]:
        _charge(node)
    return tree


def _check(tree: nodes.Template) -> None:
    limit, count = ACTIVE.get().bounds.max_nodes, 0
    level: list[tuple[nodes.Node, nodes.Node | None]] = [(tree, None)]
    depth = 0
    while level:
        count += len(level)
        depth += 1
        if count > limit:
            raise ChatTemplateError(f"the chat template has more than {limit} nodes (Bounds.max_nodes)")
        if depth > MAX_DEPTH:
            raise TemplateAssertionError(f"nested deeper than {MAX_DEPTH}", level[0][0].lineno)
        for node, parent in level:
            _check_node(node, parent)
        level = [(child, node) for node, _ in level for child in node.iter_child_nodes()]


def _check_node(node: nodes.Node, parent: nodes.Node | None) -> None:
    if not isinstance(node, _ALLOWED):
        name = _NAMES.get(type(node), type(node).__name__.lower())
        raise TemplateAssertionError(f"{name!r} is left out of chat templates", node.lineno)
    if isinstance(node, (nodes.Call, nodes.Filter, nodes.Test)) and (node.dyn_args or node.dyn_kwargs):
        raise TemplateAssertionError("'*' and '**' in a call are left out of chat templates", node.lineno)
    if isinstance(node, nodes.Const) and isinstance(node.value, int):
        checked_bits(node.value)
    if isinstance(node, nodes.Filter) and node.name in OUTPUT_FILTERS and not isinstance(parent, nodes.Output):
        raise TemplateAssertionError(f"the filter {node.name!r} stands only at the end of an output", node.lineno)
    if isinstance(node, nodes.Compare) and len(node.ops) > 1 and any(op.op in ("in", "notin") for op in node.ops):
        raise TemplateAssertionError("'in' in a chain of comparisons is left out of chat templates", node.lineno)


def _charge(owner: nodes.Node) -> None:
    """Put the charge for a body at its head, and for a filtered loop, into its condition."""
    body: list[nodes.Node] = owner.body  # type: ignore[attr-defined]
    tick = _tick(body, ITEM if isinstance(owner, nodes.For) else 0)
    body.insert(0, nodes.ExprStmt(tick))
    if isinstance(owner, nodes.For) and owner.test is not None:
        # jinja2 keeps the items that pass if ``loop.length`` is asked for
        owner.test = nodes.And(_tick([owner.test], PIECE), owner.test)


def _tick(body: list[nodes.Node], more: int) -> nodes.Call:
    units, size = _weight(body)
    charges = [nodes.Const(units), nodes.Const(size + more)]
    return nodes.Call(nodes.EnvironmentAttribute("tick"), charges, [], None, None)


def _weight(body: list[nodes.Node]) -> tuple[int, int]:
    """Return the nodes of a body without the bodies in it, and the bytes of the values that its literals make."""
    units, size, left = 2, 0, list(body)
    while left:
        node = left.pop()
        units += 1
        if isinstance(node, (nodes.List, nodes.Tuple)):
            size += OBJECT + 8 * len(node.items)
        elif isinstance(node, nodes.Dict):
            size += 4 * OBJECT + 2 * OBJECT * len(node.items)
        elif isinstance(node, nodes.Output):
            size += 16 * len(node.nodes)
        elif isinstance(node, (nodes.Const, nodes.TemplateData)):
            text = node.value if isinstance(node, nodes.Const) else node.data
            units += len(text) >> 10 if isinstance(text, str) else 0
        if isinstance(node, _BODIES):
            size += 8 * OBJECT
            inside = {id(child) for child in node.body}
            left.extend(child for child in node.iter_child_nodes() if id(child) not in inside)
        else:
            left.extend(node.iter_child_nodes())
    return units, size


# ---- the code


def _is_short(node: nodes.Expr) -> bool:
    """Return whether comparing the node's value with any other takes no time to speak of."""
    if isinstance(node, nodes.Const):
        return not isinstance(node.value, str) or len(node.value) <= LONG
    return isinstance(node, (nodes.Compare, nodes.Test, nodes.Not))


def _is_short_list(node: nodes.Expr) -> bool:
    return isinstance(node, (nodes.List, nodes.Tuple)) and len(node.items) <= 32 and all(map(_is_short, node.items))


class Generator(CodeGenerator):
    """jinja2's generator, with calls of the environment in the place of Python's own operators, and without constants
    that are computed while compiling."""

    def writeline(self, *args: Any, **kwargs: Any) -> None:
        if not self.code_lineno & 255:
            ACTIVE.get().look_at_clock()
        super().writeline(*args, **kwargs)

    def _call(self, name: str, arguments: Iterable[nodes.Expr], frame: Frame) -> None:
        self.write(f"environment.{name}(")
        for argument in arguments:
            self.visit(argument, frame)
            self.write(", ")
        self.write(")")

    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:
        if isinstance(node.node, nodes.EnvironmentAttribute):  # ``tick``
            self._call(node.node.name, node.args, frame)
        else:
            super().visit_Call(node, frame, forward_caller=forward_caller)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self._call("chain", node.nodes, frame)

    def visit_Add(self, node: nodes.BinExpr, frame: Frame) -> None:
        """``a + b + c`` is one call, so that strings are joined once."""
        terms: list[nodes.Expr] = [node]
        while isinstance(terms[0], nodes.Add):
            terms[:1] = terms[0].left, terms[0].right
        self._call("add", terms, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        if all(isinstance(pair.key, nodes.Const) and isinstance(pair.key.value, str) for pair in node.items):
            super().visit_Dict(node, frame)
        else:
            self._call("table", [part for pair in node.items for part in (pair.key, pair.value)], frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if isinstance(node.arg, nodes.Slice):
            where = (node.arg.start, node.arg.stop, node.arg.step)
            self._call("cut", [node.node, *(part or nodes.Const(None) for part in where)], frame)
        else:
            super().visit_Getitem(node, frame)

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        left, operation, right = node.expr, node.ops[0].op, node.ops[0].expr
        if len(node.ops) > 1:
            self.write("(")
            for sign, operand in [("", left), *((operators[one.op], one.expr) for one in node.ops)]:
                self.write(f" {sign} ")
                self._call("comparable", [operand], frame)
            self.write(")")
        elif _is_short_list(right) if operation in ("in", "notin") else _is_short(left) or _is_short(right):
            super().visit_Compare(node, frame)
        elif operation in ("in", "notin"):
            self.write("(not " if operation == "notin" else "(")
            self._call("contains", [right, left], frame)
            self.write(")")
        else:
            self._call("compare", [nodes.Const(operators[operation]), left, right], frame)

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        if isinstance(node, nodes.TemplateData):
            return node.data
        if isinstance(node, nodes.Const) and type(node.value) is str:
            return node.value
        raise nodes.Impossible()

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        self.write("environment.written(")

    def _output_child_post(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        self.write(")")
