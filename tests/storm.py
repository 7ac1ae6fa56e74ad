"""A storm of cancellations: requests of all kinds end at random moments, every account is audited after every step,
and the survivors are compared, bit by bit, with the same requests computed alone.

``ToyLoad`` is quick; ``ModelLoad`` is the default model in deterministic mode, behind the real admission.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Protocol

import numpy as np

from prelude.runtime.core import EngineCore
from prelude.runtime.handover import watching
from prelude.scheduling.request import Request, Sink
from tests import toy
from tests.scheduling.cores import Collect, chat, last_logprob, prompt, tree_request
from tests.service import is_empty, service_core

_COUNTED = ("finished", "cancelled", "preemptions", "evictions", "prefix_hit_tokens", "discarded_rows")


class Load(Protocol):
    """``make`` gives a request of a random kind and a note by which ``right`` knows its answer; ``chance`` is how
    likely a step cancels a request."""

    core: EngineCore
    chance: float

    def make(self, rng: np.random.Generator, sink: Collect) -> tuple[Request, Any]: ...

    def right(self, note: Any, outcome: Any) -> bool: ...

    def close(self) -> None: ...


class Meddler:
    """An executor that cancels requests during its steps: between plan and postprocess, where rows are in flight."""

    def __init__(self, core: EngineCore, rng: np.random.Generator) -> None:
        self._inner, self._core, self._rng = core.executor, core, rng
        self.in_flight = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def wait(self, handle: Any) -> Any:
        result = self._inner.wait(handle)
        rows = [request for request in self._core.live.values() if request.lease is not None]
        if rows and self._rng.random() < 0.05:
            self.in_flight += 1
            self._core.cancel(rows[int(self._rng.integers(0, len(rows)))])
        return result


def storm(count: int, seed: int, load: Load) -> dict[str, int]:
    """Runs until ``count`` requests have come and gone. Raises where an account is wrong; ``wrong`` are answers."""
    rng = np.random.default_rng(seed)
    core = load.core
    meddler = core.stepper.executor = Meddler(core, rng)  # type: ignore[assignment]
    sink = Collect()
    notes: dict[int, Any] = {}
    states: dict[str, int] = {}
    waiting: list[Request] = []
    made = steps = 0
    while made < count or core.live:
        for _ in range(int(rng.integers(0, 9))):
            if made < count and len(core.live) < 60:
                request, note = load.make(rng, sink)
                notes[request.id] = note
                if rng.random() < 0.02:
                    core.cancel(request)
                core.lifecycle.post([request])
                waiting.append(request)
                made += 1
        for request in waiting:
            if rng.random() < load.chance and request.id in core.live:
                states[request.state.name] = states.get(request.state.name, 0) + 1
                core.cancel(request)
                if rng.random() < 0.3:
                    core.cancel(request)
        core.step()
        core.audit()
        waiting = [request for request in waiting if request.id in core.live]
        steps += 1
        if steps > 60 * count:
            raise AssertionError("no progress")
    while core.step():  # a step that was in flight when the last one ended keeps that one's blocks until it is over
        core.audit()
    if not is_empty(core) or sink.ends.keys() != notes.keys():
        raise AssertionError("something is left, or a caller got no end")
    stats = core.snapshot()
    if sum(stats["requests"].values()) != stats["finished"] + stats["cancelled"] or stats["failed"]:
        raise AssertionError(f"the counters do not add up: {stats}")
    wrong = sum(not _as_it_should(load, notes[key], *end) for key, end in sink.ends.items())
    load.close()
    return {
        "steps": steps,
        "wrong": wrong,
        **{name: stats[name] for name in _COUNTED},
        **{f"cancelled_while_{name.lower()}": number for name, number in sorted(states.items())},
        "cancelled_in_flight": meddler.in_flight,
    }


def _as_it_should(load: Load, note: Any, outcome: Any, error: Any) -> bool:
    return type(error).__name__ == "RequestCancelled" if error is not None else load.right(note, outcome)


# ------------------------------------------------------------------ on the toy
class QuickToy(toy.ToyExecutor):
    """The toy keeps every batch; a long run must not."""

    def submit(self, batch: Any) -> Any:
        self.batches.clear()
        return super().submit(batch)


class ToyLoad:
    chance = 0.03

    def __init__(self, overlap: bool = False) -> None:
        sizes: dict[str, Any] = {"running": 6, "step_tokens": 160, "step_requests": 24, "chunk": 5}
        self.core = service_core(QuickToy(num_blocks=20), overlap=overlap, **sizes)
        self._heads = [prompt(24, 900 + i) for i in range(3)]

    def make(self, rng: np.random.Generator, sink: Collect) -> tuple[Request, Any]:
        head = self._heads[int(rng.integers(0, 3))][: int(rng.integers(0, 25))]
        tokens = np.concatenate([head, prompt(int(rng.integers(1, 9)), int(rng.integers(0, 200)))])
        kind = str(rng.choice(["chat", "shot", "tree"]))
        if kind == "chat":
            prepared = chat(tokens, int(rng.integers(2, 10)))
        elif kind == "tree":
            prepared = tree_request(tokens, [prompt(2, 1), prompt(3, 2)])
        else:
            prepared = last_logprob(tokens)
        return self.core.request(prepared, sink), (kind, prepared)

    def right(self, note: Any, outcome: Any) -> bool:
        kind, prepared = note
        tokens = prepared.tree.token_ids.tolist()
        if kind == "chat":
            return list(outcome.token_ids) == toy.generate(tokens, prepared.max_new_tokens)
        trunk = tokens[: prepared.tree.trunk_tokens]
        branches = [[]] if kind == "shot" else [prompt(2, 1).tolist(), prompt(3, 2).tolist()]
        return all(
            float(got) == float(toy.logprobs_of(trunk + branch)[5])
            for got, branch in zip(outcome.output.logprobs, branches)
        )

    def close(self) -> None:
        self.core.close()


# ------------------------------------------------------------------ on the default model
class ModelLoad:
    """The default model, deterministic, in a pool that is too small for its chats. A few hundred different requests
    come again and again, in other company each time; the answer of each is computed once, alone, without a cache."""

    chance = 0.01

    def __init__(self, tasks: int = 240, overlap: bool = False) -> None:
        from prelude import Engine, EngineConfig, ExpertConfig

        limits: dict[str, Any] = {"deterministic": True, "max_length": 256, "fold": True}
        self._engine = Engine.from_pretrained(
            config=EngineConfig(
                max_running=8,
                max_step_tokens=500,
                chunk_tokens=16,
                overlap=overlap,
                expert=ExpertConfig(kv_blocks=24, max_step_requests=24),
            ).changed(**limits)
        )
        self._alone = Engine.from_pretrained(config=EngineConfig().changed(**limits, prefix_cache=False))
        self.core = self._engine._core
        rng = np.random.default_rng(77)
        self._tasks = [_task(rng) for _ in range(tasks)]
        self._answers: dict[int, Any] = {}

    def make(self, rng: np.random.Generator, sink: Collect) -> tuple[Request, Any]:
        at = int(rng.integers(0, len(self._tasks)))
        return self._request(self._engine, at, sink), at

    def _request(self, engine: Any, at: int, sink: Sink) -> Request:
        admitted = engine._preparer.prepare(self._tasks[at])
        request: Request = engine._core.request(admitted.prepared, watching(admitted, sink))
        return request

    def right(self, note: Any, outcome: Any) -> bool:
        if note not in self._answers:
            sink = Collect()
            request = self._request(self._alone, note, sink)
            self._alone._core.run_inline([request])
            self._answers[note] = bits(sink.ends[request.id][0])
        return bool(self._answers[note] == bits(outcome))

    def close(self) -> None:
        self._engine.close()
        self._alone.close()


_HEADS = (
    "Two boats lay at the quay while the rain fell on the roofs of the harbour town and nobody came. ",
    "Review: the parcel was late, the box was open, and the person on the phone was very kind about it. ",
    "",
)


def _task(rng: np.random.Generator) -> Any:
    from prelude import Choice, Decide, Embed, Generate, Loglikelihood, PromptLogprobs, SamplingParams, YesNo

    words = ["harbour", "quiet", "two", "boats", "lay", "at", "the", "quay", "while", "rain", "fell", "on", "roofs"]
    text = _HEADS[int(rng.integers(0, 3))] + " ".join(rng.choice(words, int(rng.integers(1, 12))))
    tokens = int(rng.integers(2, 50))
    match int(rng.integers(0, 9)):
        case 0 | 1:
            return Generate(text, SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True))
        case 2:
            return Generate(
                text, SamplingParams(max_tokens=tokens, temperature=1.1, top_p=0.9, seed=int(rng.integers(99)))
            )
        case 3:
            return Generate(
                text, SamplingParams(max_tokens=tokens, temperature=0.8, seed=5, stop=["e ", "at"], logprobs=2)
            )
        case 4:
            return Generate(text, SamplingParams(max_tokens=1, temperature=0))
        case 5:
            return Decide(text, [YesNo("Is it polite?"), Choice("Where?", ["harbour", "harbour town", "home"])])
        case 6:
            return Embed(text, pooling="mean")
        case 7:
            return Loglikelihood(text, " and then the boats left")
        case _:
            return PromptLogprobs(text, top=3, last=5)


def bits(outcome: Any) -> Any:
    """Everything that reaches the caller, exactly."""
    output = outcome.output
    arrays: list[Any] = []
    if output is not None:
        for field in fields(output):
            value = getattr(output, field.name)
            arrays.append(value.tobytes() if isinstance(value, np.ndarray) else value)
    return tuple(outcome.token_ids), outcome.text, repr(outcome.logprobs), outcome.stats.finish_reason, arrays
