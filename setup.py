"""Build of the native extensions; all metadata is in pyproject.toml.

The C++ cores are header-only or listed in ``native_sources.txt``, which CMakeLists.txt reads
too (for the tests and sanitizers that need no Python). ``PRELUDE_CYTHON_CHECKS=1`` turns
bounds checks on in the Cython wrappers.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy
from pybind11.setup_helpers import ParallelCompile
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).parent
CHECKS = os.environ.get("PRELUDE_CYTHON_CHECKS") == "1"
PACKAGES = {"_native": "prelude._native", "tokenizer": "prelude.tokenizer"}


def core_sources(folder: str) -> list[str]:
    lines = (HERE / "native_sources.txt").read_text().splitlines()
    return [line for line in map(str.strip, lines) if line.startswith(folder + "/")]


def extensions() -> list[Extension]:
    flags = ["/std:c++20", "/O2"] if sys.platform == "win32" else ["-std=c++20", "-O3", "-g0", "-fvisibility=hidden"]
    include = [str(HERE / "_native" / "include"), str(HERE / "tokenizer" / "core"), numpy.get_include()]
    found = []
    for folder, package in PACKAGES.items():
        for pyx in sorted((HERE / folder).glob("*.pyx")):
            found.append(
                Extension(
                    f"{package}.{pyx.stem}",
                    [str(pyx.relative_to(HERE)), *core_sources(folder)],
                    include_dirs=include,
                    define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")],
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
            nthreads=processors if sys.platform == "linux" else 0,  # forks: others would import this file anew
            compiler_directives={
                "language_level": 3,
                "boundscheck": CHECKS,
                "wraparound": CHECKS,
                "initializedcheck": CHECKS,
                "cdivision": True,
                "embedsignature": True,
                "freethreading_compatible": True,
            },
        )
        super().finalize_options()
        self.extensions.sort(key=heaviest_first)
        self.parallel = self.parallel or processors


ParallelCompile(default=0).install()
setup(ext_modules=extensions(), cmdclass={"build_ext": ParallelBuildExt})
