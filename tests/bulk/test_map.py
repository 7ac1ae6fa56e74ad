"""``engine.map``: results in order, errors as values, bounded memory, equal beginnings side by side."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Iterator
from itertools import count
from typing import Any

import pytest

from prelude import AsyncEngine, Choice, Decide, Engine, EngineConfig, ExpertConfig, InvalidRequest, Loglikelihood
from prelude.errors import EngineClosed

QUESTION = (Choice("Which language is it?", ["English", "German"]),)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.from_pretrained(config=EngineConfig(deterministic=True)) as made:
        yield made


def decide(text: str) -> Decide:
    return Decide(text, QUESTION)


def texts(count: int) -> list[str]:
    return [f"Text number {at} is short" if at % 3 else f"Der Text Nummer {at} ist kurz" for at in range(count)]


@pytest.mark.parametrize("window", [1, 7, 64])
def test_the_results_of_run_many_in_order(engine: Engine, window: int) -> None:
    rows = texts(30)
    found = list(engine.map(decide, rows, window=window))
    assert [(one.index, one.row) for one in found] == list(enumerate(rows))
    assert [one.get() for one in found] == engine.run_many([decide(row) for row in rows])


def test_rows_that_fail_come_without_an_order_too(engine: Engine) -> None:
    rows: list[Any] = ["a text", 5, "another", None]
    found = list(engine.map(lambda row: decide(row) if isinstance(row, str) else row, rows, ordered=False))
    assert sorted((one.index, one.error is None) for one in found) == [(0, True), (1, False), (2, True), (3, False)]


@pytest.mark.fault(73)
def test_a_row_that_fails_is_a_value(engine: Engine) -> None:
    def make(row: Any) -> Any:
        if row == "raises":
            raise KeyError(row)
        return row if row == "no task" else decide(row)

    found = list(engine.map(make, ["a", "raises", "no task", "x" * 10**6, "b"]))
    assert [type(one.error).__name__ for one in found] == [
        "NoneType", "KeyError", "InvalidRequest", "RequestTooLarge", "NoneType",
    ]  # fmt: skip
    with pytest.raises(KeyError):
        found[1].get()


@pytest.mark.fault(72)
def test_an_error_of_the_rows_comes_after_the_rows_before(engine: Engine) -> None:
    def rows() -> Iterator[str]:
        yield from texts(10)
        raise OSError("the table is gone")

    found = []
    with pytest.raises(OSError, match="table is gone"):
        for one in engine.map(decide, rows(), window=4):
            found.append(one)
    assert len(found) == 10 and all(one.error is None for one in found)


@pytest.mark.fault(72)
def test_rows_without_end(engine: Engine) -> None:
    def rows() -> Iterator[str]:
        at = 0
        while True:
            at += 1
            yield f"Text {at}"

    mapped = engine.map(decide, rows(), window=8)
    assert [next(mapped).index for _ in range(20)] == list(range(20))
    mapped.close()  # type: ignore[attr-defined]
    engine._core.audit()


class Row(str):
    """A string that can be referred to weakly."""


def test_no_more_than_a_window_is_in_memory(engine: Engine) -> None:
    alive: weakref.WeakSet[Row] = weakref.WeakSet()
    most = 0

    def rows() -> Iterator[Row]:
        for text in texts(100):
            row = Row(text)
            alive.add(row)
            yield row

    for _ in engine.map(lambda row: decide(str(row)), rows(), window=10):
        most = max(most, len(alive))
    assert most <= 12


def test_a_window_of_long_texts_ends_early(engine: Engine) -> None:
    """Sixteen texts of a million characters are a window, whatever their number may be."""
    read = 0

    def rows() -> Iterator[str]:
        nonlocal read
        for at in range(60):
            read += 1
            yield f"{at} " + "long " * 209_715  # a mebibyte

    mapped = engine.map(decide, rows(), window=1024)
    assert type(next(mapped).error).__name__ == "RequestTooLarge" and read == 16
    assert [one.index for one in mapped] == list(range(1, 60))


def test_beginnings_that_are_alike_are_neighbours() -> None:
    """Twelve beginnings of 200 tokens in turns, and a pool that holds four of them."""
    rubrics = [[5 + number] * 200 for number in range(12)]
    rows = [(rubrics[at % 12], [700 + at % 50, 9]) for at in range(96)]
    own = sum(len(one[1]) for one in rows)

    def computed(grouped: bool) -> int:
        config = EngineConfig(
            max_length=400, max_running=4, expert=ExpertConfig(kv_blocks=80, block_size=16, max_step_requests=4)
        )
        with Engine.from_pretrained(config=config) as engine:
            if grouped:
                results = [one.get() for one in engine.map(lambda row: Loglikelihood(*row), rows, window=48)]
            else:
                results = [engine.run(Loglikelihood(*row)) for row in rows]
            return sum(result.stats.computed_tokens for result in results)

    together, apart = computed(True), computed(False)
    assert together < 0.35 * apart, (together, apart, own)


@pytest.mark.feature("N6")
def test_a_full_queue_is_waited_for() -> None:
    with Engine.from_pretrained(config=EngineConfig(max_queued_requests=5)) as engine:
        found = list(engine.map(decide, texts(40)))
    assert all(one.error is None for one in found)


def test_a_closed_engine_ends_the_map() -> None:
    engine = Engine.from_pretrained()
    mapped = engine.map(decide, iter(texts(20)), window=5)
    next(mapped)
    engine.close()
    with pytest.raises(EngineClosed):
        list(mapped)


def test_progress_counts_rows(engine: Engine) -> None:
    said: list[tuple[int, int | None]] = []
    list(engine.map(decide, texts(10), window=4, progress=lambda *now: said.append(now)))
    assert said == [(4, 10), (8, 10), (10, 10)]
    said.clear()
    list(engine.map(decide, iter(texts(3)), progress=lambda *now: said.append(now)))
    assert said == [(3, None)]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"task": "text"}, "task"), ({"rows": 7}, "rows"), ({"window": 0}, "window"),
        ({"window": (1 << 16) + 1}, "window"), ({"progress": 7}, "progress"),
        ({"priority": "high"}, "priority"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused_at_the_call(engine: Engine, given: dict[str, Any], field: str) -> None:
    arguments: dict[str, Any] = {"task": decide, "rows": ["a"], **given}
    with pytest.raises(InvalidRequest, match=field):
        engine.map(arguments.pop("task"), arguments.pop("rows"), **arguments)


def hold(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Window ``number`` waits until the one behind it has ended."""
    run_many, behind, windows = AsyncEngine.run_many, asyncio.Event(), count()

    async def held(self: AsyncEngine, *given: Any, **options: Any) -> list[Any]:
        if (at := next(windows)) == number:
            await behind.wait()
        found = await run_many(self, *given, **options)
        if at == number + 1:
            behind.set()
        return found

    monkeypatch.setattr(AsyncEngine, "run_many", held)


