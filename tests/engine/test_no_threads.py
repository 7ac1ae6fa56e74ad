"""A process that may start no more threads: a call is refused by a sentence and holds nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from prelude import AsyncEngine, Engine, EngineConfig, SamplingParams, YesNo
from prelude.api.engine import INLINE_CHARS
from prelude.errors import EngineClosed, ExecutionError

QUESTION = [YesNo("Is it polite?")]
GREEDY = SamplingParams(max_tokens=4)
SAID = r"no thread can be started: .*; end others or raise the limit \(ulimit -u, pids.max\)"


@contextmanager
def no_threads(name: str = "") -> Iterator[None]:
    """As under RLIMIT_NPROC, for threads whose names begin with ``name``."""
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if not thread.name.startswith(name):
            return start(thread)
        raise RuntimeError("can't start new thread")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        yield


CALLS: dict[str, Callable[[Engine], object]] = {
    "decide": lambda engine: engine.decide("Please come in.", QUESTION),
    "complete": lambda engine: engine.complete("Please", GREEDY),
    "generate": lambda engine: list(engine.generate("Please", GREEDY)),
}


@pytest.mark.parametrize("thread", ["", "prelude-executor"])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_refused_and_the_next_one_served(
    make_engine: Callable[..., Engine], name: str, thread: str
) -> None:
    engine, call = make_engine(overlap=True, max_queued_requests=2), CALLS[name]
    with no_threads(thread):
        for _ in range(3):  # more of them than may wait: a refused call gives its place back
            with pytest.raises(ExecutionError, match=SAID):
                call(engine)
    assert call(engine)
    assert engine.health().ok and not engine.health().failed_steps_in_a_row
    engine._core.audit()


def test_an_engine_that_has_run_serves_its_own_callers_and_closes(make_engine: Callable[..., Engine]) -> None:
    """The caller takes the steps itself, the last ones too."""
    engine = make_engine()
    before = engine.decide("Please come in.", QUESTION)[0].probabilities
    with no_threads():
        assert engine.decide("Please come in.", QUESTION)[0].probabilities == pytest.approx(before, abs=1e-5)
        with pytest.raises(ExecutionError, match=SAID):
            list(engine.generate("Please", GREEDY))
        engine.close()
    with pytest.raises(EngineClosed):
        engine.decide("Please come in.", QUESTION)


def test_an_engine_in_a_loop_starts_later_prepares_later_and_closes(checkpoint: Path) -> None:
    long = "Please come in. " * (INLINE_CHARS // 16 + 1)

    async def main() -> None:
        config = EngineConfig(kv_bytes=1 << 22)
        engine = AsyncEngine.from_pretrained(checkpoint, dtype="float32", config=config)
        with no_threads(), pytest.raises(ExecutionError, match=SAID):
            await engine.start()
        await engine.start()
        for state in ("Please come in.", long):
            with no_threads(), pytest.raises(ExecutionError, match=SAID):
                await engine.decide(state, QUESTION, truncation="tail")
        for state in ("Please come in.", long):
            assert await engine.decide(state, QUESTION, truncation="tail")
        with no_threads():
            for state in ("Please come in.", long):
                assert await engine.decide(state, QUESTION, truncation="tail")
        engine.engine._core.audit()
        with no_threads():
            await engine.aclose()
        with pytest.raises(EngineClosed):
            await engine.decide("Please come in.", QUESTION)

    asyncio.run(main())
