"""Everything that is said of the code without running it: python -m tests.lint   (pip install -e ".[lint]")

ruff's rules and format, clang-format, and ``mypy --strict`` over the package in the layout that a wheel has. In the
checkout three packages lie beside ``prelude`` and not in it (``[tool.setuptools.package-dir]``), so mypy gets a tree
of links. Exits with 1 where anything was found.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BESIDE = ("_native", "tokenizer", "cuda")  # packages of ``prelude`` whose folders lie beside it
CPP = ("_native", "tokenizer")  # tests/cuda/emulator.hpp follows CUDA's names and a style of its own


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


def main() -> int:
    sources = [str(path) for folder in CPP for kind in ("cpp", "hpp") for path in (ROOT / folder).rglob(f"*.{kind}")]
    results = (
        passes("ruff", "check", "."),
        passes("ruff", "format", "--check", "."),
        passes("clang-format", "--dry-run", "--Werror", *sources),
        types_pass(),
    )
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
