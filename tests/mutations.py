"""Edits of the product made at random, and whether tests notice them.

    python -m tests.mutations prelude/admission --count 20 --seed 1 -- tests/admission tests/engine/test_verbs.py

Each edit is made in a copy of the tree and is followed by a run of the tests that are named behind ``--``, which have
to pass without it. An edit is killed if a test fails or the run takes four times as long as without the edit; a
survivor is printed with its old and new text. The same seed draws the same edits of the same source. Edits are of
Python alone.
"""

from __future__ import annotations

import argparse
import ast
import copy
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from tests.conftest import ROOT

EDGES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult
}  # fmt: skip


@dataclass(frozen=True)
class Edit:
    """Bytes ``start`` to ``end`` of the file become ``new``."""

    file: str
    line: int
    kind: str
    start: int
    end: int
    new: str

    def made_in(self, source: bytes) -> bytes:
        return source[: self.start] + self.new.encode() + source[self.end :]


def variants(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """(kind, what stands in the node's place)."""
    if isinstance(node, ast.Compare):
        for at, op in enumerate(node.ops):
            if other := EDGES.get(type(op)):
                made = copy.copy(node)
                made.ops = [*node.ops[:at], other(), *node.ops[at + 1 :]]
                yield "comparison", made
    elif isinstance(node, ast.BoolOp):
        for at in range(len(node.values)):
            yield "operand dropped", ast.BoolOp(node.op, node.values[:at] + node.values[at + 1 :])
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "not dropped", node.operand
    elif isinstance(node, ast.BinOp) and (operator := OPERATORS.get(type(node.op))):
        yield "arithmetic", ast.BinOp(node.left, operator(), node.right)
    elif isinstance(node, ast.IfExp):
        yield from (("one branch", node.body), ("one branch", node.orelse))
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield "constant", ast.Constant(not node.value if isinstance(node.value, bool) else node.value + 1)
    elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        for at, part in enumerate(node.generators):
            if part.ifs:
                made_of = copy.deepcopy(node)
                made_of.generators[at].ifs = []
                yield "filter dropped", made_of
    elif isinstance(node, ast.Call):
        for at in range(len(node.keywords)):
            yield "keyword dropped", ast.Call(node.func, node.args, node.keywords[:at] + node.keywords[at + 1 :])
    elif isinstance(node.value if isinstance(node, ast.Expr) else node, ast.Raise | ast.AugAssign | ast.Call):
        yield "statement dropped", ast.Pass()


def edits(file: str, source: bytes) -> list[Edit]:
    """All of one file, without annotations and the insides of f-strings, which change nothing or have no places."""
    tree = ast.parse(source)
    left_out: set[int] = set()
    for node in ast.walk(tree):
        fields = [getattr(node, name, None) for name in ("annotation", "returns")]
        parts = [node] if isinstance(node, ast.JoinedStr) else [part for part in fields if isinstance(part, ast.AST)]
        left_out |= {id(inner) for part in parts for inner in ast.walk(part)}
    begins = [0, *accumulate(len(line) + 1 for line in source.split(b"\n"))]
    found = []
    for node in ast.walk(tree):
        for kind, made in variants(node) if id(node) not in left_out else ():
            assert isinstance(node, ast.expr | ast.stmt) and node.end_lineno and node.end_col_offset is not None
            new = ast.unparse(ast.fix_missing_locations(made))
            start, end = begins[node.lineno - 1] + node.col_offset, begins[node.end_lineno - 1] + node.end_col_offset
            edit = Edit(file, node.lineno, kind, start, end, f"({new})" if isinstance(node, ast.expr) else new)
            try:
                compile(edit.made_in(source), file, "exec")
            except SyntaxError:  # a literal pattern of a match statement takes no parentheses
                continue
            found.append(edit)
    return found


def drawn(sources: dict[str, bytes], count: int, seed: int) -> list[Edit]:
    """As many of each kind as chance gives: a kind first, then one of its edits."""
    by_kind: dict[str, list[Edit]] = {}
    for file in sorted(sources):
        for edit in edits(file, sources[file]):
            by_kind.setdefault(edit.kind, []).append(edit)
    rng, chosen = random.Random(seed), list[Edit]()
    while by_kind and len(chosen) < count:
        kind = rng.choice(sorted(by_kind))
        chosen.append(by_kind[kind].pop(rng.randrange(len(by_kind[kind]))))
        if not by_kind[kind]:
            del by_kind[kind]
    return chosen


def copy_of_tree(target: Path) -> None:
    """Tracked and new files with the built extensions, laid out so that ``python -m pytest`` there imports them."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in [*filter(None, names), *(str(path.relative_to(ROOT)) for path in ROOT.glob("*/*.so"))]:
        if (ROOT / name).is_file():  # not a tracked file that was deleted
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    for package in ("_native", "tokenizer", "cuda"):
        (target / "prelude" / package).symlink_to(target / package, target_is_directory=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("product", help="a folder or a file of the product")
    parser.add_argument("tests", nargs="+", help="arguments of pytest")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="prelude-mutations-") as folder:
        root = Path(folder)
        copy_of_tree(root)
        paths = sorted((root / given.product).rglob("*.py")) or [root / given.product]
        sources = {str(path.relative_to(root)): path.read_bytes() for path in paths}

        def run(limit: float | None) -> int | None:
            command = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *given.tests]
            try:
                return subprocess.run(command, cwd=root, stdout=subprocess.DEVNULL, timeout=limit).returncode
            except subprocess.TimeoutExpired:
                return None

        began = time.monotonic()
        if run(None) != 0:
            raise SystemExit("the tests fail without an edit")
        limit = 4 * (time.monotonic() - began) + 30
        survived = 0
        chosen = drawn(sources, given.count, given.seed)
        for edit in chosen:
            source = sources[edit.file]
            (root / edit.file).write_bytes(edit.made_in(source))
            if run(limit) == 0:
                survived += 1
                old = source[edit.start : edit.end].decode()
                print(f"survived  {edit.file}:{edit.line} <{edit.kind}> {old!r} -> {edit.new!r}", flush=True)
            (root / edit.file).write_bytes(source)
    print(f"{len(chosen) - survived} of {len(chosen)} edits were noticed")
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main())
