"""The bytes of a request's body as JSON values, and of an answer's: one reading for every entrance of requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterable
from typing import Any

from prelude.errors import starting_thread
from prelude.systemone.errors import SystemOneError, fault
from prelude.values.strict_json import loads

MAX_BODY = 16 << 20
"""Bytes of a body, after decompressing."""
SMALL_BODY = 1 << 16
_WINDOW = 1 << 23  # bytes that a zstd frame may ask for, as RFC 9659 has it
_CHUNK = 1 << 16


def read_body(data: bytes, encoding: str | None = None, *, max_bytes: int = MAX_BODY) -> Any:
    """Return the JSON value of a body. ``encoding``: its ``Content-Encoding``, "zstd" or none. ``max_bytes``: after
    decompressing, which ends there. ``SystemOneError`` has the status: 413, 415 or 422."""
    name = (encoding or "identity").strip().lower()
    if name == "zstd":
        data = _unzstd(data, max_bytes)
    elif name != "identity":
        raise _refused(415, "unsupported_encoding", f"content-encoding {name[:40]!r}; use zstd or none")
    if len(data) > max_bytes:
        raise _too_large(max_bytes)
    try:
        return loads(data)
    except ValueError as wrong:
        raise SystemOneError([fault((), f"JSON decode error: {wrong}", "json_invalid")]) from wrong


async def aread_body(
    chunks: AsyncIterable[bytes], encoding: str | None = None, *, max_bytes: int = MAX_BODY, seconds: float = 10.0
) -> Any:
    """Run ``read_body`` for a body in parts: refused as soon as it is longer than ``max_bytes``, or takes
    longer than ``seconds`` (408). A large or compressed one is parsed in a thread, so that the event loop goes on."""
    data = bytearray()

    async def received() -> None:
        async for chunk in chunks:
            data.extend(chunk)
            if len(data) > max_bytes:
                raise _too_large(max_bytes)

    try:
        await asyncio.wait_for(received(), seconds)
    except asyncio.TimeoutError:
        raise _refused(408, "timeout_error", f"the body did not come within {seconds:g} s") from None
    if len(data) <= SMALL_BODY and not encoding:
        return read_body(bytes(data), max_bytes=max_bytes)
    with starting_thread():
        return await asyncio.to_thread(read_body, bytes(data), encoding, max_bytes=max_bytes)


def write_body(body: Any) -> bytes:
    """Return the JSON of an answer. Half a character in a name of the request stays the escape that it came as."""
    return json.dumps(body, ensure_ascii=False, allow_nan=False).encode("utf-8", "backslashreplace")


def _unzstd(data: bytes, max_bytes: int) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise _refused(415, "unsupported_encoding", "zstd needs zstandard: pip install zstandard") from None
    plain = bytearray()
    try:
        decoder = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
        with decoder.stream_reader(data) as reader:  # of all frames
            while len(plain) <= max_bytes and (chunk := reader.read(_CHUNK)):
                plain += chunk
    except zstandard.ZstdError as wrong:
        raise SystemOneError([fault((), f"the body is not zstd: {wrong}", "encoding_invalid")]) from wrong
    return bytes(plain)


def _too_large(max_bytes: int) -> SystemOneError:
    return _refused(413, "request_too_large", f"the body has more than {max_bytes} bytes")


def _refused(status: int, kind: str, message: str) -> SystemOneError:
    return SystemOneError([fault((), message, kind)], status=status, error_type=kind)
