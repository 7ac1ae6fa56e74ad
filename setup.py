"""Build of the native extensions; all metadata is in pyproject.toml.

The C++ cores are header-only or listed in ``native_sources.txt``, which CMakeLists.txt reads
too (for the tests and sanitizers that need no Python). ``PRELUDE_SANITIZE=address,undefined`` is
given to ``-fsanitize``; the interpreter then needs ``LD_PRELOAD=$(gcc -print-file-name=libasan.so)``.
``PRELUDE_SYMBOLS=1`` compiles with debug symbols and frame pointers, for gdb, perf and valgrind.
An sdist contains the C++ that Cython wrote, and the checksums of the files that it was written from.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pybind11.setup_helpers import ParallelCompile
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist
from setuptools.errors import BaseError, CompileError

HERE = Path(__file__).parent
SANITIZE = os.environ.get("PRELUDE_SANITIZE")
SYMBOLS = ["-g", "-fno-omit-frame-pointer"] if os.environ.get("PRELUDE_SYMBOLS") else ["-g0"]
GLUE = "build/cython"
WRITTEN = "written"
"""The folder of an sdist with Cython's output and ``SUMS``; a checkout has none."""
SUMS = "SHA256SUMS"
GLUE_LEVEL = "-O1"
"""The optimisation of Cython's output, which is mostly calls: compiling takes less time, and little speed is lost."""
JOINED = {
    "build/joined/planning.cpp": [
        "_native/core/host_blocks.cpp",
        "_native/core/kv_pool.cpp",
        "_native/core/oneshot_group.cpp",
        "_native/core/packer.cpp",
        "_native/core/prefix_trie.cpp",
        "_native/core/prefix_trie_audit.cpp",
        "_native/core/token_ids.cpp",
    ],
    "build/joined/loading.cpp": [
        "tokenizer/core/loading/components.cpp",
        "tokenizer/core/loading/loading.cpp",
        "tokenizer/core/regex/regex_compile.cpp",
    ],
    "build/joined/texts.cpp": [
        "tokenizer/core/bridge.cpp",
        "tokenizer/core/loading/tables_file.cpp",
        "tokenizer/core/regex/regex.cpp",
        "tokenizer/core/cuts.cpp",
        "tokenizer/core/rows.cpp",
        "tokenizer/core/split/steps.cpp",
        "tokenizer/core/text/transcode.cpp",
    ],
}
"""Sources that are compiled as one, which reads their headers once. CMakeLists.txt compiles each by itself."""
FREED_TWICE = b"    int result = PyList_Append(list, x);\n    Py_DECREF(x);\n    return result;\n"
FREED_ONCE = b"    int result = PyList_Append(list, x);\n    if (result == 0) Py_DECREF(x);\n    return result;\n"
"""Cython 3.3 appends the items of a list comprehension with a function that drops its reference on an item, and the
caller drops the same reference again where the list found no memory. With ``FREED_ONCE`` the caller alone drops it
then. Other versions of Cython have no such function."""
LEVELS = {
    "build/joined/loading.cpp": ["-O1"],
    # The way of a short text.
    f"{GLUE}/tokenizer/_core.cpp": ["-O2"],
    f"{WRITTEN}/tokenizer/_core.cpp": ["-O2"],
}
"""How single sources are compiled; the others are compiled at -O3, or at ``GLUE_LEVEL``."""
if platform.machine().lower() in ("x86_64", "amd64"):
    # Its vectors are written out there; looking for others in the same loops takes long.
    # A compiler gets those of them that it knows: the names are gcc's.
    LEVELS["_native/cpu/kernels.cpp"] = [
        "-O3", "-fno-tree-loop-vectorize", "-fno-unswitch-loops", "-fno-split-loops", "-fno-ipa-cp-clone"
    ]  # fmt: skip
elif platform.machine().lower() in ("aarch64", "arm64"):
    # gcc schedules loads so early that no registers are left for the sums of a product.
    LEVELS["_native/cpu/packed_matmul.cpp"] = ["-O3", "-fno-schedule-insns"]
