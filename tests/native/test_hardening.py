"""What the compiler and the linker put into the extensions against memory faults, read from the built files."""

from __future__ import annotations

import struct
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
