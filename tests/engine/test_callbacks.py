"""Functions of callers that raise any exception: it ends their own request, call or row, and no other's."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import pytest

from prelude import AsyncEngine, Engine, Generate, SamplingParams
from prelude.errors import ExecutionError

PROMPT = [11, 12, 13, 14]
FREE = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
RAISED = [asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit]


def fails_at(count: int, raised: type[BaseException], **more: Any) -> SamplingParams:
    def choose(output: list[int]) -> list[int]:
        if len(output) == count:
            raise raised("of the caller's own")
        return [20, 21]

    return SamplingParams(max_tokens=12, temperature=0, ignore_eos=True, allowed_tokens_fn=choose, **more)


def in_a_thread(call: Callable[[], Any]) -> Any:
    """Where no exception is taken for Ctrl-C."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def check_own(found: Any, raised: type[BaseException]) -> None:
    assert isinstance(found, ExecutionError) and isinstance(found.__cause__, raised)
    assert raised.__name__ in str(found) and "allowed_tokens_fn failed" in str(found)


@pytest.fixture
def engine(make_engine: Callable[..., Engine]) -> Iterator[Engine]:
    made = make_engine()
    yield made
    assert made.health().ok and made.stats()["failed_steps"] == 0 and made.stats()["running_requests"] == 0
    made.core.audit()


@pytest.mark.parametrize("raised", RAISED)
@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("more", [{}, {"presence_penalty": 0.5}], ids=["alone", "with penalties"])
def test_a_choice_that_raises_ends_its_own_request(
    engine: Engine, raised: type[BaseException], count: int, more: dict[str, Any]
) -> None:
    right = engine.complete(PROMPT, FREE).token_ids
    tasks = [Generate(PROMPT, FREE), Generate(PROMPT, fails_at(count, raised, **more)), Generate(PROMPT, FREE)]
    first, own, last = in_a_thread(lambda: engine.run_many(tasks, return_exceptions=True))
    check_own(own, raised)
    assert first.token_ids == right == last.token_ids


@pytest.mark.parametrize("raised", RAISED)
def test_a_choice_that_raises_ends_its_own_request_in_an_event_loop(
    engine: Engine, raised: type[BaseException]
) -> None:
    right = engine.complete(PROMPT, FREE).token_ids

    async def read(params: SamplingParams) -> Any:
        return [token async for chunk in AsyncEngine(engine).generate(PROMPT, params) for token in chunk.token_ids]

    async def main() -> list[Any]:
        one = AsyncEngine(engine)
        started = [read(FREE), one.complete(PROMPT, FREE), read(fails_at(3, raised))]
        started += [one.complete(PROMPT, fails_at(count, raised)) for count in (1, 7)]
        if not issubclass(raised, KeyboardInterrupt | SystemExit):  # these would end the loop from the first call
            started.append(one.complete(PROMPT, fails_at(0, raised)))
        return await asyncio.gather(*started, return_exceptions=True)

    text, completion, *own = asyncio.run(main())
    assert tuple(text) == right == completion.token_ids
    for found in own:
        check_own(found, raised)


@pytest.mark.parametrize("raised", RAISED)
def test_a_progress_that_raises_ends_nothing(
    engine: Engine, raised: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    tasks = [Generate(PROMPT, FREE)] * 3
    right = [one.token_ids for one in engine.run_many(tasks)]
    calls = []

    def told(done: int, total: int) -> None:
        calls.append(done)
        raise raised("of a bar")

    found = in_a_thread(lambda: engine.run_many(tasks, progress=told))
    assert [one.token_ids for one in found] == right and len(calls) == 1

    def loop() -> Any:
        return asyncio.run(AsyncEngine(engine).run_many(tasks, progress=told))

    assert [one.token_ids for one in in_a_thread(loop)] == right and len(calls) == 2
    assert "of a bar" in caplog.text


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also in a process that was started in the background, where it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("tasks", [1, 3])
@pytest.mark.parametrize("many", [SamplingParams(max_tokens=1), FREE], ids=["one token", "texts"])
def test_ctrl_c_in_a_progress_is_the_callers(engine: Engine, tasks: int, many: SamplingParams) -> None:
    right = engine.complete(PROMPT, FREE).token_ids

    def told(done: int, total: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(5)

    for return_exceptions in (False, True):
        with pytest.raises(KeyboardInterrupt):
            engine.run_many([Generate(PROMPT, many)] * tasks, progress=told, return_exceptions=return_exceptions)
    assert engine.complete(PROMPT, FREE).token_ids == right


@pytest.mark.parametrize("raised", RAISED)
def test_a_function_of_rows_that_raises_ends_its_own_row(engine: Engine, raised: type[BaseException]) -> None:
    def task(row: int) -> Generate:
        if row == 2:
            raise raised("of a row")
        return Generate([11, 12, row + 1], SamplingParams(max_tokens=1))

    async def read() -> list[Any]:
        return [one async for one in AsyncEngine(engine).map(task, range(5), window=3)]

    for found in (
        in_a_thread(lambda: list(engine.map(task, range(5), window=3))),
        in_a_thread(lambda: asyncio.run(read())),
    ):
        assert [one.error is None for one in found] == [True, True, False, True, True]
        assert isinstance(found[2].error, ExecutionError) and isinstance(found[2].error.__cause__, raised)


USER: ContextVar[str] = ContextVar("USER", default="nobody")


@pytest.mark.parametrize("words", [1, 400], ids=["prepared in a turn", "prepared on a thread"])
def test_every_call_of_a_choice_sees_its_callers_context(engine: Engine, words: int) -> None:
    text = "one two three " * words
    seen: dict[str, list[str]] = {}

    def params(user: str) -> SamplingParams:
        def choose(output: list[int]) -> None:
            seen.setdefault(user, []).append(USER.get())

        return SamplingParams(max_tokens=6, temperature=0, ignore_eos=True, allowed_tokens_fn=choose)

    async def ask(user: str) -> None:
        USER.set(user)
        one, given = AsyncEngine(engine), params(user)
        await one.complete(text, given, truncation="head")
        async for _ in one.generate(text, given, truncation="tail"):
            USER.set(user)

    async def main() -> None:
        await asyncio.gather(*(ask(f"user {number}") for number in range(4)))

    asyncio.run(main())
    USER.set("the main thread")
    engine.complete(PROMPT, params("the main thread"))
    list(engine.stream(PROMPT, params("the main thread")))
    assert len(seen) == 5
    for user, found in seen.items():
        assert found == [user] * 12
