"""Lint and types: python -m tests.lint [CHECK ...]   (pip install -e ".[lint]")

The checks are ``ruff``, ``format`` (ruff's), ``clang-format``, ``cython-lint``, ``budget`` (lines and files of each
folder), ``figures`` (each table of the docs is that of its file) and ``types`` (``mypy --strict``).
Without a name all of them run. ``types`` covers the package in the layout of a wheel: in the checkout three packages
lie beside ``prelude`` and not in it (``[tool.setuptools.package-dir]``), so mypy reads a tree of links. The exit
status is 1 if a check found something.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BESIDE = ("_native", "tokenizer", "cuda")  # packages of ``prelude`` whose folders lie beside it
NATIVE = ("_native", "tokenizer")  # tests/cuda/emulator.hpp follows CUDA's names and a style of its own


TREE = ROOT / "build" / "types"  # kept, so that mypy's cache finds the same paths again


def link_package() -> None:
    """``prelude`` as a wheel has it, of links into the checkout."""
    shutil.rmtree(TREE, ignore_errors=True)
    package = TREE / "prelude"
    package.mkdir(parents=True)
    for entry in (ROOT / "prelude").iterdir():
        (package / entry.name).symlink_to(entry)
    for name in BESIDE:
        (package / name).symlink_to(ROOT / name)


def passes(*command: str, folder: Path = ROOT) -> bool:
    """Whether a program of this environment, or else of PATH, ends with 0."""
    print("$", " ".join(command[:4]), flush=True)
    program = shutil.which(command[0], path=str(Path(sys.executable).parent)) or command[0]
    return subprocess.run([program, *command[1:]], cwd=folder).returncode == 0


def types_pass() -> bool:
    link_package()
    settings = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    return passes("mypy", "-p", "prelude", "--python-executable", sys.executable, *settings, folder=TREE)


def files(*kinds: str) -> list[str]:
    return [str(path) for folder in NATIVE for kind in kinds for path in sorted((ROOT / folder).rglob(f"*.{kind}"))]


CHECKS: dict[str, Callable[[], bool]] = {
    "ruff": lambda: passes("ruff", "check", "."),
    "format": lambda: passes("ruff", "format", "--check", "."),
    "clang-format": lambda: passes("clang-format", "--dry-run", "--Werror", *files("cpp", "hpp")),
    "cython-lint": lambda: passes("cython-lint", *files("pyx", "pxi", "pxd")),
    "budget": lambda: passes(sys.executable, "-m", "tests.budget"),
    "figures": lambda: passes(sys.executable, "-m", "bench", "tables", "--check"),
    "types": types_pass,
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        print(f"{', '.join(unknown)}: not one of {', '.join(CHECKS)}", file=sys.stderr)
        return 2
    results = [CHECKS[name]() for name in names or CHECKS]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
