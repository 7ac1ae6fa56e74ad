"""Build of the native extensions; all metadata is in pyproject.toml.

The C++ cores are header-only or listed in ``native_sources.txt``, which CMakeLists.txt reads
too (for the tests and sanitizers that need no Python).
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any

from pybind11.setup_helpers import ParallelCompile
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).parent
GLUE_LEVEL = "-O1"
"""How what Cython wrote is compiled: it is mostly calls, so that this is half of the time and little of the speed."""
LEVELS = {
    "tokenizer/core/components.cpp": ["-O1"],
    "tokenizer/core/loading.cpp": ["-O1"],
    "tokenizer/core/regex_compile.cpp": ["-O1"],
}
"""How sources are compiled that run once a file, or once a text; the others are compiled at -O3."""
if platform.machine().lower() in ("x86_64", "amd64"):
    # Its vectors are written out there; looking for others in the same loops is half of the time it takes to compile.
    LEVELS["_native/cpu/kernels.cpp"] = [
        "-O3", "-fno-tree-loop-vectorize", "-fno-unswitch-loops", "-fno-split-loops", "-fno-ipa-cp-clone"
    ]  # fmt: skip
PACKAGES = {"_native": "prelude._native", "tokenizer": "prelude.tokenizer"}


def core_sources(folder: str, module: str) -> list[str]:
    lines = (HERE / "native_sources.txt").read_text().splitlines()
    return [line for line in lines if line.startswith(f"{folder}/{module.lstrip('_')}/")]


def extensions() -> list[Extension]:
    windows = sys.platform == "win32"
    flags = ["/std:c++20", "/O2"] if windows else ["-std=c++20", "-g0", "-fvisibility=hidden"]
    include = [str(HERE / "_native" / "include"), str(HERE / "tokenizer" / "core")]
    found = []
    for folder, package in PACKAGES.items():
        for pyx in sorted((HERE / folder).glob("*.pyx")):
            found.append(
                Extension(
                    f"{package}.{pyx.stem}",
                    [str(pyx.relative_to(HERE)), *core_sources(folder, pyx.stem)],
                    include_dirs=include,
                    extra_compile_args=flags,
                    language="c++",
                    depends=[str(p) for p in (HERE / folder).rglob("*.hpp")],
                )
            )
    return found


def heaviest_first(extension: Extension) -> int:
    return -sum((HERE / source).stat().st_size for source in extension.sources)


class ParallelBuildExt(build_ext):
    """Translates the .pyx files only where something is built, and keeps every processor compiling: whole
    extensions side by side, the one that takes longest first, and the sources of each."""

    def finalize_options(self) -> None:
        from Cython.Build import cythonize

        processors = os.cpu_count() or 1
        self.distribution.ext_modules = cythonize(
            self.distribution.ext_modules,
            build_dir="build/cython",
            include_path=[str(HERE / "_native" / "include")],
            nthreads=processors if sys.platform == "linux" else 0,  # forks: others would import this file anew
            compiler_directives={
                "language_level": 3,
                "boundscheck": True,  # of lists and tuples; arrays, read through pointers, are checked at the call
                "nonecheck": True,  # an object made by __new__ alone has None in its fields
                "wraparound": False,
                "initializedcheck": False,
                "cdivision": True,
                "embedsignature": True,
                "auto_pickle": False,
                # Not "freethreading_compatible": the wrappers measure lists before they copy them, and hold the GIL.
            },
        )
        super().finalize_options()
        self.extensions.sort(key=heaviest_first)
        self.parallel = self.parallel or processors

    def build_extensions(self) -> None:
        compile_one = self.compiler._compile

        def compile_at_level(obj: str, source: str, ext: str, args: list[str], more: list[str], *rest: Any) -> None:
            glue = Path(source).parts[:2] == ("build", "cython")
            level = [GLUE_LEVEL] if glue else LEVELS.get(Path(source).as_posix(), ["-O3"])
            compile_one(obj, source, ext, args, [*more, *level], *rest)

        if sys.platform != "win32":
            self.compiler._compile = compile_at_level
        super().build_extensions()


ParallelCompile(default=0).install()
setup(ext_modules=extensions(), cmdclass={"build_ext": ParallelBuildExt})
