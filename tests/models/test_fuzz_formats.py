"""The fuzzer of small files, for a few seconds; for longer: python -m tests.fuzz_formats --minutes 60."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from prelude.errors import ModelError
from prelude.models.gguf.reader import GgufFile
from prelude.models.safetensors_file import SafetensorsFile
from prelude.values.strict_json import parse
from tests.models.test_gguf_header import ARRAY, TEXT, array, entry, header, tensor, text


@pytest.mark.long
def test_changed_files_are_read_or_refused_by_a_prelude_error(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="the package gguf, of the extra test, is not installed")
    command = [sys.executable, "-m", "tests.fuzz_formats", "--files", "5", "--seed", "36", "--folder", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    assert ran.returncode == 0, ran.stdout + ran.stderr[-3000:]


COUNT = 1 << 14
VALUES = {0: ("B", 200), 1: ("b", -100), 2: ("H", 60_000), 6: ("f", 0.3), 7: ("B", 1), 10: ("Q", 1 << 63)}
"""Of GGUF's number types: values that Python has no object of already."""
GGUF = {f"numbers of type {k}": (k, struct.pack(f"<{v[0]}", v[1]) * COUNT) for k, v in VALUES.items()}
GGUF |= {"empty texts": (TEXT, bytes(8) * COUNT), "texts": (TEXT, text("ab") * COUNT)}


@pytest.mark.parametrize("name", [*GGUF, "tensors"])
def test_a_header_takes_a_multiple_of_its_file(name: str, tmp_path: Path) -> None:
    if name == "tensors":
        made = header([], [tensor(f"{at:x}", (1,), offset=32 * at) for at in range(5_000)], bytes(32 * 5_000))
    else:
        kind, values = GGUF[name]
        made = header([entry("k", ARRAY, array(kind, COUNT, values))], [])
    path = tmp_path / "m.gguf"
    path.write_bytes(made)
    assert bytes_of(lambda: GgufFile(path).close()) < 48 * len(made)


JSON = {
    "objects": b"[" + b"{}," * 50_000 + b"1]",
    "keys": b"{" + b",".join(b'"%x":{}' % at for at in range(50_000)) + b"}",
    "numbers": b"[" + b"0.1," * 50_000 + b"1]",
    "text": '["\U0001f600{}"]'.format("a" * 500_000).encode(),
    "more values than are read": b"[" + b"1," * (1 << 20) + b"1]",
    "depth": b"[" * 500_000,
}


@pytest.mark.parametrize("name", JSON)
def test_json_takes_a_multiple_of_its_file(name: str) -> None:
    def read() -> None:
        try:
            parse(JSON[name], "file.json", ModelError)
        except ModelError as refused:
            assert name in ("more values than are read", "depth") and "file.json" in str(refused)

    assert bytes_of(read) < 48 * len(JSON[name])


def test_a_header_of_safetensors_takes_a_multiple_of_its_file(tmp_path: Path) -> None:
    told = {f"{at:x}": {"dtype": "U8", "shape": [1], "data_offsets": [at, at + 1]} for at in range(9_000)}
    text = json.dumps(told, separators=(",", ":")).encode()
    path = tmp_path / "m.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(9_000))
    assert bytes_of(lambda: SafetensorsFile(path).close()) < 48 * path.stat().st_size


def bytes_of(read: object) -> int:
    """The most bytes that Python held at once."""
    assert callable(read)
    tracemalloc.start()
    try:
        read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
