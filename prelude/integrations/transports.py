"""httpx2 transports that answer in the process, without a socket: for typesafe-sdk and openai 3.

    TypeSafeClient(api_key="local", transport=Transport(engine), compression=False)
    openai.OpenAI(api_key="local", http_client=httpx2.Client(transport=Transport(engine)))

Served: POST …/systemone, POST …/decisions, GET …/models. The bodies and the statuses of errors are those of
``SystemOne``; an error that is not Prelude's own is raised in the client. The client's timeout for reading an answer
is the deadline of the request. pip install 'prelude-engine[transports]'.
"""

from __future__ import annotations

from typing import Any

import httpx2

from prelude.api.verbs import RequestKeywords
from prelude.errors import DeadlineExceeded, PreludeError
from prelude.systemone import aread_body, problem, read_body, write_body
from prelude.systemone.adapter import system_one
from prelude.values.options import MAX_DEADLINE


class _Routes:
    """The shared part of both transports; ``options`` are those of ``SystemOne``."""

    def __init__(self, engine: Any, **options: Any) -> None:
        self.one = system_one(engine, **options)

    def begun(self, request: httpx2.Request) -> httpx2.Response | str:
        """Return the answer of a request without a body, or the route of one that has a body."""
        route = (request.method, request.url.path.rstrip("/").rpartition("/")[2])
        if route == ("GET", "models"):
            return reply(request, 200, self.one.models())
        if route in (("POST", "systemone"), ("POST", "decisions")):
            return route[1]
        message = f"{request.method[:20]} {request.url.path[:200]}: no such route"
        return reply(request, 404, {"detail": {"error_type": "not_found_error", "message": message}})


class Transport(_Routes, httpx2.BaseTransport):
    """Serves synchronous clients, over an engine of either kind."""

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        route = self.begun(request)
        if not isinstance(route, str):
            return route
        try:
            body = read_body(request.read(), request.headers.get("content-encoding"))
            answer = self.one.answer if route == "systemone" else self.one.decisions
            answered = answer(body, **deadline(request))
        except PreludeError as error:
            return failed(request, error)
        return reply(request, 200, answered)


class AsyncTransport(_Routes, httpx2.AsyncBaseTransport):
    """Serves asynchronous clients the same way."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        route = self.begun(request)
        if not isinstance(route, str):
            return route
        try:
            body = await aread_body(request.stream, request.headers.get("content-encoding"))
            answer = self.one.aanswer if route == "systemone" else self.one.adecisions
            answered = await answer(body, **deadline(request))
        except PreludeError as error:
            return failed(request, error)
        return reply(request, 200, answered)


def deadline(request: httpx2.Request) -> RequestKeywords:
    seconds = request.extensions.get("timeout", {}).get("read")
    return {} if seconds is None else {"deadline": min(seconds, MAX_DEADLINE)}


def failed(request: httpx2.Request, error: PreludeError) -> httpx2.Response:
    if isinstance(error, DeadlineExceeded):
        raise httpx2.ReadTimeout(str(error), request=request) from error
    return reply(request, *problem(error))


def reply(request: httpx2.Request, status: int, body: Any) -> httpx2.Response:
    headers = {"content-type": "application/json"}
    if status in (429, 503):
        headers["retry-after"] = "1"
    return httpx2.Response(status, content=write_body(body), headers=headers, request=request)
