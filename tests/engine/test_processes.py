"""The engine beside other processes, and at the end of its own: forks, spawned children, exits, signals."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from prelude.errors import EngineForked, ExecutionError
from tests import toy
from tests.engine.test_lifecycle import slow_service
from tests.patience import PATIENCE, until
from tests.scheduling.cores import Collect, chat, last_logprob, prompt
from tests.service import service_core, toy_service

TOY = "from tests.service import *; from tests.scheduling.cores import *; import asyncio, time, os\n"


def run_code(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


@pytest.mark.fault(62)
def test_a_forked_child_is_told_at_once() -> None:
    engine = slow_service()
    core = engine.engine._core
    core.submit(core.request(chat(prompt(6, 1), 200), Collect()))
    assert core.loop.lock.try_acquire() or core.loop.thread is not None  # one thread has it at that moment
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        code = 1
        try:
            signal.alarm(60)
            told = 0
            for attempt in (
                lambda: engine.engine.run(last_logprob(prompt(4, 1))),
                lambda: asyncio.run(engine.run(last_logprob(prompt(4, 1)))),
                lambda: core.submit(core.request(last_logprob(prompt(4, 1)), Collect())),
            ):
                try:
                    attempt()
                except EngineForked:
                    told += 1
            health = engine.health()
            engine.engine.close()
            code = 0 if told == 3 and not health.ok and "forked" in str(health.reason) else 1
        finally:
            os._exit(code)
    if core.loop.lock.held:
        core.loop.lock.release()
        core.loop.wake_if_started()
    os.close(read)
    os.close(write)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert engine.health().ok, "the parent goes on"
    engine.engine.close(drain=False)


@pytest.mark.fault(62)
def test_spawned_processes_have_their_own_engine_and_none_is_pickled(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="another process"):
        pickle.dumps(toy_service().engine)
    code = """
import multiprocessing as mp
from tests.service import toy_service
from tests.scheduling.cores import last_logprob, prompt

def work(queue):
    with toy_service().engine as engine:
        queue.put(float(engine.run(last_logprob(prompt(4, 1))).output.logprobs[0]))

if __name__ == "__main__":
    here = toy_service().engine
    want = float(here.run(last_logprob(prompt(4, 1))).output.logprobs[0])
    context = mp.get_context("spawn")
    queue = context.Queue()
    context.Process(target=work, args=(queue,)).start()
    print(queue.get() == want)
"""
    file = tmp_path / "spawn.py"
    file.write_text(code, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, env=environment)
    assert done.stdout == "True\n", done.stderr


@pytest.mark.fault(60)
@pytest.mark.parametrize("how", ["idle", "in flight", "async", "loop open", "half made"])
def test_an_engine_that_is_not_closed_does_not_hold_up_the_exit(how: str) -> None:
    code = {
        "idle": "e = toy_service(); e.engine.run(last_logprob(prompt(4, 1)))",
        "in flight": "c = service_core(toy.ToyExecutor(delay=0.01))\n"
        "c.submit(c.request(chat(prompt(6, 1), 200), Collect())); time.sleep(0.05)",
        "async": "e = toy_service(service_core(toy.ToyExecutor(delay=0.01)))\n"
        "async def main():\n    t = asyncio.create_task(e.run(chat(prompt(6, 1), 200))); await asyncio.sleep(0.05)\n"
        "asyncio.run(main())",
        "loop open": "e = toy_service(service_core(toy.ToyExecutor(delay=0.01)))\n"
        "l = asyncio.new_event_loop(); t = l.create_task(e.run(chat(prompt(6, 1), 200)))\n"
        "l.run_until_complete(asyncio.sleep(0.05))",
        "half made": "import prelude.runtime.core as c; c.StepLoop = None\n"
        "try: service_core()\nexcept TypeError as error: kept = error",
    }[how]
    done = run_code(f"{TOY}{code}\nimport atexit; atexit.register(print, 'left')\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "left\n", "")


def test_an_engine_that_is_dropped_ends_its_threads() -> None:
    import weakref

    engine = toy_service()
    core = engine.engine._core
    asyncio.run(engine.run(last_logprob(prompt(4, 1))))
    thread = core.loop.thread
    assert thread is not None and thread.is_alive()
    gone = weakref.ref(engine.engine)
    del engine
    until(lambda: gc.collect() >= 0 and gone() is None)
    thread.join(PATIENCE)
    assert not thread.is_alive() and core.executor.closed


def test_an_engine_that_only_callers_stepped_leaves_no_thread() -> None:
    import threading
    import weakref

    engine = toy_service(service_core(toy.ToyExecutor(), hang_seconds=3600.0)).engine
    before = set(threading.enumerate())
    engine.run(last_logprob(prompt(4, 1)))
    mine = [thread for thread in threading.enumerate() if thread not in before]
    assert [thread.name for thread in mine] == ["prelude-watchdog"]
    gone = weakref.ref(engine)
    del engine
    until(lambda: gc.collect() >= 0 and gone() is None)
    mine[0].join(PATIENCE)
    assert not mine[0].is_alive()


@pytest.mark.parametrize("kind", ["one step", "a text"])
def test_an_engine_whose_step_failed_is_freed_like_any_other(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed step leaves no reference to the engine: neither in its error nor in its rows."""
    import weakref

    monkeypatch.setattr(logging.getLogger("prelude.engine"), "disabled", True)  # pytest would keep the error

    def fail(*_: object) -> None:
        raise RuntimeError("injected")

    def use() -> weakref.ref[Any]:
        engine = toy_service().engine
        engine._core.executor.submit = fail
        with pytest.raises(ExecutionError, match="injected"):
            engine.run(last_logprob(prompt(4, 1)) if kind == "one step" else chat(prompt(4, 1), 3))
        assert engine.health().last_error == "RuntimeError: injected"
        return weakref.ref(engine)

    gone = use()
    until(lambda: gc.collect() >= 0 and gone() is None)


@pytest.mark.fault(60)
@pytest.mark.parametrize("kind", ["SIGTERM drains", "SIGINT"])
def test_signals(kind: str) -> None:
    """The signals of the README: SIGTERM sets an event, and leaving the ``async with`` block drains."""
    drains = """
import signal
async def main():
    engine = toy_service(service_core(toy.ToyExecutor(delay=0.01), running=8))
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with engine:
        tasks = [asyncio.create_task(engine.run(chat(prompt(6, i), 30))) for i in range(4)]
        await asyncio.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)
        await stop.wait()
    ends = await asyncio.gather(*tasks)
    print(sum(len(end.token_ids) for end in ends))
asyncio.run(main())
"""
    interrupted = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent may pass on that it ignores SIGINT
class Pressed(toy.ToyExecutor):
    def wait(self, handle):
        if len(self.batches) == 9:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        return super().wait(handle)
engine = toy_service(service_core(Pressed(num_blocks=8192))).engine
try:
    engine.run(chat(prompt(6, 1), 4000))
except KeyboardInterrupt:
    end = engine.run(chat(prompt(6, 1), 20))
    engine.close()
    from tests.service import is_empty
    print(list(end.token_ids) == toy.generate(prompt(6, 1).tolist(), 20) and is_empty(engine._core))
"""
    done = run_code(TOY + (drains if kind.startswith("SIGTERM") else interrupted))
    assert done.stdout == ("120\n" if kind.startswith("SIGTERM") else "True\n"), done.stderr