class TestAsync:
    def test_the_results_of_the_twin(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        rows = texts(50)

        async def given() -> AsyncIterator[str]:
            for row in rows:
                yield row

        async def run(source: Any, ordered: bool) -> list[Any]:
            other = AsyncEngine(engine)
            return [one async for one in other.map(decide, source, window=8, ordered=ordered)]

        want = [one.get() for one in engine.map(decide, rows)]
        for source in (rows, given()):
            found = asyncio.run(run(source, True))
            assert [one.index for one in found] == list(range(50))
            assert [one.get() for one in found] == want
        hold(monkeypatch, 0)
        found = asyncio.run(run(rows, False))
        assert sorted(one.index for one in found) == list(range(50)) and found[0].index in range(8, 16)
        assert [one.get() for one in sorted(found, key=lambda one: one.index)] == want

    def test_a_map_that_is_left_gives_everything_back(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        hold(monkeypatch, 1)

        async def run() -> None:
            mapped = AsyncEngine(engine).map(decide, texts(200), window=50)
            async for one in mapped:
                assert one.index == 0
                break
            await mapped.aclose()  # type: ignore[attr-defined]

        asyncio.run(run())
        engine.run(decide("one more"))
        engine._core.audit()
        assert engine.stats()["queued_requests"] == 0

    def test_no_rows_and_a_queue_that_is_full(self) -> None:
        async def run(engine: AsyncEngine, rows: list[str]) -> list[Any]:
            return [one async for one in engine.map(decide, rows)]

        with Engine.from_pretrained(config=EngineConfig(max_queued_requests=5, deterministic=True)) as small:
            assert asyncio.run(run(AsyncEngine(small), [])) == []
            found = asyncio.run(run(AsyncEngine(small), texts(40)))
            assert [one.get() for one in found] == [one.get() for one in small.map(decide, texts(40))]

    def test_errors_of_the_rows(self, engine: Engine) -> None:
        async def rows() -> AsyncIterator[str]:
            for text in texts(5):
                yield text
            raise OSError("the table is gone")

        async def run() -> list[int]:
            found = []
            with pytest.raises(OSError, match="table is gone"):
                async for one in AsyncEngine(engine).map(decide, rows(), window=2):
                    found.append(one.index)
            return found

        assert asyncio.run(run()) == [0, 1, 2, 3, 4]


def test_the_loop_goes_on_while_rows_are_read(engine: Engine) -> None:
    turns, longest = 0, 0

    def rows() -> Iterator[str]:
        nonlocal longest
        since, last = 0, turns
        for text in texts(400):
            since, last = (since + 1, last) if last == turns else (0, turns)
            longest = max(longest, since)
            yield text

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def test() -> None:
        counting = asyncio.ensure_future(count())
        async for one in AsyncEngine(engine).map(decide, rows(), window=400):
            one.get()
        counting.cancel()

    asyncio.run(test())
    assert 0 < longest <= 64
