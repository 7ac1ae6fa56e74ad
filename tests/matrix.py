"""The package on every Python that is here: python -m tests.matrix   (--ends: the oldest and the newest alone)

For each interpreter from 3.10 on that is found (on PATH, and in pyenv's folder) a wheel is built and installed in a
fresh environment: the oldest numpy that is allowed and gcc, then the newest numpy and clang, as far as they are
here. There ``prelude --version``, ``prelude simulate`` and some tests of the tokenizer and the native parts run. With
``--torch SPEC`` (a requirement such as torch==2.13.0) the engine's extra is installed as well, and the demo runs.
Prints a table; exits with 1 where anything failed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MINORS = range(10, 20)
OLDEST_NUMPY = "numpy==1.26.*"  # has wheels up to Python 3.12
TESTS = ["tests/native", "tests/tokenizer/test_surface.py", "tests/tokenizer/test_encode.py", "tests/test_tables.py"]
TESTS += ["--ignore=tests/native/test_paged.py"]  # needs torch
TESTS += ["--ignore=tests/native/test_cpp.py"]  # has no Python in it
TOOLS = ["pytest>=8.3", "pytest-timeout>=2.3", "hypothesis>=6.100", "tokenizers==0.23.3", "regex", "jinja2>=3.1.6"]


@dataclass(frozen=True)
class Leg:
    python: str
    minor: int
    numpy: str
    compiler: str  # of C++


def interpreters() -> dict[int, str]:
    """A path for each minor version that starts and can make environments."""
    found: dict[int, str] = {}
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for minor in MINORS:
        name = f"python3.{minor}"
        candidates = [shutil.which(name), *sorted(map(str, pyenv.glob(f"3.{minor}.*/bin/{name}")))]
        for path in filter(None, candidates):
            check = [path, "-c", "import sys, venv, ensurepip; sys.exit(sys.version_info[1] != int(sys.argv[1]))"]
            if subprocess.run([*check, str(minor)], capture_output=True).returncode == 0:
                found[minor] = path
                break
    return found


def legs(ends: bool) -> list[Leg]:
    found = interpreters()
    minors = sorted(found)
    if ends:
        minors = sorted({minors[0], minors[-1]})
    gcc, clang = shutil.which("g++"), shutil.which("clang++")
    made = []
    for minor in minors:
        made.append(Leg(found[minor], minor, OLDEST_NUMPY if minor <= 12 else "numpy", "g++" if gcc else "clang++"))
        if not ends and minor <= 12:
            made.append(Leg(found[minor], minor, "numpy", "clang++" if clang else "g++"))
    if not ends and clang and gcc:
        made.append(Leg(found[minors[-1]], minors[-1], "numpy", "clang++"))
    return made


def run(leg: Leg, torch: str | None, folder: Path) -> list[str]:
    """What was done in a fresh environment; raises ``CalledProcessError`` at what failed."""
    done: list[str] = []
    python = str(folder / "bin" / "python")
    compilers = {"CXX": leg.compiler, "CC": leg.compiler.replace("clang++", "clang").replace("g++", "gcc")}
    if shutil.which("ccache"):
        compilers = {name: f"ccache {value}" for name, value in compilers.items()}
    environment = {**os.environ, **compilers, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    environment.pop("PYTHONPATH", None)

    def step(name: str, *command: str, cwd: Path = ROOT) -> str:
        began = time.perf_counter()
        output = subprocess.run(
            command, cwd=cwd, env=environment, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ).stdout
        done.append(f"{name} {time.perf_counter() - began:.0f} s")
        return output

    step("environment", leg.python, "-m", "venv", str(folder))
    extra = "[engine]" if torch else ""
    step("install", python, "-m", "pip", "install", "-q", leg.numpy, *([torch] if torch else []), f".{extra}")
    version = step("numpy", python, "-c", "import numpy; print(numpy.__version__)").strip()
    done[-1] = f"numpy {version}"
    step("--version", "prelude", "--version", cwd=folder)
    step("simulate", "prelude", "simulate", "rubrics", "--option", "requests=200", cwd=folder)
    step("results", python, "-c", "import prelude.results, prelude.engine", cwd=folder)
    if torch:
        step("demo", "prelude", "demo", cwd=folder)
    step("test tools", python, "-m", "pip", "install", "-q", *TOOLS)
    passed = step("tests", python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS)
    done[-1] = f"{passed.strip().splitlines()[-1]}"
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ends", action="store_true", help="the oldest and the newest interpreter alone")
    parser.add_argument("--only", type=int, metavar="MINOR", help="this minor version alone")
    parser.add_argument("--torch", metavar="SPEC", help="install the engine with this torch, and run the demo")
    chosen = parser.parse_args()
    failed = 0
    for leg in legs(chosen.ends):
        if chosen.only is not None and leg.minor != chosen.only:
            continue
        head = f"3.{leg.minor:<3} {leg.compiler:8}"
        with tempfile.TemporaryDirectory() as folder:
            try:
                print(f"{head} ok      {'; '.join(run(leg, chosen.torch, Path(folder) / 'venv'))}", flush=True)
            except subprocess.CalledProcessError as error:
                failed += 1
                print(f"{head} FAILED  {' '.join(error.cmd[-6:])}\n{(error.stdout or '')[-3000:]}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
