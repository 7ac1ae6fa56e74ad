"""The package on every Python that is here.

    python -m tests.matrix                  everything
    python -m tests.matrix --ends           the oldest and the newest interpreter alone, one compiler
    python -m tests.matrix --quick          these two with the newest numpy and the tokenizer's tests alone

For each interpreter from 3.10 on that is found (on PATH, and in pyenv's folder) one wheel is built by g++; for the
newest of them a second one by clang++, where both compilers are here. Each wheel is installed in a fresh environment
with the newest numpy, and in another with the oldest that is allowed; torch and transformers are in none. There the
tokenizer encodes, ``prelude simulate`` and ``prelude demo`` run, and the tests of the tokenizer, the native parts,
the engine, its scheduling, models, System One and bulk; those that need an oracle skip. ``--quick`` leaves out the
interpreter that runs this script, whose tests run without it, and says so where there is no other. Prints a line for
each environment; exits with 1 where anything failed.
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
COMPILERS = {"g++": "gcc", "clang++": "clang"}  # of C++ and of C
OLDEST_NUMPY = "numpy==1.26.*"
NEWEST_OF_OLDEST = 12  # the last minor version of Python that it has wheels for
TESTS = ["tests/native", "tests/tokenizer/test_surface.py", "tests/tokenizer/test_encode.py", "tests/test_tables.py"]
TESTS += ["--ignore=tests/native/test_cpp.py"]  # has no Python in it
TESTS += ["tests/engine", "tests/scheduling", "tests/models", "tests/systemone", "tests/bulk"]
# They read the sources, which lie beside no installed wheel.
TESTS += [
    f"--deselect=tests/{test}"
    for test in (
        "native/test_hardening.py::test_no_extension_says_that_it_runs_without_the_gil",
        "native/test_hardening.py::test_kernels_ask_for_each_instruction_that_they_are_compiled_for",
        "native/test_hardening.py::test_clang_knows_the_instructions_that_are_asked_for",
        "models/test_reading.py::test_the_environment_that_is_read_is_documented",
    )
]
QUICK_TESTS = ["tests/tokenizer/test_surface.py", "tests/tokenizer/test_encode.py", "tests/test_tables.py"]
QUICK_TESTS += ["tests/engine/test_default_model.py", "tests/scheduling/test_overlap.py"]
TOOLS = ["pytest>=8.3", "pytest-timeout>=2.3", "hypothesis>=6.100", "tokenizers==0.23.3", "jinja2>=3.1.6"]


@dataclass(frozen=True)
class Leg:
    minor: int
    python: str
    compiler: str  # of C++
    numpys: tuple[str, ...]  # requirements: one environment each, from the same wheel
    tests: tuple[str, ...] = tuple(TESTS)  # pytest's arguments


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


def quick_legs() -> list[Leg]:
    """The oldest and the newest interpreter without this one."""
    found = interpreters()
    ends = sorted({min(found, default=0), max(found, default=0)} - {sys.version_info[1], 0})
    return [Leg(minor, found[minor], "g++", ("numpy",), tuple(QUICK_TESTS)) for minor in ends]


def legs(ends: bool, only: list[int], compiler: str | None) -> list[Leg]:
    found = {minor: path for minor, path in interpreters().items() if not only or minor in only}
    minors = sorted(found)
    compilers = [name for name in ([compiler] if compiler else COMPILERS) if shutil.which(name)]
    if not minors or not compilers:
        sys.exit("tests.matrix: no such interpreter from 3.10 on, or no such compiler")
    if ends:
        minors, compilers = sorted({minors[0], minors[-1]}), compilers[:1]
    made = [
        Leg(minor, found[minor], compilers[0], ("numpy", *([OLDEST_NUMPY] if minor <= NEWEST_OF_OLDEST else [])))
        for minor in minors
    ]
    made += [Leg(minors[-1], found[minors[-1]], other, ("numpy",)) for other in compilers[1:]]
    return made


class Steps:
    """Commands run one after the other, and the line of each in the table."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        self.done: list[str] = []

    def __call__(self, name: str, *command: str | Path, cwd: Path = ROOT) -> str:
        """The output; ``CalledProcessError`` where the command failed."""
        began = time.perf_counter()
        output = subprocess.run(
            [str(word) for word in command],
            cwd=cwd,
            env=self.environment,
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ).stdout
        self.done.append(f"{name} {time.perf_counter() - began:.0f} s")
        return output


