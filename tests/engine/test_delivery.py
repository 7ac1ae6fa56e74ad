"""Ends on their way to an event loop: an interrupt on the way loses none of the others."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prelude import AsyncEngine, Engine
from prelude.admission.prepared import Admitted, Outcome, Prepared
from prelude.runtime.handover import CompletionQueue, LoopSink
from prelude.scheduling.request import Request
from tests.patience import comes
from tests.scheduling.cores import chat, last_logprob, prompt
from tests.service import ToyPreparer, is_empty, service_core


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def turns(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_until_complete(asyncio.sleep(0.01))


def test_a_call_that_raises_leaves_the_others_to_the_next_turn(loop: asyncio.AbstractEventLoop) -> None:
    core = service_core()
    completions, told = CompletionQueue(loop, core.sinks), list[int]()

    def interrupted() -> None:
        raise KeyboardInterrupt

    completions.put(told.append, 1)
    completions.put(interrupted)
    completions.put(told.append, 3)
    core.sinks.flush()
    with pytest.raises(KeyboardInterrupt):
        turns(loop)
    turns(loop)
    assert told == [1, 3]


class Interrupting:
    """Progress that is interrupted."""

    def advance(self, count: int) -> None:
        raise KeyboardInterrupt


def test_an_interrupt_of_one_calls_progress_keeps_no_call_waiting(loop: asyncio.AbstractEventLoop) -> None:
    completions = CompletionQueue(loop, service_core().sinks)
    progress: list[Any] = [None, Interrupting(), None]
    sinks = [LoopSink(completions, 1, one) for one in progress]
    for number, sink in enumerate(sinks):
        request: Any = SimpleNamespace(id=number)
        sink.deliver(request, "abc"[number], None)  # type: ignore[arg-type]
    completions._sinks.flush()
    with pytest.raises(KeyboardInterrupt):
        turns(loop)
    turns(loop)
    assert [sink.future.done() for sink in sinks] == [True] * 3
    assert [sink.ends[number] for number, sink in enumerate(sinks)] == [(one, None) for one in "abc"]


def test_a_result_that_cannot_be_made_is_its_own_error_and_delays_no_other() -> None:
    class Refusing(ToyPreparer):
        def prepare(self, task: Prepared) -> Admitted:
            def finish(outcome: Outcome) -> Any:
                if task.tree.num_tokens == 6:
                    raise ValueError("no text")
                return outcome

            return Admitted(task, finish)

    async def main() -> None:
        async with AsyncEngine(Engine(service_core(), Refusing(), Path())) as engine:  # type: ignore[arg-type]
            tasks: list[Any] = [last_logprob(prompt(size, size)) for size in (5, 6, 7)]
            for found in (
                await engine.run_many(tasks, return_exceptions=True),
                await asyncio.gather(*(engine.run(task) for task in tasks), return_exceptions=True),
            ):
                first, second, third = found
                assert isinstance(first, Outcome) and isinstance(third, Outcome)
                assert isinstance(second, ValueError)

    asyncio.run(main())


class Result:
    """The result of a caller."""


def requests_alive() -> int:
    return sum(type(one) is Request for one in gc.get_objects())


@pytest.mark.feature("Q10")
def test_results_that_no_caller_reads_are_let_go() -> None:
    """Fifty calls end and none of their results is looked at: nothing keeps a request, an end or a result."""
    made: list[weakref.ref[Result]] = []
    gc.collect()
    before = requests_alive()

    class Remembering(ToyPreparer):
        def prepare(self, task: Prepared) -> Admitted:
            def finish(outcome: Outcome) -> Result:
                result = Result()
                made.append(weakref.ref(result))
                return result

            return Admitted(task, finish)

    async def main() -> None:
        core = service_core(running=8)
        async with AsyncEngine(Engine(core, Remembering(), Path())) as engine:  # type: ignore[arg-type]
            tasks = [asyncio.create_task(engine.run(chat(prompt(6, i), 3))) for i in range(50)]
            await comes(lambda: len(made) == 50)
            await comes(lambda: is_empty(core) and all(task.done() for task in tasks))
            assert all(not completions._calls for completions, _ in engine._loops.values())
            assert core.snapshot()["live_futures"] == 0
            assert any(one() is not None for one in made), "the tasks have them"
            tasks.clear()
            gc.collect()
            assert not [one for one in made if one() is not None]
            assert requests_alive() <= before

    asyncio.run(main())
