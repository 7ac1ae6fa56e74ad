"""Something goes wrong at each named place of a request's path: it raises, it is slow, or the request is cancelled
right there. In each case every caller gets an end. An error of the engine's own closes it; after any other fault
nothing stays held, and the engine answers the next request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from prelude.errors import EngineClosed, PreludeError
from prelude.runtime import stepper
from prelude.runtime.handover import LoopSink
from prelude.scheduling.postprocess import CompletedStep
from tests.patience import PATIENCE
from tests.scheduling.cores import chat, generated, last_logprob, prompt
from tests.service import is_empty, service_core, toy_service

# The function that is replaced at each place, as attributes of (engine, core).
PLACES: dict[str, Callable[[Any, Any], tuple[Any, str]]] = {
    "executor.submit": lambda engine, core: (core.executor, "submit"),
    "executor.wait": lambda engine, core: (core.executor, "wait"),
    "pool.alloc": lambda engine, core: (core.pool, "grow"),
    "pool.attach": lambda engine, core: (core.pool, "attach"),
    "trie.insert": lambda engine, core: (core.pool, "publish"),
    "plan": lambda engine, core: (stepper, "plan_step"),
    "postprocess": lambda engine, core: (CompletedStep, "postprocess"),
    "tokenise": lambda engine, core: (engine.engine._preparer, "prepare"),
    "deliver": lambda engine, core: (LoopSink, "deliver"),
}


OWN = {"pool.alloc", "pool.attach", "trie.insert", "plan", "postprocess"}
"""Places whose errors are the engine's own."""


class Injected(Exception):
    pass


@pytest.mark.fault(58)
@pytest.mark.parametrize("fault", ["raise", "raise CancelledError", "delay", "cancel"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("call", [0, 2])
def test_every_caller_is_told_after_a_fault_at_any_place(
    place: str, fault: str, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = service_core()
    engine = toy_service(core)
    owner, name = PLACES[place](engine, core)
    inner = getattr(owner, name)
    closes = (fault == "raise CancelledError" and place == "deliver") or (fault.startswith("raise") and place in OWN)
    seen = 0

    def meddled(*args: Any, **keywords: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == call + 1:
            match fault:
                case "raise":
                    raise Injected
                case "raise CancelledError":
                    raise asyncio.CancelledError
                case "delay":
                    time.sleep(0.05)
                case "cancel":
                    for request in list(core.live.values()):
                        core.cancel(request)
        return inner(*args, **keywords)

    monkeypatch.setattr(owner, name, meddled)

    async def main() -> None:
        tasks = [
            chat(prompt(6, 1), 6), last_logprob(prompt(20, 2)), chat(prompt(6, 3), 6), last_logprob(prompt(20, 4)),
            chat(prompt(6, 5), 6), chat(prompt(6, 6), 6),
        ]  # fmt: skip
        ends = await asyncio.wait_for(
            asyncio.gather(*(engine.run(task) for task in tasks), return_exceptions=True), timeout=PATIENCE
        )
        for end in ends:
            assert not isinstance(end, BaseException) or isinstance(
                end, PreludeError | Injected | asyncio.CancelledError
            )
        if fault == "delay":
            assert list(ends[0].token_ids) == generated(1, 6) and ends[1].output is not None
        assert seen > call, "it was called"
        again = asyncio.wait_for(engine.run(chat(prompt(6, 9), 6)), timeout=PATIENCE)
        if closes:
            with pytest.raises(EngineClosed, match="closed by an error of its own"):
                await again
            assert any(isinstance(end, PreludeError) for end in ends)
        else:
            assert list((await again).token_ids) == generated(9, 6), "the engine goes on"

    asyncio.run(main())
    if closes:
        assert not core.healthy
        engine.engine.close()
        return
    core.audit()
    assert is_empty(core) and core.healthy
    seen = core.snapshot()
    ended = sum(seen[name] for name in ("finished", "failed", "cancelled", "expired"))
    assert sum(seen["requests"].values()) == ended, "each request that came in has ended and was counted once"
    engine.engine.close()
