"""``prelude.ray.deployment`` on replicas of a real Ray Serve."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from prelude import Choice, Decide, EngineConfig, Generate, SamplingParams
from prelude.errors import ConfigError, DeadlineExceeded, InvalidRequest, UnknownParameter
from prelude.integrations.affinity import chain_of_task

serve = pytest.importorskip("ray.serve", reason="ray[serve] is not installed")

pytestmark = pytest.mark.usefixtures("cluster")

LANGUAGE = Choice("Which language is it?", ["English", "German"])
WORDS = ["the", "parcel", "arrived", "late", "and", "nobody", "answered", "a", "letter", "about", "it", "in", "time"]


def rubric(number: int) -> str:
    return f"Rubric {number}. " + " ".join(WORDS[(at * (number + 3) + at // 7) % len(WORDS)] for at in range(300))


def decision(number: int, text: int) -> Decide:
    return Decide(f"{rubric(number)}\n\nText {text}.", [LANGUAGE])


def forever() -> Generate:
    return Generate("A long story:", SamplingParams(max_tokens=3000, temperature=0, ignore_eos=True), cache="never")


@pytest.fixture(scope="module")
def handle(cluster: None) -> Iterator[Any]:
    from prelude.ray import deployment

    config = EngineConfig(max_queued_requests=4, max_running=1, max_length=4096)
    yield serve.run(deployment(replicas=2, config=config, stats_seconds=1.0), name="prelude", route_prefix=None)
    serve.shutdown()


def test_an_answer_comes_back_whole_and_errors_keep_their_kind(handle: Any) -> None:
    answers = handle.run.remote(Decide("Wo ist mein Paket?", {"language": LANGUAGE}), request_id="r-1").result()
    assert answers["language"].label in ("English", "German") and answers.stats.prompt_tokens > 0
    with pytest.raises(InvalidRequest, match="questions"):
        handle.run.remote(Decide("x", {})).result()
    with pytest.raises(UnknownParameter, match="dead_line"):
        handle.run.remote(decision(0, 1), dead_line=1.0).result()
    many = handle.run_many.remote([decision(0, 1), Decide("x", {})], return_exceptions=True).result()
    assert many[0][0].label in ("English", "German") and isinstance(many[1], InvalidRequest)


def test_requests_of_one_rubric_go_to_the_replica_that_has_it(handle: Any) -> None:
    """Four rubrics over two replicas: every request but the first of each rubric finds its prefix."""
    cached = []
    for text in range(5):
        for number in range(10, 14):
            stats = handle.run.remote(decision(number, text)).result().stats
            cached.append(stats.cached_tokens > stats.prompt_tokens // 2)
    assert cached[:4] == [False] * 4 and all(cached[4:])


def test_a_replica_reports_the_prefixes_that_it_has(handle: Any) -> None:
    handle.run.remote(decision(9, 0)).result()
    reports = [handle.record_routing_stats.remote().result() for _ in range(8)]  # of either replica
    known = {one for report in reports for one in report["prefixes"]}
    assert known & set(chain_of_task(decision(9, 1))) and not known & set(chain_of_task(decision(77, 1)))


def test_a_deadline_counts_from_the_call(handle: Any) -> None:
    with pytest.raises(DeadlineExceeded):
        handle.run.remote(forever(), deadline=0.5).result()
    with pytest.raises(DeadlineExceeded, match="waited"):
        handle.run.remote(Decide("x", [LANGUAGE]), deadline=1e-9).result()


def test_a_cancelled_response_returns_the_blocks_of_its_request(handle: Any) -> None:
    async def main() -> None:
        responses = [handle.run.remote(forever()) for _ in range(2)]
        await until(handle, lambda stats: stats["running_requests"] > 0, 1)
        for one in responses:
            one.cancel()
        await until(handle, lambda stats: stats["running_requests"] == 0 and stats["queued_requests"] == 0, 8)
        cancelled = max([(await handle.stats.remote())["cancelled"] for _ in range(8)])
        assert cancelled >= 1

    asyncio.run(main())


async def until(handle: Any, holds: Any, looks: int) -> None:
    """So many looks in a row, each at either replica."""
    ends, row = time.monotonic() + 60, 0
    while row < looks:
        row = row + 1 if holds(await handle.stats.remote()) else 0
        assert time.monotonic() < ends


def test_a_full_queue_is_serves_back_pressure(handle: Any) -> None:
    """12 requests that do not end, with one row and 4 places in each of two engines: the rest is refused."""
    from ray.serve.exceptions import BackPressureError

    async def main() -> None:
        responses = [handle.run.remote(forever(), deadline=20.0) for _ in range(14)]
        waits = [asyncio.ensure_future(one_end(response)) for response in responses]
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        assert isinstance(next(iter(done)).result(), BackPressureError)
        for response in responses:
            response.cancel()
        await asyncio.gather(*waits)

    async def one_end(response: Any) -> BaseException | None:
        try:
            await response
        except BaseException as error:
            return error
        return None

    asyncio.run(main())


def test_routings_have_names(handle: Any) -> None:
    from prelude.ray import deployment

    with pytest.raises(ConfigError, match="prefix-affine, power-of-two, round-robin"):
        deployment(routing="chance")
