"""``run_many(progress=...)``: how far a call is, told to its caller while it runs."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from prelude import AsyncEngine, Engine, Generate, Loglikelihood, SamplingParams
from prelude.errors import InvalidRequest

BAD = Loglikelihood([1], [])
ONE = SamplingParams(max_tokens=1, temperature=0)


def tasks(kind: str) -> list[Any]:
    if kind == "alike":
        return [Generate([5, 6, 7 + at], ONE) for at in range(40)]
    texts = [Generate([5, 6, 7 + at], SamplingParams(max_tokens=3 + at % 5, ignore_eos=True)) for at in range(20)]
    return [*texts, BAD, *[Loglikelihood([9, at], [3]) for at in range(1, 20)]]


def check(told: list[tuple[int, int]], total: int) -> None:
    done = [count for count, _ in told]
    assert done == sorted(set(done)) and done[-1] == total
    assert {of for _, of in told} == {total}


@pytest.mark.parametrize("kind", ["alike", "mixed"])
def test_both_engines_tell_how_far_they_are(make_engine: Callable[..., Engine], kind: str) -> None:
    engine = make_engine(max_step_requests=8, max_running=4)
    told: list[tuple[int, int]] = []
    threads = set()

    def tell(done: int, total: int) -> None:
        told.append((done, total))
        threads.add(threading.get_ident())

    engine.run_many(tasks(kind), return_exceptions=True, progress=tell)
    check(told, 40)
    assert len(told) >= 5
    told.clear()

    async def main() -> None:
        await AsyncEngine(engine).run_many(tasks(kind), return_exceptions=True, progress=tell)

    asyncio.run(main())
    check(told, 40)
    assert threads == {threading.get_ident()}


def test_a_call_that_waits_for_the_engines_thread_is_told_in_its_own(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(overlap=True, max_step_requests=8, max_running=4)
    told: list[tuple[int, int]] = []
    threads = set()

    def work() -> None:
        def tell(done: int, total: int) -> None:
            told.append((done, total))
            threads.add(threading.current_thread().name)

        engine.run_many(tasks("mixed"), return_exceptions=True, progress=tell)

    other = threading.Thread(target=work, name="caller")
    long = threading.Thread(target=engine.complete, args=([5], SamplingParams(max_tokens=60, ignore_eos=True)))
    long.start()
    other.start()
    other.join()
    long.join()
    check(told, 40)
    assert threads == {"caller"}


def test_parts_of_a_large_call_are_one_count(make_engine: Callable[..., Engine]) -> None:
    told: list[tuple[int, int]] = []

    async def main() -> None:
        many = [Generate([5, 6, 7 + at % 900], ONE) for at in range(1300)]
        await AsyncEngine(make_engine()).run_many(many, progress=lambda *at: told.append(at))

    asyncio.run(main())
    check(told, 1300)


def test_a_bar_of_tqdm(make_engine: Callable[..., Engine], capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm")
    make_engine().run_many(tasks("alike"), progress=True)
    assert "40/40" in capsys.readouterr().err


def test_without_tqdm_it_says_so(make_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    engine = make_engine()
    with pytest.raises(InvalidRequest, match="progress: True shows a bar of tqdm"):
        engine.run_many(tasks("alike"), progress=True)
    with pytest.raises(InvalidRequest, match="progress: 'bar' is not a function"):
        engine.run_many(tasks("alike"), progress="bar")  # type: ignore[arg-type]
    assert engine.stats()["requests"]["oneshot"] == 0
