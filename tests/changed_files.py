"""Changes of small files that keep their structure, by kind of file: ``CHANGES[kind](random, good file)``."""

from __future__ import annotations

import io
import json
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

Change = Callable[[random.Random, bytes], bytes]
HUGE = 10**400
NUMBERS: list[Any] = [0, -1, 1, 2, 7, -0.0, 0.5, -2.5, 1e308, -1e308, 1e-320, 1 << 31, 1 << 40, 1 << 62, 1 << 63]
NUMBERS += [(1 << 64) - 1, -(1 << 63), HUGE, -HUGE, float("inf"), float("nan")]
OTHERS: list[Any] = [
    None, True, False, "", "x", "\ud800", "\0", "..", "/etc/passwd", "é" * 3000, [], {}, [None], [[]],
]  # fmt: skip
OTHERS += [{"": None}, {"a": [1]}, ["x", "x"], [0.5, "x"], [1, 2, 3], "9" * 401, "1e999"]


# ------------------------------------------------------------------ JSON
def any_value(rng: random.Random) -> Any:
    if rng.random() < 0.1:
        return nested(rng.choice([3, 100, 400]), rng.random() < 0.5)
    return rng.choice(NUMBERS) if rng.random() < 0.5 else rng.choice(OTHERS)


def nested(depth: int, objects: bool) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value} if objects else [value]
    return value


def changed_value(rng: random.Random, value: Any) -> Any:
    """``value`` with one change somewhere in it. A text that holds JSON is changed in it."""
    if isinstance(value, str) and value[:1] in ("{", "[") and rng.random() < 0.9:
        try:
            return json.dumps(changed_value(rng, json.loads(value)))
        except ValueError:
            return any_value(rng)
    if isinstance(value, (dict, list)) and value and rng.random() < 0.85:
        made: Any = dict(value) if isinstance(value, dict) else list(value)
        at = rng.choice(list(made)) if isinstance(made, dict) else rng.randrange(len(made))
        how = rng.random()
        if how < 0.7:
            made[at] = changed_value(rng, made[at])
        elif how < 0.8:
            del made[at]
        elif isinstance(made, list):
            made.insert(at, made[at] if how < 0.9 else any_value(rng))
        else:
            made[rng.choice(["", "x", "__proto__", str(at).upper()])] = any_value(rng) if how < 0.9 else made[at]
        return made
    if isinstance(value, (int, float)) and not isinstance(value, bool) and rng.random() < 0.3:
        return rng.choice([-value, value + 1, value - 1, value * 1000, 1.0, str(value)])
    if isinstance(value, str) and rng.random() < 0.3:
        return rng.choice([value[:-1], value * 2, value.upper(), [value], {value: value}])
    return any_value(rng)


def changed_json(rng: random.Random, data: bytes) -> bytes:
    if rng.random() < 0.1:
        return changed_text(rng, data)
    value = json.loads(data)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        value = changed_value(rng, value)
    return json.dumps(value).encode("utf-8")


def changed_text(rng: random.Random, data: bytes) -> bytes:
    """Bytes turned, cut or doubled; a key that is there twice; a byte order mark; deep nesting."""
    how, at = rng.randrange(7), rng.randrange(len(data) + 1)
    if how == 0:
        return data[:at]
    if how == 1:
        return data[:at] + data[at : at + rng.choice([1, 8, 60])] * 2 + data[at:]
    if how == 2:
        return b"\xef\xbb\xbf" + data
    if how == 3:
        return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    if how == 4:
        return rng.choice([b"[", b'{"a":']) * 100_000
    if how == 5:
        return rng.choice([b"", b"\0" * 64, b"null", b"[" + b"{}," * 300_000 + b"1]", b'"' + b"9" * 5000 + b'"'])
    return data.replace(b"{", b"{" + (data[data.find(b'"') : data.find(b",") + 1] or b'"a":1,'), 1)


