"""Work that a call leaves to other threads, so that the caller's event loop goes on; and no use of sockets,
pickles, processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from prelude import AsyncEngine, Embed, EngineConfig, SamplingParams
from prelude.api.engine import INLINE_CHARS, JOB_CHARS

SMALL = EngineConfig(kv_bytes=1 << 22)


@pytest.mark.feature("J8")
@pytest.mark.feature("G14")
@pytest.mark.fault(5)
def test_long_texts_are_tokenised_on_other_threads_and_answered_in_order(checkpoint: Path) -> None:
    """64 prompts are some jobs of the preparing threads. The first two wait for each other: they end only where two
    threads are at work."""
    own, threads = threading.get_ident(), set[int]()
    together = threading.Barrier(2)
    met = threading.Event()

    async def main() -> None:
        async with AsyncEngine.from_pretrained(checkpoint, dtype="float32", config=SMALL) as engine:
            preparer: Any = engine.engine._preparer
            prepare = preparer.prepare_all

            def watched(tasks: Any) -> Any:
                threads.add(threading.get_ident())
                if threading.get_ident() != own and not met.is_set():
                    together.wait(60)
                    met.set()
                return prepare(tasks)

            preparer.prepare_all = watched
            filler = " the harbour was quiet" * 200
            assert INLINE_CHARS < len(filler) < JOB_CHARS < 64 * len(filler)
            tasks = [Embed(f"{i} boats" + filler, pooling="last", truncation="tail") for i in range(64)]
            together_vectors = await engine.run_many(tasks)
            assert own not in threads and len(threads) >= 2
            threads.clear()
            short = [Embed(f"{i} boats", pooling="last") for i in range(3)]
            await engine.run_many(short)
            assert threads == {own}, "a short text costs less than a thread does"
            del preparer.prepare_all
            for i in (0, 13, 63):
                alone = await engine.run(tasks[i])
                assert abs(alone - together_vectors[i]).max() < 1e-4

    asyncio.run(main())


@pytest.mark.feature("G14")
@pytest.mark.feature("N3")
def test_serving_opens_no_socket_starts_no_process_and_pickles_nothing(checkpoint: Path) -> None:
    code = f"""
import asyncio, pickle, sys
import prelude
from prelude import AsyncEngine, Decide, Embed, EngineConfig, Generate, SamplingParams, YesNo
import prelude.api.engine

def refuse(event, args):
    if event in ("socket.connect", "socket.bind", "socket.getaddrinfo", "subprocess.Popen", "os.fork",
                 "pickle.find_class"):
        raise SystemExit("seen: " + event)

class Refused:
    def __init__(self, *args, **kwargs):
        raise SystemExit("seen: a pickle")

async def main():
    config = EngineConfig(kv_bytes=1 << 22)
    async with AsyncEngine.from_pretrained({str(checkpoint)!r}, dtype="float32", config=config) as engine:
        await engine.warmup()
        sys.addaudithook(refuse)
        pickle.dumps = pickle.dump = pickle.loads = pickle.load = pickle.Pickler = pickle.Unpickler = Refused
        params = SamplingParams(max_tokens=3, temperature=0, ignore_eos=True)
        tasks = [Decide("Once", [YesNo("Is it?")]), Embed("upon", pooling="last"), Generate("a time", params)]
        results = await engine.run_many(tasks * 20)
        chunks = [chunk async for chunk in engine.generate("Once", params)]
        long = await engine.embed("a quiet harbour " * 400, pooling="last", truncation="tail")
        requests = engine.stats()["requests"]
        assert sum(requests.values()) > 60, requests
        print(len(results), chunks[-1].finish_reason, len(long))

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "60 length 64\n", done.stdout + done.stderr


@pytest.mark.feature("N2")
def test_each_worker_does_its_part_of_the_path(checkpoint: Path) -> None:
    """The caller's thread accepts and reads, a preparing thread tokenises a long text, the engine's thread runs."""
    where: dict[str, set[str]] = {"prepare": set(), "submit": set(), "wait": set()}

    def watched(name: str, function: Any) -> Any:
        def seen(*given: Any) -> Any:
            where[name].add(threading.current_thread().name)
            return function(*given)

        return seen

    async def main() -> None:
        async with AsyncEngine.from_pretrained(checkpoint, dtype="float32", config=SMALL) as engine:
            preparer: Any = engine.engine._preparer
            executor: Any = engine.engine._core.executor
            preparer.prepare_all = watched("prepare", preparer.prepare_all)
            executor.submit, executor.wait = watched("submit", executor.submit), watched("wait", executor.wait)
            params = SamplingParams(max_tokens=3, temperature=0, ignore_eos=True)
            text = "the harbour was quiet " * 300
            readers = set()
            async for chunk in engine.generate(text, params, truncation="tail", trace=True):
                readers.add(threading.current_thread().name)
                last = chunk
            assert readers == {threading.main_thread().name}
            assert [name.rsplit("_", 1)[0] for name in where["prepare"]] == ["prelude-prepare"]
            assert where["submit"] == where["wait"] == {"prelude-engine"}
            names = [span.name for span in last.stats.timeline]
            assert names.index("tokenise") < names.index("run") < names.index("detokenise")

    asyncio.run(main())
