"""Protections of the compiler and the linker against memory faults, read from the built files; the flags of a build
with debug symbols."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
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
        pytest.skip("a sanitizer checks what these flags do")
    found = segments(data)
    assert RELRO in found
    tags = dict(struct.iter_unpack("<QQ", found[DYNAMIC]))
    assert tags.get(FLAGS, 0) & BIND_NOW
    assert b"\0__stack_chk_fail\0" in data  # the name of an imported function


def compile_flags(**environment: str) -> list[str]:
    """The flags that setup.py gives to every source."""
    pytest.importorskip("pybind11", reason="a requirement of the build")
    code = (
        "import runpy, setuptools\n"
        "setuptools.setup = lambda ext_modules, **_: print(*ext_modules[0].extra_compile_args)\n"
        "runpy.run_path('setup.py')"
    )
    root = Path(__file__).resolve().parents[2]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PRELUDE_")}
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout.split()


def test_a_build_has_debug_symbols_where_they_are_asked_for() -> None:
    assert "-g0" in compile_flags() and "-g" not in compile_flags()
    asked = compile_flags(PRELUDE_SYMBOLS="1")
    assert {"-g", "-fno-omit-frame-pointer"} <= set(asked) and "-g0" not in asked