def changed_lines(rng: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    at = rng.randrange(len(lines) - 1)
    lines[at] = changed_json(rng, lines[at])
    return b"\n".join(lines)


def changed_journal(rng: random.Random, data: bytes) -> bytes:
    """Rows keep the right sum of their bytes in two of three cases."""
    lines = data.split(b"\n")
    at = rng.randrange(len(lines) - 1)
    if at == 0:
        lines[0] = changed_json(rng, lines[0])
    elif rng.random() < 0.3:
        lines[at] = changed_text(rng, lines[at])
    else:
        key, text = lines[at][9:41], lines[at][42:]
        rest = rng.choice([key, key, rng.randbytes(32).replace(b"\n", b"")]) + b" " + changed_json(rng, text)
        rest = rest.replace(b"\n", b" ")
        lines[at] = b"%08x %b" % (zlib.crc32(rest), rest)
    return b"\n".join(lines)


def changed_header(rng: random.Random, data: bytes) -> bytes:
    """A length of 8 bytes (4 in a message of ranks), JSON, and the rest."""
    width = 8 if data[8:9] == b"{" else 4
    length = int.from_bytes(data[:width], "little")
    text, rest = data[width : width + length], data[width + length :]
    how = rng.random()
    if how < 0.15:
        number = rng.choice([0, 1, 8, length - 1, length + 1, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 64) - 1])
        return (number % (1 << 8 * width)).to_bytes(width, "little") + text + rest
    if how < 0.25:
        return data[: rng.randrange(len(data))]
    made = changed_json(rng, text)
    return len(made).to_bytes(width, "little") + made + (rest if how < 0.9 else rest * 2)


# ------------------------------------------------------------------ archives
LITERALS = [
    "()", "[]", "None", "1", "'<f4'", "'O'", "'>f4'", "'<U9'", "('<f4', (9,))", "[('a', '<f4')]", "'x'", "b'a'",
]  # fmt: skip
SHAPES = ["()", "(1,)", "(-1,)", f"({HUGE},)", f"({1 << 40}, {1 << 40})", "(1.5,)", "('a',)", "None", "[8]", "8"]


def changed_array(rng: random.Random, data: bytes) -> bytes:
    """The header of an ``.npy`` file, a literal of Python."""
    length = int.from_bytes(data[8:10], "little")
    text, rest = data[10 : 10 + length].decode("latin-1"), data[10 + length :]
    how = rng.randrange(6)
    if how == 0:
        return changed_text(rng, data)
    if how == 1:
        return data[:6] + bytes([rng.randrange(256), rng.randrange(4)]) + data[8:]
    parts = {"descr": rng.choice(LITERALS), "shape": rng.choice(SHAPES), "fortran_order": rng.choice(LITERALS)}
    key = rng.choice(list(parts))
    found = f"'{key}': "
    at = text.find(found) + len(found)
    end = text.find("'shape'" if key == "fortran_order" else "'fortran_order'" if key == "descr" else "}", at)
    text = text[:at] + parts[key] + ", " + text[end:]
    if how == 2:
        text = rng.choice(["{", "(" * 9000, "{}", "[" * 50 + "]" * 50, "{'descr': 1}", "-" * 5000 + "1", "1" * 5000])
    return data[:8] + len(text).to_bytes(2, "little") + text.encode("latin-1", "replace") + rest