SANITIZED_LEVEL = "-O1"
"""How every source is compiled for a sanitizer: at -O3 its checks multiply the time that compiling takes."""
HARDENING = [] if SANITIZE else ["-fstack-protector-strong", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"]
"""For every source: an array on the stack, or one passed to libc, that is written past its end ends the process. A
sanitizer checks the same, and needs libc's own functions."""
LINK_HARDENING = ["-Wl,-z,relro", "-Wl,-z,now"]
"""The table of other libraries' functions is filled when the extension is loaded, and read-only from then on."""
OVERFLOW = {"-fwrapv", "-fno-strict-overflow"}
"""How Pythons up to 3.11 and later ones say that signed numbers wrap around."""
LONGEST = "_native/cpu/packed_matmul.cpp"  # takes a minute: it is compiled first, so that no processor waits for it
COMPILE_SECONDS = 90
"""Of processor time for all files, on a core of an AMD EPYC with gcc 12."""
PACKAGES = {"_native": "prelude._native", "tokenizer": "prelude.tokenizer"}


def core_sources(folder: str, module: str) -> list[str]:
    lines = (HERE / "native_sources.txt").read_text().splitlines()
    return [line for line in lines if line.startswith(f"{folder}/{module.lstrip('_')}/")]


def extensions() -> list[Extension]:
    windows = sys.platform == "win32"
    flags = ["/std:c++20", "/O2"] if windows else ["-std=c++20", *SYMBOLS, "-fvisibility=hidden"]
    sanitizers = [f"-fsanitize={SANITIZE}", "-fno-omit-frame-pointer", "-g1"] if SANITIZE else []
    include = ["_native/include", "tokenizer/core"]  # relative: ccache finds the same commands in any folder
    found = []
    for folder, package in PACKAGES.items():
        for pyx in sorted((HERE / folder).glob("*.pyx")):
            found.append(
                Extension(
                    f"{package}.{pyx.stem}",
                    [str(pyx.relative_to(HERE)), *core_sources(folder, pyx.stem)],
                    include_dirs=include,
                    extra_compile_args=[*flags, *sanitizers],
                    extra_link_args=sanitizers,
                    language="c++",
                    depends=[str(p) for p in (HERE / folder).rglob("*.[hc]pp")],
                )
            )
    return found


def joined(sources: list[str]) -> list[str]:
    """``sources`` with a file that includes all of a group in the group's place."""
    for name, group in JOINED.items():
        missing = set(group) - set(sources)
        if missing and len(missing) < len(group):
            raise BaseError(f"setup.py joins {sorted(missing)}, which native_sources.txt does not list")
        if not missing:
            (HERE / name).parent.mkdir(parents=True, exist_ok=True)
            text = "".join(f'#include "../../{source}"\n' for source in group)
            if not (HERE / name).exists() or (HERE / name).read_text() != text:
                (HERE / name).write_text(text)
            sources = [name, *(source for source in sources if source not in group)]
    return sources


def free_once(source: Path) -> None:
    """Puts ``FREED_ONCE`` into a file that Cython wrote."""
    text = source.read_bytes()
    if FREED_TWICE in text:
        source.write_bytes(text.replace(FREED_TWICE, FREED_ONCE))


def translate(modules: list[Extension], folder: str, force: bool = False) -> list[Extension]:
    """``modules`` with the C++ that Cython writes below ``folder`` in place of the .pyx files."""
    from Cython.Build import cythonize

    translated: list[Extension] = cythonize(
        modules,
        build_dir=folder,
        force=force,
        include_path=[str(HERE / "_native" / "include")],
        nthreads=(os.cpu_count() or 1) if sys.platform == "linux" else 0,  # forks: others would import this file anew
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
    for extension in translated:
        for source in extension.sources:
            if is_glue(source, folder):
                free_once(Path(source))
    return translated


def is_glue(source: str, folder: str) -> bool:
    return Path(source).is_relative_to(folder)


def sums(tree: Path) -> str:
    """The SHA-256 of each file that Cython's output depends on, and of each file of the output, in ``tree``."""
    beside = [path for name in PACKAGES for path in (tree / name).rglob("*.p*")]
    read = [tree / "setup.py", *(path for path in beside if path.suffix in (".pyx", ".pxi", ".pxd"))]
    lines = []
    for path in sorted([*read, *(tree / WRITTEN).rglob("*.cpp")]):
        lines.append(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(tree).as_posix()}\n")
    return "".join(lines)


def already_written(modules: list[Extension]) -> list[Extension] | None:
    """``modules`` with the sdist's C++, which no Cython has to write; None in a checkout, and where a file has
    changed since the sdist was made."""
    kept = HERE / WRITTEN / SUMS
    if not kept.exists() or kept.read_text() != sums(HERE):
        return None
    for extension in modules:
        pyx, *others = extension.sources
        extension.sources = [(Path(WRITTEN) / pyx).with_suffix(".cpp").as_posix(), *others]
    return modules


class SdistWithCpp(sdist):
    """An sdist from which an install needs no run of Cython."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        tree = Path(base_dir)
        with tempfile.TemporaryDirectory() as folder:
            for extension in translate(extensions(), folder, force=True):
                for source in map(Path, extension.sources):
                    if source.is_relative_to(folder):  # Cython lays copies of the headers beside it
                        kept = tree / WRITTEN / source.relative_to(folder)
                        kept.parent.mkdir(parents=True, exist_ok=True)
                        shutil.copyfile(source, kept)
        (tree / WRITTEN / SUMS).write_text(sums(tree))


def heaviest_first(extension: Extension) -> tuple[bool, int]:
    return LONGEST not in extension.sources, -sum((HERE / source).stat().st_size for source in extension.sources)


class ParallelBuildExt(build_ext):
    """Translates the .pyx files only where something is built, and keeps every processor compiling: whole
    extensions side by side, the one that takes longest first, and the sources of each."""

    def finalize_options(self) -> None:
        modules = self.distribution.ext_modules
        self.distribution.ext_modules = already_written(modules) or translate(modules, GLUE)
        super().finalize_options()
        self.extensions.sort(key=heaviest_first)
        self.parallel = self.parallel or os.cpu_count() or 1

    def build_extensions(self) -> None:
        for extension in self.extensions:
            extension.sources = sorted(joined(extension.sources), key=lambda source: source != LONGEST)
        if sys.platform != "win32":
            self._compile_alike()
            self._link_hardened()  # its probes are not counted among the sources
            self._compile_at_levels()
        super().build_extensions()

    def _compile_alike(self) -> None:
        """Leaves out the levels and warnings that this Python was compiled with, and its word for signed overflow. A
        source without Python in it then has one command for all Pythons, and a compiler cache finds it again."""
        users = " ".join(os.environ.get(name, "") for name in ("CFLAGS", "CXXFLAGS", "CPPFLAGS"))
        pythons = set(shlex.split(sysconfig.get_config_var("CFLAGS") or "")) - set(shlex.split(users))
        dropped = {word for word in pythons if word.startswith(("-g", "-O", "-W"))} | OVERFLOW
        words = [word for word in self.compiler.compiler_so_cxx if word not in dropped]
        self.compiler.compiler_so_cxx = [*words, "-fwrapv"]

    def _compile_at_levels(self) -> None:
        compile_one = self.compiler._compile
        known = self._known_flags()
        progress = Progress(sum(len(extension.sources) for extension in self.extensions), self.parallel)

        def compile_at_level(obj: str, source: str, ext: str, args: list[str], more: list[str], *rest: Any) -> None:
            glue = is_glue(source, GLUE) or is_glue(source, WRITTEN)
            wanted = LEVELS.get(Path(source).as_posix(), [GLUE_LEVEL] if glue else ["-O3"])
            wanted = [SANITIZED_LEVEL] if SANITIZE else wanted
            flags = [flag for flag in [*wanted, *HARDENING] if flag in known]
            compile_one(obj, source, ext, args, [*more, *flags], *rest)
            progress.done(source)

        self.compiler._compile = compile_at_level

    def _known_flags(self) -> set[str]:
        """The flags of sources that the compiler takes; ``CompileError`` where it cannot compile C++20."""
        levels = {flag for level in LEVELS.values() for flag in level}
        wanted = {GLUE_LEVEL, SANITIZED_LEVEL, "-O3", *HARDENING, *levels}
        if not self._compiles([]):
            words = getattr(self.compiler, "compiler_cxx", None) or ["c++"]
            command = " ".join(words[: next((i for i, word in enumerate(words) if word.startswith("-")), None)])
            raise CompileError(
                f"prelude-engine is compiled from C++20, and {command!r} did not compile a file of it: install g++ "
                "11 or newer (Debian and Ubuntu: apt install g++) or clang 14 or newer, or name one in CXX"
            )
        return {flag for flag in wanted if self._compiles([flag])}

    def _link_hardened(self) -> None:
        taken = [flag for flag in LINK_HARDENING if self._compiles([], [flag])]
        for extension in self.extensions:
            extension.extra_link_args = [*extension.extra_link_args, *taken]

    def _compiles(self, flags: list[str], link_flags: list[str] | None = None) -> bool:
        """Whether a file of C++20 compiles with ``flags`` and, where ``link_flags`` is given, links with those."""
        with tempfile.TemporaryDirectory() as folder, self._quiet_compiler():
            source = Path(folder) / "probe.cpp"
            source.write_text("#include <span>\nint size(std::span<int> s) { return int(s.size()); }\n")
            try:
                objects = self.compiler.compile([str(source)], folder, extra_postargs=["-std=c++20", *flags])
                if link_flags is not None:
                    library = str(Path(folder) / "probe.so")
                    self.compiler.link_shared_object(objects, library, extra_postargs=link_flags, target_lang="c++")
            except (BaseError, CompileError):
                return False
            return True

    @staticmethod
    @contextmanager
    def _quiet_compiler() -> Iterator[None]:
        """Hides the compiler's messages about a flag that it does not know: the user who installs needs none of
        them."""
        kept = os.dup(2)
        try:
            with open(os.devnull, "w", encoding="utf-8") as nothing:
                os.dup2(nothing.fileno(), 2)
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


class Progress:
    """Names the compiled files on the terminal: pip shows nothing of a build's own output while it runs."""

    def __init__(self, files: int, processors: int) -> None:
        self.files, self.compiled, self.began = files, 0, time.monotonic()
        self.lock = threading.Lock()
        seconds = COMPILE_SECONDS / max(1, min(processors, files))
        self.say(f"compiling {files} C++ files on {processors} processors, about {seconds:.0f} s where they are idle")

    def done(self, source: str) -> None:
        with self.lock:
            self.compiled += 1
            self.say(f"{self.compiled} of {self.files} after {time.monotonic() - self.began:.0f} s: {source}")

    def say(self, line: str) -> None:
        line = f"prelude-engine: {line}"
        try:
            with open("/dev/tty", "w", encoding="utf-8") as terminal:
                terminal.write(f"\r{line}\r\n")
        except OSError:  # no terminal
            print(line, flush=True)


ParallelCompile(default=0).install()
setup(ext_modules=extensions(), cmdclass={"build_ext": ParallelBuildExt, "sdist": SdistWithCpp})
