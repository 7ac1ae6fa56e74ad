"""The System One service: jevcompat over a socket with and without a key, and its refusals through ASGI."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prelude import Engine, FittedQuestion
from prelude.errors import InvalidRequest
from tests.examples.conftest import load, service
from tests.patience import PATIENCE

pytest.importorskip("starlette")
httpx = pytest.importorskip("httpx")
BODY = {"model": "jev-latest", "state": "x", "questions": {"a": {"type": "noul", "instructions": "Is it?"}}}


@pytest.mark.feature("G21")
@pytest.mark.skipif(find_spec("uvicorn") is None, reason="uvicorn is not installed")
@pytest.mark.skipif(
    find_spec("jevcompat") is None, reason="jevcompat is not installed: pip install jevcompat typesafe-sdk"
)
@pytest.mark.parametrize("key, should", [(None, 13), ("secret-key", 15)])
def test_jevcompat_passes_all_that_can_be_seen_in_one_run(key: str | None, should: int, tmp_path: Path) -> None:
    """33 MUST and 15 SHOULD in both runs together: ``auth.bearer`` and ``auth.ignored-when-off`` exclude each other.
    Without the SDK beside it ``dropin.sdk-python`` stays untested."""
    report = tmp_path / "report.json"
    arguments = [] if key is None else ["--key", key]
    sdk = [] if find_spec("typesafe_sdk") else ["--no-sdk"]
    with service("systemone_service", *arguments) as url:
        command = [
            sys.executable, "-c", "import sys; from jevcompat.cli import main; sys.exit(main())", "test", url,
            "--timeout", "60", "--json", str(report), *arguments, *sdk,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=10 * PATIENCE)
    found = json.loads(report.read_text(encoding="utf-8"))
    results = {(one["level"], one["id"]): one["status"] for one in found["results"]}
    assert not [name for name, status in results.items() if status == "fail"], done.stdout
    passed = [level for (level, _), status in results.items() if status == "pass"]
    assert (passed.count("MUST") + len(sdk), passed.count("SHOULD")) == (32, should), done.stdout
    assert done.returncode == (3 if sdk else 0), done.stdout


@pytest.mark.skipif(find_spec("uvicorn") is None, reason="uvicorn is not installed")
def test_the_file_of_a_fitted_question_answers_the_question_that_names_it(tmp_path: Path) -> None:
    with Engine.from_pretrained() as engine:
        size = len(engine.embed("x", pooling="mean"))
    weight = np.random.default_rng(0).standard_normal((2, size))
    head = FittedQuestion.from_arrays(weight, [0, 0], ["a", "b"], name="team", pooling="mean")
    head.save(tmp_path / "some.head")
    body = {"state": "x", "questions": {"q": {"type": "choice", "x_fitted": "team"}}}
    with service("systemone_service", "--head", str(tmp_path / "some.head")) as url:
        answer = httpx.post(f"{url}/v1/systemone", json=body, timeout=PATIENCE).json()["answers"]["q"]
    assert answer["choice"] in ("a", "b") and set(answer["probabilities"]) == {"a", "b"}


# ------------------------------------------------------------------ without a socket
@asynccontextmanager
async def client(**options: Any) -> AsyncIterator[tuple[Any, Any]]:
    from prelude import EngineConfig

    config = EngineConfig(kv_bytes=1 << 23, **options.pop("config", {}))
    app = load("systemone_service").create_app(config=config, **options)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://service", timeout=PATIENCE) as made:
            yield app, made


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test(), 2 * PATIENCE))


def test_a_head_of_another_model_ends_the_start() -> None:
    head = FittedQuestion.from_arrays([[1.0], [2.0]], [0, 0], ["a", "b"], name="team", model="0" * 32)

    async def start() -> None:
        async with client(fitted=[head]):
            pass

    with pytest.raises(InvalidRequest, match="was fitted on the vectors of another model"):
        run(start)


def test_keys_encodings_limits_and_routes() -> None:
    async def test() -> None:
        async with client(key="secret", max_body=1 << 16) as (_, http):
            good = {"authorization": "Bearer secret"}
            for headers, status in (
                ({}, 401),
                ({"authorization": "Bearer wrong"}, 401),
                ({"authorization": "Basic secret"}, 401),
                (good, 200),
                ({"authorization": "bearer secret"}, 200),
            ):
                reply = await http.post("/v1/systemone", json=BODY, headers=headers)
                assert reply.status_code == status, reply.text
                assert status == 200 or reply.json()["detail"]["error_type"] == "authentication_error"
                # the body of a refused request was not read
                assert reply.headers.get("connection") == (None if status == 200 else "close")
                assert (await http.get("/v1/models", headers=headers)).status_code == status
            assert (await http.get("/health")).json()["ok"] is True, "the health of the service needs no key"

            async def post(data: bytes, **headers: str) -> Any:
                return await http.post("/v1/systemone", content=data, headers={**good, **headers})

            for data, text in (
                (b"{", "JSON decode error"),
                (b'{"state": NaN}', "NaN is not a finite number"),
                (b'{"a": 1, "a": 2}', "'a' appears twice"),
                (b"\xff", "JSON decode error"),
                (b"[" * 60_000, "JSON decode error"),
            ):
                reply = await post(data)
                assert reply.status_code == 422 and text in reply.json()["detail"][0]["msg"], reply.text
            reply = await post(b" " * ((1 << 16) + 1))
            assert (reply.status_code, reply.headers["connection"]) == (413, "close"), "the rest was not read"
            assert (await post(b"{}", **{"content-encoding": "br"})).status_code == 415
            reply = await post(json.dumps({**BODY, "model": "none"}).encode())
            assert reply.status_code == 404 and reply.json()["detail"]["error_type"] == "not_found_error"
            reply = await http.post(
                "/v1/decisions",
                headers=good,
                json={"input": "x", "questions": [{"type": "predicate", "instructions": "?"}]},
            )
            assert reply.status_code == 200 and 0 <= reply.json()["answers"][0]["probability"] <= 1
            for reply, status in (
                (await http.post("/nothing", json=BODY), 404),
                (await http.put("/v1/systemone", headers=good, json=BODY), 405),
            ):
                assert (reply.status_code, reply.headers["connection"]) == (status, "close")

    run(test)


def test_a_body_has_256_kb_and_ten_seconds_by_default_and_a_slow_one_is_408() -> None:
    async def slow() -> AsyncIterator[bytes]:
        yield b'{"state": '
        await asyncio.sleep(10 * PATIENCE)

    async def test() -> None:
        async with client(body_seconds=0.01) as (_, http):
            reply = await http.post("/v1/systemone", content=slow())
            assert (reply.status_code, reply.headers["connection"]) == (408, "close")
            assert reply.json()["detail"]["message"] == "the body did not come within 0.01 s"
        async with client() as (_, http):
            data = json.dumps(BODY).encode()
            for size, status in ((1 << 18, 200), ((1 << 18) + 1, 413)):
                reply = await http.post("/v1/systemone", content=data.ljust(size))
                assert reply.status_code == status
        assert load("systemone_service").BODY_SECONDS == 10

    run(test)


def test_a_full_queue_is_429_and_a_closed_engine_503() -> None:
    from tests.patience import Paced, comes

    async def test() -> None:
        async with client(config={"max_queued_requests": 1}) as (app, http):
            steps = Paced.of(app.state.engine.engine._core, 0)
            waiting = [asyncio.ensure_future(http.post("/v1/systemone", json=BODY)) for _ in range(4)]
            await comes(lambda: sum(one.done() for one in waiting) >= 2)
            refused = [one.result() for one in waiting if one.done()]
            assert {reply.status_code for reply in refused} == {429}
            assert (
                refused[0].headers["retry-after"] == "1"
                and refused[0].json()["detail"]["error_type"] == "rate_limit_error"
            )
            steps.open()
            assert {reply.status_code for reply in await asyncio.gather(*waiting)} == {200, 429}
            await app.state.engine.aclose()
            assert (await http.post("/v1/systemone", json=BODY)).status_code == 503
            assert (await http.get("/health")).status_code == 503

    run(test)