def changed_archive(rng: random.Random, data: bytes) -> bytes:
    if rng.random() < 0.15:
        return changed_text(rng, data)
    entries = {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for name in archive.namelist():
            entries[name] = archive.read(name)
    chosen = rng.choice(list(entries))
    if rng.random() < 0.08:
        del entries[chosen]
    elif chosen.endswith(".npy"):
        entries[chosen] = changed_array(rng, entries[chosen])
    elif chosen.endswith(".npz"):
        entries[chosen] = changed_archive(rng, entries[chosen])
    else:
        entries[chosen] = changed_json(rng, entries[chosen])
    out = io.BytesIO()
    method = rng.choice([zipfile.ZIP_DEFLATED] * 3 + [zipfile.ZIP_STORED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    found = bytearray(out.getvalue())
    if rng.random() < 0.15:  # a number of the directory
        at = found.rfind(b"PK\1\2") + rng.randrange(4, 46)
        found[at : at + 4] = rng.choice([0, (1 << 32) - 1, 1 << 31, 99]).to_bytes(4, "little")
    return bytes(found)


# ------------------------------------------------------------------ GGUF
_WIDTHS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9


class Gguf:
    """The parts of a file: bytes of each metadata entry and of each tensor's description."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 24
        tensors, entries = struct.unpack("<QQ", data[8:24])
        self.entries = [self._part(self._entry) for _ in range(entries)]
        self.tensors = [self._part(self._tensor) for _ in range(tensors)]
        self.values = data[-(-self.at // 32) * 32 :]

    def _part(self, skip: Callable[[], None]) -> bytes:
        begin = self.at
        skip()
        return self.data[begin : self.at]

    def _number(self, letter: str) -> int:
        self.at += struct.calcsize(letter)
        return int(struct.unpack_from(f"<{letter}", self.data, self.at - struct.calcsize(letter))[0])

    def _text(self) -> None:
        length = self._number("Q")
        self.at += length

    def _entry(self) -> None:
        self._text()
        self._value(self._number("I"))

    def _value(self, kind: int) -> None:
        if kind == _TEXT:
            self._text()
        elif kind == _ARRAY:
            inner, count = self._number("I"), self._number("Q")
            for _ in range(count):
                self._value(inner)
        else:
            self.at += struct.calcsize(_WIDTHS[kind])

    def _tensor(self) -> None:
        self._text()
        dimensions = self._number("I")
        self.at += 8 * dimensions + 12


def gguf_value(rng: random.Random) -> bytes:
    """A type and a value of it, mostly."""
    kind = rng.choice([*_WIDTHS, _TEXT, _ARRAY, 99])
    if kind == _TEXT:
        text = rng.choice([b"", b"x", b"\xff", "\u2581".encode() * 900, b"llama", b"yarn", b"\0"])
        return struct.pack("<IQ", kind, len(text)) + text
    if kind == _ARRAY:
        inner, count = (
            rng.choice([*_WIDTHS, _TEXT, _ARRAY]),
            rng.choice([0, 1, 4000, 1 << 22, 1 << 40, (1 << 64) - 1]),
        )
        return struct.pack("<IIQ", kind, inner, count) + bytes(8 * min(count, 4000))
    letter = _WIDTHS.get(kind, "Q")
    if letter in "fd":
        most = 3e38 if letter == "f" else 1e308
        number: Any = rng.choice([0.0, -1.0, 1e-30, most, -most, float("inf"), float("nan"), 0.5, 7.0])
    else:
        low, high = (0, (1 << 8 * struct.calcsize(letter)) - 1)
        if letter.islower():
            low, high = -(high // 2) - 1, high // 2
        number = rng.choice([low, high, 0, 1, 2, 7, high // 2])
    return struct.pack("<I", kind) + struct.pack(f"<{letter}", number)


def changed_gguf(rng: random.Random, data: bytes) -> bytes:
    if rng.random() < 0.1:
        at = rng.randrange(len(data))
        return rng.choice([data[:at], data[:at] + data[at : at + 64] + data[at:], data[:40] + data[at:]])
    file = Gguf(data)
    counts = [len(file.tensors), len(file.entries)]
    for _ in range(rng.choice([1, 1, 2, 4])):
        if rng.random() < 0.7:
            change_entry(rng, file.entries)
        else:
            change_tensor(rng, file.tensors)
    told = [len(file.tensors), len(file.entries)] if rng.random() < 0.95 else counts
    if rng.random() < 0.05:
        told[rng.randrange(2)] = rng.choice([0, 1 << 31, 1 << 62, (1 << 64) - 1])
    front = data[:8] + struct.pack("<QQ", *told) + b"".join(file.entries) + b"".join(file.tensors)
    return front + bytes(-len(front) % 32) + file.values


def change_entry(rng: random.Random, entries: list[bytes]) -> None:
    at = rng.randrange(len(entries))
    length = int.from_bytes(entries[at][:8], "little")
    key, how = entries[at][: 8 + length], rng.random()
    if how < 0.6:
        entries[at] = key + gguf_value(rng)
    else:
        change_part(rng, entries, at, how - 0.6, 0.1)


def change_tensor(rng: random.Random, tensors: list[bytes]) -> None:
    at, how = rng.randrange(len(tensors)), rng.random()
    change_part(rng, tensors, at, how, 0.15)


def change_part(rng: random.Random, parts: list[bytes], at: int, how: float, share: float) -> None:
    """A part is left out, stands twice, or has another number: ``how`` below ``share``, twice that, or above."""
    if how < share:
        del parts[at]
    elif how < 2 * share:
        parts.insert(at, parts[at])
    else:
        parts[at] = with_number(rng, parts[at])


def with_number(rng: random.Random, part: bytes) -> bytes:
    """Four or eight of its bytes are another number."""
    size = rng.choice([1, 4, 8])
    at = rng.randrange(max(1, len(part) - size))
    number = rng.choice([0, 1, 2, 7, 31, 33, 1 << 20, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 64) - 1])
    return part[:at] + (number % (1 << 8 * size)).to_bytes(size, "little") + part[at + size :]


CHANGES: dict[str, Change] = {
    "json": changed_json, "lines": changed_lines, "journal": changed_journal, "length-and-json": changed_header,
    "archive": changed_archive, "gguf": changed_gguf,
}  # fmt: skip
