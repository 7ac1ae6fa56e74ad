"""Headers of GGUF files that lie: counts, lengths, offsets, types and texts are refused with the file's name, and no
header makes the reader take memory or time that the file does not pay for."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prelude.errors import ModelError
from prelude.models.gguf import reader
from prelude.models.gguf.directory import GgufWeights
from prelude.models.gguf.reader import GgufFile
from prelude.models.names import resolve

U8, I32, F32, BOOL, TEXT, ARRAY, U64 = 0, 5, 6, 7, 8, 9, 10


def text(value: str | bytes) -> bytes:
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def entry(key: str | bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def array(kind: int, count: int, values: bytes) -> bytes:
    return struct.pack("<IQ", kind, count) + values


def tensor(
    name: str = "t", sizes: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0, rank: int | None = None
) -> bytes:
    dimensions = struct.pack("<I", len(sizes) if rank is None else rank)
    return text(name) + dimensions + struct.pack(f"<{len(sizes)}Q", *sizes) + struct.pack("<IQ", kind, offset)


def header(
    metadata: list[bytes],
    tensors: list[bytes],
    data: bytes = bytes(256),
    counts: tuple[int, int] | None = None,
    magic: bytes = b"GGUF",
    version: int = 3,
) -> bytes:
    told = (len(tensors), len(metadata)) if counts is None else counts
    front = magic + struct.pack("<IQQ", version, *told) + b"".join(metadata) + b"".join(tensors)
    return front + bytes(-len(front) % 32) + data


def written(path: Path, content: bytes) -> Path:
    (path / "m.gguf").write_bytes(content)
    return path / "m.gguf"


MANY = 1 << 40
REFUSED: dict[str, tuple[bytes, str]] = {
    "an empty file": (b"", "does not begin with GGUF"),
    "three bytes": (b"GGU", "does not begin with GGUF"),
    "another magic": (header([], [], magic=b"GGML"), "does not begin with GGUF"),
    "a pointer of git-lfs": (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    "version 1": (header([], [], version=1), "GGUF version 1"),
    "the other byte order": (header([], [], version=3 << 24), "GGUF version 50331648"),
    "many tensors": (header([], [], counts=(MANY, 0)), "tensors, the limit is 100,000"),
    "many metadata": (header([], [], counts=(0, MANY)), "metadata, the limit is 10,000"),
    "more tensors than there are": (header([], [], b"", counts=(9, 0)), "truncated"),
    "a long key": (
        header([struct.pack("<Q", MANY)], []),
        "a metadata key has 1,099,511,627,776 bytes, the limit is 256",
    ),
    "a key that is not UTF-8": (header([entry(b"\xff", U8, b"\1")], []), "not valid UTF-8"),
    "a key twice": (header([entry("k", U8, b"\1")] * 2, []), "there twice"),
    "an unknown type": (header([entry("k", 99, b"\1")], []), "unknown type 99"),
    "a boolean of 2": (header([entry("k", BOOL, b"\2")], []), "other than 0 and 1"),
    "a long text": (header([entry("k", TEXT, struct.pack("<Q", MANY))], []), "776 bytes, the limit is 8,388,608"),
    "a text beyond the file": (header([entry("k", TEXT, struct.pack("<Q", 9999))], [], b""), "truncated"),
    "a text that is not UTF-8": (header([entry("k", TEXT, text(b"\xff"))], []), "not valid UTF-8"),
    "a long array": (
        header([entry("k", ARRAY, array(U8, MANY, b""))], []),
        "776 values, the limits are 4,194,304 and 16,777,216",
    ),
    "an array beyond the file": (header([entry("k", ARRAY, array(U64, 5000, b""))], []), "truncated"),
    "a long part": (header([entry("k", ARRAY, array(TEXT, 1, text(bytes((8 << 20) + 1))))], []), "over 8,388,608"),
    "an array of texts beyond the file": (
        header([entry("k", ARRAY, array(TEXT, 5000, b""))], []),
        "not end in the file",
    ),
    "a text of an array beyond the file": (
        header([entry("k", ARRAY, array(TEXT, 1, struct.pack("<Q", 8)))], [], b""),  # seven bytes are left
        "text 0 does not end in the file",
    ),
    "a length of an array beyond the file": (
        header([entry("k", ARRAY, array(TEXT, 1, bytes(7)))], [], b"")[:-8],
        "text 0 does not end in the file",
    ),
    "text of an array that is not UTF-8": (
        header([entry("k", ARRAY, array(TEXT, 1, text(b"\xff")))], []),
        "not valid",
    ),
    "an array of arrays": (header([entry("k", ARRAY, array(ARRAY, 1, array(U8, 1, b"\1")))], []), "array of arrays"),
    "an array of an unknown type": (header([entry("k", ARRAY, array(77, 1, b"\1"))], []), "unknown type 77"),
    "many arrays": (
        header([entry(f"k{i}", ARRAY, array(U8, 4 << 20, bytes(4 << 20))) for i in range(5)], []),
        "for all arrays together",
    ),
    "an alignment of 24": (header([entry("general.alignment", I32, struct.pack("<i", 24))], []), "a power of two"),
    "a negative alignment": (
        header([entry("general.alignment", I32, struct.pack("<i", -32))], []),
        "from 8 to 1,048,576",
    ),
    "an alignment of text": (header([entry("general.alignment", TEXT, text("32"))], []), "a power of two"),
    "a long name": (header([], [struct.pack("<Q", MANY)]), "a tensor has 1,099,511,627,776 bytes, the limit is 256"),
    "no dimensions": (header([], [tensor(sizes=())]), "0 dimensions"),
    "many dimensions": (header([], [tensor(rank=1 << 31)]), "dimensions, from 1 to 4 are"),
    "a size of zero": (header([], [tensor(sizes=(32, 0))]), "the sizes"),
    "sizes that overflow": (header([], [tensor(sizes=(1 << 32, 1 << 32))]), "from 1 to 1,152,921,504,606,846,976"),
    "a type that is unknown": (header([], [tensor(kind=1000)]), "type 1000; supported"),
    "rows of half a block": (header([], [tensor(sizes=(16, 2), kind=8)]), "no whole blocks of 32 of Q8_0"),
    "an offset that is not aligned": (header([], [tensor(offset=4)]), "no multiple of general.alignment"),
    "an offset beyond the file": (header([], [tensor(offset=1 << 63)]), "truncated, or malformed"),
    "a tensor that ends beyond the file": (header([], [tensor(sizes=(1 << 40,))]), "truncated, or malformed"),
    "a tensor twice": (header([], [tensor(), tensor(offset=128)]), "is there twice"),
    "tensors that overlap": (header([], [tensor("a"), tensor("b", offset=96)]), "overlaps tensor 'a'"),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_lie_is_refused(name: str, tmp_path: Path) -> None:
    content, said = REFUSED[name]
    path = written(tmp_path, content)
    with pytest.raises(ModelError) as caught:
        GgufFile(path)
    assert said in str(caught.value) and str(path) in str(caught.value)


LIMITS: dict[str, tuple[int, Callable[[int], bytes]]] = {
    "MAX_TENSORS": (2, lambda n: header([], [tensor(f"t{i}", offset=128 * i) for i in range(n)], bytes(512))),
    "MAX_METADATA": (2, lambda n: header([entry(f"k{i}", U8, b"\1") for i in range(n)], [])),
    "MAX_KEY_BYTES": (9, lambda n: header([entry("k" * n, U8, b"\1")], [])),
    "MAX_NAME_BYTES": (9, lambda n: header([], [tensor("t" * n)])),
    "MAX_TEXT_BYTES": (9, lambda n: header([entry("k", TEXT, text("t" * n))], [])),
    "MAX_TEXT_BYTES in an array": (9, lambda n: header([entry("k", ARRAY, array(TEXT, 1, text("t" * n)))], [])),
    "MAX_ARRAY": (9, lambda n: header([entry("k", ARRAY, array(U8, n, bytes(n)))], [])),
    "MAX_ARRAY_VALUES": (9, lambda n: header([entry(f"k{m}", 9, array(U8, m, bytes(m))) for m in (4, n - 4)], [])),
    "MAX_DIMENSIONS": (3, lambda n: header([], [tensor(sizes=(2,) * n)])),
    "MAX_ELEMENTS": (30, lambda n: header([], [tensor(sizes=(n,))])),
    "MAX_ALIGNMENT": (8, lambda n: header([entry("general.alignment", I32, struct.pack("<i", 8 * (n - 7)))], [])),
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_is_the_last_that_is_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit, made = LIMITS[name]
    monkeypatch.setattr(reader, name.split()[0], limit)
    GgufFile(written(tmp_path, made(limit))).close()
    with pytest.raises(ModelError):
        GgufFile(written(tmp_path, made(limit + 1)))


@pytest.mark.parametrize("last", [entry("k", U8, b"\1"), entry("k", ARRAY, array(TEXT, 2, text("") * 2))])
def test_a_header_may_end_with_its_file(last: bytes, tmp_path: Path) -> None:
    with GgufFile(written(tmp_path, b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + last)) as file:
        assert file.metadata in ({"k": 1}, {"k": ["", ""]})


NUMBERS = dict(zip((0, 1, 2, 3, 4, 5, 6, 10, 11, 12), "BbHhIifQqd"))  # as struct names them


def good() -> bytes:
    values = [
        entry("general.architecture", TEXT, text("llama")),
        entry("u", U64, struct.pack("<Q", 1 << 63)),
        entry("f", F32, struct.pack("<f", 0.5)),
        entry("b", BOOL, b"\1"),
        entry("numbers", ARRAY, array(I32, 3, struct.pack("<3i", -1, 0, 1))),
        entry("texts", ARRAY, array(TEXT, 2, text("a") + text("\u2581b"))),
        entry("switches", ARRAY, array(BOOL, 2, b"\0\1")),
        *[entry(f"one {kind}", kind, struct.pack(f"<{letter}", 77)) for kind, letter in NUMBERS.items()],
        *[
            entry(f"two {kind}", ARRAY, array(kind, 2, struct.pack(f"<2{letter}", 7, 8)))
            for kind, letter in NUMBERS.items()
        ],
    ]
    data = np.arange(65, dtype=np.float32).tobytes()
    tensors = [
        tensor("a.weight", (32,), offset=128),
        tensor("b.weight", (8, 4)),
        tensor("c.weight", (1,), offset=256),
    ]
    return header(values, tensors, data)


@pytest.mark.parametrize("version", [2, 3])
def test_the_fields_of_a_good_header(version: int, tmp_path: Path) -> None:
    content = bytearray(good())
    content[4] = version
    with GgufFile(written(tmp_path, bytes(content))) as file:
        told: dict[str, Any] = {"general.architecture": "llama", "u": 1 << 63, "f": 0.5, "b": True}
        told |= {"numbers": [-1, 0, 1], "texts": ["a", "\u2581b"], "switches": [False, True]}
        told |= {f"one {kind}": 77 for kind in NUMBERS} | {f"two {kind}": [7, 8] for kind in NUMBERS}
        assert file.metadata == told
        assert file.tensor("b.weight").tolist() == np.arange(32.0).reshape(4, 8).tolist()
        assert [file.tensor(name)[0] for name in ("a.weight", "c.weight")] == [32.0, 64.0]


def test_headers_at_random(tmp_path: Path) -> None:
    """Bytes turned, cut and doubled: a ``ModelError`` or a file whose tensors lie within it."""
    source, generator = good(), random.Random(7)
    for _ in range(400):
        content = bytearray(source)
        for _ in range(generator.randint(1, 4)):
            at = generator.randrange(len(content))
            kind = generator.randrange(3)
            if kind == 0:
                content[at] = generator.choice((0, 1, 127, 128, 255, generator.randrange(256)))
            elif kind == 1:
                del content[at : at + generator.randint(1, 40)]
            else:
                content[at:at] = content[at : at + generator.randint(1, 40)]
            if not content:
                content = bytearray(source)
        path = written(tmp_path, bytes(content))
        try:
            with GgufFile(path) as file:
                for name in file:
                    info = file.tensors[name]
                    assert 0 < info.begin < info.end <= len(content)
                    assert file.tensor(name).size > 0
            GgufWeights(path).close()
        except ModelError as refused:
            assert str(path) in str(refused)


def test_a_file_is_found_by_its_ending(tmp_path: Path) -> None:
    path = written(tmp_path, good())
    assert resolve(path) == path and resolve(str(path)) == path
    other = tmp_path / "m.bin"
    other.write_bytes(good())
    with pytest.raises(ModelError, match=r"or a .gguf file"):
        resolve(other)
