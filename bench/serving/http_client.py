"""The same load over HTTP on the loopback interface, through the FastAPI example in a process of its own."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.serving.load import Job, Sample, sample_of

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "fastapi_service.py"
START_SECONDS = 120.0
REQUEST_SECONDS = 120.0


class OverHttp:
    """A client of the example's routes. The prefix cache is on there; fresh random ids do not meet it."""

    def __init__(self, http: Any) -> None:
        self._http = http

    async def send(self, job: Job, due: float) -> Sample:
        body = {"prompt": job.prompt, "max_tokens": job.output_tokens, "temperature": 0, "ignore_eos": True}
        if job.output_tokens == 1:
            reply = await self._http.post("/v1/generate", json=body)
            reply.raise_for_status()
            end = time.perf_counter()
            return sample_of(job, due, end, 1, end, reply.json()["tokens"])
        first, early, tokens = 0.0, 0, 0
        async with self._http.stream("POST", "/v1/generate", json={**body, "stream": True}) as reply:
            reply.raise_for_status()
            async for line in reply.aiter_lines():
                if not line.startswith("data: "):
                    continue
                tokens += json.loads(line[6:])["tokens"]
                if not first:
                    first, early = time.perf_counter(), tokens
        return sample_of(job, due, first, early, time.perf_counter(), tokens)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def loopback(model: str | None) -> AsyncIterator[OverHttp]:
    """The example's server as a subprocess, which is ended in every case."""
    import httpx

    port = free_port()
    command = [sys.executable, str(EXAMPLE), "--port", str(port), *(["--model", model] if model else [])]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    try:
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", timeout=REQUEST_SECONDS, limits=limits
        ) as http:
            await _answers(http, server)
            yield OverHttp(http)
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


async def _answers(http: Any, server: subprocess.Popen[bytes]) -> None:
    import httpx

    until = time.perf_counter() + START_SECONDS
    while time.perf_counter() < until:
        if server.poll() is not None:
            raise SystemExit(f"the example's server ended with status {server.returncode}; run it alone to see why")
        try:
            if (await http.get("/health")).status_code == 200:
                return
        except httpx.TransportError:
            await asyncio.sleep(0.1)
    raise SystemExit(f"the example's server did not answer within {START_SECONDS:.0f} s")
