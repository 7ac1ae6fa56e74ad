"""httpx2 transports that answer in the process, without a socket: for typesafe-sdk and openai 3.

    TypeSafeClient(api_key="local", transport=Transport(engine), compression=False)
    openai.OpenAI(api_key="local", http_client=httpx2.Client(transport=Transport(engine)))

Served: POST …/systemone, POST …/decisions, GET …/models. The bodies and the statuses of errors are those of
``SystemOne``; an error that is not Prelude's own is raised in the client. pip install 'prelude-engine[transports]'.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx2

from prelude.errors import InvalidRequest, PreludeError, shown
from prelude.integrations.engines import system_one
from prelude.systemone import problem

MAX_BODY = 64 << 20


class _Routes:
    """The shared part of both transports; ``options`` are those of ``SystemOne``."""

    def __init__(self, engine: Any, **options: Any) -> None:
        self.one = system_one(engine, **options)

    def route(self, request: httpx2.Request) -> str:
        name = request.url.path.rstrip("/").rpartition("/")[2]
        wanted = {"systemone": "POST", "decisions": "POST", "models": "GET"}.get(name)
        return name if request.method == wanted else ""

    def begun(self, request: httpx2.Request) -> httpx2.Response | str:
        """The answer of a request without a body, or the route of one that has a body."""
        route = self.route(request)
        if not route:
            return self.unknown(request)
        return httpx2.Response(200, json=self.one.models(), request=request) if route == "models" else route

    def failed(self, request: httpx2.Request, error: PreludeError) -> httpx2.Response:
        status, body = problem(error)
        headers = {"retry-after": "1"} if status in (429, 503) else {}
        return httpx2.Response(status, json=body, headers=headers, request=request)

    def unknown(self, request: httpx2.Request) -> httpx2.Response:
        message = f"{request.method} {request.url.path}: no such route"
        detail = {"detail": {"error_type": "not_found_error", "message": message}}
        return httpx2.Response(404, json=detail, request=request)


class Transport(_Routes, httpx2.BaseTransport):
    """For synchronous clients, over an engine of either kind."""

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        route = self.begun(request)
        if not isinstance(route, str):
            return route
        try:
            body = read_body(request.read(), request.headers)
            answered = self.one.answer(body) if route == "systemone" else self.one.decisions(body)
        except PreludeError as error:
            return self.failed(request, error)
        return httpx2.Response(200, json=answered, request=request)


class AsyncTransport(_Routes, httpx2.AsyncBaseTransport):
    """The same for asynchronous clients."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        route = self.begun(request)
        if not isinstance(route, str):
            return route
        try:
            body = read_body(await request.aread(), request.headers)
            answered = await (self.one.aanswer(body) if route == "systemone" else self.one.adecisions(body))
        except PreludeError as error:
            return self.failed(request, error)
        return httpx2.Response(200, json=answered, request=request)


def read_body(data: bytes, headers: Mapping[str, str]) -> Any:
    """The JSON of a body, unpacked where the client has packed it with zstd."""
    if headers.get("content-encoding") == "zstd":
        import zstandard

        try:
            data = zstandard.ZstdDecompressor().decompress(data, max_output_size=MAX_BODY)
        except zstandard.ZstdError as error:
            raise InvalidRequest(f"not zstd: {shown(str(error))}", field="body") from error
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"not JSON: {shown(str(error))}", field="body") from error
