"""The walls of the house: who imports whom, and what an import costs."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# folder -> modules it must not import, anywhere in its files
FORBIDDEN = {
    "_native": ("prelude", "torch"),
    "tokenizer": ("prelude", "torch"),
    "prelude/scheduling": ("torch", "prelude.execution", "prelude.engine", "prelude.runtime", "prelude.models"),
    "prelude/admission": ("torch", "prelude.models", "prelude.engine", "prelude.runtime", "prelude.scheduling"),
    "prelude/execution": ("prelude.scheduling", "prelude.engine", "prelude.runtime", "prelude.admission"),
    "prelude/models": ("prelude.scheduling", "prelude.engine", "prelude.runtime", "prelude.admission"),
}
# What a forbidden prefix does not cover.
ALLOWED = {
    "_native": ("prelude._native",),
    "tokenizer": ("prelude.tokenizer", "prelude.root_error"),
    "prelude/scheduling": (),
}


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module)
    return names


def under(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


@pytest.mark.feature("N10")
@pytest.mark.parametrize("folder", FORBIDDEN)
def test_a_folder_imports_only_what_it_may(folder: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in (ROOT / folder).rglob("*.py")
        for name in imported(path)
        if under(name, FORBIDDEN[folder]) and not under(name, ALLOWED.get(folder, ()))
    ]
    assert not wrong


def fresh(code: str) -> str:
    """Output of ``code`` in a new interpreter."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_the_package_and_the_tokenizer_imports_no_torch() -> None:
    code = (
        "import sys, json, prelude, prelude.tokenizer; prelude.EngineConfig; prelude.SamplingParams;"
        "heavy = ('torch', 'transformers', 'tokenizers', 'jinja2');"
        "print(json.dumps([m for m in heavy if m in sys.modules]))"
    )
    assert json.loads(fresh(code)) == []


def test_the_engine_module_imports_no_torch_until_an_engine_is_made() -> None:
    assert (
        fresh("import sys, prelude; prelude.AsyncEngine, prelude.Engine; print('torch' in sys.modules)") == "False\n"
    )


def test_the_control_plane_runs_under_python_O() -> None:
    """No validation is an assert."""
    asserts = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in ("prelude", "tokenizer", "cuda", "_native")
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "make_tables.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Assert)
    ]
    assert not asserts


def test_no_class_has_an_alias_of_numpy_typing_as_its_base() -> None:
    """From numpy 2.5 on ``NDArray`` is a ``TypeAliasType``: a class statement with it as a base is a TypeError."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in ("prelude", "tokenizer", "cuda", "_native")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and any("NDArray" in ast.unparse(base) for base in node.bases)
    ]
    assert not wrong
