"""Decisions and a streamed chat behind three HTTP routes. The library opens no port; this file does.

    pip install "prelude-engine[examples]"
    python examples/fastapi_service.py [--model DIR_OR_HUB_NAME] [--port 8000]

    curl localhost:8000/v1/decide -H 'content-type: application/json' \\
         -d '{"state": "Le quai est vide.", "questions": [{"question": "Language?", "labels": ["French", "Thai"]}]}'
    curl -N localhost:8000/v1/generate -H 'content-type: application/json' \\
         -d '{"prompt": [{"role": "user", "content": "Hello"}], "max_tokens": 32, "stream": true}'

A body has at most 128 KB and arrives within 10 seconds. The time of a request's headers and the number of connections
are a proxy's to bound.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, FailFast, ValidationError
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from prelude import AsyncEngine, Choice, EngineConfig, SamplingParams, YesNo, errors
from prelude.results import Chunk
from prelude.systemone import SystemOneError, aread_body

T = TypeVar("T")
B = TypeVar("B", bound=BaseModel)
MAX_BODY = 1 << 17  # bytes; pydantic makes an object of every field that is wrong
# The first class that fits decides; an error that is not listed is our own fault: 500.
STATUS: dict[type[errors.PreludeError], int] = {
    errors.PromptTooLong: 413,
    errors.RequestTooLarge: 413,
    errors.InvalidRequest: 400,
    errors.Overloaded: 429,
    errors.DeadlineExceeded: 504,
    errors.EngineClosed: 503,
}


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")  # a misspelt field is refused, not ignored


class Asked(Body):
    question: str
    labels: list[Any] | None = None  # None: yes or no. The engine checks items of lists, up to its first error


class DecideBody(Body):
    state: str
    questions: Annotated[list[Asked], FailFast()]


class GenerateBody(Body):
    prompt: str | list[Any]  # token ids or messages
    stream: bool = False
    max_tokens: int = 64
    temperature: float = 1.0
    seed: int | None = None
    stop: list[Any] = []
    ignore_eos: bool = False

    def sampling(self) -> SamplingParams:
        return SamplingParams(**self.model_dump(exclude={"prompt", "stream"}))


async def read(request: Request, kind: type[B]) -> B:
    """The body as ``kind``: of bounded size, time and nesting, with errors that do not repeat what was sent."""
    try:
        body = await aread_body(request.stream(), request.headers.get("content-encoding"), max_bytes=MAX_BODY)
    except ClientDisconnect:
        raise HTTPException(499, "the client went away") from None
    try:
        return kind.model_validate(body)
    except ValidationError as wrong:
        first = wrong.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part)[:80] for part in first["loc"])
        raise HTTPException(422, f"{where}: {first['msg'][:200]} ({wrong.error_count()} errors)") from None


async def while_connected(request: Request, work: Awaitable[T]) -> T:
    """The result of ``work``, which is cancelled when the client disconnects."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, left = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait((task, left), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise HTTPException(499, "the client went away")
        return task.result()
    finally:
        task.cancel()
        left.cancel()


class Events(StreamingResponse):
    """Server-sent events, one a chunk. However it ends, and a client may leave at any moment, the stream is closed,
    which cancels its request."""

    def __init__(self, stream: Any, first: Chunk) -> None:
        super().__init__(self.lines(first), media_type="text/event-stream")
        self.stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self.stream:
            await super().__call__(scope, receive, send)

    async def lines(self, chunk: Chunk) -> AsyncIterator[str]:
        try:
            while True:
                yield event({"text": chunk.text, "tokens": len(chunk.token_ids), "finish": chunk.finish_reason})
                chunk = await anext(self.stream)
        except StopAsyncIteration:
            pass
        except errors.PreludeError as error:  # too late for a status
            yield event(described(error), "error")


def event(data: dict[str, Any], name: str = "message") -> str:
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"


def described(error: Exception) -> dict[str, Any]:
    return {"type": type(error).__name__, "message": str(error), "field": getattr(error, "field", None)}


async def refused(request: Request, error: Exception) -> JSONResponse:
    status = next((status for kind, status in STATUS.items() if isinstance(error, kind)), 500)
    if isinstance(error, SystemOneError):  # of the body's bytes
        status = error.status
    headers = {"retry-after": "1"} if status in (429, 503) else {}
    if status in (408, 413):
        headers["connection"] = "close"  # the body was not read to its end
    return JSONResponse({"error": described(error)}, status, headers)


def create_app(model: str | None = None, config: EngineConfig | None = None) -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncEngine.from_pretrained(model, config=config) as engine:  # drained on the way out
            app.state.engine = engine
            yield

    app = FastAPI(title="Prelude", lifespan=lifespan, exception_handlers={errors.PreludeError: refused})

    @app.post("/v1/decide")
    async def decide(request: Request) -> list[dict[str, Any]]:
        body = await read(request, DecideBody)
        questions = [YesNo(q.question) if q.labels is None else Choice(q.question, q.labels) for q in body.questions]
        answers = await while_connected(request, request.app.state.engine.decide(body.state, questions))
        return [{"label": a.label, "probabilities": dict(a.probabilities), "mass": a.mass} for a in answers]

    @app.post("/v1/generate", response_model=None)
    async def generate(request: Request) -> StreamingResponse | dict[str, Any]:
        body = await read(request, GenerateBody)
        engine: AsyncEngine = request.app.state.engine
        if body.stream:
            stream = engine.generate(body.prompt, body.sampling())
            return Events(stream, await while_connected(request, anext(stream)))  # a refusal still has its status
        done = await while_connected(request, engine.complete(body.prompt, body.sampling()))
        return {"text": done.text, "tokens": len(done.token_ids), "finish": done.finish_reason}

    @app.get("/health")
    async def health(request: Request) -> JSONResponse:
        engine = request.app.state.engine
        state = engine.health()
        return JSONResponse({"health": asdict(state), "stats": engine.stats()}, 200 if state.ok else 503)

    return app


if __name__ == "__main__":
    import uvicorn

    parser = argparse.ArgumentParser()
    parser.add_argument("--model", help="a directory or a hub name; the packaged model by default")
    parser.add_argument("--port", type=int, default=8000)
    chosen = parser.parse_args()
    uvicorn.run(create_app(chosen.model), port=chosen.port)
