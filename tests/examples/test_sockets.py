"""The example services behind a real socket. Hostile bytes get a 4xx or a closed connection, and calls go on."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.examples.conftest import service
from tests.patience import PATIENCE

pytest.importorskip("fastapi")
pytest.importorskip("httpx")
pytestmark = pytest.mark.skipif(find_spec("uvicorn") is None, reason="uvicorn is not installed")

ROUTES: dict[str, dict[str, Any]] = {
    "systemone_service /v1/systemone": {"state": "x", "questions": {"a": {"type": "noul", "instructions": "?"}}},
    "systemone_service /v1/decisions": {"input": "x", "questions": [{"type": "predicate", "instructions": "?"}]},
    "fastapi_service /v1/decide": {"state": "x", "questions": [{"question": "?"}]},
    "fastapi_service /v1/generate": {"prompt": "x", "max_tokens": 2},
}


def post(path: str, body: bytes, *headers: str, length: int | None = None) -> bytes:
    length = len(body) if length is None else length
    return (
        "\r\n".join([f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {length}", *headers, "", ""]).encode()
        + body
    )


def chunked(path: str, *chunks: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)


def hostile(path: str, good: bytes) -> dict[str, bytes]:
    """Requests that each get a 4xx."""

    def with_text(text: bytes) -> bytes:
        return post(path, good.replace(b'"x"', text, 1))

    first = good.partition(b":")[0]
    many = b",".join(b'"%d": 0' % at for at in range(10_000))
    return {
        "never closed": post(path, b"[" * 60_000), "deep": with_text(b"[" * 5000 + b"]" * 5000),
        "deep objects": with_text(b'{"a":' * 200 + b"1" + b"}" * 200), "long integer": with_text(b"1" * 5000),
        "1e999": with_text(b"1e999"), "NaN": with_text(b"NaN"),
        "equal keys": post(path, first + b': "y", ' + good[1:]),
        "equal keys among many": post(path, b"{" + many + b', "0": 0}'),
        "a long key": post(path, b'{"' + b"k" * 100_000 + b'": 1}'), "half a character": with_text(b'"\\ud800"'),
        "no UTF-8": post(path, b'{"a": "\xff"}'), "nothing": post(path, b""), "null": post(path, b"null"),
        "too large": post(path, b" " * (1 << 19)), "gzip": post(path, good, "Content-Encoding: gzip"),
        "no zstd": post(path, good, "Content-Encoding: zstd"), "a length below zero": post(path, good, length=-1),
        "a chunk of no size": chunked(path)[:] + b"zz\r\n",
        "a GET with a body": post(path, good).replace(b"POST", b"GET", 1),
        "no HTTP": b"\x16\x03\x01\x02\x00\x01" * 20,
    }  # fmt: skip


def cut(path: str, good: bytes) -> dict[str, bytes]:
    """Requests whose client leaves before their end."""
    return {
        "header": post(path, good)[:20],
        "body": post(path, good, length=len(good) + 1),
        "chunks": chunked(path, good[:7]),
        "chunk": chunked(path, good)[:-9],
    }


def sent(address: str, data: bytes, leave: bool = False) -> bytes:
    """The answer, up to its end. ``leave``: the client's side is closed behind ``data``."""
    host, _, port = address.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as made:
        found = b""
        try:
            made.sendall(data)
            if leave:
                made.shutdown(socket.SHUT_WR)
            while b"\r\n\r\n" not in found and (part := made.recv(1 << 16)):
                found += part
        except ConnectionError:  # the rest of a refused body is not read
            pass
        return found


@pytest.fixture(scope="module", params=["systemone_service", "fastapi_service"])
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str, Path]]:
    log = tmp_path_factory.mktemp("service") / "log"
    with open(log, "wb") as file, service(request.param, log=file) as address:
        yield request.param, address, log


def test_hostile_bytes_are_refused_and_the_service_goes_on(running: tuple[str, str, Path]) -> None:
    name, address, log = running
    for route, body in ROUTES.items():
        path, good = route.split()[1], json.dumps(body).encode()
        if not route.startswith(name):
            continue
        for what, data in hostile(path, good).items():
            answer = sent(address, data)
            assert answer.startswith(b"HTTP/1.1 4") or (what == "too large" and not answer), (
                route,
                what,
                answer[:200],
            )
        for what, data in cut(path, good).items():
            assert not sent(address, data, leave=True).startswith(b"HTTP/1.1 2"), (route, what)
        whole = (post(path, good), chunked(path, good[:7], good[7:], b""))
        assert [sent(address, data)[:12] for data in whole] == [b"HTTP/1.1 200"] * 2, route
    assert "Traceback" not in log.read_text(encoding="utf-8")
