"""Protections of the compiler and the linker against memory faults, read from the built files."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from prelude._native import core, cpu
from prelude.tokenizer import _core as tokenizer

DYNAMIC, RELRO = 2, 0x6474E552  # types of program headers
FLAGS, BIND_NOW = 30, 8  # a tag of the dynamic section, and a bit of its value


def segments(data: bytes) -> dict[int, bytes]:
    """The contents of a 64-bit little-endian ELF file's segments, by type (of several of one type, the last)."""
    (table,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    found = {}
    for at in range(table, table + size * count, size):
        kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", data, at)
        found[kind] = data[offset : offset + length]
    return found


@pytest.mark.parametrize("module", [core, cpu, tokenizer], ids=lambda module: module.__name__)
def test_extensions_are_hardened(module: ModuleType) -> None:
    data = Path(str(module.__file__)).read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        pytest.skip("not a 64-bit little-endian ELF file: the flags are those of Linux")
    if b"\0__asan_init\0" in data:
        pytest.skip("a sanitizer replaces these flags")
    found = segments(data)
    assert RELRO in found
    tags = dict(struct.iter_unpack("<QQ", found[DYNAMIC]))
    assert tags.get(FLAGS, 0) & BIND_NOW
    assert b"\0__stack_chk_fail\0" in data  # the name of an imported function
    if module is tokenizer and b"\0GLIBC_2" in data:  # the one that has calls whose length the compiler cannot see
        assert b"\0__snprintf_chk\0" in data or b"\0__memcpy_chk\0" in data


def test_no_extension_says_that_it_runs_without_the_gil() -> None:
    root = Path(__file__).resolve().parents[2]
    sources = [
        root / "setup.py",
        *(file for folder in ("_native", "tokenizer") for file in (root / folder).glob("*.p[yx]*")),
    ]
    declared = re.compile(r"freethreading_compatible[\"']?\s*[:=]\s*True|Py_MOD_GIL_NOT_USED")
    assert len(sources) > 10 and [file.name for file in sources if declared.search(file.read_text("utf-8"))] == []


def test_kernels_ask_for_each_instruction_that_they_are_compiled_for() -> None:
    """A processor with AVX2 and without BMI1, LZCNT or POPCNT ended the process."""
    core = Path(__file__).resolve().parents[2] / "tokenizer" / "core"
    asked = (core / "memory" / "isa.hpp").read_text(encoding="utf-8")
    parts = {
        "both": re.search(r"const bool bits = (.*?);", asked, re.S),
        "avx512": re.search(r"isa == Isa::avx512\)\s*return bits && (.*?);", asked, re.S),
        "avx2": re.search(r"isa == Isa::avx2\) return bits && (.*?);", asked, re.S),
    }
    names = {
        part: set(re.findall(r'supports\("(\w+)"|has_(lzcnt)', found[1])) for part, found in parts.items() if found
    }
    asks = {part: {a or b for a, b in found} for part, found in names.items()}
    compiled = [
        set(found.split(","))
        for file in core.rglob("*.cpp")
        for found in re.findall(r'#pragma GCC target\("([^"]+)"\)', file.read_text(encoding="utf-8"))
    ]
    assert len(compiled) >= 3
    for needs in compiled:
        assert needs <= asks["both"] | asks["avx512" if "avx512f" in needs else "avx2"]


@pytest.mark.skipif(not shutil.which("clang++"), reason="clang++ is not installed")
def test_clang_knows_the_instructions_that_are_asked_for() -> None:
    """Each compiler has its own list of names for ``__builtin_cpu_supports``; clang 14 lacks two of gcc's."""
    root = Path(__file__).resolve().parents[2]
    files = [file for name in ("_native", "tokenizer") for file in (root / name).rglob("*.[ch]pp")]
    asking = [str(file) for file in files if "__builtin_cpu_supports" in file.read_text(encoding="utf-8")]
    assert len(asking) >= 2
    folders = [f"-I{root}/_native/include", f"-I{root}/tokenizer/core"]
    command = ["clang++", "-std=c++20", "-fsyntax-only", "-xc++", *folders, *asking]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
