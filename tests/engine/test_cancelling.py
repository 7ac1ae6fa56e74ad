"""Cancellation from any state, by the caller and by its task; storms of cancellations."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tests.patience import Paced, comes, until
from tests.scheduling.cores import Collect, chat, generated, post, prompt, text
from tests.service import is_empty, run_steps, service_core, toy_service


@pytest.mark.fault(51)
@pytest.mark.feature("N4")
def test_cancel_in_every_state_twice_and_after_the_end() -> None:
    for steps in range(12):
        core = service_core(chunk=4)
        sink = Collect()
        keep = post(core, chat(prompt(6, 1), 12), sink)
        gone = core.request(chat(prompt(18, 2), 6), sink)
        if steps == 0:
            core.cancel(gone)  # before admission: it is told when it arrives
        core.lifecycle.post([gone])
        for _ in range(steps):
            core.step()
        core.cancel(gone)
        core.cancel(gone)
        run_steps(core)
        core.cancel(gone)
        run_steps(core)
        assert text(sink, keep) == generated(1, 12)
        assert sink.ends.keys() == {keep.id, gone.id} and is_empty(core)


@pytest.mark.fault(51)
@pytest.mark.feature("N4")
@pytest.mark.parametrize("when", ["before", "preparing", "waiting", "running", "between"])
def test_cancelling_the_awaiting_task_gives_everything_back(when: str) -> None:
    async def main() -> None:
        core = service_core(running=1)
        engine, steps, prepares = toy_service(core), Paced.of(core, 5), threading.Event()
        blocker = asyncio.create_task(engine.run(chat(prompt(6, 1), 20)))
        await comes(lambda: steps.held)
        victim = chat(prompt(6, 2), 30)
        if when == "preparing":
            victim = Long(victim, "x" * 10_000)  # type: ignore[assignment]
            engine.engine._preparer.prepare = slow(engine.engine._preparer.prepare, prepares, steps)
        if when in ("running", "between"):
            steps.open()
            await blocker
            steps.allow(5)
        task = asyncio.create_task(engine.run(victim))
        if when == "preparing":
            await comes(prepares.is_set)
        elif when != "before":
            await comes(lambda: len(core.live) == 1 + (when == "waiting") and steps.held)
        if when == "between":  # finished by the engine, not yet told to the task
            steps.open()
            until(lambda: not core.live)
        task.cancel()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        steps.open()
        await blocker
        await comes(lambda: not core.live and not core.stepper.began)
        await engine.aclose()
        assert is_empty(core)

    asyncio.run(main())


class Long:
    """A task whose text is long enough for a preparing thread."""

    def __init__(self, prepared: Any, text: str) -> None:
        self.prepared, self.prompt = prepared, text


def slow(prepare: Any, begun: threading.Event, steps: Paced) -> Any:
    """Takes until the steps may go on."""

    def slower(task: Any) -> Any:
        begun.set()
        until(lambda: not steps.held)
        return prepare(task.prepared if isinstance(task, Long) else task)

    return slower


@pytest.mark.fault(50)
@pytest.mark.feature("N4")
@pytest.mark.feature("H13")
@pytest.mark.parametrize("overlap", [False, True], ids=["", "overlap"])
@pytest.mark.parametrize("seed", [11, 12, 13])
def test_a_storm_of_cancellations(seed: int, overlap: bool) -> None:
    """Requests of all kinds end by cancellation at random moments, audited after every step; the others have exactly
    their own numbers."""
    from tests.storm import ToyLoad, storm

    counts = storm(3400, seed, ToyLoad(overlap))
    assert counts["cancelled"] > 600 and counts["wrong"] == 0 and counts["finished"] > 1500
    assert counts["preemptions"] > 10 and counts["evictions"] > 100
    assert min(counts[f"cancelled_while_{state}"] for state in ("waiting", "prefill", "decode")) > 10
    assert counts["cancelled_in_flight"] > 10
    assert (counts["discarded_rows"] > 30) == overlap


@pytest.mark.fault(50)
@pytest.mark.feature("H13")
@pytest.mark.parametrize("overlap", [False, True], ids=["", "overlap"])
def test_a_storm_of_cancellations_on_the_default_model(overlap: bool) -> None:
    """Survivors have the bits that they have alone. ``python -m tests.soak --storm 10000`` is the same, longer."""
    from tests.storm import ModelLoad, storm

    counts = storm(250, 1, ModelLoad(40, overlap))
    assert counts["wrong"] == 0 and counts["finished"] > 100 and counts["cancelled"] > 40
    assert counts["preemptions"] > 0 and counts["prefix_hit_tokens"] > 0
    assert (counts["discarded_rows"] > 10) == overlap
