"""The engine in a process that it does not own: loops, threads, closing, and the cost of idling."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from typing import Any

import pytest

from prelude import AsyncEngine, Engine, Noul, RequestOptions
from prelude.errors import EngineClosed, InvalidRequest, UnknownParameter
from prelude.runtime.handover import BlockingSink
from prelude.scheduling.request import Request
from tests import toy
from tests.patience import PATIENCE, Paced, comes, shown, until
from tests.scheduling.cores import Collect, chat, generated, last_logprob, prompt
from tests.service import is_empty, service_core, toy_service

SLOW = 0.004  # seconds a step


def slow_service(**options: Any) -> AsyncEngine:
    return toy_service(service_core(toy.ToyExecutor(num_blocks=8192, delay=SLOW), **options))


# ------------------------------------------------------------------ loops and threads
def loops() -> list[Any]:
    made = [asyncio.new_event_loop]
    try:
        import uvloop
    except ImportError:
        return [*made, pytest.param(None, marks=pytest.mark.skip("uvloop is not installed"))]
    return [*made, uvloop.new_event_loop]


@pytest.mark.parametrize("new_loop", loops())
def test_a_service_under_this_loop(new_loop: Any) -> None:
    async def main() -> None:
        async with toy_service() as engine:
            tasks = [asyncio.create_task(engine.run(chat(prompt(6, i), 9))) for i in range(12)]
            tasks[3].cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(ends.pop(3), asyncio.CancelledError)
            assert [list(end.token_ids) for end in ends] == [generated(i, 9) for i in range(12) if i != 3]
        assert is_empty(engine.engine._core)

    loop = new_loop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def test_a_caller_takes_the_steps_of_its_own_request_and_leaves_the_rest_to_the_engine() -> None:
    engine = toy_service().engine
    long = threading.Thread(target=engine.run, args=(chat(prompt(6, 1), 40),))
    ended: dict[int, str] = {}

    def listener(event: Any) -> None:
        if event.name == "scheduled" and long.ident is None:
            long.start()
            until(lambda: engine.stats()["queued_requests"])
        if event.name == "finished":
            ended[len(ended)] = threading.current_thread().name

    engine.on_event(listener)
    engine.run(chat(prompt(6, 0), 3))
    long.join()
    assert ended == {0: threading.current_thread().name, 1: "prelude-engine"}
    engine.close()


@pytest.mark.fault(60)
def test_two_loops_and_threads_at_once_and_asyncio_run_twice() -> None:
    engine = toy_service()
    wrong: list[Any] = []

    async def ask(count: int) -> None:
        ends = await asyncio.gather(*(engine.run(chat(prompt(6, i), 5)) for i in range(count)))
        wrong.extend(i for i, end in enumerate(ends) if list(end.token_ids) != generated(i, 5))

    def plain() -> None:
        for i in range(30):
            if list(engine.engine.run(chat(prompt(6, i), 5)).token_ids) != generated(i, 5):
                wrong.append(i)

    def looped() -> None:
        asyncio.run(ask(30))
        asyncio.run(ask(30))

    threads = [threading.Thread(target=work) for work in (looped, looped, plain, plain)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not wrong and not any(thread.is_alive() for thread in threads)
    engine.engine.close()
    assert is_empty(engine.engine._core) and len(engine.engine._core.sinks.loops) <= 4


@pytest.mark.fault(60)
def test_a_loop_that_is_closed_with_requests_in_flight_gives_them_back() -> None:
    core = service_core(toy.ToyExecutor(num_blocks=8192), running=8)
    engine, steps = toy_service(core), Paced.of(core, 3)
    loop = asyncio.new_event_loop()
    tasks = [loop.create_task(engine.run(chat(prompt(6, i), 200))) for i in range(4)]
    loop.run_until_complete(comes(lambda: steps.held))
    assert len(core.live) == 4
    loop.close()
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    steps.open()
    until(lambda: not core.live)
    assert steps.begun == 4, "with the step that was under way, of about 200"
    other = asyncio.run(engine.run(chat(prompt(6, 1), 5)))
    assert list(other.token_ids) == generated(1, 5)
    assert len(engine._loops) == 1, "a closed loop is not kept"
    engine.engine.close()
    assert is_empty(core)


@pytest.mark.feature("G14")
def test_submitting_never_holds_up_the_loop() -> None:
    """All of it is taken while one step lasts."""

    async def main() -> None:
        core = service_core()
        steps = Paced.of(core)
        async with toy_service(core) as engine:
            tasks = []
            for i in range(300):
                tasks.append(asyncio.create_task(engine.run(chat(prompt(6, i % 7), 3))))
                await asyncio.sleep(0)
            await comes(lambda: len(core.live) == 300 and steps.held)
            assert not steps.begun and not steps.given_up
            steps.open()
            for task in tasks[20:]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())


# ------------------------------------------------------------------ options through every door
def test_options_reach_requests_through_run_and_run_many() -> None:
    async def main() -> None:
        async with toy_service() as engine:
            end = await engine.run(chat(prompt(6, 1), 3), request_id="r1", priority=3)
            assert end.stats.request_id == "r1"
            end = await engine.run(chat(prompt(6, 1), 3), RequestOptions(request_id="r2"))
            assert end.stats.request_id == "r2"
            each = [RequestOptions(request_id=name) for name in "ab"]
            ends = await engine.run_many([chat(prompt(6, i), 3) for i in range(2)], each)
            assert [end.stats.request_id for end in ends] == ["a", "b"]
            ends = engine.engine.run_many([chat(prompt(6, i), 3) for i in range(2)], each)
            assert [end.stats.request_id for end in ends] == ["a", "b"]
            for wrong, error in [
                ({"options": each[:1]}, InvalidRequest),
                ({"options": each, "priority": 1}, InvalidRequest),
                ({"options": 5}, InvalidRequest),
                ({"priorty": 1}, UnknownParameter),
            ]:
                with pytest.raises(error):
                    await engine.run_many([chat(prompt(6, i), 3) for i in range(2)], **wrong)
            assert is_empty(engine.engine._core)

    asyncio.run(main())


# ------------------------------------------------------------------ closing
@pytest.mark.feature("N8")
@pytest.mark.fault(60)
def test_aclose_drains_or_cancels_twice_and_from_any_thread() -> None:
    async def main(drain: bool) -> list[Any]:
        engine = slow_service()
        tokens = 20 if drain else 4000  # sixteen seconds
        tasks = [asyncio.create_task(engine.run(chat(prompt(6, i), tokens))) for i in range(6)]
        await comes(lambda: sum(engine.stats()["steps"].values()))
        from_thread = threading.Thread(target=engine.engine.close, kwargs={"drain": drain})
        from_thread.start()
        await asyncio.gather(engine.aclose(drain=drain), engine.aclose(drain=drain))
        await engine.aclose()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        from_thread.join(PATIENCE)
        assert not from_thread.is_alive()
        with pytest.raises(EngineClosed):
            await engine.run(chat(prompt(6, 1), 3))
        with pytest.raises(EngineClosed):
            engine.engine.run(chat(prompt(6, 1), 3))
        assert engine.health().closed and not engine.health().ok and is_empty(engine.engine._core)
        assert engine.engine._core.executor.closed
        return ends

    ends = asyncio.run(main(True))
    assert [list(end.token_ids) for end in ends] == [generated(i, 20) for i in range(6)]
    assert all(isinstance(end, EngineClosed) for end in asyncio.run(main(False)))


def test_a_later_close_without_draining_cuts_the_draining_short() -> None:
    async def main() -> None:
        core = service_core(toy.ToyExecutor(num_blocks=8192))
        engine, steps = toy_service(core), Paced.of(core, 3)
        tasks = [asyncio.create_task(engine.run(chat(prompt(6, i), 2000))) for i in range(2)]
        await comes(lambda: steps.held)
        draining = asyncio.create_task(engine.aclose())
        await comes(lambda: core.closed)
        steps.allow(5)
        await comes(lambda: steps.held)
        assert not draining.done() and len(core.live) == 2
        cutting = asyncio.create_task(engine.aclose(drain=False))
        await comes(lambda: core.lifecycle.aborting)
        steps.open()
        await asyncio.gather(draining, cutting)
        assert steps.begun == 9, "with the step that was under way, of about 2000"
        for task in tasks:
            with pytest.raises(EngineClosed):
                await task
        assert (core.stats.cancelled, core.stats.failed) == (2, 0)

    asyncio.run(main())


@pytest.mark.fault(60)
def test_closing_races_with_submitting_and_no_caller_hangs() -> None:
    for seed in range(20):
        core = service_core()
        ends: list[Any] = []

        def work(core: Any = core, ends: list[Any] = ends, seed: int = seed) -> None:
            for i in range(50):
                try:
                    sink = Waiter()
                    request = core.request(last_logprob(prompt(4, i)), sink)
                    (core.run_inline if (seed + i) % 3 else core.submit_many)([request])
                    ends.append(sink.event.wait(PATIENCE))
                except EngineClosed:
                    return

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.002 * (seed % 5))
        core.close(drain=bool(seed % 2))
        for thread in threads:
            thread.join(PATIENCE)
        assert all(ends) and not any(thread.is_alive() for thread in threads) and is_empty(core)


class Waiter(Collect):
    def __init__(self) -> None:
        super().__init__()
        self.event = threading.Event()

    def deliver(self, request, outcome, error) -> None:  # type: ignore[no-untyped-def]
        super().deliver(request, outcome, error)
        self.event.set()


def test_closed_from_its_own_listener() -> None:
    core = service_core()
    core.events.add(lambda event: core.close() if event.name == "finished" else None)
    sink = Waiter()
    core.submit(core.request(last_logprob(prompt(4, 1)), sink))
    assert sink.event.wait(PATIENCE) and core.stopped.wait(PATIENCE)
    inline = service_core()
    inline.events.add(lambda event: inline.close() if event.name == "finished" else None)
    inline.run_inline([inline.request(last_logprob(prompt(4, 1)), Collect())])
    assert inline.stopped.wait(PATIENCE)


# ------------------------------------------------------------------ idle, and waking
@pytest.mark.feature("F4")
def test_an_idle_engine_uses_no_cpu_and_wakes_at_once() -> None:
    core = service_core()
    for i in range(20):
        sink = Waiter()
        core.submit(core.request(last_logprob(prompt(4, i)), sink))
        assert sink.event.wait(PATIENCE)

    def idles() -> bool:
        began, used = time.monotonic(), time.process_time()
        time.sleep(0.5)
        return (time.process_time() - used) / (time.monotonic() - began) < 0.02

    assert shown(idles)
    begins = core.executor.submit
    started: list[float] = []
    core.executor.submit = lambda batch: (started.append(time.perf_counter()), begins(batch))[1]

    def woken(i: int) -> float:
        time.sleep(0.001)
        sink = Waiter()
        request = core.request(last_logprob(prompt(4, i)), sink)
        asked = time.perf_counter()
        core.submit(request)
        assert sink.event.wait(PATIENCE)
        return started[-1] - asked

    def wakes_at_once() -> bool:
        """As soon as a thread that sleeps on an event does, beside the time of a step's planning."""
        pairs = [(woken(i), handed_over()) for i in range(101)]
        ours, plain = (sorted(times)[len(times) // 2] for times in zip(*pairs))
        return ours < 0.001 + plain

    assert shown(wakes_at_once)
    core.close()


def handed_over() -> float:
    """Seconds that a thread which sleeps takes to hear of an event."""
    event, asleep, heard = threading.Event(), threading.Event(), list[float]()

    def sleep() -> None:
        asleep.set()
        event.wait()
        heard.append(time.perf_counter())

    thread = threading.Thread(target=sleep)
    thread.start()
    asleep.wait()
    time.sleep(0.001)
    asked = time.perf_counter()
    event.set()
    thread.join()
    return heard[0] - asked


@pytest.mark.fault(70)
def test_warmup_takes_living_objects_out_of_the_collectors_sight() -> None:
    engine = toy_service().engine
    engine.run_many = lambda tasks, **options: []  # type: ignore[method-assign]
    heap = [[i] for i in range(400_000)]
    frozen = gc.get_freeze_count()
    gc.disable()
    try:
        engine.warmup(freeze_gc=True)
        assert gc.get_freeze_count() - frozen > len(heap) and engine.stats()["gc_pauses"]["count"] == 0
        gc.enable()
        del engine.run_many

        def short() -> bool:
            before = engine.stats()["gc_pauses"]
            gc.collect()
            for i in range(200):
                engine.run(last_logprob(prompt(5, i)))
            after = engine.stats()["gc_pauses"]
            assert after["count"] > before["count"]
            assert before["total_ms"] < after["total_ms"] >= after["longest_ms"] > 0
            return (after["total_ms"] - before["total_ms"]) / (after["count"] - before["count"]) < 5

        assert shown(short)
    finally:
        gc.enable()
        gc.unfreeze()
        del heap
    engine.close()


def test_a_request_alone_leaves_no_reference_cycle() -> None:
    with Engine.from_pretrained(device="cpu") as decider:
        decider.decide("a state", [Noul("Is it?")])
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for _ in range(20):
                decider.decide("a state", [Noul("Is it?")])
            gc.collect()
            left = [one for one in gc.garbage if isinstance(one, Request | BlockingSink)]
            assert not left, "engines of other tests may be among the garbage"
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
