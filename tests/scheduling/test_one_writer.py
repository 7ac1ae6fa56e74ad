"""A request's state and lease have one writer each, and the functions that give a lease back are those of a list."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from prelude.scheduling import lease
from prelude.scheduling.request import State
from tests.scheduling.cores import Collect, last_logprob, make_core, prompt

ROOT = Path(__file__).resolve().parents[2]


def callers(path: Path, name: str) -> set[str]:
    """``module.function`` of the calls of a method ``name`` in ``path``."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            calls = [call.func for call in ast.walk(node) if isinstance(call, ast.Call)]
            if any(isinstance(call, ast.Attribute) and call.attr == name for call in calls):
                found.add(f"{path.stem}.{node.name}")
    return found


@pytest.mark.feature("C9")
def test_the_functions_that_give_leases_back_are_those_that_the_docstring_lists() -> None:
    listed = set(re.findall(r"^    (\w+\.\w+)  ", lease.__doc__ or "", flags=re.MULTILINE))
    folders = [ROOT / "prelude" / name for name in ("admission", "scheduling", "runtime")]
    python = [path for folder in folders for path in folder.rglob("*.py")]
    found = set().union(*(callers(path, "give_back") for path in python))
    found -= {"planner._plan_decode", "inbox.__exit__"}  # a ledger's, and places
    assert found == listed
    releases = [path.name for path in python if re.search(r"pool\.release\(", path.read_text(encoding="utf-8"))]
    assert releases == ["request.py"], "a lease is given back by its request"


@pytest.mark.feature("C13")
def test_a_requests_state_and_lease_cannot_be_assigned() -> None:
    core = make_core()
    request = core.request(last_logprob(prompt(9, 1)), Collect())
    for name, value in (("state", State.FINISHED), ("lease", None)):
        with pytest.raises(AttributeError):
            setattr(request, name, value)
    first, second = (core.pool.attach(request.known, 0, 8, growable=True) for _ in range(2))
    request.hold(first)
    with pytest.raises(RuntimeError, match=f"request {request.id} holds a lease and is given another"):
        request.hold(second)
    request.give_back(core.pool)
    assert first.released and request.lease is None
    request.give_back(core.pool)  # it holds none: nothing happens
