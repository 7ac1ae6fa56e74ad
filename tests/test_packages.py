"""The contents of a wheel and of the sdist: an editable install finds every folder, a wheel only the listed ones."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tools.wheels import TOKENIZER_FILES, tokenizer_metadata

ROOT = Path(__file__).parent.parent
SOURCES = ("_native", "tokenizer", "cuda", "prelude", "tests", "bench", "examples", "docs", "tools")
AT_TOP = {"LICENSE", "THIRD_PARTY_NOTICES", "SECURITY.md", "README.md", "CHANGELOG.md", "pyproject.toml", "setup.py"}
AT_TOP |= {"native_sources.txt", "CMakeLists.txt", "CONTRIBUTING.md", ".clang-format", ".editorconfig"}
AT_TOP |= {".pre-commit-config.yaml"}
MADE = {".so", ".pyc", ".pyd"}  # by building and by running


def test_every_package_folder_is_listed() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    block = re.search(r"^packages = \[\n(.*?)^\]", text, re.S | re.M)
    assert block is not None
    listed = set(re.findall(r'"([\w.]+)"', block[1]))
    found = set()
    for folder in ("prelude", "_native", "tokenizer", "cuda"):
        for init in (ROOT / folder).rglob("__init__.py"):
            parts = init.parent.relative_to(ROOT).parts
            found.add(".".join(parts if parts[0] == "prelude" else ("prelude", *parts)))
    assert found == listed


def setup_py(*arguments: str) -> None:
    """One of setuptools' commands, without network and without the C++ compiler."""
    for module in ("setuptools", "Cython", "pybind11"):
        pytest.importorskip(module, reason="a requirement of the build")
    subprocess.run([sys.executable, "setup.py", "-q", *arguments], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.long
def test_sdist_is_complete(tmp_path: Path) -> None:
    setup_py("egg_info", "--egg-base", str(tmp_path), "sdist", "--formats=gztar", "--dist-dir", str(tmp_path))
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
        metadata = opened.extractfile(f"{archive.name.removesuffix('.tar.gz')}/PKG-INFO")
        assert metadata is not None
        licences = re.findall(r"^License-File: (.+)$", metadata.read().decode(), re.M)
    assert licences == ["LICENSE", "THIRD_PARTY_NOTICES"]
    assert names >= AT_TOP
    files = {path for folder in SOURCES for path in (ROOT / folder).rglob("*") if path.is_file()}
    wanted = {path.relative_to(ROOT).as_posix() for path in files if path.suffix not in MADE}
    assert wanted - names == set()
    assert not [name for name in names if Path(name).suffix in MADE or name.startswith("build/")]


def without_cython(tree: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """setup.py's search for the sources in ``tree``, by a Python that cannot import Cython."""
    folder.mkdir()
    code = "import runpy, sys; sys.modules['Cython'] = None; sys.argv[0] = 'setup.py'; runpy.run_path('setup.py')"
    command = [sys.executable, "-c", code, "-q", "egg_info", "--egg-base", str(folder)]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True)


@pytest.mark.long
def test_an_sdist_needs_no_cython_until_a_source_changes(tmp_path: Path) -> None:
    setup_py("egg_info", "--egg-base", str(tmp_path), "sdist", "--formats=gztar", "--dist-dir", str(tmp_path))
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path)
    tree = tmp_path / archive.name.removesuffix(".tar.gz")
    written = sorted(path.relative_to(tree / "written").as_posix() for path in (tree / "written").rglob("*.cpp"))
    assert written == sorted(
        pyx.relative_to(ROOT).with_suffix(".cpp").as_posix()
        for folder in ("_native", "tokenizer")
        for pyx in (ROOT / folder).glob("*.pyx")
    )
    unchanged = without_cython(tree, tmp_path / "unchanged")
    assert unchanged.returncode == 0, unchanged.stderr
    for number, name in enumerate(("_native/arrays.pxi", "written/_native/gpu.cpp", "setup.py")):
        kept = (tree / name).read_text(encoding="utf-8")
        (tree / name).write_text(kept + "\n", encoding="utf-8")
        changed = without_cython(tree, tmp_path / str(number))
        assert changed.returncode != 0 and "Cython" in changed.stderr, name
        (tree / name).write_text(kept, encoding="utf-8")


def test_wheel_leaves_out_training_and_sources(tmp_path: Path) -> None:
    setup_py("build_py", "--build-lib", str(tmp_path))
    model = {path.name for path in (tmp_path / "prelude" / "default_model").iterdir()}
    assert {"__init__.py", "config.json", "model.safetensors", "tokenizer.json", "demo.json"} <= model
    assert not {path for path in model - {"__init__.py"} if path.endswith((".py", ".jsonl"))}
    assert not [path for kind in ("hpp", "cpp", "pyx", "pxi") for path in tmp_path.rglob(f"*.{kind}")]
    assert all((tmp_path / "prelude" / name).is_file() for name in ("py.typed", "tokenizer/_core.pyi"))


def test_the_tokenizer_imports_nothing_that_its_own_wheel_leaves_out() -> None:
    allowed = {path.removesuffix(".py").replace("/", ".") for path in TOKENIZER_FILES}
    found = set()
    for path in (ROOT / "tokenizer").rglob("*.py"):
        if "tests" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(node.module or "")
    ours = {name for name in found if name.partition(".")[0] == "prelude"}
    assert {name for name in ours if not any(f"{name}.".startswith(f"{one}.") for one in allowed)} == set()


def test_metadata_of_the_tokenizers_own_wheel() -> None:
    engines = (
        "Metadata-Version: 2.4\nName: prelude-engine\nVersion: 0.1.0\nSummary: an engine\nLicense-File: LICENSE\n"
        "Requires-Dist: numpy>=1.26\nProvides-Extra: tokenizer\n"
        'Requires-Dist: regex; extra == "tokenizer"\nProvides-Extra: engine\n'
        'Requires-Dist: prelude-engine[tokenizer]; extra == "engine"\n\n# Prelude\n'
    )
    head, _, text = tokenizer_metadata(engines).partition("\n\n")
    lines = head.splitlines()
    assert "Name: prelude-tokenizer" in lines and "Summary: an engine" not in lines
    assert lines[-3:] == [
        "Requires-Dist: numpy>=1.26",
        "Provides-Extra: tokenizer",
        'Requires-Dist: regex; extra == "tokenizer"',
    ]
    assert text.startswith("# prelude-tokenizer")


def test_pre_commit_has_the_versions_of_the_lint_extra() -> None:
    extra = re.search(r"^lint = (.*)$", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M)
    assert extra is not None
    pinned = set(re.findall(r'"([\w-]+==[\w.]+)"', extra[1]))
    hooks = set(re.findall(r'"([\w-]+==[\w.]+)"', (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")))
    assert len(hooks) == 3 and hooks < pinned  # mypy runs in the developer's own environment


def test_requirements_of_the_build_have_upper_bounds() -> None:
    """A release of a build tool that changes its output cannot change the installed package."""
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 and newer read TOML")
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    assert requires and [one for one in requires if not re.fullmatch(r"[\w-]+>=[\d.]+,<[\d.]+", one)] == []
