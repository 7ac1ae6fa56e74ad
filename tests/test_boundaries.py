"""The boundaries between folders, the order of imports, and the cost of an import."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# folder -> modules it must not import, anywhere in its files
FORBIDDEN = {
    "_native": ("prelude", "torch"),
    "tokenizer": ("prelude", "torch"),
    "cuda": ("prelude.scheduling", "prelude.api", "prelude.loading", "prelude.runtime", "prelude.admission"),
}
# Exceptions from a forbidden prefix.
ALLOWED = {"_native": ("prelude._native",), "tokenizer": ("prelude.tokenizer", "prelude.errors.root")}


@cache
def tree_of(path: Path) -> tuple[ast.Module, tuple[ast.AST, ...]]:
    tree = ast.parse(path.read_bytes())
    return tree, tuple(ast.walk(tree))


CYTHON_IMPORT = re.compile(r"^\s*(?:c?import|from)\s+([A-Za-z_][\w.]*)", re.MULTILINE)


@cache
def imported(path: Path) -> set[str]:
    if path.suffix in (".pyx", ".pxi"):
        return set(CYTHON_IMPORT.findall(path.read_text(encoding="utf-8")))
    names: set[str] = set()
    for node in tree_of(path)[1]:
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module)
    return names


def under(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


@pytest.mark.feature("N10")
@pytest.mark.parametrize("folder", FORBIDDEN)
def test_a_folder_imports_only_the_folders_below_it(folder: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for kind in ("*.py", "*.pyx", "*.pxi")
        for path in (ROOT / folder).rglob(kind)
        for name in imported(path)
        if under(name, FORBIDDEN[folder]) and not under(name, ALLOWED.get(folder, ()))
    ]
    assert not wrong


# Headers of C++ that read Python's objects where they lie; no other one includes Python.
READS_PYTHON = {"ndarray.hpp"}
INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', re.MULTILINE)


def includes(path: Path) -> list[str]:
    return INCLUDE.findall(path.read_text(encoding="utf-8"))


def test_the_native_core_includes_its_own_headers_and_no_python() -> None:
    wrong = []
    for path in [*(ROOT / "_native").rglob("*.hpp"), *(ROOT / "_native").rglob("*.cpp")]:
        for name in includes(path):
            python = "Python.h" in name or name.startswith(("numpy/", "structmember", "pythread"))
            if (python and path.name not in READS_PYTHON) or name.startswith(("fasttoken", "tokenizer")):
                wrong.append(f"{path.relative_to(ROOT)} includes {name}")
    assert not wrong


def test_the_tokenizers_core_includes_neither_python_nor_the_engine() -> None:
    core = ROOT / "tokenizer" / "core"
    wrong = [
        f"{path.relative_to(ROOT)} includes {name}"
        for path in [*core.rglob("*.hpp"), *core.rglob("*.cpp")]
        for name in includes(path)
        if name.startswith(("Python.h", "numpy/", "prelude/", "_native/"))
    ]
    assert not wrong


# A folder imports from folders that stand before it alone: also inside functions, and also for types.
ORDER = (
    *("records", "errors", "results", "tasks", "values", "terminal", "recipes", "streaming", "readouts"),
    *("models", "execution", "cpu", "parallel", "calibration", "fitting"),
    *("admission", "scheduling", "runtime", "default_model", "loading"),
    *("api", "bulk", "systemone", "integrations", "ray", "simulation", "tools"),
)


@pytest.mark.feature("N10")
@pytest.mark.parametrize("folder", ORDER)
def test_folders_import_in_one_direction(folder: str) -> None:
    later = {f"prelude.{name}" for name in ORDER[ORDER.index(folder) + 1 :]}
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in (ROOT / "prelude" / folder).rglob("*.py")
        for name in imported(path)
        if under(name, tuple(later))
    ]
    assert not wrong


def test_every_folder_has_its_place_and_the_root_has_no_other_module() -> None:
    inside = [path for path in (ROOT / "prelude").iterdir() if path.name != "__pycache__"]
    assert {path.name for path in inside if path.suffix == ".py"} == {"__init__.py", "__main__.py"}
    assert {path.name for path in inside if path.is_dir()} - {"_native", "tokenizer", "cuda"} == {*ORDER}


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Through any number of modules; ``CycleError`` names them. In the engine, imports inside functions and for types
    count too."""
    paths = {}
    for folder, name in (("prelude", "prelude"), ("tokenizer", "prelude.tokenizer"), ("cuda", "prelude.cuda")):
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            paths[".".join((name, *(parts[:-1] if parts[-1] == "__init__" else parts)))] = path
    del paths["prelude"]  # it imports each public name at its first use
    graph = {name: imported_modules(name, path, paths) - {name} for name, path in paths.items()}
    assert len(list(TopologicalSorter(graph).static_order())) == len(paths)


