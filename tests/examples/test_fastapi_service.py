"""The FastAPI example through ASGI, without a socket: routes, refusals, and clients that go away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.examples.conftest import load
from tests.patience import PATIENCE, Paced, comes

pytest.importorskip("fastapi")
httpx = pytest.importorskip("httpx")

LONG = {"prompt": "The harbour", "max_tokens": 1500, "ignore_eos": True, "temperature": 0}
STATE = "The harbour was quiet that morning; two boats lay at the quay."


@asynccontextmanager
async def service(**config: Any) -> AsyncIterator[tuple[Any, Any]]:
    """The app with its lifespan run, and a client of it."""
    from prelude import EngineConfig

    app = load("fastapi_service").create_app(config=EngineConfig().changed(kv_bytes=1 << 23, **config))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://service", timeout=PATIENCE) as client:
            yield app, client


class Visitor:
    """A client of one request that sees every message as it is sent, and may leave."""

    def __init__(self, app: Any, path: str, body: dict[str, Any], spec_version: str = "2.3") -> None:
        self.scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": spec_version}, "method": "POST", "path": path,
            "query_string": b"", "headers": [(b"content-type", b"application/json")],
        }  # fmt: skip
        self.sent: list[dict[str, Any]] = []
        self.left = asyncio.Event()
        self._inbox = [{"type": "http.request", "body": json.dumps(body).encode()}]
        self.task = asyncio.ensure_future(app(self.scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self._inbox:
            return self._inbox.pop()
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if not self.left.is_set():
            self.sent.append(message)
        elif self.scope["asgi"]["spec_version"] == "2.4":
            raise OSError("the client went away")

    @property
    def parts(self) -> list[str]:
        return [m["body"].decode() for m in self.sent if m["type"] == "http.response.body" and m["body"]]


def held_at(app: Any, steps: int) -> Paced:
    """However late the test looks, a request of ``LONG`` has not ended."""
    return Paced.of(app.state.engine.engine._core, steps)


async def nothing_left(engine: Any, ended: int) -> None:
    """``ended`` requests were given up, and hold nothing: far from their last token."""
    core = engine.engine._core
    # a stream that is let go between two steps may count as finished: it ended with the token it had
    await comes(lambda: engine.stats()["cancelled"] + engine.stats()["finished"] == ended and core.queues.empty)
    await comes(lambda: not core.steps and core.pool.live_leases == 0)
    assert engine.stats()["decode_tokens"] < 1200 * ended
    core.audit()


def told(parts: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """The events of a stream: name and data."""
    lines = [block.split("\n") for block in "".join(parts).split("\n\n") if block]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in lines]


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 2 * PATIENCE))


def test_decisions_text_and_a_streamed_chat() -> None:
    async def test() -> None:
        async with service() as (app, client):
            questions = [
                {"question": "Which language is it?", "labels": ["English", "Thai"]},
                {"question": "Polite?"},
            ]
            reply = await client.post("/v1/decide", json={"state": STATE, "questions": questions})
            first, second = reply.json()
            assert reply.status_code == 200 and first["label"] in ("English", "Thai") and 0 < first["mass"] <= 1
            assert set(second["probabilities"]) == {"yes", "no"}

            body = {"prompt": [{"role": "user", "content": "Hello"}], "max_tokens": 12, "ignore_eos": True}
            body |= {"temperature": 0}
            whole = (await client.post("/v1/generate", json=body)).json()
            visitor, streams = Visitor(app, "/v1/generate", {**body, "stream": True}), 1
            await visitor.task
            while len(visitor.parts) <= 3 and streams < 100:  # tokens that wait for a reader come together
                visitor, streams = Visitor(app, "/v1/generate", {**body, "stream": True}), streams + 1
                await visitor.task
            assert visitor.sent[0]["status"] == 200
            assert (b"content-type", b"text/event-stream; charset=utf-8") in visitor.sent[0]["headers"]
            events = [data for name, data in told(visitor.parts) if name == "message"]
            assert len(visitor.parts) == len(events) > 3, "it comes in parts"
            assert "".join(data["text"] for data in events) == whole["text"]
            assert sum(data["tokens"] for data in events) == whole["tokens"] == 12
            assert [data["finish"] for data in events] == [None] * (len(events) - 1) + ["length"]

            health = await client.get("/health")
            assert health.status_code == 200 and health.json()["stats"]["requests"] == {
                "oneshot": 1,
                "decode": 1 + streams,
            }

    run(test)


def test_refusals_have_a_status_of_their_own() -> None:
    async def test() -> None:
        async with service() as (app, client):
            ask = {"question": "Polite?"}
            for path, body, status, kind in (
                ("/v1/decide", {"state": STATE, "questions": []}, 400, "InvalidRequest"),
                ("/v1/decide", {"state": "word " * 16_000, "questions": [ask]}, 413, "PromptTooLong"),
                ("/v1/generate", {"prompt": STATE, "temperature": -1}, 400, "InvalidRequest"),
                ("/v1/generate", {"prompt": STATE, "temperature": -1, "stream": True}, 400, "InvalidRequest"),
                ("/v1/generate", {"prompt": "word " * 16_000, "stream": True}, 413, "PromptTooLong"),
            ):
                reply = await client.post(path, json=body)
                assert (reply.status_code, reply.json()["error"]["type"]) == (status, kind), reply.text
                assert reply.json()["error"]["message"]
            assert (await client.post("/v1/decide", json={"state": 1})).status_code == 422
            await app.state.engine.aclose()
            reply = await client.post("/v1/generate", json={"prompt": STATE})
            assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
            assert (await client.get("/health")).status_code == 503

    run(test)


def test_a_full_queue_is_429() -> None:
    async def test() -> None:
        async with service(max_running=1, max_queued_requests=1) as (app, client):
            steps = held_at(app, 1000)
            visitors = [Visitor(app, "/v1/generate", {**LONG, "stream": True})]
            await comes(lambda: len(visitors[0].parts) > 0)
            visitors.append(Visitor(app, "/v1/generate", LONG))  # waits: one runs at a time
            await comes(lambda: app.state.engine.stats()["queued_requests"] == 1)
            for stream in (False, True):
                reply = await client.post("/v1/generate", json={**LONG, "stream": stream})
                assert reply.status_code == 429 and reply.headers["retry-after"] == "1"
                assert reply.json()["error"]["type"] == "QueueFull"
            for visitor in visitors:
                visitor.left.set()
            await asyncio.gather(*(visitor.task for visitor in visitors), return_exceptions=True)
            steps.open()
            await nothing_left(app.state.engine, 2)

    run(test)


@pytest.mark.parametrize("spec_version", ["2.3", "2.4"])  # servers tell of a client that left in two ways
def test_a_client_that_leaves_a_stream_cancels_its_request(spec_version: str) -> None:
    async def test() -> None:
        async with service() as (app, client):
            steps = held_at(app, 1000)
            visitor = Visitor(app, "/v1/generate", {**LONG, "stream": True}, spec_version)
            await comes(lambda: len(visitor.parts) >= 1)
            visitor.left.set()
            await asyncio.gather(visitor.task, return_exceptions=True)
            steps.open()
            await nothing_left(app.state.engine, 1)
            assert (await client.get("/health")).status_code == 200

    run(test)


def test_a_client_that_leaves_before_its_answer_cancels_its_request() -> None:
    async def test() -> None:
        async with service() as (app, client):
            steps = held_at(app, 1000)
            visitor = Visitor(app, "/v1/generate", LONG)
            await comes(lambda: app.state.engine.stats()["decode_tokens"] > 3)
            visitor.left.set()
            await visitor.task
            steps.open()
            await nothing_left(app.state.engine, 1)

            steps.allow(1000)
            dropped = asyncio.ensure_future(client.post("/v1/generate", json=LONG))
            await comes(lambda: app.state.engine.stats()["requests"]["decode"] == 2)
            dropped.cancel()
            await asyncio.gather(dropped, return_exceptions=True)
            steps.open()
            await nothing_left(app.state.engine, 2)

    run(test)
