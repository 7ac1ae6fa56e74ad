"""System One decisions over HTTP. The library opens no port; this file does.

    pip install "prelude-engine[examples]"
    python examples/systemone_service.py --port 8791 [--key KEY] [--model DIR_OR_HUB_NAME] [--head team.head]

    curl localhost:8791/v1/systemone -H 'content-type: application/json' -d '{"model": "jev-latest",
        "state": "I was charged twice.", "questions": {
            "refund": {"type": "noul", "instructions": "Is the customer asking for money back?"},
            "team": {"type": "choice", "criteria": {"Billing": "Invoices, refunds", "Sales": null}}}}'

``--head team.head`` is the file of a fitted question (``prelude fit``): a question ``{"type": "choice", "x_fitted":
"team"}`` is answered by it.

Routes: POST /v1/systemone, POST /v1/decisions (OpenAI's form), GET /v1/models, GET /health. Statuses: 401 without
the key, 408 for a body that comes too slowly, 413 for one that is too large, 415 for an unknown encoding, 422 for a
bad body, 429 with Retry-After when the queue is full. A body may be compressed with zstd where the module
``zstandard`` is installed.

A stranger's body cannot hold the event loop. It has at most 256 KB (``--max-body``) and arrives within 10 seconds;
one above 64 KB is read in a thread. Uvicorn bounds neither the time of a request's headers nor that of a client that
reads slowly. Put a proxy that does before a port that strangers reach.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from prelude import AsyncEngine, Decide, EngineConfig, FittedQuestion
from prelude.systemone import SystemOne, aread_body, problem, write_body

MAX_BODY = 1 << 18  # bytes, after decompressing: a body holds the event loop for a few milliseconds at most
BODY_SECONDS = 10.0  # for the whole body
CONNECTIONS = 1024
log = logging.getLogger("systemone")


class Refused(Exception):
    def __init__(self, status: int, detail: Any) -> None:
        self.status = status
        self.detail = detail


def error(kind: str, message: str) -> dict[str, str]:
    return {"error_type": kind, "message": message}


def reply(status: int, body: Any) -> Response:
    headers = {"retry-after": "1"} if status in (429, 503) else {}
    if status in (401, 404, 405, 408, 413):
        headers["connection"] = "close"  # the body was not read to its end
    return Response(write_body(body), status, headers, media_type="application/json")


# ------------------------------------------------------------------ answering


async def while_connected(request: Request, work: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    """The result of ``work``, which is cancelled when the client goes away."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, left = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait((task, left), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        left.cancel()


def create_app(
    model: str | None = None,
    key: str | None = None,
    config: EngineConfig | None = None,
    max_body: int = MAX_BODY,
    body_seconds: float = BODY_SECONDS,
    **options: Any,
) -> Starlette:
    """``options`` are those of ``SystemOne``, and of ``decide`` for all requests."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with AsyncEngine.from_pretrained(model, config=config) as engine:  # drained on the way out
            for head in options.get("fitted", ()):
                engine.explain(Decide("a text", [head]))  # refuses a head of another model before the first request
            await engine.warmup(freeze_gc=True)  # a collection while a body is parsed looks at the body alone
            app.state.engine, app.state.one = engine, SystemOne(engine, **options)
            yield
            gc.unfreeze()

    def check_key(request: Request) -> None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if key is None or (scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), key.encode())):
            return
        said = "the key is not valid" if given else "give the key as Authorization: Bearer KEY"
        raise Refused(401, error("authentication_error", said))

    def route(handler: Callable[[Request], Awaitable[dict[str, Any]]]) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            try:
                check_key(request)
                return reply(200, await handler(request))
            except Refused as refused:
                return reply(refused.status, {"detail": refused.detail})
            except ClientDisconnect:
                return reply(499, {"detail": error("client_closed", "the client went away")})
            except Exception as failed:
                status, body = problem(failed)
                if status >= 500:
                    log.exception("a request failed")
                return reply(status, body)

        return handle

    async def read(request: Request) -> Any:
        encoding = request.headers.get("content-encoding")
        return await aread_body(request.stream(), encoding, max_bytes=max_body, seconds=body_seconds)

    async def systemone(request: Request) -> dict[str, Any]:
        body = await read(request)
        return await while_connected(request, request.app.state.one.aanswer(body))

    async def decisions(request: Request) -> dict[str, Any]:
        body = await read(request)
        return await while_connected(request, request.app.state.one.adecisions(body))

    async def models(request: Request) -> dict[str, Any]:
        found: dict[str, Any] = request.app.state.one.models()
        return found

    async def health(request: Request) -> Response:
        state = request.app.state.engine.health()
        return reply(200 if state.ok else 503, asdict(state))

    async def unknown(request: Request, _: Exception) -> Response:
        return reply(404, {"detail": error("not_found", f"there is no route {request.url.path[:200]}")})

    async def not_allowed(request: Request, _: Exception) -> Response:
        return reply(405, {"detail": error("method_not_allowed", request.method)})

    routes = [
        Route("/v1/systemone", route(systemone), methods=["POST"]),
        Route("/v1/decisions", route(decisions), methods=["POST"]),
        Route("/v1/models", route(models)),
        Route("/health", health),
    ]
    handlers: Any = {404: unknown, 405: not_allowed}
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)


def main() -> None:
    import uvicorn

    parser = argparse.ArgumentParser(description="System One decisions over HTTP")
    parser.add_argument("--port", type=int, default=8791)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--key", help="clients send it as Authorization: Bearer KEY; without it none is needed")
    parser.add_argument(
        "--model", help="a directory, or a hub name or one of a package; the packaged model by default"
    )
    parser.add_argument("--head", action="append", default=[], help="the file of a fitted question, by its name")
    parser.add_argument("--deterministic", action="store_true", help="bits that do not depend on other requests")
    parser.add_argument("--max-queue", type=int, default=1024, help="requests that wait at most; 429 beyond")
    parser.add_argument("--max-body", type=int, default=MAX_BODY, help="bytes of a body at most; 413 beyond")
    chosen = parser.parse_args()
    config = EngineConfig(deterministic=chosen.deterministic, max_queued_requests=chosen.max_queue)
    heads = [FittedQuestion.load(path) for path in chosen.head]
    app = create_app(chosen.model, chosen.key, config, chosen.max_body, fitted=heads)
    uvicorn.run(app, host=chosen.host, port=chosen.port, log_level="warning", limit_concurrency=CONNECTIONS)


if __name__ == "__main__":
    main()