def imported_modules(name: str, path: Path, known: Iterable[str]) -> set[str]:
    """The modules among ``known`` that a module imports: one of the tokenizer or of CUDA while it is loaded."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    tree, whole = tree_of(path)
    found: set[str] = set()
    for node in whole if path.is_relative_to(ROOT / "prelude") else on_loading(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found.update(f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base for alias in node.names)
    return found & set(known)


def on_loading(tree: ast.Module) -> Iterable[ast.stmt]:
    """The statements that loading a module runs: none for types, none inside functions."""
    ahead: list[ast.stmt] = list(tree.body)
    while ahead:
        node = ahead.pop()
        yield node
        if isinstance(node, ast.If):
            ahead += node.orelse if "TYPE_CHECKING" in ast.unparse(node.test) else [*node.body, *node.orelse]
        elif isinstance(node, ast.Try):
            ahead += [*node.body, *node.orelse, *node.finalbody, *(line for h in node.handlers for line in h.body)]


def nodes(*folders: str) -> Iterable[tuple[str, ast.AST]]:
    """(file and line, node) of all Python in the folders."""
    for path in [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]:
        name = path.relative_to(ROOT).as_posix()
        for node in tree_of(path)[1]:
            yield f"{name}:{getattr(node, 'lineno', 0)}", node


def test_no_object_reaches_into_anothers_private_attributes() -> None:
    wrong = []
    for place, node in nodes("prelude/runtime", "prelude/scheduling"):
        private = isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.endswith("__")
        if private and ast.unparse(node.value) not in ("self", "cls", "cls._shared", "super()"):  # type: ignore[attr-defined]
            wrong.append(f"{place}: {ast.unparse(node)}")
    assert not wrong


def fresh(code: str) -> str:
    """Output of ``code`` in a new interpreter."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_the_package_and_the_tokenizer_imports_no_torch() -> None:
    code = (
        "import sys, json, prelude; hasattr(prelude, 'nothing'); early = 'prelude.results' in sys.modules;"
        "import prelude.tokenizer; prelude.EngineConfig; prelude.SamplingParams;"
        "heavy = ('torch', 'transformers', 'tokenizers', 'jinja2', *['prelude.results'] * early);"
        "print(json.dumps([m for m in heavy if m in sys.modules]))"
    )
    assert json.loads(fresh(code)) == []


def test_an_answer_of_an_engine_on_a_cpu_imports_no_torch_and_no_asyncio() -> None:
    code = (
        "import sys; from prelude import Engine, YesNo; engine = Engine.from_pretrained();"
        "engine.decide('A text.', [YesNo('Does it contain personal data?')]);"
        "print([name for name in ('torch', 'asyncio') if name in sys.modules])"
    )
    assert fresh(code) == "[]\n"


def test_torch_is_for_gpus_and_several_ranks_alone() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for folder in ("prelude", "tokenizer", "_native")
        for path in (ROOT / folder).rglob("*.py*")
        if path.suffix in (".py", ".pyx", ".pxi") and any(under(name, ("torch",)) for name in imported(path))
    }
    assert found == {"prelude/loading/cuda.py", "prelude/parallel/group.py"}


def test_a_first_decision_imports_nothing_of_other_work() -> None:
    """Rows of files, calibration, simulation, tables, services and integrations cost a start nothing."""
    code = (
        "import sys, json; from prelude import Engine, YesNo; engine = Engine.from_pretrained();"
        "engine.decide('Please come in.', [YesNo('Is it polite?')]); engine.close();"
        "print(json.dumps([m for m in sys.modules if m.startswith('prelude.')]))"
    )
    parts = ("bulk", "calibration", "simulation", "integrations", "ray", "systemone", "tools")
    others = (*(f"prelude.{name}" for name in parts), "prelude.terminal.tables", "prelude.terminal.command_line")
    assert [name for name in json.loads(fresh(code)) if name.startswith(others)] == []


PYTHON = ("prelude", "tokenizer", "cuda", "_native")


def test_the_control_plane_runs_under_python_O() -> None:
    """No validation is an assert."""
    asserts = [place for place, node in nodes(*PYTHON) if isinstance(node, ast.Assert)]
    assert [place for place in asserts if "make_tables.py" not in place] == []


def test_no_class_has_an_alias_of_numpy_typing_as_its_base() -> None:
    """From numpy 2.5 on ``NDArray`` is a ``TypeAliasType``: a class statement with it as a base is a TypeError."""
    classes = [(place, node) for place, node in nodes(*PYTHON) if isinstance(node, ast.ClassDef)]
    assert [place for place, made in classes if any("NDArray" in ast.unparse(base) for base in made.bases)] == []


def test_dataclasses_have_slots_and_are_frozen_unless_their_folder_changes_them() -> None:
    """But for the parts of an engine, of which there is one, and results, which the engine fills in."""
    for folder in ORDER:
        trees = [node for _, node in nodes(f"prelude/{folder}")]
        changed = {node.attr for node in trees if isinstance(node, ast.Attribute) and type(node.ctx) is ast.Store}
        for made in [node for node in trees if isinstance(node, ast.ClassDef)]:
            said = " ".join(map(ast.unparse, made.decorator_list))
            fields = {ast.unparse(node.target) for node in made.body if isinstance(node, ast.AnnAssign)}
            if "dataclass" in said and "dataclass(eq=False, repr=False)" not in said:
                assert "slots=True" in said, made.name
                assert "frozen=True" in said or fields & changed or folder == "results", made.name


def test_a_refusal_of_a_request_names_its_field() -> None:
    """``field=None`` says that no argument is to blame."""
    kinds = {"InvalidRequest", "PromptTooLong", "RecipeError", "RequestTooLarge", "TemplateError", "UnknownParameter"}
    calls = [(place, node) for place, node in nodes("prelude") if isinstance(node, ast.Call)]
    found = [(place, node) for place, node in calls if isinstance(node.func, ast.Name) and node.func.id in kinds]
    assert len(found) > 200
    assert [place for place, node in found if "field" not in [keyword.arg for keyword in node.keywords]] == []
