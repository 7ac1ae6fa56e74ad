"""What a wheel and the sdist carry: an editable install finds every folder, a wheel only the listed ones."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = ("_native", "tokenizer", "cuda", "prelude", "tests", "bench", "examples", "docs", "tools")
AT_TOP = {"LICENSE", "THIRD_PARTY_NOTICES", "SECURITY.md", "README.md", "CHANGELOG.md", "pyproject.toml", "setup.py"}
AT_TOP |= {"native_sources.txt", "CMakeLists.txt", "CONTRIBUTING.md", ".clang-format", ".editorconfig"}
AT_TOP |= {".pre-commit-config.yaml"}
MADE = {".so", ".pyc", ".pyd"}  # by building and by running


def test_every_package_folder_is_listed() -> None:
    text = (ROOT / "pyproject.toml").read_text()
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


def test_wheel_leaves_out_training_and_sources(tmp_path: Path) -> None:
    setup_py("build_py", "--build-lib", str(tmp_path))
    model = {path.name for path in (tmp_path / "prelude" / "default_model").iterdir()}
    assert {"__init__.py", "config.json", "model.safetensors", "tokenizer.json", "demo.json"} <= model
    assert not {path for path in model - {"__init__.py"} if path.endswith((".py", ".jsonl"))}
    assert not [path for kind in ("hpp", "cpp", "pyx", "pxi") for path in tmp_path.rglob(f"*.{kind}")]
    assert all((tmp_path / "prelude" / name).is_file() for name in ("py.typed", "tokenizer/_core.pyi"))


def test_pre_commit_has_the_versions_of_the_lint_extra() -> None:
    extra = re.search(r"^lint = (.*)$", (ROOT / "pyproject.toml").read_text(), re.M)
    assert extra is not None
    pinned = set(re.findall(r'"([\w-]+==[\w.]+)"', extra[1]))
    hooks = set(re.findall(r'"([\w-]+==[\w.]+)"', (ROOT / ".pre-commit-config.yaml").read_text()))
    assert len(hooks) == 3 and hooks < pinned  # mypy runs in the developer's own environment
