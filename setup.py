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
from Cython.Build import cythonize
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


class ParallelBuildExt(build_ext):
    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count() or 1


setup(
    ext_modules=cythonize(
        extensions(),
        build_dir="build/cython",
        compiler_directives={
            "language_level": 3,
            "boundscheck": CHECKS,
            "wraparound": CHECKS,
            "initializedcheck": CHECKS,
            "cdivision": True,
            "embedsignature": True,
            "freethreading_compatible": True,
        },
    ),
    cmdclass={"build_ext": ParallelBuildExt},
)