def pip_of(python: str, folder: Path) -> Path:
    """The pip of a new environment in ``folder``: Debian's interpreters come without one."""
    subprocess.run([python, "-m", "venv", folder], check=True, capture_output=True, text=True)
    return folder / "bin" / "pip"


def build(leg: Leg, folder: Path) -> Path:
    """A wheel, in ``folder``."""
    pip = pip_of(leg.python, folder / "build")
    compilers = {"CXX": leg.compiler, "CC": COMPILERS[leg.compiler]}
    if shutil.which("ccache"):
        compilers = {name: f"ccache {value}" for name, value in compilers.items()}
    Steps({**os.environ, **compilers})("wheel", pip, "wheel", "-qq", "--no-deps", "-w", folder, ".")
    (wheel,) = folder.glob("*.whl")
    return wheel


def try_out(leg: Leg, numpy: str, wheel: Path, folder: Path) -> list[str]:
    """The run in a fresh environment, in ``folder``, with the tests copied away from the sources."""
    bin_folder = folder / "venv" / "bin"
    environment = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}"}
    environment.pop("PYTHONPATH", None)
    if (ROOT.parent / "shared").is_dir():  # real tokenizer files
        environment.setdefault("PRELUDE_SHARED", str(ROOT.parent / "shared"))
    step = Steps(environment)
    inside = bin_folder / "python"
    checkout = folder / "checkout"  # without the package's own folders: the wheel is tested
    for name in ("tests", "bench"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
    shutil.copy(ROOT / "pyproject.toml", checkout)

    step("environment", leg.python, "-m", "venv", folder / "venv")
    step("install", inside, "-m", "pip", "install", "-qq", numpy, wheel)
    versions = step("versions", inside, "-c", "import numpy; print(numpy.__version__)").strip()
    step.done[-1] = f"numpy {versions}"
    step("installed.py", inside, checkout / "tests" / "installed.py", cwd=folder)
    step("--version", "prelude", "--version", cwd=folder)
    step("simulate", "prelude", "simulate", "rubrics", "--option", "requests=200", cwd=folder)
    step("demo", "prelude", "demo", cwd=folder)
    step("test tools", inside, "-m", "pip", "install", "-qq", *TOOLS)
    passed = step("tests", inside, "-m", "pytest", "-p", "no:cacheprovider", *leg.tests, cwd=checkout)
    step.done[-1] = passed.strip().splitlines()[-1].strip("= ")
    return step.done


def run(leg: Leg) -> int:
    """How many environments of a leg failed; a line is printed for each."""
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for number, numpy in enumerate(leg.numpys):
            head = f"3.{leg.minor:<3} {leg.compiler:8} {numpy:12}"
            place = Path(folder) / str(number)
            place.mkdir()
            try:
                wheel = next(Path(folder).glob("*.whl"), None) or build(leg, Path(folder))
                done = try_out(leg, numpy, wheel, place)
                print(f"{head} ok      {'; '.join(done)}", flush=True)
            except subprocess.CalledProcessError as error:
                failed += 1
                output = (error.stdout or "") + (error.stderr or "")
                print(f"{head} FAILED  {' '.join(map(str, error.cmd[-6:]))}\n{output[-3000:]}", flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--ends", action="store_true", help="the oldest and the newest interpreter alone, one compiler"
    )
    parser.add_argument("--only", type=int, nargs="*", default=[], metavar="MINOR", help="these minor versions alone")
    parser.add_argument("--compiler", choices=COMPILERS, help="this compiler alone")
    parser.add_argument("--quick", action="store_true", help="fewer tests, on the oldest and the newest")
    chosen = parser.parse_args()
    if chosen.quick:
        wanted = quick_legs()
        if not wanted:
            print(f"tests.matrix: no interpreter but 3.{sys.version_info[1]} is here: nothing to run")
    else:
        wanted = legs(chosen.ends, chosen.only, chosen.compiler)
    failed = sum(map(run, wanted))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
